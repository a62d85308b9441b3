"""Provider of Azure virtual machines (`spec.provider: AzureVM`) through Azure Resource Manager."""

import os

from unbounded.machineops.providers.azure.provider import AzureVM

__all__ = ["PROVIDER", "AzureVM"]

PROVIDER = AzureVM(endpoint=os.environ.get("AZURE_RESOURCE_MANAGER_ENDPOINT", ""))
"""Object of the entry point.

Without the variable, the SDK chooses the cloud (AZURE_CLOUD, else the public one). It reads the authority of tokens
from AZURE_AUTHORITY_HOST.
"""
