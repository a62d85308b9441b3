"""Writing down what was seen: through conflicts and trouble, seldom for percentages, never for a boot that is over."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.metalman.support.netboot_objects import machine_body
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.machine import MACHINES, Machine, NetbootMilestone, NetbootStatus
from unbounded.api.meta import Kind
from unbounded.kube.cache import Cache
from unbounded.kube.errors import ResponseLost, ServerUnreachable
from unbounded.metalman.netboot.model import BootObservation
from unbounded.metalman.netboot.status_writer import BootStatusWriter

T = TypeVar("T")
M = NetbootMilestone


class SlowApi(MemoryApi):
    """An API whose patches fail as configured: 0 before the write, 1 after it."""

    def __init__(self) -> None:
        super().__init__(now=virtual_now)
        self.faults: list[int] = []
        self.patched_at: list[float] = []

    async def patch(
        self, kind: Kind[T], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        fault = self.faults.pop(0) if self.faults else None
        if fault == 0:
            raise ServerUnreachable("fault: refused")
        result = await super().patch(kind, name, patch, namespace=namespace, subresource=subresource)
        if subresource:
            self.patched_at.append(asyncio.get_running_loop().time())
        if fault == 1:
            raise ResponseLost("fault: the answer was lost")
        return result


@dataclass
class Desk:
    """A Machine, and its status writer; `boots` are the requested ones."""

    api: SlowApi
    writer: BootStatusWriter
    cache: Cache[Machine]
    boots: set[str] = field(default_factory=lambda: {"b"})

    async def status(self) -> NetbootStatus | None:
        return (await self.api.get(MACHINES, "m1")).status.netboot


@asynccontextmanager
async def desk() -> AsyncIterator[Desk]:
    api = SlowApi()
    await api.create(MACHINES, machine_body())
    cache = Cache(api, MACHINES)
    boots = {"b"}
    writer = BootStatusWriter(api, cache, lambda _machine, boot: boot in boots, now=virtual_now)
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(cache.run()), group.create_task(writer.run())]
        await cache.synced.wait()
        try:
            yield Desk(api, writer, cache, boots)
        finally:
            for task in running:
                task.cancel()


def test_percentages_are_written_every_two_seconds_and_the_last_one_is() -> None:
    async def main() -> None:
        async with desk() as at:
            at.writer.note("m1", BootObservation(boot="b", milestone=M.INSTALLER_STARTED))
            for percent in range(101):
                at.writer.note("m1", BootObservation(boot="b", milestone=M.IMAGE_WRITING, percent=percent))
                await asyncio.sleep(0.1)
            await asyncio.sleep(3)
            status = await at.status()
            assert status is not None
            assert status.percent == 100
            assert 5 <= len(at.api.patched_at) <= 8
            gaps = [later - earlier for earlier, later in zip(at.api.patched_at, at.api.patched_at[1:], strict=False)]
            assert min(gaps[1:]) >= 1.99

    run_virtual(main())


def test_milestone_is_written_at_once_and_flush_waits_for_it() -> None:
    async def main() -> None:
        async with desk() as at:
            at.writer.note("m1", BootObservation(boot="b", milestone=M.IMAGE_WRITING, percent=99))
            await at.writer.flush("m1")
            at.writer.note("m1", BootObservation(boot="b", milestone=M.IMAGE_WRITTEN, percent=100))
            await at.writer.flush("m1")
            status = await at.status()
            assert status is not None
            assert status.milestone == M.IMAGE_WRITTEN
            assert asyncio.get_running_loop().time() < 1

    run_virtual(main())


def test_status_writes_survive_errors_and_conflicts_with_newer_observations() -> None:
    async def main() -> None:
        async with desk() as at:
            at.api.faults = [0, 1, 0]
            at.writer.note("m1", BootObservation(boot="b", milestone=M.LOADER_FETCHED))
            flushed = asyncio.create_task(at.writer.flush("m1"))
            await asyncio.sleep(0.05)
            at.writer.note("m1", BootObservation(boot="b", milestone=M.KERNEL_FETCHED))
            patch = {"status": {"message": "of another"}}
            await MemoryApi.patch(at.api, MACHINES, "m1", patch, subresource="status")
            await flushed
            await at.writer.flush("m1")
            status = await at.status()
            assert status is not None
            assert status.milestone == M.KERNEL_FETCHED
            assert (await at.api.get(MACHINES, "m1")).status.message == "of another"

    run_virtual(main())


def test_observations_of_ended_boots_and_deleted_machines_are_dropped() -> None:
    async def main() -> None:
        async with desk() as at:
            writes = at.api.writes
            at.writer.note("m1", BootObservation(boot="an earlier one", milestone=M.IMAGE_WRITTEN))
            at.writer.note("m2", BootObservation(boot="b", milestone=M.IMAGE_WRITTEN))
            await at.writer.flush("m1")
            await at.writer.flush("m2")
            assert at.api.writes == writes

    run_virtual(main())


def test_two_replicas_that_saw_different_things_leave_the_later_one() -> None:
    async def main() -> None:
        async with desk() as at:
            other = BootStatusWriter(at.api, at.cache, lambda _machine, boot: boot == "b", now=virtual_now)
            async with asyncio.TaskGroup() as group:
                running = group.create_task(other.run())
                for milestone in M:
                    at.writer.note("m1", BootObservation(boot="b", milestone=milestone, loads=1))
                    other.note("m1", BootObservation(boot="b", milestone=M.LOADER_FETCHED, loads=1))
                    await asyncio.gather(at.writer.flush("m1"), other.flush("m1"))
                running.cancel()
            status = await at.status()
            assert status is not None
            assert (status.milestone, status.loads) == (M.CONTESTED, 2 * len(M))

    run_virtual(main())


def test_status_writer_memory_does_not_grow_with_booted_machines() -> None:
    async def scene() -> None:
        async with desk() as it:

            async def boot(number: int) -> None:
                await it.api.create(MACHINES, {**machine_body(), "metadata": {"name": f"m{number}"}})
                it.writer.note(f"m{number}", BootObservation(boot="b", milestone=M.LOADER_FETCHED))
                await it.writer.flush(f"m{number}")
                await asyncio.sleep(5)

            for number in range(10, 20):
                await boot(number)
            before = len(pickle.dumps(kept(it.writer)))
            for number in range(20, 80):
                await boot(number)
            assert len(it.api.patched_at) == 70
            assert len(pickle.dumps(kept(it.writer))) <= before

    run_virtual(scene())


def kept(writer: BootStatusWriter) -> list[object]:
    """All tables that it has, whatever they are for."""
    return [value for value in vars(writer).values() if isinstance(value, dict)]


def test_nothing_is_written_twice() -> None:
    async def main() -> None:
        async with desk() as at:
            seen = BootObservation(boot="b", milestone=M.OFFERED, image_digest="sha256:1")
            at.writer.note("m1", seen)
            await at.writer.flush("m1")
            writes = at.api.writes
            for _ in range(5):
                at.writer.note("m1", seen)
                await at.writer.flush("m1")
            assert at.api.writes == writes

    run_virtual(main())
