"""Labels and taints of a Node follow its Machine: in place, by a three-way merge."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.agent.goals import goal
from tests.agent.recreation.world import NodeWorld, story
from unbounded.agent.model import Slot
from unbounded.agent.recreation.node_sync import labels_differ, node_change
from unbounded.api.core import NODES
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import ANNOTATION_PAUSED
from unbounded.join.labels_and_taints import label_changes, taints_after
from unbounded.kube.api import Forbidden


@story
async def test_labels_and_taints_are_followed_without_a_new_node(world: NodeWorld) -> None:
    await world.joined()
    running = world.node_agent().start()
    theirs = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    await world.api.patch(NODES, "m1", {"metadata": {"labels": {"zone": "z1"}}, "spec": {"taints": [theirs]}})
    for labels, taints in (({"tier": "a", "rack": "1"}, ["gpu=yes:NoSchedule"]), ({"tier": "b"}, [])):
        wanted = {"nodeLabels": {"tier": None, "rack": None, **labels}, "registerWithTaints": taints}
        await world.api.patch(MACHINES, "m1", {"spec": {"kubernetes": wanted}})
        await asyncio.sleep(5)
        node = await world.api.get(NODES.raw(), "m1")
        ours = {"unbounded-cloud.io/machine": "m1", "unbounded-cloud.io/site": "lab"}
        assert node["metadata"]["labels"] == {"zone": "z1", **ours, **labels}
        expected = [theirs, {"key": "gpu", "value": "yes", "effect": "NoSchedule"}] if taints else [theirs]
        assert node["spec"]["taints"] == expected
        assert (await world.condition("RepavePending"))[:2] == ("False", "Applied")
        applied = world.host.slots[Slot.KUBE1].applied
        assert applied is not None
        assert applied.goal.labels == {**ours, **labels}
    assert world.host.builds == 0
    awaits = running.life.awaits
    await asyncio.sleep(10)
    assert running.life.awaits == awaits, "what is as it should be is left alone"


@pytest.mark.slow
@story
async def test_a_label_that_is_refused_is_said_and_not_asked_for_again(world: NodeWorld) -> None:
    await world.joined()
    asked: list[str] = []

    def refuse(kind: Kind[Any], _old: Any, new: dict[str, Any]) -> None:
        if kind.kind == "Node" and "example.com/denied" in (new["metadata"].get("labels") or {}):
            asked.append(new["metadata"]["name"])
            raise Forbidden("an agent changes no such label")

    world.api._admit = refuse
    world.node_agent().start()
    role = {"spec": {"kubernetes": {"nodeLabels": {"example.com/denied": ""}}}}
    await world.api.patch(MACHINES, "m1", role)
    await asyncio.sleep(3600)
    status, reason, message = await world.condition("RepavePending")
    assert (status, reason) == ("True", "Pending")
    assert "cannot update labels and taints of the Node: an agent changes no such label" in message
    assert len(asked) == 1
    await world.api.patch(MACHINES, "m1", {"spec": {"kubernetes": {"nodeLabels": {"example.com/denied": None}}}})
    await asyncio.sleep(5)
    assert (await world.condition("RepavePending"))[:2] == ("False", "Applied")


@story
async def test_a_pause_that_keeps_labels_from_following_is_what_is_said(world: NodeWorld) -> None:
    await world.joined()
    world.node_agent().start()
    paused = {"metadata": {"annotations": {ANNOTATION_PAUSED: "true"}}}
    await world.api.patch(MACHINES, "m1", {**paused, "spec": {"kubernetes": {"nodeLabels": {"tier": "a"}}}})
    await asyncio.sleep(5)
    assert (
        "cannot update labels and taints of the Node: the Machine is paused"
        in (await world.condition("RepavePending"))[2]
    )
    await world.api.patch(MACHINES, "m1", {"metadata": {"annotations": {ANNOTATION_PAUSED: None}}})
    await asyncio.sleep(5)
    assert (await world.condition("RepavePending"))[:2] == ("False", "Applied")


@story
async def test_a_label_with_which_kubelet_would_not_start_is_left_to_machina(world: NodeWorld) -> None:
    await world.joined()
    world.node_agent().start()
    role = {"spec": {"kubernetes": {"nodeLabels": {"node-role.kubernetes.io/x": "", "tier": "a"}}}}
    await world.api.patch(MACHINES, "m1", role)
    await asyncio.sleep(600)
    assert (await world.condition("RepavePending"))[:2] == ("False", "Applied")
    labels = (await world.api.get(NODES, "m1")).metadata.labels
    assert (labels["tier"], "node-role.kubernetes.io/x" in labels) == ("a", False)
    applied = world.host.slots[Slot.KUBE1].applied
    assert applied is not None
    assert (applied.goal.labels["tier"], "node-role.kubernetes.io/x" in applied.goal.labels) == ("a", False)


THEIRS = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule", "timeAdded": "2030-01-01T00:00:00Z"}
GPU = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("there", "before", "wanted", "changes"),
    [
        ({"zone": "z"}, {}, {"tier": "a"}, {"tier": "a"}),
        ({"zone": "z", "tier": "a"}, {"tier": "a"}, {"tier": "b"}, {"tier": "b"}),
        ({"zone": "z", "tier": "a"}, {"tier": "a"}, {}, {"tier": None}),
        ({"zone": "z"}, {"tier": "a"}, {}, {}),
        ({"zone": "z", "tier": "b"}, {"tier": "a"}, {"tier": "b"}, {}),
        ({"zone": "z"}, {"zone": "z"}, {"zone": ""}, {"zone": ""}),
    ],
    ids=["new", "changed", "gone", "gone already", "there already", "emptied"],
)
def test_only_labels_that_came_from_here_change(
    there: dict[str, str], before: dict[str, str], wanted: dict[str, str], changes: dict[str, str | None]
) -> None:
    assert label_changes(there, before, wanted) == changes


@pytest.mark.parametrize(
    ("there", "before", "wanted", "after"),
    [
        ([THEIRS], [], ["gpu=yes:NoSchedule"], [THEIRS, GPU]),
        ([THEIRS, GPU], ["gpu=yes:NoSchedule"], [], [THEIRS]),
        ([GPU, THEIRS], ["gpu=yes:NoSchedule"], ["gpu=no:NoSchedule"], [GPU | {"value": "no"}, THEIRS]),
        ([GPU], ["gpu=yes:NoSchedule"], ["gpu=yes:NoExecute"], [GPU | {"effect": "NoExecute"}]),
        ([THEIRS], [], ["node.kubernetes.io/not-ready:NoSchedule"], [THEIRS]),
        ([], [], ["slow=:NoExecute"], [{"key": "slow", "effect": "NoExecute"}]),
    ],
    ids=["new", "gone", "value", "effect", "there already", "without a value"],
)
def test_only_taints_that_came_from_here_change(
    there: list[dict[str, Any]], before: list[str], wanted: list[str], after: list[dict[str, Any]]
) -> None:
    assert taints_after(there, before, wanted) == after


def test_a_node_that_is_as_it_is_wanted_is_not_written() -> None:
    made, wanted = goal(labels={"tier": "a"}), goal(labels={"tier": "b"}, taints=("gpu=yes:NoSchedule",))
    node = {"metadata": {"labels": {"tier": "a"}}, "spec": {}}
    assert node_change(node, made, wanted) == {"metadata": {"labels": {"tier": "b"}}, "spec": {"taints": [GPU]}}
    assert node_change({"metadata": {"labels": {"tier": "b"}}, "spec": {"taints": [GPU]}}, made, wanted) == {}


def test_the_order_of_taints_makes_no_difference() -> None:
    assert not labels_differ(
        goal(taints=("a:NoSchedule", "b:NoSchedule")), goal(taints=("b:NoSchedule", "a:NoSchedule"))
    )
    assert labels_differ(goal(taints=("a:NoSchedule",)), goal())
    assert labels_differ(goal(labels={"a": ""}), goal(labels={}))
