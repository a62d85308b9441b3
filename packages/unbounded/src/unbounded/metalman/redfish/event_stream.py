"""Server-sent events of a BMC (DSP0266 12.6, WHATWG HTML 9.2): bytes in, the systems that they concern out. Pure.

An event only says that a system may have changed. Its content is never used as a state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

MEDIA_TYPE: Final = "text/event-stream"
FRAME_BYTES: Final = 1 << 20  # of one event; a longer one is dropped
REMEMBERED: Final = 64  # frames, by which repeated ones are known
OTHER_SERVICES: Final = frozenset({"AccountService", "EventService", "SessionService", "TelemetryService"})
TRANSITIONS: Final = ("PoweringOn", "PoweringOff")  # ends of the messages before a change, which another one follows


class EventStreamReader:
    """Reader of one stream."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._last: deque[int] = deque(maxlen=REMEMBERED)

    def feed(self, chunk: bytes) -> Iterator[str | None]:
        """Yield the path of each system that the events of a chunk concern; None where an event names none."""
        text = self._rest + chunk
        cut = len(text) - text.endswith(b"\r")  # its line feed may follow
        *lines, rest = text[:cut].replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = rest + text[cut:]
        if len(self._rest) > FRAME_BYTES:
            self._rest, self._size = b"", FRAME_BYTES + 1
        for line in lines:
            if line:
                self._add(line)
                continue
            data, fits = b"\n".join(self._data), self._size <= FRAME_BYTES
            self._data, self._size = [], 0
            if data and fits and (frame := hash(data)) not in self._last:
                self._last.append(frame)
                yield from origins(data)

    def _add(self, line: bytes) -> None:
        name, _colon, value = line.partition(b":")
        if name == b"data":
            self._size += len(value)
            if self._size <= FRAME_BYTES:
                self._data.append(value.removeprefix(b" "))


def origins(data: bytes) -> Iterator[str | None]:
    """Yield the origin of each record of an Event that can be a change; None where a record names no origin."""
    try:
        event = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return
    records = event.get("Events") if isinstance(event, Mapping) else None
    for record in records if isinstance(records, list) else ():
        if isinstance(record, Mapping) and not _is_transition(record.get("MessageId")):
            yield _origin(record.get("OriginOfCondition"))


def _is_transition(message_id: object) -> bool:
    return isinstance(message_id, str) and message_id.endswith(TRANSITIONS)


def _origin(value: Any) -> str | None:
    """Return the path of an origin, which is a link, or text at some BMCs."""
    path = value.get("@odata.id") if isinstance(value, Mapping) else value
    return path if isinstance(path, str) and path else None


def concerns(origin: str | None, device_id: str, *, is_alone: bool) -> bool:
    """Return whether an event can concern a system: one whose origin names neither another system nor a service can.

    Args:
        is_alone: no other system of this BMC is a Machine, so that the names of systems do not matter.
    """
    service, _slash, rest = (origin or "").removeprefix("/redfish/v1/").partition("/")
    if service in OTHER_SERVICES:
        return False
    return is_alone or service != "Systems" or rest.partition("/")[0] == device_id
