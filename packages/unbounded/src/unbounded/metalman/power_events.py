"""Hints that the power of a host may have changed, from the events of its BMC, and whether they can be relied on.

A hint makes operations and the reader of idle machines read the BMC at once. It is no evidence: late, doubled and false
hints cost a read. Where a reading finds a change that no event announced, the BMC is read as one without events, until
an event announces a change in time again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from unbounded.kube.clock import loop_time
from unbounded.kube.logs import Log
from unbounded.metalman.redfish.ports import BmcPowerState

FRESH_S: Final = 5.0  # from an event to the reading that finds its change
PAUSE_S: Final = 1.0  # between two hints of one machine
MOST_OWED: Final = 4  # late events: a BMC that never sent any can send some one day

log = Log("metalman")


class PowerEvents:
    """Hints by names of Machines, for all BMCs of a process."""

    def __init__(self) -> None:
        self._streaming: set[str] = set()
        self._unreliable: set[str] = set()  # a change was found without an event
        self._owed: dict[str, int] = {}  # events that may still come, of changes that were found without them
        self._late: dict[str, float] = {}  # the last hint that came late
        self._unread: set[str] = set()  # the last call to the BMC failed
        self._power: dict[str, BmcPowerState] = {}
        self._hinted: dict[str, float] = {}
        self._delayed: dict[str, asyncio.TimerHandle] = {}
        self._listeners: list[Callable[[str], None]] = []

    def subscribe(self, listener: Callable[[str], None]) -> None:
        """Call the listener with the name of each Machine that has a hint."""
        self._listeners.append(listener)

    def opened(self, machine: str) -> None:
        self._streaming.add(machine)

    def closed(self, machines: Iterable[str]) -> None:
        """Record the end of a stream; what happened since its last event is read as without events."""
        for machine in machines:
            if machine in self._streaming:
                self._streaming.discard(machine)
                self._owed.pop(machine, None)
                self._tell(machine)

    def forget(self, machine: str) -> None:
        """Forget a Machine that is gone."""
        for names in (self._streaming, self._unreliable, self._unread):
            names.discard(machine)
        self._power.pop(machine, None)
        self._owed.pop(machine, None)
        self._late.pop(machine, None)
        self._hinted.pop(machine, None)
        if (timer := self._delayed.pop(machine, None)) is not None:
            timer.cancel()

    def hint(self, machine: str) -> None:
        """Announce that the power may have changed; hints in quick succession are one."""
        if machine in self._delayed:
            return
        left_s = self._hinted.get(machine, 0.0) + PAUSE_S - loop_time()
        if machine in self._hinted and left_s > 0:
            self._delayed[machine] = asyncio.get_running_loop().call_later(left_s, self._hint_late, machine)
        else:
            self._hinted[machine] = loop_time()
            self._tell(machine)

    def _hint_late(self, machine: str) -> None:
        self._delayed.pop(machine, None)
        self._hinted[machine] = loop_time()
        self._tell(machine)

    def _tell(self, machine: str) -> None:
        for listener in self._listeners:
            listener(machine)

    def record(self, machine: str, power: BmcPowerState) -> None:
        """Record a reading: a change with a fresh hint shows that events arrive, one without that they do not.

        After a change without a hint, the next event is late: it belongs to that change, whatever the reading finds.
        """
        self._unread.discard(machine)
        if power is BmcPowerState.UNSETTLED:
            return
        before, self._power[machine] = self._power.get(machine), power
        if before is None or machine not in self._streaming:
            return
        hinted, owed = self._hinted.get(machine, -FRESH_S), self._owed.get(machine, 0)
        is_hinted = loop_time() - hinted <= FRESH_S and hinted != self._late.get(machine)
        if is_hinted and owed:
            self._late[machine], self._owed[machine] = hinted, owed - 1
            is_hinted = False
        if before is not power and is_hinted:
            self._unreliable.discard(machine)
        elif before is not power:
            self._owed[machine] = min(owed + 1, MOST_OWED)
            if machine not in self._unreliable:
                self._unreliable.add(machine)
                log.info("no event announced a change of the power; the BMC is read as without events", machine=machine)

    def failed(self, machine: str) -> None:
        """Record that a call to the BMC failed, after which it is read soon."""
        self._unread.add(machine)

    def has_stream(self, machine: str) -> bool:
        return machine in self._streaming

    def arrive(self, machine: str) -> bool:
        """Return whether an event can be expected for the next change of the power."""
        return machine in self._streaming and machine not in self._unreliable and machine not in self._unread
