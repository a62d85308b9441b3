"""The machine's settings for systemd-nspawn, and the drop-in of its unit. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from unbounded.agent.model import Slot
from unbounded.agent.node.devices import HostDevices

HEADER: Final = "# Written by unbounded-agent; changes are lost when the machine starts.\n"
STOP_S: Final = 30


@dataclass(frozen=True)
class BindMount:
    """A read-only bind mount of a host path in the machine."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"BindReadOnly={_escaped(self.source)}:{_escaped(self.target)}"


def unit_of(slot: str) -> str:
    return f"systemd-nspawn@{slot}.service"


def settings(devices: HostDevices, binds: Iterable[BindMount]) -> str:
    """Return the .nspawn file: no user namespace, the host's network, all capabilities, as kubelet and the CNI need
    them.
    """
    lines = [
        "[Exec]",
        "Boot=yes",
        "Capability=all",
        "PrivateUsers=no",
        "SystemCallFilter=@keyring bpf",
        "ResolvConf=off",
        "Timezone=off",
        "LinkJournal=no",  # a link in the host's journal would outlive the machine
        "",
        "[Network]",
        "Private=no",
        "VirtualEthernet=no",
        "",
        "[Files]",
        *map(str, binds),
        *(f"Bind={_escaped(path)}" for path in devices.character),
    ]
    return HEADER + "\n".join(lines) + "\n"


def override(slot: Slot) -> str:
    """Return the drop-in of the machine's unit. It does not change the host's firewall.

    All devices are allowed, because the numbers of later devices are unknown. The machine sees only those that are
    placed into its /dev.

    Two machines would be two kubelets of one Node. systemd itself keeps them apart with Conflicts=, even where both
    were enabled when the power failed.
    """
    lines = [
        "[Unit]",
        f"Conflicts={unit_of(slot.other)}",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Restart=on-failure",
        "RestartSec=10s",
        f"TimeoutStopSec={STOP_S}s",
        "Environment=SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1",
        "Environment=SYSTEMD_NSPAWN_API_VFS_WRITABLE=network",
        "ExecStartPre=-/usr/bin/machinectl terminate %i",  # for a machine that a crash left registered
        "DeviceAllow=block-* rwm",
        "DeviceAllow=char-* rwm",
    ]
    return HEADER + "\n".join(lines) + "\n"


def _escaped(path: str) -> str:
    """Return a path for Bind=, where an unescaped colon separates source and target."""
    return path.replace("\\", "\\\\").replace(":", "\\:")
