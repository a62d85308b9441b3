"""Results that every schedule of storms must have: each end has a cause that existed, and work is claimed and done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from tests.operations.faults import FAIR
from unbounded.metalman.reasons import DOES_NOT_STAY_OFF, DOES_NOT_STAY_ON
from unbounded.operations import reasons
from unbounded.operations.in_memory_state import COUNT_S

if TYPE_CHECKING:
    from tests.operations.judge import Judge, Story

EXECUTOR: Final = "metalman"
CLAIM_S: Final = 15.0  # from when nothing holds it back
SETTLE_S: Final = 60.0  # until no call of a lost executor can arrive, and an observation after that
CLOCK_S: Final = 2.0  # seconds are counted as whole ones, from when a process has seen what it counts
CALM_S: Final = 45.0  # of an operation with which nothing goes wrong, without the grace of a deaf host
WRITES: Final = 12  # of the status of such an operation, and one more in FOR_EACH_S
LOOKS: Final = 12
FOR_EACH_S: Final = 5.0

Transitions = Mapping[str, list[tuple[float, str]]]


def without_cause(judge: Judge, transitions: Transitions) -> Iterator[str]:
    """Yield what has ended, or was left undone, with no reason for it."""
    for story in judge.stories.values():
        if story.status.get("phase") == "Failed" and not _has_cause(judge, story, transitions):
            yield f"{story} failed without a cause"
        if story.parent:
            continue
        if story.claimed_at is not None:
            yield from _taken_up(judge, story, story.claimed_at)
        if story.claimed_at is not None and story.ended_at is not None:
            yield from _calm(judge, story, story.claimed_at, story.ended_at)
    yield from _machines(judge, transitions)


def _has_cause(judge: Judge, story: Story, transitions: Transitions) -> bool:
    reason, execution = story.status.get("reason"), story.status.get("execution") or {}
    since, until = story.claimed_at or story.created_at, story.ended_at or 0.0
    states = judge.machines.get(story.machine, [])
    match reason:
        case reasons.CANCELLED:
            return bool(story.spec.get("cancel") or story.spec.get("abandon") or story.deleting)
        case reasons.DEADLINE_EXCEEDED:
            return bool(execution.get("spentSeconds", 0) >= story.deadline_s)
        case reasons.MACHINE_NOT_FOUND:
            return bool(judge.machines_gone.get(story.machine))
        case reasons.TARGET_CHANGED:
            was = execution.get("machineUID"), execution.get("binding")
            return any((one.uid, f"host:{one.host}") != was for one in states if one.since <= until)
        case reasons.EXECUTOR_LOST:
            return bool(story.spec.get("abandon")) or judge._down_s(EXECUTOR, since, until) > 0
        case reasons.TARGET_FAILED:
            children = [one for one in judge.stories.values() if one.name.startswith(f"{story.name}-")]
            return any(one.status.get("phase") == "Failed" for one in children)
        case reasons.NO_MATCHING_MACHINES:
            return any(judge.machines_gone.values())
        case reasons.NO_ANSWER | reasons.TIMED_OUT | reasons.NO_EFFECT:
            return not judge.calm
    if reason in (DOES_NOT_STAY_OFF, DOES_NOT_STAY_ON):
        turned = {state for at, state in transitions[judge._host(story)] if since <= at <= until}
        return ("On" if reason == DOES_NOT_STAY_OFF else "Off") in turned
    return False


def _taken_up(judge: Judge, story: Story, claimed_at: float) -> Iterator[str]:
    """It is claimed soon after the last thing that has held it back."""
    ends = [one.ended_at for one in judge.stories.values() if one.machine == story.machine and one.ended_at]
    holds = [one.since for one in judge.machines.get(story.machine, []) if one.holder != story.uid]
    free_at = max([story.created_at, *(at for at in [*ends, *holds] if at < claimed_at)])
    limit_s = CLAIM_S + judge._down_s(EXECUTOR, free_at, claimed_at) + judge._trouble_s()
    if any(one.lost for one in judge._owned(story.machine, free_at, claimed_at)):
        limit_s += _settles_s(judge, free_at, claimed_at)
    if claimed_at - free_at > limit_s:
        yield f"{story.name} was claimed {claimed_at - free_at:.1f} s after it could be, {limit_s:.1f} at most: {story}"


def _settles_s(judge: Judge, since: float, until: float) -> float:
    """Return for how long a lost slot is waited for by processes that run: each counts on, from its last write on."""
    deaths = sum(since <= life.died_at <= until for life in judge.lives if life.name.startswith(EXECUTOR))
    return SETTLE_S + (COUNT_S + CLOCK_S) * deaths


def _calm(judge: Judge, story: Story, since: float, until: float) -> Iterator[str]:
    """Yield faults of an operation without disturbances: it is done in time, with little work."""
    dies = any(life.name.startswith(EXECUTOR) and since <= life.died_at <= until for life in judge.lives)
    changed = {(one.uid, one.host) for one in judge._owned(story.machine, since, until)}
    meddled = story.spec.get("cancel") or story.spec.get("abandon") or story.deleting or len(changed) > 1
    if not judge.calm or dies or meddled or judge._taken_s(story.machine, since, until):
        return
    grace_s = float(story.spec.get("parameters", {}).get("graceSeconds", 120)) if judge.deaf else 0.0
    limit_s, took_s = CALM_S + grace_s, until - since
    if story.status.get("phase") != "Complete" and story.deadline_s > limit_s and not judge.deaf:
        yield f"{story} is not Complete, and nothing went wrong"
    if took_s > limit_s:
        yield f"{story.name} took {took_s:.1f} s, {limit_s:.1f} at most: {story}"
    if story.writes > WRITES + took_s / FOR_EACH_S:
        yield f"{story.name} was written {story.writes} times in {took_s:.1f} s"
    looks = sum(len(at) for (_life, uid), at in judge.reads.items() if uid == story.uid)
    if looks > LOOKS + took_s / FOR_EACH_S * 1.5:
        yield f"{story.name} was looked at {looks} times in {took_s:.1f} s"


def _settles(judge: Judge, machine: str, now: float) -> bool:
    """Return whether there was no time yet to release a lost lock; its operation exists until then."""
    states = judge.machines[machine]
    lost_at = next(one.since for one, before in zip(states[:0:-1], states[-2::-1], strict=True) if not before.lost)
    return now - lost_at <= _settles_s(judge, lost_at, now) + judge._down_s(EXECUTOR, lost_at, now) + judge._trouble_s()


def _machines(judge: Judge, transitions: Transitions) -> Iterator[str]:
    """Check that no lock is left at the end, and that each Machine lists its operations and the state of its host."""
    now = asyncio.get_running_loop().time()
    for name, machine in judge.bodies.items():
        status: Mapping[str, Any] = machine.get("status") or {}
        slot = status.get("activeOperation")
        if slot and not (slot.get("lost") and _settles(judge, name, judge.stories[slot["uid"]].gone_at or now)):
            yield f"the slot of {name} is kept: {status['activeOperation']}"
        told = {one["uid"]: one for one in status.get("recentOperations", ())}
        mine = [
            one
            for one in judge.stories.values()
            if one.machine == name and one.claimed_at is not None and one.released == machine["metadata"]["uid"]
        ]
        cut = {at for of, at, _ in judge.taken if of == name}  # its slot was taken from it
        for story in mine[-5:]:
            if story.released_at in cut:
                continue
            if story.uid not in told:
                yield f"{name} does not tell of {story.name}"
            elif told[story.uid]["reason"] != story.status.get("reason"):
                yield f"{name} tells of {story.name}: {told[story.uid]}, and it is {story.status}"
        last = max(mine, key=lambda one: one.released_at, default=None)
        if last is None or slot or judge.weather is not FAIR:
            continue
        marks = [one for one in status.get("conditions", ()) if one["type"] == "PoweredOff"]
        if judge.held_last[name] != last.uid:
            holder = judge.stories.get(judge.held_last[name])
            if holder is not None and holder.claimed_at is None and marks and marks[0]["reason"] != "PoweredOff":
                yield f"{name} shows {marks} of {holder.name}, which was never claimed"
            continue
        execution = last.status.get("execution") or {}
        fact, is_open = execution.get("fact"), bool(execution.get("action")) and last.status["phase"] != "Complete"
        if fact == "Off" and is_open:  # its action may have its effect later: neither state is proven
            fact = "On"
        if judge._was_lost(last):  # the host that the Machine names then was read when the slot was given back
            host = next(judge._owned(name, last.released_at, last.released_at)).host
            fact = [state for at, state in transitions[host] if at <= last.released_at][-1]
        if fact in ("On", "Off") and ([one["status"] for one in marks] == ["True"]) != (fact == "Off"):
            yield f"{name} shows {marks} after {last.name} read {fact}"
