"""The engine without faults: each kind of executor carries its operation out, and the status reports it."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.operations.world import World
from tests.support.virtual_time import run_virtual
from unbounded.api.machine import MACHINES
from unbounded.metalman import power


def test_a_reboot_is_off_seen_off_on_seen_on() -> None:
    async def story() -> None:
        world = World(random.Random(1))
        await world.machine("m1")
        world.steward().start()
        world.redfish().start()
        await world.operation("r1", "HostReboot", "m1")
        operation = await world.ended("r1", within_s=60)
        assert (operation.status.phase, operation.status.reason) == ("Complete", "Succeeded")
        assert [evidence.what for evidence in operation.status.evidence] == [power.EVIDENCE_OFF, power.EVIDENCE_ON]
        assert [act.action for act in world.outside.acts] == [power.SHUT_DOWN, power.SWITCH_ON]
        await asyncio.sleep(5)
        machine = await world.api.get(MACHINES, "m1")
        assert machine.status.active_operation is None
        assert [recent.name for recent in machine.status.recent_operations] == ["r1"]
        assert (await world.get("r1")).metadata.finalizers == ()

    run_virtual(story(), limit_s=600)


def test_an_end_is_announced_once_as_good_or_bad_news() -> None:
    async def story() -> None:
        world = World(random.Random(2))
        await world.machine("m1")
        world.steward().start()
        world.redfish().start()
        await world.operation("good", "HostReboot", "m1")
        await world.ended("good", within_s=60)
        await world.operation("bad", "HostPowerOff", "m1", deadlineSeconds=2)
        await world.ended("bad", within_s=60)
        await asyncio.sleep(60)
        assert world.announced == [("good", "Normal", "Succeeded"), ("bad", "Warning", "DeadlineExceeded")]

    run_virtual(story(), limit_s=600)


@pytest.mark.parametrize(("alone", "at_most_s"), [(True, 15.0), (False, 90.0)], ids=["alone", "perhaps-not"])
def test_who_is_alone_goes_on_at_once_after_its_own_restart(alone: bool, at_most_s: float) -> None:
    """Anybody else waits until an earlier incarnation can no longer act."""

    async def story() -> None:
        world = World(random.Random(3), reaps=False)
        await world.machine("m1")
        world.steward().start()
        await world.operation("n1", "NodeReboot", "m1")
        keeping = asyncio.create_task(world.agent("m1", alone=alone).keep(crashes=[], pause_s=(0.0, 5.0)))
        operation = await world.ended("n1", within_s=at_most_s)
        keeping.cancel()
        assert operation.status.phase == "Complete"
        assert (asyncio.get_running_loop().time() > 45) is not alone
        world.judge()

    run_virtual(story(), limit_s=600)
