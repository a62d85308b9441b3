"""Writer of observations into the status of Machines: one write at a time for each Machine, with all pending
observations.

Any replica may write: each write carries the resourceVersion that it is based on, and observations older than the
status change nothing. Percentages are written every two seconds at most, everything else at once. A Machine has one
pending record, however many reports arrive while the API does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from unbounded.api.machine import MACHINES, Machine
from unbounded.kube.cache import Cache
from unbounded.kube.clock import Backoff, WallClock, rfc3339, utc_now
from unbounded.kube.controller import Controller
from unbounded.kube.errors import Conflict, InvalidObject, NotFound
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.port import Api
from unbounded.kube.status_writer import StatusWriter
from unbounded.kube.workqueue import WorkQueue
from unbounded.metalman.netboot.milestones import merge_observations, status_change
from unbounded.metalman.netboot.model import BootObservation

PERCENT_EVERY_S: Final = 2.0
AFTER_TROUBLE: Final = Backoff(base_s=0.2, max_s=10.0)
CONFLICTS: Final = 5  # in a row, before other Machines get their turn

log = Log("metalman.netboot")
IsRequested = Callable[[Machine, str], bool]


class BootStatusWriter:
    """Writes observations of boots.

    Args:
        is_requested: returns whether a boot is still the requested one of a Machine as it was read. Observations of
            other boots are dropped.
    """

    def __init__(
        self,
        api: Api,
        machines: Cache[Machine],
        is_requested: IsRequested,
        *,
        now: WallClock = utc_now,
        metrics: ControllerMetrics | None = None,
    ) -> None:
        self._api = api
        self._machines = machines
        self._status = StatusWriter(
            api,
            MACHINES,
            fields=(
                "netboot",
                "conditions",
                "operations",
                "targetDisk",
            ),
            cache=machines,
        )
        self._is_requested = is_requested
        self._now = now
        self._waiting: dict[str, BootObservation] = {}
        self._flushed: dict[str, list[asyncio.Future[None]]] = {}
        self._wrote_at: dict[str, float] = {}
        self._controller: Controller[str] = Controller(
            "netboot status", self._write, workers=4, queue=WorkQueue(failed=AFTER_TROUBLE), metrics=metrics
        )

    async def run(self) -> None:
        """Write until cancelled."""
        await self._controller.run()

    def note(self, machine: str, observation: BootObservation) -> None:
        """Queue an observation."""
        before = self._waiting.get(machine)
        self._waiting[machine] = observation if before is None else merge_observations(before, observation)
        self._controller.enqueue(machine)

    async def flush(self, machine: str) -> None:
        """Wait until the observations that are queued now are written, or found to be no news."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flushed.setdefault(machine, []).append(done)
        self._controller.enqueue(machine)
        await done

    async def _write(self, name: str) -> float | None:
        seen = self._waiting.get(name)
        waiters = self._flushed.pop(name, [])
        if seen is not None:
            wait_s = 0.0 if waiters or seen.urgent else self._next_percent_in_s(name)
            if wait_s > 0:
                return wait_s
            del self._waiting[name]
        try:
            if seen is not None and await self._written(name, seen):
                self._note_written(name)
        except BaseException:
            if seen is not None:
                newer = self._waiting.get(name)
                self._waiting[name] = seen if newer is None else merge_observations(seen, newer)
            self._flushed[name] = waiters + self._flushed.get(name, [])
            raise
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        return None

    def _note_written(self, name: str) -> None:
        """Keep only the times that still delay a percentage, as most Machines boot once in months."""
        now = asyncio.get_running_loop().time()
        self._wrote_at = {each: at for each, at in self._wrote_at.items() if at + PERCENT_EVERY_S > now}
        self._wrote_at[name] = now

    def _next_percent_in_s(self, name: str) -> float:
        last = self._wrote_at.get(name)
        return 0.0 if last is None else last + PERCENT_EVERY_S - asyncio.get_running_loop().time()

    async def _written(self, name: str, observation: BootObservation) -> bool:
        """Write an observation; False if it was dropped, as it is no news or the Machine or its boot is gone."""
        machine = self._machines.get(name)
        for turn in range(CONFLICTS):
            try:
                if machine is None:
                    machine = await self._api.get(MACHINES, name)
                if observation.boot and not self._is_requested(machine, observation.boot):
                    log.info(
                        "ignored an observation of a boot that is not requested any more",
                        machine=name,
                        milestone=observation.milestone or "",
                    )
                    return False
                if await self._status.write(machine, status_change(machine, observation, rfc3339(self._now()))) is None:
                    return False
            except Conflict:
                if turn == CONFLICTS - 1:
                    raise
                machine = None  # read again, as the cache may be behind
            except NotFound:
                return False
            except InvalidObject as error:
                log.warning("cannot write boot progress", error=error, machine=name)
                return False
            else:
                return True
        return False
