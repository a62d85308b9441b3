"""The two slots of a host, the goal of the node in a slot, and the observed state of a slot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from unbounded.api.configuration import NodeSettings
from unbounded.join.agent_config import Downloads
from unbounded.kube.logs import SecretStr


class Slot(StrEnum):
    """Names of the nspawn machines; the node runs in one slot, the other is free or being built."""

    KUBE1 = "kube1"
    KUBE2 = "kube2"

    @property
    def other(self) -> Slot:
        return Slot.KUBE2 if self is Slot.KUBE1 else Slot.KUBE1


class ConfigurationId(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The MachineConfigurationVersion that a goal was made from."""

    name: str
    version: int
    version_name: str


class NodeGoal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All inputs of a node except its credentials: two nodes with different goals are different nodes.

    Args:
        machine: name of the Machine, and of the Node.
        kubernetes_version: without v.
        api_server: https://….
        ca_pem: of the API server.
        image: OCI image of the root file system; empty for one made by debootstrap.
        labels, taints: as kubelet registers them; taints as key=value:Effect.
        settings: of kubelet, containerd and the host, from the configuration.
        configuration: source of version, labels, taints and image; None for the Machine's own spec.
    """

    machine: str
    kubernetes_version: str
    api_server: str
    ca_pem: str
    cluster_dns: str = ""
    cluster_domain: str = "cluster.local"
    image: str = ""
    labels: dict[str, str] = {}
    taints: tuple[str, ...] = ()
    downloads: Downloads = Downloads()
    containerd_version: str = ""
    runc_version: str = ""
    cni_version: str = ""
    settings: NodeSettings = NodeSettings()
    configuration: ConfigurationId | None = None


class BuildRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Record of a complete slot's build, on disk with its sha256. An incomplete slot has none.

    Args:
        format: of this file; a file with a higher one than FORMAT is from a later agent and is not changed.
        node_uid: UID of the Node that this slot registered; empty until it has registered one.
        image_digest: that the image's reference resolved to.
        unchecked: names of artifacts without a published sha256, which were taken unverified.
    """

    goal: NodeGoal
    format: int = 1
    node_uid: str = ""
    image_digest: str = ""
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True)
class TokenAccess:
    """A bootstrap token with which kubelet requests its certificate."""

    token: SecretStr


@dataclass(frozen=True)
class ExecAccess:
    """A program that supplies kubelet's credential; the fields are those of a kubeconfig's `exec`."""

    command: str
    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    api_version: str

    def __repr__(self) -> str:
        return f"ExecAccess({self.command})"


@dataclass(frozen=True)
class CertificateAccess:
    """A client certificate for kubelet: PEM of certificate and key, in one."""

    pem: SecretStr


KubeletAccess = TokenAccess | ExecAccess | CertificateAccess


@dataclass(frozen=True)
class SlotFacts:
    """Observed state of a slot.

    Args:
        exists: it has a root file system, complete or not.
        applied: record of its build; None for an incomplete slot.
        running: its nspawn machine runs and answers.
        boot_id: of the running machine.
        kubelet, containerd: their units are active.
    """

    slot: Slot
    exists: bool = False
    applied: BuildRecord | None = None
    running: bool = False
    boot_id: str = ""
    kubelet: bool = False
    containerd: bool = False
