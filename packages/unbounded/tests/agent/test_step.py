"""Walking steps: order, what runs at the same time, what a failure stops, and the way back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from unbounded.agent.interfaces import OnProgress
from unbounded.agent.steps.step import ReversibleStep, add_all, faults, ordered, remove_all
from unbounded.api.failures import Rejected, Transient


@dataclass
class World:
    """The actions of the steps, in order; `ended` has the interrupted ones."""

    there: set[str] = field(default_factory=set)
    did: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)


def step(name: str, *after: str, takes_s: float = 0.0, fails: Exception | None = None) -> ReversibleStep[World]:
    async def present(world: World) -> bool:
        return name in world.there

    async def add(world: World, report: OnProgress) -> None:
        report("at work")
        try:
            await asyncio.sleep(takes_s)
        except asyncio.CancelledError:
            world.interrupted.append(name)
            raise
        if fails:
            raise fails
        world.did.append(name)
        world.there.add(name)

    async def remove(world: World) -> None:
        if fails:
            raise fails
        world.did.append(f"-{name}")
        world.there.discard(name)

    return ReversibleStep(name, present, add, remove, after)


async def test_a_step_waits_for_what_it_builds_on_and_for_nothing_else() -> None:
    world = World()
    steps = [step("c", "a"), step("a", takes_s=0.02), step("b")]
    assert set(await add_all(steps, world, world.told.append)) == {"a", "b", "c"}
    assert world.did == ["b", "a", "c"]
    assert "a: at work" in world.told


async def test_what_is_present_is_left_alone() -> None:
    world = World(there={"a"})
    assert await add_all([step("a"), step("b", "a")], world, world.told.append) == ("b",)
    assert await add_all([step("a"), step("b", "a")], world, world.told.append) == ()


async def test_no_more_than_a_few_run_at_once() -> None:
    running: set[str] = set()
    most = 0

    def counting(name: str) -> ReversibleStep[World]:
        async def add(world: World, report: OnProgress) -> None:
            nonlocal most
            running.add(name)
            most = max(most, len(running))
            await asyncio.sleep(0.005)
            running.remove(name)

        plain = step(name)
        return ReversibleStep(name, plain.present, add, plain.remove)

    await add_all([counting(str(number)) for number in range(6)], World(), lambda _words: None, at_once=2)
    assert most == 2


async def test_the_first_failure_names_its_step_and_stops_the_others() -> None:
    world = World()
    steps = [step("slow", takes_s=60), step("bad", fails=Rejected("no such package")), step("after", "slow")]
    with pytest.raises(Rejected, match=r"^bad: no such package$"):
        await add_all(steps, world, world.told.append)
    assert world.interrupted == ["slow"]
    assert world.did == []


async def test_bug_in_a_step_is_not_reported_as_host_failure() -> None:
    with pytest.raises(KeyError):
        await add_all([step("bug", fails=KeyError("x"))], World(), lambda _words: None)


async def test_a_cancelled_walk_ends_its_steps() -> None:
    world = World()
    walk = asyncio.create_task(add_all([step("slow", takes_s=60)], world, world.told.append))
    await asyncio.sleep(0.01)
    walk.cancel()
    with pytest.raises(asyncio.CancelledError):
        await walk
    assert world.interrupted == ["slow"]


async def test_the_way_back_goes_on_after_a_failure_and_names_it() -> None:
    world = World()
    steps = [step("c", "b"), step("b", "a", fails=Transient("busy")), step("a")]
    assert [str(left) for left in await remove_all(steps, world)] == ["b: busy"]
    assert world.did == ["-c", "-a"]


def test_faults_of_a_step_list_are_reported() -> None:
    assert faults([step("a", "b"), step("b", "a")]) == ["steps wait for each other: a → b → a"] or faults(
        [step("a", "b"), step("b", "a")]
    ) == ["steps wait for each other: b → a → b"]
    assert faults([step("a", "z")]) == ["'a' comes after 'z', which there is not"]
    assert faults([step("a"), step("a")]) == ["two steps are named 'a'"]
    with pytest.raises(ValueError, match="wait for each other"):
        ordered([step("a", "b"), step("b", "a")])
