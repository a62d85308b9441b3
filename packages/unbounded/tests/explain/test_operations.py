"""Operations that are not started, each with the one right answer: what it waits for, down to the first cause, and what
to type. They are staged with the real steward and the real engine in virtual time, on a simulated outside."""

from __future__ import annotations

import asyncio
import shlex
from typing import Any, Final

import pytest

from tests.explain.staging import ALIVE, MACHINA, METALMAN, abouts, beat, commands, status, typed, why
from tests.operations.building import REDFISH, claim, slot_of
from tests.operations.disruption.cluster import Cluster, cluster_story
from tests.operations.staging import in_stage, story, waits
from tests.operations.world import World
from tests.support.virtual_time import virtual_now
from unbounded.agent.operations import agent_reset, host_reboot, node_reboot
from unbounded.agent.upgrade import procedure as agent_upgrade
from unbounded.api.core import CONFIG_MAPS, LEASES, NODES
from unbounded.api.disruption import DisruptionStage
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import ANNOTATION_PAUSED, CONFIGMAP_OPERATIONS, FINALIZER_OPERATION, LABEL_SITE, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.deploy import components
from unbounded.cli.deploy.machine_manifests import description_of
from unbounded.cli.deploy.workloads import MachineOpsWorkload
from unbounded.cli.plugin.parsing import commands as rows
from unbounded.cli.plugin.parsing import parse
from unbounded.explain.chain import explain
from unbounded.explain.links import Topic
from unbounded.kube.api import Forbidden
from unbounded.machineops.settings import Settings
from unbounded.metalman import power
from unbounded.operations import reasons
from unbounded.operations.executor_selection import Unavailability

SINCE: Final = "2030-01-01T00:00:00Z"
SSH: Final = {"host": "10.0.0.5", "privateKeyRef": {"name": "k", "namespace": "unbounded-kube"}}


@story
async def test_a_machine_that_does_not_exist(world: World) -> None:
    world.steward().start()
    world.redfish().start()
    await world.operation("op", "HostReboot", "m1")
    await waits(world, "op", reasons.WAITING_FOR_MACHINE)
    (link,) = await why(world.api, "op")
    assert "Machine m1 does not exist; waiting 60 s for it" in link.what
    assert (link.held_by, bool(link.since), bool(link.until)) == ("Machine m1", True, True)
    assert reasons.MACHINE_NOT_FOUND in link.next_step
    fix = link.fixes[-1]
    assert fix.command.startswith("kubectl unbounded machine register --site SITE --name NAME --host HOST ")
    assert fix.does == "creates one with the name SITE-NAME"
    await world.machine("m1")
    await world.ended("op")


@pytest.mark.parametrize(("name", "site"), [("lab-m-1", "lab"), ("room-2-m1", "room-2"), ("room-m1", "SITE")])
@story
async def test_a_machine_that_does_not_exist_in_a_site_that_is_known(world: World, name: str, site: str) -> None:
    """The Machine is registered by site and the rest of its name, and then has this one. Lab has a metalman."""
    await world.machine("other")
    await world.api.patch(MACHINES, "other", {"metadata": {"labels": {LABEL_SITE: "room-2"}}})
    await world.operation("op", "HostReboot", name)
    (link, *_) = await why(world.api, "op")
    words = shlex.split(link.fixes[-1].command)
    told = parse(rows(), words[2:], program="kubectl unbounded", others={})[1]
    assert told.site == site
    assert site == "SITE" or description_of(told).name == name


@story
async def test_operation_without_an_executor_is_rejected(world: World) -> None:
    world.steward().start()
    await world.machine("m1", ssh=SSH)
    await world.operation("op", "HostPowerOff", "m1")
    await world.ended("op")
    (link,) = await why(world.api, "op")
    assert f"Failed/{reasons.UNSUPPORTED_TARGET}" in link.what
    assert "the Machine needs spec.pxe.redfish, or spec.provider" in link.what
    assert commands([link]) == ["kubectl edit mach m1"]


@story
async def test_the_command_of_a_message_is_a_fix_and_not_in_the_words(world: World) -> None:
    world.steward().start()
    await world.machine("m1", ssh=SSH)
    await world.operation("op", "HostPowerOff", "m1")
    await world.ended("op")
    change = {"message": "the Node is not drained; drain it\nkubectl drain m1 --ignore-daemonsets"}
    await world.api.patch(MACHINE_OPERATIONS, "op", {"status": change}, subresource="status")
    (link,) = await why(world.api, "op")
    assert link.what.endswith("the Node is not drained; drain it")
    assert commands([link]) == ["kubectl edit mach m1", "kubectl drain m1 --ignore-daemonsets"]


@story
async def test_why_names_the_kept_console_output_of_the_failed_operation(world: World) -> None:
    world.steward().start()
    await world.machine("m1", ssh=SSH)
    await world.operation("op", "HostPowerOff", "m1")
    await world.ended("op")
    for operation, is_named in (("earlier", False), ("op", True)):
        kept = {"secret": "console-m1", "operation": operation, "at": SINCE}
        await world.api.patch(MACHINES, "m1", {"status": {"consoleOutput": kept}}, subresource="status")
        (link,) = await why(world.api, "op")
        found = [fix for fix in link.fixes if fix.command == "kubectl unbounded machine serial m1 --last-failed"]
        assert bool(found) is is_named
        assert not found or found[0].does.endswith("from Secret unbounded-kube/console-m1")


@story
async def test_why_reports_a_missing_machina(world: World) -> None:
    """The reason is known before a component reports it."""
    await world.machine("m1", ssh=SSH)
    await world.operation("op", "HostPowerOff", "m1")
    links = await why(world.api, "op", alive=())
    assert abouts(links) == ["operation/op", "machina"]
    assert f"about to end as Failed/{reasons.UNSUPPORTED_TARGET}" in links[0].what
    assert "is not running: Lease unbounded-kube/unbounded-operations does not exist" in links[1].what
    assert "kubectl -n unbounded-kube rollout restart deployment/machina-controller" in commands(links)
    world.steward().start()
    assert (await world.ended("op")).status.reason == reasons.UNSUPPORTED_TARGET


@story
async def test_parameters_that_are_wrong(world: World) -> None:
    world.steward().start()
    await world.machine("m1")
    await world.operation("op", "HostReboot", "m1", parameters={"force": "perhaps"})
    await world.ended("op")
    (link,) = await why(world.api, "op")
    assert f"Failed/{reasons.INVALID_PARAMETERS}" in link.what
    assert 'spec.parameters.force must be "true" or "false"' in link.what
    assert commands([link]) == [
        "kubectl unbounded machine operation create op-again-1 --kind HostReboot --machine m1 --param NAME=VALUE"
    ]


@story
async def test_why_reports_an_unserved_provider(world: World) -> None:
    """`unbounded up` knows, as it starts the processes of providers, and reports; each change reaches the status."""
    world.steward().start()
    await components.publish(world.api, {})
    await world.machine("m1", provider="azurevm", providerID="azure://x")
    absence = Unavailability(
        "no provider 'azurevm' is installed (did you mean AzureVM?)", "`unbounded up` looks for it every 60 s"
    )
    world.absences.report("azurevm", absence)
    await components.publish_absent(world.api, {"azurevm": absence})
    await world.operation("op", "HostReboot", "m1")
    await waits(world, "op", reasons.PROVIDER_NOT_SERVED)
    executor = "machine-ops-controller/lab/azurevm"
    links = await why(world.api, "op", alive=[])
    assert abouts(links) == ["operation/op", executor]
    assert links[0].what == f"HostReboot, not started: {executor} does not serve: {absence.whole}"
    assert links[1].what.endswith(f"does not serve: {absence.whole}")
    world.absences.report("azurevm", None)
    await waits(world, "op", reasons.WAITING_FOR_EXECUTOR)
    await components.publish(world.api, {})  # after its restart
    assert "is running: it works on other operations" in (await why(world.api, "op", alive=[]))[1].what


@story
async def test_the_process_of_its_provider_is_starting(world: World) -> None:
    """Large SDKs take longer to import than the 5 s in which an executor claims; that is no reason to search for it."""
    world.steward().start()
    await components.publish(world.api, {})
    await world.machine("m1", provider="azurevm", providerID="azure://x")
    absence = Unavailability("its process was started, and is not ready yet", is_problem=False)
    world.absences.report("azurevm", absence)
    await components.publish_absent(world.api, {"azurevm": absence})
    await world.operation("op", "HostReboot", "m1")
    executor = "machine-ops-controller/lab/azurevm"
    starting = f"{executor} is starting: {absence.text}"
    await world.until("op", lambda op: (op.status.message or "").startswith(starting), within_s=15)
    await waits(world, "op", reasons.WAITING_FOR_EXECUTOR)
    links = await why(world.api, "op", alive=[])
    assert links[0].what == f"HostReboot, not started: {starting}"
    assert links[1].what == f"is a process of `unbounded up`, and is starting: {absence.text}"
    world.absences.report("azurevm", None)
    await world.until("op", lambda op: "has not claimed it within 5 s" in (op.status.message or ""), within_s=15)


@story
async def test_the_process_that_carries_it_out_does_not_answer(world: World) -> None:
    """The supervisor may not write its status: an Event reports it, once for each fault."""
    world.steward().start()
    await components.publish(world.api, {})
    await world.machine("m1", provider="Sim", providerID="sim://m1")
    await world.operation("op", "HostReplace", "m1")
    controller = world.replacer().start()
    await world.until("op", lambda op: op.claimed, within_s=30)
    await controller.stop()
    announced = len(world.announced)
    for absence in (
        Unavailability("its process was started", is_problem=False),
        Unavailability("its process does not answer", "it is stopped and restarted"),
    ):
        world.absences.report("Sim", absence)
        await components.publish_absent(world.api, {"Sim": absence})
    assert world.announced[announced:] == [("op", "Warning", reasons.PROVIDER_NOT_SERVED)]
    links = await why(world.api, "op", alive=[])
    assert abouts(links) == ["operation/op", "machine-ops-controller/lab/Sim"]
    assert links[1].what.endswith("does not serve: its process does not answer; it is stopped and restarted")
    assert commands(links)[-1] == "kubectl unbounded machine operation abandon op"
    world.replacer().start()
    await world.ended("op")


@story
async def test_its_metalman_was_never_there(world: World) -> None:
    world.steward().start()
    await world.machine("m1")
    await world.operation("op", "HostReboot", "m1")
    await world.until("op", lambda op: "has not claimed it" in (op.status.message or ""), within_s=15)
    links = await why(world.api, "op", alive=[MACHINA])
    assert abouts(links) == ["operation/op", "metalman/lab"]
    assert links[0].held_by == "metalman/lab"
    assert reasons.NOT_STARTED in links[0].next_step
    assert "is not running: Lease unbounded-kube/metalman-lab does not exist: it has never run here" in links[1].what
    assert commands(links)[0] == "kubectl unbounded site deploy-pxe --site lab"
    world.redfish().start()
    await world.ended("op")


@story
async def test_its_metalman_was_stopped(world: World) -> None:
    world.steward().start()
    await world.machine("m1")
    await beat(world.api, METALMAN, holder="")
    await world.operation("op", "HostReboot", "m1")
    await waits(world, "op", reasons.WAITING_FOR_EXECUTOR)
    links = await why(world.api, "op", alive=[MACHINA])
    assert abouts(links) == ["operation/op", "metalman/lab"]
    assert "was released: it was stopped" in links[1].what


@story
async def test_its_metalman_has_died(world: World) -> None:
    """The Lease seems old by the local clock, which proves nothing: it is watched for as long as others respect it."""
    world.steward().start()
    await world.machine("m1")
    await beat(world.api, METALMAN, renewed="2029-12-31T23:00:00.000000Z")
    await world.operation("op", "HostReboot", "m1")
    await waits(world, "op", reasons.WAITING_FOR_EXECUTOR)
    at = asyncio.get_running_loop().time()
    links = await why(world.api, "op", alive=[MACHINA])
    assert asyncio.get_running_loop().time() - at >= 15
    assert abouts(links) == ["operation/op", "metalman/lab"]
    assert "was last renewed at 2029-12-31T23:00:00.000000Z by p1, and not during the 15 s" in links[1].what


@story
async def test_a_lease_by_another_clock_is_no_sign_of_death(world: World) -> None:
    """A process that renews it lives, whatever its clock shows."""
    world.steward().start()
    await world.machine("m1")
    await beat(world.api, METALMAN, renewed="2029-12-31T23:00:00.000000Z")
    await world.operation("op", "HostReboot", "m1")
    await waits(world, "op", reasons.WAITING_FOR_EXECUTOR)

    async def live() -> None:
        for second in range(60):
            await asyncio.sleep(5)
            await beat(world.api, METALMAN, renewed=f"2029-12-31T23:00:{second:02}.000000Z")

    task = asyncio.create_task(live())
    links = await why(world.api, "op", alive=[MACHINA])
    task.cancel()
    assert abouts(links) == ["operation/op", "metalman/lab"]
    assert links[1].what.startswith("is running: ")


@pytest.mark.parametrize(("late", "what"), [(True, "and not during the 15 s"), (False, "is running: ")])
@story
async def test_a_caller_that_observes_leases_decides_without_a_wait(world: World, late: bool, what: str) -> None:
    world.steward().start()
    await world.machine("m1")
    await beat(world.api, MACHINA)
    await beat(world.api, METALMAN, renewed="2029-12-31T23:00:00.000000Z")
    await world.operation("op", "HostReboot", "m1")
    await waits(world, "op", reasons.WAITING_FOR_EXECUTOR)
    at = asyncio.get_running_loop().time()
    found = await explain(world.api, Topic.OPERATION, "op", now=virtual_now, is_late=lambda _lease: late)
    assert asyncio.get_running_loop().time() - at < 1
    assert what in found.links[1].what


@story
async def test_its_executor_is_at_work_on_others(world: World) -> None:
    world.steward().start()
    world.redfish(concurrent=1).start()
    for name in ("m1", "m2"):
        await world.machine(name)
        await world.operation(f"op-{name}", "HostReboot", name)
    await world.until("op-m2", lambda op: "which works on other operations" in (op.status.message or ""), within_s=10)
    links = await why(world.api, "op-m2")
    assert abouts(links) == ["operation/op-m2", "metalman/lab"]
    assert "waiting for metalman/lab, which works on other operations" in links[0].what
    assert "as soon as it has capacity" in links[1].next_step
    assert commands(links) == ["kubectl unbounded machine operation list --phase InProgress"]
    await world.ended("op-m2")


@story
async def test_its_machine_is_paused(world: World) -> None:
    world.steward().start()
    world.redfish().start()
    await world.machine("m1", labels={})
    await world.api.patch(MACHINES, "m1", {"metadata": {"annotations": {ANNOTATION_PAUSED: "disk is exchanged"}}})
    await world.operation("op", "HostReboot", "m1")
    await waits(world, "op", reasons.PAUSED)
    links = await why(world.api, "op")
    assert abouts(links) == ["operation/op", "machine/m1"]
    assert links[0].held_by == "Machine m1"
    assert links[1].what.endswith(": disk is exchanged")
    assert commands(links) == ["kubectl unbounded machine resume m1"]
    await typed(world.api, commands(links)[0])
    await world.ended("op")


@story
async def test_everything_is_paused(world: World) -> None:
    world.steward().start()
    world.redfish().start()
    await world.machine("m1")
    config = {"metadata": {"name": CONFIGMAP_OPERATIONS, "annotations": {ANNOTATION_PAUSED: "true"}}}
    await world.api.create(CONFIG_MAPS, config, namespace=NAMESPACE)
    await world.operation("op", "HostReboot", "m1")
    await waits(world, "op", reasons.PAUSED)
    links = await why(world.api, "op")
    assert abouts(links) == ["operation/op", "ConfigMap unbounded-kube/unbounded-operations"]
    assert commands(links) == ["kubectl unbounded machine resume --all"]
    await typed(world.api, commands(links)[0])
    await world.ended("op")


@story
async def test_an_older_operation_waits_itself(world: World) -> None:
    """The chain goes through it, to what it waits for."""
    world.steward().start()
    await world.machine("m1")
    await world.operation("a-first", "HostPowerOff", "m1")
    await asyncio.sleep(2)
    await world.operation("op", "HostReboot", "m1")
    await waits(world, "op", reasons.WAITING_FOR_OLDER)
    links = await why(world.api, "op", alive=[MACHINA])
    assert abouts(links) == ["operation/op", "operation/a-first", "metalman/lab"]
    assert links[0].held_by == "a-first"
    assert "waiting for the older HostPowerOff a-first (Pending)" in links[0].what
    assert "is not running" in links[2].what


@pytest.mark.slow
@story
async def test_an_older_operation_is_at_work(world: World) -> None:
    world.steward().start()
    world.redfish().start()
    await world.machine("m1")
    world.outside.deaf = 1.0
    await world.operation("hosts", "HostReboot", "m1", parameters={"graceSeconds": "600"})
    await in_stage(world, "hosts", power.SHUTTING_DOWN)
    await world.operation("later", "NodeReboot", "m1")
    await waits(world, "later", reasons.WAITING_FOR_OLDER)
    links = await why(world.api, "later")
    assert abouts(links) == ["operation/later", "operation/hosts"]
    assert "waiting for the older HostReboot hosts (InProgress)" in links[0].what
    assert links[1].held_by == "metalman/lab"
    assert "after 600 s without that it continues with WaitingOff, requesting ForceOff" in links[1].next_step
    world.outside.deaf = 0.0
    await world.ended("hosts")


@story
async def test_another_machine_with_the_same_bmc_is_at_work(world: World) -> None:
    world.steward().start()
    redfish = {"pxe": {"image": "i", "redfish": REDFISH}}
    for name in ("m1", "m2"):
        await world.machine(name, **redfish)
    said = {"type": "BMCExclusive", "status": "False", "reason": "DuplicateBMC", "lastTransitionTime": SINCE}
    await status(world, MACHINES, "m1", conditions=[said | {"message": "Machine m2 names the same BMC and device"}])
    off = await world.operation("off", "HostPowerOff", "m2")
    await status(world, MACHINE_OPERATIONS, "off", message="shutting down", **claim("m2"))
    slot = slot_of("off", kind="HostPowerOff") | {"uid": off.metadata.uid}
    await status(world, MACHINES, "m2", activeOperation=slot)
    await world.operation("op", "HostReboot", "m1")
    await waits(world, "op", reasons.TARGET_IN_USE)
    links = await why(world.api, "op")
    assert abouts(links) == ["operation/op", "operation/off"]
    assert "HostPowerOff off (metalman/lab) holds the lock of Machine m2 since" in links[0].what
    assert "both it and Machine m1 name the same BMC and device: bmc-1:443 Systems/1" in links[0].what


@story
async def test_a_slot_whose_operation_is_gone(world: World) -> None:
    await world.machine("m1")
    await status(world, MACHINES, "m1", activeOperation=slot_of("gone"))
    await world.operation("op", "HostReboot", "m1")
    links = await why(world.api, "op", alive=[METALMAN])
    assert abouts(links) == ["operation/op", "machine/m1", "machina"]
    assert links[1].next_step == "its operation does not exist any more: machina releases the lock"
    world.redfish().start()
    world.steward().start()
    await world.ended("op")


@story
async def test_a_slot_whose_executor_was_lost(world: World) -> None:
    world.steward().start()
    executor = world.redfish().start()
    await world.machine("m1")
    world.outside.deaf = 1.0
    await world.operation("lost", "HostReboot", "m1", deadlineSeconds=60)
    await in_stage(world, "lost", power.SHUTTING_DOWN)
    await executor.stop()
    assert (await world.ended("lost")).status.reason == reasons.EXECUTOR_LOST
    await world.operation("op", "HostReboot", "m1")
    await waits(world, "op", reasons.SLOT_HELD)
    links = await why(world.api, "op", alive=[MACHINA])
    assert abouts(links) == ["operation/op", "machine/m1", "metalman/lab"]
    assert "its executor is lost, so the next executor observes the host before it acts" in links[1].what
    assert "is not running" in links[2].what
    ended = await why(world.api, "lost", alive=[MACHINA])
    assert f"Failed/{reasons.EXECUTOR_LOST}" in ended[0].what
    world.outside.deaf = 0.0
    world.redfish().start()
    await world.ended("op")


@story
async def test_an_agent_makes_the_node_anew(world: World) -> None:
    world.steward().start()
    await world.machine("m1")
    slot = slot_of("kube2", kind="NodeRecreation", executor="unbounded-agent/m1")
    said = {"type": "NodeUpdated", "status": "False", "reason": "InProgress", "message": "building v1.34 in kube2"}
    said["lastTransitionTime"] = "2030-01-01T00:00:00Z"
    await status(world, MACHINES, "m1", activeOperation=slot, conditions=[said])
    await world.operation("op", "NodeReboot", "m1")
    await waits(world, "op", reasons.SLOT_HELD)
    links = await why(world.api, "op")
    assert abouts(links) == ["operation/op", "machine/m1"]
    assert links[1].what == "unbounded-agent/m1 recreates the node: building v1.34 in kube2"
    assert "the agent releases the lock" in links[1].next_step


@story
async def test_its_machine_is_being_deleted(world: World) -> None:
    world.steward().start()
    await world.machine("m1")
    await world.api.patch(MACHINES, "m1", {"metadata": {"finalizers": ["example.com/hold"]}})
    await world.api.delete(MACHINES, "m1")
    await world.operation("op", "HostReboot", "m1")
    await waits(world, "op", reasons.WAITING_FOR_MACHINE)
    links = await why(world.api, "op")
    assert abouts(links) == ["operation/op", "machine/m1"]
    assert "Machine m1 is being deleted, so no operation starts on it" in links[0].what
    assert links[1].what == "is being deleted, and waits for finalizers of others: example.com/hold"
    assert links[1].held_by == "example.com/hold"
    assert links[1].next_step == "it is deleted as soon as that is removed"  # nothing is reset, and nothing times out
    assert commands(links) == ["kubectl get mach m1 -o jsonpath='{.metadata.finalizers}'"]


@story
async def test_no_agent_has_joined_yet(world: World) -> None:
    """The chain ends at the Machine, and why that has not joined."""
    world.steward().start()
    await world.machine("m1", kubernetes={})
    done = {"type": "AgentBootstrapped", "status": "True", "reason": "Succeeded", "message": ""}
    await status(world, MACHINES, "m1", conditions=[done | {"lastTransitionTime": "2030-01-01T00:00:00Z"}])
    await world.operation("op", "NodeReboot", "m1")
    await waits(world, "op", reasons.WAITING_FOR_EXECUTOR)
    links = await why(world.api, "op")
    assert abouts(links) == ["operation/op", "unbounded-agent/m1", "machine/m1"]
    assert "has not reported to this Machine yet" in links[1].what
    assert "its agent has not reported" in links[2].what
    assert "sudo unbounded-agent status" in commands(links)[0]


_PXE: Final = {"pxe": {"image": "i", "redfish": REDFISH}, "kubernetes": {}}
_STATUS: Final = "sudo unbounded-agent status"
_BY_HAND: Final = "kubectl unbounded machine manual-bootstrap m1 --site lab"
NO_AGENT: Final[tuple[tuple[dict[str, Any], bool | None, list[str]], ...]] = (  # spec, its Node is Ready, remedies
    ({"kubernetes": {}}, True, [_STATUS, _BY_HAND]),
    (_PXE, True, [_STATUS, _BY_HAND, "kubectl unbounded machine host-reboot m1"]),
    (_PXE, None, ["kubectl unbounded machine replace m1", _BY_HAND]),
    ({}, None, ["kubectl edit mach m1"]),
    (
        {"kubernetes": {}, "ssh": SSH},
        False,
        ["kubectl describe node m1", "kubectl unbounded machine allow-join m1"],
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "ready", "remedies"), NO_AGENT, ids=["node", "bmc", "new", "no-node", "not-ready"])
@story
async def test_an_operation_without_an_agent_has_a_next_step(
    world: World, spec: dict[str, Any], ready: bool | None, remedies: list[str]
) -> None:
    """A former fault: a NodeReboot waited for its agent, the agent for its Machine, whose lock the NodeReboot had.

    After its failure the only remedy was another request.
    """
    world.steward().start()
    await world.machine("m1", **spec)
    if ready is not None:
        await world.api.create(NODES, {"metadata": {"name": "m1", "labels": {"unbounded-cloud.io/machine": "m1"}}})
        await status(world, NODES, "m1", conditions=[{"type": "Ready", "status": "True" if ready else "Unknown"}])
    await world.operation("op", "NodeReboot", "m1")
    await waits(world, "op", reasons.WAITING_FOR_EXECUTOR)
    links = await why(world.api, "op")
    assert "op" not in [link.held_by for link in links]
    assert commands(links) == remedies
    asked = await why(world.api, "m1", topic=Topic.MACHINE)
    assert "nothing blocks it" not in asked[0].what
    assert sorted(commands(asked)) == sorted(remedies)
    await world.ended("op")
    again = "kubectl unbounded machine operation create op-again-1 --kind NodeReboot --machine m1"
    assert commands(await why(world.api, "op")) == [*remedies, again]


async def _joined(world: World, *, ready: bool) -> Machine:
    """A Machine whose agent has reported, and its Node."""
    machine = await world.machine("m1", kubernetes={}, ssh=SSH)
    await status(world, MACHINES, "m1", agent={"version": "v0.5.0"})
    await world.api.create(NODES, {"metadata": {"name": "m1", "labels": {"unbounded-cloud.io/machine": "m1"}}})
    said = {
        "type": "Ready",
        "status": "True" if ready else "Unknown",
        "message": "Kubelet stopped posting node status.",
    }
    await status(world, NODES, "m1", conditions=[said])
    return machine


@story
async def test_the_node_of_its_agent_is_down(world: World) -> None:
    world.steward().start()
    await _joined(world, ready=False)
    await world.operation("op", "NodeReboot", "m1")
    await waits(world, "op", reasons.WAITING_FOR_EXECUTOR)
    links = await why(world.api, "op")
    assert abouts(links) == ["operation/op", "unbounded-agent/m1", "node/m1"]
    assert links[2].what == "is not Ready: Kubelet stopped posting node status."
    assert commands(links)[0] == "kubectl describe node m1"


BY_AGENT: Final = (
    ("NodeReboot", node_reboot.VERIFYING, 240),
    ("HostReboot", host_reboot.REBOOTING, 900),
    ("AgentReset", agent_reset.RESETTING, 900),
    ("AgentUpgrade", agent_upgrade.STAGED, 180),
)


@story
async def test_what_an_agent_is_at_and_that_it_fell_silent(world: World) -> None:
    await _joined(world, ready=True)
    for kind, stage, limit_s in BY_AGENT:
        name = kind.lower()
        await world.operation(name, kind, "m1", deadlineSeconds=3600)
        claimed = claim(executor="unbounded-agent/m1", stage=stage)
        await status(world, MACHINE_OPERATIONS, name, **claimed, message="as the agent said")
        (link,) = await why(world.api, name)
        assert link.what == f"{kind} on Machine m1, stage {stage}: as the agent said"
        assert link.held_by == "unbounded-agent/m1"
        assert link.next_step.startswith(f"after {limit_s} s without that it ")
    silent = {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}
    await status(world, NODES, "m1", conditions=[silent])
    links = await why(world.api, "agentreset")
    assert abouts(links) == ["operation/agentreset", "unbounded-agent/m1", "node/m1"]
    assert links[0].next_step.startswith("it continues when unbounded-agent/m1 is back; 3")
    assert links[0].next_step.endswith(f"machina fails it as {reasons.EXECUTOR_LOST}")
    assert "kubectl unbounded machine operation abandon agentreset" in commands(links)


@story
async def test_its_agent_does_not_take_it_up(world: World) -> None:
    world.steward().start()
    await _joined(world, ready=True)
    await world.operation("op", "AgentReset", "m1")
    await waits(world, "op", reasons.WAITING_FOR_EXECUTOR)
    links = await why(world.api, "op")
    assert abouts(links) == ["operation/op", "unbounded-agent/m1"]
    assert "(version v0.5.0) does not claim it, although its Node is alive" in links[1].what
    assert commands(links)[0] == "ssh azureuser@10.0.0.5 sudo unbounded-agent status"


@story
async def test_the_controller_of_a_cloud(world: World) -> None:
    """It may serve the site and the provider, one of them, or all; or it may be third-party."""
    world.steward().start()
    await world.machine("m1", provider="AzureVM", providerID="azure:///m1")
    await world.operation("op", "HostReboot", "m1")
    await waits(world, "op", reasons.WAITING_FOR_EXECUTOR)
    links = await why(world.api, "op")
    assert abouts(links) == ["operation/op", "machine-ops-controller/lab/AzureVM"]
    assert (
        "no machine-ops-controller has run for site lab and provider AzureVM, or it is deployed separately"
        in links[1].what
    )
    install = "kubectl unbounded install --enable-machine-ops-controller --provider AzureVM"
    assert commands(links)[0] == install
    for site, provider in (("", ""), ("lab", ""), ("", "AzureVM"), ("lab", "AzureVM")):
        name = Settings(site=site, provider=provider).lease
        await beat(world.api, name, holder="")
        links = await why(world.api, "op")
        assert f"is not running: Lease unbounded-kube/{name} was released" in links[1].what
        deployment = MachineOpsWorkload("", site, provider).name
        assert f"kubectl -n unbounded-kube logs deployment/{deployment} --tail=50" in commands(links)
        links = await why(world.api, "op", alive=(*ALIVE, name))
        assert links[1].what.startswith(
            "is running: it works on other operations, waits for its cloud, or has no provider AzureVM"
        )
        await world.api.delete(LEASES, name, namespace=NAMESPACE)
    await beat(world.api, Settings(site="west", provider="AzureVM").lease)
    assert commands(await why(world.api, "op"))[0] == install


@story
async def test_deleted_before_it_was_started(world: World) -> None:
    await world.machine("m1")
    await world.operation("op", "HostReboot", "m1")
    await world.api.patch(MACHINE_OPERATIONS, "op", {"metadata": {"finalizers": [FINALIZER_OPERATION]}})
    await world.api.delete(MACHINE_OPERATIONS, "op")
    links = await why(world.api, "op", alive=[METALMAN])
    assert abouts(links) == ["operation/op", "machina"]
    assert "being deleted before it started" in links[0].what
    world.steward().start()
    await world.gone("op")


@cluster_story
async def test_a_blocked_drain_names_pod_budget_and_command(cluster: Cluster) -> None:
    await cluster.world.machine("m1")
    await cluster.node("m1", "web-1")
    cluster.api.guarded.add("web-1")
    await cluster.world.operation("op", "HostReboot", "m1", drain={"mode": "Always"})
    await cluster.world.until("op", lambda one: "is blocked" in (one.status.message or ""), within_s=60)
    link = (await why(cluster.api, "op"))[0]
    assert "default/web-1 is blocked since 2030-01-01T" in link.what
    assert (link.held_by, bool(link.since)) == ("PodDisruptionBudget default/web", True)
    assert f"it fails as {reasons.DRAIN_TIMED_OUT} at 2030-01-01T01:00:0" in link.next_step
    assert abouts(await why(cluster.api, "op")) == ["operation/op"]  # its Machine is Ready, which blocks nothing
    assert commands([link]) == [
        "kubectl -n default describe pdb web",
        "kubectl get pods --all-namespaces --field-selector spec.nodeName=m1",
        "kubectl unbounded machine operation cancel op",
    ]


@cluster_story
async def test_a_refused_cordon_names_the_answer_of_the_server(cluster: Cluster) -> None:
    await cluster.world.machine("m1")
    await cluster.node("m1", "web-1")
    cluster.api.refuses = Forbidden
    drain = {"mode": "Always", "onTimeout": "Proceed"}
    await cluster.world.operation("op", "HostReboot", "m1", drain=drain)
    await cluster.stage("m1", DisruptionStage.GRANTED)
    (link,) = await why(cluster.api, "op")
    assert "Node m1 is not cordoned yet for HostReboot op: admission webhook" in link.what
    assert link.held_by == "Node m1"
    assert f"it fails as {reasons.DRAIN_TIMED_OUT} at " in link.next_step
    assert commands([link]) == [
        "kubectl cordon m1 --dry-run=server",
        "kubectl unbounded machine operation cancel op",
    ]


@cluster_story
async def test_blocked_maintenance_names_pod_budget_and_command(cluster: Cluster) -> None:
    await cluster.world.machine("m1")
    await cluster.node("m1", "web-1")
    cluster.api.guarded.add("web-1")
    await cluster.api.patch(MACHINES, "m1", {"spec": {"maintenance": {"enabled": True, "reason": "new memory"}}})
    await cluster.stage("m1", DisruptionStage.DRAINING)
    await asyncio.sleep(10)
    (link,) = await why(cluster.api, "m1", topic=Topic.MACHINE)
    assert "default/web-1 is blocked since 2030-01-01T" in link.what
    assert (link.held_by, bool(link.since)) == ("PodDisruptionBudget default/web", True)
    assert commands([link]) == [
        "kubectl -n default describe pdb web",
        "kubectl get pods --all-namespaces --field-selector spec.nodeName=m1",
        "kubectl unbounded machine return m1",
    ]
    cluster.api.guarded.clear()
    await cluster.stage("m1", DisruptionStage.DRAINED)
    await asyncio.sleep(10)
    (link,) = await why(cluster.api, "m1", topic=Topic.MACHINE)
    assert link.what.endswith("Machine m1 is in maintenance: new memory")
    assert commands([link]) == ["kubectl unbounded machine return m1"]


@cluster_story
async def test_a_full_disruption_budget_names_its_holder_and_since_when(cluster: Cluster) -> None:
    for name in ("m1", "m2"):
        await cluster.world.machine(name)
        await cluster.node(name, f"web-{name}")
    cluster.api.guarded.add("web-m1")
    await cluster.budget("one", 1)
    await cluster.world.operation("op1", "HostReboot", "m1")
    await cluster.stage("m1", DisruptionStage.DRAINING)
    await cluster.world.operation("op2", "HostReboot", "m2")
    await cluster.world.until("op2", lambda one: one.status.reason == reasons.WAITING_FOR_BUDGET, within_s=60)
    link = (await why(cluster.api, "op2"))[0]
    assert "m1 (HostReboot op1, since 2030-01-01T" in link.what
    assert (link.held_by, "its start deadline does not count" in link.next_step) == (
        "MachineDisruptionBudget one",
        True,
    )
    assert abouts(await why(cluster.api, "op2")) == ["operation/op2"]
    assert commands([link]) == [
        "kubectl unbounded why machine/m1",
        "kubectl describe mdb one",
        "kubectl unbounded machine operation cancel op2",
    ]


@cluster_story
async def test_a_drain_without_a_blocker_is_explained_at_once(cluster: Cluster) -> None:
    await cluster.world.machine("m1")
    await cluster.node("m1", "web-1")
    cluster.api.grace_s = 60.0
    await cluster.world.operation("op", "HostReboot", "m1", drain={"mode": "Always"})
    await cluster.stage("m1", DisruptionStage.DRAINING)
    (link,) = await why(cluster.api, "op")
    assert link.what == "HostReboot, not started: draining Node m1 for HostReboot op"


@cluster_story
async def test_an_operation_behind_a_drain_does_not_end_as_not_started(cluster: Cluster) -> None:
    await cluster.world.machine("m1")
    await cluster.node("m1", "web-1")
    cluster.api.guarded.add("web-1")
    await cluster.world.operation("first", "HostReboot", "m1", drain={"mode": "Always"})
    await cluster.stage("m1", DisruptionStage.DRAINING)
    await cluster.world.operation("next", "HostReboot", "m1")
    links = await why(cluster.api, "next")
    assert abouts(links) == ["operation/next", "operation/first"]
    assert "its start deadline does not count" in links[0].next_step
