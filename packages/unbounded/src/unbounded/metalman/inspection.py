"""Inspections: a report as the status keeps it, and what differs from the inspection before. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from unbounded.api import hardware
from unbounded.api.conditions import ConditionReason, ConditionStatus
from unbounded.metalman.netboot.model import ConditionState

MEMORY_NOISE: Final = 0.01  # a kernel reserves a little more or less of the same memory
NAMED_PARTS: Final = 20  # in a message


def facts_digest(facts: hardware.HardwareFacts) -> str:
    """Return the SHA-256 digest of facts, over their JSON with sorted keys and without spaces."""
    parts = {name: getattr(facts, name) for name in hardware.HardwareFacts.__struct_fields__}
    plain = msgspec.to_builtins(hardware.HardwareFacts(**parts))
    return hashlib.sha256(msgspec.json.encode(plain, order="deterministic")).hexdigest()


def inspected(
    facts: hardware.HardwareFacts, source: hardware.HardwareSource, at: str, boot: str | None = None
) -> hardware.HardwareStatus:
    """Return the facts of an inspection as `status.hardware`."""
    parts = {name: getattr(facts, name) for name in hardware.HardwareFacts.__struct_fields__}
    return hardware.HardwareStatus(**parts, source=source, boot=boot, at=at, digest=facts_digest(facts))


def is_repetition(old: hardware.HardwareStatus | None, new: hardware.HardwareStatus) -> bool:
    """Return whether an inspection is recorded already: the same boot has reported the same facts."""
    return old is not None and (old.source, old.boot, old.digest) == (new.source, new.boot, new.digest)


# ---- what differs


@dataclass(frozen=True)
class HardwareChanges:
    """Parts that one inspection found and another one did not, as text."""

    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    turned: tuple[str, ...] = ()  # parts whose health is another one, which only a BMC knows


def hardware_changes(old: hardware.HardwareFacts, new: hardware.HardwareFacts) -> HardwareChanges:
    """Compare two inspections part by part. Names that a kernel gives do not count: a part is known by its identity.

    A fact that only one inspection could read is no difference.
    """
    before, now = tuple(parts_of(old)), tuple(parts_of(new))
    missing, added = _without(before, now), _without(now, before)
    for what, was, is_now in amount_changes(old, new):
        (missing if is_now < was else added).append(what)
    for what, was_id, now_id in _exchanged(old, new):
        missing.append(f"{what} {was_id}")
        added.append(f"{what} {now_id}")
    return HardwareChanges(tuple(missing), tuple(added))


def change_condition(old: hardware.HardwareStatus | None, new: hardware.HardwareStatus) -> ConditionState | None:
    """Return the update of HardwareChanged; None if it stays.

    The first inspection has nothing to compare with, nor has one by another inspector. A boot that reports the same
    again does not take back what differs from the boot before. No boot takes back the health that the BMC reports.
    """
    if old is None or old.source != new.source:
        return None
    changes = hardware_changes(old, new)
    if not changes.missing and not changes.added:
        ill = old.bmc is not None and any(part.health not in (None, "OK") for part in old.bmc.parts)
        same = ConditionState(ConditionStatus.FALSE, ConditionReason.UNCHANGED, f"as in the inspection of {old.at}")
        return None if old.boot == new.boot or ill else same
    reason = ConditionReason.PARTS_MISSING if changes.missing else ConditionReason.PARTS_ADDED
    return ConditionState(ConditionStatus.TRUE, reason, f"since the inspection of {old.at}, {listed(changes)}")


def listed(changes: HardwareChanges) -> str:
    """Return changes as the text of a message."""
    heads = (("missing", changes.missing), ("new", changes.added), ("health", changes.turned))
    return "; ".join(f"{head}: {_list(parts)}" for head, parts in heads if parts)


def _list(parts: tuple[str, ...]) -> str:
    more = f" and {len(parts) - NAMED_PARTS} more" if len(parts) > NAMED_PARTS else ""
    return ", ".join(parts[:NAMED_PARTS]) + more


@dataclass(frozen=True)
class Part:
    """A part of a machine, and all that identifies it."""

    kind: str
    name: str
    identities: frozenset[str]
    health: str | None = None

    @property
    def text(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


def _without(parts: tuple[Part, ...], others: tuple[Part, ...]) -> list[str]:
    """Return the texts of the parts that are not among others."""
    known = frozenset(identity for other in others for identity in other.identities)
    return [part.text for part in parts if part.identities.isdisjoint(known)]


def parts_of(facts: hardware.HardwareFacts) -> Iterator[Part]:
    """Yield the parts that an inspection can find missing."""
    for disk in facts.disks:
        identities = tuple(disk_identities(disk)) or (next(iter((*disk.by_id, *disk.by_path)), disk.name),)
        label = disk.serial_number or disk.wwn or identities[0]
        yield _part("disk", f"{label} ({(disk.size_bytes or 0) // 1_000_000} MB)", *identities, health=disk.health)
    for nic in facts.nics:
        identity = (nic.mac or nic.pci_address or nic.name or "").lower()
        yield _part("NIC", identity, identity)
    for card in facts.accelerators:
        model = card.model or f"{card.vendor_id}:{card.device_id}"
        yield _part("accelerator", f"{card.pci_address or card.name} ({model})", *_of_card(card), health=card.health)
    if facts.tpm is not None:
        yield _part("TPM", facts.tpm.version or "", facts.tpm.version or "")


def _part(kind: str, name: str, *identities: str, health: str | None = None) -> Part:
    return Part(kind, name, frozenset(f"{kind} {identity}" for identity in identities), health)


def _of_card(card: hardware.AcceleratorFacts) -> Iterator[str]:
    """Yield what identifies an accelerator: the slot with the kind of card in it, and what only a BMC knows."""
    if card.pci_address:
        yield f"{card.pci_address} ({card.vendor_id}:{card.device_id})"
    if card.name:
        yield f"name {card.name}"
    if card.serial_number:
        yield f"serial number {card.serial_number.strip().lower()}"


def disk_identities(disk: hardware.DiskFacts) -> Iterator[str]:
    """Yield the WWN and the serial number in a form that the kernel's and the BMC's spellings share."""
    if disk.wwn:
        yield "wwn " + disk.wwn.lower().removeprefix("0x").removeprefix("naa.").removeprefix("eui.")
    if disk.serial_number:
        yield "serial number " + disk.serial_number.strip().lower()


def _exchanged(old: hardware.HardwareFacts, new: hardware.HardwareFacts) -> Iterator[tuple[str, str, str]]:
    """Yield each part that a machine has once, if both inspections know its identity and it is another one."""
    for name in ("serial_number", "uuid"):
        was, now = getattr(old.system, name, None), getattr(new.system, name, None)
        if was and now:
            if was != now:
                yield "system", was, now
            break
    was, now = getattr(old.tpm, "ek_certificate", None), getattr(new.tpm, "ek_certificate", None)
    if was and now and was != now:
        yield "TPM", "with the certificate of before", "with another certificate"


def amount_changes(
    old: hardware.HardwareFacts | hardware.BMCReading, new: hardware.HardwareFacts | hardware.BMCReading
) -> Iterator[tuple[str, int, int]]:
    """Yield each amount that differs, as text and as numbers."""
    if old.cpus and new.cpus is not None and old.cpus != new.cpus:
        yield f"CPUs: {new.cpus} after {old.cpus}", old.cpus, new.cpus
    was, now = old.memory_bytes, new.memory_bytes
    if was and now is not None and abs(now - was) > MEMORY_NOISE * was:
        yield f"memory: {now >> 20} MiB after {was >> 20} MiB", was, now
