"""Trouble on the way to an API: reads that fail, and watches that break, hang, expire or are refused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import TypeVar

from tests.support.memory_api import MemoryApi
from unbounded.api.meta import Kind
from unbounded.kube.api import ApiError, Expired, InvalidObject, ObjectList, ReadFailed, WatchEvent

T = TypeVar("T")

FORBIDDEN = InvalidObject("fault: sendInitialEvents is forbidden", code=422)
SILENCE_S = 100.0  # how long a half-open watch goes unnoticed


class FaultyApi(MemoryApi):
    """A MemoryApi whose reads fail at random, with `rate`, until it is set to 0.

    Args:
        streams: False refuses watches that begin with their objects, as older servers do.
        refusal: the answer to such a watch.
    """

    def __init__(self, rng: random.Random, *, rate: float, streams: bool = True, refusal: ApiError = FORBIDDEN) -> None:
        super().__init__()
        self.rate = rate
        self.watches = 0
        self.lists = 0
        self._rng = rng
        self._streams, self._refusal = streams, refusal

    async def list(self, kind: Kind[T], *, namespace: str = "", labels: str = "", fields: str = "") -> ObjectList[T]:
        self.lists += 1
        if self._hit():
            raise ReadFailed("fault: list")
        listing = await super().list(kind, namespace=namespace, labels=labels, fields=fields)
        await asyncio.sleep(self._rng.choice((0, 0, 0.5)))  # the world moves while the answer is on its way
        return listing

    async def watch(
        self, kind: Kind[T], *, resource_version: str, namespace: str = "", labels: str = "", fields: str = ""
    ) -> AsyncIterator[WatchEvent[T]]:
        self.watches += 1
        if not resource_version and not self._streams:
            raise self._refusal
        if self._hit():
            raise self._rng.choice((ReadFailed("fault: refused"), Expired("fault: too old", code=410)))
        stream = super().watch(
            kind, resource_version=resource_version, namespace=namespace, labels=labels, fields=fields
        )
        async for event in stream:
            if self._hit():
                match self._rng.randrange(4):
                    case 0:
                        return
                    case 1:
                        raise ReadFailed("fault: dropped")
                    case 2:
                        await asyncio.sleep(SILENCE_S)
                        raise ReadFailed("fault: half open")
                    case 3:
                        raise Expired("fault: compacted", code=410)
            await asyncio.sleep(self._rng.choice((0, 0, 0, 0.2)))
            yield event

    def _hit(self) -> bool:
        return self._rng.random() < self.rate
