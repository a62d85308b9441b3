"""Azure virtual machines: `spec.provider: AzureVM`, by Azure Resource Manager."""

import os

from unbounded.machineops.providers.azure.provider import AzureVM

__all__ = ["PROVIDER", "AzureVM"]

PROVIDER = AzureVM(endpoint=os.environ.get("AZURE_RESOURCE_MANAGER_ENDPOINT", ""))
"""What the entry point leads to. Without that variable it is the cloud that the SDK is set to (AZURE_CLOUD, else the
public one); where tokens come from, the SDK reads from AZURE_AUTHORITY_HOST.
"""
