"""How much of a file a request wants: conditions and ranges (RFC 9110 13 and 14), without a connection."""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

ETAGS: Final = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
RANGE: Final = re.compile(r"([0-9]{0,18})-([0-9]{0,18})")


@dataclass(frozen=True, slots=True)
class Conditions:
    """Header fields of a request; those that came several times are joined by commas."""

    if_match: str | None = None
    if_unmodified_since: str | None = None
    if_none_match: str | None = None
    if_modified_since: str | None = None
    if_range: str | None = None
    range: str | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    """200."""


@dataclass(frozen=True, slots=True)
class Part:
    """206: the bytes from `start` up to and without `stop`, at least one."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class NotModified:
    """304."""


@dataclass(frozen=True, slots=True)
class Failed:
    """412."""


@dataclass(frozen=True, slots=True)
class Unsatisfiable:
    """416."""


Decision = Whole | Part | NotModified | Failed | Unsatisfiable


def decide(asked: Conditions, *, get: bool, size: int, etag: str, modified: float | None) -> Decision:
    """What to send of a file.

    Args:
        get: whether it is a GET; others have no ranges.
        etag: bare and strong.
        modified: in seconds since 1970; None where it says nothing, as of a text that was made for this request.
    """
    seconds = None if modified is None else int(modified)  # a date in a header has no more
    if asked.if_match is not None:
        if not _names(asked.if_match, etag, weak=False):
            return Failed()
    elif (since := _date(asked.if_unmodified_since)) is not None and seconds is not None and seconds > since:
        return Failed()
    if asked.if_none_match is not None:
        if _names(asked.if_none_match, etag, weak=True):
            return NotModified()
    elif (since := _date(asked.if_modified_since)) is not None and seconds is not None and seconds <= since:
        return NotModified()
    if not get or asked.range is None or not _same(asked.if_range, etag, seconds):
        return Whole()
    return _ranged(asked.range, size)


def _names(field: str, etag: str, *, weak: bool) -> bool:
    if field.strip() == "*":
        return True
    return any(found[2] == etag and (weak or not found[1]) for found in ETAGS.finditer(field))


def _same(if_range: str | None, etag: str, seconds: int | None) -> bool:
    """Whether a range is of the same file that the client has the rest of."""
    if if_range is None:
        return True
    if '"' in if_range:
        found = ETAGS.fullmatch(if_range.strip())
        return found is not None and not found[1] and found[2] == etag
    return seconds is not None and _date(if_range) == seconds


def _ranged(field: str, size: int) -> Decision:
    """One range is sent; several, and what is no range, are answered with all of the file, as a server may do."""
    unit, _, ranges = field.partition("=")
    found = RANGE.fullmatch(ranges.strip())
    if unit.strip().lower() != "bytes" or found is None or found[0] == "-":
        return Whole()
    if not found[1]:
        start, stop = max(size - int(found[2]), 0), size
    else:
        start, stop = int(found[1]), min(int(found[2]) + 1, size) if found[2] else size
        if found[2] and int(found[2]) < start:
            return Whole()
    return Part(start, stop) if start < stop else Unsatisfiable()


def _date(field: str | None) -> float | None:
    if field is None:
        return None
    try:
        return parsedate_to_datetime(field).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
