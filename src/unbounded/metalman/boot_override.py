"""Which boot override a host needs, and what the one that its BMC shows comes to. Pure."""

from __future__ import annotations

from typing import Final

from unbounded.api.machine import Machine
from unbounded.metalman.redfish.ports import BootEnabled, BootOverride, BootTarget

Targets = tuple[str, ...] | None
"""What the BMC lists as targets; None where it does not say."""

_TARGETS: Final = {"PXE": BootTarget.PXE, "HTTP": BootTarget.UEFI_HTTP}


def network_target(machine: Machine, targets: Targets) -> BootTarget:
    """By spec.pxe.bootProtocol. A BMC that lists its targets, and UefiHttp not among them, is asked for Pxe: the
    servers have what the firmware then wants, too."""
    pxe = machine.spec.pxe
    wanted = _TARGETS[pxe.boot_protocol if pxe is not None else "PXE"]
    return BootTarget.PXE if targets and wanted not in targets else wanted


def missing_target(machine: Machine, targets: Targets) -> str:
    """That the host is not sent to the network as its spec says, in words; empty when it is."""
    wanted, used = network_target(machine, None), network_target(machine, targets)
    return "" if used is wanted else f"the BMC offers no {wanted}, so {used} is used"


def wanted_override(machine: Machine, enabled: BootEnabled, targets: Targets) -> BootOverride:
    """The boot override that sends the Machine to the network."""
    target = network_target(machine, targets)
    return BootOverride(enabled, target, "UEFI" if target is BootTarget.UEFI_HTTP else None)


def sends_to_network(machine: Machine, boot: BootOverride | None, targets: Targets) -> bool:
    """Whether the override that is shown does that, for its next start at least."""
    lasting = (BootEnabled.ONCE, BootEnabled.CONTINUOUS)
    return boot is not None and boot.target == network_target(machine, targets) and boot.enabled in lasting


def boots_from_disk(boot: BootOverride | None) -> bool:
    """Whether no override keeps the host from its disk."""
    return boot is None or boot.leaves_disk
