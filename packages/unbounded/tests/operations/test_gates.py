"""Gates of a claim: pause, older operations, the lock; the first closed gate is the reason of the wait."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.operations.building import claim, config_map, ended, machine_of, operation_of, slot_of
from unbounded.api.machine import Machine
from unbounded.api.names import ANNOTATION_PAUSED
from unbounded.api.operation import MachineOperation
from unbounded.operations import reasons
from unbounded.operations.claim_gates import Gate, closed_gate, disruption_gate, ignores_grants, is_paused

EARLY, LATE = "2030-01-01T00:00:00Z", "2030-01-01T00:00:09Z"


def _reason(gate: Gate | None) -> str | None:
    return gate.reason if gate else None


def test_nothing_holds_back_an_operation_that_is_alone() -> None:
    operation = operation_of()
    assert closed_gate(operation, machine_of(), [operation], None) is None


@pytest.mark.parametrize(("value", "paused"), [("true", True), ("", True), ("maintenance", True), ("false", False)])
def test_the_pause_annotation_pauses_whatever_its_value_but_false(value: str, paused: bool) -> None:
    assert is_paused({ANNOTATION_PAUSED: value}) is paused
    gate = closed_gate(operation_of(), machine_of(annotations={ANNOTATION_PAUSED: value}), [], None)
    assert _reason(gate) == (reasons.PAUSED if paused else None)


def test_a_pause_of_all_is_told_from_a_pause_of_the_machine() -> None:
    for_all = closed_gate(operation_of(), machine_of(), [], config_map(**{ANNOTATION_PAUSED: "true"}))
    assert for_all is not None
    assert (for_all.reason, for_all.held_by) == (reasons.PAUSED, "ConfigMap unbounded-operations")
    here = closed_gate(operation_of(), machine_of(annotations={ANNOTATION_PAUSED: "true"}), [], config_map())
    assert here is not None
    assert (here.reason, here.held_by) == (reasons.PAUSED, "Machine m1")


def test_the_older_goes_first_by_creation_and_then_by_name() -> None:
    first, second = operation_of("b", created=EARLY), operation_of("a", created=LATE)
    assert closed_gate(first, machine_of(), [first, second], None) is None
    gate = closed_gate(second, machine_of(), [first, second], None)
    assert gate is not None
    assert (gate.reason, gate.held_by) == (reasons.WAITING_FOR_OLDER, "b")
    twin = operation_of("c", created=EARLY)
    assert _reason(closed_gate(twin, machine_of(), [first, twin], None)) == reasons.WAITING_FOR_OLDER
    assert closed_gate(first, machine_of(), [first, twin], None) is None


def test_the_oldest_of_several_is_named() -> None:
    others = [operation_of(name, created=f"2030-01-01T00:00:0{at}Z") for name, at in (("y", 2), ("x", 1), ("z", 3))]
    gate = closed_gate(operation_of("me", created=LATE), machine_of(), others, None)
    assert gate is not None
    assert gate.held_by == "x"


@pytest.mark.parametrize(
    "older",
    [
        operation_of("old", created=EARLY, status=ended("Complete")),
        operation_of("old", created=EARLY, status=ended("Failed")),
        operation_of("old", created=EARLY, metadata={"deletionTimestamp": EARLY}),
        operation_of("old", "NodeReboot", created=EARLY),
    ],
    ids=["complete", "failed", "deleted before its claim", "an agent's that nobody has started"],
)
def test_these_older_ones_hold_no_host_operation_back(older: MachineOperation) -> None:
    operation = operation_of("me", created=LATE)
    assert closed_gate(operation, machine_of(), [operation, older], None) is None


def test_an_agents_operation_waits_for_an_older_agents_operation() -> None:
    older, operation = (
        operation_of("old", "AgentUpgrade", created=EARLY),
        operation_of("me", "NodeReboot", created=LATE),
    )
    assert _reason(closed_gate(operation, machine_of(), [older, operation], None)) == reasons.WAITING_FOR_OLDER


def test_a_claimed_operation_of_an_agent_holds_a_host_operation_back() -> None:
    older = operation_of("old", "NodeReboot", created=EARLY, status=claim(executor="unbounded-agent/m1"))
    gate = closed_gate(operation_of("me", created=LATE), machine_of(), [older], None)
    assert _reason(gate) == reasons.WAITING_FOR_OLDER


def test_a_running_operation_that_is_being_deleted_still_holds_back() -> None:
    older = operation_of("old", created=EARLY, status=claim(), metadata={"deletionTimestamp": LATE})
    gate = closed_gate(operation_of("me", created=LATE), machine_of(), [older], None)
    assert _reason(gate) == reasons.WAITING_FOR_OLDER


def test_the_slot_of_another_one_is_closed_and_names_its_holder() -> None:
    machine = machine_of(status={"activeOperation": slot_of("holder")})
    gate = closed_gate(operation_of("me"), machine, [], None)
    assert gate is not None
    assert (gate.reason, gate.held_by) == (reasons.SLOT_HELD, "holder")
    assert "metalman/lab" in gate.text


def test_the_own_slot_is_open() -> None:
    machine = machine_of(status={"activeOperation": slot_of("me")})
    assert closed_gate(operation_of("me"), machine, [], None) is None


def test_lock_holder_does_not_wait_for_older_operations_without_the_lock() -> None:
    """One whose executor was cut off between the slot and the claim, and one that was created in the same second."""
    holder, older = operation_of("b", created=EARLY), operation_of("a", created=EARLY)
    machine = machine_of(status={"activeOperation": slot_of("b")})
    assert _reason(closed_gate(older, machine, [holder, older], None)) == reasons.SLOT_HELD
    assert closed_gate(holder, machine, [holder, older], None) is None
    at_work = operation_of("a", created=EARLY, status=claim())
    assert _reason(closed_gate(holder, machine, [holder, at_work], None)) == reasons.WAITING_FOR_OLDER


def test_the_slot_of_an_ended_operation_is_free() -> None:
    machine = machine_of(status={"activeOperation": slot_of("holder")})
    holder = operation_of("holder", status=ended("Failed"))
    assert closed_gate(operation_of("me"), machine, [holder], None) is None


def test_lock_of_a_lost_executor_blocks_after_its_operation_ended() -> None:
    machine = machine_of(status={"activeOperation": slot_of("holder", lost=True)})
    holder = operation_of("holder", status=ended("Failed"))
    gate = closed_gate(operation_of("me"), machine, [holder], None)
    assert gate is not None
    assert gate.reason == reasons.SLOT_HELD
    assert "observes the host before it acts" in gate.text


def test_a_namesake_of_the_holder_does_not_free_its_slot() -> None:
    machine = machine_of(status={"activeOperation": slot_of("holder")})
    namesake = operation_of("holder", status=ended(), metadata={"uid": "another"})
    assert _reason(closed_gate(operation_of("me"), machine, [namesake], None)) == reasons.SLOT_HELD


@pytest.mark.parametrize(
    ("budgets", "mode", "waits"),
    [((), "Auto", False), ((), "Never", False), ((), "Always", True), (("b",), "Auto", True), (("b",), "Never", True)],
)
def test_an_operation_waits_for_the_drain_or_the_grant_that_it_needs(
    budgets: tuple[str, ...], mode: str, *, waits: bool
) -> None:
    spec = {"operationKind": "HostReboot", "machineRef": "m1", "drain": {"mode": mode}}
    operation = msgspec.convert({"metadata": {"name": "op", "uid": "u"}, "spec": spec}, MachineOperation)
    body: dict[str, Any] = {
        "metadata": {"name": "m1", "uid": "m"},
        "spec": {},
        "status": {"disruptionBudgets": list(budgets)},
    }
    gate = disruption_gate(operation, msgspec.convert(body, Machine))
    assert (gate is not None) is waits
    if gate is not None:
        assert ("MachineDisruptionBudget b" in gate.text) is bool(budgets)
    holder = {"kind": "HostReboot", "name": "op", "uid": "u"}
    body["status"]["disruption"] = {"holder": holder, "stage": "Drained", "since": "2030-01-01T00:00:00Z"}
    assert disruption_gate(operation, msgspec.convert(body, Machine)) is None


@pytest.mark.parametrize(
    ("kind", "agent", "spec", "ignores"),
    [
        ("NodeReboot", {"version": "0.0.9"}, {}, True),
        ("NodeReboot", {"version": "0.0.9"}, {"drain": {"mode": "Never"}}, True),
        ("NodeReboot", {"version": "0.0.9"}, {"override": "it burns"}, False),
        ("NodeReboot", {"version": "0.0.9"}, {"override": "it burns", "drain": {"mode": "Always"}}, True),
        ("NodeReboot", {"version": "1.0", "waitsForGrants": True}, {}, False),
        ("NodeReboot", {}, {}, False),
        ("AgentUpgrade", {"version": "0.0.9"}, {}, False),
        ("HostReboot", {"version": "0.0.9"}, {}, False),
    ],
)
def test_an_earlier_agent_ignores_the_grant_that_an_operation_needs(
    kind: str, agent: dict[str, Any], spec: dict[str, Any], *, ignores: bool
) -> None:
    machine = machine_of(status={"agent": agent, "disruptionBudgets": ["one"]})
    assert (ignores_grants(operation_of(kind=kind, **spec), machine) is not None) == ignores
