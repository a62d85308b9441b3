"""The power of idle machines in `status.power`: how soon it is true, what it costs, and what it gives way to."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from tests.support.waiting import eventually
from unbounded.api.core import EVENTS
from unbounded.api.machine import MachinePower, PowerStatus
from unbounded.metalman.power_reader import INTERVAL_S, UNSETTLED_S, ReadBudget, power_change
from unbounded_lab.bmc import HostPower, LabBmc, Press

AT, LATER = "2030-01-01T00:00:00Z", "2030-01-01T00:05:00Z"
TRUE_WITHIN_S = 120.0
ON, OFF, UNKNOWN = MachinePower
IS_OFF = {"type": "PoweredOff", "status": "True", "reason": "PoweredOff", "message": "by an operation"}
READY = {"type": "Ready", "status": "True"}


def test_equal_reading_changes_nothing() -> None:
    assert power_change(PowerStatus(state="On", at=AT), [READY], ON, LATER) is None
    assert power_change(PowerStatus(state="Off", at=AT), [READY, IS_OFF], OFF, LATER) is None
    assert power_change(PowerStatus(state="Unknown", at=AT), [IS_OFF], UNKNOWN, LATER) is None


def test_condition_follows_the_reading() -> None:
    off = power_change(PowerStatus(state="On", at=AT), [READY], OFF, LATER)
    assert off is not None
    assert off["power"] == {"state": "Off", "at": LATER}
    assert [(one["type"], one["status"]) for one in off["conditions"]] == [("Ready", "True"), ("PoweredOff", "True")]
    assert power_change(PowerStatus(state="Off", at=AT), [READY, IS_OFF], ON, LATER) == {
        "power": {"state": "On", "at": LATER},
        "conditions": [READY],
    }
    assert power_change(None, [IS_OFF], OFF, AT) == {"power": {"state": "Off", "at": AT}}, "its message stays"
    rising = IS_OFF | {"reason": "PoweringOn"}
    off = power_change(PowerStatus(state="Off", at=AT), [rising], OFF, LATER)
    assert off is not None
    assert [one["reason"] for one in off["conditions"]] == ["PoweredOff"], "no operation has the host any more"
    assert power_change(None, [IS_OFF], UNKNOWN, AT) == {"power": {"state": "Unknown", "at": AT}}


@given(st.integers(1, 40), st.floats(0.1, 100.0), st.integers(1, 4))
def test_budget_bounds_the_turns_and_leaves_none_out(bmcs: int, per_s: float, rounds: int) -> None:
    budget = ReadBudget(per_s)
    now = 1000.0
    for _ in range(rounds):
        turns = [budget.turn("site", now) for _ in range(bmcs)]
        assert turns == sorted(turns)
        assert turns[-1] - turns[0] == pytest.approx((bmcs - 1) / per_s)
        assert budget.turn("another site", now) <= turns[-1] + 1 / per_s
        now = turns[-1]


# ---- with a BMC


def run(scene: Coroutine[Any, Any, None]) -> None:
    run_swiftly(scene, limit_s=7200.0)


async def power_of(cluster: Cluster, name: str) -> str | None:
    power = (await cluster.machine(name)).status.power
    return power.state if power is not None else None


def writes(cluster: Cluster, name: str) -> int:
    return sum((each.kind, each.name) == ("Machine", name) for each in cluster.written)


async def messages(cluster: Cluster) -> list[str]:
    await asyncio.sleep(1.0)
    found = (await cluster.api.list(EVENTS, namespace="default")).items
    return [each.message or "" for each in found if each.reason == "PowerChanged"]


def test_a_host_that_somebody_switches_is_seen_within_two_minutes() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster, reads_per_s=30.0):
            (machine,) = await cluster.add(bmc)
            await asyncio.sleep(TRUE_WITHIN_S)
            assert await power_of(cluster, machine) == "On"
            assert await cluster.condition(machine, "PoweredOff") is None
            bmc.host().press(Press.FORCE_OFF, bmc.clock.now())
            await asyncio.sleep(TRUE_WITHIN_S)
            assert await power_of(cluster, machine) == "Off"
            assert await cluster.condition(machine, "PoweredOff") == ("True", "PoweredOff")
            off = "the power of the host is Off, and was On; no operation of metalman switched it"
            assert await messages(cluster) == [off]
            bmc.host().press(Press.ON, bmc.clock.now())
            await asyncio.sleep(TRUE_WITHIN_S)
            assert await power_of(cluster, machine) == "On"
            assert await cluster.condition(machine, "PoweredOff") is None
            assert len(await messages(cluster)) == 2

    run(scene())


def test_an_unchanged_power_costs_one_read_and_no_write() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster, reads_per_s=30.0):
            (machine,) = await cluster.add(bmc)
            await asyncio.sleep(400.0)
            written, asked = writes(cluster, machine), bmc.bmc.requests
            await asyncio.sleep(10 * INTERVAL_S)
            assert writes(cluster, machine) == written
            reads = [each for each in list(bmc.bmc.journal)[asked:] if each.path.endswith("/Systems/1")]
            assert 9 <= len(reads) <= 11
            assert bmc.bmc.requests - asked <= 3 * len(reads), "a log-in, a read and a log-out"

    run(scene())


def test_the_budget_of_a_site_spreads_its_readings() -> None:
    async def scene() -> None:
        cluster = Cluster()
        names = tuple(f"Node{number}" for number in range(8))
        async with LabBmc() as bmc, metalman(cluster, reads_per_s=0.05):
            await bmc.set_faults(systems=names)
            machines = await cluster.add(bmc)
            await asyncio.sleep(280.0)
            assert [await power_of(cluster, machine) for machine in machines] == ["On"] * len(names)
            began = bmc.clock.now()
            await asyncio.sleep(240.0)
            read = [each.at for each in bmc.bmc.journal if each.at > began and "/Systems/" in each.path]
            assert 11 <= len(read) <= 13
            assert min(later - at for at, later in pairwise(read)) > 19.0

    run(scene())


def test_an_operation_reads_for_itself_and_its_result_costs_no_further_read() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(shutdown_s=250.0) as bmc, metalman(cluster, reads_per_s=30.0):
            (machine,) = await cluster.add(bmc)
            await asyncio.sleep(INTERVAL_S + 5)
            logins = bmc.bmc.access.logins
            await cluster.done("HostPowerOff", machine, parameters={"graceSeconds": "600"})
            assert bmc.bmc.access.logins == logins + 1, "no reading of its own beside the operation"
            asked = bmc.bmc.requests
            await asyncio.sleep(1.0)
            assert await power_of(cluster, machine) == "Off"
            assert bmc.bmc.requests == asked
            assert await cluster.condition(machine, "PoweredOff") == ("True", "PoweredOff")
            assert await messages(cluster) == [], "an operation has switched it"

    run(scene())


def test_a_silent_bmc_makes_the_power_unknown() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster, reads_per_s=30.0):
            (machine,) = await cluster.add(bmc)
            await asyncio.sleep(TRUE_WITHIN_S)
            await bmc.unplug()
            await asyncio.sleep(4 * INTERVAL_S)
            assert await power_of(cluster, machine) == "Unknown"
            assert await messages(cluster) == ["the power of the host is Unknown, and was On"]
            await bmc.plug()
            await asyncio.sleep(TRUE_WITHIN_S)
            assert await power_of(cluster, machine) == "Off", "what the mains have left"
            assert bmc.power() is HostPower.OFF

    run(scene())


def test_a_wrong_password_is_offered_once() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster, reads_per_s=30.0):
            (machine,) = await cluster.add(bmc)
            await cluster.set_password(bmc, "wrong")
            await asyncio.sleep(20 * INTERVAL_S)
            assert bmc.bmc.access.refused_logins == 1
            assert await power_of(cluster, machine) == "Unknown"
            await cluster.set_password(bmc, bmc.password)
            await asyncio.sleep(TRUE_WITHIN_S)
            assert await power_of(cluster, machine) == "On"

    run(scene())


def test_a_power_that_the_bmc_does_not_name_is_read_again_soon() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(boot_s=5.0) as bmc, metalman(cluster, reads_per_s=30.0):
            await bmc.set_faults(transitions="null")
            bmc.host().press(Press.FORCE_RESTART, bmc.clock.now())
            (machine,) = await cluster.add(bmc)
            await asyncio.sleep(4.0)  # its certificate is pinned, and it is read
            assert "/redfish/v1/Systems/1" in {each.path for each in bmc.bmc.journal}
            assert await power_of(cluster, machine) is None
            await asyncio.sleep(UNSETTLED_S)
            assert await power_of(cluster, machine) == "On"

    run(scene())


@pytest.mark.parametrize("reads_once", [False, True])
def test_no_reading_from_before_an_operation_has_switched_a_host_on_counts_after_it(reads_once: bool) -> None:
    """The BMC fails once it has been asked to switch the host on, at once or after one more reading of Off."""

    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(power=HostPower.OFF, boot_s=20.0) as bmc, metalman(cluster, reads_per_s=30.0):
            (machine,) = await cluster.add(bmc)
            await asyncio.sleep(TRUE_WITHIN_S)
            assert await cluster.condition(machine, "PoweredOff") == ("True", "PoweredOff")
            await bmc.set_faults(power_lie_s=10.0)
            name = await cluster.ask("HostPowerOn", machine)

            async def is_switched_on() -> bool:
                return any(each.what == "pressed" for each in bmc.history())

            async def is_read_again() -> bool:
                return any(each.path.endswith("/Systems/1") for each in list(bmc.bmc.journal)[asked:])

            await eventually(is_switched_on, within_s=60, every_s=0.1)
            asked = len(bmc.bmc.journal)
            if reads_once:
                await eventually(is_read_again, within_s=60, every_s=0.1)
            await bmc.set_faults(unavailable_s=3600.0)
            assert (await cluster.ended(name)).status.phase == "Failed"
            assert bmc.power() is HostPower.ON
            assert await cluster.condition(machine, "PoweredOff") is None
            await asyncio.sleep(1.0)
            assert await cluster.condition(machine, "PoweredOff") is None
            await asyncio.sleep(4 * INTERVAL_S)
            assert await power_of(cluster, machine) == "Unknown"
            assert await cluster.condition(machine, "PoweredOff") is None

    run(scene())
