"""A world with one rollout, whose judge sees each write, and its users."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from tests.operations.world import TERMINAL, World
from tests.support.virtual_time import virtual_now
from unbounded.api.core import NODES
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import ApiError
from unbounded.kube.clock import rfc3339
from unbounded.operations import reasons
from unbounded.operations.rollout_plan import STARTING

PARENT: Final = "all"


@dataclass
class RolloutWorld(World):
    """A world whose judge sees each write of a rollout and its children."""

    created: Counter[str] = field(default_factory=Counter)
    lost: set[str] = field(default_factory=set)  # Machines whose kubelet reports no more

    def _write_down(self, kind: Kind[Any], old: dict[str, Any] | None, new: dict[str, Any]) -> None:
        super()._write_down(kind, old, new)
        if kind.kind != "MachineOperation":
            return
        if new["metadata"].get("ownerReferences"):
            if old is None:
                self._judge_child(new)
        elif new["metadata"]["name"] == PARENT and old is not None and old.get("status", {}).get("targets"):
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
        others = [version.body for (_, other), version in stored.items() if other != name]
        children = [one for one in others if one["metadata"].get("ownerReferences")]
        running = [one for one in children if one.get("status", {}).get("phase") not in TERMINAL]
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


def draw_strategy(chance: random.Random) -> dict[str, Any]:
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


async def meddle(world: RolloutWorld, chance: random.Random, deed: str) -> None:
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


async def finish(world: RolloutWorld, chance: random.Random) -> None:
    """Be the user who resumes and retries until the rollout has ended."""
    for _ in range(60):
        parent = await world.get(PARENT)
        if parent.terminal:
            break
        await meddle(world, chance, "resume")
        if parent.status.reason == reasons.HALTED:
            await meddle(world, chance, "retry")
        await asyncio.sleep(240)
    ended = await world.ended(PARENT, within_s=3600)
    assert all(target.phase in TERMINAL for target in ended.status.targets)
