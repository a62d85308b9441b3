"""The history of an operation: times of its stages, its earlier attempts, and records of a former release."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest

from tests.operations.building import claim, operation_of
from tests.operations.faults import Incarnation
from tests.operations.histories import history_faults
from tests.operations.simulated import PowerExecutor
from tests.operations.staging import in_stage, meddle, story
from tests.operations.world import World
from unbounded.api.failures import Transient
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.api.run_history import MAX_ATTEMPTS, MAX_VISITS, EarlierAttempt, RunHistory
from unbounded.metalman import power
from unbounded.operations.executor_protocol import Target

AT = "2030-01-01T00:00:00Z"
LATER = "2030-01-01T00:00:07Z"


def history_of(operation: MachineOperation) -> RunHistory:
    assert operation.status.history is not None
    return operation.status.history


def test_a_stage_that_is_left_has_its_end_and_the_next_one_begins_then() -> None:
    begun = RunHistory().with_stage_begun("Off", at=AT, limit_s=299.5)
    left = begun.with_stage_left("Off", at=LATER, spent_s=6.6).with_stage_begun("On", at=LATER, limit_s=60)
    off, on = left.stages
    assert (off.started_at, off.completed_at, off.limit_seconds, off.spent_seconds) == (AT, LATER, 300, 7)
    assert (on.started_at, on.completed_at, on.spent_seconds) == (LATER, None, None)


@pytest.mark.parametrize(
    "before",
    [
        RunHistory(),
        RunHistory().with_stage_begun("Other", at=AT, limit_s=1),
        RunHistory().with_stage_begun("Off", at=AT, limit_s=1).with_stage_left("Off", at=AT, spent_s=0),
    ],
)
def test_a_stage_whose_begin_no_executor_recorded_has_its_end_alone(before: RunHistory) -> None:
    left = before.with_stage_left("Off", at=LATER, spent_s=3)
    assert left.stages[:-1] == before.stages
    assert (left.stages[-1].name, left.stages[-1].started_at, left.stages[-1].spent_seconds) == ("Off", None, 3)


def test_a_long_history_drops_its_oldest_entries_and_counts_them() -> None:
    found = RunHistory()
    for number in range(MAX_VISITS + 5):
        attempt = EarlierAttempt(stage="S", action="On", number=number, completed_at=AT, reply="Unknown")
        found = found.with_stage_begun(f"S{number}", at=AT, limit_s=1).with_attempt(attempt)
        found = found.with_stage_left(f"S{number}", at=AT, spent_s=1)
    assert [one.name for one in found.stages] == [f"S{number}" for number in range(5, MAX_VISITS + 5)]
    assert (found.dropped_stages, len(found.attempts)) == (5, MAX_ATTEMPTS)
    assert found.attempts[-1].number == MAX_VISITS + 4
    assert found.dropped_attempts == MAX_VISITS + 5 - MAX_ATTEMPTS


@story
async def test_an_operation_records_when_each_stage_began_and_ended(world: World) -> None:
    world.redfish().start()
    await world.machine("m1")
    await world.operation("reboot", "HostReboot", "m1")
    running = await in_stage(world, "reboot", power.SHUTTING_DOWN)
    (present,) = history_of(running).stages
    assert (present.name, present.completed_at, present.limit_seconds) == (power.SHUTTING_DOWN, None, 120)
    status = (await world.ended("reboot")).status
    assert status.history is not None
    stages = status.history.stages
    assert [one.name for one in stages] == [power.SHUTTING_DOWN, power.WAITING_ON]
    assert (stages[0].started_at, stages[-1].completed_at) == (status.started_at, status.completed_at)
    for one in stages:
        began, ended = (datetime.fromisoformat(at or "") for at in (one.started_at, one.completed_at))
        assert one.spent_seconds == pytest.approx((ended - began).total_seconds(), abs=1)
    (attempt,) = status.history.attempts
    assert (attempt.stage, attempt.action, attempt.number) == (power.SHUTTING_DOWN, power.SHUT_DOWN, 1)
    assert (attempt.reply, attempt.completed_at) == ("Accepted", stages[0].completed_at)


class Refusing(PowerExecutor):
    """Has a BMC that does not take the first calls."""

    def __init__(self, name: str, life: Incarnation, world: World, count: int) -> None:
        super().__init__(name, life, world.outside)
        self.count = count

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        self.count -= 1
        if self.count >= 0:
            raise Transient(f"busy, {self.count} to go")
        await super().perform(target, action, before=before)


@story
async def test_each_attempt_keeps_its_answer_after_the_next_one(world: World) -> None:
    world.executor("metalman/lab", lambda life, _api: Refusing("metalman/lab", life, world, 2)).start()
    await world.machine("m1")
    await world.operation("op", "HostReboot", "m1", parameters={"force": "true"})
    ended = await world.ended("op")
    assert ended.status.phase == "Complete"
    attempts = history_of(ended).attempts
    assert [(one.action, one.number, one.reply, one.message) for one in attempts] == [
        (power.SWITCH_OFF, 1, "NotDone", "busy, 1 to go"),
        (power.SWITCH_OFF, 2, "NotDone", "busy, 0 to go"),
        (power.SWITCH_OFF, 3, "Accepted", None),
    ]
    sent = [datetime.fromisoformat(one.started_at or "") for one in attempts]
    assert sent == sorted(set(sent))


@story
async def test_a_restart_keeps_the_history_and_its_times(world: World) -> None:
    process = world.redfish()
    running = process.start()
    await world.machine("m1")
    world.outside.deaf = 1.0
    await world.operation("op", "HostReboot", "m1", parameters={"graceSeconds": "60"})
    begun = history_of(await in_stage(world, "op", power.SHUTTING_DOWN))
    await asyncio.sleep(20)
    await running.stop()
    await asyncio.sleep(30)
    process.start()
    ended = await world.ended("op")
    stages = history_of(ended).stages
    assert (stages[0].name, stages[0].started_at) == (power.SHUTTING_DOWN, begun.stages[0].started_at)
    took_s = datetime.fromisoformat(stages[0].completed_at or "") - datetime.fromisoformat(stages[0].started_at or "")
    assert (stages[0].spent_seconds or 0) + 25 <= took_s.total_seconds(), "the limit does not count the time in between"


@story
async def test_an_operation_of_a_former_release_continues_and_records_the_rest(world: World) -> None:
    former = True

    def drop(kind: Kind[Any], body: dict[str, Any]) -> None:
        if former and kind is MACHINE_OPERATIONS:
            body.get("status", {}).pop("history", None)

    meddle(world).drop = drop
    world.redfish().start()
    await world.machine("m1")
    await world.operation("op", "HostReboot", "m1")
    assert (await in_stage(world, "op", power.SHUTTING_DOWN)).status.history is None
    former = False
    ended = await world.ended("op")
    assert ended.status.phase == "Complete"
    off, on = history_of(ended).stages
    assert (off.name, off.started_at, bool(off.completed_at)) == (power.SHUTTING_DOWN, None, True)
    assert (on.name, on.started_at) == (power.WAITING_ON, off.completed_at)


def test_the_rules_of_histories_find_what_breaks_them() -> None:
    """A judge that finds nothing would prove nothing."""
    first = {"name": "Starting", "startedAt": AT, "limitSeconds": 60}
    whole = {**claim(stage="Starting"), "history": {"stages": [first]}}
    assert list(history_faults({}, whole)) == []
    assert operation_of(status=whole).status.history is not None
    left = {**first, "completedAt": LATER, "spentSeconds": 7}
    broken = {
        "it has no stages": {**whole, "history": None},
        "its last stage is": {**whole, "history": {"stages": [{**first, "name": "Other"}]}},
        "it has left": {**whole, "history": {"stages": [left]}},
        "a gap": {**whole, "history": {"stages": [left, first]}},
        "without its begin": {**whole, "history": {"stages": [{**first, "startedAt": None}]}},
        "its stages took": {**whole, "history": {"stages": [left, {**first, "startedAt": LATER}]}},
    }
    for text, status in broken.items():
        assert any(text in fault for fault in history_faults({}, status)), text
    called = {**whole, "execution": {**whole["execution"], "action": "On"}, "targets": [{"stage": "A", "attempts": 1}]}
    assert any("earlier attempts" in fault for fault in history_faults(called, whole))
