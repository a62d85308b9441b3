"""Selector operations from end to end: bounded, stopped, mirrored, and sure of their targets. As stories."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from tests.operations.staging import in_stage, meddle, result, story
from tests.operations.world import World
from unbounded.api.machine import MACHINES
from unbounded.api.names import FINALIZER_OPERATION, LABEL_PARENT, LABEL_SITE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import InvalidObject, ResponseLost
from unbounded.metalman import power
from unbounded.operations import batch_plan, reasons
from unbounded.operations.batch_plan import plan_batch

LAB = {"matchLabels": {LABEL_SITE: "lab"}}


async def _fleet(world: World, count: int) -> None:
    for number in range(count):
        await world.machine(f"m{number:02}")


async def _children(world: World, parent: str = "all") -> list[MachineOperation]:
    return list((await world.api.list(MACHINE_OPERATIONS, labels=f"{LABEL_PARENT}={parent}")).items)


def _targets(operation: MachineOperation) -> dict[str, tuple[str | None, str | None]]:
    return {target.machine_ref: (target.phase, target.reason) for target in operation.status.targets}


async def _shutting_down(world: World, child: str) -> None:
    await world.until("all", lambda op: any(t.operation == child for t in op.status.targets), within_s=10)
    await in_stage(world, child, power.SHUTTING_DOWN)


class Watched:
    """The stored states of a parent and its children, write by write."""

    def __init__(self, world: World) -> None:
        self.running: set[str] = set()
        self.most = 0
        self.parent_writes: list[float] = []
        self._admit = world.api._admit
        world.api._admit = self._note

    def _note(self, kind: Any, old: Any, new: Any) -> None:
        self._admit(kind, old, new)
        if kind.kind != "MachineOperation":
            return
        name, ended = new["metadata"]["name"], new.get("status", {}).get("phase") in ("Complete", "Failed")
        if "machineRef" not in new["spec"]:
            if old is not None and old.get("status") != new.get("status"):
                self.parent_writes.append(asyncio.get_running_loop().time())
            return
        (self.running.discard if ended else self.running.add)(name)
        self.most = max(self.most, len(self.running))


@pytest.mark.slow
@story
async def test_every_target_gets_a_child_and_the_parent_mirrors_them(world: World) -> None:
    await _fleet(world, 5)
    world.steward().start()
    world.redfish().start()
    await world.operation("all", "HostReboot", machineSelector=LAB, parameters={"force": "true"})
    ended = await world.ended("all", within_s=120)
    assert result(ended) == ("Complete", "Succeeded")
    assert _targets(ended) == {f"m{number:02}": ("Complete", "Succeeded") for number in range(5)}
    for target in ended.status.targets:
        assert target.operation == f"all-{target.machine_ref}"
        assert target.completed_at
    children = await _children(world)
    assert len(children) == 5
    assert all(child.spec.parameters == {"force": "true"} for child in children)
    assert {act.action for act in world.outside.acts} == {power.SWITCH_OFF, power.SWITCH_ON}


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 3])
@story
async def test_no_more_children_run_than_max_concurrent_at_any_moment(world: World, at_once: int) -> None:
    watched = Watched(world)
    await _fleet(world, 10)
    world.steward().start()
    world.redfish().start()
    await world.operation("all", "HostReboot", machineSelector=LAB, maxConcurrent=at_once)
    assert result(await world.ended("all", within_s=600)) == ("Complete", "Succeeded")
    assert watched.most == at_once


@pytest.mark.slow
@story
async def test_max_concurrent_holds_over_crashes_and_lost_answers_of_the_steward(world: World) -> None:
    watched = Watched(world)
    await _fleet(world, 12)
    keeper = asyncio.create_task(world.steward().keep(crashes=[30, 41, 52, 37, 60], pause_s=(0.0, 2.0)))
    create, count = world.api.create, Counter[str]()

    async def sometimes_lost(kind: Any, body: Any, *, namespace: str = "") -> Any:
        made = await create(kind, body, namespace=namespace)
        count[kind.kind] += 1
        if kind.kind == "MachineOperation" and count[kind.kind] % 3 == 0:
            raise ResponseLost("the connection was reset")
        return made

    world.redfish().start()
    await world.operation("all", "HostReboot", machineSelector=LAB, maxConcurrent=2)
    vars(world.api)["create"] = sometimes_lost
    assert result(await world.ended("all", within_s=1200)) == ("Complete", "Succeeded")
    assert watched.most == 2
    assert len({act.operation for act in world.outside.acts}) == 12
    keeper.cancel()


@story
async def test_after_max_failures_nothing_new_is_started(world: World) -> None:
    await _fleet(world, 10)
    world.steward().start()
    world.outside.unreachable = 1.0
    world.redfish().start()
    await world.operation("all", "HostReboot", machineSelector=LAB, maxConcurrent=2, maxFailures=2, deadlineSeconds=20)
    ended = await world.ended("all", within_s=200)
    assert result(ended) == ("Failed", reasons.TARGET_FAILED)
    assert len(await _children(world)) <= 3
    later = [reason for _phase, reason in _targets(ended).values()][3:]
    assert set(later) == {reasons.NOT_STARTED}


@story
async def test_the_snapshot_counts_although_labels_change_and_machines_come(world: World) -> None:
    await _fleet(world, 3)
    world.steward().start()
    await world.operation("all", "HostReboot", machineSelector=LAB, maxConcurrent=1)
    await world.until("all", lambda op: len(op.status.targets) == 3, within_s=5)
    await world.api.patch(MACHINES, "m02", {"metadata": {"labels": {"rack": "x"}}})
    await world.api.patch(MACHINES, "m01", {"metadata": {"labels": {LABEL_SITE: None}}})
    await world.machine("m99")
    world.redfish().start()
    ended = await world.ended("all", within_s=200)
    assert sorted(_targets(ended)) == ["m00", "m01", "m02"]
    assert result(ended) == ("Complete", "Succeeded")


@story
async def test_cancelling_a_parent_stops_its_children(world: World) -> None:
    await _fleet(world, 4)
    world.steward().start()
    world.outside.deaf = 1.0
    world.redfish().start()
    await world.operation(
        "all", "HostPowerOff", machineSelector=LAB, maxConcurrent=2, parameters={"graceSeconds": "20"}
    )
    await _shutting_down(world, "all-m00")
    await world.cancel("all")
    ended = await world.ended("all", within_s=300)
    assert result(ended) == ("Failed", reasons.CANCELLED)
    assert len(await _children(world)) == 2
    assert {reason for _phase, reason in _targets(ended).values()} == {reasons.CANCELLED}
    await asyncio.sleep(60)
    assert {host.power for host in world.outside.hosts.values()} == {"On"}


@story
async def test_cancelling_a_parent_whose_children_wait_ends_it_at_once(world: World) -> None:
    await _fleet(world, 4)
    world.steward().start()
    await world.operation("all", "HostPowerOff", machineSelector=LAB, maxConcurrent=2)
    await world.until("all", lambda op: len(op.status.targets) == 4, within_s=5)
    await world.cancel("all")
    assert result(await world.ended("all", within_s=5)) == ("Failed", reasons.CANCELLED)


@story
async def test_deleting_a_running_parent_stops_its_children_and_then_all_are_gone(world: World) -> None:
    await _fleet(world, 3)
    world.steward().start()
    world.redfish().start()
    await world.operation("all", "HostReboot", machineSelector=LAB, maxConcurrent=1)
    await _shutting_down(world, "all-m00")
    assert FINALIZER_OPERATION in (await world.get("all")).metadata.finalizers
    await world.api.delete(MACHINE_OPERATIONS, "all")
    await world.gone("all", within_s=60)
    await world.gone("all-m00", within_s=10)
    assert await _children(world) == []
    assert {act.machine for act in world.outside.acts} == {"m00"}
    assert world.outside.host("m00").power == "On"


@pytest.mark.parametrize(
    ("kind", "selector", "reason"),
    [
        ("HostReboot", {}, reasons.INVALID_SPEC),
        ("NodeReboot", {"matchLabels": {}}, reasons.INVALID_SPEC),
        ("HostReboot", {"matchLabels": {"rack": "7"}}, reasons.INVALID_TARGET_SCOPE),
        ("HostReboot", {"matchLabels": {LABEL_SITE: "elsewhere"}}, reasons.NO_MATCHING_MACHINES),
    ],
)
@story
async def test_what_may_not_be_selected_is_said_at_once(world: World, kind: str, selector: Any, reason: str) -> None:
    await world.machine("m1", labels={"rack": "7"})
    world.steward().start()
    world.redfish().start()
    await world.operation("all", kind, machineSelector=selector)
    ended = await world.ended("all", within_s=1)
    assert result(ended) == ("Failed", reason)
    assert ended.status.message
    assert await _children(world) == []


@pytest.mark.slow
@story
async def test_more_than_a_thousand_machines_are_refused(world: World) -> None:
    for number in range(1001):
        await world.machine(f"m{number:04}")
    world.steward().start()
    await world.operation("all", "HostReboot", machineSelector=LAB)
    ended = await world.ended("all", within_s=60)  # its cache takes a while to hear of them all
    assert result(ended) == ("Failed", reasons.TOO_MANY_TARGETS)
    assert "1001" in (ended.status.message or "")


@pytest.mark.slow
@story
async def test_the_mirror_is_written_at_most_once_a_second(world: World) -> None:
    watched = Watched(world)
    await _fleet(world, 30)
    world.steward().start()
    world.redfish(concurrent=30).start()
    await world.operation("all", "HostReboot", machineSelector=LAB, maxConcurrent=30)
    assert result(await world.ended("all", within_s=120)) == ("Complete", "Succeeded")
    first, *mirrored, _last = watched.parent_writes  # the snapshot, and the end
    assert len(mirrored) >= 3
    for before, after in pairwise(mirrored):
        assert after - before >= 0.9
    assert mirrored[0] >= first


@story
async def test_a_waiting_child_that_somebody_deletes_fails_its_target(world: World) -> None:
    await _fleet(world, 2)
    world.steward().start()
    await world.operation("all", "HostReboot", machineSelector=LAB, maxFailures=5)
    await world.until("all", lambda op: all(t.operation for t in op.status.targets) and op.claimed, within_s=10)
    await world.api.delete(MACHINE_OPERATIONS, "all-m00")
    await world.gone("all-m00", within_s=5)
    await asyncio.sleep(3)
    world.redfish().start()
    ended = await world.ended("all", within_s=100)
    assert result(ended) == ("Failed", reasons.TARGET_FAILED)
    assert _targets(ended) == {"m00": ("Failed", reasons.CANCELLED), "m01": ("Complete", "Succeeded")}


@story
async def test_deleted_running_child_stays_until_its_parent_has_the_result(world: World) -> None:
    await _fleet(world, 2)
    steward = world.steward().start()
    world.redfish().start()
    await world.operation("all", "HostReboot", machineSelector=LAB)
    await _shutting_down(world, "all-m00")
    await steward.stop()
    await world.api.delete(MACHINE_OPERATIONS, "all-m00")
    await world.ended("all-m00", within_s=60)
    await asyncio.sleep(300)
    assert FINALIZER_OPERATION in (await world.get("all-m00")).metadata.finalizers
    world.steward().start()
    ended = await world.ended("all", within_s=60)
    assert result(ended) == ("Complete", "Succeeded")
    await world.gone("all-m00", within_s=5)


@story
async def test_name_conflict_of_a_child_fails_only_that_target(world: World) -> None:
    await _fleet(world, 2)
    await world.operation("all-m00", "HostPowerOn", "m00")
    world.steward().start()
    world.redfish().start()
    await world.operation("all", "HostReboot", machineSelector=LAB, maxFailures=5)
    ended = await world.ended("all", within_s=100)
    assert _targets(ended) == {"m00": ("Failed", reasons.NAME_TAKEN), "m01": ("Complete", "Succeeded")}


@story
async def test_the_time_to_live_of_a_parent_takes_its_children_along(world: World) -> None:
    await _fleet(world, 2)
    world.steward().start()
    world.redfish().start()
    await world.operation("all", "HostReboot", machineSelector=LAB, ttlSecondsAfterFinished=30)
    await world.ended("all", within_s=100)
    await asyncio.sleep(15)
    assert len(await _children(world)) == 2
    await world.gone("all", within_s=20)
    await asyncio.sleep(1)
    assert await _children(world) == []


@story
async def test_a_parent_says_how_far_it_is(world: World) -> None:
    await _fleet(world, 3)
    world.steward().start()
    world.redfish().start()
    await world.operation("all", "HostReboot", machineSelector=LAB, maxConcurrent=1)
    said = await world.until("all", lambda op: "complete=1" in (op.status.message or ""), within_s=60)
    assert said.status.message == "targets complete=1 failed=0 inProgress=0 pending=2" or "inProgress" in (
        said.status.message or ""
    )
    assert said.status.phase == "InProgress"


@story
async def test_children_that_the_server_refuses_are_failed_targets_with_its_words(world: World) -> None:
    await _fleet(world, 3)
    admit = world.api._admit

    def refuse(kind: Any, old: Any, new: Any) -> None:
        if kind.kind == "MachineOperation" and old is None and new["spec"].get("machineRef") == "m01":
            raise InvalidObject('admission webhook "example.com" denied the request: not today', code=422)
        admit(kind, old, new)

    world.api._admit = refuse
    world.steward().start()
    world.redfish().start()
    await world.operation("all", "HostReboot", machineSelector=LAB, maxFailures=5)
    ended = await world.ended("all", within_s=100)
    assert _targets(ended)["m01"] == ("Failed", reasons.NOT_STARTED)
    assert "not today" in next(t.message or "" for t in ended.status.targets if t.machine_ref == "m01")
    assert [_targets(ended)[name][0] for name in ("m00", "m02")] == ["Complete", "Complete"]


@story
async def test_a_crd_that_drops_the_targets_ends_a_parent(world: World) -> None:
    api = meddle(world)
    await _fleet(world, 2)

    def drop(kind: Any, body: dict[str, Any]) -> None:
        if kind.kind == "MachineOperation":
            body.get("status", {}).pop("targets", None)

    api.drop = drop
    world.steward().start()
    await world.operation("all", "HostReboot", machineSelector=LAB)
    assert result(await world.ended("all", within_s=5)) == ("Failed", reasons.CRD_OUTDATED)
    assert await _children(world) == []


@pytest.mark.slow
@story
async def test_large_batch_is_planned_a_few_times_a_second(world: World) -> None:
    await _fleet(world, 40)
    world.steward().start()
    world.redfish(concurrent=40).start()
    looks: list[float] = []

    def counted(*given: Any, **named: Any) -> Any:
        looks.append(asyncio.get_running_loop().time())
        return plan_batch(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_plan, "plan_batch", counted)
        await world.operation("all", "HostReboot", machineSelector=LAB, maxConcurrent=40)
        assert result(await world.ended("all", within_s=120)) == ("Complete", "Succeeded")
    assert len(looks) <= 10 + 5 * (looks[-1] - looks[0])
