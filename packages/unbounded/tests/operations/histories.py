"""The history of an operation, held against each write of its status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from unbounded.api.run_history import MAX_ATTEMPTS, MAX_VISITS

Raw = Mapping[str, Any]
TERMINAL: Final = ("Complete", "Failed")


def history_faults(old: Raw, new: Raw) -> Iterator[str]:
    """Yield the rules that the history does not keep after a write of the status of a claimed operation."""
    before, after = old.get("history") or {}, new.get("history") or {}
    stages = after.get("stages") or []
    if len(stages) > MAX_VISITS or len(after.get("attempts") or []) > MAX_ATTEMPTS:
        yield "its history is too long"
    if not stages:
        if new.get("phase") not in TERMINAL:  # it may end in the pass of its claim
            yield "it has no stages"
        return
    if stages[-1]["name"] != new["targets"][0]["stage"]:
        yield f"its last stage is {stages[-1]}, and it is in {new['targets'][0]['stage']}"
    if stages[-1].get("completedAt") and new.get("phase") not in TERMINAL:
        yield f"it has left its present stage: {stages[-1]}"
    for left, following in pairwise(stages):
        if left.get("completedAt") != following.get("startedAt") or not left.get("completedAt"):
            yield f"a gap between {left} and {following}"
    if any(not stage.get("startedAt") or not stage.get("limitSeconds") for stage in stages):
        yield f"a stage without its begin or its limit: {stages}"
    spent_s, counted_s = new["execution"].get("spentSeconds", 0), sum(one.get("spentSeconds", 0) for one in stages)
    if counted_s > spent_s + len(stages):
        yield f"its stages took {counted_s} s, of {spent_s} s in all"
    yield from _changes(before, after)
    is_new = _intent(old) is not None and _intent(old) != _intent(new)
    if _attempts(after) - _attempts(before) != is_new:
        yield f"after {_intent(old)} and {_intent(new)} it has {_attempts(after)} earlier attempts, not {before}"


def _changes(before: Raw, after: Raw) -> Iterator[str]:
    """Check that a write adds, drops the oldest, and ends the last stage, and changes nothing else."""
    dropped = after.get("droppedStages", 0) - before.get("droppedStages", 0)
    kept, stages = (before.get("stages") or [])[dropped:], after["stages"]
    ended = [one for one in kept if one.get("completedAt")]
    if stages[: len(ended)] != ended:
        yield f"{ended} became {stages}"
    dropped = after.get("droppedAttempts", 0) - before.get("droppedAttempts", 0)
    attempts = (before.get("attempts") or [])[dropped:]
    if (after.get("attempts") or [])[: len(attempts)] != attempts:
        yield f"{attempts} became {after.get('attempts')}"


def _attempts(history: Raw) -> int:
    return len(history.get("attempts") or []) + int(history.get("droppedAttempts") or 0)


def _intent(status: Raw) -> tuple[str, ...] | None:
    execution = status.get("execution") or {}
    if not execution.get("action"):
        return None
    target = status["targets"][0]
    return target["stage"], execution["action"], str(target["attempts"]), execution["incarnation"]
