"""An Azure, as `unbounded lab cloud` serves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unbounded_lab.cloud.azure.local import GROUP, LabAzure
from unbounded_lab.cloud.azure.seeding import VmShape
from unbounded_lab.cloud.cloud_offer import CloudOffer


def _add(cloud: LabAzure, name: str, data_disks: int) -> str:
    return f"azure://{cloud.add_machine(name, VmShape(data_disks=data_disks))}"


def _shown(cloud: LabAzure) -> Mapping[str, str]:
    return {"subscription": cloud.subscription, "resource group": GROUP, **_secret(cloud)}


def _secret(cloud: LabAzure) -> Mapping[str, str]:
    """Return the content of the Secret of an ExternalPlugin credential."""
    return {"tenantID": cloud.tenant, "clientID": cloud.client_id, "clientSecret": cloud.client_secret}


OFFER: Final = CloudOffer(
    about="Azure Resource Manager and login, for workload identities and client secrets",
    provider="AzureVM",
    start=LabAzure,
    add=_add,
    secret=None,
    shown=_shown,
)
