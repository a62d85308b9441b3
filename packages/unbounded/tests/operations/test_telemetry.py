"""Metrics and traces of operations, in virtual time.

Metrics are by kind, phase and reason, with the time since the claim, and the times of stages. A trace has one root for
each operation, also of a failure, and calls below their stage.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from tests.operations.staging import Announced, announcing_steward, story
from tests.operations.world import World
from tests.support.spans import SpanList
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.tracing import Tracer, trace_id
from unbounded.operations.reasons import WAITING_FOR_BUDGET
from unbounded.operations.telemetry import LONGEST_S, MAX_LABELS, OTHER, AgentResults, OperationMetrics


def _ended(registry: CollectorRegistry, kind: str, reason: str, phase: str = "Failed") -> float | None:
    labels = {"kind": kind, "phase": phase, "reason": reason}
    return registry.get_sample_value("unbounded_operations_total", labels)


def _timed(registry: CollectorRegistry, kind: str, phase: str, part: str) -> float | None:
    return registry.get_sample_value(f"unbounded_operation_duration_seconds_{part}", {"kind": kind, "phase": phase})


@story
async def test_what_ends_without_a_claim_is_counted_and_has_no_duration(world: World) -> None:
    registry = CollectorRegistry()
    announcing_steward(world, Announced(), OperationMetrics(registry)).start()
    await world.machine("m1")
    await world.operation("wrong", "HostReboot", "m1", parameters={"nonsense": "1"})
    await world.operation("late", "HostPowerOn", "m1", startDeadlineSeconds=10)
    for name in ("wrong", "late"):
        await world.ended(name, within_s=30)
    assert _ended(registry, "HostReboot", "InvalidParameters") == 1
    assert _ended(registry, "HostPowerOn", "NotStarted") == 1
    assert _timed(registry, "HostReboot", "Failed", "count") is None


@story
async def test_a_selector_operation_is_counted_with_its_duration(world: World) -> None:
    registry = CollectorRegistry()
    announcing_steward(world, Announced(), OperationMetrics(registry)).start()
    world.redfish().start()
    await world.machine("m1")
    await world.operation("all", "HostReboot", machineSelector={"matchLabels": {"unbounded-cloud.io/site": "lab"}})
    await world.ended("all", within_s=600)
    assert _ended(registry, "HostReboot", "Succeeded", "Complete") == 1
    assert _timed(registry, "HostReboot", "Complete", "count") == 1
    assert (_timed(registry, "HostReboot", "Complete", "sum") or 0) > 1


@story
async def test_each_stage_that_a_claimed_operation_leaves_is_timed(world: World) -> None:
    registry = CollectorRegistry()
    world.redfish(metrics=OperationMetrics(registry)).start()
    await world.machine("m1")
    await world.operation("reboot", "HostReboot", "m1")
    ended = await world.ended("reboot", within_s=600)
    (family,) = [one for one in registry.collect() if one.name == "unbounded_operation_stage_duration_seconds"]
    counts = {one.labels["stage"]: one.value for one in family.samples if one.name.endswith("_count")}
    total_s = sum(one.value for one in family.samples if one.name.endswith("_sum"))
    assert counts == {"ShuttingDown": 1, "WaitingOn": 1}
    sums = {one.labels["stage"]: one.value for one in family.samples if one.name.endswith("_sum")}
    assert ended.status.history is not None
    assert {one.name: one.spent_seconds for one in ended.status.history.stages} == {
        stage: round(seconds) for stage, seconds in sums.items()
    }, "the status has the same times"
    assert ended.status.completed_at
    assert total_s == pytest.approx(_timed(registry, "HostReboot", "Complete", "sum") or 0, abs=2)


@story
async def test_the_leader_counts_and_times_what_an_agent_does(world: World) -> None:
    registry = CollectorRegistry()
    announcing_steward(world, Announced(), OperationMetrics(registry)).start()
    keeper = asyncio.create_task(world.agent("m1").keep())  # its host restarts by its own action
    await world.machine("m1")
    await world.operation("restart", "NodeReboot", "m1")
    await world.ended("restart", within_s=600)
    await asyncio.sleep(5)
    assert _ended(registry, "NodeReboot", "Succeeded", "Complete") == 1
    assert _timed(registry, "NodeReboot", "Complete", "count") == 1
    total_s = _timed(registry, "NodeReboot", "Complete", "sum") or 0
    assert total_s > 1
    (family,) = [one for one in registry.collect() if one.name == "unbounded_operation_stage_duration_seconds"]
    stages = {one.labels["stage"]: one.value for one in family.samples if one.name.endswith("_sum")}
    assert 0 < sum(stages.values()) < total_s, "the limits of stages do not count the restart of the host"
    history = (await world.get("restart")).status.history
    assert history is not None
    assert stages == {one.name: one.spent_seconds for one in history.stages}, "the leader takes the times of the status"

    await world.operation("lost", "NodeReboot", "m1")
    await world.until("lost", lambda one: one.claimed, within_s=60)
    keeper.cancel()
    await asyncio.wait({keeper})
    await world.api.patch(MACHINE_OPERATIONS, "lost", {"spec": {"abandon": True}})
    await world.ended("lost", within_s=3600)
    await asyncio.sleep(5)
    assert _ended(registry, "NodeReboot", "ExecutorLost") == 1


def reported(name: str, stage: str, spent_s: int, **status: Any) -> MachineOperation:
    """Return an operation as an agent has written its status."""
    execution = {"executor": "unbounded-agent/m1", "incarnation": "i", "machineUID": "u", "binding": "b"}
    body = {
        "metadata": {"name": name, "uid": name},
        "spec": {"operationKind": "NodeReboot", "machineRef": "m1"},
        "status": {
            "phase": "InProgress",
            "execution": {**execution, "spentSeconds": spent_s},
            "targets": [{"machineRef": "m1", "stage": stage}],
            **status,
        },
    }
    return msgspec.convert(body, MachineOperation)


def test_an_agent_makes_few_series_and_no_time_without_limit() -> None:
    registry, sink = CollectorRegistry(), SpanList()
    results = AgentResults(OperationMetrics(registry), Tracer(sink))
    before: MachineOperation | None = None
    for number in range(500):
        now = reported("stages", f"S{number}", 2**62 if number % 2 else 0)
        results.changed(before, now)
        before = now
    for number in range(500):
        running = reported(f"op-{number}", "Restarting", 1)
        results.changed(running, reported(f"op-{number}", "", 1, phase="Failed", reason=f"R{number}"))
    families = {one.name: one.samples for one in registry.collect()}
    stages = [one for one in families["unbounded_operation_stage_duration_seconds"] if one.name.endswith("_sum")]
    assert len(stages) == MAX_LABELS + 1
    assert all(0 <= one.value <= 500 * LONGEST_S for one in stages)
    ended = [one for one in families["unbounded_operations"] if one.name.endswith("_total")]
    assert len(ended) == MAX_LABELS + 1
    assert sum(one.value for one in ended) == 500
    assert all(0 <= one.start_ns <= one.end_ns for one in sink.spans)


def test_stages_left_between_two_changes_of_the_cache_are_all_timed() -> None:
    registry = CollectorRegistry()
    results = AgentResults(OperationMetrics(registry), Tracer(SpanList()))

    def stage(name: str, spent_s: int | None = None) -> dict[str, Any]:
        ended = {} if spent_s is None else {"completedAt": "2030-01-01T00:00:09Z", "spentSeconds": spent_s}
        return {"name": name, "startedAt": "2030-01-01T00:00:00Z", **ended}

    histories = (
        [stage("A")],
        [stage("A", 3), stage("B", 4), stage("C")],
        [stage("A", 3), stage("B", 4), stage("C", 5)],
    )
    states = [reported("op", "A", 0, history={"stages": stages}) for stages in histories]
    states[-1] = reported("op", "C", 12, history={"stages": histories[-1]}, phase="Complete")
    for old, new in zip([None, *states], states, strict=False):
        results.changed(old, new)
    results.changed(None, reported("unknown", "A", 0, history={"stages": histories[-1]}))  # as of the first listing
    samples = [one for family in registry.collect() for one in family.samples]
    sums = {one.labels["stage"]: one.value for one in samples if one.name.endswith("stage_duration_seconds_sum")}
    assert sums == {"A": 3, "B": 4, "C": 5}


def test_the_reasons_of_executors_for_a_wait_are_limited() -> None:
    registry = CollectorRegistry()
    metrics = OperationMetrics(registry)
    for number in range(500):
        metrics.unblocked("Host", f"R{number}", 1)
    metrics.unblocked("Budget", WAITING_FOR_BUDGET, 1)
    (family,) = [one for one in registry.collect() if one.name == "unbounded_operation_blocked_duration_seconds"]
    counts = {one.labels["reason"]: one.value for one in family.samples if one.name.endswith("_count")}
    assert (len(counts), counts[OTHER], counts[WAITING_FOR_BUDGET]) == (MAX_LABELS + 2, 500 - MAX_LABELS, 1)


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
