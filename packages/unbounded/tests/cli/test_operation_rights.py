"""The requester of an operation: the annotation that a policy compares with the user of the request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.support import Answer, Client
from tests.cli.deployed import deployed
from tests.cli.test_agent_rights import acting
from tests.support.agent_rights import MERGE, OPERATIONS, obj

pytestmark = pytest.mark.slow

BY = "unbounded-cloud.io/requested-by"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHqczVtRFNAxbrJtsSlx9izzEO4fOvY32RAAoFjZmvZ+ me@here"
COPY = "unbounded-cloud.io/migrated-from"
GROUP, RBAC = "unbounded-cloud.io", "/apis/rbac.authorization.k8s.io/v1"
WRONG = "the annotation unbounded-cloud.io/requested-by must be the name of the user who creates the operation, alice"


def operation(name: str, by: str | None = None, *, erases: bool = True, **spec: Any) -> dict[str, Any]:
    target = spec or {"machineRef": "m1"}
    parameters = {"eraseDisks": "S1"} if erases else {}
    made = obj("MachineOperation", name, operationKind="HostReplace", parameters=parameters, **target)
    made["metadata"]["annotations"] = {} if by is None else {BY: by}
    return made


def erasure(name: str, disks: str | None, by: str | None = "alice", **spec: Any) -> dict[str, Any]:
    made = operation(name, by, **spec)
    made["spec"] |= {"operationKind": "HostErase", "parameters": {} if disks is None else {"disks": disks}}
    return made


async def refusal(client: Client, body: dict[str, Any]) -> str:
    """Return the message of a refused creation; '' for an accepted one."""
    return said(await client.ask("POST", OPERATIONS, body))


async def change(client: Client, name: str, annotation: str, value: str | None) -> str:
    """Return the message of a refused change of an annotation; '' for an accepted one."""
    body = {"metadata": {"annotations": {annotation: value}}}
    return said(await client.ask("PATCH", f"{OPERATIONS}/{name}", body, headers=MERGE))


def said(answer: Answer) -> str:
    if answer.status < 300:
        return ""
    assert answer.status in (403, 422), answer.text
    return str(answer.json()["message"]).partition("denied request: ")[2]


async def test_only_the_requester_lets_a_disk_be_erased(tmp_path: Path) -> None:
    async with deployed(tmp_path) as (server, _), acting(server, "alice", "system:masters") as alice:
        erasing = f"{WRONG}, and parameters.eraseDisks needs it"
        assert await refusal(alice, operation("none")) == erasing
        assert await refusal(alice, operation("empty", "")) == erasing
        assert await refusal(alice, operation("other", "bob")) == erasing
        assert await refusal(alice, operation("other", "bob", erases=False)) == WRONG
        assert await refusal(alice, operation("plain", erases=False)) == ""
        assert await refusal(alice, operation("named", "alice", erases=False)) == ""
        assert await refusal(alice, operation("erasing", "alice")) == ""
        selector = {"matchLabels": {"unbounded-cloud.io/site": "a"}}
        many = await refusal(alice, operation("many", "alice", machineSelector=selector))
        assert many == "parameters.eraseDisks needs machineRef, as it names the disks of one Machine"


async def test_a_host_erase_names_its_disks_its_machine_and_its_requester(tmp_path: Path) -> None:
    wrong = (
        "parameters.disks of a HostErase must be All, or at most 128 comma-separated serial numbers of disks, exactly "
        "as in status.hardware, each once"
    )
    async with deployed(tmp_path) as (server, _), acting(server, "alice", "system:masters") as alice:
        assert await refusal(alice, erasure("by-bob", "All", "bob")) == f"{WRONG}, and operationKind HostErase needs it"
        for number, disks in enumerate((None, "", "S1,", "S1, S2", "S1,S1", "All,S1")):
            assert await refusal(alice, erasure(f"wrong{number}", disks)) == wrong, disks
        selector = {"matchLabels": {"unbounded-cloud.io/site": "a"}}
        many = await refusal(alice, erasure("many", "All", machineSelector=selector))
        assert many == "operationKind HostErase needs machineRef, as it names the disks of one Machine"
        assert await refusal(alice, erasure("all", "All")) == ""
        assert await refusal(alice, erasure("named", "S1,S 2")) == ""


async def test_the_requester_of_an_operation_does_not_change(tmp_path: Path) -> None:
    async with deployed(tmp_path) as (server, admin), acting(server, "alice", "system:masters") as alice:
        await alice.create(OPERATIONS, operation("erasing", "alice"))
        await alice.create(OPERATIONS, operation("plain", erases=False))
        stays = "the annotation unbounded-cloud.io/requested-by of an operation does not change"
        for client in (alice, admin):
            assert await change(client, "erasing", BY, "bob") == stays
            assert await change(client, "erasing", BY, None) == stays
            assert await change(client, "plain", BY, "alice") == stays
            assert await change(client, "erasing", "example.com/note", "a") == ""


async def test_a_copy_of_a_migration_keeps_the_requester_and_stays_a_copy(tmp_path: Path) -> None:
    copied = operation("copied", "bob")
    copied["metadata"]["annotations"][COPY] = "m1/uid"
    async with deployed(tmp_path) as (server, _), acting(server, "alice", "system:masters") as alice:
        assert await refusal(alice, copied) == ""
        kept = (
            "the annotation unbounded-cloud.io/migrated-from of an operation with parameters.eraseDisks does not change"
        )
        assert await change(alice, "copied", COPY, None) == kept


async def grant(admin: Client, user: str, *verbs: str) -> None:
    """Let a user create operations, with these verbs on Machine m1."""
    rules = [
        {"apiGroups": [GROUP], "resources": ["machineoperations"], "verbs": ["create"]},
        {"apiGroups": [GROUP], "resources": ["machines"], "resourceNames": ["m1"], "verbs": list(verbs)},
    ]
    await admin.create(f"{RBAC}/clusterroles", {"metadata": {"name": user}, "rules": rules if verbs else rules[:1]})
    subjects = [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]
    reference = {"kind": "ClusterRole", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
    bound = {"metadata": {"name": user}, "roleRef": reference, "subjects": subjects}
    await admin.create(f"{RBAC}/clusterrolebindings", bound)


async def test_who_may_replace_a_machine_may_not_erase_its_disks(tmp_path: Path) -> None:
    async with deployed(tmp_path) as (server, admin), acting(server, "carol") as carol, acting(server, "dora") as dora:
        await grant(admin, "carol", "erase")
        await grant(admin, "dora", "erase-disks")
        lacks = "parameters.eraseDisks needs the verb erase-disks on machines.unbounded-cloud.io, and"
        assert await refusal(carol, operation("plain", erases=False)) == ""
        assert await refusal(carol, operation("c", "carol")) == f"{lacks} carol does not have it for Machine m1"
        assert await refusal(dora, operation("d", "dora")) == ""
        lacks_kind = "operationKind HostErase needs the verb erase on machines.unbounded-cloud.io, and dora"
        assert (await refusal(dora, erasure("d3", "All", "dora"))).startswith(lacks_kind)
        assert await refusal(carol, erasure("c3", "All", "carol")) == ""
        assert (
            await refusal(dora, operation("d2", "dora", machineRef="m2"))
            == f"{lacks} dora does not have it for Machine m2"
        )


def rescue(name: str, keys: str = KEY, **target: Any) -> dict[str, Any]:
    return obj(
        "MachineOperation",
        name,
        operationKind="HostRescue",
        parameters={"authorizedKeys": keys},
        **(target or {"machineRef": "m1"}),
    )


async def test_a_kind_needs_its_own_verb_on_the_machine(tmp_path: Path) -> None:
    async with deployed(tmp_path) as (server, admin), acting(server, "carol") as carol, acting(server, "dora") as dora:
        await grant(admin, "carol", "erase")
        await grant(admin, "dora", "rescue")
        lacks = "HostRescue needs the verb rescue on machines.unbounded-cloud.io, and"
        reboot = obj("MachineOperation", "reboot", operationKind="HostReboot", machineRef="m1")
        assert await refusal(carol, reboot) == ""
        assert await refusal(carol, rescue("c")) == f"{lacks} carol does not have it for Machine m1"
        assert await refusal(dora, rescue("d")) == ""
        assert await refusal(dora, rescue("d2", machineRef="m2")) == f"{lacks} dora does not have it for Machine m2"
        many = rescue("many", machineSelector={"matchLabels": {"unbounded-cloud.io/site": "a"}})
        assert await refusal(dora, many) == "HostRescue needs machineRef, as it needs the verb rescue on that Machine"


BMC_VERBS = {"BMCReset": "reset-bmc", "FirmwareUpdate": "update-firmware", "BMCRotatePassword": "rotate-bmc-password"}


async def test_who_may_reboot_a_machine_may_not_touch_its_bmc(tmp_path: Path) -> None:
    async with deployed(tmp_path) as (server, admin), acting(server, "carol") as carol, acting(server, "dora") as dora:
        await grant(admin, "carol", "erase", "rescue")
        await grant(admin, "dora", *BMC_VERBS.values())
        for kind, verb in BMC_VERBS.items():
            lacks = f"{kind} needs the verb {verb} on machines.unbounded-cloud.io, and"
            body = obj("MachineOperation", f"a-{kind.lower()}", operationKind=kind, machineRef="m1")
            assert await refusal(carol, body) == f"{lacks} carol does not have it for Machine m1"
            assert await refusal(dora, body) == ""
            other = obj("MachineOperation", f"b-{kind.lower()}", operationKind=kind, machineRef="m2")
            assert await refusal(dora, other) == f"{lacks} dora does not have it for Machine m2"


@pytest.mark.parametrize("keys", ["", "ssh-ed25519 AAAA\nno key", f'command="sh" {KEY}', "\n".join([KEY] * 17), None])
async def test_a_rescue_without_valid_keys_is_refused_at_its_creation(tmp_path: Path, keys: str | None) -> None:
    body = rescue("r", keys or "")
    if keys is None:
        body["spec"]["parameters"] = {}
    async with deployed(tmp_path) as (_, admin):
        answer = await admin.ask("POST", OPERATIONS, body)
        assert answer.status == 422, answer.text
        (cause,) = answer.json()["details"]["causes"]
        assert cause["field"] == "spec.parameters"
        assert "HostRescue needs parameters.authorizedKeys" in cause["message"]
        assert (await admin.ask("POST", OPERATIONS, rescue("r", "\n".join([KEY] * 16)))).status == 201


async def test_acceptance_of_a_pcr_that_is_not_quoted_is_refused_at_its_creation(tmp_path: Path) -> None:
    async with deployed(tmp_path) as (server, admin), acting(server, "alice") as alice:
        await grant(admin, "alice", "accept-pcrs")
        for value in ("99", "8", "7,7", ""):
            body = acceptance("a", "alice")
            body["spec"]["parameters"] = {"acceptPCRs": value}
            answer = await alice.ask("POST", OPERATIONS, body)
            assert answer.status == 422, answer.text
            (cause,) = answer.json()["details"]["causes"]
            assert cause["field"] == "spec.parameters"
            assert "parameters.acceptPCRs must be comma-separated numbers of PCRs, of 0, 1" in cause["message"]


def overriding(name: str, **spec: Any) -> dict[str, Any]:
    return obj("MachineOperation", name, operationKind="HostReboot", override="it burns", **spec)


async def test_who_may_reboot_a_machine_may_not_override_its_budgets(tmp_path: Path) -> None:
    async with deployed(tmp_path) as (server, admin), acting(server, "carol") as carol, acting(server, "dora") as dora:
        await grant(admin, "carol", "erase", "rescue")
        await grant(admin, "dora", "override-budget")
        lacks = "spec.override needs the verb override-budget on machines.unbounded-cloud.io, and"
        assert (
            await refusal(carol, overriding("c", machineRef="m1")) == f"{lacks} carol does not have it for Machine m1"
        )
        assert await refusal(dora, overriding("d", machineRef="m1")) == ""
        assert await refusal(dora, overriding("e", machineRef="m2")) == f"{lacks} dora does not have it for Machine m2"
        many = overriding("many", machineSelector={"matchLabels": {"unbounded-cloud.io/site": "a"}})
        text = "spec.override needs machineRef, as it needs the verb override-budget on that Machine"
        assert await refusal(dora, many) == text


def acceptance(name: str, by: str | None, **spec: Any) -> dict[str, Any]:
    made = operation(name, by, erases=False, **spec)
    made["spec"]["parameters"] = {"acceptPCRs": "0"}
    return made


async def test_acceptance_of_a_boot_needs_its_user_and_its_own_verb(tmp_path: Path) -> None:
    async with deployed(tmp_path) as (server, admin), acting(server, "alice") as alice, acting(server, "bob") as bob:
        await grant(admin, "alice", "accept-pcrs")
        await grant(admin, "bob", "erase-disks")
        assert await refusal(alice, acceptance("none", None)) == f"{WRONG}, and parameters.acceptPCRs needs it"
        lacks = "parameters.acceptPCRs needs the verb accept-pcrs on machines.unbounded-cloud.io, and"
        assert await refusal(bob, acceptance("b", "bob")) == f"{lacks} bob does not have it for Machine m1"
        assert await refusal(alice, acceptance("a", "alice")) == ""
        selector = {"matchLabels": {"unbounded-cloud.io/site": "a"}}
        many = await refusal(alice, acceptance("many", "alice", machineSelector=selector))
        assert many == "parameters.acceptPCRs needs machineRef, as it names the PCRs of one Machine"
        both = acceptance("both", "bob")
        both["spec"]["parameters"] |= {"eraseDisks": "S1"}
        assert await refusal(bob, both) == f"{lacks} bob does not have it for Machine m1"
