"""NodeReboot in virtual time: its table, its evidence, and that it ends well wherever the agent or the power is cut."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from itertools import product
from typing import Any

import msgspec
import pytest

from tests.agent.operations.simulated import SimulatedHost, SimulatedNodes, unlocked
from tests.operations.faults import Incarnation
from tests.operations.world import Process, World
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.agent.durations import Durations, TimedWork
from unbounded.agent.executor import AgentExecutor
from unbounded.agent.operations.node_reboot import (
    EVIDENCE_BOOTED,
    EVIDENCE_RENEWED,
    NODE_REBOOT,
    STARTING,
    STOPPING_MACHINE,
    STOPPING_SERVICES,
    UNDOING,
    VERIFYING,
    LeaseRenewals,
    NodeReboot,
    NodeState,
    procedure,
)
from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS, KubeletSettings, NodeSettings
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.kube.api import Api

SOAK = bool(os.environ.get("UNBOUNDED_SOAK"))
SCHEDULES = 500 if SOAK else 20
PAUSES_S = ((0.0, 1.0), (20.0, 90.0))
ALL = ["stop kubelet", "stop containerd", "stop machine", "start machine", "start containerd", "start kubelet"]


class Place:
    """A control plane with one Machine, its host, and its agent."""

    def __init__(self, seed: int = 0) -> None:
        self.world = World(random.Random(seed))
        self.world.api = MemoryApi(
            admit=self.world._write_down, now=virtual_now, namespaces=("default", "unbounded-kube", "kube-node-lease")
        )
        self.host = SimulatedHost()
        self.durations = Durations()
        self.agent: Process = self.world.executor("agent", self._executor, alone=True, watches_pause=False)

    def _executor(self, life: Incarnation, api: Api) -> AgentExecutor:
        work = NodeReboot(api, "m1", SimulatedNodes(self.host, life), unlocked, durations=self.durations)
        return AgentExecutor("m1", {OperationKind.NODE_REBOOT: work}, host_id="host")

    async def begin(self) -> None:
        await self.world.machine("m1")
        self._kubelet = asyncio.create_task(self.host.kubelet_forever(self.world.api))
        self.world.steward().start()

    async def reboot(self, **spec: Any) -> None:
        await self.world.operation("op", "NodeReboot", "m1", startDeadlineSeconds=3600, **spec)

    async def keep(self, crashes: list[tuple[int, bool]], pause_s: tuple[float, float]) -> None:
        """Live, be interrupted at these awaits (with the whole host), and live again; the last life continues."""
        for crash_at, power in crashes:
            running = self.agent.start(crash_at=crash_at)
            await running.life.dead.wait()
            await running.stop()
            if power:
                self.host.cut()
            await asyncio.sleep(self.world.chance.uniform(*pause_s))
        self.agent.start()

    async def ended(self) -> MachineOperation:
        return await self.world.ended("op", within_s=1800)


def facts_of(operation: MachineOperation) -> tuple[str | None, str | None, list[str]]:
    status = operation.status
    return status.phase, status.reason, [one.what for one in status.evidence]


def test_the_table_has_no_holes_and_no_lies() -> None:
    assert NODE_REBOOT.faults() == []
    assert NODE_REBOOT.table.keys() == set(product(NODE_REBOOT.stages, NodeState))


def test_a_reboot_stops_and_starts_each_thing_once_and_proves_it() -> None:
    async def story() -> None:
        place = Place()
        await place.begin()
        place.agent.start()
        before = place.host.boot
        stages: list[str] = []
        await place.reboot()
        while not (operation := await place.world.get("op")).terminal:
            if operation.status.targets and (stage := operation.status.targets[0].stage or "") not in stages[-1:]:
                stages.append(stage)
            await asyncio.sleep(0.02)
        assert facts_of(operation) == ("Complete", "Succeeded", [EVIDENCE_BOOTED, EVIDENCE_RENEWED])
        assert place.host.acts == ALL
        assert place.host.boot == before + 1
        assert stages == [STOPPING_SERVICES, STOPPING_MACHINE, STARTING, VERIFYING]
        assert [one.where for one in operation.status.evidence] == ["kube1, boot id boot-2"] * 2
        assert "kubelet runs, containerd runs" in (operation.status.message or "")

    run_virtual(story())


def test_reboot_applies_only_the_settings_of_the_configuration() -> None:
    async def story() -> None:
        place = Place()
        await place.begin()
        template = {"kubernetes": {"version": "v1.99.0"}, "kubelet": {"maxPods": 50}}
        version = {"metadata": {"name": "w-v1"}, "spec": {"version": 1, "template": template}}
        await place.world.api.create(MACHINE_CONFIGURATION_VERSIONS, version)
        ref = {"spec": {"configurationRef": {"name": "w", "version": 1}}}
        await place.world.api.patch(MACHINES, "m1", ref)
        before = place.host.applied.goal
        place.agent.start()
        await place.reboot()
        assert (await place.ended()).status.phase == "Complete"
        settings = NodeSettings(kubelet=KubeletSettings(max_pods=50))
        assert place.host.applied.goal == msgspec.structs.replace(before, settings=settings)

    run_virtual(story())


def test_the_lease_is_waited_for_no_longer_than_kubelet_takes() -> None:
    """The Lease while kubelet was stopped is the base: its first renewal after the start is the evidence."""

    async def story() -> float:
        place = Place()
        await place.begin()
        place.agent.start()
        await asyncio.sleep(25)
        await place.reboot()
        renewals = place.host.renewals
        await place.ended()
        return place.host.renewals - renewals

    assert run_virtual(story()) <= 1


@pytest.mark.slow
def test_a_slow_host_breaks_a_limit_once_and_gets_a_longer_one() -> None:
    async def story() -> None:
        place = Place()
        await place.begin()
        place.host.first_renewal_s = 500.0
        place.agent.start()
        await place.reboot(deadlineSeconds=3600)
        failed = await place.ended()
        assert (failed.status.phase, failed.status.reason) == ("Failed", "TimedOut"), failed.status
        assert "timed out waiting for kubelet to renew" in (failed.status.message or "")
        await asyncio.sleep(600)
        await place.world.operation("again", "NodeReboot", "m1", startDeadlineSeconds=3600, deadlineSeconds=3600)
        again = await place.world.ended("again", within_s=1800)
        assert facts_of(again) == ("Complete", "Succeeded", [EVIDENCE_BOOTED, EVIDENCE_RENEWED])

    run_virtual(story())


@pytest.mark.slow
def test_the_deadline_of_the_operation_bounds_longer_limits() -> None:
    async def story() -> None:
        place = Place()
        place.durations.completed(TimedWork.RENEWAL, 600.0)
        assert procedure(place.durations).stages[VERIFYING].limit_s == 1800.0
        await place.begin()
        place.host.first_renewal_s = 1000.0
        place.agent.start()
        await place.reboot()
        failed = await place.ended()
        assert (failed.status.phase, failed.status.reason) == ("Failed", "DeadlineExceeded"), failed.status

    run_virtual(story())


@pytest.mark.parametrize("seconds", [0.0, 1e6])
def test_the_procedure_is_sound_with_any_history(seconds: float) -> None:
    durations = Durations()
    for work in TimedWork:
        durations.completed(work, seconds)
    assert procedure(durations).faults() == []


def _awaits() -> int:
    async def story() -> int:
        place = Place()
        await place.begin()
        place.agent.start()
        await place.reboot()
        await place.ended()
        return place.world.lives[-1].awaits

    return run_virtual(story())


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["agent", "host"])
def test_it_ends_well_wherever_it_is_cut_off(power: bool) -> None:
    for crash_at in range(_awaits() + 2):
        for pause_s in PAUSES_S if SOAK else PAUSES_S[crash_at % 2 :][:1]:

            async def story(crash_at: int = crash_at, pause_s: tuple[float, float] = pause_s) -> None:
                place = Place(crash_at)
                await place.begin()
                keeper = asyncio.create_task(place.keep([(crash_at, power)], pause_s))
                await place.reboot()
                operation = await place.ended()
                keeper.cancel()
                cut_in = [life.crashed_in for life in place.world.lives]
                assert facts_of(operation) == ("Complete", "Succeeded", [EVIDENCE_BOOTED, EVIDENCE_RENEWED]), (
                    crash_at,
                    cut_in,
                )
                assert place.host.running, crash_at
                assert place.host.kubelet, crash_at
                assert place.host.enabled, crash_at
                if not power:
                    assert sorted(place.host.acts) == sorted(ALL), (crash_at, cut_in, place.host.acts)

            run_virtual(story())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_it_ends_in_any_schedule_of_cuts(seed: int) -> None:
    async def story(seed: int) -> None:
        place = Place(seed)
        chance = place.world.chance
        await place.begin()
        place.host.hangs = chance.random() < 0.3
        place.host.refuses_start, place.host.refuses_stop = chance.randrange(3), chance.randrange(3)
        crashes = [(chance.randrange(120), chance.random() < 0.4) for _ in range(chance.randrange(1, 6))]
        keeper = asyncio.create_task(place.keep(crashes, (0.0, 60.0)))
        await place.reboot()
        if chance.random() < 0.3:
            await asyncio.sleep(chance.uniform(0, 20))
            await place.world.cancel("op")
        operation = await place.ended()
        keeper.cancel()
        await asyncio.sleep(60)
        assert (operation.status.phase, operation.status.reason) in (
            ("Complete", "Succeeded"),
            ("Failed", "Cancelled"),
        ), operation.status
        assert (place.host.running, place.host.kubelet, place.host.containerd) == (True, True, True)

    for number in range(SCHEDULES):
        run_virtual(story(seed * SCHEDULES + number))


def test_a_kubelet_that_hangs_is_killed_and_the_node_is_rebooted() -> None:
    async def story() -> float:
        place = Place()
        place.host.hangs = True
        await place.begin()
        place.agent.start()
        began = asyncio.get_running_loop().time()
        await place.reboot()
        assert (await place.ended()).status.phase == "Complete"
        return asyncio.get_running_loop().time() - began

    assert run_virtual(story()) < 90


def _with(change: Callable[[SimulatedHost], None], **spec: Any) -> tuple[MachineOperation, SimulatedHost]:
    async def story() -> tuple[MachineOperation, SimulatedHost]:
        place = Place()
        await place.begin()
        change(place.host)
        place.agent.start()
        await place.reboot(**spec)
        return await place.ended(), place.host

    return run_virtual(story())


def test_failed_node_start_is_reported_with_the_error_of_systemd() -> None:
    operation, host = _with(lambda host: setattr(host, "refuses_start", 99))
    assert facts_of(operation)[:2] == ("Failed", "NodeDown")
    assert "Start was requested 6 times, and the last attempt failed: machinectl: no such image" in (
        operation.status.message or ""
    )
    assert not host.running


def test_kubelet_that_rejects_its_settings_is_reported_with_its_output() -> None:
    def refuses(host: SimulatedHost) -> None:
        host.first_renewal_s, host.trouble = (
            10_000.0,
            "kubelet in kube1 does not stay up; its last output: panic: locked",
        )

    operation, _host = _with(refuses, deadlineSeconds=3600)
    assert facts_of(operation)[:2] == ("Failed", "TimedOut")
    assert "kubelet in kube1 does not stay up; its last output: panic: locked" in (operation.status.message or "")


def test_a_machine_that_does_not_stop_serves_again() -> None:
    operation, host = _with(lambda host: setattr(host, "refuses_stop", 99))
    assert facts_of(operation)[:2] == ("Failed", "NotStopped")
    assert (host.running, host.kubelet, host.containerd, host.boot) == (True, True, True, 1)


def test_a_node_that_was_down_is_brought_up() -> None:
    def down(host: SimulatedHost) -> None:
        host.running = host.kubelet = host.containerd = False

    operation, host = _with(down)
    assert facts_of(operation) == ("Complete", "Succeeded", [EVIDENCE_BOOTED, EVIDENCE_RENEWED])
    assert host.kubelet


def test_a_host_without_a_node_says_how_it_gets_one() -> None:
    operation, _host = _with(lambda host: setattr(host, "whole", False))
    assert facts_of(operation)[:2] == ("Failed", "NoNode")
    assert "run `unbounded-agent start`" in (operation.status.message or "")


@pytest.mark.parametrize(
    ("after_s", "ends"),
    [(0.3, ("Failed", "Cancelled")), (1.5, ("Complete", "Succeeded")), (5.0, ("Complete", "Succeeded"))],
    ids=["stopping-services", "stopping-machine", "starting"],
)
def test_node_reboot_can_be_cancelled_until_the_machine_is_stopped(after_s: float, ends: tuple[str, str]) -> None:
    async def story() -> tuple[MachineOperation, SimulatedHost]:
        place = Place()
        await place.begin()
        place.agent.start()
        await asyncio.sleep(20)
        await place.reboot()
        await asyncio.sleep(after_s)
        await place.world.cancel("op")
        return await place.ended(), place.host

    operation, host = run_virtual(story())
    assert facts_of(operation)[:2] == ends, operation.status
    assert (host.running, host.kubelet, host.containerd) == (True, True, True)
    assert host.boot == (1 if ends[1] == "Cancelled" else 2)


TOO_LATE = "cancel requested after the point of no return: it continues"


def test_cancel_after_the_machine_stopped_is_reported_as_too_late() -> None:
    async def story() -> tuple[str, str | None]:
        place = Place()
        await place.begin()
        place.agent.start()
        await place.reboot()
        await place.world.until("op", lambda op: stage_of(op) == STARTING, within_s=60)
        await place.world.cancel("op")
        answered = await place.world.until("op", lambda op: TOO_LATE in (op.status.message or ""), within_s=30)
        return answered.status.message or "", (await place.ended()).status.reason

    said, reason = run_virtual(story())
    assert reason == "Succeeded"
    assert TOO_LATE in said


def stage_of(operation: MachineOperation) -> str:
    return (operation.status.targets[0].stage or "") if operation.status.targets else ""


def test_a_stage_that_is_undone_is_one_whose_work_can_be_undone() -> None:
    undone = {name for name, stage in NODE_REBOOT.stages.items() if stage.undo is not None}
    assert undone == {STOPPING_SERVICES, STOPPING_MACHINE}
    assert all(NODE_REBOOT.stages[name].undo == NODE_REBOOT.table[UNDOING, NodeState.DOWN] for name in undone)


@pytest.mark.parametrize(
    ("notes", "renewed"),
    [
        ([("1", ""), ("2", "b2")], True),
        ([("1", "b2"), ("1", "b2")], False),
        ([("1", "b2"), ("2", "b2")], True),  # who came late waits for a change
        ([("1", ""), ("2", ""), ("2", "b2")], False),  # that was the old kubelet's last one
        ([("", ""), ("1", "b2")], True),  # there was no lease before
        ([("1", ""), ("2", "b2"), ("2", "b3")], False),  # proved for a boot that is over
        ([], False),
    ],
    ids=["changed-after", "unchanged", "late", "before", "first", "another-boot", "unread"],
)
def test_a_lease_counts_as_renewed_when_it_changed_in_that_boot(notes: list[tuple[str, str]], renewed: bool) -> None:
    renewals = LeaseRenewals()
    for renewal, boot_id in notes:
        renewals.note(renewal, boot_id)
    assert renewals.renewed(notes[-1][1] if notes else "b2") is renewed
