"""Duration of a boot that no operation ends."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.metalman.support.netboot_objects import ADDRESS, machine_body
from tests.metalman.support.netboot_site import World, netboot_site
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.machine import MACHINES
from unbounded.kube.clock import rfc3339
from unbounded.metalman.http.boot_service import ProgressReport
from unbounded.metalman.netboot.index_updater import FINISH_S, STALE_S
from unbounded.metalman.netboot.model import BootWindow

FINISHING: Final[dict[str, Any]] = {
    "operations": {"repaveCounter": 1},
    "netboot": {"boot": "repave-1", "milestone": "ImageWritten"},
}


def test_silent_installed_system_loses_its_url_prefix_permanently() -> None:
    async def main(folder: Path) -> None:
        async with netboot_site(folder, api=MemoryApi(now=virtual_now)) as world:
            body = machine_body(spec={"operations": {"repaveCounter": 1}})
            await world.machine(body | {"status": FINISHING})
            assert [wanted.window for wanted in world.site.requests] == [BootWindow.FINISHING]
            await asyncio.sleep(FINISH_S - 1)
            assert world.site.requests
            await asyncio.sleep(2)
            assert not world.site.requests
            await world.api.patch(MACHINES, "m1", {"status": {"message": "something else"}}, subresource="status")
            await world.caught_up()
            assert not world.site.requests
            await world.api.patch(MACHINES, "m1", {"spec": {"operations": {"repaveCounter": 2}}})
            await world.caught_up()
            assert [(wanted.boot, wanted.window) for wanted in world.site.requests] == [
                ("repave-2", BootWindow.INSTALLING)
            ]

    with TemporaryDirectory() as folder:
        run_virtual(main(Path(folder)))


def test_a_restart_opens_nothing_anew() -> None:
    async def main(folder: Path) -> None:
        async with netboot_site(folder, api=MemoryApi(now=virtual_now), now=virtual_now) as world:
            body = machine_body(spec={"operations": {"repaveCounter": 1}})
            for age_s, windows in ((FINISH_S + 1, []), (60.0, [BootWindow.FINISHING])):
                at = rfc3339(virtual_now() - timedelta(seconds=age_s))
                status = {**FINISHING, "netboot": {**FINISHING["netboot"], "at": at}}
                await world.machine(body | {"metadata": {"name": f"m{age_s:g}"}, "status": status})
                assert [wanted.window for wanted in world.site.requests] == windows

    with TemporaryDirectory() as folder:
        run_virtual(main(Path(folder)))


def test_repave_of_an_unstarted_host_becomes_stale() -> None:
    async def main(folder: Path) -> None:
        async with netboot_site(folder / "a", api=MemoryApi(now=virtual_now)) as world:
            await world.machine(machine_body(spec={"operations": {"repaveCounter": 1}}))
            assert await is_pending(world)
            await asyncio.sleep(STALE_S - 60)
            await world.site.progress(ADDRESS, world.prefix(), ProgressReport(stage="Writing", percent=1))
            await asyncio.sleep(STALE_S - 60)  # it has progressed since
            assert await is_pending(world)
            await asyncio.sleep(120)
            assert not await is_pending(world)
            assert [wanted.window for wanted in world.site.requests] == [BootWindow.INSTALLING]
            async with netboot_site(folder / "b", api=world.api) as restarted:
                await restarted.site.flush("m1")
                assert not await is_pending(world)
            await world.api.patch(MACHINES, "m1", {"spec": {"operations": {"repaveCounter": 2}}})
            await world.caught_up()
            assert await is_pending(world)
            await world.api.patch(MACHINES, "m1", {"spec": {"operations": {"repaveCounter": 0}}})  # taken back
            await asyncio.sleep(STALE_S + 60)
            assert not await is_pending(world)

    with TemporaryDirectory() as folder:
        run_virtual(main(Path(folder)))


async def is_pending(world: World) -> bool:
    """Return whether the Machine reports a pending repave."""
    said = [condition for condition in (await world.status()).status.conditions if condition.type == "Repaved"]
    return [(each.status, each.reason) for each in said] == [("False", "Pending")]


def test_what_runs_idle_writes_nothing() -> None:
    async def main(folder: Path) -> None:
        async with netboot_site(folder, api=MemoryApi(now=virtual_now)) as world:
            await world.machine(machine_body("m1", spec={"operations": {"repaveCounter": 1}}))
            await world.machine(machine_body("m2", leases=[]))
            await asyncio.sleep(STALE_S + 60)
            writes = world.api.writes
            await asyncio.sleep(3600)
            assert world.api.writes == writes

    with TemporaryDirectory() as folder:
        run_virtual(main(Path(folder)))
