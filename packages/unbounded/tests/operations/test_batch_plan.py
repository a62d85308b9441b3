"""A selector operation: what it may select, how its children are started, mirrored and stopped. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.operations.building import claim, machine_of, operation_of
from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation, OperationPhase, TargetStatus
from unbounded.operations import reasons
from unbounded.operations.batch_plan import (
    MAX_TARGETS,
    BatchRejection,
    child_manifest,
    child_name,
    fail_uncreated,
    is_child_of,
    plan_batch,
    snapshot,
)
from unbounded.operations.rollout_plan import RolloutFacts

NOW = "2030-01-01T00:00:00Z"
AT = RolloutFacts(datetime.fromisoformat(NOW))
SITE = {"matchLabels": {"unbounded-cloud.io/site": "lab"}}


def _parent(kind: str = "HostReboot", selector: Any = SITE, targets: int = 0, **spec: Any) -> MachineOperation:
    status = {"targets": [{"machineRef": f"m{n}", "phase": "Pending"} for n in range(targets)]} if targets else {}
    return operation_of("all", kind, None, machineSelector=selector, status=status, **spec)


def _machines(count: int, **options: Any) -> list[Machine]:
    return [machine_of(f"m{n}", **options) for n in range(count)]


def _refused(parent: MachineOperation, machines: list[Machine]) -> BatchRejection:
    found = snapshot(parent, machines)
    assert isinstance(found, BatchRejection), found
    assert found.text
    return found


# The snapshot


def test_the_snapshot_names_all_that_match_sorted() -> None:
    machines = [*reversed(_machines(3)), machine_of("other", labels={"unbounded-cloud.io/site": "elsewhere"})]
    found = snapshot(_parent(), machines)
    assert not isinstance(found, BatchRejection)
    assert [(target.machine_ref, target.phase) for target in found] == [(f"m{n}", "Pending") for n in range(3)]


@pytest.mark.parametrize("selector", [{}, {"matchLabels": {}}, {"matchLabels": {}, "matchExpressions": []}])
def test_an_empty_selector_is_refused(selector: Any) -> None:
    for kind in ("HostReboot", "NodeReboot"):
        assert _refused(_parent(kind, selector), _machines(1)).reason == reasons.INVALID_SPEC


def test_a_host_operation_has_to_name_one_site() -> None:
    refused = _refused(_parent(selector={"matchLabels": {"rack": "7"}}), _machines(1))
    assert refused.reason == reasons.INVALID_TARGET_SCOPE
    assert "unbounded-cloud.io/site" in refused.text


@pytest.mark.parametrize(
    ("operator", "values", "fits"),
    [("In", ["lab"], True), ("In", ["lab", "two"], False), ("NotIn", ["two"], False), ("Exists", [], False)],
)
def test_a_site_can_be_named_by_an_expression_of_one_value(operator: str, values: list[str], fits: bool) -> None:
    expression = {"key": "unbounded-cloud.io/site", "operator": operator, "values": values}
    found = snapshot(_parent(selector={"matchExpressions": [expression]}), _machines(2))
    assert isinstance(found, BatchRejection) is not fits


def test_an_agents_operation_takes_any_selector_that_is_not_empty() -> None:
    machines = _machines(2, labels={"rack": "7"})
    found = snapshot(_parent("NodeReboot", {"matchLabels": {"rack": "7"}}), machines)
    assert not isinstance(found, BatchRejection)
    assert len(found) == 2


def test_a_selector_that_matches_nothing_is_refused() -> None:
    assert _refused(_parent(), []).reason == reasons.NO_MATCHING_MACHINES


def test_no_more_than_a_thousand_machines_are_taken() -> None:
    machines = _machines(MAX_TARGETS + 1)
    assert _refused(_parent(), machines).reason == reasons.TOO_MANY_TARGETS
    found = snapshot(_parent(), machines[:-1])
    assert not isinstance(found, BatchRejection)
    assert len(found) == MAX_TARGETS


def test_machines_of_several_executors_are_refused_for_host_operations() -> None:
    mixed = [*_machines(1), machine_of("vm", provider="AzureVM", providerID="azure:///1")]
    refused = _refused(_parent(), mixed)
    assert refused.reason == reasons.INVALID_TARGET_SCOPE
    assert "metalman/lab" in refused.text
    assert not isinstance(snapshot(_parent("NodeReboot"), mixed), BatchRejection)


def test_wrong_parameters_are_refused_before_anything_is_started() -> None:
    refused = _refused(_parent(parameters={"force": "x"}), _machines(1))
    assert refused.reason == reasons.INVALID_PARAMETERS
    assert "spec.parameters.force" in refused.text


# Children


def test_a_child_says_whose_it_is_and_takes_over_what_was_asked() -> None:
    parent = _parent(parameters={"force": "true"}, deadlineSeconds=77, startDeadlineSeconds=88)
    manifest = child_manifest(parent, "m1")
    child = msgspec.convert(manifest, MachineOperation)
    assert is_child_of(child, parent.metadata.uid)
    assert not is_child_of(child, "another")
    assert child.metadata.labels == {"unbounded-cloud.io/parent": "all"}
    spec = child.spec
    assert (spec.machine_ref, spec.operation_kind, spec.parameters) == ("m1", "HostReboot", {"force": "true"})
    assert (spec.deadline_seconds, spec.start_deadline_seconds) == (77, 88)
    assert spec.machine_selector is None


NAMES = st.text("ab-.", min_size=1, max_size=253)


@pytest.mark.slow
@given(NAMES, NAMES, NAMES)
def test_names_of_children_are_stable_short_enough_and_differ(name: str, one: str, other: str) -> None:
    parent = operation_of(name, machine=None)
    assert child_name(parent, one) == child_name(parent, one)
    assert len(child_name(parent, one)) <= 253
    assert (child_name(parent, one) == child_name(parent, other)) == (one == other)


@pytest.mark.slow
@given(st.text("a", min_size=1, max_size=253))
def test_the_label_of_a_child_is_short_enough(name: str) -> None:
    labels = child_manifest(operation_of(name, machine=None, metadata={"uid": "u" * 36}), "m1")["metadata"]["labels"]
    assert all(len(value) <= 63 for value in labels.values())


# The mirror


class Fleet:
    """The children of one parent, as a test moves them."""

    def __init__(self, parent: MachineOperation) -> None:
        self.parent = parent
        self.children: dict[str, MachineOperation] = {}
        self.most = 0

    def step(self) -> None:
        """One pass of the steward: start, cancel, and write the mirror."""
        step = plan_batch(self.parent, self.children.values(), AT)
        for machine in step.start:
            manifest = child_manifest(self.parent, machine)
            self.children[machine] = msgspec.convert(manifest, MachineOperation)
        for machine, child in self.children.items():
            if child.name in step.cancel:
                self.children[machine] = _changed(child, spec={"cancel": True})
        self.most = max(self.most, sum(not child.terminal for child in self.children.values()))
        status: dict[str, Any] = {"targets": step.targets}
        if step.end:
            phase, reason = step.end
            status |= {"phase": phase, "reason": reason}
        self.parent = _changed(self.parent, status=status)

    def end(self, machine: str, phase: str) -> None:
        self.children[machine] = _changed(self.children[machine], status={"phase": phase, "completed_at": NOW})

    @property
    def targets(self) -> dict[str, TargetStatus]:
        return {target.machine_ref: target for target in self.parent.status.targets}

    @property
    def running(self) -> list[str]:
        return [machine for machine, child in self.children.items() if not child.terminal]


def _changed(operation: MachineOperation, **parts: Mapping[str, Any]) -> MachineOperation:
    changes = {part: msgspec.structs.replace(getattr(operation, part), **fields) for part, fields in parts.items()}
    return msgspec.structs.replace(operation, **changes)


@pytest.mark.slow
@given(
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 11), st.booleans()), max_size=60),
)
def test_never_more_than_max_concurrent_run_and_every_fan_ends(
    count: int, at_once: int, failures: int, ends: list[tuple[int, bool]]
) -> None:
    fleet = Fleet(_parent(targets=count, maxConcurrent=at_once, maxFailures=failures))
    for which, well in [*ends, *((0, True) for _ in range(count))]:
        fleet.step()
        running = fleet.running
        if running:
            fleet.end(running[which % len(running)], "Complete" if well else "Failed")
    fleet.step()
    fleet.step()
    assert fleet.most <= at_once
    assert fleet.parent.terminal
    failed = [machine for machine, child in fleet.children.items() if child.status.phase == "Failed"]
    assert len(failed) < failures + at_once  # those that ran already may fail too
    whole = len(fleet.children) == count and not failed
    assert fleet.parent.status.phase == ("Complete" if whole else "Failed")


def test_after_max_failures_nothing_more_is_started_and_the_rest_says_why() -> None:
    fleet = Fleet(_parent(targets=4, maxConcurrent=2, maxFailures=1))
    fleet.step()
    fleet.end("m0", "Failed")
    fleet.step()
    assert set(fleet.children) == {"m0", "m1"}
    assert [fleet.targets[m].reason for m in ("m2", "m3")] == [reasons.NOT_STARTED] * 2
    assert not fleet.parent.terminal  # m1 continues
    fleet.end("m1", "Complete")
    fleet.step()
    assert (fleet.parent.status.phase, fleet.parent.status.reason) == ("Failed", reasons.TARGET_FAILED)
    assert fleet.targets["m1"].phase == OperationPhase.COMPLETE


def test_cancel_stops_children_and_starts_no_more() -> None:
    fleet = Fleet(_parent(targets=3, maxConcurrent=1))
    fleet.step()
    fleet.parent = _changed(fleet.parent, spec={"cancel": True})
    fleet.step()
    assert fleet.children["m0"].spec.cancel
    assert [fleet.targets[m].reason for m in ("m1", "m2")] == [reasons.CANCELLED] * 2
    fleet.end("m0", "Failed")
    fleet.step()
    assert (fleet.parent.status.phase, fleet.parent.status.reason) == ("Failed", reasons.CANCELLED)


def test_a_deletion_stops_children_as_a_cancel_does() -> None:
    fleet = Fleet(_parent(targets=1))
    fleet.step()
    fleet.parent = _changed(fleet.parent, metadata={"deletion_timestamp": NOW})
    fleet.step()
    assert fleet.children["m0"].spec.cancel


def test_a_cancelled_child_is_told_once() -> None:
    fleet = Fleet(_parent(targets=1, cancel=False))
    fleet.step()
    fleet.parent = _changed(fleet.parent, spec={"cancel": True})
    assert plan_batch(fleet.parent, fleet.children.values(), AT).cancel == ("all-m0",)
    fleet.step()
    assert plan_batch(fleet.parent, fleet.children.values(), AT).cancel == ()


def test_deleted_child_operation_is_a_failed_target_and_not_recreated() -> None:
    fleet = Fleet(_parent(targets=1))
    fleet.step()
    fleet.step()
    assert fleet.targets["m0"].operation == "all-m0"
    fleet.children.clear()
    fleet.step()
    assert fleet.children == {}
    assert fleet.targets["m0"].phase == OperationPhase.FAILED
    assert "deleted" in (fleet.targets["m0"].message or "")


def test_a_recorded_end_stays_although_its_child_is_gone() -> None:
    fleet = Fleet(_parent(targets=2, maxConcurrent=2))
    fleet.step()
    fleet.end("m0", "Complete")
    fleet.step()
    del fleet.children["m0"]
    fleet.step()
    assert fleet.targets["m0"].phase == OperationPhase.COMPLETE


def test_a_child_that_cannot_be_made_fails_that_target_only() -> None:
    targets = _parent(targets=2).status.targets
    marked = fail_uncreated(targets, {"m1": BatchRejection(reasons.NAME_TAKEN, "taken")}, now=NOW)
    assert [(target.phase, target.reason) for target in marked] == [("Pending", None), ("Failed", reasons.NAME_TAKEN)]


def test_the_message_counts_the_targets() -> None:
    fleet = Fleet(_parent(targets=3, maxConcurrent=1))
    fleet.step()
    fleet.end("m0", "Complete")
    assert (
        plan_batch(fleet.parent, fleet.children.values(), AT).message
        == "targets complete=1 failed=0 inProgress=0 pending=2"
    )


def test_the_mirror_of_a_thousand_long_messages_fits_into_one_object() -> None:
    """etcd takes 1.5 MiB; what providers keep for each target stays in the children."""
    names = [f"m{number:03}" for number in range(MAX_TARGETS)]
    targets = [{"machineRef": name, "phase": "Pending"} for name in names]
    parent = operation_of("p" * 120, machine=None, machineSelector=SITE, status={"targets": targets})
    token = {"provider": "Sim", "resumeToken": "t" * 4096}
    status = {**claim(), "message": "x" * 4096}
    status["targets"] = [{**status["targets"][0], "providerOperation": token, "message": "x" * 4096}]
    children = {name: operation_of(f"{parent.name}-{name}", machine=name, status=status) for name in names}
    mirrored = plan_batch(parent, children.values(), AT).targets
    assert len(msgspec.json.encode(mirrored)) < 1_000_000
    assert all((target.message or "").startswith("xxx") for target in mirrored)
