"""Inventory of each Machine's BMC in `Machine.status.hardware`, read once a day. `hardware_merge` has the merge.

No work needs an inventory. A reading is therefore late, gives way to each operation, and its failures are only logged.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from unbounded.api.conditions import ConditionType, find_condition, set_condition
from unbounded.api.failures import Transient
from unbounded.api.hardware import HardwareSource, HardwareStatus
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import OperationKind
from unbounded.kube.cache import Cache
from unbounded.kube.clock import Backoff, rfc3339
from unbounded.kube.controller import Controller, WorkQueue
from unbounded.kube.logs import Log
from unbounded.kube.process import Runtime
from unbounded.kube.status_writer import StatusWriter
from unbounded.metalman.bmc_access import BmcAccess, needs_pin, redfish_of
from unbounded.metalman.hardware_merge import hardware_change, merged, reading_condition
from unbounded.metalman.redfish.bmc_interface import PasswordRejected
from unbounded.metalman.redfish.inventory_reader import Inventory, InventoryInterrupted
from unbounded.metalman.redfish.pool import BmcPool
from unbounded.operations.executor_protocol import Refusal
from unbounded.operations.executor_selection import ExecutorKind, executor_of

CONCURRENT: Final = 4  # readings at a time, for all BMCs of the process
# From an event of the Machine to its reading, so that neither a new site nor a first operation waits for inventories.
SETTLE_S: Final = 60.0
SPREAD_S: Final = 60.0
BUSY: Final = 4  # operations on the site's Machines, with which no reading begins: they need the process more
RETRY: Final = Backoff(base_s=300.0, max_s=6 * 3600.0)
AWAITED_S: Final = 5.0  # least time before another reading of a host in stock whose login was refused
DAY: Final = timedelta(days=1)

log = Log("metalman")


def next_reading(hardware: HardwareStatus | None, uid: str, last: datetime | None, now: datetime) -> datetime:
    """Return the time of the next reading: now where Redfish has not added anything yet, else the Machine's own time of
    day.

    Args:
        last: the last reading by this process.
    """
    if hardware is None or (last is None and not _has_redfish(hardware)):
        return now
    if last is None:
        last = _inspected_at(hardware, now)
    offset = timedelta(seconds=DAY.total_seconds() * machine_share(uid))
    midnight = last.replace(hour=0, minute=0, second=0, microsecond=0)
    slot = midnight + offset
    return slot if slot > last else slot + DAY


def _has_redfish(hardware: HardwareStatus) -> bool:
    added = hardware.firmware_inventory or hardware.power_supplies or any(disk.health for disk in hardware.disks)
    return hardware.source == HardwareSource.REDFISH or bool(added)


def _inspected_at(hardware: HardwareStatus, now: datetime) -> datetime:
    """Return the time of the last reading as the status has it; an installer's report does not have it."""
    if hardware.source != HardwareSource.REDFISH:
        return now
    try:
        return min(datetime.fromisoformat(hardware.at).astimezone(UTC), now)
    except ValueError:
        return now


def machine_share(uid: str) -> float:
    """Return a number from 0 to below 1 that is a Machine's own, so that the readings of a site are spread."""
    return int.from_bytes(hashlib.sha256(uid.encode()).digest()[:4], "big") / (1 << 32)


def is_ours(machine: Machine, site: str | None) -> bool:
    """Return whether the Machine is ours and stays, and its BMC is trusted."""
    if site not in (None, machine.site) or executor_of(OperationKind.HOST_REBOOT, machine) is not ExecutorKind.METALMAN:
        return False
    if machine.spec.pxe is None or machine.spec.pxe.redfish is None or needs_pin(machine, site):
        return False
    return machine.metadata.deletion_timestamp is None


def in_stock(machine: Machine) -> bool:
    """Return whether a host has no image yet, and waits for nothing but the first readings of its BMC."""
    return machine.spec.pxe is not None and machine.spec.pxe.image is None


def is_readable(machine: Machine, site: str | None) -> bool:
    """Return whether the Machine's BMC may be read now: it is ours and trusted, and no operation has the Machine."""
    return machine.status.active_operation is None and is_ours(machine, site)


class InventoryController:
    """Reader of the BMCs of a site's Machines, and writer of `status.hardware` for what it reads.

    Args:
        site: None for all sites.
    """

    def __init__(
        self, runtime: Runtime, machines: Cache[Machine], access: BmcAccess, pool: BmcPool, *, site: str | None
    ) -> None:
        self._machines = machines
        self._access = access
        self._pool = pool
        self._site = site
        self._now = runtime.now
        self._status = StatusWriter(runtime.api, MACHINES, fields=("hardware", "conditions"), cache=machines)
        self._last: dict[str, tuple[str | None, datetime]] = {}  # boot that Redfish added to, and when; by Machine
        self._unfinished: set[str] = set()  # Machines whose last reading was cut short
        self._in_operation: set[str] = set()
        self._controller: Controller[str] = Controller(
            "inventory", self._reconcile, workers=CONCURRENT, queue=WorkQueue(failed=RETRY), metrics=runtime.metrics
        )

    async def run(self) -> None:
        """Work until cancelled."""
        with self._machines.subscribed(self._changed):
            await self._controller.run()

    def _changed(self, old: Machine | None, new: Machine | None) -> None:
        if new is not None and new.status.active_operation is not None:
            self._in_operation.add(new.name)
        elif (either := new or old) is not None:
            self._in_operation.discard(either.name)
        if new is None and old is not None:
            self._last.pop(old.name, None)
            self._unfinished.discard(old.name)
        elif new is not None and is_readable(new, self._site) and (old is None or _cause(old) != _cause(new)):
            delay_s = 0.0 if _is_awaited(new) else SETTLE_S + SPREAD_S * machine_share(new.metadata.uid)
            self._controller.queue.add_after(new.name, delay_s)

    async def _reconcile(self, name: str) -> float | None:
        machine = self._machines.get(name)
        if machine is None or not is_readable(machine, self._site):
            return None  # its next event counts
        boot, last = self._last.get(name, (None, None))
        now = self._now()
        due = next_reading(machine.status.hardware, machine.metadata.uid, last, now)
        is_reported_since = last is not None and boot != _boot(machine)
        if due > now and not is_reported_since and name not in self._unfinished:
            return (due - now).total_seconds()
        if len(self._in_operation) >= BUSY:
            return SPREAD_S
        try:
            return await self._read(machine)
        except InventoryInterrupted:
            return None
        except Refusal as refusal:
            log.debug("the hardware inventory cannot be read", machine=name, why=str(refusal))
            return max(AWAITED_S if _is_awaited(machine) else RETRY.base_s, self._access.idle_retry_s(machine))

    async def _read(self, machine: Machine) -> float | None:
        """Read the BMC once, and write the result.

        Raises:
            Failure: the BMC failed before the end; what it had answered until then is written.
        """
        account = await self._access.of(machine, idle=True)
        try:
            read = await self._pool.bmc(account).inventory(lambda: self._may_continue(machine))
        except PasswordRejected:
            await self._access.refused(machine, account)
            raise
        finally:
            self._pool.release_soon(account.url)
        if read.failed:
            parts = "; ".join(f"{part}: {why}" for part, why in read.failed.items())
            log.info("parts of the hardware inventory cannot be read", machine=machine.name, why=parts)
        await self._write(machine, read)
        if read.cut_short:
            self._unfinished.add(machine.name)
            raise Transient(f"the hardware inventory of {machine.name} was cut short")
        self._unfinished.discard(machine.name)
        self._last[machine.name] = (_boot(self._machines.get(machine.name) or machine), self._now())
        return 0.0  # the next pass finds out when

    async def _write(self, machine: Machine, read: Inventory) -> None:
        at = rfc3339(self._now())

        def status(raw: dict[str, Any]) -> dict[str, Any] | None:
            old = msgspec.convert(raw, Machine).status.hardware
            new = merged(old, read, at)
            change = hardware_change(old, new)
            if change is None:
                return None
            conditions = _conditions(raw.get("status", {}).get("conditions") or [], old, new, at)
            return {"hardware": change} | ({} if conditions is None else {"conditions": conditions})

        await self._status.update(machine.name, status, uid=machine.metadata.uid)

    def _may_continue(self, machine: Machine) -> bool:
        present = self._machines.get(machine.name)
        if present is None or present.metadata.uid != machine.metadata.uid or not is_readable(present, self._site):
            return False
        return redfish_of(present) == redfish_of(machine)


def _conditions(
    present: list[dict[str, Any]], old: HardwareStatus | None, new: HardwareStatus, at: str
) -> list[dict[str, Any]] | None:
    """Return all conditions with HardwareChanged of a reading; None if it stays."""
    kind = ConditionType.HARDWARE_CHANGED
    before = old.bmc if old is not None else None
    said = new.bmc and reading_condition(before, new.bmc, (find_condition(present, kind) or {}).get("reason"))
    return set_condition(present, kind, said.status, said.reason, said.message, at) if said else None


def _is_awaited(machine: Machine) -> bool:
    """Return whether a claim of the host waits for its first inventory."""
    return in_stock(machine) and machine.status.hardware is None


def _cause(machine: Machine) -> tuple[object, ...]:
    """Return the values whose change is a reason to look whether a reading is due."""
    redfish = machine.spec.pxe.redfish if machine.spec.pxe is not None else None
    return (redfish, machine.status.redfish, machine.status.active_operation is None, _boot(machine))


def _boot(machine: Machine) -> str | None:
    """Return the boot whose installer has reported the hardware; None where none has."""
    return machine.status.hardware.boot if machine.status.hardware is not None else None
