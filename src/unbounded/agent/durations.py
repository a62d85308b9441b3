"""Durations of this host's earlier work, and the limits that follow from them.

A fixed limit is wrong on a slow host: its machine boots in two minutes, and is ended after thirty seconds each time. So
each limit has a floor, which is the default of a host of usual speed, and grows with what the host needed before, up to
a ceiling. The record lies on the disk, as an agent that was just started has to know it too.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from unbounded.agent.layout import Layout
from unbounded.kube.durable import write_durably
from unbounded.kube.logs import Log

log = Log("agent")

FACTOR: Final = 3.0
REMEMBERED: Final = 5  # of each kind of work, the latest


class Work(StrEnum):
    """Kinds of work whose durations are recorded; the values are keys of the record."""

    BOOT = "machineBoot"  # from the start of the machine's unit until its service manager answers
    SERVICE = "serviceStart"  # until containerd or kubelet is active
    START = "nodeStart"  # the machine and its services
    BUILD = "slotBuild"  # with the pull of the image and all downloads
    READY = "nodeReady"  # from a started machine until its Node is Ready, images of its Pods included
    DAEMON = "daemonStart"  # the agent's daemon, from its process until it begins its work
    RENEWAL = "leaseRenewal"  # from a started machine until kubelet renews its Node's lease


@dataclass(frozen=True)
class Bounds:
    """Seconds. The floor is the limit of a host without a history."""

    floor: float
    ceiling: float


BOUNDS: Final = {
    Work.BOOT: Bounds(30.0, 300.0),
    Work.SERVICE: Bounds(60.0, 240.0),
    Work.START: Bounds(300.0, 1800.0),
    Work.BUILD: Bounds(1800.0, 7200.0),
    Work.READY: Bounds(300.0, 1800.0),
    Work.DAEMON: Bounds(25.0, 300.0),
    Work.RENEWAL: Bounds(240.0, 1800.0),
}


def limit(history: Iterable[float], floor: float, ceiling: float, factor: float = FACTOR) -> float:
    """Return how long work may take that took this long before."""
    return max(floor, min(factor * max(history, default=0.0), ceiling))


def process_age_s() -> float:
    """Return how long ago this process began, with what ran in it before Python."""
    began = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(began) / os.sysconf("SC_CLK_TCK")


class _Taken(msgspec.Struct, frozen=True):
    """Seconds of one kind of work.

    Args:
        completed: the latest last.
        overran: how long the longest attempt since then took that did not complete within its limit.
    """

    completed: tuple[float, ...] = ()
    overran: float = 0.0

    @property
    def history(self) -> tuple[float, ...]:
        return (*self.completed, self.overran)


class _Record(msgspec.Struct, frozen=True):
    """Keys are kept as they are: a later agent may know more kinds of work."""

    work: dict[str, _Taken] = msgspec.field(default_factory=dict)


class Durations:
    """The record of one host.

    Args:
        layout: None for a record that is not on any disk.
    """

    def __init__(self, layout: Layout | None = None) -> None:
        self._path: Path | None = None if layout is None else layout.durations
        self._record = _Record()

    def limit(self, work: Work, *, floor: float | None = None, alike: Iterable[float] = ()) -> float:
        """Return how long this may take now.

        Args:
            floor: in the place of the work's own, such as a configured one.
            alike: durations of comparable work, which count as long as there is none of this.
        """
        bounds, taken = BOUNDS[work], self._taken(work)
        history = taken.history if taken.completed else (*taken.history, *alike)
        return limit(history, bounds.floor if floor is None else floor, bounds.ceiling)

    def known(self, work: Work) -> bool:
        """Return whether this was completed before."""
        return bool(self._taken(work).completed)

    def completed(self, work: Work, seconds: float) -> None:
        """Record work that came to its end. On a host that was never slow the first of each kind is enough."""
        before = self._taken(work)
        after = _Taken((*before.completed, round(seconds, 2))[-REMEMBERED:])
        usual = BOUNDS[work].floor / FACTOR
        if not before.completed or max(*before.history, *after.history) > usual:
            self._write(work, after)

    def overran(self, work: Work, seconds: float) -> None:
        """Record work that was given up at its limit, so that the next attempt may take longer."""
        taken = self._taken(work)
        if seconds > taken.overran:
            self._write(work, msgspec.structs.replace(taken, overran=round(seconds, 2)))

    @asynccontextmanager
    async def measured(self, work: Work, limit_s: float, *, whole: bool = True) -> AsyncIterator[None]:
        """Record how long the body takes; a body that fails before its limit says nothing about the host.

        Args:
            whole: the work is to be done, and not there already.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            yield
        except BaseException:
            if (spent_s := loop.time() - began) >= limit_s:
                self.overran(work, spent_s)
            raise
        if whole:
            self.completed(work, loop.time() - began)

    def _taken(self, work: Work) -> _Taken:
        return self._read().work.get(work, _Taken())

    def _read(self) -> _Record:
        if self._path is None:
            return self._record
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Record)
        except FileNotFoundError:
            return _Record()
        except (OSError, msgspec.DecodeError) as error:  # limits are at their floors then, and grow anew
            log.warning("the record of durations cannot be read", error=error)
            return _Record()

    def _write(self, work: Work, taken: _Taken) -> None:
        self._record = _Record({**self._read().work, work: taken})
        if self._path is None or not self._path.parent.is_dir():  # before `start`, and after a reset, there is no state
            return
        try:
            write_durably(self._path, msgspec.json.encode(self._record))
        except OSError as error:
            log.warning("a duration was not recorded", error=error, work=str(work))
