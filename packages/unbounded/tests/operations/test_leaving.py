"""A Machine that is being deleted, and stays until its host is reset: that reset starts on it, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.operations.building import claim, machine_of, operation_of, slot_of
from tests.operations.simulated import AgentExecutor
from tests.operations.staging import result, story
from tests.operations.world import World
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import ANNOTATION_MACHINE_UID, FINALIZER_HOST_OPERATION, FINALIZER_RESET
from unbounded.api.operation import MACHINE_OPERATIONS, OperationKind
from unbounded.kube.api import NotFound
from unbounded.operations import reasons
from unbounded.operations.claim_gates import closed_gate, starts_on
from unbounded.operations.supervisor_plan import OperationAges, ReportWait, SupervisorView, plan_action

EARLY, LATE = "2030-01-01T00:00:00Z", "2030-01-01T00:00:09Z"


def leaving(*finalizers: str, **given: Any) -> Machine:
    body = msgspec.to_builtins(machine_of(**given))
    body["metadata"] |= {"deletionTimestamp": LATE, "finalizers": finalizers}
    return msgspec.convert(body, Machine)


@pytest.mark.parametrize(
    ("kind", "machine", "starts"),
    [
        ("HostReboot", machine_of(), True),
        ("AgentReset", machine_of(), True),
        ("AgentReset", leaving(FINALIZER_RESET), True),
        ("AgentReset", leaving("example.com/other"), False),
        ("NodeReboot", leaving(FINALIZER_RESET), False),
        ("HostReplace", leaving(FINALIZER_RESET), False),
    ],
    ids=["there", "reset there", "reset held", "reset of another finalizer", "node reboot held", "replace held"],
)
def test_what_starts_on_a_machine(kind: str, machine: Machine, starts: bool) -> None:
    assert starts_on(operation_of(kind=kind), machine) is starts


def test_what_will_never_start_holds_the_reset_back_no_longer() -> None:
    reset = operation_of("reset", "AgentReset", created=LATE)
    waiting = operation_of("old", "NodeReboot", created=EARLY)
    running = operation_of("old", "NodeReboot", created=EARLY, status=claim(executor="unbounded-agent/m1"))
    held = leaving(FINALIZER_RESET)
    assert closed_gate(reset, held, [reset, waiting], None) is None
    for machine, older in ((machine_of(), waiting), (held, running)):
        gate = closed_gate(reset, machine, [reset, older], None)
        assert gate is not None
        assert gate.reason == reasons.WAITING_FOR_OLDER


def test_supervisor_reports_the_blocker_of_operations_on_a_deleted_machine() -> None:
    held = leaving(FINALIZER_RESET)
    said = []
    for kind in ("AgentReset", "NodeReboot"):
        operation = operation_of(kind=kind)
        decided = plan_action(SupervisorView(operation, held, [operation], None, OperationAges(known_s=30.0)))
        assert isinstance(decided, ReportWait)
        said.append(decided.reason)
    assert said == [reasons.WAITING_FOR_EXECUTOR, reasons.WAITING_FOR_MACHINE]


class Resetting(AgentExecutor):
    """Its reset is a restart, as far as operations go."""

    kinds = frozenset({OperationKind.AGENT_RESET, OperationKind.NODE_REBOOT})


@story
async def test_an_agent_resets_the_host_of_a_machine_that_waits_for_it(world: World) -> None:
    """It is the only one to start, also before earlier ones, and nothing more than that starts."""
    await world.machine("m1")
    await world.api.patch(MACHINES, "m1", {"metadata": {"finalizers": [FINALIZER_RESET]}})
    await world.operation("older", "NodeReboot", "m1")
    await world.api.delete(MACHINES, "m1")
    await world.operation("reset", "AgentReset", "m1", startDeadlineSeconds=60)
    world.steward().start()
    name = "unbounded-agent/m1"
    agent = world.executor(name, lambda life, _api: Resetting(name, life, world.outside), watches_pause=False)
    first = agent.start()
    await first.life.dead.wait()
    await first.stop()
    agent.start()
    assert result(await world.ended("reset", within_s=200)) == ("Complete", "Succeeded")
    assert not (await world.get("older")).claimed
    await world.api.patch(MACHINES, "m1", {"metadata": {"finalizers": []}})
    assert result(await world.ended("older", within_s=120)) == ("Failed", reasons.MACHINE_NOT_FOUND)


@story
async def test_reset_of_a_former_machine_does_not_touch_the_host(world: World) -> None:
    """A user has deleted a Machine by mistake, and created it again while its reset still waited."""
    before = await world.machine("m1")
    mark = {"metadata": {"annotations": {ANNOTATION_MACHINE_UID: before.metadata.uid}}}
    await world.operation("reset", "AgentReset", "m1")
    await world.api.patch(MACHINE_OPERATIONS, "reset", mark)
    await world.api.delete(MACHINES, "m1")
    await world.machine("m1")
    name = "unbounded-agent/m1"
    agent = world.executor(name, lambda life, _api: Resetting(name, life, world.outside), watches_pause=False)
    agent.start()
    await asyncio.sleep(30)
    assert not (await world.get("reset")).claimed
    world.steward().start()
    assert result(await world.ended("reset", within_s=10)) == ("Failed", reasons.TARGET_CHANGED)
    assert world.outside.acts == []


@story
async def test_operation_with_the_lock_continues_on_a_machine_in_deletion(world: World) -> None:
    """Its process died between the lock and the claim: the lock keeps the Machine, and only its executor can release
    it.
    """
    await world.machine("m1")
    operation = await world.operation("op", "HostReboot", "m1")
    slot = {**slot_of("op"), "uid": operation.metadata.uid}
    await world.api.patch(MACHINES, "m1", {"status": {"activeOperation": slot}}, subresource="status")
    await world.api.patch(MACHINES, "m1", {"metadata": {"finalizers": [FINALIZER_HOST_OPERATION]}})
    await world.api.delete(MACHINES, "m1")
    world.steward().start()
    world.redfish().start()
    assert result(await world.ended("op", within_s=60)) == ("Complete", "Succeeded")
    await asyncio.sleep(5)
    with pytest.raises(NotFound):
        await world.api.get(MACHINES, "m1")
