"""BMCReset on a lab BMC: it goes away once, answers again, and its host stays as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import pytest

from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.metalman.bmc_reset import EVIDENCE_GONE, EVIDENCE_RESTART
from unbounded_lab.bmc.faults import BmcFaults
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostPower

pytestmark = pytest.mark.slow

LONG: Final = BmcFaults(restart_s=400.0, restart_gone_s=390.0)


def run(scene: Coroutine[Any, Any, None]) -> None:
    run_swiftly(scene)


def result(operation: MachineOperation) -> tuple[str | None, str | None]:
    return operation.status.phase, operation.status.reason


def whats(operation: MachineOperation) -> set[str]:
    return {one.what for one in operation.status.evidence}


@pytest.mark.parametrize("power", [HostPower.ON, HostPower.OFF])
@pytest.mark.parametrize(
    "faults", [BmcFaults(), LONG, BmcFaults(last_reset_shown=False)], ids=["ideal", "long", "no-reset-time"]
)
def test_bmc_is_restarted_once_and_its_host_stays_as_it_is(power: HostPower, faults: BmcFaults) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=faults, power=power) as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            operation = await cluster.done("BMCReset", machine)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert bmc.bmc.restarts == 1
            assert bmc.history() == []
            assert {f"before the reset, the host was {power}", EVIDENCE_RESTART} <= whats(operation)
            assert f"after the reset, the host is {power}, as before" in whats(operation)
            if not faults.last_reset_shown:
                assert EVIDENCE_GONE in whats(operation)

    run(scene())


@pytest.mark.parametrize(
    ("faults", "ends", "restarts"),
    [
        pytest.param(BmcFaults(lost_after=1), ("Complete", "Succeeded"), 1, id="the answer is lost"),
        pytest.param(BmcFaults(lost_before=1), ("Failed", "OutcomeUnknown"), 0, id="the request is lost"),
    ],
)
def test_a_reset_without_an_answer_is_not_sent_twice(faults: BmcFaults, ends: tuple[str, str], restarts: int) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=faults) as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            operation = await cluster.done("BMCReset", machine)
            assert result(operation) == ends, operation.status.message
            assert bmc.bmc.restarts == restarts

    run(scene())


@pytest.mark.parametrize(
    ("faults", "ends", "text"),
    [
        (BmcFaults(manager_reset="absent"), ("Failed", "BMCRefused"), "manager BMC has no action #Manager.Reset"),
        (BmcFaults(manager_reset="ignored"), ("Failed", "TimedOut"), "timed out waiting for the BMC to restart"),
        (
            BmcFaults(restart_s=5_000.0, restart_gone_s=5_000.0),
            ("Failed", "BMCNotRestarted"),
            "the BMC stopped answering, and did not restart in time",
        ),
    ],
)
def test_a_bmc_that_does_not_restart_fails_with_its_reason(faults: BmcFaults, ends: tuple[str, str], text: str) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=faults) as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            operation = await cluster.done("BMCReset", machine)
            assert result(operation) == ends, operation.status.message
            assert text in (operation.status.message or "")
            assert bmc.power() is HostPower.ON

    run(scene())


def test_a_changed_power_state_after_the_reset_is_no_success() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=LONG) as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            name = await cluster.ask("BMCReset", machine)
            await cluster.in_stage(name, "WaitingBMC")
            bmc.host().unplug(bmc.clock.now())
            operation = await cluster.ended(name)
            assert result(operation) == ("Failed", "PowerChanged"), operation.status.message
            assert "the BMC restarted, and the host is not as before" in (operation.status.message or "")

    run(scene())


def test_a_cancel_has_no_effect_once_the_reset_was_sent() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=LONG) as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            name = await cluster.ask("BMCReset", machine)
            await cluster.in_stage(name, "WaitingBMC")
            await cluster.api.patch(MACHINE_OPERATIONS, name, {"spec": {"cancel": True}})
            await asyncio.sleep(30)
            assert "it continues" in ((await cluster.operation(name)).status.message or "")
            assert result(await cluster.ended(name)) == ("Complete", "Succeeded")

    run(scene())


@pytest.mark.parametrize("stage", ["RestartingBMC", "WaitingBMC"])
def test_a_successor_finishes_the_reset_and_sends_none(stage: str) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc:
            (machine,) = await cluster.add(bmc)
            async with metalman(cluster):
                name = await cluster.ask("BMCReset", machine)
                await cluster.in_stage(name, stage)
                await asyncio.sleep(1.0)
            async with metalman(cluster):
                operation = await cluster.ended(name)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert bmc.bmc.restarts == 1

    run(scene())


def test_a_reboot_waits_for_the_bmc_that_is_reset() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=BmcFaults(systems=("1", "2"), restart_s=60.0, restart_gone_s=55.0)) as bmc:
            async with metalman(cluster):
                first, second = await cluster.add(bmc)
                reset = await cluster.ask("BMCReset", first)
                await cluster.in_stage(reset, "WaitingBMC")
                reboot = await cluster.done("HostReboot", second)
                assert result(reboot) == ("Complete", "Succeeded"), reboot.status.message
                assert result(await cluster.ended(reset)) == ("Complete", "Succeeded")
            assert bmc.bmc.restarts == 1

    run(scene())
