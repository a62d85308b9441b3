"""Durations of this host's earlier work, and the limits that follow from them.

A fixed limit is wrong on a slow host: its machine boots in two minutes, and is killed after thirty seconds each time.
Each limit therefore has a floor, the default for a host of usual speed. It grows with the durations recorded on the
host, up to a ceiling. The record is on disk, because an agent that has just started needs it too.
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

from unbounded.agent.paths import HostPaths
from unbounded.kube.durable_files import write_durably
from unbounded.kube.logs import Log

log = Log("agent")

FACTOR: Final = 3.0
REMEMBERED: Final = 5  # latest durations of each kind of work


class TimedWork(StrEnum):
    """Kinds of work with recorded durations; the values are keys of the record."""

    BOOT = "machineBoot"  # from the start of the machine's unit until its service manager answers
    SERVICE = "serviceStart"  # until containerd or kubelet is active
    START = "nodeStart"  # the machine and its services
    BUILD = "slotBuild"  # with the pull of the image and all downloads
    READY = "nodeReady"  # from a started machine until its Node is Ready, with the pull of its Pods' images
    DAEMON = "daemonStart"  # the agent's daemon, from its process's start until it serves
    RENEWAL = "leaseRenewal"  # from a started machine until kubelet renews its Node's lease


@dataclass(frozen=True)
class LimitBounds:
    """Seconds. The floor is the limit on a host without a history."""

    floor: float
    ceiling: float


BOUNDS: Final = {
    TimedWork.BOOT: LimitBounds(30.0, 300.0),
    TimedWork.SERVICE: LimitBounds(60.0, 240.0),
    TimedWork.START: LimitBounds(300.0, 1800.0),
    TimedWork.BUILD: LimitBounds(1800.0, 7200.0),
    TimedWork.READY: LimitBounds(300.0, 1800.0),
    TimedWork.DAEMON: LimitBounds(25.0, 300.0),
    TimedWork.RENEWAL: LimitBounds(240.0, 1800.0),
}


def limit(history: Iterable[float], floor: float, ceiling: float, factor: float = FACTOR) -> float:
    """Return the limit in seconds for work with these earlier durations."""
    return max(floor, min(factor * max(history, default=0.0), ceiling))


def process_age_s() -> float:
    """Return the seconds since this process started, including the time before Python ran."""
    began = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(began) / os.sysconf("SC_CLK_TCK")


class _WorkDurations(msgspec.Struct, frozen=True):
    """Seconds of one kind of work.

    Args:
        completed: the latest last.
        overran: duration of the longest attempt since then that exceeded its limit.
    """

    completed: tuple[float, ...] = ()
    overran: float = 0.0

    @property
    def history(self) -> tuple[float, ...]:
        return (*self.completed, self.overran)


class _Record(msgspec.Struct, frozen=True):
    """Record of all work. Unknown keys are preserved, as a later agent may have more kinds of work."""

    work: dict[str, _WorkDurations] = msgspec.field(default_factory=dict)


class Durations:
    """Recorded durations of one host.

    Args:
        paths: None for a record in memory alone.
    """

    def __init__(self, paths: HostPaths | None = None) -> None:
        self._path: Path | None = None if paths is None else paths.durations
        self._record = _Record()

    def limit(self, work: TimedWork, *, floor: float | None = None, alike: Iterable[float] = ()) -> float:
        """Return the limit for this work now, in seconds.

        Args:
            floor: replaces the floor of the work, for example by a configured one.
            alike: durations of comparable work, which count until this work has completed once.
        """
        bounds, taken = BOUNDS[work], self._taken(work)
        history = taken.history if taken.completed else (*taken.history, *alike)
        return limit(history, bounds.floor if floor is None else floor, bounds.ceiling)

    def known(self, work: TimedWork) -> bool:
        """Return whether this work has completed before."""
        return bool(self._taken(work).completed)

    def completed(self, work: TimedWork, seconds: float) -> None:
        """Record completed work. On a host that was never slow, only the first of each kind is written."""
        before = self._taken(work)
        after = _WorkDurations((*before.completed, round(seconds, 2))[-REMEMBERED:])
        usual = BOUNDS[work].floor / FACTOR
        if not before.completed or max(*before.history, *after.history) > usual:
            self._write(work, after)

    def overran(self, work: TimedWork, seconds: float) -> None:
        """Record work that exceeded its limit, so that the next attempt gets a longer one."""
        taken = self._taken(work)
        if seconds > taken.overran:
            self._write(work, msgspec.structs.replace(taken, overran=round(seconds, 2)))

    @asynccontextmanager
    async def measured(self, work: TimedWork, limit_s: float, *, whole: bool = True) -> AsyncIterator[None]:
        """Record the duration of the body; a body that fails within its limit is not recorded.

        Args:
            whole: False where part of the work was done before, so that a completed body is not recorded.
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

    def _taken(self, work: TimedWork) -> _WorkDurations:
        return self._read().work.get(work, _WorkDurations())

    def _read(self) -> _Record:
        if self._path is None:
            return self._record
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Record)
        except FileNotFoundError:
            return _Record()
        except (OSError, msgspec.DecodeError) as error:  # limits are at their floors then, and grow from there
            log.warning("cannot read the record of durations", error=error)
            return _Record()

    def _write(self, work: TimedWork, taken: _WorkDurations) -> None:
        self._record = _Record({**self._read().work, work: taken})
        # before `start` and after a reset, the host has no state folder
        if self._path is None or not self._path.parent.is_dir():
            return
        try:
            write_durably(self._path, msgspec.json.encode(self._record))
        except OSError as error:
            log.warning("cannot record a duration", error=error, work=str(work))
