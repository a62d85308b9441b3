"""The erasure of a disk: its record in `Machine.status.netboot`, and in the status of the HostErase."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

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
