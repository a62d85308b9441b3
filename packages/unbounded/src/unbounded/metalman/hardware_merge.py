"""One `status.hardware` of two inspectors: an installer's report, and the readings of the BMC. Pure.

An installer saw the parts themselves, so its facts win. Only a BMC knows the health of disks and power supplies and the
firmware of components. These facts outlast a report.

A BMC is compared with its own reading before alone: what only it or only the installer knows is no difference. Many
BMCs list drives and NICs only while the host runs, so nothing is missing in a reading of a host that is not On, nor in
a part of the inventory that could not be read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import msgspec

from unbounded.api import hardware
from unbounded.api.bounds import bounded
from unbounded.api.conditions import ConditionReason, ConditionStatus
from unbounded.api.fields import ApiStruct
from unbounded.metalman.inspection import (
    HardwareChanges,
    amount_changes,
    disk_identities,
    facts_digest,
    inspected,
    listed,
    parts_of,
)
from unbounded.metalman.netboot.model import ConditionState
from unbounded.metalman.redfish.inventory_reader import Inventory
from unbounded.operations.execution_record import with_nulls

OK: Final = "OK"
# Kinds of the parts that a reading names when they cannot be read.
_KINDS: Final = {
    "Storage": "disk",
    "EthernetInterfaces": "NIC",
    "PowerSupplies": "power supply",
    "Processors": "accelerator",  # GPUs are processors
    "PCIeDevices": "accelerator",
}
# Facts of the parts that a reading names when they cannot be read.
_FACTS_OF: Final = {
    "Processors": ("processor", "cpus"),
    "Memory": ("memory_bytes",),
    "Storage": ("disks",),
    "EthernetInterfaces": ("nics",),
    "FirmwareInventory": ("firmware_inventory",),
    "PowerSupplies": ("power_supplies",),
    "PCIeDevices": ("accelerators",),
    "SecureBoot": ("firmware",),
}
_ONLY_REDFISH: Final = ("firmware_inventory", "power_supplies")
_FILLED: Final = ("system", "firmware", "cpus", "processor", "memory_bytes")  # where an installer could not read them


def reading_of(
    facts: hardware.HardwareFacts,
    old: hardware.BMCReading | None,
    at: str,
    *,
    failed: Collection[str] = (),
    is_on: bool = True,
) -> hardware.BMCReading:
    """Return what a BMC lists; the reading before, if it was the same.

    Args:
        failed: names of the parts of the inventory that could not be read.
    """
    found = _in_order(_parts(facts))
    if old is None:
        return hardware.BMCReading(at=at, cpus=facts.cpus, memory_bytes=facts.memory_bytes, parts=found)
    unknown = {_KINDS.get(part) for part in failed}
    known = {identity for part in found for identity in part.identities}
    kept = tuple(
        part for part in old.parts if known.isdisjoint(part.identities) and (not is_on or part.kind in unknown)
    )
    new = hardware.BMCReading(
        at=old.at,
        cpus=_amount(facts.cpus, old.cpus, is_on=is_on),
        memory_bytes=_amount(facts.memory_bytes, old.memory_bytes, is_on=is_on),
        parts=_in_order((*found, *kept)),
    )
    return (
        old if new == old else hardware.BMCReading(at=at, cpus=new.cpus, memory_bytes=new.memory_bytes, parts=new.parts)
    )


def reading_condition(
    old: hardware.BMCReading | None, new: hardware.BMCReading, reason: str | None
) -> ConditionState | None:
    """Return the update of HardwareChanged after a reading; None if it stays.

    A reading without a difference takes nothing back: an inspection of the host does. Health is a state: the alarm
    about it ends when all parts are OK.

    Args:
        reason: that of the present condition; None without one.
    """
    if old is None or old == new:
        return None
    before = {identity: part for part in old.parts for identity in part.identities}
    now = {identity for part in new.parts for identity in part.identities}
    missing = [_text(part) for part in old.parts if now.isdisjoint(part.identities)]
    kinds = {part.kind for part in old.parts}  # a kind that is listed for the first time is no difference
    added = [_text(part) for part in new.parts if part.kind in kinds and before.keys().isdisjoint(part.identities)]
    for what, was, is_now in amount_changes(old, new):
        (missing if is_now < was else added).append(what)
    turned = [text for part in new.parts for text in _turned(part, before)]
    if not missing and not added and not turned:
        recovered = reason == ConditionReason.HEALTH_CHANGED and is_healthy(new)
        text = f"the BMC reports all parts as OK since {new.at}"
        return ConditionState(ConditionStatus.FALSE, ConditionReason.UNCHANGED, text) if recovered else None
    if missing:
        why = ConditionReason.PARTS_MISSING
    else:
        why = ConditionReason.HEALTH_CHANGED if turned else ConditionReason.PARTS_ADDED
    text = listed(HardwareChanges(tuple(missing), tuple(added), tuple(turned)))
    return ConditionState(ConditionStatus.TRUE, why, f"since the BMC's reading of {old.at}, {text}")


def is_healthy(reading: hardware.BMCReading) -> bool:
    """Return whether the BMC reports no part as anything but OK."""
    return all(part.health in (None, OK) for part in reading.parts)


def _parts(facts: hardware.HardwareFacts) -> Iterator[hardware.BMCPart]:
    for part in parts_of(facts):
        yield hardware.BMCPart(
            kind=part.kind, name=part.name, identities=tuple(sorted(part.identities)), health=part.health
        )
    for supply in facts.power_supplies:
        identity = f"power supply {supply.name}"
        yield hardware.BMCPart(kind="power supply", name=supply.name, identities=(identity,), health=supply.health)


def _in_order(parts: Iterable[hardware.BMCPart]) -> tuple[hardware.BMCPart, ...]:
    return tuple(sorted(parts, key=lambda part: (part.kind, part.name)))


def _text(part: hardware.BMCPart) -> str:
    return f"{part.kind} {part.name}".rstrip()


def _turned(part: hardware.BMCPart, before: dict[str, hardware.BMCPart]) -> Iterator[str]:
    """Yield the health of a part that was another one before, and is not OK."""
    known = next((before[identity] for identity in part.identities if identity in before), None)
    if known is not None and known.health is not None and part.health not in (None, OK, known.health):
        yield f"{_text(part)}: {part.health} after {known.health}"


def _amount(now: int | None, before: int | None, *, is_on: bool) -> int | None:
    if not is_on and now and before:
        return max(now, before)
    return now or before


def merged(old: hardware.HardwareStatus | None, read: Inventory, at: str) -> hardware.HardwareStatus:
    """Return the hardware of a Machine after a reading of its BMC.

    An installer's report stays, and Redfish adds to it. A part that could not be read stays as it was.
    """
    found = bounded(read.facts)
    bmc = reading_of(found, old.bmc if old else None, at, failed=read.failed, is_on=read.is_on)
    facts = _with_failed_parts(found, old, read.failed)
    if old is None or old.source != hardware.HardwareSource.INSTALLER:
        return msgspec.structs.replace(inspected(facts, hardware.HardwareSource.REDFISH, at), bmc=bmc)
    filled = {name: _filled(getattr(old, name), getattr(facts, name)) for name in _FILLED}
    added = {name: getattr(facts, name) for name in _ONLY_REDFISH}
    disks = old.disks if "Storage" in read.failed else tuple(_with_health(old.disks, facts.disks))
    cards = old.accelerators if "PCIeDevices" in read.failed else tuple(_completed(old.accelerators, facts))
    both = msgspec.structs.replace(old, **filled, **added, disks=disks, accelerators=cards, bmc=bmc)
    return msgspec.structs.replace(both, digest=facts_digest(both))


def reported(old: hardware.HardwareStatus | None, report: hardware.HardwareStatus) -> hardware.HardwareStatus:
    """Return the hardware of a Machine after an installer's report: with what only its BMC knew before."""
    if old is None:
        return report
    known = {name: getattr(old, name) for name in (*_ONLY_REDFISH, "bmc")}
    if old.source == hardware.HardwareSource.REDFISH or old.boot == report.boot:
        known |= {name: _filled(getattr(report, name), getattr(old, name)) for name in _FILLED}
    disks, cards = tuple(_with_health(report.disks, old.disks)), tuple(_completed(report.accelerators, old))
    both = msgspec.structs.replace(report, **known, disks=disks, accelerators=cards)
    return msgspec.structs.replace(both, digest=facts_digest(both))


def _with_failed_parts(
    facts: hardware.HardwareFacts, old: hardware.HardwareFacts | None, failed: dict[str, str]
) -> hardware.HardwareFacts:
    names = [name for part in failed for name in _FACTS_OF[part]] if old is not None else []
    kept = {
        name: _filled(getattr(facts, name), value) if isinstance(value, ApiStruct) else value
        for name in names
        if (value := getattr(old, name))
    }
    return msgspec.structs.replace(facts, **kept)


def _filled(old: Any, new: Any) -> Any:
    """Return a fact of an installer's report, with its unknown values from Redfish."""
    if not isinstance(old, ApiStruct) or not isinstance(new, ApiStruct):
        return new if old is None else old
    unknown = [name for name in old.__struct_fields__ if getattr(old, name) is None]
    return msgspec.structs.replace(old, **{name: getattr(new, name) for name in unknown})


def _with_health(
    disks: tuple[hardware.DiskFacts, ...], drives: tuple[hardware.DiskFacts, ...]
) -> Iterator[hardware.DiskFacts]:
    health = {identity: drive.health for drive in drives for identity in disk_identities(drive)}
    for disk in disks:
        known = next((health[identity] for identity in disk_identities(disk) if identity in health), None)
        yield msgspec.structs.replace(disk, health=known)


def _completed(
    cards: tuple[hardware.AcceleratorFacts, ...], known: hardware.HardwareFacts
) -> Iterator[hardware.AcceleratorFacts]:
    """Yield the accelerators of a report, with what a BMC knows of the card at the same PCI address."""
    listed = {card.pci_address: card for card in known.accelerators if card.pci_address}
    for card in cards:
        health = {"health": None} if card.health else {}
        yield _filled(msgspec.structs.replace(card, **health), listed.get(card.pci_address or ""))


def hardware_change(old: hardware.HardwareStatus | None, new: hardware.HardwareStatus) -> dict[str, Any] | None:
    """Return `status.hardware` as a merge patch; None if nothing changes."""
    return None if new == old else with_nulls(new)
