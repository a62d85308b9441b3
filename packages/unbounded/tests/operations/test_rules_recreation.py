"""A slot held by a node's recreation, for which there is no MachineOperation: who waits, and who may take it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.operations.building import machine_of, operation_of
from tests.operations.staging import machine, result, story, waits
from tests.operations.world import World
from unbounded.api.machine import MACHINES, NODE_RECREATION
from unbounded.operations import reasons
from unbounded.operations.claim_gates import closed_gate

HOLDER = {
    "uid": "uid-recreation",
    "name": "m1-recreation",
    "kind": NODE_RECREATION,
    "executor": "unbounded-agent/m1",
    "since": "2030-01-01T00:00:00Z",
}


async def _status(world: World, **status: Any) -> None:
    await world.api.patch(MACHINES, "m1", {"status": status}, subresource="status")


async def _hold(world: World) -> None:
    await _status(world, activeOperation=HOLDER)


async def _moves(world: World, message: str) -> None:
    said = {"type": "NodeUpdated", "status": "False", "reason": "InProgress", "message": message}
    await _status(world, conditions=[{**said, "lastTransitionTime": "2030-01-01T00:00:00Z"}])


@story
async def test_agent_operation_waits_for_the_end_of_a_recreation(world: World) -> None:
    await world.machine("m1")
    await _hold(world)
    world.steward().start()
    keeper = asyncio.create_task(world.agent("m1").keep(crashes=[]))
    await world.operation("op", "NodeReboot", "m1")
    waiting = await waits(world, "op", reasons.SLOT_HELD)
    assert waiting.status.waiting is not None
    assert waiting.status.waiting.held_by == "m1-recreation"
    assert "NodeRecreation m1-recreation (unbounded-agent/m1) holds the lock of Machine m1" in (
        waiting.status.message or ""
    )
    await asyncio.sleep(1000)
    assert world.outside.acts == []
    assert (await machine(world)).status.active_operation is not None, "nobody but the agent gives it back"
    await _status(world, activeOperation=None)
    assert result(await world.ended("op", within_s=600)) == ("Complete", "Succeeded")
    keeper.cancel()


@story
async def test_host_operation_preempts_a_recreation_stalled_for_a_minute(world: World) -> None:
    await world.machine("m1")
    await _hold(world)
    world.steward().start()
    world.redfish().start()
    await world.operation("op", "HostReboot", "m1")
    waiting = await waits(world, "op", reasons.SLOT_HELD)
    assert "gives way after 60 s without progress" in (waiting.status.message or "")
    await asyncio.sleep(50)
    assert not (await world.get("op")).claimed
    claimed = await world.until("op", lambda operation: operation.claimed, within_s=15)
    holder = (await machine(world)).status.active_operation
    assert holder is not None
    assert (holder.uid, holder.kind) == (claimed.metadata.uid, "HostReboot")
    assert result(await world.ended("op", within_s=60)) == ("Complete", "Succeeded")


@story
async def test_a_recreation_that_moves_keeps_its_slot(world: World) -> None:
    await world.machine("m1")
    await _hold(world)
    world.steward().start()
    world.redfish().start()
    await world.operation("op", "HostReboot", "m1")
    for number in range(10):
        await _moves(world, f"building kube2: {number * 10} %")
        await asyncio.sleep(50)
    assert not (await world.get("op")).claimed
    await world.until("op", lambda operation: operation.claimed, within_s=15)
    await world.ended("op", within_s=60)


@story
async def test_a_second_executor_counts_the_minute_from_its_own_first_sight(world: World) -> None:
    await world.machine("m1")
    await _hold(world)
    world.steward().start()
    await world.operation("op", "HostReboot", "m1")
    first = world.redfish().start()
    await asyncio.sleep(40)
    await first.stop()
    world.redfish().start()
    await asyncio.sleep(40)
    assert not (await world.get("op")).claimed
    await world.until("op", lambda operation: operation.claimed, within_s=25)
    await world.ended("op", within_s=60)


@pytest.mark.parametrize("kind", ["NodeReboot", "AgentUpgrade", "AgentReset"])
def test_gate_mentions_preemption_only_when_it_applies(kind: str) -> None:
    gate = closed_gate(operation_of(kind=kind), machine_of(status={"activeOperation": HOLDER}), [], None)
    assert gate is not None
    assert gate.reason == reasons.SLOT_HELD
    assert "gives way" not in gate.text
