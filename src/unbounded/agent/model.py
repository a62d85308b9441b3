"""The two slots of a host, what the node in a slot is made from, and what is seen of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from unbounded.api.node_settings import NodeSettings
from unbounded.join.agent_config import Downloads
from unbounded.kube.logs import Secret


class Slot(StrEnum):
    """The nspawn machines; the node runs in one of them, the other is free or being built."""

    KUBE1 = "kube1"
    KUBE2 = "kube2"

    @property
    def other(self) -> Slot:
        return Slot.KUBE2 if self is Slot.KUBE1 else Slot.KUBE1


class ConfigurationId(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The MachineConfigurationVersion that a goal came from."""

    name: str
    version: int
    version_name: str


class NodeGoal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All that a node is made from, but for its credentials: what differs here is another node.

    Args:
        machine: the Machine's name, and the Node's.
        kubernetes_version: without v.
        api_server: https://….
        ca_pem: of the API server.
        image: OCI image of the root file system; empty for one made by debootstrap.
        labels, taints: as kubelet registers them; taints as key=value:Effect.
        settings: of kubelet, containerd and the host, from the configuration.
        configuration: where version, labels, taints and image came from; None for the Machine's own spec.
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


class Applied(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a slot holds, on disk beside its sha256. There is none for a slot that is not whole.

    Args:
        format: of this file; a higher one than FORMAT is from a later agent, and left alone.
        node_uid: UID of the Node that this slot registered; empty while it never did.
        image_digest: what the image's reference meant.
        unchecked: names of artifacts that nobody published a sha256 of, and that were taken as they came.
    """

    goal: NodeGoal
    format: int = 1
    node_uid: str = ""
    image_digest: str = ""
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True)
class TokenAccess:
    """kubelet introduces itself with a bootstrap token, and asks for its certificate."""

    token: Secret


@dataclass(frozen=True)
class ExecAccess:
    """kubelet has its credential from a program; the keys are those of a kubeconfig's `exec`."""

    command: str
    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    api_version: str

    def __repr__(self) -> str:
        return f"ExecAccess({self.command})"


@dataclass(frozen=True)
class CertificateAccess:
    """kubelet is given a client certificate of its own: PEM of certificate and key, in one."""

    pem: Secret


KubeletAccess = TokenAccess | ExecAccess | CertificateAccess


@dataclass(frozen=True)
class SlotFacts:
    """What is seen of a slot now.

    Args:
        exists: it has a root file system, whole or not.
        applied: what it was made from; None for a slot that is not whole.
        running: its nspawn machine runs, and answers.
        boot_id: of the machine that runs.
        kubelet, containerd: their units are active.
    """

    slot: Slot
    exists: bool = False
    applied: Applied | None = None
    running: bool = False
    boot_id: str = ""
    kubelet: bool = False
    containerd: bool = False
