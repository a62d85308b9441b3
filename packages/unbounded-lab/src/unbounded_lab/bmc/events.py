"""Events of a BMC: power changes of its hosts, and each stream of them (DSP0266, Server-Sent Events). No clock.

The BMC keeps its last events. A stream sends those that happen after it was opened, at the times that the faults set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from unbounded_lab.bmc.power import HostPower

if TYPE_CHECKING:
    from unbounded_lab.bmc.faults import BmcFaults

EVENT_STREAM: Final = "text/event-stream"
OPENED: Final = b": stream opened\n\n"  # a comment, which a client ignores
HISTORY: Final = 1_000

MESSAGES: Final = {
    HostPower.OFF: ("ResourcePoweredOff", "The resource '{}' has powered off."),
    HostPower.POWERING_ON: ("ResourcePoweringOn", "The resource '{}' is powering on."),
    HostPower.ON: ("ResourcePoweredOn", "The resource '{}' has powered on."),
    HostPower.POWERING_OFF: ("ResourcePoweringOff", "The resource '{}' is powering off."),
}
"""Messages of Redfish's ResourceEvent registry by the power that a host enters."""


@dataclass(frozen=True, slots=True)
class BmcEvent:
    """A change of a host's power."""

    id: int
    at: float
    origin: str  # path of the system
    power: HostPower


class BmcEventLog:
    """Events of one BMC, oldest first, and its open streams by id with the times at which they were opened."""

    def __init__(self) -> None:
        self.last_id = 0
        self.streams: dict[str, float] = {}
        self._events: deque[BmcEvent] = deque(maxlen=HISTORY)
        self._last_stream = 0

    def record(self, at: float, origin: str, power: HostPower) -> None:
        self.last_id += 1
        self._events.append(BmcEvent(self.last_id, at, origin, power))

    def after(self, event_id: int) -> list[BmcEvent]:
        return [event for event in self._events if event.id > event_id]

    def open_stream(self, now: float) -> str:
        self._last_stream += 1
        name = str(self._last_stream)
        self.streams[name] = now
        return name


class BmcEventStream:
    """Order and times of the events of one open stream."""

    def __init__(self, log: BmcEventLog, now: float) -> None:
        self._log = log
        self._opened = now
        self._taken = log.last_id
        self._pending: list[BmcEvent] = []
        self.name = log.open_stream(now)

    def due(self, now: float, faults: BmcFaults) -> list[BmcEvent]:
        """Return the events to send at `now`, in their order on the stream."""
        self._take(faults)
        sent = [event for event in self._pending if self._sends_at(event, faults) <= now]
        self._pending = [event for event in self._pending if event not in sent]
        if faults.event_reversed_s > 0:
            sent.reverse()
        return [copy for event in sent for copy in [event] * faults.event_copies]

    def next_at(self, faults: BmcFaults) -> float | None:
        """Return the time at which the stream sends or ends next; None if that depends on a host."""
        times = [self._sends_at(event, faults) for event in self._pending]
        if faults.event_stream_s is not None:
            times.append(self._opened + faults.event_stream_s)
        return min(times, default=None)

    def is_ended(self, now: float, faults: BmcFaults) -> bool:
        return faults.event_stream_s is not None and now >= self._opened + faults.event_stream_s

    def _take(self, faults: BmcFaults) -> None:
        new = self._log.after(self._taken)
        self._taken = self._log.last_id
        if faults.event_service != "mute":
            self._pending += new

    def _sends_at(self, event: BmcEvent, faults: BmcFaults) -> float:
        """Return when an event is sent; those of a window of `event_reversed_s` wait for the end of the window."""
        first = self._pending[0].at if faults.event_reversed_s > 0 else event.at
        return first + faults.event_reversed_s + faults.event_delay_s


def event_body(event: BmcEvent, faults: BmcFaults) -> dict[str, Any]:
    """Return the Event resource of one event."""
    message, text = MESSAGES[event.power]
    record: dict[str, Any] = {
        "MemberId": "0",
        "EventType": "StatusChange",
        "EventId": str(event.id),
        "EventTimestamp": datetime.fromtimestamp(int(event.at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "MessageId": f"ResourceEvent.1.4.{message}",
        "Message": text.format(event.origin),
        "MessageArgs": [event.origin],
        "MessageSeverity": "OK",
    }
    if faults.event_origin != "absent":
        link = {"@odata.id": event.origin}
        record["OriginOfCondition"] = link if faults.event_origin == "link" else event.origin
    return {
        "@odata.type": "#Event.v1_13_0.Event",
        "Id": str(event.id),
        "Name": "Power of a system",
        "Events": [record],
        "Events@odata.count": 1,
    }


def frame(event: BmcEvent, faults: BmcFaults) -> bytes:
    """Return an event as the stream has it: its id, its data in one line or several, and an empty line."""
    encoded = msgspec.json.encode(event_body(event, faults))
    if faults.event_lines == "many":
        encoded = msgspec.json.format(encoded, indent=2)
    return "".join(f"{line}\n" for line in (f"id: {event.id}", *_data(encoded), "")).encode()


def _data(encoded: bytes) -> Iterator[str]:
    for line in encoded.decode().splitlines():
        yield f"data: {line}"
