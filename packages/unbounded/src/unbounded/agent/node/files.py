"""Files of a slot besides its image and binaries, and the inputs that they take from the host.

The inputs are names, DNS resolution, bind mounts and devices of the machine. Paths of files are those inside the
machine.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

from unbounded.agent.model import KubeletAccess, NodeGoal, Slot
from unbounded.agent.node import containerd, kubelet, nspawn, settings
from unbounded.agent.node.devices import HostDevices
from unbounded.agent.node.gpus import PLACE, SHOWN, DriverLibraries
from unbounded.agent.node.nspawn import BindMount
from unbounded.agent.node.slot_files import SlotFile
from unbounded.agent.paths import HostPaths
from unbounded.api.failures import Rejected
from unbounded.fetch.system_tree import SystemTree
from unbounded.kube.durable_files import write_durably

MODULES: Final = "/lib/modules"


class HostInputs:
    """Reads the host at each call; methods block for as long as reading small files takes."""

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths

    def names(self) -> HostNames:
        return HostNames(socket.gethostname(), self._read("/etc/machine-id"))

    def os_release(self) -> str:
        return self._read("/etc/os-release") or self._read("/usr/lib/os-release")

    def resolver(self) -> DnsResolution:
        found = self._paths.at("/etc/resolv.conf")
        target = Path(os.path.realpath(found))
        try:
            content = target.read_bytes()
            names = frozenset(path.name for path in target.parent.iterdir())
        except OSError:
            content, names = b"", frozenset()
        return dns_resolution(f"/{target.relative_to(os.path.realpath(self._paths.root))}", names, content)

    def address(self, spec: NodeGoal) -> str:
        """Return the address of the Node; empty for kubelet's choice.

        Raises:
            Rejected: the host has no address in the network that kubelet.nodeIP names.
        """
        desired = (spec.settings.kubelet.node_ip if spec.settings.kubelet else None) or ""
        return address_in(desired) if "/" in desired else desired

    def files(self, slot: Slot, devices: HostDevices, driver: DriverLibraries) -> Mapping[Path, str]:
        """Return the files of the slot for the host's systemd and nspawn, by path."""
        modules = (BindMount(MODULES, MODULES),) if self._paths.at(MODULES).is_dir() else ()
        own = self.resolver().bind
        binds = (*modules, *((own,) if own else ()), *driver.binds)
        return {
            self._paths.nspawn(slot): nspawn.settings(devices, binds),
            self._paths.override(slot): nspawn.override(slot),
        }

    def write(self, desired: Mapping[Path, str]) -> bool:
        """Write these files where they differ; return whether any did."""
        changed = {path: text for path, text in desired.items() if _text(path) != text}
        for path, text in changed.items():
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_durably(path, text.encode(), mode=0o644)
        return bool(changed)

    def refresh(self, slot: Slot, driver: DriverLibraries) -> None:
        """Update host-dependent files inside a stopped slot: the copy of resolv.conf, the links of the driver."""
        resolve = self.resolver()
        with closing(SystemTree(self._paths.rootfs(slot))) as tree:
            if not resolve.link and tree.read("/etc/resolv.conf") != resolve.content:
                tree.put("/etc/resolv.conf", resolve.content)
            if resolve.link:
                tree.link("/etc/resolv.conf", resolve.link)
            for name, target in tree.links(PLACE).items():
                if target.startswith(f"{SHOWN}/") and f"{PLACE}/{name}" not in driver.links:
                    tree.unlink(f"{PLACE}/{name}")
            for path, target in driver.links.items():
                tree.link(path, target)

    def _read(self, path: str) -> str:
        try:
            return self._paths.at(path).read_text(errors="replace").strip()
        except OSError:
            return ""


def address_in(network: str) -> str:
    """Return the address of this host in a network. Sends nothing."""
    there = ip_network(network, strict=False)
    family = socket.AF_INET6 if there.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(there[min(1, there.num_addresses - 1)]), 9))
            found = str(probe.getsockname()[0])
    except OSError:
        found = ""
    if not found or ip_address(found) not in there:
        raise Rejected(f"kubelet.nodeIP {network}: this host has no address in this network")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


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
