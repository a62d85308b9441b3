"""The operation commands against a server, with this test in the place of steward and executor."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.plugin.conftest import Cli, Running, make_machine, says
from unbounded.api.core import CONFIG_MAPS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import (
    ANNOTATION_MACHINE_UID,
    ANNOTATION_PAUSED,
    ANNOTATION_REQUESTED_BY,
    CONFIGMAP_OPERATIONS,
    NAMESPACE,
)
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.intents.operations import decoded, losses, user_name
from unbounded.kube.api import NotFound
from unbounded.kube.client import HttpApi

# ---- the short verbs


@pytest.mark.slow
async def test_a_verb_makes_an_operation_that_its_machine_owns(cli: Cli, api: HttpApi, machine: Machine) -> None:
    ran = await cli("machine", "power-off", machine.name, "--grace", "5m", "--wait=false", "-o", "yaml")
    assert (ran.status, ran.err) == (0, "")
    made: dict[str, Any] = yaml.safe_load(ran.out)
    assert made["metadata"]["ownerReferences"][0]["uid"] == machine.metadata.uid
    assert made["metadata"]["annotations"] == {ANNOTATION_MACHINE_UID: machine.metadata.uid}
    assert made["metadata"]["name"].startswith(f"{machine.name}-power-off-20")
    assert made["spec"]["operationKind"] == "HostPowerOff"
    assert made["spec"]["parameters"] == {"graceSeconds": "300"}
    assert made["spec"]["ttlSecondsAfterFinished"] == 300
    assert (await api.get(MACHINE_OPERATIONS, made["metadata"]["name"])).spec.machine_ref == machine.name


@pytest.mark.parametrize(
    ("verb", "kind", "parameters"),
    [
        (["host-reboot", "--now"], "HostReboot", {"force": "true"}),
        (["power-on"], "HostPowerOn", None),
        (["node-reboot"], "NodeReboot", None),
        (["agent-reset", "--force"], "AgentReset", None),
        (["replace", "--force", "--ttl", "0"], "HostReplace", None),
        (
            ["agent-upgrade", "--download-url", "https://example.com/a.tar.gz", "--retry-failed-digest"],
            "AgentUpgrade",
            {"downloadURL": "https://example.com/a.tar.gz", "retryFailedDigest": "true"},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_every_verb_has_its_kind(
    cli: Cli, machine: Machine, verb: list[str], kind: str, parameters: dict[str, str] | None
) -> None:
    ran = await cli("machine", verb[0], machine.name, *verb[1:], "--wait=false", "-o", "json")
    assert ran.status == 0, ran.err
    spec = json.loads(ran.out)["spec"]
    assert (spec["operationKind"], spec.get("parameters")) == (kind, parameters)


@pytest.mark.slow
async def test_operation_without_an_executor_is_rejected_before_its_creation(cli: Cli, api: HttpApi) -> None:
    bare = await make_machine(api, "rack1", bmc=False)
    ran = await cli("machine", "power-off", bare.name)
    assert ran.status == 1
    assert f"no executor supports HostPowerOff on Machine {bare.name}: the Machine needs spec.pxe.redfish" in ran.err
    assert bare.name not in (await cli("machine", "operation", "list")).out


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["agent-reset", "replace", "repave"])
async def test_what_destroys_is_refused_without_a_terminal(cli: Cli, api: HttpApi, machine: Machine, verb: str) -> None:
    ran = await cli("machine", verb, machine.name)
    assert ran.status == 2
    assert f"confirm by typing {machine.name!r}; this needs a terminal" in ran.err
    assert "--force skips the confirmation" in ran.err
    after = await api.get(MACHINES, machine.name)
    assert after.metadata.resource_version == machine.metadata.resource_version
    assert machine.name not in (await cli("machine", "operation", "list")).out


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHqczVtRFNAxbrJtsSlx9izzEO4fOvY32RAAoFjZmvZ+"


async def rescue_starts(api: HttpApi, machine: Machine) -> str:
    """Act as the executor of a HostRescue whose SSH server starts; gives the operation's name."""
    async with asyncio.timeout(30):
        while True:
            found = [one for one in (await api.list(MACHINE_OPERATIONS)).items if one.spec.machine_ref == machine.name]
            if found:
                break
            await asyncio.sleep(0.05)
    (operation,) = found
    assert operation.spec.parameters == {"authorizedKeys": f"{KEY} me@here\n{KEY}", "minutes": "5"}
    seen: dict[str, Any] = {"boot": operation.metadata.uid, "milestone": "RescueStarted"}
    seen["rescue"] = {"address": "10.0.0.5", "hostKey": KEY}
    await api.patch(MACHINES, machine.name, {"status": {"netboot": seen}}, subresource="status")
    return operation.name


@pytest.mark.slow
async def test_rescue_waits_for_its_ssh_server_and_prints_how_to_connect(
    cli: Cli, api: HttpApi, machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "a.pub").write_text(f"# mine\n{KEY} me@here\n\n")
    (tmp_path / "b.pub").write_text(KEY)
    keys = ("--key", str(tmp_path / "a.pub"), "--key", str(tmp_path / "b.pub"))
    starting = asyncio.create_task(rescue_starts(api, machine))
    ran = await cli("machine", "rescue", machine.name, *keys, "--minutes", "5")
    name = await starting
    assert ran.status == 0, ran.err
    assert "host key: SHA256:" in ran.out
    assert f"ssh -o 'KnownHostsCommand=/bin/echo 10.0.0.5 {KEY}' " in ran.out
    assert f"machine operation cancel {name}`" in ran.out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "spec.parameters.authorizedKeys must be 1 to 16 lines"),
        ("", "spec.parameters.authorizedKeys is required for HostRescue"),
    ],
)
async def test_rescue_without_a_public_key_creates_nothing(
    cli: Cli, machine: Machine, tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "key").write_text(content)
    ran = await cli("machine", "rescue", machine.name, "--key", str(tmp_path / "key"))
    assert ran.status == 2
    assert message in ran.err
    assert machine.name not in (await cli("machine", "operation", "list")).out


async def report_disks(api: HttpApi, machine: Machine) -> None:
    disks = [
        {"name": "sda", "serialNumber": "A1", "sizeBytes": 480_000_000_000, "model": "INTEL", "state": "Foreign",
         "contents": "ext4 LABEL=data"},
        {"name": "sdb", "serialNumber": "B2", "sizeBytes": 960_000_000_000, "state": "Blank"},
        *({"name": name, "serialNumber": "C3"} for name in ("sdc", "sdd")),
    ]  # fmt: skip
    hardware = {"source": "Installer", "at": "2026-01-01T00:00:00Z", "digest": "a" * 64, "disks": disks}
    await api.patch(MACHINES, machine.name, {"status": {"hardware": hardware}}, subresource="status")


async def test_replace_names_the_disks_to_erase_and_the_user(cli: Cli, api: HttpApi, machine: Machine) -> None:
    await report_disks(api, machine)
    disks = ["--erase-disk", "A1", "--erase-disk", "B2"]
    ran = await cli("machine", "replace", machine.name, *disks, "--force", "--wait=false", "-o", "json")
    assert ran.status == 0, ran.err
    made = json.loads(ran.out)
    assert made["spec"]["parameters"] == {"eraseDisks": "A1,B2"}
    user = await user_name(api)
    assert user
    assert made["metadata"]["annotations"][ANNOTATION_REQUESTED_BY] == user


async def test_replace_names_the_accepted_pcrs_and_the_user(cli: Cli, api: HttpApi, machine: Machine) -> None:
    flags = ["--accept-pcr", "0", "--accept-pcr", "7"]
    ran = await cli("machine", "replace", machine.name, *flags, "--force", "--wait=false", "-o", "json")
    assert ran.status == 0, ran.err
    made = json.loads(ran.out)
    assert made["spec"]["parameters"] == {"acceptPCRs": "0,7"}
    assert made["metadata"]["annotations"][ANNOTATION_REQUESTED_BY] == await user_name(api)
    assert losses(decoded(made)) == (
        "this loses everything on its disk: the host is reinstalled from its image. It accepts other values of "
        "PCR 0 (firmware code), PCR 7 (Secure Boot policy and keys)"
    )


async def test_what_is_on_a_disk_to_erase_is_shown(api: HttpApi, machine: Machine) -> None:
    await report_disks(api, machine)
    spec = {"operationKind": "HostReplace", "machineRef": machine.name, "parameters": {"eraseDisks": "A1,B2"}}
    metadata = {"name": "m", "annotations": {ANNOTATION_REQUESTED_BY: "alice"}}
    operation = decoded({"metadata": metadata, "spec": spec})
    reported = await api.get(MACHINES, machine.name)
    assert losses(operation, reported) == (
        "this loses everything on its disk: the host is reinstalled from its image. It may erase "
        "disk A1 (sda, 480000 MB, INTEL): ext4 LABEL=data; disk B2 (sdb, 960000 MB): blank"
    )


async def report_transports(api: HttpApi, machine: Machine) -> None:
    await report_disks(api, machine)
    raw = await api.get(MACHINES.raw(), machine.name)
    disks = [
        disk | {"transport": "fc" if disk["name"] > "sdb" else "ata"} for disk in raw["status"]["hardware"]["disks"]
    ]
    await api.patch(MACHINES, machine.name, {"status": {"hardware": {"disks": disks}}}, subresource="status")


async def test_erase_names_its_disks_and_its_user_and_stays(cli: Cli, api: HttpApi, machine: Machine) -> None:
    await report_transports(api, machine)
    for flags, disks in ((["--all"], "All"), (["--disk", "A1", "--disk", "B2"], "A1,B2")):
        ran = await cli("machine", "erase", machine.name, *flags, "--force", "--wait=false", "-o", "json",
                        "--operation-name", f"{machine.name}-{disks[0].lower()}{len(disks)}")  # fmt: skip
        assert ran.status == 0, ran.err
        made = json.loads(ran.out)
        assert (made["spec"]["operationKind"], made["spec"]["parameters"]) == ("HostErase", {"disks": disks})
        assert "ttlSecondsAfterFinished" not in made["spec"]
        assert "ownerReferences" not in made["metadata"]
        by = {ANNOTATION_REQUESTED_BY: await user_name(api)}
        assert made["metadata"]["annotations"] == {ANNOTATION_MACHINE_UID: machine.metadata.uid, **by}


async def test_erase_shows_what_is_lost_and_what_is_left(api: HttpApi, machine: Machine) -> None:
    await report_transports(api, machine)
    spec = {"operationKind": "HostErase", "machineRef": machine.name, "parameters": {"disks": "All"}}
    metadata = {"name": "m", "annotations": {ANNOTATION_REQUESTED_BY: "alice"}}
    reported = await api.get(MACHINES, machine.name)
    assert losses(decoded({"metadata": metadata, "spec": spec}), reported) == (
        "this loses everything on the disks that it erases, for good; the host stays Off. It erases all local disks: "
        "disk A1 (sda, 480000 MB, INTEL): ext4 LABEL=data; disk B2 (sdb, 960000 MB): blank. It leaves "
        "sdc: its transport is fc; sdd: its transport is fc"
    )


async def test_erase_needs_disks_and_a_confirmation(cli: Cli, api: HttpApi, machine: Machine) -> None:
    unknown = await cli("machine", "erase", machine.name, "--all", "--force")
    assert f"Machine {machine.name} has not reported its hardware" in unknown.err
    for flags in ((), ("--all", "--disk", "A1")):
        with pytest.raises(SystemExit, match="2"):
            await cli("machine", "erase", machine.name, "--force", *flags)
    await report_transports(api, machine)
    ran = await cli("machine", "erase", machine.name, "--disk", "A1")
    assert ran.status == 2
    assert f"confirm by typing {machine.name!r}" in ran.err
    assert machine.name not in (await cli("machine", "operation", "list")).out


async def test_the_report_of_an_erasure_is_printed_when_it_has_ended(cli: Cli, api: HttpApi, machine: Machine) -> None:
    name = f"{machine.name}-erase"
    spec = {"operationKind": "HostErase", "machineRef": machine.name, "parameters": {"disks": "All"}}
    metadata = {"name": name, "annotations": {ANNOTATION_REQUESTED_BY: await user_name(api)}}
    await api.create(MACHINE_OPERATIONS, {"metadata": metadata, "spec": spec})
    early = await cli("machine", "operation", "report", name)
    assert (early.status, "has not ended: its report is not final" in early.err) == (1, True)
    attempts = [{"method": "Discard", "failure": "of the 4096 bytes at byte 0, 9 are not zero", "seconds": 1}]
    disk = {
        "serialNumber": "A1",
        "state": "Erased",
        "method": "Overwrite",
        "attempts": attempts,
        "sizeBytes": 480_000_000,
    }
    done = disk | {
        "verification": "all zero",
        "startedAt": "2026-01-01T00:00:00Z",
        "completedAt": "2026-01-01T01:00:00Z",
    }
    status = {"phase": "Complete", "reason": "Succeeded", "completedAt": "2026-01-01T01:00:00Z", "erasures": [done]}
    await api.patch(MACHINE_OPERATIONS, name, {"status": status}, subresource="status")
    whole = json.loads((await cli("machine", "operation", "report", name, "-o", "json")).out)
    assert (whole["machine"], whole["requestedBy"], whole["phase"]) == (machine.name, await user_name(api), "Complete")
    assert whole["disks"] == [done]
    shown = (await cli("machine", "operation", "report", name)).out
    assert "A1" in shown
    assert "480 MB" in shown
    assert "all zero" in shown


@pytest.mark.slow
async def test_operation_create_names_the_user_too(cli: Cli, api: HttpApi, machine: Machine) -> None:
    await report_disks(api, machine)
    words = ["--kind", "HostReplace", "--param", "eraseDisks=A1", "--force", "-o", "json"]
    ran = await cli("machine", "operation", "create", f"{machine.name}-e", "--machine", machine.name, *words)
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["metadata"]["annotations"] == {ANNOTATION_REQUESTED_BY: await user_name(api)}
    many = await cli("machine", "operation", "create", "many", "-l", "unbounded-cloud.io/site=rack1", *words)
    assert many.status == 2
    assert "spec.parameters.eraseDisks needs spec.machineRef" in many.err


@pytest.mark.slow
async def test_a_disk_to_erase_has_to_be_known(cli: Cli, api: HttpApi, machine: Machine) -> None:
    unknown = await cli("machine", "replace", machine.name, "--erase-disk", "A1", "--force")
    assert unknown.status == 1
    assert f"Machine {machine.name} has not reported its hardware" in unknown.err
    await report_disks(api, machine)
    for serial, words in {
        "a1": f"no disk of Machine {machine.name} has serial number a1",
        "A": f"no disk of Machine {machine.name} has serial number A",
        "C3": f"several disks of Machine {machine.name} have serial number C3",
    }.items():
        ran = await cli("machine", "replace", machine.name, "--erase-disk", serial, "--force")
        assert ran.status == 1
        assert f"{words} in the inspection of 2026-01-01T00:00:00Z; the serial numbers are: A1, B2, C3" in ran.err
    assert machine.name not in (await cli("machine", "operation", "list")).out


async def test_a_machine_that_is_not_there_brings_near_names(cli: Cli, machine: Machine) -> None:
    ran = await cli("machine", "power-on", machine.name + "x")
    assert ran.status == 1
    assert f"Machine {machine.name}x does not exist" in ran.err
    assert machine.name in ran.err.splitlines()[1]


# ---- create


async def test_create_writes_what_its_flags_say(cli: Cli, api: HttpApi, machine: Machine) -> None:
    name = f"{machine.name}-c"
    await api.patch(MACHINES, machine.name, {"metadata": {"labels": {"c": "d"}}})
    words = ["--kind", "HostReboot", "-l", "unbounded-cloud.io/site=rack1,a!=b,c in (d,e),!f", "--param", "force=true"]
    limits = [
        "--ttl",
        "0",
        "--max-concurrent",
        "3",
        "--max-failures",
        "2",
        "--deadline",
        "1h",
        "--start-deadline",
        "90",
    ]
    ran = await cli("machine", "operation", "create", name, *words, *limits, "--field-manager", "me")
    assert (ran.status, ran.out) == (0, f"machineoperation.unbounded-cloud.io/{name} created\n"), ran.err
    made = (await api.get(MACHINE_OPERATIONS.raw(), name))["spec"]
    assert made["machineSelector"]["matchLabels"] == {"unbounded-cloud.io/site": "rack1"}
    assert [one["operator"] for one in made["machineSelector"]["matchExpressions"]] == ["NotIn", "In", "DoesNotExist"]
    assert made["parameters"] == {"force": "true"}
    names = ("ttlSecondsAfterFinished", "maxConcurrent", "maxFailures", "deadlineSeconds", "startDeadlineSeconds")
    assert [made[field] for field in names] == [0, 3, 2, 3600, 90]


@pytest.mark.parametrize("dry_run", ["client", "server"])
async def test_a_dry_run_shows_the_object_and_writes_nothing(
    cli: Cli, api: HttpApi, machine: Machine, dry_run: str
) -> None:
    name = f"{machine.name}-dry"
    words = ["machine", "operation", "create", name, "--kind", "HostReplace", "--machine", machine.name]
    ran = await cli(*words, "--dry-run", dry_run, "-o", "yaml")
    assert ran.status == 0, ran.err
    assert yaml.safe_load(ran.out)["metadata"]["name"] == name
    assert "dry run" in (await cli(*words, "--dry-run", dry_run)).out
    with pytest.raises(NotFound):
        await api.get(MACHINE_OPERATIONS, name)


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["Rack_1", "--kind", "HostReboot", "--machine", "m"], 2, "NAME: 'Rack_1' is not a valid name: lower case"),
        (
            ["x", "--kind", "host-reboot", "--machine", "m"],
            2,
            "--kind: unknown kind 'host-reboot': did you mean HostReboot?",
        ),
        (["x", "--kind", "Dance", "--machine", "m"], 2, "the kinds are NodeReboot, AgentUpgrade"),
        (["x", "--kind", "HostReboot", "-l", "a=(b"], 2, "--selector: unable to parse requirement: 'a=(b'"),
        (["x", "--kind", "HostReboot", "-l", "a=b"], 1, "the selector of HostReboot must name one site"),
        (["x", "--kind", "HostReboot", "-l", "unbounded-cloud.io/site=none"], 1, "matches no Machine"),
        (
            ["x", "--kind", "AgentUpgrade", "--machine", "m"],
            2,
            "spec.parameters.downloadURL is required for AgentUpgrade",
        ),
        (["x", "--kind", "NodeReboot", "--machine", "m", "--param", "a=b"], 2, "spec.parameters.a is not a parameter"),
        (
            ["x", "--kind", "NodeReboot", "--machine", "m", "--wait", "--dry-run", "client"],
            2,
            "creates no operation to wait for",
        ),
        (["x", "--kind", "NodeReboot", "--machine", "m", "--wait", "-o", "json"], 2, "-o json prints what was created"),
        (["x", "--kind", "AgentReset", "-l", "unbounded-cloud.io/site"], 2, "confirm by typing"),
    ],
    ids=lambda value: "-".join(value[1:]) if isinstance(value, list) else "",
)
async def test_create_refuses(cli: Cli, machine: Machine, words: list[str], status: int, says: str) -> None:
    ran = await cli("machine", "operation", "create", *words)
    assert (ran.status, says in ran.err) == (status, True), ran
    assert ran.out == ""


async def test_create_for_a_machine_to_come_is_noted(cli: Cli) -> None:
    ran = await cli("machine", "operation", "create", "early", "--kind", "NodeReboot", "--machine", "to-come")
    assert ran.status == 0
    assert "Machine to-come does not exist" in ran.err
    again = await cli("machine", "operation", "create", "early", "--kind", "NodeReboot", "--machine", "to-come")
    assert again.status == 1
    assert "already exists" in again.err
    assert "choose another name" in again.err


# ---- waiting


@pytest.mark.slow
async def test_waiting_shows_each_change_and_the_end(cli: Cli, api: HttpApi, machine: Machine) -> None:
    name = f"{machine.name}-r"
    running = Running(cli, "machine", "host-reboot", machine.name, "--operation-name", name)
    await running.prints(f"machineoperation.unbounded-cloud.io/{name} created\n")
    await running.prints(f"{machine.name}: Pending")
    waiting = {"reason": "SlotHeld", "heldBy": "other-op", "since": "2025-01-01T00:00:00Z"}
    await says(api, name, phase="Pending", waiting=waiting, message="waits for other-op")
    await running.prints("Pending · SlotHeld, held by other-op · waits for other-op")
    target = {"machineRef": machine.name, "phase": "InProgress", "stage": "WaitingOff"}
    await says(api, name, phase="InProgress", waiting=None, targets=[target], message="asked to shut down")
    await running.prints("InProgress · WaitingOff · asked to shut down")
    await says(api, name, phase="Complete", reason="Succeeded", message="seen to be on")
    ran = await running.ended()
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.endswith(f"operation {name} is complete: seen to be on\n")


@pytest.mark.slow
async def test_a_failure_is_1_with_its_reason_and_where_more_is_said(cli: Cli, api: HttpApi, machine: Machine) -> None:
    name = f"{machine.name}-f"
    await cli("machine", "host-reboot", machine.name, "--operation-name", name, "--wait=false")
    await says(api, name, phase="Failed", reason="TimedOut", message="the BMC was silent")
    ran = await cli("machine", "operation", "wait", name)
    assert ran.status == 1
    assert f"error: operation {name} failed: TimedOut: the BMC was silent" in ran.err
    assert f"why operation/{name}" in ran.err


@pytest.mark.slow
async def test_the_time_is_up_with_3_and_the_operation_goes_on(cli: Cli, api: HttpApi, machine: Machine) -> None:
    name = f"{machine.name}-t"
    ran = await cli("machine", "power-on", machine.name, "--operation-name", name, "--timeout", "500ms")
    assert ran.status == 3
    assert f"operation {name} has not ended within 0.5 s; it continues" in ran.err
    assert f"`kubectl unbounded machine operation cancel {name}` stops it" in ran.err
    assert not (await api.get(MACHINE_OPERATIONS, name)).spec.cancel


@pytest.mark.slow
async def test_result_of_a_deleted_operation_comes_from_the_machine_history(
    cli: Cli, api: HttpApi, machine: Machine
) -> None:
    name = f"{machine.name}-gone"
    running = Running(cli, "machine", "power-on", machine.name, "--operation-name", name, "--ttl", "0")
    await running.prints(f"{machine.name}: Pending")
    uid = (await api.get(MACHINE_OPERATIONS, name)).metadata.uid
    past = {"name": name, "uid": uid, "kind": "HostPowerOn", "phase": "Complete", "message": "seen to be on"}
    await api.patch(MACHINES, machine.name, {"status": {"recentOperations": [past]}}, subresource="status")
    await api.delete(MACHINE_OPERATIONS, name)
    ran = await running.ended()
    assert ran.status == 0, ran.err
    assert "complete: seen to be on" in ran.out


@pytest.mark.slow
async def test_one_that_is_deleted_before_its_end_is_said_to_be(cli: Cli, api: HttpApi, machine: Machine) -> None:
    name = f"{machine.name}-deleted"
    running = Running(cli, "machine", "power-on", machine.name, "--operation-name", name)
    await running.prints(f"{machine.name}: Pending")
    await api.delete(MACHINE_OPERATIONS, name)
    ran = await running.ended()
    assert ran.status == 1
    assert f"operation {name} was deleted before it ended; its last phase was Pending" in ran.err


@pytest.mark.slow
async def test_json_is_the_object_as_it_ended_and_nothing_else(cli: Cli, api: HttpApi, machine: Machine) -> None:
    name = f"{machine.name}-json"
    await cli("machine", "power-on", machine.name, "--operation-name", name, "--wait=false")
    await says(api, name, phase="Complete", reason="Succeeded")
    ran = await cli("machine", "operation", "wait", name, "-o", "json")
    assert json.loads(ran.out)["status"]["phase"] == "Complete"


# ---- cancel, abandon


@pytest.mark.slow
async def test_cancel_waits_for_the_end_that_it_asked_for(cli: Cli, api: HttpApi, machine: Machine) -> None:
    name = f"{machine.name}-cancel"
    await cli("machine", "power-on", machine.name, "--operation-name", name, "--wait=false")
    running = Running(cli, "machine", "operation", "cancel", name)
    await running.prints(f"machineoperation.unbounded-cloud.io/{name} cancel requested")
    assert (await api.get(MACHINE_OPERATIONS, name)).spec.cancel
    await says(api, name, phase="Failed", reason="Cancelled", message="cancelled before it started")
    assert (await running.ended()).status == 0
    again = await cli("machine", "operation", "cancel", name)
    assert again.status == 0, "it is cancelled, which was asked for"


@pytest.mark.slow
async def test_one_that_completes_all_the_same_was_not_cancelled(cli: Cli, api: HttpApi, machine: Machine) -> None:
    name = f"{machine.name}-late"
    await cli("machine", "power-on", machine.name, "--operation-name", name, "--wait=false")
    running = Running(cli, "machine", "operation", "cancel", name)
    await running.prints("cancel requested")
    await says(api, name, phase="Complete", reason="Succeeded", message="on")
    ran = await running.ended()
    assert (ran.status, f"operation {name} was not cancelled, it completed" in ran.err) == (1, True)
    after = await cli("machine", "operation", "cancel", name)
    assert (after.status, "has ended already: Complete" in after.err) == (1, True)


@pytest.mark.slow
async def test_abandon_asks_for_the_operations_name_and_waits_for_its_end(
    cli: Cli, api: HttpApi, machine: Machine
) -> None:
    name = f"{machine.name}-lost"
    await cli("machine", "power-on", machine.name, "--operation-name", name, "--wait=false")
    refused = await cli("machine", "operation", "abandon", name)
    assert (refused.status, f"confirm by typing {name!r}" in refused.err) == (2, True)
    execution = {"executor": "metalman/rack1", "incarnation": "i", "machineUID": "u", "binding": "b"}
    await says(api, name, phase="InProgress", execution=execution)
    running = Running(cli, "machine", "operation", "abandon", name, "--force")
    await running.prints("abandon requested")
    assert "it ends once its executor has been silent for 60 s" in running.out.getvalue()
    assert (await api.get(MACHINE_OPERATIONS, name)).spec.abandon
    await says(api, name, phase="Failed", reason="ExecutorLost", message="abandoned")
    assert (await running.ended()).status == 0


# ---- counters


@pytest.mark.slow
@pytest.mark.parametrize(("word", "field"), [("reboot", "rebootCounter"), ("repave", "repaveCounter")])
async def test_a_counter_is_raised_by_one_and_waited_for(
    cli: Cli, api: HttpApi, machine: Machine, word: str, field: str
) -> None:
    await api.patch(MACHINES, machine.name, {"status": {"operations": {field: 4}}}, subresource="status")
    running = Running(cli, "machine", word, machine.name, *(["--force"] if word == "repave" else []))
    await running.prints(f"machine.unbounded-cloud.io/{machine.name} requested {word} 5")
    asked = (await api.get(MACHINES.raw(), machine.name))["spec"]["operations"]
    other = "repaveCounter" if word == "reboot" else "rebootCounter"
    assert (asked[field], asked.get(other, 0)) == (5, 0), "a repave does not ask for a second reboot"
    spec = {"machineRef": machine.name, "operationKind": "HostReboot"}
    await api.create(MACHINE_OPERATIONS, {"metadata": {"name": f"{machine.name}-{word}-5"}, "spec": spec})
    await running.prints(f"{machine.name}: Pending")
    await api.patch(MACHINES, machine.name, {"status": {"operations": {field: 5}}}, subresource="status")
    ran = await running.ended()
    assert (ran.status, ran.err) == (0, "")


@pytest.mark.slow
async def test_a_counter_whose_operation_fails_is_1(cli: Cli, api: HttpApi, machine: Machine) -> None:
    running = Running(cli, "machine", "reboot", machine.name)
    await running.prints("requested reboot 1")
    name = f"{machine.name}-reboot-1"
    spec = {"machineRef": machine.name, "operationKind": "HostReboot"}
    await api.create(MACHINE_OPERATIONS, {"metadata": {"name": name}, "spec": spec})
    await says(api, name, phase="Failed", reason="NotStarted", message="no metalman is there")
    ran = await running.ended()
    assert (ran.status, "NotStarted: no metalman is there" in ran.err) == (1, True)


async def test_a_machine_without_a_bmc_has_no_counters(cli: Cli, api: HttpApi) -> None:
    bare = await make_machine(api, "rack1", bmc=False)
    ran = await cli("machine", "reboot", bare.name)
    assert ran.status == 1
    assert "has no spec.pxe.redfish" in ran.err
    assert f"machine host-reboot {bare.name}" in ran.err


# ---- maintenance


async def test_maintenance_is_requested_and_ended(cli: Cli, api: HttpApi, machine: Machine) -> None:
    ran = await cli("machine", "maintenance", "on", machine.name, "--reason", "new memory")
    assert (ran.status, ran.out) == (0, f"machine.unbounded-cloud.io/{machine.name} maintenance requested\n")
    spec = (await api.get(MACHINES, machine.name)).spec.maintenance
    assert spec is not None
    assert (spec.enabled, spec.reason) == (True, "new memory")
    assert "in maintenance already" in (await cli("machine", "maintenance", "on", machine.name)).err
    assert (await cli("machine", "maintenance", "off", machine.name)).out.endswith(" maintenance ended\n")
    assert (await api.get(MACHINES, machine.name)).spec.maintenance is None


async def test_drain_and_return_wait_for_the_node(cli: Cli, api: HttpApi, machine: Machine) -> None:
    late = await cli("machine", "drain", machine.name, "--timeout", "1s")
    assert (late.status != 0, "is not drained" in late.err) == (True, True)
    holder = {"kind": "Maintenance", "name": machine.name, "uid": machine.metadata.uid}
    record = {"holder": holder, "stage": "Drained", "message": "it is drained", "since": "2030-01-01T00:00:00Z"}
    await api.patch(MACHINES, machine.name, {"status": {"disruption": record}}, subresource="status")
    ran = await cli("machine", "drain", machine.name)
    assert (ran.status, "Drained: it is drained" in ran.err) == (0, True)
    late = await cli("machine", "return", machine.name, "--timeout", "1s")
    assert (late.status != 0, "is not usable again" in late.err) == (True, True)
    await api.patch(MACHINES, machine.name, {"status": {"disruption": None}}, subresource="status")
    assert (await cli("machine", "return", machine.name)).status == 0


# ---- pause


@pytest.mark.slow
async def test_a_machine_is_paused_with_a_reason_and_resumed(cli: Cli, api: HttpApi, machine: Machine) -> None:
    ran = await cli("machine", "pause", machine.name, "--reason", "new disk")
    assert (ran.status, ran.out) == (0, f"machine.unbounded-cloud.io/{machine.name} paused\n")
    assert (await api.get(MACHINES, machine.name)).metadata.annotations[ANNOTATION_PAUSED] == "new disk"
    assert "paused already" in (await cli("machine", "pause", machine.name, "--reason", "new disk")).err
    again = await cli("machine", "pause", machine.name, "--reason", "new disk", "-o", "json")
    assert json.loads(again.out)["metadata"]["name"] == machine.name
    assert (await cli("machine", "resume", machine.name)).out.endswith("resumed\n")
    assert ANNOTATION_PAUSED not in (await api.get(MACHINES, machine.name)).metadata.annotations
    refused = await cli("machine", "pause", machine.name, "--reason", "False")
    assert (refused.status, "would not pause" in refused.err) == (2, True)


@pytest.mark.slow
async def test_all_are_paused_and_resumed(cli: Cli, api: HttpApi) -> None:
    assert "resumed already" in (await cli("machine", "resume", "--all")).err
    for _ in range(2):
        assert (await cli("machine", "pause", "--all")).out.endswith(" paused\n")
        paused = await api.get(CONFIG_MAPS, CONFIGMAP_OPERATIONS, namespace=NAMESPACE)
        assert paused.metadata.annotations[ANNOTATION_PAUSED] == "true"
        assert (await cli("machine", "resume", "--all")).status == 0
        resumed = await api.get(CONFIG_MAPS, CONFIGMAP_OPERATIONS, namespace=NAMESPACE)
        assert ANNOTATION_PAUSED not in resumed.metadata.annotations


# ---- stages, and the hash of a plan


async def test_strategy_of_a_file_is_created_as_it_is(cli: Cli, api: HttpApi, tmp_path: Path) -> None:
    await make_machine(api, "staged")
    strategy = {"stages": [{"name": "all", "size": "100%", "soakSeconds": 60}], "onFailure": "Halt"}
    file = tmp_path / "stages.yaml"
    file.write_text(yaml.safe_dump(strategy))
    words = (*_SELECTED, "unbounded-cloud.io/site=staged", "--strategy", str(file), "--dry-run", "server", "-o", "json")
    ran = await cli(*words)
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["spec"]["strategy"] == strategy


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stages: 7", "is not a strategy: Expected `array`, got `int` - at `$.stages`"),
        ("order: unit", "unknown field order: a strategy has stages, orderBy, onFailure"),
        ("stages: [", "is not a strategy: "),
        (None, "cannot read "),
    ],
)
async def test_bad_file_of_a_strategy_is_refused(cli: Cli, tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "stages.yaml"
    if text is not None:
        file.write_text(text)
    ran = await cli(*_SELECTED, "a=b", "--strategy", str(file))
    assert (ran.status, "error: --strategy: " in ran.err, words in ran.err) == (2, True, True), ran.err


_SELECTED = ("machine", "operation", "create", "staged", "--kind", "HostReboot", "-l")


async def test_command_is_refused_when_its_plan_has_changed(cli: Cli, api: HttpApi) -> None:
    await make_machine(api, "planned")
    words = (*_SELECTED, "unbounded-cloud.io/site=planned", "--dry-run", "server")
    digest = json.loads((await cli("plan", *words, "-o", "json")).out)["hash"]
    assert f"plan hash: {digest}\n" in (await cli("plan", *words)).out
    assert (await cli(*words, "--plan-hash", digest)).status == 0
    other = json.loads((await cli("plan", *words, "--max-concurrent", "1", "-o", "json")).out)["hash"]
    assert other != digest
    await make_machine(api, "planned")
    ran, now = await cli(*words, "--plan-hash", digest), await cli("plan", *words, "-o", "json")
    assert (ran.status, ran.out) == (1, "")
    assert f"the plan has changed: its hash is {json.loads(now.out)['hash']}, not {digest}" in ran.err


async def test_hash_of_a_verb_does_not_contain_the_time(cli: Cli, api: HttpApi, machine: Machine) -> None:
    words = ("machine", "power-off", machine.name, "--wait=false")
    digest = json.loads((await cli("plan", *words, "-o", "json")).out)["hash"]
    assert (await cli(*words, "--plan-hash", "0" * 16)).status == 1
    await asyncio.sleep(1.1)  # a name has the second in it
    assert (await cli(*words, "--plan-hash", digest)).status == 0
