"""Kinds of releases: one that works, and every way in which one fails."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Final, TypeVar

from tests.operations.faults import Incarnation, WeatheredApi
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.kube.api import Api, ServerUnreachable

T = TypeVar("T")
WINDOW_S: Final = 40


@dataclass(frozen=True)
class Nature:
    """The behaviour of a version.

    Args:
        lives_s: the time until it fails by itself; watched: it hangs, and the watchdog ends it then.
        deaf: it reaches no API server.
        idle: it does nothing.
        blind: between these seconds since its start it reads no Machine, but uses the rest of the API.
    """

    lives_s: float | None = None
    watched: bool = False
    deaf: bool = False
    idle: bool = False
    blind: tuple[float, float] | None = None


GOOD: Final = Nature()
CRASHES: Final = Nature(lives_s=0.3, idle=True)
CRASHES_SLOWLY: Final = Nature(lives_s=25.0)
HANGS: Final = Nature(lives_s=30.0, watched=True, idle=True)
DEAF: Final = Nature(deaf=True)
BLIND: Final = Nature(blind=(0.0, math.inf))
GOES_BLIND: Final = Nature(blind=(WINDOW_S / 2, math.inf))
SEES_LATE: Final = Nature(blind=(0.0, WINDOW_S / 2))
WORKING: Final = (GOOD, SEES_LATE)
FAILING: Final = {
    "crashes": CRASHES,
    "crashes-slowly": CRASHES_SLOWLY,
    "hangs": HANGS,
    "deaf": DEAF,
    "blind": BLIND,
    "goes-blind": GOES_BLIND,
}


class ShortSighted(WeatheredApi):
    """An API that shows no Machine to who reads one by its name, between these seconds from now."""

    def __init__(self, api: Api, life: Incarnation, blind: tuple[float, float]) -> None:
        super().__init__(api, life)
        self._blind = blind
        self._began = asyncio.get_running_loop().time()

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T:
        after_s = asyncio.get_running_loop().time() - self._began
        if kind.kind == MACHINES.kind and self._blind[0] <= after_s < self._blind[1]:
            raise ServerUnreachable(f"get {kind.kind}: no answer")
        return await super().get(kind, name, namespace=namespace)
