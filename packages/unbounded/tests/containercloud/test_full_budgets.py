"""Deletions while the disruption budget of their Cluster has no room, with the real disruption controller."""

from __future__ import annotations

import asyncio

import pytest

from tests.containercloud.storm import CrashSite, crash_site, reason_of, stage_of
from tests.support.virtual_time import run_virtual
from unbounded.api.container_cloud.machine import ContainerCloudMachine, MachineStage
from unbounded.api.core import NODES
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.api import StrategicMerge

BUDGET = "example-cluster.example-ns.workers"


async def has_no_room(site: CrashSite) -> None:
    """Wait for two workers, of which one is in maintenance: the budget lets one of them be unavailable."""
    await site.surroundings()
    await site.asked("a")
    await site.asked("b")
    await site.stocked(2)
    await site.wait(lambda: len(site.ready()) == 2)
    await site.edit_machine("a", maintenance=True)
    await site.wait(lambda: stage_of(named(site, "a")) == MachineStage.MAINTAINED)
    budget = site.judge.find(MACHINE_DISRUPTION_BUDGETS, BUDGET)
    assert budget is not None
    assert [one.holder.kind for one in budget.status.grants] == ["Maintenance"]


def named(site: CrashSite, name: str) -> ContainerCloudMachine:
    return next(one for one in site.machines() if one.name == name)


def held_by(site: CrashSite, name: str) -> str:
    execution = named(site, name).status.execution
    return "" if execution is None or execution.waiting is None else execution.waiting.held_by or ""


@pytest.mark.parametrize("policy", ["unsafe", "forced"])
def test_an_unsafe_or_forced_deletion_waits_for_no_budget_and_records_that(policy: str) -> None:
    async def scene() -> None:
        async with crash_site(1) as site:
            processes = [one.start().task for one in (site.container_cloud(), site.disrupter(), site.updater())]
            await has_no_room(site)
            overridden = set[str]()
            await site.edit_machine("b", delete=True, deletionPolicy=policy)

            def is_gone() -> bool:
                for one in site.judge.all(MACHINES):
                    if one.status.disruption is not None and one.status.disruption.overridden:
                        overridden.add(one.status.disruption.holder.kind)
                return "b" not in {one.name for one in site.machines()}

            await site.wait(is_gone, within_s=60)
            assert overridden == {"HostPowerOff"}
            (off,) = [
                one
                for one in site.judge.all(MACHINE_OPERATIONS)
                if one.spec.operation_kind == "HostPowerOff" and one.spec.override is not None
            ]
            assert off.spec.override == f"deletionPolicy {policy} of Machine example-ns/b"
            assert off.status.phase == "Complete"
            assert stage_of(named(site, "a")) == MachineStage.MAINTAINED
            for task in processes:
                task.cancel()

    run_virtual(scene())


def test_a_graceful_deletion_waits_for_the_budget_until_its_policy_is_loosened() -> None:
    async def scene() -> None:
        async with crash_site(1) as site:
            processes = [one.start().task for one in (site.container_cloud(), site.disrupter(), site.updater())]
            await has_no_room(site)
            await site.edit_machine("b", delete=True, deletionPolicy="graceful")
            await asyncio.sleep(600)
            assert (stage_of(named(site, "b")), reason_of(named(site, "b"))) == ("Draining", "Draining")
            assert held_by(site, "b") == f"MachineDisruptionBudget {BUDGET}"
            await site.edit_machine("b", deletionPolicy="unsafe")
            await site.wait(lambda: "b" not in {one.name for one in site.machines()}, within_s=60)
            for task in processes:
                task.cancel()

    run_virtual(scene())


@pytest.mark.parametrize("policy", ["graceful", "unsafe", "forced"])
def test_only_a_graceful_deletion_waits_for_the_maintenance_of_another_controller(policy: str) -> None:
    async def scene() -> None:
        async with crash_site(1) as site:
            processes = [one.start().task for one in (site.container_cloud(), site.disrupter(), site.updater())]
            await site.surroundings()
            await site.asked("a")
            await site.stocked(1)
            await site.wait(lambda: site.ready() == ["a"])
            foreign = {"type": "MaintenanceInProgress", "status": "True", "reason": "Kured", "message": "reboot"}
            marks = StrategicMerge({"status": {"conditions": [foreign]}})
            await site.api.patch(NODES, "host-0.example-ns", marks, subresource="status")
            await asyncio.sleep(10)
            await site.edit_machine("a", delete=True, deletionPolicy=policy)
            if policy == "graceful":
                await asyncio.sleep(600)
                assert (stage_of(named(site, "a")), reason_of(named(site, "a"))) == ("Draining", "Draining")
                assert held_by(site, "a") == "condition MaintenanceInProgress of Node host-0.example-ns"
                await site.edit_machine("a", deletionPolicy="unsafe")
            await site.wait(lambda: not site.machines(), within_s=60)
            offs = [one for one in site.judge.all(MACHINE_OPERATIONS) if one.spec.override is not None]
            assert [(one.spec.operation_kind, one.status.phase) for one in offs] == [("HostPowerOff", "Complete")]
            for task in processes:
                task.cancel()

    run_virtual(scene())
