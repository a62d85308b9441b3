"""All that is written into a slot beside its image and binaries. Pure; paths are those inside the machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from unbounded.agent.model import KubeletAccess, NodeGoal
from unbounded.agent.node import containerd, kubelet, settings
from unbounded.agent.node.nspawn import Bind
from unbounded.agent.node.slot_file import SlotFile

HOST_RESOLVE: Final = "/run/host-resolve"
_SYSTEM: Final = "/etc/systemd/system"
MASKED: Final = (
    "systemd-resolved.service",  # the machine is in the host's network, where the host's own answers
    "systemd-networkd.service",
    "systemd-networkd.socket",
    "systemd-networkd-wait-online.service",
)
PARAMETERS: Final = ("/etc/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d")
FOLDERS: Final[Mapping[str, int]] = {
    "/etc/kubernetes/manifests": 0o700,
    "/var/lib/kubelet": 0o700,
    "/etc/containerd/conf.d": 0o755,
    "/etc/containerd/certs.d": 0o755,
    settings.CA_FOLDER: 0o755,
    "/etc/cni/net.d": 0o755,
}


@dataclass(frozen=True)
class HostNames:
    """Args:
    hostname: of the host; the machine has the same.
    machine_id: of the host; the machine's is made from it.
    """

    hostname: str
    machine_id: str


@dataclass(frozen=True)
class Resolver:
    """How the machine asks for names: through the host's own file, so that it follows when that changes.

    Args:
        bind: the folder of the host's file; None where that lies in /etc itself, which is not shown to the machine.
        link: what /etc/resolv.conf points at; empty where it is a copy.
        content: the copy; it is made anew when the machine starts.
        pods: the file for Pods that use the host's DNS.
    """

    bind: Bind | None
    link: str
    content: bytes
    pods: str


def resolver(target: str, names: frozenset[str], content: bytes) -> Resolver:
    """Args:
    target: where the host's /etc/resolv.conf is, links followed.
    names: files in the folder of that.
    content: of it.
    """
    folder, _, name = target.rpartition("/")
    if not folder.startswith("/run/"):
        return Resolver(None, "", content, "/etc/resolv.conf")
    # systemd-resolved keeps the real servers beside the stub, which Pods cannot reach
    pods = "resolv.conf" if "resolv.conf" in names else name
    return Resolver(Bind(folder, HOST_RESOLVE), f"{HOST_RESOLVE}/{name}", b"", f"{HOST_RESOLVE}/{pods}")


def slot_files(
    goal: NodeGoal,
    access: KubeletAccess,
    host: HostNames,
    resolve: Resolver,
    *,
    slot: str,
    nvidia: bool,
    address: str = "",
    logins: bytes = b"",
) -> tuple[SlotFile, ...]:
    """Args:
    nvidia: the host has an NVIDIA GPU.
    address: of the Node; empty for kubelet's choice.
    logins: for registries, as this host keeps them.
    """
    return (
        SlotFile("/etc/hostname", f"{host.hostname}\n".encode()),
        SlotFile("/etc/machine-id", f"{machine_id(host.machine_id, slot)}\n".encode(), 0o444),
        SlotFile("/etc/tmpfiles.d/kmsg.conf", b"L /dev/kmsg - - - - /dev/console\n"),
        SlotFile("/etc/modules-load.d/kubernetes.conf", b"overlay\nbr_netfilter\n"),
        *((SlotFile("/etc/resolv.conf", resolve.content),) if not resolve.link else ()),
        SlotFile(kubelet.CA, goal.ca_pem.encode()),
        kubelet.configuration_file(kubelet.configuration(goal, resolve.pods)),
        *kubelet.unit_files(goal, access),
        *kubelet.credential_files(goal, access),
        *containerd.files(nvidia=nvidia),
        *settings.files(goal, address, logins),
    )


def masked_parameters(names: Iterable[str]) -> Mapping[str, str]:
    """Return symbolic links, by path, that leave these files of an image's sysctl.d without effect.

    The machine has the host's network, so its systemd-sysctl would change the host. The unit itself stays: CNIs write a
    file and restart it.
    """
    return {f"/etc/sysctl.d/{name}": "/dev/null" for name in names if name.endswith(".conf")}


def slot_links(access: KubeletAccess, resolve: Resolver) -> Mapping[str, str]:
    """Symbolic links, by path: what is masked, what starts by itself, and names."""
    wanted = f"{_SYSTEM}/multi-user.target.wants"
    return {
        **{f"{_SYSTEM}/{unit}": "/dev/null" for unit in MASKED},
        **{f"{wanted}/{unit}": f"{_SYSTEM}/{unit}" for unit in (containerd.UNIT, kubelet.UNIT)},
        **({"/etc/resolv.conf": resolve.link} if resolve.link else {}),
        **kubelet.links(access),
    }


def machine_id(host: str, slot: str) -> str:
    """Another one than the host's, and the same whenever this slot is built on this host."""
    return hashlib.sha256(f"unbounded-agent {host.strip()} {slot}".encode()).hexdigest()[:32]
