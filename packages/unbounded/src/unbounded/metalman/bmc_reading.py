"""Readings of a BMC: the parts that it lists, and what differs from its reading before. Pure.

A BMC is compared with itself alone: what only it or only the installer knows is no difference. Many BMCs list drives
and NICs only while the host runs, so nothing is missing in a reading of a host that is not On, nor in a part of the
inventory that could not be read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from unbounded.api.conditions import ConditionReason, ConditionStatus
from unbounded.api.hardware import BMCPart, BMCReading, HardwareFacts
from unbounded.metalman.inspection import HardwareChanges, amount_changes, listed, parts_of
from unbounded.metalman.netboot.model import ConditionState

OK: Final = "OK"
# Kinds of the parts that a reading names when they cannot be read.
_KINDS: Final = {
    "Storage": "disk",
    "EthernetInterfaces": "NIC",
    "PowerSupplies": "power supply",
    "Processors": "accelerator",  # GPUs are processors
    "PCIeDevices": "accelerator",
}


def reading_of(
    facts: HardwareFacts, old: BMCReading | None, at: str, *, failed: Collection[str] = (), is_on: bool = True
) -> BMCReading:
    """Return what a BMC lists; the reading before, if it was the same.

    Args:
        failed: names of the parts of the inventory that could not be read.
    """
    found = _in_order(_parts(facts))
    if old is None:
        return BMCReading(at=at, cpus=facts.cpus, memory_bytes=facts.memory_bytes, parts=found)
    unknown = {_KINDS.get(part) for part in failed}
    known = {identity for part in found for identity in part.identities}
    kept = tuple(
        part for part in old.parts if known.isdisjoint(part.identities) and (not is_on or part.kind in unknown)
    )
    new = BMCReading(
        at=old.at,
        cpus=_amount(facts.cpus, old.cpus, is_on=is_on),
        memory_bytes=_amount(facts.memory_bytes, old.memory_bytes, is_on=is_on),
        parts=_in_order((*found, *kept)),
    )
    return old if new == old else BMCReading(at=at, cpus=new.cpus, memory_bytes=new.memory_bytes, parts=new.parts)


def reading_condition(old: BMCReading | None, new: BMCReading, reason: str | None) -> ConditionState | None:
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


def is_healthy(reading: BMCReading) -> bool:
    """Return whether the BMC reports no part as anything but OK."""
    return all(part.health in (None, OK) for part in reading.parts)


def _parts(facts: HardwareFacts) -> Iterator[BMCPart]:
    for part in parts_of(facts):
        yield BMCPart(kind=part.kind, name=part.name, identities=tuple(sorted(part.identities)), health=part.health)
    for supply in facts.power_supplies:
        identity = f"power supply {supply.name}"
        yield BMCPart(kind="power supply", name=supply.name, identities=(identity,), health=supply.health)


def _in_order(parts: Iterable[BMCPart]) -> tuple[BMCPart, ...]:
    return tuple(sorted(parts, key=lambda part: (part.kind, part.name)))


def _text(part: BMCPart) -> str:
    return f"{part.kind} {part.name}".rstrip()


def _turned(part: BMCPart, before: dict[str, BMCPart]) -> Iterator[str]:
    """Yield the health of a part that was another one before, and is not OK."""
    known = next((before[identity] for identity in part.identities if identity in before), None)
    if known is not None and known.health is not None and part.health not in (None, OK, known.health):
        yield f"{_text(part)}: {part.health} after {known.health}"


def _amount(now: int | None, before: int | None, *, is_on: bool) -> int | None:
    if not is_on and now and before:
        return max(now, before)
    return now or before
