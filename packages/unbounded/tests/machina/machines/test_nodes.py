"""Changes of a Node for its Machine: labels are kept, taints followed, and those of other writers do not change."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.operations.building import config_map, slot_of
from unbounded.agent.model import NodeGoal
from unbounded.agent.node_spec import desired_node
from unbounded.api.configuration import MachineConfigurationTemplate, MachineConfigurationVersion
from unbounded.api.core import Node
from unbounded.api.machine import Machine
from unbounded.api.names import ANNOTATION_NODE_APPLIED, ANNOTATION_PAUSED, LABEL_MACHINE, LABEL_SITE
from unbounded.machina.machines.model import SetNodeRef, UpdateNode
from unbounded.machina.machines.nodes import configured, node_actions, node_change

ROLE = "node-role.kubernetes.io/worker"
OURS = {LABEL_MACHINE: "m1", LABEL_SITE: "lab"}
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule", "timeAdded": "2030-01-01T00:00:00Z"}


def machine_of(
    *,
    annotations: dict[str, str] | None = None,
    status: dict[str, Any] | None = None,
    ref: Any = None,
    **kubernetes: Any,
) -> Machine:
    meta = {
        "name": "m1",
        "uid": "u-1",
        "resourceVersion": "7",
        "labels": {LABEL_SITE: "lab"},
        "annotations": annotations or {},
    }
    spec = {"kubernetes": {"nodeRef": {"name": "m1"}, **kubernetes}, **({"configurationRef": ref} if ref else {})}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status or {}}, Machine)


def node_of(
    labels: dict[str, str] | None = None,
    taints: list[dict[str, str]] | None = None,
    *,
    name: str = "m1",
    note: str = "",
) -> Node:
    meta: dict[str, Any] = {"name": name, "uid": "n-1", "resourceVersion": "9"}
    meta["labels"] = OURS | (labels or {}) if labels is None or LABEL_MACHINE not in labels else labels
    meta["annotations"] = {ANNOTATION_NODE_APPLIED: note} if note else {}
    return msgspec.convert({"metadata": meta, "spec": {"taints": taints or []}}, Node)


def template(**kubernetes: Any) -> MachineConfigurationTemplate:
    return msgspec.convert({"kubernetes": kubernetes}, MachineConfigurationTemplate)


def merged(node: Node, change: dict[str, Any]) -> Node:
    """The Node after a merge patch."""
    meta = change.get("metadata", {})
    assert not change or meta["resourceVersion"] == node.metadata.resource_version
    labels = {k: v for k, v in (dict(node.metadata.labels) | meta.get("labels", {})).items() if v is not None}
    notes = dict(node.metadata.annotations) | meta.get("annotations", {})
    metadata = {
        "name": node.metadata.name,
        "uid": "n-1",
        "resourceVersion": "9",
        "labels": labels,
        "annotations": notes,
    }
    taints = change.get("spec", {}).get("taints", msgspec.to_builtins(node.spec.taints))
    return msgspec.convert({"metadata": metadata, "spec": {"taints": taints}}, Node)


def settled(machine: Machine, node: Node, its: MachineConfigurationTemplate | None = None) -> Node:
    """The Node after machina has written, which is to be once."""
    after = merged(node, node_change(machine, node, its))
    assert node_change(machine, after, its) == {}
    return after


def texts(node: Node) -> list[str]:
    return [f"{taint.key}={taint.value or ''}:{taint.effect}" for taint in node.spec.taints]


def test_missing_node_labels_are_set_including_restricted_ones() -> None:
    machine = machine_of(nodeLabels={ROLE: "", "tier": "a"})
    after = settled(machine, node_of({"zone": "z", "tier": "old"}))
    assert after.metadata.labels == OURS | {"zone": "z", ROLE: "", "tier": "a"}


def test_removed_or_changed_node_label_is_restored() -> None:
    machine = machine_of(nodeLabels={"tier": "a"})
    after = settled(machine, node_of())
    changed = merged(after, {"metadata": {"labels": {"tier": "b", LABEL_SITE: None}, "resourceVersion": "9"}})
    assert settled(machine, changed).metadata.labels == OURS | {"tier": "a"}


def test_only_what_was_set_from_here_goes() -> None:
    after = settled(machine_of(nodeLabels={ROLE: "", "tier": "a"}), node_of({"zone": "z"}))
    assert settled(machine_of(nodeLabels={"tier": "a"}), after).metadata.labels == OURS | {"zone": "z", "tier": "a"}
    assert settled(machine_of(nodeLabels={"zone": "x"}), node_of({"tier": "theirs"})).metadata.labels == OURS | {
        "zone": "x",
        "tier": "theirs",
    }


def test_labels_that_are_left_out_stay_and_empty_ones_go() -> None:
    after = settled(machine_of(nodeLabels={"tier": "a"}, registerWithTaints=["gpu=yes:NoSchedule"]), node_of())
    kept = settled(machine_of(), after)
    assert kept.metadata.labels == after.metadata.labels
    assert settled(machine_of(nodeLabels={}), kept).metadata.labels == OURS


def test_a_new_node_keeps_the_taints_that_it_has() -> None:
    """The registration has set them, and a user has removed the missing ones."""
    machine = machine_of(registerWithTaints=["startup:NoSchedule", "gpu=yes:NoSchedule"])
    after = settled(machine, node_of(taints=[NOT_READY, {"key": "gpu", "value": "yes", "effect": "NoSchedule"}]))
    assert texts(after) == ["node.kubernetes.io/not-ready=:NoSchedule", "gpu=yes:NoSchedule"]


def test_node_taints_follow_the_spec_and_foreign_ones_stay() -> None:
    first = settled(machine_of(registerWithTaints=["gpu=yes:NoSchedule"]), node_of(taints=[NOT_READY]))
    more = machine_of(registerWithTaints=["gpu=no:NoSchedule", "new:NoExecute"])
    second = settled(more, first)
    assert texts(second) == [
        "node.kubernetes.io/not-ready=:NoSchedule",
        "gpu=no:NoSchedule",
        "new=:NoExecute",
    ]
    assert second.spec.taints[0].time_added == NOT_READY["timeAdded"]
    taken_off = merged(second, {"metadata": {"resourceVersion": "9"}, "spec": {"taints": [NOT_READY]}})
    assert node_change(more, taken_off, None) == {}
    assert texts(settled(machine_of(registerWithTaints=[]), second)) == ["node.kubernetes.io/not-ready=:NoSchedule"]
    assert texts(settled(machine_of(), second)) == texts(second)


def test_the_configuration_wins_where_both_say_something() -> None:
    machine = machine_of(ref={"name": "c"}, nodeLabels={"tier": "a", "own": "1"})
    its = template(nodeLabels={"tier": "b"}, registerWithTaints=[{"key": "gpu", "effect": "NoSchedule"}])
    assert settled(machine, node_of(), its).metadata.labels == OURS | {"tier": "b", "own": "1"}


def version(number: int, configuration: str = "c") -> MachineConfigurationVersion:
    meta = {
        "name": f"{configuration}-v{number}",
        "labels": {"unbounded-cloud.io/machine-configuration": configuration},
    }
    spec = {"version": number, "template": {"kubernetes": {"nodeLabels": {"v": str(number)}}}}
    return msgspec.convert({"metadata": meta, "spec": spec}, MachineConfigurationVersion)


def test_the_bound_version_counts_as_the_agent_takes_it() -> None:
    there = [version(2), version(10), version(30, "other")]
    assert configured(machine_of(), there).template is None
    newest = configured(machine_of(ref={"name": "c"}), there)
    assert newest.template is not None
    assert newest.template.kubernetes is not None
    assert newest.template.kubernetes.node_labels == {"v": "10"}
    written = configured(machine_of(ref={"name": "c", "version": 2}), there)
    assert written.template == version(2).spec.template
    assert not configured(machine_of(ref={"name": "c", "version": 3}), there).known
    assert not configured(machine_of(ref={"name": "none"}), there).known


@pytest.mark.parametrize(
    "machine",
    [
        machine_of(annotations={ANNOTATION_PAUSED: "true"}, nodeLabels={"tier": "a"}),
        machine_of(ref={"name": "gone"}, nodeLabels={"tier": "a"}),
        machine_of(status={"activeOperation": slot_of("x", kind="NodeRecreation")}, nodeLabels={"tier": "a"}),
    ],
    ids=["paused", "configuration missing", "slot held"],
)
def test_a_node_is_left_alone_while_its_machine_is_held_back(machine: Machine) -> None:
    assert node_actions(machine, node_of(), None) == ()


def test_a_pause_of_all_holds_the_node_too() -> None:
    machine = machine_of(nodeLabels={"tier": "a"})
    assert node_actions(machine, node_of(), None, config_map(**{ANNOTATION_PAUSED: "true"})) == ()
    assert [type(action) for action in node_actions(machine, node_of(), None)] == [UpdateNode]


def test_the_node_is_named_in_the_machine() -> None:
    machine = machine_of(nodeRef=None)
    first = node_actions(machine, settled(machine, node_of()), None)
    assert first == (SetNodeRef("m1"),)


def test_a_node_of_another_machine_gets_nothing_whatever_its_name() -> None:
    machine = machine_of(nodeLabels={ROLE: ""})
    assert node_actions(machine, node_of({LABEL_MACHINE: "m2"}), None) == ()


def test_unconfirmed_node_gets_no_labels_of_the_machine() -> None:
    machine = machine_of(nodeLabels={ROLE: ""})
    assert node_actions(machine, node_of(name="rogue"), None) == (SetNodeRef("rogue"),)


@pytest.mark.parametrize("note", ["{", "[]", '{"labels": {"zone": 1}}', "null"])
def test_a_note_that_is_none_takes_nothing_away(note: str) -> None:
    after = settled(machine_of(nodeLabels={"tier": "a"}), node_of({"zone": "z"}, [NOT_READY], note=note))
    assert after.metadata.labels == OURS | {"zone": "z", "tier": "a"}
    assert texts(after) == ["node.kubernetes.io/not-ready=:NoSchedule"]


LABELS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.sampled_from(["1", "2"]), max_size=3)
TAINTS = st.lists(st.sampled_from(["x=1:NoSchedule", "x=2:NoSchedule", "x=:NoExecute", "y=1:NoExecute"]), max_size=2)
SIDE = st.fixed_dictionaries({}, optional={"nodeLabels": LABELS, "registerWithTaints": TAINTS})


@pytest.mark.slow
@given(st.lists(SIDE, min_size=1, max_size=4))
def test_agent_and_machina_want_the_same_and_come_to_rest(sides: list[dict[str, Any]]) -> None:
    """After each change, in either order, the other has nothing to do after one observation of each."""
    node, goal = node_of(), NodeGoal(machine="m1", kubernetes_version="", api_server="", ca_pem="", labels=dict(OURS))
    for spec in sides:
        machine = machine_of(**spec)
        node = settled(machine, node)
        goal = desired_node(machine, None, goal).goal
        assert {key: node.metadata.labels.get(key) for key in goal.labels} == goal.labels
        assert set(node.metadata.labels) == set(goal.labels)
