"""Operations that are carried out, or were: what holds them up or has ended them, and what to type. They are staged as
those that are not started."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from tests.explain.staging import MACHINA, abouts, commands, status, typed, why
from tests.operations.building import claim, operation_of, slot_of
from tests.operations.staging import DeadExecutor, in_stage, meddle, pause, story, waits
from tests.operations.world import World
from tests.support.virtual_time import virtual_now
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.explain.facts import ExplainFacts
from unbounded.explain.operations import explain_operation
from unbounded.kube.clock import rfc3339
from unbounded.metalman import power, replace_table
from unbounded.metalman import reasons as metal
from unbounded.operations import reasons
from unbounded.operations.executor_protocol import Refusal, Target
from unbounded.workflow.procedure import Observation


@story
async def test_its_bmc_does_not_answer(world: World) -> None:
    world.steward().start()
    world.executor("metalman/lab", lambda life, _api: DeadExecutor("metalman/lab", life, world)).start()
    await world.machine("dead-1")
    await world.operation("op", "HostReboot", "dead-1")
    await waits(world, "op", reasons.NO_ANSWER, within_s=15)
    (link,) = await why(world.api, "op")
    assert "stage Starting: no answer yet from the outside of dead-1" in link.what
    assert (link.held_by, bool(link.until)) == ("metalman/lab", True)
    assert link.next_step == f"the executor observes again; after 300 s it fails as {reasons.NO_ANSWER}"
    assert commands([link]) == ["kubectl unbounded machine operation cancel op"]
    await typed(world.api, commands([link])[0])
    assert (await world.ended("op")).status.reason == reasons.CANCELLED


@story
async def test_the_host_takes_its_time(world: World) -> None:
    """There is no fault: the explanation names the next step, and that it can still be undone."""
    world.steward().start()
    world.redfish().start()
    await world.machine("m1")
    world.outside.deaf = 1.0
    await world.operation("op", "HostPowerOff", "m1")
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await asyncio.sleep(5)
    (link,) = await why(world.api, "op")
    assert "GracefulShutdown requested; waiting for the host to shut down" in link.what
    assert link.next_step == "after 120 s without that it continues with WaitingOff, requesting ForceOff"
    assert [fix.does for fix in link.fixes] == ["undoes the changes, then ends the operation"]
    world.outside.deaf = 0.0
    await typed(world.api, commands([link])[0])
    assert (await world.ended("op")).status.reason == reasons.CANCELLED


def test_what_is_tried_again_ends_with_the_reason_of_its_last_attempt() -> None:
    waiting = {"reason": "NoEffect", "heldBy": "metalman/lab", "since": "2030-01-01T00:00:00Z"}
    status = {**claim(stage=power.WAITING_ON), "waiting": waiting, "message": "On requested (attempt 2 of 3)"}
    status["execution"]["answer"] = {"reply": "NotDone", "reason": "NoEffect", "message": "not with me"}
    operation = operation_of(status=status)
    link = explain_operation("op", ExplainFacts(operations={"op": operation}, embedded=True)).link
    assert link.next_step == "the executor retries it; after 300 s at most it fails as NoEffect"


@story
async def test_a_cancel_that_came_too_late(world: World) -> None:
    world.steward().start()
    world.redfish().start()
    await world.machine("m1")
    world.outside.deaf = 1.0
    await world.operation("op", "HostReboot", "m1")
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await world.cancel("op")
    await world.until("op", lambda op: "cancel requested after" in (op.status.message or ""), within_s=15)
    (link,) = await why(world.api, "op")
    assert "cancel requested after the point of no return: it continues" in link.what
    assert commands([link]) == []
    world.outside.deaf = 0.0
    await world.ended("op")


@story
async def test_a_finalizer_that_holds_its_deletion(world: World) -> None:
    world.steward().start()
    world.redfish().start()
    await world.machine("m1")
    world.outside.deaf = 1.0
    await world.operation("op", "HostReboot", "m1")
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await world.api.delete(MACHINE_OPERATIONS, "op")
    (link,) = await why(world.api, "op")
    assert "it is being deleted, and its finalizer stays until it has ended" in link.what
    world.outside.deaf = 0.0
    await world.gone("op")


@story
async def test_its_executor_went_away_in_the_middle(world: World) -> None:
    world.steward().start()
    executor = world.redfish().start()
    await world.machine("m1")
    world.outside.deaf = 1.0
    await world.operation("op", "HostReboot", "m1")
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await executor.stop()
    links = await why(world.api, "op", alive=[MACHINA])
    assert abouts(links) == ["operation/op", "metalman/lab"]
    assert "is not running" in links[1].what
    assert links[1].next_step == "its successor continues from the recorded state"
    assert "2040 s after its claim machina fails it as ExecutorLost" in links[0].next_step
    abandon = "kubectl unbounded machine operation abandon op"
    assert abandon in commands(links)
    await typed(world.api, abandon)
    (link, _) = await why(world.api, "op", alive=[MACHINA])
    assert "once metalman/lab has been silent for 60 s" in link.next_step
    assert (await world.ended("op", within_s=120)).status.reason == reasons.EXECUTOR_LOST


class RefusingExecutor(DeadExecutor):
    """An executor whose BMC refuses, for a reason of metalman's own."""

    refusal = Refusal(metal.CREDENTIALS_REFUSED, "https://bmc-1 refused 'root'; correct Secret unbounded-kube/bmc-1")

    async def observe(self, target: Target) -> Observation:
        raise self.refusal


async def _refused(world: World, reason: str, text: str) -> None:
    class Refusing(RefusingExecutor):
        refusal = Refusal(reason, text)

    world.steward().start()
    world.executor("metalman/lab", lambda life, _api: Refusing("metalman/lab", life, world)).start()
    await world.machine("m1")
    await world.operation("op", "HostReboot", "m1")
    await world.ended("op")


@story
async def test_a_password_that_its_bmc_refused(world: World) -> None:
    await _refused(world, metal.CREDENTIALS_REFUSED, "https://m1 refused 'u'; correct Secret n/s")
    (link,) = await why(world.api, "op")
    assert f"Failed/{metal.CREDENTIALS_REFUSED}: https://m1 refused 'u'" in link.what
    secret = "kubectl -n n create secret generic s --from-literal=ssh-privatekey=PASSWORD --dry-run=client -o yaml"
    assert commands([link])[0] == f"{secret} | kubectl apply -f -"


@story
async def test_a_certificate_that_its_bmc_has_changed(world: World) -> None:
    await _refused(world, metal.CERTIFICATE_CHANGED, "https://m1 shows another certificate")
    await status(world, MACHINES, "m1", redfish={"certFingerprint": "aa:bb"})
    (link,) = await why(world.api, "op")
    assert metal.CERTIFICATE_CHANGED in link.what
    await typed(world.api, commands([link])[0])
    machine = await world.api.get(MACHINES, "m1")
    assert machine.status.redfish is None or machine.status.redfish.cert_fingerprint is None


@story
async def test_an_image_that_cannot_be_pulled(world: World) -> None:
    machine = await world.machine("m1")
    made = await world.operation("op", "HostReplace", "m1")
    slot = slot_of("op", kind="HostReplace") | {"uid": made.metadata.uid}
    said = {
        "type": "NetbootImageReady",
        "status": "False",
        "reason": "PullFailed",
        "message": "registry: no such image",
    }
    said["lastTransitionTime"] = "2030-01-01T00:00:00Z"
    await status(world, MACHINES, "m1", activeOperation=slot, conditions=[said])
    execution = {"executor": "metalman/lab", "incarnation": "p1", "machineUID": machine.metadata.uid, "binding": "b"}
    waiting = {"reason": reasons.IN_PROGRESS, "heldBy": "metalman/lab", "since": rfc3339(virtual_now())}
    targets = [{"machineRef": "m1", "phase": "InProgress", "stage": replace_table.WAITING_IMAGE}]
    await status(
        world, MACHINE_OPERATIONS, "op", phase="InProgress", execution=execution, targets=targets, waiting=waiting,
        message="waiting for the image to be ready",
    )  # fmt: skip
    links = await why(world.api, "op")
    assert abouts(links) == ["operation/op", "machine/m1"]
    assert f"after 1800 s without that it fails as {metal.IMAGE_NOT_READY}" in links[0].next_step
    assert links[1].what == "Provisioning: registry: no such image"
    assert commands(links)[0] == """kubectl patch mach m1 --type=merge -p '{"spec": {"pxe": {"image": "IMAGE"}}}'"""


@story
async def test_definitions_that_are_too_old(world: World) -> None:
    api = meddle(world)

    def drop(kind: Kind[Any], body: dict[str, Any]) -> None:
        if kind.kind == "MachineOperation":
            (body.get("status") or {}).pop("execution", None)

    api.drop = drop
    world.steward().start()
    world.redfish().start()
    await world.machine("m1")
    await world.operation("op", "HostReboot", "m1")
    await world.ended("op")
    (link,) = await why(world.api, "op")
    assert reasons.CRD_OUTDATED in link.what
    assert commands([link])[0] == "kubectl unbounded install"


@pytest.mark.slow
@story
async def test_never_started(world: World) -> None:
    """The end names the reason of the wait; the command requests it again, and completes once an executor runs."""
    world.steward().start()
    await world.machine("m1")
    await world.operation("op", "HostReboot", "m1", startDeadlineSeconds=30)
    await world.ended("op")
    (link,) = await why(world.api, "op")
    assert f"Failed/{reasons.NOT_STARTED}: not started within 30 s" in link.what
    world.redfish().start()
    world.kinds["op-again-1"] = "HostReboot"
    await typed(world.api, commands([link])[0])
    assert (await world.ended("op-again-1")).status.phase == "Complete"


# Selector operations

LAB: Final = {"matchLabels": {"unbounded-cloud.io/site": "lab"}}


@pytest.mark.slow
@story
async def test_others_wait_for_their_turn(world: World) -> None:
    world.steward().start()
    world.redfish().start()
    for number in range(3):
        await world.machine(f"m{number}")
    world.outside.deaf = 1.0
    await world.operation("all", "HostReboot", machineSelector=LAB, maxConcurrent=1)
    await asyncio.sleep(2)
    await in_stage(world, "all-m0", power.SHUTTING_DOWN)
    links = await why(world.api, "all")
    assert abouts(links) == ["operation/all", "operation/all-m0"]
    assert "2 wait for capacity, as 1 may run at once" in links[0].what
    assert links[0].held_by == "all-m0"
    world.outside.deaf = 0.0
    await world.ended("all")


@story
async def test_no_more_are_started_as_one_has_failed(world: World) -> None:
    world.steward().start()
    world.executor("metalman/lab", lambda life, _api: DeadExecutor("metalman/lab", life, world)).start()
    for name in ("dead-1", "dead-2", "later"):
        await world.machine(name)
    await world.operation("all", "HostReboot", machineSelector=LAB, maxConcurrent=2)
    await asyncio.sleep(2)
    await world.until("all-dead-2", lambda op: op.status.waiting is not None, within_s=15)
    await world.cancel("all-dead-1")
    await world.ended("all-dead-1", within_s=300)
    links = await why(world.api, "all")
    assert abouts(links)[:2] == ["operation/all", "operation/all-dead-2"]
    assert "1 is not started, as spec.maxFailures 1 is reached" in links[0].what
    await world.cancel("all-dead-2")
    assert (await world.ended("all")).status.reason == reasons.TARGET_FAILED
    links = await why(world.api, "all")
    assert abouts(links) == ["operation/all", "operation/all-dead-1"]


@story
async def test_a_paused_target_holds_all_of_it_up(world: World) -> None:
    world.steward().start()
    world.redfish().start()
    for name in ("m1", "m2"):
        await world.machine(name)
    await pause(world, "m1")
    await world.operation("all", "HostReboot", machineSelector=LAB)
    await asyncio.sleep(2)
    await world.ended("all-m2")
    await waits(world, "all-m1", reasons.PAUSED)
    links = await why(world.api, "all")
    assert abouts(links) == ["operation/all", "operation/all-m1", "machine/m1"]
    await typed(world.api, commands(links)[0])
    await world.ended("all")


async def _waits(world: World, reason: str) -> None:
    await world.until("all", lambda op: op.status.reason == reason, within_s=300)


@story
async def test_halted_and_paused_rollouts_name_the_command_that_continues_them(world: World) -> None:
    world.steward().start()
    world.redfish().start()
    world.outside.deaf = 1.0
    for name in ("m1", "m2"):
        await world.machine(name)
    stages = [{"name": "canary", "size": 1, "pauseAfter": True}, {"name": "rest", "size": "100%", "soakSeconds": 60}]
    await world.operation(
        "all", "HostPowerOff", machineSelector=LAB, strategy={"stages": stages, "onFailure": "Halt"}, paused=True
    )
    await _waits(world, reasons.PAUSED)
    await typed(world.api, commands(await why(world.api, "all"))[0])
    await world.until("all", lambda op: op.status.targets[0].operation == "all-m1", within_s=10)
    await in_stage(world, "all-m1", power.SHUTTING_DOWN)
    await world.cancel("all-m1")
    world.outside.deaf = 0.0
    await _waits(world, reasons.HALTED)
    links = await why(world.api, "all")
    assert abouts(links) == ["operation/all", "operation/all-m1"]
    assert "stages: canary Halted 0/1, rest Pending 0/1" in links[0].what
    assert links[0].next_step == "nothing starts until the failed targets are retried, or their Machines deleted"
    await typed(world.api, commands(links[:1])[0])
    await _waits(world, reasons.PAUSED)
    assert "paused after stage canary" in (await why(world.api, "all"))[0].what
    await typed(world.api, commands(await why(world.api, "all"))[0])
    await _waits(world, reasons.SOAKING)
    (link,) = await why(world.api, "all")
    assert link.until
    assert commands([link]) == ["kubectl unbounded machine operation cancel all"]
    assert (await world.ended("all", within_s=300)).status.reason == reasons.SUCCEEDED
