"""Description of a cloud for `unbounded lab cloud`: how to fill it, and how to log in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from unbounded.api.names import API_VERSION, LABEL_SITE, NAMESPACE
from unbounded_lab.cloud.local import LabCloud
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
