"""The time since an executor was lost, as the processes that wait for it count it."""

from __future__ import annotations

import msgspec

from tests.operations.building import slot_of
from unbounded.api.machine import ActiveOperation
from unbounded.operations.in_memory_state import OperationState


def _slot(seconds: int = 0, uid: str = "uid-lost") -> ActiveOperation:
    given = slot_of("lost", lost=True) | {"uid": uid, "lostSeconds": seconds}
    return msgspec.convert(given, ActiveOperation)


def test_time_since_executor_loss_continues_from_the_recorded_count() -> None:
    state = OperationState("uid")
    lost = state.count_lost(_slot(20), 100.0, ended=False)
    assert (lost.count_s(110.0), lost.left_s(110.0, 45.0, 35.0)) == (30.0, 15.0)
    assert state.count_lost(_slot(25), 110.0, ended=False).count_s(110.0) == 30.0  # it is read late
    assert state.count_lost(_slot(40), 110.0, ended=False).count_s(110.0) == 40.0  # another one knows it for longer
    assert state.count_lost(_slot(0, "uid-next"), 110.0, ended=False).count_s(110.0) == 0.0


def test_call_of_an_ended_executor_settles_from_the_observed_end() -> None:
    state = OperationState("uid")
    lost = state.count_lost(_slot(2), 100.0, ended=True)
    assert [lost.left_s(at, 45.0, 35.0) for at in (100.0, 134.0)] == [35.0, 1.0]
    counted = state.count_lost(_slot(30), 110.0, ended=True)
    assert [counted.left_s(at, 45.0, 35.0) for at in (110.0, 125.0)] == [15.0, 0.0]
