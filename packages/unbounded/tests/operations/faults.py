"""Effects of a crash, and faults on the way to an API: one place through which every port goes."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from unbounded.api.meta import Kind
from unbounded.kube.api import (
    Api,
    Conflict,
    Expired,
    ObjectList,
    ResponseLost,
    ServerBusy,
    ServerError,
    ServerUnreachable,
    WatchEvent,
)
from unbounded.kube.process_epoch import ProcessEpoch

T = TypeVar("T")


@dataclass(frozen=True)
class Weather:
    """The faults on the way to the API: chances for each call, and delays in seconds."""

    unreachable: float = 0.0
    busy: float = 0.0
    conflict: float = 0.0  # another client wrote in between
    lost: float = 0.0  # done, and the answer never came
    broken_watch: float = 0.0  # for each event
    freeze: float = 0.0  # the process is frozen for a minute, between an answer and its use
    latency_s: float = 0.01
    staleness_s: float = 0.05  # of caches


FAIR = Weather()
STORM = Weather(
    unreachable=0.04,
    busy=0.02,
    conflict=0.04,
    lost=0.05,
    freeze=0.03,
    broken_watch=0.02,
    latency_s=0.5,
    staleness_s=3.0,
)


class Incarnation:
    """One life of one process. Once it has crashed, no port of it has an effect, its clean-up code included.

    Args:
        crash_at: the number of the await at which it is interrupted; an odd one after the effect, an even one before.
        epoch: by which it records its calls; of others it knows only what the epoch tells.
    """

    def __init__(
        self,
        name: str,
        chance: random.Random,
        weather: Weather,
        *,
        crash_at: int | None = None,
        epoch: ProcessEpoch | None = None,
    ) -> None:
        self.name = name
        self.chance = chance
        self.weather = weather
        self.awaits = 0
        self.crash_at = crash_at
        self.dead = asyncio.Event()
        self.born_at = 0.0
        self.died_at = math.inf
        self.freezes: list[tuple[float, float]] = []  # when it stood still
        self.crashed_in = ""
        self.epoch = epoch or ProcessEpoch(unique=name)

    async def through(self, what: str, effect: Callable[[], Awaitable[T]]) -> T:
        """Let a call through: before and after its effect are two points at which a crash can come."""
        await self.point(what)
        await asyncio.sleep(self.chance.uniform(0, self.weather.latency_s))
        self.hold_if_dead()
        answer = await effect()
        await self.point(what)
        if self.dice(self.weather.freeze):
            await self._freeze()
        return answer

    async def _freeze(self) -> None:
        now, seconds = asyncio.get_running_loop().time(), self.chance.uniform(5, 90)
        self.freezes.append((now, now + seconds))
        await asyncio.sleep(seconds)

    async def send(self, what: str, arrive: Callable[[], T], late: Callable[[], None], *, late_s: float) -> T:
        """Have a request arrive. A crash on its way does not take it back: it then arrives late, by so much."""
        try:
            await self.point(f"{what} on its way")
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(late_s, late)
            raise
        return arrive()

    async def point(self, what: str) -> None:
        """Be cut off here, if this is the place."""
        if self.dead.is_set():
            await self.hang()
        self.awaits += 1
        if self.awaits - 1 == self.crash_at:
            self.crashed_in = what
            self.crash()
            await self.hang()

    def crash(self) -> None:
        self.died_at = min(self.died_at, asyncio.get_running_loop().time())
        self.dead.set()

    def hold_if_dead(self) -> None:
        if self.dead.is_set():
            raise asyncio.CancelledError(f"{self.name} is dead")

    async def hang(self) -> None:
        """For ever: what a dead process waits for never comes."""
        await asyncio.get_running_loop().create_future()

    def dice(self, chance: float) -> bool:
        return chance > 0 and self.chance.random() < chance


class Between:
    """Comes in between a process and the server, at each read and write of one object. This one lets all be."""

    async def before(self, life: Incarnation, call: str, name: str) -> None:
        """Let others act in the moment before a call takes effect; the caller has not observed them."""

    async def deliver(self, life: Incarnation, kind: str) -> None:
        """Hold an event of a watch of one kind back; the process has an older state meanwhile."""

    def answered(self, life: Incarnation, call: str, answer: object) -> None:
        """Record an answer that a process received."""


class WeatheredApi:
    """An Api as one incarnation meets it: slow, stale, lossy, and gone when it has crashed."""

    def __init__(self, api: Api, life: Incarnation, between: Between | None = None) -> None:
        self._api = api
        self._life = life
        self._between = between or Between()

    async def version(self) -> str:
        return await self._call("version", self._api.version)

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T:
        get = self._interrupted(f"get {kind.kind}", name, lambda: self._api.get(kind, name, namespace=namespace))
        return await self._call(f"get {kind.kind}", get)

    async def list(self, kind: Kind[T], *, namespace: str = "", labels: str = "", fields: str = "") -> ObjectList[T]:
        return await self._call(
            f"list {kind.kind}", lambda: self._api.list(kind, namespace=namespace, labels=labels, fields=fields)
        )

    async def watch(
        self, kind: Kind[T], *, resource_version: str, namespace: str = "", labels: str = "", fields: str = ""
    ) -> AsyncIterator[WatchEvent[T]]:
        stream = self._api.watch(
            kind, resource_version=resource_version, namespace=namespace, labels=labels, fields=fields
        )
        async for event in stream:
            await asyncio.sleep(self._life.chance.uniform(0, self._life.weather.staleness_s))
            await self._between.deliver(self._life, kind.kind)
            if self._life.dead.is_set():
                await self._life.hang()
            if self._life.dice(self._life.weather.broken_watch):
                raise Expired("history is gone") if self._life.dice(0.3) else ServerUnreachable("the watch broke")
            yield event

    async def create(self, kind: Kind[T], body: Mapping[str, Any], *, namespace: str = "") -> T:
        return await self._write(
            f"create {kind.kind}", lambda: self._api.create(kind, body, namespace=namespace), conflicts=False
        )

    async def patch(
        self, kind: Kind[T], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        what = f"patch {kind.kind}"
        write = self._interrupted(
            what, name, lambda: self._api.patch(kind, name, patch, namespace=namespace, subresource=subresource)
        )
        return await self._write(what, write, conflicts="resourceVersion" in patch.get("metadata", {}))

    async def delete(
        self, kind: Kind[T], name: str, *, namespace: str = "", uid: str = "", resource_version: str = ""
    ) -> None:
        await self._write(
            f"delete {kind.kind}",
            lambda: self._api.delete(kind, name, namespace=namespace, uid=uid, resource_version=resource_version),
            conflicts=False,
        )

    def _interrupted(self, what: str, name: str, effect: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
        async def with_others() -> T:
            await self._between.before(self._life, what, name)
            answer = await effect()
            self._between.answered(self._life, what, answer)
            return answer

        return with_others

    async def _call(self, what: str, effect: Callable[[], Awaitable[T]]) -> T:
        weather = self._life.weather
        if self._life.dice(weather.unreachable):
            raise ServerUnreachable(f"{what}: connection refused")
        if self._life.dice(weather.busy):
            raise ServerBusy(f"{what}: too many requests")
        return await self._life.through(what, effect)

    async def _write(self, what: str, effect: Callable[[], Awaitable[T]], *, conflicts: bool) -> T:
        if conflicts and self._life.dice(self._life.weather.conflict):
            raise Conflict(f"{what}: the object has been modified")
        answer = await self._call(what, effect)
        if self._life.dice(self._life.weather.lost):
            raise ResponseLost(f"{what}: connection reset") if self._life.dice(0.5) else ServerError(f"{what}: 500")
        return answer
