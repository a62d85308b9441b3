"""Streams of events from the BMCs of a site's Machines: one for each account at a BMC, opened again when it ends."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

from unbounded.api.failures import Failure
from unbounded.api.machine import Machine
from unbounded.kube.cache import Cache
from unbounded.kube.clock import Backoff
from unbounded.kube.logs import Log
from unbounded.metalman.access import BmcAccess, redfish_of
from unbounded.metalman.inventory import is_ours, machine_share
from unbounded.metalman.power_events import PowerEvents
from unbounded.metalman.redfish.event_stream import concerns
from unbounded.metalman.redfish.pool import BmcPool
from unbounded.metalman.redfish.ports import PasswordRejected, Unsupported

SETTLE_S: Final = 2.0
SPREAD_S: Final = 60.0  # over which the streams of a site are opened
AGAIN: Final = Backoff(base_s=30.0, max_s=600.0)  # iDRAC requires 20 to 30 s between two streams
UNSUPPORTED_S: Final = 6 * 3600.0  # to the next attempt at a BMC without events: its firmware may be another one then

Key = tuple[str, str]

log = Log("metalman")


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
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._open: set[Key] = set()  # streams

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as streams:

            def changed(old: Machine | None, new: Machine | None) -> None:
                if (either := new or old) is not None:
                    self._update(either.name, new, streams)

            with self._machines.subscribed(changed):
                await asyncio.Event().wait()

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
            if key not in self._tasks:
                delay_s = SETTLE_S + SPREAD_S * machine_share(machine.metadata.uid)
                self._tasks[key] = streams.create_task(self._follow(key, delay_s), name=f"events of {key[0]}")

    def _leave(self, name: str, key: Key) -> None:
        del self._keys[name]
        self._events.forget(name)
        self._names[key].discard(name)
        if not self._names[key]:
            del self._names[key]
            self._tasks.pop(key).cancel()

    async def _follow(self, key: Key, delay_s: float) -> None:
        """Keep a stream open, until cancelled."""
        failures = 0
        while True:
            await asyncio.sleep(delay_s)
            failures, delay_s = await self._stream(key, failures)

    async def _stream(self, key: Key, failures: int) -> tuple[int, float]:
        """Follow one stream to its end; return the failures in a row, and the seconds until the next stream."""
        names = self._names[key]
        machine = next((found for name in names if (found := self._machines.get(name)) is not None), None)
        if machine is None:
            return failures, AGAIN.base_s
        is_open = False
        try:
            account = await self._access.of(machine)
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
