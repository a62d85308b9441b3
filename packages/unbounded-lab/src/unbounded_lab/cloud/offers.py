"""Clouds of `unbounded lab cloud`: how to fill each, and how to log in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from unbounded.api.names import API_VERSION, LABEL_SITE, NAMESPACE
from unbounded_lab.cloud.azure.local import GROUP, LabAzure
from unbounded_lab.cloud.azure.seeding import VmShape
from unbounded_lab.cloud.local import LabCloud
from unbounded_lab.cloud.oci.local import LabOci
from unbounded_lab.cloud.oci.seeding import Disks
from unbounded_lab.machines import Manifest

AGENT: Final = "https://releases.invalid/unbounded-agent.tar.gz"  # for replacements; a simulated VM runs nothing

C = TypeVar("C", bound=LabCloud[Any])


@dataclass(frozen=True)
class CloudOffer(Generic[C]):
    """A cloud for the command.

    Args:
        about: one line.
        provider: `spec.provider` of its Machines.
        start: creates the cloud; takes the arguments of LabCloud.
        add: adds a machine with this number of data disks, returns its provider ID.
        secret: content of a MachineOperationCredential's Secret; None: the controller logs in with its own identity.
        shown: further properties for users, by name.
    """

    about: str
    provider: str
    start: Callable[..., C]
    add: Callable[[C, str, int], str]
    secret: Callable[[C], Mapping[str, str]] | None
    shown: Callable[[C], Mapping[str, str]]


def manifests(offer: CloudOffer[C], cloud: C, machines: Mapping[str, str], *, site: str) -> Iterator[Manifest]:
    """Yield the objects to apply: the credential of a site and its Secret, and a Machine for each provider ID by its
    name.
    """
    auth: dict[str, Any] = {"mode": "WorkloadIdentity"}
    if offer.secret is not None:
        name = f"{site}-auth"
        auth = {"mode": "ExternalPlugin", "secretRef": {"namespace": NAMESPACE, "name": name}}
        yield {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "type": "Opaque",
            "stringData": dict(offer.secret(cloud)),
        }
    spec = {"siteName": site, "provider": offer.provider, "auth": auth}
    yield _object("MachineOperationCredential", {"name": site}, spec)
    for name, provider_id in machines.items():
        metadata = {"name": name, "labels": {LABEL_SITE: site}}
        machine = {"provider": offer.provider, "providerID": provider_id, "kubernetes": {}, "agent": {"url": AGENT}}
        yield _object("Machine", metadata, machine)


def _object(kind: str, metadata: Manifest, spec: Manifest) -> Manifest:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def _add_vm(cloud: LabAzure, name: str, data_disks: int) -> str:
    return f"azure://{cloud.add_machine(name, VmShape(data_disks=data_disks))}"


def _add_instance(cloud: LabOci, name: str, data_disks: int) -> str:
    return f"oci://{cloud.add_instance(name, data_volumes=Disks(count=data_disks)).id}"


def _azure_properties(cloud: LabAzure) -> Mapping[str, str]:
    """Return the properties of an Azure, with the content of the Secret of an ExternalPlugin credential."""
    secret = {"tenantID": cloud.tenant, "clientID": cloud.client_id, "clientSecret": cloud.client_secret}
    return {"subscription": cloud.subscription, "resource group": GROUP, **secret}


def _oci_properties(cloud: LabOci) -> Mapping[str, str]:
    tenancy = cloud.tenancy
    return {
        "tenancy": tenancy.id,
        "compartment": tenancy.compartment_id,
        "user": cloud.api_key.user,
        "key fingerprint": cloud.api_key.fingerprint,
    }


AZURE: Final = CloudOffer(
    about="Azure Resource Manager and login, for workload identities and client secrets",
    provider="AzureVM",
    start=LabAzure,
    add=_add_vm,
    secret=None,
    shown=_azure_properties,
)
OCI: Final = CloudOffer(
    about="Oracle Compute, with API keys and instance principals",
    provider="OCIInstance",
    start=LabOci,
    add=_add_instance,
    secret=lambda cloud: cloud.secret_data,
    shown=_oci_properties,
)
