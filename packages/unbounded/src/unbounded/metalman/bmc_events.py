"""Events of the BMCs of a site's Machines: their streams, and the hints that the power of a host may have changed.

There is one stream for each account at a BMC, opened again when it ends. A hint makes operations and the reader of idle
machines read the BMC at once. It is no evidence: late, doubled and false hints cost a read. Where a reading finds a
change that no event announced, the BMC is read as one without events, until an event announces a change in time again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Final

from unbounded.api.failures import Failure
from unbounded.api.machine import Machine
from unbounded.kube.cache import Cache
from unbounded.kube.clock import Backoff, loop_time
from unbounded.kube.logs import Log
from unbounded.metalman.bmc_access import BmcAccess, redfish_of
from unbounded.metalman.inventory_controller import is_ours, machine_share
from unbounded.metalman.redfish.bmc_interface import BmcPowerState, PasswordRejected, Unsupported
from unbounded.metalman.redfish.event_stream import concerns
from unbounded.metalman.redfish.pool import BmcPool

FRESH_S: Final = 5.0  # from an event to the reading that finds its change
PAUSE_S: Final = 1.0  # between two hints of one machine
MOST_OWED: Final = 4  # late events: a BMC that never sent any can send some one day
SETTLE_S: Final = 2.0
SPREAD_S: Final = 60.0  # over which the streams of a site are opened
AGAIN: Final = Backoff(base_s=30.0, max_s=600.0)  # iDRAC requires 20 to 30 s between two streams
UNSUPPORTED_S: Final = 6 * 3600.0  # to the next attempt at a BMC without events: its firmware may be another one then

log = Log("metalman")

Key = tuple[str, str]


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
                self._notify(machine)

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
            self._notify(machine)

    def _hint_late(self, machine: str) -> None:
        self._delayed.pop(machine, None)
        self._hinted[machine] = loop_time()
        self._notify(machine)

    def _notify(self, machine: str) -> None:
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


class EventWatcher:
    """Follower of the BMCs' events, which become hints.

    Args:
        site: None for all sites.
    """

    def __init__(
        self, machines: Cache[Machine], access: BmcAccess, pool: BmcPool, events: PowerEvents, *, site: str | None
    ) -> None:
        self._machines = machines
        self._access = access
        self._pool = pool
        self._events = events
        self._site = site
        self._names: dict[Key, set[str]] = {}
        self._keys: dict[str, Key] = {}
        self._waiting: dict[Key, asyncio.TimerHandle] = {}  # a timer takes a tenth of the memory of a task
        self._tasks: dict[Key, asyncio.Task[None]] = {}  # one for each stream
        self._open: set[Key] = set()  # streams

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as streams:

            def changed(old: Machine | None, new: Machine | None) -> None:
                if (either := new or old) is not None:
                    self._update(either.name, new, streams)

            with self._machines.subscribed(changed):
                try:
                    await asyncio.Event().wait()
                finally:
                    for timer in self._waiting.values():
                        timer.cancel()

    def _update(self, name: str, machine: Machine | None, streams: asyncio.TaskGroup) -> None:
        """Follow the BMC that the Machine has now, and no other."""
        key = None
        if machine is not None and is_ours(machine, self._site):
            key = (redfish_of(machine).url, redfish_of(machine).username)
        before = self._keys.get(name)
        if before == key:
            return
        if before is not None:
            self._leave(name, before)
        if key is not None and machine is not None:
            self._keys[name] = key
            self._names.setdefault(key, set()).add(name)
            if key in self._open:
                self._events.opened(name)
            if key not in self._tasks and key not in self._waiting:
                delay_s = SETTLE_S + SPREAD_S * machine_share(machine.metadata.uid)
                self._follow_later(key, streams, 0, delay_s)

    def _leave(self, name: str, key: Key) -> None:
        del self._keys[name]
        self._events.forget(name)
        self._names[key].discard(name)
        if not self._names[key]:
            del self._names[key]
            (self._tasks.pop(key, None) or self._waiting.pop(key)).cancel()

    def _follow_later(self, key: Key, streams: asyncio.TaskGroup, failures: int, delay_s: float) -> None:
        def follow() -> None:
            del self._waiting[key]
            self._tasks[key] = streams.create_task(self._follow(key, streams, failures), name=f"events of {key[0]}")

        self._waiting[key] = asyncio.get_running_loop().call_later(delay_s, follow)

    async def _follow(self, key: Key, streams: asyncio.TaskGroup, failures: int) -> None:
        """Follow one stream to its end, and the next one later."""
        failures, delay_s = await self._stream(key, failures)
        del self._tasks[key]
        self._follow_later(key, streams, failures, delay_s)

    async def _stream(self, key: Key, failures: int) -> tuple[int, float]:
        """Follow one stream to its end; return the failures in a row, and the seconds until the next stream."""
        names = self._names[key]
        machine = next((found for name in names if (found := self._machines.get(name)) is not None), None)
        if machine is None:
            return failures, AGAIN.base_s
        is_open = False
        try:
            account = await self._access.of(machine, idle=True)
            try:
                async with aclosing(self._pool.bmc(account).events()) as events:
                    async for origins in events:
                        is_open = True
                        self._open.add(key)
                        self._hint(names, origins)
            except PasswordRejected:
                await self._access.refused(machine, account)
                raise
        except Unsupported as refusal:
            log.debug("the BMC has no events", bmc=key[0], why=str(refusal))
            return 0, UNSUPPORTED_S
        except Failure as failure:
            log.debug("the events of the BMC cannot be read", bmc=key[0], why=str(failure))
        except Exception:
            log.exception("cannot follow the events of the BMC", bmc=key[0])
        finally:
            self._open.discard(key)
            self._events.closed(tuple(names))
            self._pool.release_soon(key[0])
        failures = 1 if is_open else failures + 1
        return failures, AGAIN.after(failures)

    def _hint(self, names: set[str], origins: tuple[str | None, ...]) -> None:
        for name in tuple(names):
            machine = self._machines.get(name)
            if machine is None:
                continue
            self._events.opened(name)
            device_id, is_alone = redfish_of(machine).device_id, len(names) == 1
            if any(concerns(origin, device_id, is_alone=is_alone) for origin in origins):
                self._events.hint(name)
