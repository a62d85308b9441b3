"""Boot order of a host: write the BMC's boot override, and report on the Machine if the BMC cannot set it.

The required override, and the effect of the one that the BMC shows, are computed without I/O.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from unbounded.api.conditions import ConditionReason, ConditionType, find_condition, set_condition
from unbounded.api.failures import Failure, Transient, Uncertain
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.machine_spec import BootMode
from unbounded.kube.api import Api
from unbounded.kube.clock import WallClock, rfc3339
from unbounded.kube.logs import Log
from unbounded.kube.status_writer import StatusWriter
from unbounded.metalman.redfish.bmc_interface import (
    BmcAnswerLost,
    BootEnabled,
    BootOverride,
    BootTarget,
    SystemState,
    Unsupported,
)
from unbounded.metalman.redfish.pool import PooledBmc
from unbounded.operations import reasons
from unbounded.operations.executor_protocol import NotDone, Target

log = Log("metalman")


class BootOverrides:
    """Boot overrides of one site's BMCs."""

    def __init__(self, api: Api, now: WallClock) -> None:
        self._status = StatusWriter(api, MACHINES, fields=("conditions",))
        self._now = now
        self._read: dict[str, BootOverride | None] = {}  # by UID of the Machine, from the last reading
        self._targets: dict[str, Targets] = {}

    def record(self, machine: Machine, state: SystemState) -> None:
        """Record a reading of the BMC."""
        self._read[machine.metadata.uid] = state.boot
        self._targets[machine.metadata.uid] = state.boot_targets

    async def from_disk_if_possible(self, target: Target, bmc: PooledBmc, before: float) -> None:
        """Let a host without a requested network boot start from its disk; record a BMC that cannot do it.

        Raises:
            NotDone: impossible just now. Only at the first attempt, as starting the host takes precedence after that.
        """
        boot = self._read.get(target.machine.metadata.uid)
        if boot is not None and boots_from_disk(boot):
            return
        trouble = ""
        try:
            override = await bmc.disable_boot_override(leave_by=before)
            if not boots_from_disk(override):
                trouble = _ignored(override)
        except (Transient, BmcAnswerLost) as error:
            if target.run.attempt <= 1:
                raise NotDone(
                    reasons.NO_ANSWER, f"not started: cannot clear its boot override first: {error}"
                ) from error
            log.warning("cannot clear boot override", error=error, machine=target.machine.name)
            return
        except (Unsupported, Uncertain) as error:
            trouble = str(error)
        await self._note(target.machine, trouble)

    async def from_disk(self, bmc: PooledBmc, before: float) -> None:
        """Remove a boot override.

        Raises:
            NotDone: the BMC still shows one.
        """
        override = await bmc.disable_boot_override(leave_by=before)
        if not boots_from_disk(override):
            raise NotDone(reasons.NO_EFFECT, _ignored(override))

    async def from_network(
        self, target: Target, bmc: PooledBmc, enabled: BootEnabled, before: float, *, is_last: bool
    ) -> None:
        """Let a host boot the installer at its next start: from the network, or from the CD drive.

        Args:
            is_last: no other way is left, so a BMC that cannot do it is recorded on the Machine.
        Raises:
            NotDone: the BMC shows another value than the one it accepted.
        """
        machine = target.machine
        targets = self._targets.get(machine.metadata.uid)
        try:
            override = await bmc.set_boot_override(desired_override(machine, enabled, targets), leave_by=before)
        except (Unsupported, Uncertain) as error:
            if is_last and not isinstance(error, BmcAnswerLost):
                await self._note(machine, str(error))
            raise
        if sends_to_network(machine, override, targets):
            await self._note(machine, "")
            return
        if is_last:
            await self._note(machine, _ignored(override))
        raise NotDone(reasons.NO_EFFECT, _ignored(override))

    async def from_network_again(self, target: Target, bmc: PooledBmc, stays: bool, before: float) -> None:
        """Set the override again if the previous start has consumed it; on failure, the host is started nevertheless.

        Raises:
            NotDone: impossible just now; only at the first attempt.
        """
        machine = target.machine
        if sends_to_network(machine, self._read.get(machine.metadata.uid), self._targets.get(machine.metadata.uid)):
            return
        enabled = BootEnabled.CONTINUOUS if stays else BootEnabled.ONCE
        try:
            await self.from_network(target, bmc, enabled, before, is_last=False)
        except (Transient, Unsupported, Uncertain) as error:
            # the BMC cannot do it, and the next attempt would find the same
            answered = isinstance(error, NotDone | Unsupported)
            if target.run.attempt <= 1 and not answered:
                raise NotDone(reasons.NO_ANSWER, f"not started: cannot set its boot override first: {error}") from error
            log.warning("cannot set boot override again", error=error, machine=machine.name)

    async def _note(self, machine: Machine, trouble: str) -> None:
        """Write the condition about the BMC's boot order; True only replaces an existing False."""

        def change(raw: dict[str, Any]) -> dict[str, Any] | None:
            before = raw.get("status", {}).get("conditions", ())
            kind = ConditionType.BOOT_ORDER_CONFIG_SUPPORTED
            if not trouble and find_condition(before, kind) is None:
                return None
            status, why = ("False", ConditionReason.NOT_SUPPORTED) if trouble else ("True", ConditionReason.SUPPORTED)
            conditions = set_condition(before, kind, status, why, trouble, rfc3339(self._now()))
            return None if conditions is None else {"conditions": conditions}

        try:
            await self._status.update(machine.name, change, uid=machine.metadata.uid)
        except Failure as error:
            log.warning("cannot record boot order", error=error, machine=machine.name)


def _ignored(override: BootOverride) -> str:
    shown = " ".join(part for part in (override.enabled, override.target) if part) or "nothing"
    return f"the BMC accepted a change of its boot override, but still reports {shown}"


Targets = tuple[str, ...] | None
"""Boot targets that the BMC lists; None if it has no list."""

_TARGETS: Final = {"PXE": BootTarget.PXE, "HTTP": BootTarget.UEFI_HTTP}


def boots_by_media(machine: Machine) -> bool:
    """Return whether the Machine boots the installer from the virtual CD drive of its BMC."""
    return machine.spec.pxe is not None and machine.spec.pxe.boot_mode == BootMode.VIRTUAL_MEDIA


def as_booted(machine: Machine, boot: str) -> Machine:
    """Return the Machine with the boot mode of a boot: it stays with VirtualMedia once its image may be in the drive.

    Args:
        boot: UID of the operation.
    """
    pxe = machine.spec.pxe
    if pxe is None or media_boot(machine) != boot or boots_by_media(machine):
        return machine
    return replace(machine, spec=replace(machine.spec, pxe=replace(pxe, boot_mode=BootMode.VIRTUAL_MEDIA)))


def media_boot(machine: Machine) -> str:
    """Return the UID of the operation whose image may be in the drive; empty if there is none."""
    redfish = machine.status.redfish
    return (redfish.media_boot or "") if redfish is not None else ""


def network_target(machine: Machine, targets: Targets) -> BootTarget:
    """Return the target for spec.pxe.bootMode and spec.pxe.bootProtocol.

    In mode Network, the target for a BMC whose list of targets lacks UefiHttp is Pxe: the servers have the files for
    that, too.
    """
    pxe = machine.spec.pxe
    if boots_by_media(machine):
        return BootTarget.CD
    if pxe is not None and pxe.boot_mode == BootMode.UEFI_HTTP:
        return BootTarget.UEFI_HTTP
    desired = _TARGETS[pxe.boot_protocol if pxe is not None else "PXE"]
    return BootTarget.PXE if targets and desired not in targets else desired


def missing_target(machine: Machine, targets: Targets) -> str:
    """Return a text if the host boots from the network by another protocol than its spec's; else an empty one."""
    desired, used = network_target(machine, None), network_target(machine, targets)
    return "" if used is desired else f"the BMC does not support {desired}; using {used}"


def desired_override(machine: Machine, enabled: BootEnabled, targets: Targets) -> BootOverride:
    """Return the boot override that lets the Machine boot the installer."""
    target = network_target(machine, targets)
    return BootOverride(enabled, target, None if target is BootTarget.PXE else "UEFI")


def sends_to_network(machine: Machine, boot: BootOverride | None, targets: Targets) -> bool:
    """Return whether the override lets the Machine boot the installer, at its next start at least."""
    lasting = (BootEnabled.ONCE, BootEnabled.CONTINUOUS)
    return boot is not None and boot.target == network_target(machine, targets) and boot.enabled in lasting


def boots_from_disk(boot: BootOverride | None) -> bool:
    """Return whether the host boots from its disk with the override."""
    return boot is None or boot.leaves_disk
