"""Disruption budgets: arithmetic and schedules as values, and grants as stories with all controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.operations.disruption.cluster import Cluster, cluster_story
from tests.operations.faults import Incarnation
from tests.support.virtual_time import EPOCH
from unbounded.api.core import Node
from unbounded.api.disruption import (
    MACHINE_DISRUPTION_BUDGETS,
    MachineDisruptionBudget,
    OperationDrain,
)
from unbounded.api.machine import MACHINES, Machine
from unbounded.kube.clock import rfc3339
from unbounded.operations import reasons
from unbounded.operations.disruption import controller
from unbounded.operations.disruption.budgets import (
    GroupCounts,
    GroupState,
    drain_rules,
    full,
    is_unavailable,
    limit_of,
    parse_schedule,
    window_of,
)
from unbounded.operations.disruption.plan import DisruptionPlan, DisruptionView, plan_disruption


def _budget(name: str = "b", limit: int | str = 1, **spec: Any) -> MachineDisruptionBudget:
    spec = {"machineSelector": {"matchLabels": {"app": "x"}}, "maxUnavailable": limit, **spec}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, MachineDisruptionBudget)


def _machine(name: str, **labels: str) -> Machine:
    metadata = {"name": name, "labels": {"app": "x", **labels}}
    return msgspec.convert({"metadata": metadata, "spec": {"kubernetes": {"nodeRef": {"name": name}}}}, Machine)


def _node(*, ready: bool = True, cordoned: bool = False, **condition: str) -> Node:
    conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}, *([condition] if condition else [])]
    return msgspec.convert({"spec": {"unschedulable": cordoned}, "status": {"conditions": conditions}}, Node)


@pytest.mark.parametrize(
    ("limit", "machines", "allowed"), [(2, 10, 2), (0, 10, 0), ("20%", 9, 1), ("20%", 4, 0), ("100%", 3, 3)]
)
def test_a_share_is_rounded_down(limit: int | str, machines: int, allowed: int) -> None:
    assert limit_of(_budget(limit=limit), machines) == allowed


@pytest.mark.parametrize(
    ("node", "unavailable"),
    [
        (_node(), False),
        (None, True),
        (_node(ready=False), True),
        (_node(cordoned=True), True),
        (_node(type="MaintenanceInProgress", status="True", reason="Kured"), True),
        (_node(type="MaintenanceInProgress", status="True", reason="UnboundedHostReboot"), False),
    ],
    ids=["ready", "missing", "not ready", "cordoned", "foreign maintenance", "own condition"],
)
def test_a_machine_counts_as_unavailable(node: Node | None, *, unavailable: bool) -> None:
    assert is_unavailable(_machine("m"), node) is unavailable


def test_a_machine_whose_node_never_existed_does_not_count() -> None:
    joining = msgspec.convert({"metadata": {"name": "m"}, "spec": {"kubernetes": {}}}, Machine)
    assert not is_unavailable(joining, None)


def test_the_limit_holds_for_each_group() -> None:
    machines = [_machine("a", rack="1"), _machine("b", rack="1"), _machine("c", rack="2"), _machine("d")]
    nodes = {"a": _node(ready=False), "b": _node(), "c": _node(), "d": _node()}
    states = _states(_budget(groupBy=["rack"]), machines, nodes).values()
    assert [(one.value, one.machines, one.allowed) for one in states] == [("", 1, 1), ("1", 2, 0), ("2", 1, 1)]


def _states(
    budget: MachineDisruptionBudget, machines: Sequence[Machine], nodes: Mapping[str, Node]
) -> dict[str, GroupState]:
    counts = GroupCounts(budget)
    for machine in machines:
        counts.update(machine.name, machine, nodes.get(machine.name))
    return counts.states(budget.status.grants)


_CHANGES: Final = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.sampled_from([None, "x", "y"]),  # app
        st.sampled_from([None, "1", "2"]),  # rack
        st.sampled_from([None, True, False]),  # Ready
    )
)


@given(_CHANGES)
def test_counts_that_follow_changes_equal_those_of_the_last_state(
    changes: list[tuple[str, str | None, str | None, bool | None]],
) -> None:
    budget, followed = _budget(groupBy=["rack"]), GroupCounts(_budget(groupBy=["rack"]))
    machines, nodes = dict[str, Machine](), dict[str, Node]()
    for name, app, rack, ready in changes:
        machines.pop(name, None)
        nodes.pop(name, None)
        if app is not None:
            machines[name] = _machine(name, app=app, **({} if rack is None else {"rack": rack}))
        if ready is not None:
            nodes[name] = _node(ready=ready)
        followed.update(name, machines.get(name), nodes.get(name))
    assert followed.states(()) == _states(budget, list(machines.values()), nodes)


def test_a_budget_of_none_says_so_without_a_holder() -> None:
    budget, machine = _budget(limit=0), _machine("a")
    delay = full(budget, machine, _states(budget, [machine], {"a": _node()}))
    assert delay is not None
    assert delay.text == "MachineDisruptionBudget b lets 0 of 1 Machine be unavailable"


@pytest.mark.parametrize(
    ("schedule", "zone", "counts", "changes_at"),
    [
        ("0 8 * * 1-5", "UTC", True, "2030-01-01T18:00:00Z"),
        ("0 8 * * 6,7", "UTC", False, "2030-01-05T08:00:00Z"),
        ("0 8 * * *", "America/New_York", False, "2030-01-01T13:00:00Z"),
        ("0 8 * * *", "Europe/Berlin", True, "2030-01-01T17:00:00Z"),
        ("0 0 29 2 *", "UTC", False, "2032-02-29T00:00:00Z"),
        ("*/30 13-15 1 * *", "UTC", False, "2030-01-01T13:00:00Z"),
    ],
)
def test_a_schedule_counts_from_each_begin_for_its_duration(
    schedule: str, zone: str, *, counts: bool, changes_at: str
) -> None:
    budget = _budget(schedule=schedule, durationSeconds=36000, timeZone=zone)
    found = window_of(budget, datetime(2030, 1, 1, 12, tzinfo=UTC))  # a Tuesday
    assert (found.counts, found.changes_at) == (counts, datetime.fromisoformat(changes_at))


def test_a_day_of_the_month_and_one_of_the_week_are_alternatives() -> None:
    schedule = parse_schedule("0 0 13 * 5")
    assert schedule.has_day(datetime(2030, 1, 13, tzinfo=UTC))  # a Sunday
    assert schedule.has_day(datetime(2030, 1, 4, tzinfo=UTC))  # a Friday
    assert not schedule.has_day(datetime(2030, 1, 12, tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("* * * *", "4 fields"),
        ("60 * * * *", "within 0 and 59"),
        ("0 24 * * *", "within 0 and 23"),
        ("0 0 0 * *", "within 1 and 31"),
        ("5-1 * * * *", "within 0 and 59"),
    ],
)
def test_a_wrong_schedule_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_schedule(text)


def test_of_several_budgets_the_most_careful_drain_holds() -> None:
    budgets = [
        _budget("a", drain={"timeoutSeconds": 60, "evictUnmanaged": True, "onTimeout": "Proceed"}),
        _budget("b", drain={"timeoutSeconds": 600, "deleteEmptyDirData": False}, minReadySeconds=90),
        _budget("c", drain={"enabled": False, "timeoutSeconds": 9999}),
    ]
    rules = drain_rules(budgets, None, override=False, maintenance=False)
    assert (rules.enabled, rules.timeout_s, rules.delete_empty_dir_data) == (True, 600, False)
    assert (rules.evict_unmanaged, rules.proceeds, rules.min_ready_s) == (False, False, 90)
    own = OperationDrain(mode="Never", timeout_seconds=5)
    rules = drain_rules(budgets, own, override=False, maintenance=False)
    assert (rules.enabled, rules.timeout_s) == (False, 5)
    assert not drain_rules(budgets, None, override=True, maintenance=False).enabled


@cluster_story
async def test_one_machine_at_a_time_reboots_under_a_budget_of_one(cluster: Cluster) -> None:
    for name in ("m1", "m2", "m3"):
        await cluster.world.machine(name)
        await cluster.node(name, f"web-{name}")
    await cluster.budget("one", 1)
    for name in ("m1", "m2", "m3"):
        await cluster.world.operation(f"op-{name}", "HostReboot", name)
    waiting = await cluster.world.until(
        "op-m3", lambda one: one.status.reason == reasons.WAITING_FOR_BUDGET, within_s=60
    )
    assert waiting.status.waiting is not None
    assert waiting.status.waiting.held_by == "MachineDisruptionBudget one"
    assert "HostReboot op-m" in (waiting.status.message or "")
    for name in ("m1", "m2", "m3"):
        assert (await cluster.world.ended(f"op-{name}")).status.phase == "Complete"
        await cluster.stage(name, None)
    assert len(cluster.api.evictions) == 3  # a budget drains
    assert cluster.most_unavailable == 1
    assert await cluster.granted("one") == set()


def _passes(machines: int) -> float:
    """Return the passes of the controller for each of so many Machines, which one budget lets reboot in turn."""
    passes, names = 0, [f"m{number}" for number in range(machines)]

    def counted(view: DisruptionView) -> DisruptionPlan:
        nonlocal passes
        passes += 1
        return plan_disruption(view)

    async def story(cluster: Cluster) -> None:
        for name in names:
            await cluster.world.machine(name)
            await cluster.node(name)
        await cluster.budget("two", 2)
        for name in names:
            await cluster.world.operation(f"op-{name}", "HostReboot", name)
        for name in names:
            assert (await cluster.world.ended(f"op-{name}")).status.phase == "Complete"
            await cluster.stage(name, None)

    with mock.patch.object(controller, "plan_disruption", counted):
        cluster_story(story)()
    return passes / machines


def test_a_grant_that_ends_wakes_no_crowd() -> None:
    assert _passes(60) < 1.3 * _passes(25)


@cluster_story
async def test_a_blackout_holds_until_it_ends(cluster: Cluster) -> None:
    await cluster.world.machine("m1")
    await cluster.node("m1")
    await cluster.budget("none", 0, schedule="0 * * * *", durationSeconds=1200)
    await cluster.world.operation("op", "HostReboot", "m1")
    waiting = await cluster.world.until("op", lambda one: one.status.reason == reasons.WAITING_FOR_BUDGET, within_s=60)
    end = rfc3339(EPOCH + timedelta(seconds=1200))
    assert f"none lets 0 of 1 Machine be unavailable until {end}" in (waiting.status.message or "")
    operation = await cluster.world.ended("op")
    assert operation.status.phase == "Complete"
    claimed_at = cluster.world.stories[operation.metadata.uid].claimed_at
    assert claimed_at is not None
    assert 1200 <= claimed_at <= 1215


@cluster_story
async def test_a_schedule_that_never_comes_is_not_enforced(cluster: Cluster) -> None:
    await cluster.world.machine("m1")
    found = await cluster.budget("never", 0, enforced="False", schedule="0 0 31 4-6/2 *", durationSeconds=600)
    assert [one.reason for one in found.status.conditions] == ["ScheduleNeverComes"]


@cluster_story
async def test_a_machine_that_is_unavailable_already_is_granted(cluster: Cluster) -> None:
    for name in ("m1", "m2"):
        await cluster.world.machine(name, kubernetes={"nodeRef": {"name": name}}, pxe=_PXE)
        await cluster.node(name)
    cluster.down.add("m1")
    await asyncio.sleep(5)
    await cluster.budget("one", 1)
    await cluster.world.operation("op-m2", "HostReboot", "m2")
    await cluster.world.until("op-m2", lambda one: "m1 (not available)" in (one.status.message or ""), within_s=60)
    await cluster.world.operation("op-m1", "HostReboot", "m1")
    assert (await cluster.world.ended("op-m1")).status.phase == "Complete"
    cluster.down.clear()
    assert (await cluster.world.ended("op-m2")).status.phase == "Complete"


@cluster_story
async def test_hosts_that_never_had_a_node_take_no_turns(cluster: Cluster) -> None:
    names = ("m1", "m2", "m3")
    for name in names:
        await cluster.world.machine(name)
    await cluster.budget("one", 1)
    made = [await cluster.world.operation(f"op-{name}", "HostReboot", name) for name in names]
    for name in names:
        assert (await cluster.world.ended(f"op-{name}")).status.phase == "Complete"
        await cluster.stage(name, None)
    claims = [cluster.world.stories[operation.metadata.uid].claimed_at or 0.0 for operation in made]
    assert max(claims) - min(claims) < 5
    assert await cluster.granted("one") == set()


@cluster_story
async def test_an_override_is_granted_and_recorded(cluster: Cluster) -> None:
    await cluster.world.machine("m1")
    await cluster.node("m1", "web-1")
    await cluster.budget("none", 0)
    await cluster.world.operation("op", "HostReboot", "m1", override="the disk is burning")
    operation = await cluster.world.ended("op")
    assert operation.status.phase == "Complete"
    assert operation.status.evidence[0].what == "granted over MachineDisruptionBudget none: the disk is burning"
    assert cluster.api.evictions == []
    assert ("op", "Warning", reasons.BUDGET_OVERRIDDEN) in cluster.world.announced


@cluster_story
async def test_a_deleted_budget_lets_go(cluster: Cluster) -> None:
    await cluster.world.machine("m1")
    await cluster.node("m1")
    await cluster.budget("none", 0)
    await cluster.world.operation("op", "HostReboot", "m1")
    await cluster.world.until("op", lambda one: one.status.reason == reasons.WAITING_FOR_BUDGET, within_s=60)
    await cluster.api.delete(MACHINE_DISRUPTION_BUDGETS, "none")
    assert (await cluster.world.ended("op", within_s=120)).status.phase == "Complete"
    assert (await cluster.api.get(MACHINES, "m1")).status.disruption_budgets == ()


@cluster_story
async def test_a_budget_with_an_old_agent_is_not_enforced_and_names_it(cluster: Cluster) -> None:
    await cluster.world.machine("m1")
    old = {"status": {"agent": {"version": "0.1.0"}}}
    await cluster.api.patch(MACHINES, "m1", old, subresource="status")
    with pytest.raises(TimeoutError):
        await cluster.budget("one", 1)
    found = await cluster.api.get(MACHINE_DISRUPTION_BUDGETS, "one")
    (condition,) = found.status.conditions
    assert (condition.status, condition.reason) == ("False", "AgentsOutdated")
    assert "m1" in condition.message
    new = {"status": {"agent": {"waitsForGrants": True}}}
    await cluster.api.patch(MACHINES, "m1", new, subresource="status")
    await asyncio.sleep(5)
    found = await cluster.api.get(MACHINE_DISRUPTION_BUDGETS, "one")
    assert found.status.conditions[0].status == "True"


@cluster_story
async def test_no_operation_that_ended_is_granted_after_a_slow_write(cluster: Cluster) -> None:
    for name in ("m1", "m2"):
        await cluster.world.machine(name)
        await cluster.node(name)
    await cluster.budget("two", 2)
    waits, granted = [20.0], set[str]()

    async def before(_life: Incarnation, call: str, _name: str) -> None:
        if call == "patch MachineDisruptionBudget" and waits:
            await asyncio.sleep(waits.pop())

    def answered(_life: Incarnation, call: str, answer: object) -> None:
        if call == "patch MachineDisruptionBudget":
            assert isinstance(answer, MachineDisruptionBudget)
            granted.update(one.holder.name for one in answer.status.grants)

    with (
        mock.patch.object(cluster.writes, "before", before),
        mock.patch.object(cluster.writes, "answered", answered),
    ):
        for name in ("m1", "m2"):
            await cluster.world.operation(f"op-{name}", "HostReboot", name)
        await asyncio.sleep(5)
        assert not waits  # the write of one grant is under way, and the other one waits for it
        await cluster.world.cancel("op-m2")
        assert (await cluster.world.ended("op-m2", within_s=5)).status.reason == reasons.CANCELLED
        assert (await cluster.world.ended("op-m1")).status.phase == "Complete"
        await cluster.stage("m1", None)
    assert granted == {"op-m1"}


@cluster_story
async def test_a_stale_cache_grants_no_operation_that_has_ended(cluster: Cluster) -> None:
    await cluster.world.machine("m1")
    await cluster.node("m1")
    await cluster.budget("one", 0)
    await cluster.world.operation("op", "HostReboot", "m1")
    await cluster.world.until("op", lambda one: one.status.reason == reasons.WAITING_FOR_BUDGET, within_s=10)
    granted = set[str]()

    async def deliver(life: Incarnation, kind: str) -> None:
        if life.name.startswith("disruption") and kind == "MachineOperation":
            await life.hang()

    def answered(_life: Incarnation, call: str, answer: object) -> None:
        if call == "patch MachineDisruptionBudget":
            assert isinstance(answer, MachineDisruptionBudget)
            granted.update(one.holder.name for one in answer.status.grants)

    with (
        mock.patch.object(cluster.writes, "deliver", deliver),
        mock.patch.object(cluster.writes, "answered", answered),
    ):
        await cluster.world.cancel("op")
        await cluster.world.ended("op")
        await cluster.api.patch(MACHINE_DISRUPTION_BUDGETS, "one", {"spec": {"maxUnavailable": 1}})
        await asyncio.sleep(60)
    assert granted == set()
    assert await cluster.disruption("m1") is None


@cluster_story
async def test_a_grant_that_nothing_uses_ends(cluster: Cluster) -> None:
    machine = await cluster.world.machine("m1")
    await cluster.node("m1")
    await cluster.budget("one", 1)
    holder = {"kind": "HostReboot", "name": "gone", "uid": "gone"}
    since = {"since": "2030-01-01T00:00:00Z"}
    grant = {"machine": "m1", "machineUID": machine.metadata.uid, "holder": holder, **since}
    await cluster.api.patch(MACHINE_DISRUPTION_BUDGETS, "one", {"status": {"grants": [grant]}}, subresource="status")
    await asyncio.sleep(130)
    assert await cluster.granted("one") == set()


_PXE: dict[str, Any] = {
    "image": "i",
    "redfish": {"url": "https://x", "username": "u", "passwordRef": {"name": "s", "namespace": "n"}},
}
