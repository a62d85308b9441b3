"""Evaluation of conditional and range requests (RFC 9110 13 and 14), without a connection."""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

ETAGS: Final = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
RANGE: Final = re.compile(r"([0-9]{0,18})-([0-9]{0,18})")


@dataclass(frozen=True, slots=True)
class RequestConditions:
    """Conditional header fields of a request; repeated fields are joined by commas."""

    if_match: str | None = None
    if_unmodified_since: str | None = None
    if_none_match: str | None = None
    if_modified_since: str | None = None
    if_range: str | None = None
    range: str | None = None


@dataclass(frozen=True, slots=True)
class WholeFile:
    """200."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """206: the bytes from `start` up to `stop`, exclusive; at least one."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class NotModified:
    """304."""


@dataclass(frozen=True, slots=True)
class PreconditionFailed:
    """412."""


@dataclass(frozen=True, slots=True)
class RangeNotSatisfiable:
    """416."""


Decision = WholeFile | FileRange | NotModified | PreconditionFailed | RangeNotSatisfiable


def decide(conditions: RequestConditions, *, get: bool, size: int, etag: str, modified: float | None) -> Decision:
    """Decide which bytes of a file to send.

    Args:
        get: True for a GET; other methods have no ranges.
        etag: bare and strong.
        modified: in seconds since 1970; None if unknown, as of a text that is generated for this request.
    """
    seconds = None if modified is None else int(modified)  # HTTP dates have a resolution of a second
    if conditions.if_match is not None:
        if not _names(conditions.if_match, etag, weak=False):
            return PreconditionFailed()
    elif (since := _date(conditions.if_unmodified_since)) is not None and seconds is not None and seconds > since:
        return PreconditionFailed()
    if conditions.if_none_match is not None:
        if _names(conditions.if_none_match, etag, weak=True):
            return NotModified()
    elif (since := _date(conditions.if_modified_since)) is not None and seconds is not None and seconds <= since:
        return NotModified()
    if not get or conditions.range is None or not _same(conditions.if_range, etag, seconds):
        return WholeFile()
    return _ranged(conditions.range, size)


def _names(field: str, etag: str, *, weak: bool) -> bool:
    if field.strip() == "*":
        return True
    return any(found[2] == etag and (weak or not found[1]) for found in ETAGS.finditer(field))


def _same(if_range: str | None, etag: str, seconds: int | None) -> bool:
    """Return whether the range belongs to the same version of the file that the client has a part of."""
    if if_range is None:
        return True
    if '"' in if_range:
        found = ETAGS.fullmatch(if_range.strip())
        return found is not None and not found[1] and found[2] == etag
    return seconds is not None and _date(if_range) == seconds


def _ranged(field: str, size: int) -> Decision:
    """Decide on a range. Several ranges, and invalid ones, are answered with the whole file, as RFC 9110 allows."""
    unit, _, ranges = field.partition("=")
    found = RANGE.fullmatch(ranges.strip())
    if unit.strip().lower() != "bytes" or found is None or found[0] == "-":
        return WholeFile()
    if not found[1]:
        start, stop = max(size - int(found[2]), 0), size
    else:
        start, stop = int(found[1]), min(int(found[2]) + 1, size) if found[2] else size
        if found[2] and int(found[2]) < start:
            return WholeFile()
    return FileRange(start, stop) if start < stop else RangeNotSatisfiable()


def _date(field: str | None) -> float | None:
    if field is None:
        return None
    try:
        return parsedate_to_datetime(field).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
