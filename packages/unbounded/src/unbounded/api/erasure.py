"""The erasure of a disk: its record in `Machine.status.netboot`, and in the status of the HostErase."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Final

from msgspec.structs import replace

from unbounded.api.fields import ApiStruct, Count, Field, Int32, Time

MAX_ERASURES: Final = 128  # the disks of a machine, as in status.hardware
MAX_ATTEMPTS: Final = 8


class ErasureState(StrEnum):
    """The progress of one disk's erasure."""

    UNTOUCHED = "Untouched"
    ERASING = "Erasing"  # data are lost from here on
    FAILED = "Failed"
    ERASED = "Erased"


class ErasureAttempt(ApiStruct, frozen=True, kw_only=True):
    """A method that was tried, and its failure."""

    method: Annotated[str, Field("Sanitize, Format, SecureErase, Discard or Overwrite.", max_length=64)]
    failure: Annotated[
        str | None, Field("Why the method did not erase the disk; absent if it did.", max_length=256)
    ] = None
    seconds: Annotated[Count | None, Field("Duration of the attempt.")] = None


class DiskErasureRecord(ApiStruct, frozen=True, kw_only=True):
    """The erasure of one disk by a HostErase."""

    serial_number: Annotated[str, Field("Serial number of the disk.", min_length=1, max_length=256)]
    name: Annotated[str | None, Field("Name that the installer's kernel gave the disk.", max_length=256)] = None
    model: Annotated[str | None, Field("Model, as the disk reports it.", max_length=256)] = None
    wwn: Annotated[str | None, Field("World Wide Name or EUI.", max_length=256)] = None
    size_bytes: Annotated[Count | None, Field("Size in bytes.")] = None
    contents: Annotated[str | None, Field("What was on the disk before.", max_length=512)] = None
    state: Annotated[
        str,
        Field("Untouched, Erasing (begun, not finished), Failed or Erased.", enum=tuple(ErasureState)),
    ]
    method: Annotated[str | None, Field("Method in progress, or the one that erased the disk.", max_length=64)] = None
    percent: Annotated[Int32 | None, Field("Part of the disk that is done.", minimum=0, maximum=100)] = None
    seconds: Annotated[Count | None, Field("Duration of the erasure up to the last report.")] = None
    attempts: Annotated[
        tuple[ErasureAttempt, ...], Field("Methods that were tried, in their order.", max_items=MAX_ATTEMPTS)
    ] = ()
    verification: Annotated[str | None, Field("What was read back after the erasure, and found.", max_length=256)] = (
        None
    )
    failure: Annotated[str | None, Field("Why the disk is not erased.", max_length=256)] = None
    started_at: Annotated[Time | None, Field("Time at which metalman let the erasure begin.")] = None
    completed_at: Annotated[Time | None, Field("Time of the report that the disk is erased, or is not.")] = None

    @property
    def is_permission(self) -> bool:
        """Return whether this is the begin of an erasure: later reports of it have a method."""
        return self.state == ErasureState.ERASING and not self.method


_ORDER: Final = {ErasureState.UNTOUCHED: 0, ErasureState.ERASING: 1, ErasureState.FAILED: 1, ErasureState.ERASED: 2}


def merge_erasures(
    before: Sequence[DiskErasureRecord], new: Iterable[DiskErasureRecord]
) -> tuple[DiskErasureRecord, ...]:
    """Return the records with newer ones, which may have been overtaken.

    A disk that was begun is never untouched again, and an erased one stays. A failed erasure is in progress again only
    after another permission.
    """
    known = {one.serial_number: one for one in before}
    for one in new:
        old = known.get(one.serial_number)
        known[one.serial_number] = one if old is None else _newer(old, one)
    return tuple(known.values())


def _newer(old: DiskErasureRecord, new: DiskErasureRecord) -> DiskErasureRecord:
    late = old.state == ErasureState.FAILED and new.state == ErasureState.ERASING and not new.is_permission
    if late or _rank(old.state) == _rank(ErasureState.ERASED) or _rank(old.state) > _rank(new.state):
        return old
    facts = {name: getattr(old, name) or getattr(new, name) for name in ("name", "model", "wwn", "size_bytes")}
    return replace(new, **facts, contents=old.contents or new.contents, started_at=old.started_at or new.started_at)


def _rank(state: str) -> int:
    return _ORDER.get(ErasureState(state), 0) if state in set(ErasureState) else 1
