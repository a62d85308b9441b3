"""Waiting in virtual time: whatever happens to watches, it ends when the operation does, with the status that fits."""

from __future__ import annotations

import asyncio
import io
import random
from argparse import Namespace
from typing import Any, cast

import pytest

from tests.support.faulty_api import FaultyApi
from tests.support.virtual_time import run_virtual
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.cli.plugin.command import TIMED_OUT, CliError, CliInvocation, CommandSession
from unbounded.cli.plugin.output import TextPrinter
from unbounded.cli.plugin.wait import wait_operation
from unbounded.kube.client import HttpApi

SPEC = {"machineRef": "m", "operationKind": "NodeReboot"}


class World:
    """An API with trouble, one operation on it, and who waits."""

    def __init__(self, seed: int, rate: float) -> None:
        self.api = FaultyApi(random.Random(seed), rate=rate, streams=seed % 2 == 0)
        self.out, self.err = io.StringIO(), io.StringIO()
        told = CliInvocation(Namespace(output=""), {}, self.out, self.err, io.StringIO(), colour=False, terminal=False)
        self.session = CommandSession(told, cast("HttpApi", self.api), TextPrinter(self.out, self.err))

    async def make(self) -> MachineOperation:
        await self.api.create(MACHINES, {"metadata": {"name": "m"}, "spec": {}})
        return await self.api.create(MACHINE_OPERATIONS, {"metadata": {"name": "op"}, "spec": SPEC})

    async def says(self, **status: Any) -> None:
        await self.api.patch(MACHINE_OPERATIONS, "op", {"status": status}, subresource="status")


@pytest.mark.parametrize("end", ["Complete", "Failed"])
@pytest.mark.parametrize("seed", range(6))
def test_it_ends_with_the_operation(seed: int, end: str) -> None:
    async def scenario() -> None:
        world = World(seed, 0.4)
        await world.make()
        waiting = asyncio.create_task(wait_operation(world.session, "op", timeout_s=None))
        for step in range(10):
            await asyncio.sleep(random.Random(seed * 31 + step).uniform(0, 60))
            await world.says(phase="InProgress", message=f"step {step}")
            assert not waiting.done()
        await world.says(phase=end, reason="Why", message="it is over")
        assert await waiting == (0 if end == "Complete" else 1)
        assert "it is over" in (world.out if end == "Complete" else world.err).getvalue()

    run_virtual(scenario())


@pytest.mark.slow
def test_wait_survives_an_api_outage_and_reports_it_once() -> None:
    async def scenario() -> None:
        world = World(0, 0.0)
        await world.make()
        waiting = asyncio.create_task(wait_operation(world.session, "op", timeout_s=None))
        await asyncio.sleep(1)
        world.api.rate = 1.0
        await world.says(phase="InProgress", message="unseen")  # the watch breaks with it
        await asyncio.sleep(600)
        assert world.out.getvalue().count("waiting for the API server") == 1
        assert not waiting.done()
        world.api.rate = 0.0
        await asyncio.sleep(120)
        assert "the API server answers again" in world.out.getvalue()
        await world.says(phase="Complete")
        assert await waiting == 0

    run_virtual(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("timeout_s", [5.0, 3600.0])
def test_it_is_left_when_the_time_is_up_and_nothing_goes_on(timeout_s: float) -> None:
    async def scenario() -> None:
        world = World(2, 0.3)
        await world.make()
        began = asyncio.get_running_loop().time()
        with pytest.raises(CliError, match="it continues") as left:
            await wait_operation(world.session, "op", timeout_s=timeout_s)
        assert left.value.status == TIMED_OUT
        assert asyncio.get_running_loop().time() - began == pytest.approx(timeout_s, abs=1)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a watch is left open"

    run_virtual(scenario())


def test_ctrl_c_says_how_to_cancel_and_leaves_the_operation_alone() -> None:
    async def scenario() -> None:
        world = World(0, 0.0)
        before = await world.make()
        waiting = asyncio.create_task(wait_operation(world.session, "op", timeout_s=None))
        await asyncio.sleep(5)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert "operation op continues" in world.err.getvalue()
        assert "machine operation cancel op" in world.err.getvalue()
        assert await world.api.get(MACHINE_OPERATIONS, "op") == before
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a watch is left open"

    run_virtual(scenario())


def test_one_of_the_same_name_that_is_made_anew_is_another_one() -> None:
    async def scenario() -> None:
        world = World(0, 0.0)
        await world.make()
        waiting = asyncio.create_task(wait_operation(world.session, "op", timeout_s=None))
        await asyncio.sleep(1)
        await world.api.delete(MACHINE_OPERATIONS, "op")
        await world.api.create(MACHINE_OPERATIONS, {"metadata": {"name": "op"}, "spec": SPEC})
        await world.says(phase="Complete")
        with pytest.raises(CliError, match="was deleted before it ended"):
            await waiting

    run_virtual(scenario())
