"""Power of idle machines in `Machine.status.power`: each BMC is read in turn, within a budget for each site.

A reading gives way to each operation, whose own readings decide. It is not evidence: operations read for themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType, find_condition, set_condition
from unbounded.api.failures import Failure
from unbounded.api.machine import MACHINES, Machine, MachinePower, PowerStatus
from unbounded.kube.api import ApiError
from unbounded.kube.cache import Cache
from unbounded.kube.clock import rfc3339
from unbounded.kube.controller import Controller
from unbounded.kube.events import event_sink
from unbounded.kube.logs import Log
from unbounded.kube.process import Runtime
from unbounded.kube.status_writer import StatusWriter
from unbounded.metalman.bmc_access import BmcAccess, redfish_of
from unbounded.metalman.bmc_events import PowerEvents
from unbounded.metalman.inventory_controller import in_stock, is_readable, machine_share
from unbounded.metalman.redfish.bmc_interface import (
    BmcPowerState,
    CircuitOpen,
    PasswordRejected,
    SystemState,
)
from unbounded.metalman.redfish.pool import BmcPool
from unbounded.operations.executor_protocol import Refusal

POWER: Final = {BmcPowerState.ON: MachinePower.ON, BmcPowerState.OFF: MachinePower.OFF}
SWITCHED_OFF: Final = "The BMC reports the host as Off, and no operation switched it off"
INTERVAL_S: Final = 100.0  # between two readings of a BMC; with the wait for a turn, less than two minutes
SAFETY_S: Final = 600.0  # the same where events announce changes; it keeps the session, too, which ends after more
UNSETTLED_S: Final = 10.0  # to the next reading of a host that was neither On nor Off
UNKNOWN_AFTER: Final = 3  # readings in a row that give no power
CONCURRENT: Final = 32  # a BMC that does not answer occupies one until its connection times out
POWER_CHANGED: Final = "PowerChanged"
_OFF: Final = (ConditionStatus.TRUE, ConditionReason.POWERED_OFF)

log = Log("metalman")


class ReadBudget:
    """Turns of a site's readings, so many a second at most.

    Each BMC takes one turn at a time. With more BMCs than the budget covers, each waits longer, and none is left out.
    """

    def __init__(self, per_s: float) -> None:
        self._pause_s = 1 / per_s
        self._next: dict[str, float] = {}  # time of the next free turn, by site

    def turn(self, site: str, now: float) -> float:
        """Take a turn; return its time."""
        turn = max(now, self._next.get(site, now))
        self._next[site] = turn + self._pause_s
        return turn


class PowerReadings:
    """Last readings of operations, by UID of the Machine, so that a Machine whose operation has ended is not read."""

    def __init__(self) -> None:
        self._read: dict[str, MachinePower] = {}

    def record(self, machine: Machine, state: SystemState, *, awaits_effect: bool = False) -> None:
        """Record a reading.

        Args:
            awaits_effect: the operation waits for the effect of an action, which may come after this reading.
        """
        power = POWER.get(state.power)
        if power is None or (awaits_effect and power is MachinePower.OFF):
            self.forget(machine)
        else:
            self._read[machine.metadata.uid] = power

    def forget(self, machine: Machine) -> None:
        """Forget the last reading, as an action may change the power."""
        self._read.pop(machine.metadata.uid, None)

    def take(self, uid: str) -> MachinePower | None:
        """Return the last reading of a Machine once."""
        return self._read.pop(uid, None)


def shows(machine: Machine, power: MachinePower) -> bool:
    """Return whether the Machine's status has this power already."""
    conditions = [{"type": one.type, "status": one.status} for one in machine.status.conditions]
    return machine.status.power is not None and power_change(machine.status.power, conditions, power, "") is None


def power_change(
    old: PowerStatus | None, conditions: Sequence[Mapping[str, Any]], power: MachinePower, at: str
) -> dict[str, Any] | None:
    """Return the status fields to write after a reading; None if they stay.

    Condition PoweredOff follows the reading, and keeps its message where it says Off already. It stays while the power
    is unknown.
    """
    change: dict[str, Any] = {}
    if old is None or old.state != power:
        change["power"] = {"state": power.value, "at": at}
    kind = ConditionType.POWERED_OFF
    present = find_condition(conditions, kind)
    is_off = present is not None and (present.get("status"), present.get("reason")) == _OFF
    if power is MachinePower.OFF and not is_off:
        change["conditions"] = set_condition(
            conditions, kind, ConditionStatus.TRUE, ConditionReason.POWERED_OFF, SWITCHED_OFF, at
        )
    elif power is MachinePower.ON and present is not None:
        change["conditions"] = [dict(one) for one in conditions if one is not present]
    return change or None


def _last_operation(machine: Machine) -> str:
    """Return the UID of the last operation in a Machine's history; empty for none."""
    return machine.status.recent_operations[-1].uid if machine.status.recent_operations else ""


class PowerReader:
    """Reader of the power of a site's idle Machines, and writer of `status.power`.

    Args:
        readings: by operations, which are written without another request when the operation has ended.
        site: None for all sites.
        reads_per_s: budget of each site.
    """

    def __init__(
        self,
        runtime: Runtime,
        machines: Cache[Machine],
        access: BmcAccess,
        pool: BmcPool,
        readings: PowerReadings,
        events: PowerEvents,
        *,
        site: str | None,
        reads_per_s: float,
    ) -> None:
        self._machines = machines
        self._access = access
        self._pool = pool
        self._readings = readings
        self._events = events
        self._site = site
        self._now = runtime.now
        self._emit = event_sink(runtime.events)
        self._status = StatusWriter(runtime.api, MACHINES, fields=("power", "conditions"), cache=machines)
        self._budget = ReadBudget(reads_per_s)
        self._hinted: set[str] = set()
        self._turns: dict[str, float] = {}  # by name of the Machine
        self._failures: dict[str, int] = {}  # readings in a row that gave no power, by name of the Machine
        self._controller: Controller[str] = Controller(
            "power", self._reconcile, workers=CONCURRENT, metrics=runtime.metrics
        )

    async def run(self) -> None:
        """Work until cancelled."""
        self._events.subscribe(self._hint)
        with self._machines.subscribed(self._changed):
            await self._controller.run()

    def _changed(self, old: Machine | None, new: Machine | None) -> None:
        if new is None or not is_readable(new, self._site):
            if new is None and old is not None:
                self._forget(old)
            return
        if old is None:
            waits_for_us = in_stock(new) and new.status.power is None
            delay_s = 0.0 if waits_for_us else INTERVAL_S * machine_share(new.metadata.uid)
            self._controller.queue.add_after(new.name, delay_s)
        elif not is_readable(old, self._site) or redfish_of(old) != redfish_of(new):
            self._controller.enqueue(new.name)

    def _hint(self, name: str) -> None:
        """Read a Machine at once after an event of its BMC, and within the interval after the end of its stream."""
        machine = self._machines.get(name)
        if machine is None or not is_readable(machine, self._site):
            return
        if self._events.has_stream(name):
            self._hinted.add(name)
            self._controller.enqueue(name)
        else:
            self._controller.queue.add_after(name, INTERVAL_S * machine_share(machine.metadata.uid))

    def _forget(self, machine: Machine) -> None:
        self._readings.take(machine.metadata.uid)
        self._turns.pop(machine.name, None)
        self._failures.pop(machine.name, None)

    async def _reconcile(self, name: str) -> float | None:
        machine = self._machines.get(name)
        if machine is None or not is_readable(machine, self._site):
            return None  # its next event counts
        if (power := self._readings.take(machine.metadata.uid)) is not None:
            await self._write(machine, power, by_operation=True)
            return self._interval_s(name)
        if self._pool.is_paused(redfish_of(machine).url):
            return await self._failed(machine, "its last calls got no answer")
        if name in self._hinted:
            return await self._read_hinted(machine)
        now = asyncio.get_running_loop().time()
        turn = self._turns.get(name)
        if turn is None:
            turn = self._turns[name] = self._budget.turn(machine.site, now)
        if turn > now:
            return turn - now
        del self._turns[name]
        return await self._read(machine)

    def _interval_s(self, name: str) -> float:
        return SAFETY_S if self._events.arrive(name) else INTERVAL_S

    async def _read_hinted(self, machine: Machine) -> float:
        """Read the BMC after an event; once more where it does not show a change yet."""
        self._hinted.discard(machine.name)
        before = machine.status.power
        again_s = await self._read(machine)
        after = (self._machines.get(machine.name) or machine).status.power
        return min(again_s, UNSETTLED_S) if after == before else again_s

    async def _read(self, machine: Machine) -> float:
        """Read the BMC once; return the seconds until the next reading."""
        try:
            account = await self._access.of(machine, idle=True)
            try:
                state = await self._pool.bmc(account).system()
            except PasswordRejected:
                await self._access.refused(machine, account)
                raise
        except ApiError:  # not caused by the BMC
            raise
        except Refusal as refusal:
            return max(await self._failed(machine, str(refusal)), self._access.idle_retry_s(machine))
        except Failure as failure:
            return await self._failed(machine, str(failure), is_new=not isinstance(failure, CircuitOpen))
        finally:
            self._pool.release_soon(redfish_of(machine).url)
        self._events.record(machine.name, state.power)
        power = POWER.get(state.power)
        if power is None:
            await self._failed(machine, f"it reports PowerState {state.power_text or 'null'}")
            return UNSETTLED_S if self._failures[machine.name] < UNKNOWN_AFTER else INTERVAL_S
        self._failures.pop(machine.name, None)
        await self._write(machine, power)
        return self._interval_s(machine.name)

    async def _failed(self, machine: Machine, why: str, *, is_new: bool = True) -> float:
        """Count a reading without a result; return the seconds until the next one."""
        failures = self._failures[machine.name] = self._failures.get(machine.name, 0) + 1
        report = log.info if failures == UNKNOWN_AFTER and is_new else log.debug
        report("the power of the host cannot be read", machine=machine.name, why=why)
        if failures >= UNKNOWN_AFTER:
            await self._write(machine, MachinePower.UNKNOWN)
        return INTERVAL_S

    async def _write(self, machine: Machine, power: MachinePower, *, by_operation: bool = False) -> None:
        if shows(self._machines.get(machine.name) or machine, power):
            return
        at = rfc3339(self._now())
        before: PowerStatus | None = None

        def status(raw: dict[str, Any]) -> dict[str, Any] | None:
            nonlocal before
            present = msgspec.convert(raw, Machine)
            if present.status.active_operation is not None or _last_operation(present) != _last_operation(machine):
                return None  # that operation's readings decide
            before = present.status.power
            return power_change(before, raw.get("status", {}).get("conditions") or [], power, at)

        written = await self._status.update(machine.name, status, uid=machine.metadata.uid)
        if written is not None and before is not None and not by_operation:
            self._announce(written, before.state, power)

    def _announce(self, machine: Machine, before: str, power: MachinePower) -> None:
        """Emit an Event of a change that no operation made."""
        if before == power:
            return
        kind = "Normal" if power is MachinePower.ON else "Warning"
        text = f"the power of the host is {power}, and was {before}"
        if MachinePower.UNKNOWN not in (before, power):
            text += "; no operation of metalman switched it"
        self._emit(machine, kind, POWER_CHANGED, text)
