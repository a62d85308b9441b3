"""Caches over a connection that drops, delays, truncates and half-closes.

The server is restarted and compacts meanwhile. Afterwards the caches hold what the store holds, every time, and have
reported exactly that to their subscribers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.embedded_server import install_crds
from tests.support.proxy import Proxy, proxy
from unbounded.api.machine import MACHINES, Machine
from unbounded.cli.servers import api_server
from unbounded.kube.api import ApiError
from unbounded.kube.cache import Cache
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import Backoff
from unbounded.kube.config import ClientConfig, from_kubeconfig

NAMES: Final = [f"m{number}" for number in range(8)]
SITES: Final = ("a", "b")
QUICK: Final = Backoff(base_s=0.01, max_s=0.1)
SILENCE_S: Final = 0.4
WAIT_S: Final = 60.0
ROUNDS: Final = 12
ROUNDS_SOAK: Final = 60

State = dict[str, str]  # name -> resourceVersion


@dataclass
class Told:
    """Knowledge of a cache's subscriber from its reports alone."""

    state: State = field(default_factory=dict)

    def __call__(self, old: Machine | None, new: Machine | None) -> None:
        item = new or old
        assert item is not None
        known = self.state.pop(item.name, None)
        assert known == (old.metadata.resource_version if old else None), f"{item.name}: told of another before it"
        if new is not None:
            self.state[new.name] = new.metadata.resource_version


def state_of(items: Any) -> State:
    return {item.name: item.metadata.resource_version for item in items}


class World:
    """A server, a connection to it, and the clients at either end."""

    def __init__(self, data: Path, rng: random.Random) -> None:
        self.rng = rng
        self.server = api_server(data)
        self.troubles: dict[str, Callable[[Proxy], Any]] = {
            "cut": lambda line: line.cut(),
            "refuse": lambda line: setattr(line, "refuse", True),
            "mute": lambda line: setattr(line, "mute", True),
            "stall": lambda line: setattr(line, "stall", True),
            "stall for good": self._stall_for_good,
            "delay": lambda line: setattr(line, "delay_s", self.rng.choice((0.005, 0.05))),
            "truncate": lambda line: setattr(line, "room", self.rng.randrange(1, 6000)),
            "half-close": lambda line: line.half_close(),
            "restart": self._restart,
            "compact": self._compact,
            "compact unseen": self._compact_unseen,
        }

    async def start(self) -> ClientConfig:
        await self.server.start()
        await install_crds(self.server.kubeconfig_path)
        return from_kubeconfig(self.server.kubeconfig_path)

    def _stall_for_good(self, line: Proxy) -> None:
        line.stall = True
        line.stalled_for_good()

    async def _restart(self, line: Proxy) -> None:
        """On the same port, as a service manager would."""
        await self.server.stop()
        self.server = api_server(self.server.data_dir)
        await self.server.start()

    def _compact(self, line: Proxy) -> None:
        store = self.server.core.store
        store.compact(store.revision)

    async def _compact_unseen(self, line: Proxy) -> None:
        """Compact history that no client on this connection has read: they get 410 when they return."""
        line.cut()
        line.refuse = True
        await self.write()
        self._compact(line)

    async def write(self) -> None:
        """A few changes, through a connection of their own."""
        async with HttpApi(from_kubeconfig(self.server.kubeconfig_path)) as api:
            for _ in range(self.rng.randrange(1, 6)):
                name, site = self.rng.choice(NAMES), self.rng.choice(SITES)
                labels = {"metadata": {"labels": {"site": site}}}
                match self.rng.randrange(4):
                    case 0:
                        with contextlib.suppress(ApiError):
                            await api.delete(MACHINES, name)
                    case 1:
                        with contextlib.suppress(ApiError):
                            await api.patch(MACHINES, name, labels)
                    case _:
                        made = {"metadata": {"name": name, **labels["metadata"]}, "spec": {}}
                        with contextlib.suppress(ApiError):
                            await api.create(MACHINES, made)

    async def trouble(self, line: Proxy) -> str:
        """One of them; with its name."""
        name = self.rng.choice(sorted(self.troubles))
        done = self.troubles[name](line)
        if done is not None:
            await done
        return name

    async def held(self) -> list[Machine]:
        async with HttpApi(from_kubeconfig(self.server.kubeconfig_path)) as api:
            return list((await api.list(MACHINES)).items)


@asynccontextmanager
async def following(*caches: Cache[Machine]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(cache.run()) for cache in caches]
    try:
        yield
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def equal(cache: Cache[Machine], wanted: State, what: str) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while state_of(cache.all()) != wanted:  # noqa: ASYNC110 - any cause
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"{what}: the cache has {state_of(cache.all())}, the store {wanted}")


async def rounds(data: Path, seed: int, count: int) -> None:
    rng = random.Random(seed)
    world = World(data, rng)
    config = await world.start()
    try:
        async with proxy(config.server) as line:
            far = ClientConfig(line.url, config.credentials, ca=config.ca)
            async with HttpApi(far, silence_s=SILENCE_S, call_s=2.0) as api:
                whole: Cache[Machine] = Cache(api, MACHINES, backoff=QUICK)
                some: Cache[Machine] = Cache(api, MACHINES, labels="site=a", backoff=QUICK)
                told = {cache: Told() for cache in (whole, some)}
                for cache, knows in told.items():
                    cache.subscribe(knows)
                async with following(whole, some):
                    for number in range(count):
                        happened = []
                        for _ in range(rng.randrange(1, 4)):
                            await world.write()
                            happened.append(await world.trouble(line))
                            await asyncio.sleep(rng.choice((0.0, 0.01, 0.1)))
                        await world.write()
                        line.calm()
                        held = await world.held()
                        what = f"seed {seed}, round {number}: {', '.join(happened)}"
                        await equal(whole, state_of(held), what)
                        inside = [item for item in held if (item.metadata.labels or {}).get("site") == "a"]
                        await equal(some, state_of(inside), f"{what}; with a selector")
                        for cache, knows in told.items():
                            assert knows.state == state_of(cache.all()), what
    finally:
        await world.server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
async def test_caches_equal_the_store_after_any_trouble_on_the_line(tmp_path: Path, seed: int) -> None:
    await rounds(tmp_path, seed, ROUNDS)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 110))
async def test_caches_equal_the_store_after_much_trouble(tmp_path: Path, seed: int) -> None:
    await rounds(tmp_path, seed, ROUNDS_SOAK)
