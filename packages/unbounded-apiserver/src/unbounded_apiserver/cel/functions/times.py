"""Timestamps and durations: RFC 3339 and Go's duration syntax, with nanoseconds; and their getters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from unbounded_apiserver.cel.types import DURATION, INT, STRING, TIMESTAMP, Overload, method
from unbounded_apiserver.cel.values import INT_MAX, INT_MIN, Duration, EvalError, Timestamp

SECOND: Final = 10**9
_MILLI: Final = 10**6
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = int((datetime(1, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds()) * SECOND
_LAST: Final = int((datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC) - _EPOCH).total_seconds()) * SECOND + SECOND - 1

_RFC3339: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})T(\d{2}:\d{2}:\d{2})(?:[.,](\d+))?(Z|[+-]\d{2}:\d{2})", re.ASCII
)  # the syntax of format date-time and of the type check of fields, too
_UNITS: Final = {"ns": 1, "us": 1000, "µs": 1000, "μs": 1000, "ms": _MILLI, "s": SECOND, "m": 60 * SECOND}
_UNITS["h"] = 3600 * SECOND
_GO_PART: Final = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_INTEGER: Final = re.compile(r"[+-]?\d+", re.ASCII)
_HOURS, _MINUTES = range(-23, 24), range(60)


def checked_duration(nanos: int) -> Duration:
    if not INT_MIN <= nanos <= INT_MAX:
        raise EvalError("integer overflow")
    return Duration(nanos)


def checked_timestamp(nanos: int) -> Timestamp:
    if not _FIRST <= nanos <= _LAST:
        raise EvalError("timestamp overflow")
    return Timestamp(nanos)


def parse_timestamp(text: str) -> Timestamp | None:
    """Parse an RFC 3339 text, or return None."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    date, clock, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}{'+00:00' if zone == 'Z' else zone}")
        whole = (moment - _EPOCH) // timedelta(seconds=1)
    except (ValueError, OverflowError):
        return None
    nanos = whole * SECOND + int((fraction or "0")[:9].ljust(9, "0"))
    return Timestamp(nanos) if _FIRST <= nanos <= _LAST else None


def parse_duration(text: str) -> Duration | None:
    """Parse a duration in Go's syntax (`1h30m`, `-1.5s`, `0`), or return None."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return Duration(0)
    total, at = 0, 0
    while at < len(rest):
        match = _GO_PART.match(rest, at)
        if match is None:
            return None
        whole, _, fraction = match[1].partition(".")
        unit = _UNITS[match[2]]
        total += int(whole or "0") * unit + int(fraction or "0") * unit // 10 ** len(fraction)
        at = match.end()
    if not rest or not INT_MIN <= sign * total <= INT_MAX:
        return None
    return Duration(sign * total)


def format_timestamp(value: Timestamp) -> str:
    """Format as RFC 3339 in UTC, with all digits of a second."""
    seconds, nanos = divmod(value.nanos, SECOND)
    text = (_EPOCH + timedelta(seconds=seconds)).strftime("%m-%dT%H:%M:%S")
    year = (_EPOCH + timedelta(seconds=seconds)).year
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    return f"{year:04d}-{text}{fraction}Z"


def format_duration(value: Duration) -> str:
    """Format seconds as `string(duration)` does: `5400s`, `1.5s`."""
    sign = "-" if value.nanos < 0 else ""
    seconds, nanos = divmod(abs(value.nanos), SECOND)
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    return f"{sign}{seconds}{fraction}s"


def _zone(name: str) -> tzinfo | None:
    """Return a time zone, by its name or offset; None is that of the server."""
    hours, colon, minutes = name.partition(":")
    if colon:
        return _offset(name, hours, minutes)
    if name == "Local":
        return None
    try:
        return ZoneInfo(name or "UTC")
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        raise EvalError(f"unknown time zone {name}") from None


def _offset(name: str, hours: str, minutes: str) -> tzinfo:
    for text in (hours, minutes):
        if not _INTEGER.fullmatch(text):
            raise EvalError(f'strconv.Atoi: parsing "{text}": invalid syntax')
    for unit, text, known in (("hours", hours, _HOURS), ("minutes", minutes, _MINUTES)):
        if int(text) not in known:
            raise EvalError(f"timezone offset {unit} out of range [{known[0]}, {known[-1]}]: {name}")
    offset = timedelta(hours=abs(int(hours)), minutes=int(minutes))
    return timezone(-offset if name.startswith("-") else offset)


def _local(value: Timestamp, zone: str = "UTC") -> datetime:
    try:
        return (_EPOCH + timedelta(microseconds=value.nanos // 1000)).astimezone(_zone(zone))
    except OverflowError:
        raise EvalError("timestamp overflow") from None


_OF_TIMESTAMP: Final[dict[str, Callable[[datetime], int]]] = {
    "getFullYear": lambda at: at.year,
    "getMonth": lambda at: at.month - 1,
    "getDate": lambda at: at.day,
    "getDayOfMonth": lambda at: at.day - 1,
    "getDayOfWeek": lambda at: at.isoweekday() % 7,
    "getDayOfYear": lambda at: at.timetuple().tm_yday - 1,
    "getHours": lambda at: at.hour,
    "getMinutes": lambda at: at.minute,
    "getSeconds": lambda at: at.second,
    "getMilliseconds": lambda at: at.microsecond // 1000,
}
_OF_DURATION: Final = {
    "getHours": 3600 * SECOND,
    "getMinutes": 60 * SECOND,
    "getSeconds": SECOND,
    "getMilliseconds": _MILLI,
}


def _getters() -> Iterator[Overload]:
    for name, read in _OF_TIMESTAMP.items():

        def apply(value: Timestamp, zone: str = "UTC", read: Callable[[datetime], int] = read) -> int:
            return read(_local(value, zone))

        yield method(name, f"timestamp_{name}", (TIMESTAMP,), INT, apply)
        yield method(name, f"timestamp_{name}_with_tz", (TIMESTAMP, STRING), INT, apply)
    for name, unit in _OF_DURATION.items():

        def count(value: Duration, unit: int = unit) -> int:
            whole = abs(value.nanos) // unit
            return -whole if value.nanos < 0 else whole

        yield method(name, f"duration_{name}", (DURATION,), INT, count)


TIMES: Final = tuple(_getters())
