"""Changes of a Node after those of its Machine's labels and taints: a three-way merge, which keeps those of others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agent.goals import goal
from unbounded.agent.recreation.node_sync import labels_differ, node_change
from unbounded.join.node_marks import label_changes, taints_after

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
