"""One account that is throttled, or does not answer, delays no other."""

from __future__ import annotations

import asyncio

import pytest

from tests.machineops.cloud import TAKES_S
from tests.machineops.world import CloudWorld, cloud_story
from tests.operations.staging import in_stage, result
from unbounded.machineops import power
from unbounded.machineops.power import CONFIRM_S
from unbounded.machineops.provider import Power, Rate, Rates, Throttled

MACHINES = 25  # of each account; more than are worked on at once


async def _both(world: CloudWorld, count: int = 1) -> None:
    """Machines of two accounts, each with an operation."""
    for scope in ("sub-1", "sub-2"):
        for number in range(count):
            await world.instance(f"{scope}-m{number}", scope)
    world.steward().start()
    world.controller().start()
    for scope in ("sub-1", "sub-2"):
        for number in range(count):
            await world.operation(f"op-{scope}-{number}", "HostPowerOff", f"{scope}-m{number}")


@pytest.mark.slow
@cloud_story()
async def test_an_account_that_is_throttled_waits_and_another_one_goes_on(world: CloudWorld) -> None:
    world.cloud.closed["sub-1"] = 120.0
    await _both(world)
    started = asyncio.get_running_loop().time()
    other = await world.ended("op-sub-2-0", within_s=30)
    assert result(other) == ("Complete", "Succeeded")
    waits = await world.get("op-sub-1-0")
    assert "rate limits" in (waits.status.message or "") or "too many requests" in (waits.status.message or "")
    assert result(await world.ended("op-sub-1-0", within_s=200)) == ("Complete", "Succeeded")
    assert asyncio.get_running_loop().time() - started >= 119
    assert world.cloud.turned_away == 1  # a throttled client does not repeat its request at once


@cloud_story()
async def test_call_delayed_by_the_rate_budget_is_reported_as_such(world: CloudWorld) -> None:
    await world.instance()
    world.cloud.raises["look"] = Throttled("too many requests", 15.0)
    world.steward().start()
    world.controller().start()
    await world.operation("op", "HostPowerOff", "m1")
    words = "as its rate limits delay reads of sub-1: nothing was sent"
    await world.until("op", lambda one: words in (one.status.message or ""), within_s=14)
    ended = await world.ended("op", within_s=60)
    assert result(ended) == ("Complete", "Succeeded")


@pytest.mark.slow
@cloud_story()
async def test_an_ask_that_is_throttled_again_and_again_is_still_made(world: CloudWorld) -> None:
    await world.instance()
    world.steward().start()
    world.controller().start()
    await world.operation("op", "HostReboot", "m1")
    world.cloud.always["Restart"] = Throttled("too many requests", 5.0)
    await asyncio.sleep(150)
    assert (await world.get("op")).status.phase == "InProgress"
    world.cloud.always.clear()
    assert result(await world.ended("op", within_s=200)) == ("Complete", "Succeeded")
    assert [call.what for call in world.cloud.calls].count("Restart") == 1


def _took_s(*, stalled: bool) -> float:
    """Return the duration of the operations of one account, while another one is healthy or answers after 28 s."""
    found: list[float] = []

    @cloud_story()
    async def story(world: CloudWorld) -> None:
        world.cloud.stalled["sub-1"] = 28.0 if stalled else 0.0
        await _both(world, MACHINES)
        started = asyncio.get_running_loop().time()
        for number in range(MACHINES):
            await world.ended(f"op-sub-2-{number}", within_s=200)
        found.append(asyncio.get_running_loop().time() - started)
        for number in range(MACHINES):
            await world.ended(f"op-sub-1-{number}", within_s=2000)

    story()
    return found[0]


@pytest.mark.slow
def test_an_account_that_stalls_does_not_delay_another_one() -> None:
    assert _took_s(stalled=True) <= 1.1 * _took_s(stalled=False)


@pytest.mark.slow
@cloud_story()
async def test_what_the_cloud_is_working_on_keeps_no_place(world: CloudWorld) -> None:
    await _both(world, MACHINES)
    for number in range(MACHINES):
        for scope in ("sub-1", "sub-2"):
            assert result(await world.ended(f"op-{scope}-{number}", within_s=200)) == ("Complete", "Succeeded")
    asked = [call.at for call in world.cloud.calls if call.what == "PowerOff"]
    assert max(asked) - min(asked) < 2  # by turns of ten it is five times what the cloud takes


@pytest.mark.slow
@cloud_story()
async def test_operations_start_only_within_the_rate_limits_of_the_account(world: CloudWorld) -> None:
    slow, places = Rate(1, 1.0), 10
    for number in range(MACHINES):
        await world.instance(f"m{number}")
    world.steward().start()
    world.controller(rates=Rates(slow, Rate(100, 50))).start()
    for number in range(MACHINES):
        await world.operation(f"op-{number}", "HostPowerOff", f"m{number}")
    started, names = asyncio.get_running_loop().time(), [f"op-{number}" for number in range(MACHINES)]
    found, looked = [await world.get(name) for name in names], 0
    while looked < MACHINES:
        await asyncio.sleep(0.5)
        found = [await world.get(name) for name in names]
        looked = sum(call.what == "look" for call in world.cloud.calls)
        assert sum(one.status.execution is not None for one in found) <= looked + places
    for name in names:
        assert result(await world.ended(name, within_s=200)) == ("Complete", "Succeeded")
    reads = sum(call.what in ("look", "follow") for call in world.cloud.calls)
    assert asyncio.get_running_loop().time() - started < 1.1 * reads / slow.per_s + TAKES_S + CONFIRM_S


@pytest.mark.slow
@pytest.mark.parametrize("at", [power.STARTING, power.RESTARTING])
@cloud_story()
async def test_more_instances_than_places_that_take_long_hold_up_no_other(world: CloudWorld, at: str) -> None:
    """Their changes began before the requests, or are the requested ones."""
    world.cloud.takes_s = 280.0
    for number in range(MACHINES):
        vm = await world.instance(f"m{number}")
        if at == power.STARTING:
            vm.becomes(Power.RUNNING, world.cloud.now(), world.cloud.takes_s)
    world.steward().start()
    world.controller().start()
    for number in range(MACHINES):
        await world.operation(f"op-{number}", "HostReboot", f"m{number}")
    for number in range(MACHINES):
        await in_stage(world, f"op-{number}", at)
    world.cloud.takes_s = TAKES_S
    await world.instance("other")
    await world.operation("other", "HostPowerOff", "other")
    assert result(await world.ended("other", within_s=30)) == ("Complete", "Succeeded")
    for number in range(MACHINES):
        assert result(await world.ended(f"op-{number}", within_s=400)) == ("Complete", "Succeeded")


@cloud_story()
async def test_a_login_may_tell_which_account_is_throttled(world: CloudWorld) -> None:
    world.cloud.raises["look"] = Throttled("too many requests", 250.0, scope="another tenancy")
    await world.instance()
    world.steward().start()
    world.controller().start()
    await world.operation("op", "HostPowerOff", "m1")
    assert result(await world.ended("op", within_s=60)) == ("Complete", "Succeeded")
