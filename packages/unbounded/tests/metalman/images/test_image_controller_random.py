"""Any order of pushes, outages, restarts, boots and edits: no boot mixes images, in the end the newest is served."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from aiohttp import web

from tests.fetch.registries import Registry
from tests.metalman.images.test_image_controller import Lab, netboot
from tests.support.seeds import first_seed
from tests.support.waiting import eventually
from unbounded.api.machine import MACHINES
from unbounded.metalman.images.image_controller import ImageController
from unbounded.metalman.netboot.model import BootImages

SCHEDULES: Final = 150 if os.environ.get("UNBOUNDED_SOAK") else 12
STEPS: Final = 25
NOW: Final = "2026-01-01T00:00:00Z"
NAMES: Final = ("a", "b")
STEP_NAMES: Final = ("push", "push", "down", "up", "restart", "begin", "begin", "end", "retag", "remove", "add", "rest")


async def down(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(status=503)


@dataclass
class World:
    """The steps, and their expected results."""

    lab: Lab
    registry: Registry
    rng: random.Random
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    marks: dict[str, bytes] = field(default_factory=dict)  # of what a tag means now
    tags: dict[str, str] = field(default_factory=dict)  # of the Machines that there are
    booting: dict[str, BootImages | None] = field(default_factory=dict)  # with what, as seen first
    boots: int = 0
    current: dict[str, str] = field(default_factory=dict)  # the boot of each Machine
    keeper: ImageController | None = None

    async def step(self, what: str) -> None:
        name = self.rng.choice(NAMES)
        match what:
            case "push":
                self.push(self.rng.choice(("v1", "v2")))
            case "down" | "up":
                self.registry.dial = down if what == "down" else None
            case "restart":
                await self.stop()
                await self.start()
            case "begin" if name in self.tags and name not in self.booting:
                self.boots += 1
                self.booting[name] = None
                await self.status(name, "KernelFetched")
            case "end" if name in self.booting:
                del self.booting[name]
                await self.status(name, "ImageWritten")
            case "retag" if name in self.tags and name not in self.booting:
                self.tags[name] = self.rng.choice(("v1", "v2"))
                image = f"{self.lab.host}/lab/img:{self.tags[name]}"
                await self.lab.api.patch(MACHINES, name, {"spec": {"pxe": {"image": image}}})
            case "remove" if name in self.tags:
                del self.tags[name]
                self.booting.pop(name, None)
                await self.lab.api.delete(MACHINES, name)
            case "add" if name not in self.tags:
                self.tags[name] = self.rng.choice(("v1", "v2"))
                await self.lab.machine(name, f"lab/img:{self.tags[name]}")
            case _:
                pass

    def push(self, tag: str) -> None:
        self.marks[tag] = f"{tag}-{self.rng.randrange(10**9)}".encode()
        self.registry.add(netboot(self.marks[tag]), tag)

    async def status(self, name: str, milestone: str, digest: str | None = None) -> None:
        if digest is None:
            self.current[name] = f"boot-{name}-{self.boots}"
        uid = self.current[name]
        slot = {"uid": uid, "name": "r", "kind": "HostReplace", "executor": "metalman/", "since": NOW}
        status = {"activeOperation": slot, "netboot": {"boot": uid, "milestone": milestone, "imageDigest": digest}}
        await self.lab.api.patch(MACHINES, name, {"status": status}, subresource="status")

    async def start(self) -> None:
        self.keeper = await self.stack.enter_async_context(self.lab.replica())

    async def stop(self) -> None:
        await self.stack.aclose()
        self.stack = AsyncExitStack()

    async def check(self) -> None:
        """Check the invariants."""
        assert self.keeper is not None
        for name in self.tags:
            served = await self.lab.of(self.keeper, name)
            if not isinstance(served, BootImages):
                continue
            mark = whole(served)
            assert mark.split(b"-")[0] in (b"v1", b"v2")
            if name in self.booting and self.booting[name] is None:
                self.booting[name] = served
                await self.status(name, "KernelFetched", served.disk.digest)  # as the servers report
            if name in self.booting:
                assert served == self.booting[name]

    async def settled(self) -> None:
        """With the registry up and no boot under way: each Machine has what its tag means, and nothing else is kept."""
        self.registry.dial = None
        for name in list(self.booting):
            del self.booting[name]
            await self.status(name, "ImageWritten")
        assert self.keeper is not None
        for name, tag in self.tags.items():
            await self.lab.served(self.keeper, name, mark=self.marks[tag])
            await self.lab.says("Pulled", name=name)
        wanted = {str(netboot(self.marks[tag]).digest).replace(":", "-") for tag in self.tags.values()}

        async def clean() -> bool:
            return {path.name for path in (self.lab.folder / "store" / "images").iterdir()} == wanted

        await eventually(clean)


def whole(served: BootImages) -> bytes:
    """The mark of an image whose files are all there and of one push."""
    mark = (served.netboot.root / "shimx64.efi").read_bytes()
    assert (served.disk.root / "disk.img.gz").read_bytes() == b"disk " + mark
    assert (served.netboot.root / "boot.ipxe.tmpl").exists()
    return mark


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_any_order_of_what_can_happen(tmp_path: Path) -> None:
    for seed in range(first_seed(), first_seed() + SCHEDULES):
        rng = random.Random(seed)
        async with Registry().running() as registry:
            folder = tmp_path / str(seed)
            folder.mkdir()
            world = World(Lab(folder, registry.host), registry, rng)
            world.push("v1")
            world.push("v2")
            await world.start()
            steps = rng.choices(STEP_NAMES, k=STEPS)
            try:
                for what in steps:
                    await world.step(what)
                    for _ in range(rng.randrange(4)):
                        await world.check()
                        await rest(rng)
                await world.settled()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, steps {steps}: {error}") from error
            finally:
                await world.stop()


async def rest(rng: random.Random) -> None:
    """Some turns, or long enough for what is unused to go."""
    await asyncio.sleep(rng.choice((0, 0, 0.01, 0.08)))
