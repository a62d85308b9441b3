"""A status is written on top of what was read, once, and by the owner of its fields."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import unbounded
from tests.support.memory_api import MemoryApi
from unbounded.api.container_cloud.network import SUBNETS, SubnetStatus
from unbounded.api.machine import MACHINES, Machine
from unbounded.kube.api import Conflict
from unbounded.kube.status_writer import ATTEMPTS, StatusWriter

Change = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]


class World:
    """A Machine, and two writers of its status."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.writer = StatusWriter(self.api, MACHINES, fields=("message", "reason"))
        self.other = StatusWriter(self.api, MACHINES, fields=("phase",))

    async def made(self, name: str = "m1") -> Machine:
        return await self.api.create(MACHINES, {"metadata": {"name": name}, "spec": {}})

    async def read(self) -> Machine:
        return await self.api.get(MACHINES, "m1")

    def change_while_others_write(self, times: int) -> Change:
        """Return a change that lets another writer in between, so many times."""
        left = times

        def change(raw: Mapping[str, Any]) -> Mapping[str, Any]:
            nonlocal left
            if left:
                left -= 1
                coroutine = self.other.merge("m1", {"phase": "Ready" if left % 2 else "Pending"})
                with suppress(StopIteration):
                    coroutine.send(None)  # MemoryApi answers without a wait
            return {"message": f"after {raw.get('status', {}).get('phase')}"}

        return change


def run(story: Callable[[World], Any]) -> None:
    asyncio.run(story(World()))


def test_a_write_rests_on_the_version_that_was_read() -> None:
    async def story(world: World) -> None:
        stale = await world.made()
        first = await world.writer.write(stale, {"message": "first"})
        assert first is not None
        with pytest.raises(Conflict):
            await world.writer.write(stale, {"message": "second"})
        assert (await world.read()).status.message == "first"
        raw = await world.api.get(MACHINES.raw(), "m1")
        assert await world.writer.write(raw, {"message": "third"}) is not None

    run(story)


def test_the_status_of_a_namespaced_object_is_written_in_its_namespace() -> None:
    async def story(world: World) -> None:
        writer = StatusWriter(world.api, SUBNETS, fields=("state", "capacity"))
        for namespace in ("default", "kube-system"):
            body = {"metadata": {"name": "lcm"}, "spec": {"cidr": "10.0.0.0/24"}}
            await world.api.create(SUBNETS, body, namespace=namespace)
        first = await world.api.get(SUBNETS, "lcm", namespace="default")
        await writer.write(first, {"state": "OK"})
        await writer.merge("lcm", {"capacity": 7}, namespace="default", uid=first.metadata.uid)
        await writer.update("lcm", lambda raw: {"capacity": raw["status"]["capacity"] + 1}, namespace="default")
        assert (await world.api.get(SUBNETS, "lcm", namespace="default")).status == SubnetStatus(state="OK", capacity=8)
        assert (await world.api.get(SUBNETS, "lcm", namespace="kube-system")).status == SubnetStatus()

    run(story)


@pytest.mark.parametrize("nothing", [None, {}])
def test_a_status_without_a_change_is_not_written(nothing: Mapping[str, Any] | None) -> None:
    async def story(world: World) -> None:
        machine, before = await world.made(), world.api.writes
        assert await world.writer.write(machine, nothing) is None
        assert await world.writer.update("m1", lambda _raw: nothing) is None
        assert world.api.writes == before

    run(story)


def test_a_field_of_another_writer_is_refused() -> None:
    async def story(world: World) -> None:
        machine = await world.made()
        calls: tuple[Callable[[], Awaitable[Machine | None]], ...] = (
            lambda: world.writer.write(machine, {"message": "x", "phase": "Ready"}),
            lambda: world.writer.merge("m1", {"phase": "Ready"}),
            lambda: world.writer.update("m1", lambda _raw: {"phase": "Ready"}),
        )
        for call in calls:
            with pytest.raises(ValueError, match=r"status\.phase of Machine has another writer"):
                await call()
        assert (await world.read()).status.phase is None

    run(story)


def test_an_update_reads_again_after_a_conflict() -> None:
    async def story(world: World) -> None:
        await world.made()
        written = await world.writer.update("m1", world.change_while_others_write(ATTEMPTS - 1))
        assert written is not None
        assert written.status.message == f"after {written.status.phase}"
        with pytest.raises(Conflict):
            await world.writer.update("m1", world.change_while_others_write(ATTEMPTS))

    run(story)


def test_an_update_spares_another_object_of_the_same_name() -> None:
    async def story(world: World) -> None:
        assert await world.writer.update("m1", lambda _raw: {"message": "x"}) is None  # there is none
        machine = await world.made()
        assert await world.writer.update("m1", lambda _raw: {"message": "x"}, uid="another") is None
        assert (await world.read()).status.message is None
        assert await world.writer.update("m1", lambda _raw: {"message": "x"}, uid=machine.metadata.uid) is not None

    run(story)


def test_controllers_write_a_status_in_no_other_way() -> None:
    source = Path(unbounded.__file__).parent
    named = {
        str(path.relative_to(source))
        for part in ("agent", "join", "kube", "machina", "machineops", "metalman", "operations")
        for path in (source / part).rglob("*.py")
        if 'subresource="status"' in path.read_text()
    }
    assert named == {"kube/status_writer.py"}
