"""All files of a slot besides its image and binaries. Pure; paths are those inside the machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from unbounded.agent.model import KubeletAccess, NodeGoal
from unbounded.agent.node import containerd, kubelet, settings
from unbounded.agent.node.nspawn import BindMount
from unbounded.agent.node.slot_file import SlotFile

HOST_RESOLVE: Final = "/run/host-resolve"
_SYSTEM: Final = "/etc/systemd/system"
MASKED: Final = (
    "systemd-resolved.service",  # the machine shares the host's network, where the host's own service answers
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
    """Names of a host.

    Args:
        hostname: of the host; the machine has the same.
        machine_id: of the host; the machine's is derived from it.
    """

    hostname: str
    machine_id: str


@dataclass(frozen=True)
class DnsResolution:
    """The machine's DNS resolution: through the host's own file, so that it follows changes of that file.

    Args:
        bind: the folder of the host's file; None where that is /etc itself, which is not bind-mounted.
        link: target of /etc/resolv.conf; empty where it is a copy.
        content: the copy, which is refreshed at each start of the machine.
        pods: the file for Pods that use the host's DNS.
    """

    bind: BindMount | None
    link: str
    content: bytes
    pods: str


def dns_resolution(target: str, names: frozenset[str], content: bytes) -> DnsResolution:
    """Return the machine's DNS resolution for a host.

    Args:
        target: path of the host's /etc/resolv.conf, with links followed.
        names: files in its folder.
        content: of the file.
    """
    folder, _, name = target.rpartition("/")
    if not folder.startswith("/run/"):
        return DnsResolution(None, "", content, "/etc/resolv.conf")
    # systemd-resolved writes the real servers to another file than the stub, which Pods cannot reach
    pods = "resolv.conf" if "resolv.conf" in names else name
    return DnsResolution(BindMount(folder, HOST_RESOLVE), f"{HOST_RESOLVE}/{name}", b"", f"{HOST_RESOLVE}/{pods}")


def slot_files(
    spec: NodeGoal,
    access: KubeletAccess,
    host: HostNames,
    resolve: DnsResolution,
    *,
    slot: str,
    nvidia: bool,
    address: str = "",
    logins: bytes = b"",
) -> tuple[SlotFile, ...]:
    """Return the files of a slot.

    Args:
        nvidia: the host has an NVIDIA GPU.
        address: of the Node; empty for kubelet's choice.
        logins: for registries, as stored on this host.
    """
    return (
        SlotFile("/etc/hostname", f"{host.hostname}\n".encode()),
        SlotFile("/etc/machine-id", f"{machine_id(host.machine_id, slot)}\n".encode(), 0o444),
        SlotFile("/etc/tmpfiles.d/kmsg.conf", b"L /dev/kmsg - - - - /dev/console\n"),
        SlotFile("/etc/modules-load.d/kubernetes.conf", b"overlay\nbr_netfilter\n"),
        *((SlotFile("/etc/resolv.conf", resolve.content),) if not resolve.link else ()),
        SlotFile(kubelet.CA, spec.ca_pem.encode()),
        kubelet.configuration_file(kubelet.configuration(spec, resolve.pods)),
        *kubelet.unit_files(spec, access),
        *kubelet.credential_files(spec, access),
        *containerd.files(nvidia=nvidia),
        *settings.files(spec, address, logins),
    )


def masked_parameters(names: Iterable[str]) -> Mapping[str, str]:
    """Return symbolic links, by path, that disable these files of an image's sysctl.d.

    The machine has the host's network, so its systemd-sysctl would change the host. The unit itself stays enabled: CNIs
    write a file and restart it.
    """
    return {f"/etc/sysctl.d/{name}": "/dev/null" for name in names if name.endswith(".conf")}


def slot_links(access: KubeletAccess, resolve: DnsResolution) -> Mapping[str, str]:
    """Return symbolic links, by path: masked units, enabled units, and DNS."""
    desired = f"{_SYSTEM}/multi-user.target.wants"
    return {
        **{f"{_SYSTEM}/{unit}": "/dev/null" for unit in MASKED},
        **{f"{desired}/{unit}": f"{_SYSTEM}/{unit}" for unit in (containerd.UNIT, kubelet.UNIT)},
        **({"/etc/resolv.conf": resolve.link} if resolve.link else {}),
        **kubelet.links(access),
    }


def machine_id(host: str, slot: str) -> str:
    """Return the machine id of a slot: other than the host's, and the same for each build of this slot on this host."""
    return hashlib.sha256(f"unbounded-agent {host.strip()} {slot}".encode()).hexdigest()[:32]
