"""Where a host boots from next: writing a BMC's boot override, and saying on the Machine when it cannot be done."""

from __future__ import annotations

from typing import Any

from unbounded.api.conditions import ConditionReason, ConditionType, find_condition, set_condition
from unbounded.api.failures import Failure, Transient, Uncertain
from unbounded.api.machine import MACHINES, Machine
from unbounded.kube.clock import WallClock, rfc3339
from unbounded.kube.logs import Log
from unbounded.kube.port import Api
from unbounded.kube.status_writer import StatusWriter
from unbounded.metalman.boot_override import Targets, boots_from_disk, sends_to_network, wanted_override
from unbounded.metalman.redfish.failures import AnswerLost, Unsupported
from unbounded.metalman.redfish.pool import Bmc
from unbounded.metalman.redfish.ports import BootEnabled, BootOverride, SystemState
from unbounded.operations import reasons
from unbounded.operations.ports import NotDone, Target

log = Log("metalman")


class BootOrder:
    """The boot overrides of one site's BMCs, as far as they are written."""

    def __init__(self, api: Api, now: WallClock) -> None:
        self._status = StatusWriter(api, MACHINES, fields=("conditions",))
        self._now = now
        self._read: dict[str, BootOverride | None] = {}  # by UID of the Machine, as it was read last
        self._targets: dict[str, Targets] = {}

    def saw(self, machine: Machine, state: SystemState) -> None:
        """Take note of a reading of the BMC."""
        self._read[machine.metadata.uid] = state.boot
        self._targets[machine.metadata.uid] = state.boot_targets

    async def from_disk_if_possible(self, target: Target, bmc: Bmc, before: float) -> None:
        """A host that nobody wants to boot from the network starts from its disk; a BMC that cannot do it is noted.

        Raises:
            NotDone: it was not possible just now; at the first attempt only, as a host that is wanted on comes first.
        """
        boot = self._read.get(target.machine.metadata.uid)
        if boot is not None and boots_from_disk(boot):
            return
        trouble = ""
        try:
            kept = await bmc.disable_boot_override(leave_by=before)
            if not boots_from_disk(kept):
                trouble = _ignored(kept)
        except (Transient, AnswerLost) as error:
            if target.run.attempt <= 1:
                raise NotDone(reasons.NO_ANSWER, f"not started before its boot override is cleared: {error}") from error
            log.warning("boot override not cleared", error=error, machine=target.machine.name)
            return
        except (Unsupported, Uncertain) as error:
            trouble = str(error)
        await self._note(target.machine, trouble)

    async def from_disk(self, bmc: Bmc, before: float) -> None:
        """Take a boot override away.

        Raises:
            NotDone: the BMC shows one all the same.
        """
        kept = await bmc.disable_boot_override(leave_by=before)
        if not boots_from_disk(kept):
            raise NotDone(reasons.NO_EFFECT, _ignored(kept))

    async def from_network(
        self, target: Target, bmc: Bmc, enabled: BootEnabled, before: float, *, is_last: bool
    ) -> None:
        """Send a host to the network at its next start.

        Args:
            is_last: there is no other way left to try: that the BMC cannot do it is noted on the Machine.
        Raises:
            NotDone: the BMC shows something else than what it took.
        """
        machine = target.machine
        targets = self._targets.get(machine.metadata.uid)
        try:
            kept = await bmc.set_boot_override(wanted_override(machine, enabled, targets), leave_by=before)
        except (Unsupported, Uncertain) as error:
            if is_last and not isinstance(error, AnswerLost):
                await self._note(machine, str(error))
            raise
        if sends_to_network(machine, kept, targets):
            await self._note(machine, "")
            return
        if is_last:
            await self._note(machine, _ignored(kept))
        raise NotDone(reasons.NO_EFFECT, _ignored(kept))

    async def from_network_again(self, target: Target, bmc: Bmc, stays: bool, before: float) -> None:
        """Set the override anew where the start before has spent it; a host that is wanted on is started all the same.

        Raises:
            NotDone: it was not possible just now; at the first attempt only.
        """
        machine = target.machine
        if sends_to_network(machine, self._read.get(machine.metadata.uid), self._targets.get(machine.metadata.uid)):
            return
        enabled = BootEnabled.CONTINUOUS if stays else BootEnabled.ONCE
        try:
            await self.from_network(target, bmc, enabled, before, is_last=False)
        except (Transient, Unsupported, Uncertain) as error:
            answered = isinstance(error, NotDone | Unsupported)  # it cannot, and the next attempt would find no more
            if target.run.attempt <= 1 and not answered:
                raise NotDone(reasons.NO_ANSWER, f"not started before its boot override is set: {error}") from error
            log.warning("boot override not set again", error=error, machine=machine.name)

    async def _note(self, machine: Machine, trouble: str) -> None:
        """Say that the BMC cannot set a boot order; that it can is said only where the opposite stood."""

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
            log.warning("boot order not noted", error=error, machine=machine.name)


def _ignored(kept: BootOverride) -> str:
    shown = " ".join(part for part in (kept.enabled, kept.target) if part) or "nothing"
    return f"the BMC took a change of its boot override and shows {shown} all the same"
