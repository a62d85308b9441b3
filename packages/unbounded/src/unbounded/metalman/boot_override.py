"""Required boot override of a host, and the effect of the one that its BMC shows. Pure."""

from __future__ import annotations

from typing import Final

from unbounded.api.machine import Machine
from unbounded.metalman.redfish.ports import BootEnabled, BootOverride, BootTarget

Targets = tuple[str, ...] | None
"""Boot targets that the BMC lists; None if it has no list."""

_TARGETS: Final = {"PXE": BootTarget.PXE, "HTTP": BootTarget.UEFI_HTTP}


def network_target(machine: Machine, targets: Targets) -> BootTarget:
    """Return the target for spec.pxe.bootProtocol.

    For a BMC whose list of targets lacks UefiHttp, the target is Pxe: the servers have the files for that, too.
    """
    pxe = machine.spec.pxe
    desired = _TARGETS[pxe.boot_protocol if pxe is not None else "PXE"]
    return BootTarget.PXE if targets and desired not in targets else desired


def missing_target(machine: Machine, targets: Targets) -> str:
    """Return a text if the host boots from the network by another protocol than its spec's; else an empty one."""
    desired, used = network_target(machine, None), network_target(machine, targets)
    return "" if used is desired else f"the BMC does not support {desired}; using {used}"


def wanted_override(machine: Machine, enabled: BootEnabled, targets: Targets) -> BootOverride:
    """Return the boot override that lets the Machine boot from the network."""
    target = network_target(machine, targets)
    return BootOverride(enabled, target, "UEFI" if target is BootTarget.UEFI_HTTP else None)


def sends_to_network(machine: Machine, boot: BootOverride | None, targets: Targets) -> bool:
    """Return whether the override lets the Machine boot from the network, at its next start at least."""
    lasting = (BootEnabled.ONCE, BootEnabled.CONTINUOUS)
    return boot is not None and boot.target == network_target(machine, targets) and boot.enabled in lasting


def boots_from_disk(boot: BootOverride | None) -> bool:
    """Return whether the host boots from its disk with the override."""
    return boot is None or boot.leaves_disk
