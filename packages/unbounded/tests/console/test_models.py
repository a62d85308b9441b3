"""Data of the views, from objects that the engine wrote, and from objects with every part."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from tests.operations.staging import story
from tests.operations.world import World
from tests.support.virtual_time import virtual_now
from unbounded.api.configuration import MachineConfiguration
from unbounded.api.container_cloud.cluster import Cluster
from unbounded.api.container_cloud.host import BareMetalHost
from unbounded.api.container_cloud.machine import ContainerCloudMachine
from unbounded.api.core import Node
from unbounded.api.disruption import MachineDisruptionBudget
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.console.compaction import compaction_of
from unbounded.console.models.hosts import ContainerCloud, cluster_view, host_view, hosts_view
from unbounded.console.models.leaders import SiteProcesses
from unbounded.console.models.machine import machine_view
from unbounded.console.models.operation import operation_view
from unbounded.console.models.parts import (
    BlockerChain,
    FactList,
    NotRead,
    ObjectRows,
    StageStep,
    StageTimeline,
    Tone,
    ViewData,
    ViewTable,
    duration,
    size,
)
from unbounded.console.models.rollouts import rollouts_view
from unbounded.console.models.site import DefaultTokens, SiteToken, is_booting, site_view
from unbounded.explain.chain import explain
from unbounded.explain.facts import ExplainFacts, LeaderLease, procedure_of
from unbounded.explain.facts_reader import FactsReader
from unbounded.explain.links import Topic
from unbounded.explain.timeline import StageState
from unbounded.explain.tree import tree_of

Raw = dict[str, Any]
AT = "2030-01-01T00:00:00Z"
NOW = datetime(2030, 1, 1, 0, 10, tzinfo=UTC)
PASSWORD = {"name": "bmc-1", "namespace": "unbounded-kube", "key": "password"}
MARKUP = "<img src=x onerror=alert(1)>"


def fact(view: ViewData, name: str) -> str:
    found = [
        value.text for part in view.sections if isinstance(part, FactList) for key, value in part.facts if key == name
    ]
    return found[0] if found else ""


def section(view: ViewData, title: str) -> ViewTable:
    (found,) = (part for part in view.sections if isinstance(part, ViewTable) and part.title == title)
    return found


def table(view: ViewData, title: str) -> list[tuple[str, ...]]:
    return [tuple(cell.text for cell in row) for row in section(view, title).rows]


def steps(view: ViewData) -> Sequence[StageStep]:
    return next((part.steps for part in view.sections if isinstance(part, StageTimeline)), ())


# ---- operations, as the engine writes them


async def shown(world: World, name: str) -> ViewData:
    operation = await world.api.get(MACHINE_OPERATIONS, name)
    machine = await world.api.get(MACHINES, operation.spec.machine_ref or "")
    execution = operation.status.execution
    procedure = procedure_of(operation, "" if execution is None else execution.executor, machine)
    found = await explain(world.api, Topic.OPERATION, name, now=virtual_now)
    return operation_view(operation, procedure, found, virtual_now(), machine)


@story
async def test_stages_of_a_reboot_show_their_start_limit_and_spent_time(world: World) -> None:
    world.redfish().start()
    await world.machine("m1")
    await world.operation("reboot", "HostReboot", "m1")
    before = await shown(world, "reboot")
    assert before.state.text == "Pending"
    assert not steps(before)
    await world.until("reboot", lambda one: one.status.execution is not None, within_s=60)
    during = await shown(world, "reboot")
    assert during.runs
    (current,) = (one for one in steps(during) if one.state is StageState.CURRENT)
    assert current.limit
    assert current.began
    assert current.share is not None
    await asyncio.sleep(3)
    later = next(one for one in steps(await shown(world, "reboot")) if one.state is StageState.CURRENT)
    assert later.name != current.name or (later.share or 0) > current.share

    await world.ended("reboot", within_s=600)
    after = await shown(world, "reboot")
    assert (after.state.text, after.state.tone, after.runs) == ("Complete", Tone.GOOD, False)
    found = steps(after)
    assert [(one.name, one.state) for one in found] == [
        ("ShuttingDown", StageState.DONE),
        ("WaitingOn", StageState.DONE),
    ]
    assert all(one.began and one.spent and one.limit and one.share is not None for one in found)
    assert [row[:3] for row in table(after, "Attempts")] == [
        ("GracefulShutdown", "1", "ShuttingDown"),
        ("On", "1", "WaitingOn"),
    ]
    operation = await world.api.get(MACHINE_OPERATIONS, "reboot")
    assert [row[0] for row in table(after, "Evidence")] == [one.what for one in operation.status.evidence]
    assert fact(after, "Machine") == "m1"
    assert "of at most 30 min" in fact(after, "Spent")


@pytest.mark.parametrize("at", ["2026-01-01T00:00:00z", "2026-01-01T00:00:00", "2026-01-01T00:00:00+99:99"])
@pytest.mark.parametrize("phase", ["InProgress", "Complete"])
def test_times_that_cannot_be_read_fail_no_view(at: str, phase: str) -> None:
    """An agent writes the status of its operations; it may write any time that the definition takes."""
    execution = {"executor": "agent/m1", "incarnation": "i.1", "machineUID": "u", "binding": "b", "recordedAt": at}
    attempt = {"stage": "S", "action": "On", "number": 1, "startedAt": at, "completedAt": at, "reply": "Unknown"}
    stages = [{"name": name, "startedAt": at, "completedAt": at, "limitSeconds": 1200} for name in ("R", "S")]
    status = {
        "phase": phase,
        "startedAt": at,
        "completedAt": at if phase == "Complete" else None,
        "execution": execution,
        "targets": [{"machineRef": "m1", "stage": "S", "lastAttemptAt": at, "startedAt": at, "completedAt": at}],
        "history": {"stages": stages, "attempts": [attempt]},
        "evidence": [{"what": what, "where": "here", "at": at} for what in ("Off", "On")],
        "waiting": {"reason": "R", "since": at, "until": at},
    }
    body = {"metadata": {"name": "op"}, "spec": {"operationKind": "HostReboot", "machineRef": "m1"}, "status": status}
    view = operation_view(msgspec.convert(body, MachineOperation), None, None, NOW)
    assert {step.name for step in steps(view)} == {"R", "S"}
    assert fact(view, "Started") == at


def test_a_long_history_says_what_it_leaves_out() -> None:
    attempt = {"stage": "S", "action": "On", "number": 1, "completedAt": AT, "reply": "Unknown", "reason": "NoAnswer"}
    execution = {"executor": "other/lab", "incarnation": "p", "machineUID": "u", "binding": "b"}
    stages = [{"name": "S", "startedAt": AT, "limitSeconds": 1200}]
    history = {"stages": stages, "droppedStages": 3, "attempts": [attempt], "droppedAttempts": 7}
    targets = [{"machineRef": "m1", "stage": "S"}]
    status = {"phase": "InProgress", "execution": execution, "targets": targets, "history": history}
    body = {"metadata": {"name": "op"}, "spec": {"operationKind": "HostReboot", "machineRef": "m1"}, "status": status}
    view = operation_view(msgspec.convert(body, MachineOperation), None, None, NOW)
    (timeline,) = (part for part in view.sections if isinstance(part, StageTimeline))
    assert timeline.note == "3 earlier stages are not listed any more."
    (attempts,) = (part for part in view.sections if isinstance(part, ViewTable) and part.title == "Attempts")
    assert attempts.note == "7 earlier attempts are not listed any more."
    assert table(view, "Attempts")[0][5:7] == ("Unknown", "NoAnswer")


def test_machines_of_a_rollout_show_their_stages_and_the_time_that_each_has_spent() -> None:
    targets = [
        {"machineRef": "m1", "phase": "Complete", "startedAt": AT, "completedAt": "2030-01-01T00:01:05Z"},
        {"machineRef": "m2", "phase": "InProgress", "stage": "WaitingOff", "startedAt": "2030-01-01T00:09:30Z"},
        {"machineRef": "m3", "phase": "Pending"},
    ]
    stages = [{"name": "canary", "phase": "InProgress", "targets": 3, "completed": 1}]
    status = {
        "phase": "InProgress",
        "targets": [{"rolloutStage": "canary", **one} for one in targets],
        "rollout": {"stages": stages},
    }
    spec = {"operationKind": "HostReboot", "machineSelector": {"matchLabels": {"rack": "1"}}}
    body = {"metadata": {"name": "op"}, "spec": spec, "status": status}
    view = operation_view(msgspec.convert(body, MachineOperation), None, None, NOW)
    assert [(row[0], row[2], row[8]) for row in table(view, "Machines")] == [
        ("m2", "canary: WaitingOff", "30 s"),
        ("m3", "canary", "–"),
        ("m1", "canary", "1 min 5 s"),
    ]
    assert view.runs
    ended = {**body, "status": {**status, "phase": "Complete"}}
    assert not operation_view(msgspec.convert(ended, MachineOperation), None, None, NOW).runs


@story
async def test_the_stage_in_which_an_operation_failed_is_marked(world: World) -> None:
    world.redfish().start()
    await world.machine("m1")
    await world.operation("reboot", "HostReboot", "m1", deadlineSeconds=1)
    await world.ended("reboot", within_s=600)
    view = await shown(world, "reboot")
    assert (view.state.tone, fact(view, "Reason")) == (Tone.BAD, "DeadlineExceeded")
    assert [one.state for one in steps(view)].count(StageState.FAILED) == 1
    assert not any(one.state is StageState.CURRENT for one in steps(view))
    assert not any(isinstance(part, BlockerChain) for part in view.sections), "an ended operation waits for nothing"


@story
async def test_an_operation_shows_those_of_its_kind_before_it(world: World) -> None:
    world.redfish().start()
    await world.machine("m1")
    await world.operation("first", "HostReboot", "m1", deadlineSeconds=4)
    await world.ended("first", within_s=600)
    for name, kind in (("off", "HostPowerOff"), ("second", "HostReboot"), ("third", "HostReboot")):
        await world.slot_free("m1", within_s=600)
        await world.operation(name, kind, "m1")
        await world.ended(name, within_s=600)
    await world.slot_free("m1", within_s=600)
    earlier = "Earlier operations of this kind"
    assert [row[:3] for row in table(await shown(world, "third"), earlier)] == [
        ("second", "Complete", "Succeeded"),
        ("first", "Failed", "DeadlineExceeded"),
    ]
    assert [row[0] for row in table(await shown(world, "second"), earlier)] == ["first"]
    for name in ("first", "off"):
        assert earlier not in [getattr(part, "title", "") for part in (await shown(world, name)).sections]


@story
async def test_a_machine_shows_what_blocks_it_and_what_is_around_it(world: World) -> None:
    await world.machine("m1")
    await world.operation("reboot", "HostReboot", "m1")
    machine = await world.api.get(MACHINES, "m1")
    found = await explain(world.api, Topic.MACHINE, "m1", now=virtual_now)
    tree = tree_of(machine, await FactsReader(world.api, virtual_now).related(machine))
    view = machine_view(machine, tree, found)
    (chain,) = (part for part in view.sections if isinstance(part, BlockerChain))
    assert [step.about.text for step in chain.steps] == [link.about for link in found.links]
    (rows,) = (part for part in view.sections if isinstance(part, ObjectRows))
    assert rows.rows[0].what.path == "/machine/m1"
    assert (1, "/operation/reboot") in [(row.depth, row.what.path) for row in rows.rows]


# ---- Machines


def machine(name: str = "m1", *, site: str = "lab", spec: Raw | None = None, **status: Any) -> Machine:
    labels = {"unbounded-cloud.io/site": site}
    metadata = {"name": name, "uid": f"uid-{name}", "labels": labels, "creationTimestamp": AT, "generation": 1}
    return msgspec.convert({"metadata": metadata, "spec": spec or {}, "status": status}, Machine)


def condition(kind: str, status: str, reason: str, message: str = "") -> Raw:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": AT}


def pxe(**change: Any) -> Raw:
    redfish = {"url": "https://bmc-1", "username": "u", "passwordRef": PASSWORD}
    lease = {"ipv4": "10.0.0.5", "mac": "52:54:00:00:00:01", "subnetMask": "255.255.255.0", "gateway": "10.0.0.1"}
    return {"pxe": {"image": "registry/ubuntu:1", "redfish": redfish, "dhcpLeases": [lease], **change}}


def test_a_machine_shows_its_hardware_and_unhealthy_parts_first() -> None:
    hardware = {
        "source": "Installer",
        "at": AT,
        "digest": "0" * 64,
        "memoryBytes": 512 * 2**30,
        "disks": [{"name": "nvme0n1", "serialNumber": MARKUP, "sizeBytes": 480 * 10**9, "health": "OK"}],
        "nics": [{"name": "eth0", "mac": "52:54:00:00:00:01", "link": True, "speedMbps": 25000}],
        "bmc": {
            "at": AT,
            "parts": [
                {"kind": "power supply", "name": "PSU 1", "health": "OK"},
                {"kind": "disk", "name": "Disk 3", "health": "Critical"},
            ],
        },
    }
    view = machine_view(machine(spec=pxe(), hardware=hardware, power={"state": "On", "at": AT}), None, None)
    assert fact(view, "Memory") == "512 GiB"
    assert fact(view, "Power") == "On"
    assert table(view, "Disks") == [("nvme0n1", MARKUP, "–", "480 GB", "–", "–", "OK")]
    assert table(view, "Network interfaces")[0][2] == "up 25000 Mbit/s"
    assert [row[1] for row in table(view, "Parts that the BMC lists")] == ["Disk 3", "PSU 1"]
    assert table(view, "Leases")[0][0] == "10.0.0.5"


def test_a_machine_shows_its_node() -> None:
    conditions = [
        {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": MARKUP, "lastTransitionTime": AT},
        {"type": "DiskPressure", "status": "True", "reason": "KubeletHasDiskPressure"},
        {"type": "PIDPressure", "status": "False"},
    ]
    info = {
        "kubeletVersion": "v1.34.2",
        "containerRuntimeVersion": "containerd://2.1.4",
        "osImage": "Ubuntu 24.04.3 LTS",
        "kernelVersion": "6.8.0",
    }
    addresses = [{"type": "InternalIP", "address": "10.0.0.5"}, {"type": "Hostname", "address": "m1"}]
    taints = [{"key": "rack", "value": "r1", "effect": "NoSchedule"}, {"key": "drained", "effect": "NoExecute"}]
    node = {
        "metadata": {"name": "m1", "creationTimestamp": AT},
        "spec": {"unschedulable": True, "taints": taints, "providerID": "metal://m1"},
        "status": {"conditions": conditions, "nodeInfo": info, "addresses": addresses},
    }
    view = machine_view(machine(), None, None, msgspec.convert(node, Node))
    found = {key: value.text for part in view.sections if isinstance(part, FactList) for key, value in part.facts}
    assert (
        found
        | {
            "Name": "m1",
            "Kubelet": "v1.34.2",
            "Container runtime": "containerd://2.1.4",
            "Operating system": "Ubuntu 24.04.3 LTS",
            "Kernel": "6.8.0",
            "Addresses": "InternalIP 10.0.0.5, Hostname m1",
            "Scheduling": "disabled: it is cordoned",
            "Taints": "rack=r1:NoSchedule, drained:NoExecute",
            "Provider ID": "metal://m1",
        }
        == found
    )
    rows = section(view, "Conditions of the Node").rows
    assert [tuple(cell.text for cell in row) for row in rows][:2] == [
        ("Ready", "False", "KubeletNotReady", MARKUP, AT),
        ("DiskPressure", "True", "KubeletHasDiskPressure", "–", "–"),
    ]
    assert [row[1].tone for row in rows] == [Tone.BAD, Tone.WARN, Tone.CALM]


def test_a_node_that_cannot_be_read_is_not_called_missing() -> None:
    unread = NotRead("The Node is left out: you have no permission to read it.")
    found = section(machine_view(machine(), None, None, unread), "Conditions of the Node")
    assert (found.rows, found.empty, found.note) == ((), "", unread.why)
    titles = [part.title for part in machine_view(machine(), None, None, None).sections]
    assert not any("Node" in title for title in titles)


def test_a_host_without_an_inspection_shows_what_its_agent_reports() -> None:
    cards = [{"interface": "eno1", "address": one} for one in ("192.0.2.7", "2001:db8::7", "192.0.2.7")]
    disk = {"name": "vda", "sizeBytes": 61_000_000_000, "bus": "virtio"}
    reported = {"cpus": 11, "memoryBytes": 16 << 30, "disks": [disk], "nics": [{"name": "eno1", "link": True}]}
    agent = {"version": "1.0", "stage": "Preparing", "host": {"addresses": cards, "hardware": reported}}
    view = machine_view(machine(agent=agent), None, None, None)
    assert fact(view, "Agent's work") == "Preparing"
    assert fact(view, "Addresses") == "192.0.2.7, 2001:db8::7"
    assert (fact(view, "CPUs"), fact(view, "Memory"), fact(view, "Inspected")) == ("11", "16 GiB", "by its agent")
    assert [row[0] for row in table(view, "Disks")] == ["vda"]
    assert [row[0] for row in table(view, "Network interfaces")] == ["eno1"]


def test_history_begins_with_the_last_operation_and_links_those_that_are_objects() -> None:
    recent = [
        {"name": "m1", "uid": "1", "kind": "NodeRecreation", "phase": "Complete"},
        {"name": "reboot", "uid": "2", "kind": "HostReboot", "phase": "Failed", "reason": "TimedOut"},
    ]
    view = machine_view(machine(recentOperations=recent), None, None)
    found = section(view, "History")
    assert [row[0].path for row in found.rows] == ["/operation/reboot", ""]
    assert found.rows[0][2].tone is Tone.BAD


# ---- rollouts and budgets


def test_rollouts_show_stages_failures_and_the_holders_of_budgets() -> None:
    configuration = msgspec.convert(
        {
            "metadata": {"name": "workers"},
            "spec": {"template": {}},
            "status": {
                "rollout": {
                    "version": 3,
                    "phase": "Halted",
                    "stage": "canary",
                    "updated": 1,
                    "outdated": 2,
                    "failed": [{"machine": "m2", "message": "it did not join"}],
                    "stages": [{"name": "canary", "phase": "Halted", "targets": 2, "completed": 1, "failed": 1}],
                    "waiting": {"reason": "Halted", "heldBy": "spec", "since": AT},
                }
            },
        },
        MachineConfiguration,
    )
    budget = msgspec.convert(
        {
            "metadata": {"name": "racks"},
            "spec": {"machineSelector": {"matchLabels": {"a": "b"}}, "maxUnavailable": 1, "groupBy": ["rack"]},
            "status": {
                "allowed": 0,
                "granted": 1,
                "groups": [{"value": "r1", "machines": 4, "unavailable": 1, "granted": 1, "allowed": 0}],
                "grants": [
                    {
                        "machine": "m1",
                        "machineUID": "u",
                        "holder": {"kind": "HostReboot", "name": "reboot", "uid": "u"},
                        "since": AT,
                    }
                ],
            },
        },
        MachineDisruptionBudget,
    )
    parent = msgspec.convert(
        {
            "metadata": {"name": "all"},
            "spec": {"operationKind": "NodeReboot", "machineSelector": {"matchLabels": {"a": "b"}}},
            "status": {
                "phase": "InProgress",
                "targets": [{"machineRef": "m1", "phase": "Complete"}, {"machineRef": "m2", "phase": "Failed"}],
            },
        },
        MachineOperation,
    )
    draining = machine(
        "m3",
        disruption={
            "holder": {"kind": "Maintenance", "name": "m3", "uid": "u"},
            "stage": "Draining",
            "since": AT,
            "drain": {"left": 7},
        },
    )
    view = rollouts_view([configuration], [parent], [budget], [draining, machine()])
    assert (view.state.text, view.state.tone) == ("1 halted", Tone.BAD)
    assert table(view, "Rolling updates")[0][:6] == ("workers", "v3", "Halted", "canary", "1", "2")
    assert table(view, "Stages") == [("workers", "canary", "Halted", "1", "1", "2", "–")]
    assert table(view, "Failed updates") == [("workers", "m2", "it did not join")]
    assert table(view, "Operations on several Machines")[0][:7] == (
        "all",
        "NodeReboot",
        "InProgress",
        "1",
        "1",
        "0",
        "2",
    )
    assert table(view, "Budgets")[0] == ("racks", "a=b", "1", "rack", "0", "1", "–")
    assert table(view, "Holders of budgets") == [("racks", "m1", "HostReboot reboot", AT)]
    assert table(view, "Disruptions in progress")[0][:5] == ("m3", "Draining", "maintenance of Machine m3", "–", "7")


def test_what_is_not_known_is_not_called_missing() -> None:
    secret = NotRead("You may not read them.")
    of_hosts = hosts_view(ContainerCloud(secret, secret, secret, secret))
    for view in (rollouts_view(secret, secret, secret, secret), of_hosts):
        assert view.state.text == "not all readable"
        tables = [part for part in view.sections if isinstance(part, ViewTable)]
        assert {(part.empty, part.note) for part in tables} == {("", "You may not read them.")}


# ---- sites


def test_a_site_shows_its_boots_images_and_bmcs() -> None:
    active = {"uid": "boot-1", "name": "replace", "kind": "HostReplace", "executor": "metalman/lab", "since": AT}
    booting = machine(
        "m1",
        spec=pxe(),
        activeOperation=active,
        netboot={"boot": "boot-1", "milestone": "ImageWriting", "percent": 42, "at": AT},
        power={"state": "On", "at": AT},
        conditions=[condition("NetbootImageReady", "True", "Pulled", "served")],
    )
    ended = machine(
        "m2",
        spec=pxe(),
        netboot={"boot": "boot-0", "milestone": "Failed"},
        power={"state": "Unknown", "at": AT},
        conditions=[condition("NetbootServed", "False", "AddressInUse", "10.0.0.5 is in use")],
    )
    pulling = machine(
        "m3",
        spec=pxe(image="registry/ubuntu:2"),
        conditions=[condition("NetbootImageReady", "False", "Pulling", "pulling, 30 %")],
    )
    elsewhere = machine("m4", site="other", spec=pxe(), activeOperation=active, netboot={"boot": "boot-1"})
    assert [is_booting(one) for one in (booting, ended, pulling)] == [True, False, False]
    lease = LeaderLease("metalman-lab", "pod-1", "2030-01-01T00:09:58Z")
    processes = SiteProcesses(ExplainFacts(leader_leases={"metalman-lab": lease}))
    tokens = DefaultTokens((SiteToken("bootstrap-token-abcdef", datetime(2030, 1, 1, 1, 10, tzinfo=UTC)),))
    view = site_view("lab", [booting, ended, pulling, elsewhere], processes, tokens, NOW)
    assert (view.title, view.state.text) == ("Site lab", "1 booting")
    assert table(view, "Boots by milestone") == [("ImageWriting", "1")]
    assert table(view, "Boots in progress")[0][:3] == ("m1", "ImageWriting", "42 %")
    assert [(row[0], row[3], row[4]) for row in table(view, "Images")] == [
        ("registry/ubuntu:1", "2", "Pulled"),
        ("registry/ubuntu:2", "1", "Pulling"),
    ]
    assert [(row[0], row[2]) for row in table(view, "BMCs")] == [
        ("m2", "unreachable"),
        ("m3", "unread"),
        ("m1", "reachable"),
    ]
    assert table(view, "DHCP leases")[0][:4] == ("m2", "10.0.0.5", "52:54:00:00:00:01", "AddressInUse")
    assert table(view, "Default bootstrap tokens")[0][2] == "1 h"
    servers = table(view, "Boot servers and controllers")
    assert servers[0] == ("metalman/lab", "leads", "pod-1", "in the last 30 s")
    assert servers[1][:2] == (
        "machina",
        "Lease unbounded-kube/unbounded-operations does not exist: it has never run here",
    )


def test_a_site_shows_the_faults_that_bmcs_report_of_live_machines() -> None:
    def reporting(name: str, *health: str) -> Machine:
        bmc = {"at": AT, "parts": [{"kind": "disk", "name": f"Disk {one}", "health": one} for one in health]}
        return machine(name, spec=pxe(), hardware={"source": "Redfish", "at": AT, "digest": "0" * 64, "bmc": bmc})

    machines = [reporting("bad", "OK", "Warning", "Critical"), reporting("good", "OK"), machine("unread", spec=pxe())]
    live = map(compaction_of(MACHINES), machines)
    view = site_view("lab", live, SiteProcesses(ExplainFacts(embedded=True)), DefaultTokens(), NOW)
    assert [(row[0], row[4]) for row in table(view, "BMCs")] == [
        ("bad", "Critical: disk Disk Critical and 1 more"),
        ("good", "no fault reported"),
        ("unread", "–"),
    ]


LEASE = LeaderLease("metalman-lab", "p", AT)


@pytest.mark.parametrize(
    ("processes", "row"),
    [
        (SiteProcesses(ExplainFacts(embedded=True)), ("runs in the process of the API server", "–", "–")),
        (NotRead("You may not read leases."), ("You may not read leases.", "–", "–")),
        (
            SiteProcesses(ExplainFacts(leader_leases={"metalman-lab": LeaderLease("metalman-lab", "", AT)})),
            ("Lease unbounded-kube/metalman-lab was released: it was stopped", "–", "–"),
        ),
        (SiteProcesses(ExplainFacts(leader_leases={"metalman-lab": LEASE})), ("leads", "p", "in the last 30 s")),
        (
            SiteProcesses(ExplainFacts(leader_leases={"metalman-lab": LEASE}), frozenset({"metalman-lab"})),
            ("not renewed in the last 30 s", "p", AT),
        ),
    ],
    ids=["embedded", "unread", "released", "leads", "late"],
)
def test_the_state_of_a_boot_server_is_that_of_its_lease(
    processes: SiteProcesses | NotRead, row: tuple[str, ...]
) -> None:
    view = site_view("lab", [], processes, DefaultTokens(unread="you have no permission to read Secrets"), NOW)
    assert table(view, "Boot servers and controllers")[0][1:] == row
    assert section(view, "Default bootstrap tokens").empty == "you have no permission to read Secrets"


def test_a_large_site_shows_some_rows_and_counts_the_others() -> None:
    many = [machine(f"m-{number:03}", spec=pxe()) for number in range(250)]
    view = site_view("lab", many, SiteProcesses(ExplainFacts(embedded=True)), DefaultTokens(), NOW)
    for title in ("BMCs", "DHCP leases"):
        found = section(view, title)
        assert (len(found.rows), found.more) == (200, 50)


# ---- Container Cloud


def test_hosts_with_errors_come_first_and_a_cluster_has_its_own_machines_only() -> None:
    def host(name: str, **status: Any) -> BareMetalHost:
        return msgspec.convert(
            {"metadata": {"name": name, "namespace": "ns"}, "spec": {}, "status": status}, BareMetalHost
        )

    broken = host("h2", provisioning={"state": "registering"}, operationalStatus="error", errorMessage=MARKUP)
    free = host("h1", provisioning={"state": "available"}, operationalStatus="OK")
    value = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BaremetalClusterProviderSpec", "release": "r1"}
    status = {
        "providerStatus": {"nodes": {"requested": 2, "ready": 1}, "conditions": [{"type": "Nodes", "ready": False}]}
    }
    metadata = {"name": "c1", "namespace": "ns"}
    body = {"metadata": metadata, "spec": {"providerSpec": {"value": value}}, "status": status}
    cluster = msgspec.convert(body, Cluster)

    def claim(name: str, of: str) -> ContainerCloudMachine:
        own = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BareMetalMachineProviderSpec"}
        labels = {"cluster.sigs.k8s.io/cluster-name": of}
        waiting = {"reason": "NoHost", "since": AT}
        body = {
            "metadata": {"name": name, "namespace": "ns", "labels": labels},
            "spec": {"providerSpec": {"value": own}},
            "status": {"execution": {"stage": "Claiming", "waiting": waiting}},
        }
        return msgspec.convert(body, ContainerCloudMachine)

    found = ContainerCloud((free, broken), (cluster,), (), (claim("w1", "c1"), claim("w2", "c2")))
    every = hosts_view(found)
    assert [row[0] for row in table(every, "Hosts")] == ["ns/h2", "ns/h1"]
    assert (every.state.text, every.state.tone) == ("1 with errors", Tone.BAD)
    assert table(every, "Clusters") == [("ns/c1", "r1", "no", "2", "1", "–")]
    one = cluster_view(cluster, found, None)
    assert [row[0] for row in table(one, "Machines")] == ["ns/w1"]
    assert fact(one, "Machines") == "1 of 2 are ready"
    assert fact(host_view(broken, None, None), "Error") == MARKUP


# ---- texts


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (59, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (7200, "2 h"), (7500, "2 h 5 min")],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(None, ""), (512, "512 B"), (480_103_981_056, "480.1 GB"), (2 * 10**12, "2 TB")]
)
def test_sizes_count_as_makers_of_disks_do(count: int | None, text: str) -> None:
    assert size(count) == text
