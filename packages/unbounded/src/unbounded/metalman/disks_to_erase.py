"""The disks that a HostErase erases, chosen from the installer's report before anything is lost, and their progress.

Pure. A disk is erased by its serial number alone: a kernel's name may be another disk's at the next boot. `All` is each
local disk. A disk of a SAN or with several paths is erased only where it is named, as other machines may use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from unbounded.api.hardware import DiskFacts, DiskState
from unbounded.api.machine_status import DiskErasureRecord, ErasureState, merge_erasures
from unbounded.metalman.disk_choice import AwaitedDisk, DiskRefused
from unbounded.operations.parameters import ALL_DISKS

LOCAL: Final = frozenset({"pcie", "ata", "sas", "usb", "virtio", "mmc", "raid"})
LISTED: Final = 8  # disks in a message


@dataclass(frozen=True)
class ErasurePlan:
    """The disks of a HostErase.

    Attributes:
        records: all of them, with what is known of each.
        names: the kernel's names of those that are not erased yet; one path of each.
        left_out: disks that `All` does not mean, and the cause, in words.
    """

    records: tuple[DiskErasureRecord, ...]
    names: tuple[str, ...]
    left_out: str = ""


def choose_erasures(
    disks: Sequence[DiskFacts], requested: Sequence[str], before: Sequence[DiskErasureRecord], *, final: bool
) -> ErasurePlan | AwaitedDisk | DiskRefused:
    """Choose the disks to erase.

    Args:
        requested: serial numbers, or `ALL_DISKS` alone.
        before: the records of this boot so far: it may be a second start of the installer.
        final: the installer has waited for late disks; a missing one is refused and no longer awaited.
    """
    if not requested:
        return DiskRefused("spec.parameters.disks of the HostErase names no disk")
    if tuple(requested) == (ALL_DISKS,):
        return _all(disks, before, final=final)
    found = {serial: [disk for disk in disks if disk.serial_number == serial] for serial in requested}
    absent = [serial for serial, some in found.items() if not some]
    if absent:
        there = sorted({disk.serial_number for disk in disks if disk.serial_number})
        words = f"the serial numbers here are {', '.join(there[:LISTED])}" if there else "no disk has a serial number"
        text = f"spec.parameters.disks names {', '.join(absent[:LISTED])}, which is no disk here: {words}"
        return DiskRefused(text) if final else AwaitedDisk(text)
    for serial, some in found.items():
        if not _is_one_disk(some):
            names = ", ".join(disk.name for disk in some)
            return DiskRefused(f"spec.parameters.disks names {serial}, the serial number of several disks: {names}")
    return _plan([some[0] for some in found.values()], before)


def _all(
    disks: Sequence[DiskFacts], before: Sequence[DiskErasureRecord], *, final: bool
) -> ErasurePlan | AwaitedDisk | DiskRefused:
    kept = {disk.name: why for disk in disks if (why := _foreign_to_all(disk, disks))}
    meant = [disk for disk in disks if disk.name not in kept]
    unknown = [disk.name for disk in meant if disk.transport is None]
    if unknown:
        return DiskRefused(
            f"it is not known whether disk {', '.join(unknown[:LISTED])} is local: spec.parameters.disks {ALL_DISKS} "
            "does not mean it; name the disks by their serial numbers"
        )
    nameless = [disk.name for disk in meant if not disk.serial_number]
    if nameless:
        return DiskRefused(f"disk {', '.join(nameless[:LISTED])} has no serial number, and is erased by no HostErase")
    here = {disk.serial_number for disk in meant}
    missing = [one.serial_number for one in before if one.serial_number not in here]
    if missing or not meant:
        text = f"disk {', '.join(missing[:LISTED])} is gone" if missing else "there is no local disk"
        return DiskRefused(text) if final else AwaitedDisk(text)
    by_serial = [disk.serial_number for disk in meant]
    if len(set(by_serial)) < len(by_serial):
        same = sorted({serial or "" for serial in by_serial if by_serial.count(serial) > 1})
        return DiskRefused(f"several disks have the serial number {', '.join(same[:LISTED])}")
    plan = _plan(meant, before)
    return ErasurePlan(plan.records, plan.names, "; ".join(f"{name}: {why}" for name, why in kept.items()))


def _foreign_to_all(disk: DiskFacts, disks: Sequence[DiskFacts]) -> str:
    """Return why `All` does not mean a disk; empty if it may."""
    if disk.multipath or any(one is not disk and _is_one_disk((one, disk)) for one in disks):
        return "it has several paths"
    if disk.transport is not None and disk.transport not in LOCAL:
        return f"its transport is {disk.transport}"
    return ""


def _is_one_disk(disks: Sequence[DiskFacts]) -> bool:
    """Return whether all these are paths of one disk."""
    return len(disks) == 1 or (bool(disks[0].wwn) and len({disk.wwn for disk in disks}) == 1)


def _plan(disks: Sequence[DiskFacts], before: Sequence[DiskErasureRecord]) -> ErasurePlan:
    records = merge_erasures(before, [_untouched(disk) for disk in disks])
    erased = {one.serial_number for one in records if one.state == ErasureState.ERASED}
    return ErasurePlan(records, tuple(disk.name for disk in disks if disk.serial_number not in erased))


def _untouched(disk: DiskFacts) -> DiskErasureRecord:
    return DiskErasureRecord(
        serial_number=disk.serial_number or "",
        name=disk.name,
        model=disk.model,
        wwn=disk.wwn,
        size_bytes=disk.size_bytes,
        contents=_contents(disk),
        state=ErasureState.UNTOUCHED,
    )


def _contents(disk: DiskFacts) -> str:
    if disk.state == DiskState.BLANK:
        return "blank"
    if disk.state == DiskState.OWN:
        return "this Machine's earlier install"
    return disk.contents or "data of an unknown kind"


def is_begun(records: Iterable[DiskErasureRecord]) -> bool:
    """Return whether data are lost."""
    return any(one.state != ErasureState.UNTOUCHED for one in records)


def not_blank(disks: Iterable[DiskFacts], records: Iterable[DiskErasureRecord]) -> str:
    """Return which disks hold something after their erasure, by the report that followed; empty if none does."""
    erased = {one.serial_number for one in records if one.state == ErasureState.ERASED}
    return "; ".join(
        f"disk {disk.serial_number} was erased, and holds {_contents(disk)}"
        for disk in disks
        if disk.serial_number in erased and disk.state != DiskState.BLANK
    )


def erasures_text(records: Sequence[DiskErasureRecord]) -> str:
    """Return the disks that are erased, begun and untouched, in words; empty if there is none."""
    heads = {
        ErasureState.ERASED: "erased",
        ErasureState.FAILED: "not erased",
        ErasureState.ERASING: "begun",
        ErasureState.UNTOUCHED: "untouched",
    }
    lists = [(head, [_described(one) for one in records if one.state == state]) for state, head in heads.items()]
    return "; ".join(f"{head}: {_list(some)}" for head, some in lists if some)


def _list(some: Sequence[str]) -> str:
    more = f" and {len(some) - LISTED} more" if len(some) > LISTED else ""
    return ", ".join(some[:LISTED]) + more


def _described(record: DiskErasureRecord) -> str:
    if record.state == ErasureState.FAILED:
        return f"{record.serial_number} ({record.failure or 'the reason is unknown'})"
    if record.state == ErasureState.ERASING and record.method:
        percent = "" if record.percent is None else f" {record.percent} %"
        return f"{record.serial_number} ({record.method}{percent}, {record.seconds or 0} s)"
    return f"{record.serial_number} ({record.method})" if record.method else record.serial_number
