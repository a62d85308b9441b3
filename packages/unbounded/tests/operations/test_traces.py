"""Traces of operations in virtual time: one root for each, also of a failure, and calls below their stage."""

from __future__ import annotations

import asyncio

from tests.operations.staging import Announced, announcing_steward, story
from tests.operations.world import World
from tests.support.spans import SpanList
from unbounded.kube.tracing import Tracer, trace_id


@story
async def test_stages_hang_on_the_operation_and_calls_on_their_stage(world: World) -> None:
    sink = SpanList()
    world.redfish(tracer=Tracer(sink)).start()
    await world.machine("m1")
    await world.operation("reboot", "HostReboot", "m1")
    ended = await world.ended("reboot", within_s=600)
    (root,) = sink.named("HostReboot")
    assert {one.trace_id for one in sink.spans} == {trace_id(ended.metadata.uid)}
    assert (root.parent_id, root.error) == (None, None)
    assert root.attributes["unbounded.operation.reason"] == "Succeeded"
    stages = {stage: sink.named(stage)[0] for stage in ("ShuttingDown", "WaitingOn")}
    assert {one.parent_id for one in stages.values()} == {root.span_id}
    (off,) = sink.named("perform GracefulShutdown")
    (on,) = sink.named("perform On")
    assert (off.parent_id, on.parent_id) == (stages["ShuttingDown"].span_id, stages["WaitingOn"].span_id)
    assert {one.parent_id for one in sink.named("observe")} >= {one.span_id for one in stages.values()}


@story
async def test_a_failed_operation_is_a_failed_root(world: World) -> None:
    sink = SpanList()
    world.redfish(tracer=Tracer(sink)).start()
    await world.machine("m1")
    await world.operation("reboot", "HostReboot", "m1", deadlineSeconds=1)
    ended = await world.ended("reboot", within_s=600)
    (root,) = sink.named("HostReboot")
    assert ended.status.reason == "DeadlineExceeded"
    assert root.error is not None
    assert root.error.startswith("DeadlineExceeded: ")


@story
async def test_the_leader_traces_what_an_agent_does(world: World) -> None:
    sink = SpanList()
    announcing_steward(world, Announced(), tracer=Tracer(sink)).start()
    keeper = asyncio.create_task(world.agent("m1").keep())  # its host restarts by its own action
    await world.machine("m1")
    await world.operation("restart", "NodeReboot", "m1")
    ended = await world.ended("restart", within_s=600)
    await asyncio.sleep(5)
    keeper.cancel()
    (root,) = sink.named("NodeReboot")
    (stage,) = sink.named("Restarting")
    assert (root.trace_id, root.parent_id, root.error) == (trace_id(ended.metadata.uid), None, None)
    assert stage.parent_id == root.span_id
    assert root.attributes["unbounded.executor"] == "unbounded-agent/m1"
