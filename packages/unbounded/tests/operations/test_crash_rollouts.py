"""The crash test of stages: supervisors are cut off, two lead at once, Nodes fail, and users pause, retry and cancel.

Replay a failing schedule with: UNBOUNDED_SEED=1234 .venv/bin/python -m pytest -k one_rollout
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from tests.operations.faults import FAIR, STORM
from tests.operations.simulated import Violation
from tests.operations.world import TERMINAL, World
from tests.support.bugs import noted
from tests.support.seeds import first_seed
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.core import NODES
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import LABEL_MACHINE, LABEL_SITE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import ApiError
from unbounded.kube.clock import rfc3339
from unbounded.operations import reasons
from unbounded.operations.rollout_plan import STARTING

SCHEDULES: Final = 2_000 if os.environ.get("UNBOUNDED_SOAK") else 50
PARENT: Final = "all"
DEEDS: Final = (
    "pause",
    "resume",
    "resume",
    "retry",
    "fail",
    "fail",
    "fail",
    "fail",
    "lose",
    "lose",
    "delete",
    "cancel",
)


@dataclass
class RolloutWorld(World):
    """A world whose judge sees each write of a rollout and its children."""

    created: Counter[str] = field(default_factory=Counter)
    lost: set[str] = field(default_factory=set)  # Machines whose kubelet reports no more

    def _write_down(self, kind: Kind[Any], old: dict[str, Any] | None, new: dict[str, Any]) -> None:
        super()._write_down(kind, old, new)
        if kind.kind != "MachineOperation":
            return
        if new["metadata"]["name"] != PARENT:
            if old is None:
                self._judge_child(new)
        elif old is not None and old.get("status", {}).get("targets"):
            self._judge_release(old, new)

    def _judge_child(self, child: dict[str, Any]) -> None:
        name, machine = child["metadata"]["name"], child["spec"]["machineRef"]
        self.created[name] += 1
        if self.created[name] > 1:
            self.faults.append(f"{name} was created twice")
        stored = self.api._collection(MACHINE_OPERATIONS).versions
        parent = msgspec.convert(stored["", PARENT].body, MachineOperation)
        target = next(one for one in parent.status.targets if one.machine_ref == machine)
        if target.stage != STARTING and not parent.terminal:
            self.faults.append(f"{name} was created without a release: {target}")
        bodies = [version.body for (_, other), version in stored.items() if other not in (PARENT, name)]
        running = [one for one in bodies if one.get("status", {}).get("phase") not in TERMINAL]
        if len(running) >= parent.spec.max_concurrent:
            self.faults.append(f"{name} runs beside {len(running)} others")

    def _judge_release(self, old_body: dict[str, Any], new_body: dict[str, Any]) -> None:
        old, new = msgspec.convert(old_body, MachineOperation), msgspec.convert(new_body, MachineOperation)
        before = {target.machine_ref: target.stage for target in old.status.targets}
        released = [
            t
            for t in new.status.targets
            if (t.stage, before.get(t.machine_ref)) == (STARTING, None) and not t.operation
        ]
        if not released:
            return
        seen = old.status.rollout.retried_failed if old.status.rollout is not None else 0
        is_halted = old.status.reason == reasons.HALTED and old.spec.retry_failed == seen
        is_gone = {t.machine_ref for t in old.status.targets if t.phase == "Failed"} - {
            name for (_, name) in self.api._collection(MACHINES).versions
        }
        if old.spec.paused or old.spec.cancel or (is_halted and not is_gone):
            self.faults.append(f"released {[t.machine_ref for t in released]} from {old.status.message}")
        assert new.spec.strategy is not None
        stages = {stage.name: stage for stage in new.spec.strategy.stages}
        names = list(stages)
        for target in released:
            for other in new.status.targets:
                earlier = names.index(other.rollout_stage or "") < names.index(target.rollout_stage or "")
                if earlier and not _is_over(other, stages[other.rollout_stage or ""].soak_seconds):
                    self.faults.append(f"{target.machine_ref} was released before the end of {other}")

    async def kubelets(self) -> None:
        """Report the Nodes every 5 s, as their hosts are."""
        while True:
            for machine in [name for (_, name) in self.api._collection(MACHINES).versions]:
                with contextlib.suppress(ApiError):
                    await self._report(machine)
            await asyncio.sleep(5)

    async def _report(self, machine: str) -> None:
        node, now = await self.api.get(NODES, machine), rfc3339(virtual_now())
        status = "True" if self.outside.host(machine).power == "On" and machine not in self.lost else "Unknown"
        before = node.ready_condition
        since = before.last_transition_time if before is not None and before.status == status else now
        condition = {"type": "Ready", "status": status, "lastTransitionTime": since, "lastHeartbeatTime": now}
        await self.api.patch(NODES, machine, {"status": {"conditions": [condition]}}, subresource="status")


def _is_over(target: Any, soak_s: int) -> bool:
    if target.phase == "Complete" and soak_s:
        soaked = target.ready_at and virtual_now() - datetime.fromisoformat(target.ready_at)
        return bool(soaked) and soaked >= timedelta(seconds=soak_s)
    return target.phase in TERMINAL


def _strategy(chance: random.Random) -> dict[str, Any]:
    stages = [
        {
            "name": f"s{number}",
            "size": chance.choice([1, 2, "34%"]),
            "soakSeconds": chance.choice([0, 60]),
            "pauseAfter": chance.random() < 0.2,
        }
        for number in range(chance.randint(0, 2))
    ]
    rest = {"name": "rest", "size": "100%", "soakSeconds": chance.choice([0, 60])}
    return {"stages": [*stages, rest], "onFailure": "Halt" if chance.random() < 0.8 else "Fail"}


async def _schedule(seed: int) -> None:
    chance = random.Random(seed)
    world = RolloutWorld(chance, weather=STORM if chance.random() < 0.7 else FAIR, reaps=chance.random() < 0.7)
    machines = [f"m{number}" for number in range(chance.randint(2, 5))]
    for name in machines:
        await world.machine(name)
        await world.api.create(NODES, {"metadata": {"name": name, "labels": {LABEL_MACHINE: name}}})
    processes = [world.steward(), world.redfish(), *([world.steward()] if chance.random() < 0.5 else [])]
    tasks = [asyncio.create_task(world.kubelets())]
    tasks += [
        asyncio.create_task(one.keep(crashes=[chance.randrange(60) for _ in range(chance.randrange(4))]))
        for one in processes
    ]
    selector, policy = {"matchLabels": {LABEL_SITE: "lab"}}, _strategy(chance)
    await world.operation(
        PARENT, "HostReboot", machineSelector=selector, strategy=policy, maxConcurrent=chance.randint(1, 3)
    )
    for _ in range(chance.randrange(4, 20)):
        await asyncio.sleep(chance.uniform(0, 40))
        with contextlib.suppress(ApiError):
            await _do(world, chance, chance.choice(DEEDS))
    world.weather = FAIR
    for life in world.lives:
        life.weather = FAIR
    world.lost.clear()
    for _ in range(60):
        parent = await world.get(PARENT)
        if parent.terminal:
            break
        await _do(world, chance, "resume")
        if parent.status.reason == reasons.HALTED:
            await _do(world, chance, "retry")
        await asyncio.sleep(240)
    ended = await world.ended(PARENT, within_s=3600)
    assert all(target.phase in TERMINAL for target in ended.status.targets)
    await asyncio.sleep(120)
    world.judge()
    for task in tasks:
        task.cancel()


async def _do(world: RolloutWorld, chance: random.Random, deed: str) -> None:
    """Do what users do, and what happens to Nodes."""
    parent = await world.get(PARENT)
    match deed:
        case "pause" | "resume":
            await world.api.patch(MACHINE_OPERATIONS, PARENT, {"spec": {"paused": deed == "pause"}})
        case "retry" if parent.spec.strategy is not None and parent.spec.strategy.on_failure == "Halt":
            count = parent.spec.retry_failed + 1
            await world.api.patch(MACHINE_OPERATIONS, PARENT, {"spec": {"retryFailed": count}})
        case "fail" if running := [one.operation for one in parent.status.targets if one.phase == "InProgress"]:
            await world.cancel(chance.choice(running) or "")
        case "lose" if parent.status.targets:
            world.lost.symmetric_difference_update({chance.choice(parent.status.targets).machine_ref})
        case "delete" if failed := [one for one in parent.status.targets if one.phase == "Failed"]:
            await world.api.delete(MACHINES, chance.choice(failed).machine_ref)
        case "cancel" if chance.random() < 0.2:
            await world.cancel(PARENT)


def run_rollout(seed: int) -> None:
    with noted() as bugs:
        run_virtual(_schedule(seed))
    if bugs:
        raise Violation(f"logged: {bugs[0]}")


@pytest.mark.slow
def test_rollouts_keep_their_stages_over_crashes_and_two_leaders() -> None:
    first = first_seed()
    for seed in range(first, first + SCHEDULES):
        try:
            run_rollout(seed)
        except AssertionError as error:
            raise AssertionError(
                f"seed {seed}: {error}\nreplay: UNBOUNDED_SEED={seed} pytest -k one_rollout"
            ) from error


@pytest.mark.slow
def test_one_rollout() -> None:
    run_rollout(int(os.environ.get("UNBOUNDED_SEED", "1")))
