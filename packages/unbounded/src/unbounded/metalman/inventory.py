"""Inventory of each Machine's BMC in `Machine.status.hardware`: read once a day, and merged with an installer's report.

No work needs an inventory. A reading is therefore late, gives way to each operation, and its failures are only logged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from unbounded.api.failures import Transient
from unbounded.api.fields import ApiStruct, api_name
from unbounded.api.hardware import DiskFacts, HardwareFacts, HardwareSource, HardwareStatus
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import OperationKind
from unbounded.kube.cache import Cache
from unbounded.kube.clock import Backoff, rfc3339
from unbounded.kube.controller import Controller
from unbounded.kube.logs import Log
from unbounded.kube.process import Runtime
from unbounded.kube.status_writer import StatusWriter
from unbounded.kube.workqueue import WorkQueue
from unbounded.metalman.access import BmcAccess, needs_pin, redfish_of
from unbounded.metalman.inspection import bounded, facts_digest, inspected
from unbounded.metalman.redfish.inventory_reader import Inventory, InventoryInterrupted
from unbounded.metalman.redfish.pool import BmcPool
from unbounded.metalman.redfish.ports import PasswordRejected
from unbounded.operations.ownership import ExecutorKind, executor_of
from unbounded.operations.record import with_nulls

CONCURRENT: Final = 4  # readings at a time, for all BMCs of the process
# From an event of the Machine to its reading, so that neither a new site nor a first operation waits for inventories.
SETTLE_S: Final = 30.0
SPREAD_S: Final = 60.0
RETRY: Final = Backoff(base_s=300.0, max_s=6 * 3600.0)
DAY: Final = timedelta(days=1)

# Facts of the parts that a reading names when they cannot be read.
_FACTS_OF: Final = {
    "Processors": ("processor", "cpus"),
    "Memory": ("memory_bytes",),
    "Storage": ("disks",),
    "EthernetInterfaces": ("nics",),
    "FirmwareInventory": ("firmware_inventory",),
    "PowerSupplies": ("power_supplies",),
}
_ONLY_REDFISH: Final = ("firmware_inventory", "power_supplies")
_FILLED: Final = ("system", "firmware", "cpus", "processor", "memory_bytes")  # where an installer could not read them

log = Log("metalman")


# ---- what a reading changes


def merged(old: HardwareStatus | None, read: Inventory, at: str) -> HardwareStatus:
    """Return the hardware of a Machine after a reading of its BMC.

    An installer saw the parts themselves, so its report stays, and Redfish adds what an installer cannot know. A part
    that the BMC did not let be read stays as it was.
    """
    facts = _with_failed_parts(bounded(read.facts), old, read.failed)
    if old is None or old.source != HardwareSource.INSTALLER:
        return inspected(facts, HardwareSource.REDFISH, at)
    filled = {name: _filled(getattr(old, name), getattr(facts, name)) for name in _FILLED}
    added = {name: getattr(facts, name) for name in _ONLY_REDFISH}
    disks = old.disks if "Storage" in read.failed else tuple(_with_health(old.disks, facts.disks))
    both = msgspec.structs.replace(old, **filled, **added, disks=disks)
    return msgspec.structs.replace(both, digest=facts_digest(both))


def _with_failed_parts(facts: HardwareFacts, old: HardwareFacts | None, failed: dict[str, str]) -> HardwareFacts:
    names = [name for part in failed for name in _FACTS_OF[part]] if old is not None else []
    kept = {name: value for name in names if (value := getattr(old, name))}
    return msgspec.structs.replace(facts, **kept)


def _filled(old: Any, new: Any) -> Any:
    """Return a fact of an installer's report, with its unknown values from Redfish."""
    if not isinstance(old, ApiStruct) or not isinstance(new, ApiStruct):
        return new if old is None else old
    unknown = [name for name in old.__struct_fields__ if getattr(old, name) is None]
    return msgspec.structs.replace(old, **{name: getattr(new, name) for name in unknown})


def _with_health(disks: tuple[DiskFacts, ...], drives: tuple[DiskFacts, ...]) -> Iterator[DiskFacts]:
    health = {identity: drive.health for drive in drives for identity in _identities(drive)}
    for disk in disks:
        known = next((health[identity] for identity in _identities(disk) if identity in health), None)
        yield msgspec.structs.replace(disk, health=known)


def _identities(disk: DiskFacts) -> Iterator[str]:
    """Yield the WWN and the serial number in a form that the kernel's and the BMC's spellings share."""
    if disk.wwn:
        yield "wwn " + disk.wwn.lower().removeprefix("0x").removeprefix("naa.").removeprefix("eui.")
    if disk.serial_number:
        yield "serial number " + disk.serial_number.strip().lower()


def hardware_change(old: HardwareStatus | None, new: HardwareStatus) -> dict[str, Any] | None:
    """Return the status fields that a reading changes; None if nothing does."""
    if new == old:
        return None
    hardware = with_nulls(new)
    for name in new.__struct_fields__:  # a merge patch keeps what it does not clear, also one level down
        value = getattr(new, name)
        if isinstance(value, ApiStruct):
            hardware[api_name(name)] = with_nulls(value)
    return {"hardware": hardware}


# ---- when a BMC is read


def next_reading(hardware: HardwareStatus | None, uid: str, last: datetime | None, now: datetime) -> datetime:
    """Return the time of the next reading: now where Redfish has not added anything yet, else the Machine's own time of
    day.

    Args:
        last: the last reading by this process, if the present boot or inspector is still the same; None otherwise.
    """
    if hardware is None or (last is None and not _has_redfish(hardware)):
        return now
    if last is None:
        last = _inspected_at(hardware, now)
    offset = timedelta(seconds=DAY.total_seconds() * _share(uid))
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


def _share(uid: str) -> float:
    """Return a number from 0 to below 1 that is a Machine's own, so that the readings of a site are spread."""
    return int.from_bytes(hashlib.sha256(uid.encode()).digest()[:4], "big") / (1 << 32)


def is_readable(machine: Machine, site: str | None) -> bool:
    """Return whether the Machine's BMC may be read now: it is ours and trusted, and no operation has the Machine."""
    if site not in (None, machine.site) or executor_of(OperationKind.HOST_REBOOT, machine) is not ExecutorKind.METALMAN:
        return False
    if machine.spec.pxe is None or machine.spec.pxe.redfish is None or needs_pin(machine, site):
        return False
    return machine.status.active_operation is None and machine.metadata.deletion_timestamp is None


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
        self._status = StatusWriter(runtime.api, MACHINES, fields=("hardware",), cache=machines)
        self._last: dict[str, tuple[str | None, datetime]] = {}  # boot that Redfish added to, and when; by Machine
        self._unfinished: set[str] = set()  # Machines whose last reading was cut short
        self._controller: Controller[str] = Controller(
            "inventory", self._reconcile, workers=CONCURRENT, queue=WorkQueue(failed=RETRY), metrics=runtime.metrics
        )

    async def run(self) -> None:
        """Work until cancelled."""
        with self._machines.subscribed(self._changed):
            await self._controller.run()

    def _changed(self, old: Machine | None, new: Machine | None) -> None:
        if new is None and old is not None:
            self._last.pop(old.name, None)
            self._unfinished.discard(old.name)
        elif new is not None and is_readable(new, self._site) and (old is None or _cause(old) != _cause(new)):
            self._controller.queue.add_after(new.name, SETTLE_S + SPREAD_S * _share(new.metadata.uid))

    async def _reconcile(self, name: str) -> float | None:
        machine = self._machines.get(name)
        if machine is None or not is_readable(machine, self._site):
            return None  # its next event counts
        boot, last = self._last.get(name, (None, None))
        now = self._now()
        due = next_reading(machine.status.hardware, machine.metadata.uid, last if boot == _boot(machine) else None, now)
        if due > now and name not in self._unfinished:
            return (due - now).total_seconds()
        try:
            return await self._read(machine)
        except InventoryInterrupted:
            return None

    async def _read(self, machine: Machine) -> float | None:
        """Read the BMC once, and write the result.

        Raises:
            Failure: the BMC failed before the end; what it had answered until then is written.
        """
        account = await self._access.of(machine)
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

        def change(raw: dict[str, Any]) -> dict[str, Any] | None:
            old = msgspec.convert(raw, Machine).status.hardware
            return hardware_change(old, merged(old, read, at))

        await self._status.update(machine.name, change, uid=machine.metadata.uid)

    def _may_continue(self, machine: Machine) -> bool:
        present = self._machines.get(machine.name)
        if present is None or present.metadata.uid != machine.metadata.uid or not is_readable(present, self._site):
            return False
        return redfish_of(present) == redfish_of(machine)


def _cause(machine: Machine) -> tuple[object, ...]:
    """Return the values whose change is a reason to look whether a reading is due."""
    redfish = machine.spec.pxe.redfish if machine.spec.pxe is not None else None
    return (redfish, machine.status.redfish, machine.status.active_operation is None, _boot(machine))


def _boot(machine: Machine) -> str | None:
    """Return the boot whose installer has reported the hardware; None where none has."""
    return machine.status.hardware.boot if machine.status.hardware is not None else None
