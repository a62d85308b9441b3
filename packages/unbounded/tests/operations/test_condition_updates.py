"""Conditions of an operation on its Machine, from its claim to its end, and those that a new host loses."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

import msgspec
import pytest

from tests.operations.building import claim, ended, machine_of, operation_of
from tests.operations.staging import story
from tests.operations.world import World
from tests.workflow.test_procedure import SOUND
from unbounded.api.conditions import ConditionStatus
from unbounded.api.core import Node
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import ObjectMeta
from unbounded.operations import machine_lock
from unbounded.workflow.procedure import ConditionUpdate, Procedure

NOW: Final = "2030-01-01T00:00:00Z"
PENDING: Final = ConditionUpdate("Repaved", ConditionStatus.FALSE, "Pending")
MARKED: Final = replace(
    SOUND,
    start_conditions=(PENDING, ConditionUpdate("CloudInitDone", None)),
    end_conditions=(ConditionUpdate("Repaved", ConditionStatus.TRUE, "Succeeded", where=ConditionStatus.FALSE),),
    failure_conditions=(ConditionUpdate("Repaved", None, where=ConditionStatus.FALSE),),
)


def raw(**conditions: tuple[str, str, str]) -> dict[str, Any]:
    """A Machine with conditions as (status, reason, message)."""
    said = [
        {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": NOW}
        for kind, (status, reason, message) in conditions.items()
    ]
    built: dict[str, Any] = msgspec.to_builtins(machine_of(status={"conditions": said}))
    return built


def shown(change: dict[str, Any]) -> dict[str, tuple[str, str, str]] | None:
    conditions = change.get("conditions")
    if conditions is None:
        return None
    return {each["type"]: (each["status"], each["reason"], each.get("message", "")) for each in conditions}


def test_the_first_marks_are_written_with_the_slot() -> None:
    before = raw(CloudInitDone=("True", "Succeeded", ""), Attested=("True", "Succeeded", ""))
    change = machine_lock.take_change(before, operation_of(), "metalman/lab", MARKED.start_conditions, now=NOW)
    assert shown(change) == {"Attested": ("True", "Succeeded", ""), "Repaved": ("False", "Pending", "")}
    assert change["activeOperation"]["name"] == "op"


WRITTEN: Final = ("True", "Succeeded", "image=i")


@pytest.mark.parametrize(
    ("phase", "before", "after"),
    [
        ("Complete", ("False", "Pending", ""), {"Repaved": ("True", "Succeeded", "")}),
        ("Complete", WRITTEN, None),
        ("Failed", ("False", "Pending", ""), {}),
        ("Failed", WRITTEN, None),
    ],
)
def test_what_others_have_said_meanwhile_stays(
    phase: str, before: tuple[str, str, str], after: dict[str, Any] | None
) -> None:
    operation = operation_of(status={**claim(), **ended(phase)})
    change = machine_lock.release_change(raw(Repaved=before), operation, MARKED, now=NOW)
    assert shown(change) == after


def test_the_lock_of_a_host_operation_brings_its_phase() -> None:
    change = machine_lock.taken_phase(machine_of(), operation_of(kind="HostReboot"), "metalman/lab")
    assert (change["phase"], change["reason"]) == ("Rebooting", "HostReboot")
    assert change["message"] == "HostReboot op by metalman/lab"


def test_the_lock_of_an_operation_in_the_host_leaves_the_phase() -> None:
    assert machine_lock.taken_phase(machine_of(), operation_of(kind="NodeReboot"), "unbounded-agent/m1") == {}


OFF: Final = {
    "conditions": [
        {"type": "PoweredOff", "status": "True", "reason": "PoweredOff", "message": "Off", "lastTransitionTime": NOW}
    ]
}
SSH: Final = {"host": "192.0.2.1", "username": "u", "privateKeyRef": {"name": "n", "key": "k", "namespace": "default"}}
READY: Final = Node(metadata=ObjectMeta(name="m1"))


@pytest.mark.parametrize(
    ("spec", "change", "node", "phase"),
    [
        ({}, {}, None, "Ready"),
        ({}, OFF, None, "Pending"),
        ({"kubernetes": {}}, {}, None, None),
        ({"kubernetes": {}}, {}, READY, "Ready"),
        ({"ssh": SSH}, {}, READY, None),
    ],
)
def test_the_released_lock_brings_the_phase_that_the_executor_can_compute(
    spec: dict[str, Any], change: dict[str, Any], node: Node | None, phase: str | None
) -> None:
    machine = machine_of(status={"phase": "Rebooting"}, **spec)
    assert machine_lock.released_phase(machine, change, node).get("phase") == phase


def release(kind: str, phase: str, fingerprint: str | None, procedure: Procedure | None = None) -> dict[str, Any]:
    keys = {"bastionFingerprint": "SHA256:b", **({"fingerprint": fingerprint} if fingerprint else {})}
    machine = msgspec.to_builtins(machine_of(status={"ssh": keys}))
    operation = operation_of(kind=kind, status={**claim(), **ended(phase)})
    return machine_lock.release_change(machine, operation, procedure, now=NOW)


@pytest.mark.parametrize(
    ("kind", "disks", "erasures", "is_cleared"),
    [
        ("HostErase", "All", {"S1": "Erased"}, True),
        ("HostErase", "All", {"S1": "Untouched"}, False),
        ("HostErase", "All", {}, False),
        ("HostErase", "S1", {"S1": "Erasing"}, True),
        ("HostErase", "S2", {"S2": "Erased"}, False),
        ("HostReplace", "All", {"S1": "Erased"}, False),
    ],
)
def test_an_erased_system_has_no_agent(kind: str, disks: str, erasures: dict[str, str], is_cleared: bool) -> None:
    machine = msgspec.to_builtins(machine_of(status={"agent": {"version": "v1"}}))
    machine["status"]["netboot"] = {"targetDisk": "/dev/disk/by-id/ata-MODEL_S1"}
    records = [{"serialNumber": serial, "state": state} for serial, state in erasures.items()]
    operation = operation_of(
        kind=kind, parameters={"disks": disks}, status={**claim(), **ended("Failed"), "erasures": records}
    )
    change = machine_lock.release_change(machine, operation, None, now=NOW)
    assert ("agent" in change, "configuration" in change) == (is_cleared, is_cleared)


def test_replacement_clears_the_host_key_pin_but_not_the_bastions() -> None:
    assert release("HostReplace", "Complete", "SHA256:h")["ssh"] == {"fingerprint": None}


@pytest.mark.parametrize(
    ("kind", "phase", "key"),
    [("HostReboot", "Complete", "SHA256:h"), ("HostReplace", "Failed", "SHA256:h"), ("HostReplace", "Complete", None)],
)
def test_the_host_key_of_a_host_that_is_the_same_stays(kind: str, phase: str, key: str | None) -> None:
    assert "ssh" not in release(kind, phase, key)


@story
async def test_a_forgotten_host_key_is_announced(world: World) -> None:
    await world.machine("m1", provider="Sim", providerID="sim://m1")
    await world.api.patch(MACHINES, "m1", {"status": {"ssh": {"fingerprint": "SHA256:h"}}}, subresource="status")
    world.steward().start()
    world.replacer().start()
    await world.operation("op", "HostReplace", "m1")
    await world.ended("op")

    await asyncio.sleep(60)  # the slot is given back after the end
    ssh = (await world.api.get(MACHINES, "m1")).status.ssh
    assert ssh is not None
    assert ssh.fingerprint is None
    assert ("m1", "Normal", "HostKeyForgotten") in world.announced


def reading(version: str, **status: Any) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(machine_of(status=status))
    built["metadata"]["resourceVersion"] = version
    return built


def test_a_reading_counts_at_a_later_version_with_the_same_lists() -> None:
    entry = {"name": "o", "uid": "u", "kind": "HostReboot", "phase": "Complete", "laterField": "x"}
    before = reading("7") | {"status": {"recentOperations": [entry]}}
    after = reading("9") | {"status": {"recentOperations": [entry], "phase": "Rebooting"}}
    found = machine_lock.at_version_of(msgspec.convert(after, Machine), before)
    assert found is not None
    assert found["metadata"]["resourceVersion"] == "9"
    assert found["status"]["recentOperations"] == [entry]  # with the field that only a later program knows


@pytest.mark.parametrize(
    "change",
    [
        {"activeOperation": {"uid": "u2", "name": "o2", "kind": "HostReboot", "executor": "e", "since": NOW}},
        {"conditions": [{"type": "X", "status": "True", "reason": "R", "message": "", "lastTransitionTime": NOW}]},
        {"recentOperations": [{"name": "o2", "uid": "u2", "kind": "HostReboot", "phase": "Complete"}]},
        {"operations": {"rebootCounter": 3}},
        {"ssh": {"fingerprint": "f"}},
    ],
)
def test_a_reading_does_not_count_once_a_field_of_the_lock_changed(change: dict[str, Any]) -> None:
    after = msgspec.convert(reading("9", **change), Machine)
    assert machine_lock.at_version_of(after, reading("7")) is None
