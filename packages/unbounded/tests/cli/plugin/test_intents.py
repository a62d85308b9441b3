"""Intents as a console offers them: plan one, then perform it, on the embedded API server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from tests.cli.plugin.conftest import Cli
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import ANNOTATION_PAUSED
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationKind
from unbounded.intents.machines import intend_maintenance, intend_pause, pause_value
from unbounded.intents.operations import CANCEL, intend_end, intend_operation, operation_name
from unbounded.intents.rejections import IntentRejected
from unbounded.intents.writes import perform_intent
from unbounded.kube.api import Conflict, InvalidObject, NotFound
from unbounded.kube.client import HttpApi
from unbounded.plan.changes import plan_intent

MANAGER = "a-console"


@pytest.mark.slow
async def test_an_intent_is_planned_and_then_performed(api: HttpApi, cli: Cli) -> None:
    machine = await api.create(MACHINES, {"metadata": {"name": "typed-1"}, "spec": {}})
    pause = intend_pause(machine, pause_value(""))
    plan = await plan_intent(api, pause)
    assert (len(plan.changes), plan.is_refused) == (1, False)
    assert plan.hash in (await cli("plan", "machine", "pause", "typed-1")).out
    assert ANNOTATION_PAUSED not in (await api.get(MACHINES, "typed-1")).metadata.annotations
    (written,) = await perform_intent(api, pause, manager=MANAGER)
    assert ANNOTATION_PAUSED in written["metadata"]["annotations"]

    reset = await intend_operation(api, OperationKind.AGENT_RESET, machine, "typed-op", ttl_s=300)
    assert (reset.destroys, bool(reset.loses)) == (("typed-1",), True)
    planned = await plan_intent(api, reset)
    words = ("machine", "agent-reset", "typed-1", "--operation-name", "typed-op")
    assert planned.hash in (await cli("plan", *words)).out
    with pytest.raises(NotFound):
        await api.get(MACHINE_OPERATIONS, "typed-op")
    (made,) = await perform_intent(api, reset, manager=MANAGER)
    operation = await api.get(MACHINE_OPERATIONS, "typed-op")
    assert made["metadata"]["uid"] == operation.metadata.uid
    await perform_intent(api, intend_end(operation, CANCEL), manager=MANAGER)
    assert intend_end(await api.get(MACHINE_OPERATIONS, "typed-op"), CANCEL).patches == ()


@pytest.mark.slow
async def test_an_intent_never_changes_a_later_object_of_the_same_name(api: HttpApi) -> None:
    machine = await api.create(MACHINES, {"metadata": {"name": "typed-4"}, "spec": {}})
    body = {"metadata": {"name": "typed-4"}, "spec": {"operationKind": "AgentReset", "machineRef": "typed-4"}}
    operation = await api.create(MACHINE_OPERATIONS, body)
    paused = msgspec.structs.replace(
        machine, metadata=msgspec.structs.replace(machine.metadata, annotations={ANNOTATION_PAUSED: "true"})
    )
    drained = msgspec.convert({"metadata": {"name": "typed-4"}, "spec": {"maintenance": {"enabled": True}}}, Machine)
    drained = msgspec.structs.replace(drained, metadata=machine.metadata)
    intents = {
        "pause": intend_pause(machine, pause_value("")),
        "resume": intend_pause(paused, None),
        "drain": intend_maintenance(machine, enabled=True),
        "return": intend_maintenance(drained, enabled=False),
        "cancel": intend_end(operation, CANCEL),
    }
    await api.delete(MACHINES, "typed-4")
    await api.delete(MACHINE_OPERATIONS, "typed-4")
    later = await api.create(MACHINES, {"metadata": {"name": "typed-4"}, "spec": {}})
    later_operation = await api.create(MACHINE_OPERATIONS, body)
    for name, intent in intents.items():
        with pytest.raises((Conflict, InvalidObject), match=r"(?i)uid"):
            await perform_intent(api, intent, manager=MANAGER)
        assert (await plan_intent(api, intent)).is_refused, name
    assert await api.get(MACHINES, "typed-4") == later
    assert await api.get(MACHINE_OPERATIONS, "typed-4") == later_operation


@pytest.mark.slow
async def test_an_operation_that_nothing_can_carry_out_is_rejected(api: HttpApi) -> None:
    machine = await api.create(MACHINES, {"metadata": {"name": "typed-2"}, "spec": {}})
    with pytest.raises(IntentRejected, match="typed-2"):
        await intend_operation(api, OperationKind.HOST_REPLACE, machine, "never")


@pytest.mark.slow
async def test_maintenance_is_requested_once(api: HttpApi) -> None:
    machine = await api.create(MACHINES, {"metadata": {"name": "typed-3"}, "spec": {}})
    await perform_intent(api, intend_maintenance(machine, enabled=True, reason="new disk"), manager=MANAGER)
    machine = await api.get(MACHINES, "typed-3")
    assert machine.spec.maintenance is not None
    assert machine.spec.maintenance.reason == "new disk"
    assert intend_maintenance(machine, enabled=True).notes == ("Machine typed-3 is in maintenance already",)
    assert intend_maintenance(machine, enabled=False).patches


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("why", "m1"), "does not support why m1"),
        (("machine",), "does not support machine"),
    ],
)
async def test_a_command_without_an_intent_is_not_planned(cli: Cli, words: tuple[str, ...], fault: str) -> None:
    assert fault in (await cli("plan", *words)).err


def ended(**status: Any) -> MachineOperation:
    body = {"metadata": {"name": "op"}, "spec": {"operationKind": "HostReboot", "machineRef": "m1"}, "status": status}
    return msgspec.convert(body, MachineOperation)


def test_an_operation_that_has_ended_cannot_be_cancelled() -> None:
    with pytest.raises(IntentRejected, match="has ended already: Failed"):
        intend_end(ended(phase="Failed", reason="TimedOut"), CANCEL)
    assert intend_end(ended(phase="Failed", reason="Cancelled"), CANCEL).notes


@pytest.mark.parametrize("reason", ["false", "False"])
def test_a_reason_that_would_not_pause_is_rejected(reason: str) -> None:
    with pytest.raises(IntentRejected, match="would not pause"):
        pause_value(reason)


def test_the_name_of_an_operation_has_its_time() -> None:
    now = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert operation_name("m1", "replace", now) == "m1-replace-20300102-030405"
    with pytest.raises(IntentRejected, match="too long"):
        operation_name("m" * 250, "replace", now)
