"""Inputs of a slot from its host: names, DNS resolution, bind mounts and devices of the machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import closing
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

from unbounded.agent.layout import Layout
from unbounded.agent.model import NodeGoal, Slot
from unbounded.agent.node.devices import HostDevices
from unbounded.agent.node.files import DnsResolution, HostNames, dns_resolution
from unbounded.agent.node.gpus import PLACE, SHOWN, DriverLibraries
from unbounded.agent.node.nspawn import BindMount, override, settings
from unbounded.api.failures import Rejected
from unbounded.fetch.system_tree import SystemTree
from unbounded.kube.durable import write_durably

MODULES: Final = "/lib/modules"


class HostInputs:
    """Reads the host at each call; methods block for as long as reading small files takes."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def names(self) -> HostNames:
        return HostNames(socket.gethostname(), self._read("/etc/machine-id"))

    def os_release(self) -> str:
        return self._read("/etc/os-release") or self._read("/usr/lib/os-release")

    def resolver(self) -> DnsResolution:
        found = self._layout.at("/etc/resolv.conf")
        target = Path(os.path.realpath(found))
        try:
            content = target.read_bytes()
            names = frozenset(path.name for path in target.parent.iterdir())
        except OSError:
            content, names = b"", frozenset()
        return dns_resolution(f"/{target.relative_to(os.path.realpath(self._layout.root))}", names, content)

    def address(self, spec: NodeGoal) -> str:
        """Return the address of the Node; empty for kubelet's choice.

        Raises:
            Rejected: the host has no address in the network that kubelet.nodeIP names.
        """
        desired = (spec.settings.kubelet.node_ip if spec.settings.kubelet else None) or ""
        return address_in(desired) if "/" in desired else desired

    def files(self, slot: Slot, devices: HostDevices, driver: DriverLibraries) -> Mapping[Path, str]:
        """Return the files of the slot for the host's systemd and nspawn, by path."""
        modules = (BindMount(MODULES, MODULES),) if self._layout.at(MODULES).is_dir() else ()
        own = self.resolver().bind
        binds = (*modules, *((own,) if own else ()), *driver.binds)
        return {
            self._layout.nspawn(slot): settings(devices, binds),
            self._layout.override(slot): override(slot),
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
        with closing(SystemTree(self._layout.rootfs(slot))) as tree:
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
            return self._layout.at(path).read_text(errors="replace").strip()
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
