"""HostReplace of a virtual machine of Azure, from end to end."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import msgspec
import pytest

from tests.machineops.azure.judging import PLAIN, RICH, document, nothing_is_left, of_replacements
from tests.machineops.azure.world import LASTING_S, USER_DATA, AzureWorld, azure_world, running_azure, swift
from tests.operations.staging import in_stage, result
from tests.operations.world import Running
from tests.support.waiting import eventually
from unbounded.api.core import SECRETS
from unbounded.api.fields import Cause
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import Forbidden
from unbounded.machineops import reasons, replacement
from unbounded.machineops.provider import PUT_BACK
from unbounded.machineops.reasons import credential_cause
from unbounded.machineops.replacement_state import ReplacementSecret
from unbounded.operations import reasons as common
from unbounded_lab.cloud.azure import VmShape
from unbounded_lab.cloud.azure.catalog import EXACT_VERSION
from unbounded_lab.cloud.azure.changes import update
from unbounded_lab.cloud.azure.misbehaviours import MISBEHAVIOURS
from unbounded_lab.cloud.azure.model import AzureTimes, Provisioning, VmPower

COMPLETE = ("Complete", "Succeeded")
ALL_THERE_IS: Final = ("vm-1-nic-0", "vm-1-data-0", "vm-1_OsDisk_1")
WAS: Final = "Delete of its OS disk, Delete of vm-1-data-0, Delete of vm-1-nic-0"


@pytest.mark.slow
@pytest.mark.parametrize("shape", [RICH, VmShape(availability_set="set-1", boot_diagnostics=True, trusted_launch=True)])
@swift
async def test_the_new_one_has_all_that_the_old_one_had(shape: VmShape) -> None:
    async with running_azure(shape=shape) as world:
        before, old_id = document(world), world.cloud.machines()["vm-1"].vm_id
        ended = await world.carried_out("HostReplace")
        assert result(ended) == COMPLETE, ended.status.message
        assert document(world) == before
        made = f"VM vm-1 is recreated, with OS disk {world.cloud.machines()['vm-1'].os_disk['name']}: "
        old = "; the old one is gone, and the content of its OS disk vm-1_OsDisk_1; "
        kept = "losses: the principal" if shape is RICH else "the new VM has everything in the old one's model"
        assert (ended.status.message or "").startswith(f"{made}Provisioning succeeded, VM running{old}{kept}")
        lost = "; losses: the principal" if shape is RICH else "; the new VM keeps everything in its model"
        assert lost in ended.status.evidence[0].where  # from before the old one was deleted
        new = world.cloud.machines()["vm-1"]
        assert new.vm_id != old_id
        assert new.power is VmPower.RUNNING
        assert base64.b64decode(new.custom_data or "").decode() == USER_DATA
        assert new.os_disk["name"] == f"vm-1-osdisk-{ended.metadata.uid.replace('-', '')[:12]}"
        assert [event.what for event in world.cloud.history.of("Disk", "vm-1_OsDisk_1")][-1] == "deleted"
        await nothing_is_left(world)
        calls = [call for call in world.asked() if not call.startswith("VirtualMachineExtensions")]
        updates = ["Update"] if shape is RICH else []  # the other one's parts outlive it as it is
        assert calls == [*updates, "Delete", "CreateOrUpdate", *updates]


@swift
async def test_azure_change_is_polled_only_after_its_retry_after() -> None:
    async with running_azure(shape=RICH) as world:
        world.cloud.estate.times = AzureTimes(create_s=20.0, delete_s=20.0, poll_s=12.0)
        assert result(await world.carried_out("HostReplace")) == COMPLETE
        journal = [each for each in world.cloud.journal if not each.call.startswith("Login.")]
        changes = [number for number, each in enumerate(journal) if each.method != "GET" and each.status < 300]
        assert journal[changes[5]].at - journal[changes[4]].at < 30.0  # the second extension comes after the first
        assert len(changes) == 6  # detach, delete, create, restore, two extensions
        for number in changes:
            asked, looked = journal[number], next(each for each in journal[number:] if each.method == "GET")
            assert looked.at - asked.at >= 12.0, (asked, looked)
        is_under_way = [each.call == "VirtualMachines.Delete" for each in journal].index(True)
        first, second = journal[is_under_way + 1 : is_under_way + 3]
        assert second.at - first.at >= 12.0


@swift
async def test_cancel_does_not_wait_for_retry_after() -> None:
    async with running_azure(shape=PLAIN) as world:
        before = document(world)
        world.cloud.estate.times = AzureTimes(poll_s=200.0)
        await world.operation("op", "HostReplace", "m1")
        await eventually(lambda: "Update" in world.asked())
        await asyncio.sleep(5)
        began = asyncio.get_running_loop().time()
        await world.cancel("op")
        assert result(await world.ended("op")) == ("Failed", common.CANCELLED)
        assert asyncio.get_running_loop().time() - began == pytest.approx(200.0, abs=5.0)  # of putting it back
        assert document(world) == before


@swift
async def test_what_would_be_lost_is_said_before_anything_is_touched() -> None:
    async with running_azure(shape=RICH) as world:
        ended = await world.carried_out("HostReplace", {"keep": "strict"})
        assert result(ended) == ("Failed", reasons.WOULD_BE_LOST)
        message = ended.status.message or ""
        assert "system-assigned identity" in message
        assert "protected settings of extension Agent" in message
        assert world.asked() == []


@swift
async def test_loss_of_os_disk_settings_is_rejected_with_strict_keep() -> None:
    async with azure_world(shape=PLAIN) as world:
        disk = world.cloud.machines()["vm-1"].os_disk["name"]
        world.cloud.set_disk(disk, tier="P50", publicNetworkAccess="Disabled")
        await world.begin()
        world.controller().start()
        ended = await world.carried_out("HostReplace", {"keep": "strict"})
        assert result(ended) == ("Failed", reasons.WOULD_BE_LOST)
        assert "osDisk.publicNetworkAccess (publicNetworkAccess Disabled of its OS disk); osDisk.tier (tier P50" in (
            ended.status.message or ""
        )
        assert world.asked() == []


@pytest.mark.slow
@swift
async def test_strict_keeping_replaces_what_can_be_kept_whole() -> None:
    async with running_azure(shape=PLAIN) as world:
        assert result(await world.carried_out("HostReplace", {"keep": "strict"})) == COMPLETE
        await nothing_is_left(world)


@asynccontextmanager
async def _failed(
    shape: VmShape, *, deadline_s: int = 7200, **faults: Any
) -> AsyncIterator[tuple[AzureWorld, MachineOperation]]:
    """A world in which a first replacement, `first`, has failed, with what goes wrong set right again."""
    async with running_azure(shape=shape) as world:
        world.cloud.set_faults(**faults)
        ended = await world.carried_out("HostReplace", name="first", deadlineSeconds=deadline_s)
        assert ended.status.phase == "Failed"
        world.cloud.set_profile("ideal")
        world.cloud.set_faults(token_lifetime_s=LASTING_S)
        yield world, ended


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["operation", "Machine"])
@swift
async def test_next_replacement_creates_the_vm_of_a_failed_one(gone: str) -> None:
    async with _failed(RICH, cores_quota=0) as (world, failed):
        assert failed.status.reason == reasons.QUOTA_EXCEEDED
        message = failed.status.message or ""
        (kept,) = await of_replacements(world)
        assert [owner.kind for owner in kept.metadata.owner_references] == ["MachineOperation", "Machine"]
        again = "a new HostReplace of the Machine with its spec.providerID continues from its model in Secret"
        assert f"VM vm-1 does not exist: {again} {NAMESPACE}/{kept.metadata.name}" in message
        for stray in (*world.cloud.stray_disks(), *world.cloud.stray_nics()):
            assert stray in message
        if gone == "operation":
            await world.api.delete(MACHINE_OPERATIONS, "first")  # as its time to live does
        else:
            machine = await world.api.get(MACHINES, "m1")
            await world.take_away("m1")
            labels, spec = dict(machine.metadata.labels), msgspec.to_builtins(machine.spec)
            await world.api.create(MACHINES, {"metadata": {"name": "m1", "labels": labels}, "spec": spec})
        ended = await world.carried_out("HostReplace", {"keep": "strict"})
        assert result(ended) == COMPLETE, ended.status.message
        async with azure_world(shape=RICH) as untouched:
            assert document(world) == document(untouched)
        new = world.cloud.machines()["vm-1"]
        assert new.os_disk["name"] == f"vm-1-osdisk-{ended.metadata.uid.replace('-', '')[:12]}"
        assert base64.b64decode(new.custom_data or "").decode() == USER_DATA
        await nothing_is_left(world)


@pytest.mark.slow
@swift
async def test_machine_deleted_without_a_vm_can_be_recreated_and_replaced() -> None:
    async with running_azure(shape=PLAIN, cores_quota=0) as world:
        await world.operation("op", "HostReplace", "m1")
        await in_stage(world, "op", "Creating")
        await asyncio.sleep(30)
        machine = await world.api.get(MACHINES, "m1")
        await world.take_away("m1")
        ended = await world.ended("op")
        assert result(ended) == ("Failed", common.MACHINE_NOT_FOUND)
        for words in (*ALL_THERE_IS, "a new HostReplace of the Machine with its spec.providerID", "if one was made"):
            assert words in (ended.status.message or "")
        world.cloud.set_faults(cores_quota=None)
        labels, spec = dict(machine.metadata.labels), msgspec.to_builtins(machine.spec)
        await world.api.create(MACHINES, {"metadata": {"name": "again", "labels": labels}, "spec": spec})
        await world.operation("op-again-1", "HostReplace", "again")
        assert result(await world.ended("op-again-1", within_s=3000)) == COMPLETE
        await nothing_is_left(world)


@swift
async def test_allocation_failure_of_the_new_vm_is_reported_at_once() -> None:
    async with running_azure(shape=PLAIN, sizes_out_of_capacity=("Standard_D2s_v5",)) as world:
        await world.operation("op", "HostReplace", "m1")
        await eventually(lambda: "CreateOrUpdate" in world.asked())
        failed = "the last attempt failed: Azure has left it as "
        waits = await world.until("op", lambda one: failed in (one.status.message or ""), within_s=10)
        assert (
            "AllocationFailed" in (waits.status.message or "") or "allocation" in (waits.status.message or "").lower()
        )
        assert waits.status.waiting is not None
        assert waits.status.waiting.reason == reasons.NO_CAPACITY
        world.cloud.set_faults(sizes_out_of_capacity=())
        assert result(await world.ended("op", within_s=3000)) == COMPLETE
        await nothing_is_left(world)


HALF_WAY: Final[Mapping[str, Mapping[str, Any]]] = {
    "a VM that never got a host": {"sizes_out_of_capacity": ("Standard_D2s_v5",)},
    "a VM that is created for ever": {"hanging": ("VirtualMachines.CreateOrUpdate",)},
    "no extensions": {"only": ("VirtualMachineExtensions.*",), "of": "changes", "errors": ("Conflict",)},
    "what is deleted with it": {"hanging": ("VirtualMachines.Update",)},
    "the old OS disk": {"delete_leaves": ("disks",), "locked": ("vm-1_OsDisk_1",)},
}


@pytest.mark.slow
@pytest.mark.parametrize("left", HALF_WAY)
@swift
async def test_next_replacement_completes_what_a_failed_one_left(left: str) -> None:
    async with _failed(RICH, errors_go_on=True, **HALF_WAY[left]) as (world, failed):
        for stray in (*world.cloud.stray_disks(), *world.cloud.stray_nics()):
            assert stray in (failed.status.message or "")
        ended = await world.carried_out("HostReplace")
        assert result(ended) == COMPLETE, ended.status.message
        async with azure_world(shape=RICH) as untouched:
            assert document(world) == document(untouched)
        await nothing_is_left(world)


WITHOUT: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "before it is deleted": ("Detaching", {"hanging": ("VirtualMachines.Update",)}),
    "while it is deleted": ("DeletingOld", {"hanging": ("VirtualMachines.Delete",)}),
    "before it is made": ("Creating", {"cores_quota": 0}),
}


@pytest.mark.slow
@pytest.mark.parametrize("when", WITHOUT)
@swift
async def test_deleted_replacement_state_is_reported_with_all_remaining_resources(when: str) -> None:
    stage, faults = WITHOUT[when]
    async with running_azure(shape=PLAIN, **faults) as world:
        await world.operation("op", "HostReplace", "m1")
        await in_stage(world, "op", stage)
        await asyncio.sleep(10)
        (kept,) = await of_replacements(world)
        await world.api.delete(SECRETS, kept.metadata.name, namespace=NAMESPACE)
        world.cloud.set_faults(hanging=())
        gone = f"Secret {NAMESPACE}/{kept.metadata.name} does not exist any more"
        waits = await world.until("op", lambda one: gone in (one.status.message or ""), within_s=60)
        assert waits.status.waiting is not None
        assert waits.status.waiting.reason == reasons.STATE_IS_GONE
        for name in ALL_THERE_IS:
            assert name in (waits.status.message or "")
        await asyncio.sleep(600)
        still = (await world.get("op")).status
        assert [name for name in ALL_THERE_IS if name not in (still.message or "")] == []
        body = {name: base64.b64encode(kept.value(name) or b"").decode() for name in kept.data}
        meta = {"name": kept.metadata.name, "ownerReferences": msgspec.to_builtins(kept.metadata.owner_references)}
        secret = {"metadata": meta, "type": kept.type, "data": body}
        world.cloud.set_faults(cores_quota=None)
        await world.api.create(SECRETS, secret, namespace=NAMESPACE)  # as who has read that does, with a copy
        assert result(await world.ended("op", within_s=3000)) == COMPLETE
        await nothing_is_left(world)


@swift
async def test_a_vm_that_nobody_kept_is_not_made() -> None:
    async with running_azure(shape=PLAIN) as world:
        await world.api.patch(MACHINES, "m1", {"spec": {"providerID": f"azure://{world.cloud.id_of('vm-9')}"}})
        ended = await world.carried_out("HostReplace")
        assert result(ended) == ("Failed", reasons.INSTANCE_NOT_FOUND)
        assert "has no model of it" in (ended.status.message or "")


@asynccontextmanager
async def _cancelled_while_detaching() -> AsyncIterator[tuple[AzureWorld, Running, dict[str, Any]]]:
    """A world in which Azure is still detaching for an operation that is cancelled, and the VM as it was before."""
    async with azure_world(shape=PLAIN) as world:
        await world.begin()
        controller, before = world.controller().start(), document(world)
        world.cloud.set_faults(hanging=("VirtualMachines.Update",))
        await world.operation("op", "HostReplace", "m1")
        await in_stage(world, "op", "Detaching")
        await asyncio.sleep(10)
        await world.cancel("op")
        ending = "waiting for the instance to be restored, before it fails as Cancelled"
        await world.until("op", lambda one: (one.status.message or "").startswith(ending), within_s=60)
        yield world, controller, before


@pytest.mark.slow
@pytest.mark.parametrize("crash", [False, True])
@swift
async def test_cancel_before_the_deletion_restores_the_vm(*, crash: bool) -> None:
    async with _cancelled_while_detaching() as (world, controller, before):
        world.cloud.set_faults(hanging=())
        if crash:
            await world.until("op", lambda one: f"{PUT_BACK} requested" in (one.status.message or ""), within_s=60)
            await controller.stop()
            world.controller().start()
        ended = await world.ended("op", within_s=300)
        assert result(ended) == ("Failed", common.CANCELLED)
        message = ended.status.message or ""
        restored = replacement.EVIDENCE_RESTORED_NO_STATE
        by_now = f"in the end, {restored}; before that: cancelled after Detach was requested; VM vm-1: "
        assert message.startswith(by_now)
        assert message.endswith(f"deleteOption is changed, and was {WAS}")
        seen = [evidence.what for evidence in ended.status.evidence[-2:]]
        assert seen == [replacement.EVIDENCE_RESTORED, replacement.EVIDENCE_RESTORED_NO_STATE]
        assert world.asked() == ["Update", "Update"]
        assert document(world) == before
        await nothing_is_left(world)
        assert result(await world.carried_out("HostReplace", name="again")) == COMPLETE
        assert document(world) == before
        await nothing_is_left(world)


@pytest.mark.slow
@swift
async def test_what_cannot_be_put_back_is_told() -> None:
    async with _cancelled_while_detaching() as (world, _, _):
        ended = await world.ended("op", within_s=1000)
        assert result(ended) == ("Failed", common.CANCELLED)
        words = "; after that, timed out waiting for the instance to be restored: VM vm-1: "
        assert words in (ended.status.message or "")
        assert (ended.status.message or "").endswith(f"; deleteOption is changed, and was {WAS}")
        (kept,) = await of_replacements(world)
        assert [owner.kind for owner in kept.metadata.owner_references] == ["MachineOperation", "Machine"]


async def _cancel_while_saving(world: AzureWorld, name: str, patch: pytest.MonkeyPatch) -> None:
    """A HostReplace that is cancelled when its model has been stored and that is not known yet."""
    store = ReplacementSecret.store

    async def slowly(keep: ReplacementSecret, content: bytes) -> None:
        await store(keep, content)
        await asyncio.sleep(5)

    patch.setattr(ReplacementSecret, "store", slowly)
    await world.operation(name, "HostReplace", "m1")
    await in_stage(world, name, "Saving")
    await world.cancel(name)


@pytest.mark.slow
@pytest.mark.parametrize("crash", [False, True])
@swift
async def test_a_cancel_while_the_model_is_kept_leaves_nothing(*, crash: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with azure_world(shape=PLAIN) as world:
        await world.begin()
        controller, before = world.controller().start(), document(world)
        await _cancel_while_saving(world, "op", monkeypatch)
        if crash:
            await in_stage(world, "op", replacement.REMOVING_STATE)
            await controller.stop()
            world.controller().start()
        ended = await world.ended("op", within_s=300)
        assert result(ended) == ("Failed", common.CANCELLED)
        by_now = f"in the end, {replacement.EVIDENCE_NO_STATE}; before that: cancelled after Save was requested"
        assert (ended.status.message or "").startswith(by_now)
        assert (world.asked(), document(world)) == ([], before)
        await nothing_is_left(world)


@pytest.mark.slow
@swift
async def test_cancel_while_saving_keeps_the_state_of_failed_restorations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _cancelled_while_detaching() as (world, _, before):
        first = await world.ended("op", within_s=1000)
        assert (first.status.message or "").endswith(f"; deleteOption is changed, and was {WAS}")
        world.cloud.set_faults(hanging=())
        await _cancel_while_saving(world, "second", monkeypatch)
        second = await world.ended("second", within_s=300)
        stays = f"in the end, {replacement.EVIDENCE_STATE_NEEDED}; Secret {NAMESPACE}/replacement-"
        assert (second.status.message or "").startswith(stays)
        for name in ("op", "second"):
            await world.api.delete(MACHINE_OPERATIONS, name)
        assert len(await of_replacements(world)) == 1
        assert result(await world.carried_out("HostReplace")) == COMPLETE
        assert document(world) == before
        await nothing_is_left(world)


@pytest.mark.slow
@swift
async def test_undeletable_replacement_state_is_reported_after_a_rollback(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _cancelled_while_detaching() as (world, _, before):
        remove = world.api.delete

        async def forbidden(kind: Kind[Any], *given: Any, **named: Any) -> Any:
            if kind is SECRETS:
                raise Forbidden("secrets is forbidden")
            return await remove(kind, *given, **named)

        monkeypatch.setattr(world.api, "delete", forbidden)
        world.cloud.set_faults(hanging=())
        ended = await world.ended("op", within_s=600)
        assert result(ended) == ("Failed", common.CANCELLED)
        message, (kept,) = ended.status.message or "", await of_replacements(world)
        place = f"Secret {NAMESPACE}/{kept.metadata.name}"
        assert message.startswith("cancelled after Detach was requested; ")
        assert (
            f"; after that, Clear was requested 10 times, and the last attempt failed: {place} cannot be removed"
            in message
        )
        assert message.endswith(f"; {replacement.EVIDENCE_RESTORED}; {place} is left")
        assert document(world) == before


@swift
async def test_user_data_that_is_too_long_is_said() -> None:
    async with azure_world(shape=PLAIN) as world:
        await world.begin()
        world.user_data = "#" * 65_536
        world.controller().start()
        ended = await world.carried_out("HostReplace")
        assert result(ended) == ("Failed", reasons.BOOTSTRAP_DATA_FAILED)
        assert "the limit of AzureVM is 65535" in (ended.status.message or "")
        assert world.cloud.alive("vm-1")


OTHERWISE: Final = {
    "delete-gets-stuck": (("Failed", common.TIMED_OUT), "the old VM to be deleted"),
    "create-never-ends": (("Failed", common.TIMED_OUT), "the new VM to exist"),
    "provisioning-times-out": (("Failed", common.TIMED_OUT), "did not finish in the allotted time"),
    "policy-refuses-creations": (("Failed", reasons.PROVIDER_REFUSED), "RequestDisallowedByPolicy"),
    "not-authorized": (
        ("Failed", reasons.AUTH_REFUSED),
        "action 'Microsoft.Compute/virtualMachines/write' over scope '/subs",
    ),
    "subscription-disabled": (("Failed", reasons.PROVIDER_REFUSED), "ReadOnlyDisabledSubscription"),
    "subscription-not-registered": (("Failed", reasons.PROVIDER_REFUSED), "MissingSubscriptionRegistration"),
    "older-apis": (("Failed", reasons.PROVIDER_REFUSED), "NoRegisteredProviderFound"),
    "image-deprecated": (("Failed", reasons.PROVIDER_REFUSED), "no version of image Canonical:ubuntu-24"),
}
"""What does not end with Complete, and words of the message."""
CAUSES: Final = {
    "policy-refuses-creations": Cause(
        code="RequestDisallowedByPolicy",
        about={
            reasons.POLICY: "No new machines",
            reasons.POLICY_ID: "/providers/Microsoft.Management/managementGroups/root/providers/Microsoft.Authorization"
            "/policyAssignments/no-new-machines",
        },
    ),
    "not-authorized": credential_cause(reasons.CREDENTIAL_REFUSED, "azure"),
    "subscription-not-registered": Cause(code="MissingSubscriptionRegistration"),
}


@pytest.mark.slow
@pytest.mark.parametrize("profile", [name for name in MISBEHAVIOURS.names() if name != "ideal"])
@swift
async def test_under_each_misbehaviour_it_succeeds_or_says_why(profile: str) -> None:
    async with running_azure(profile, shape=PLAIN) as world:
        before = document(world)
        ended = await world.carried_out("HostReplace")
        wanted, words = OTHERWISE.get(profile, (COMPLETE, ""))
        assert result(ended) == wanted, ended.status.message
        assert words in (ended.status.message or "")
        assert CAUSES.get(profile) in (None, ended.status.cause)
        if wanted == COMPLETE:
            assert world.cloud.power("vm-1") is VmPower.RUNNING
            await nothing_is_left(world)
        else:
            for stray in (*world.cloud.stray_disks(), *world.cloud.stray_nics()):
                assert stray in (ended.status.message or "")
            if all(each.status >= 400 for each in world.cloud.journal if each.method in ("PATCH", "DELETE")):
                assert (document(world), len(world.cloud.alive("vm-1"))) == (before, 1)


NEW_DISK: Final = {"lun": 7, "name": "fresh", "createOption": "Empty", "diskSizeGB": 10}
MEANWHILE: Final[Mapping[str, tuple[VmShape, Mapping[str, Any]]]] = {
    "a disk that outlives it": (PLAIN, {"disk": NEW_DISK}),
    "a disk that would go with it": (PLAIN, {"disk": {**NEW_DISK, "deleteOption": "Delete"}}),
    "tags": (RICH, {"tags": {"role": "other", "owner": "me"}}),
}


async def _changed_while_detaching(world: AzureWorld, *, disk: Any = None, **change: Any) -> dict[str, Any]:
    """Change the VM after its parts were detached; return Azure's state after that."""
    estate = world.cloud.estate
    await eventually(lambda: "Update" in world.asked() and not world.cloud.machines()["vm-1"].operation)
    machine = world.cloud.machines()["vm-1"]
    before = [{**each} for each in machine.data_disks]
    storage = {"storageProfile": {"dataDisks": [*before, disk]}} if disk else {}
    update(estate, machine, {**change, "properties": storage}, world.cloud.clock.now(), "VirtualMachines.Update")
    await eventually(lambda: not world.cloud.machines()["vm-1"].operation)
    return document(world)


@pytest.mark.slow
@pytest.mark.parametrize("what", MEANWHILE)
@swift
async def test_what_somebody_changes_before_it_is_deleted_is_kept_too(what: str) -> None:
    shape, change = MEANWHILE[what]
    async with running_azure(shape=shape) as world:
        before = _options(document(world))
        await world.operation("op", "HostReplace", "m1")
        changed = await _changed_while_detaching(world, **change)
        ended = await world.ended("op", within_s=9000)
        assert result(ended) == COMPLETE, ended.status.message
        now = document(world)
        after = _options(now)
        assert {name: after[name] for name in before} == before
        assert after.keys() == _options(changed).keys()
        assert after.get("fresh") == change.get("disk", {}).get("deleteOption", after.get("fresh"))
        assert now.get("tags") == changed.get("tags")
        await nothing_is_left(world)


def _options(document: dict[str, Any]) -> dict[str, str]:
    """Return the deletion options of data disks and network interfaces, by their names."""
    properties = document["properties"]
    disks = {disk["name"]: disk["deleteOption"] for disk in properties["storageProfile"]["dataDisks"]}
    nics = {nic["id"]: nic["properties"]["deleteOption"] for nic in properties["networkProfile"]["networkInterfaces"]}
    return disks | nics


@pytest.mark.slow
@swift
async def test_settings_added_after_saving_fail_a_strict_replacement() -> None:
    async with running_azure(shape=PLAIN) as world:
        await world.operation("op", "HostReplace", "m1", parameters={"keep": "strict"})
        await _changed_while_detaching(world, identity={"type": "SystemAssigned"})
        ended = await world.ended("op", within_s=9000)
        assert result(ended) == ("Failed", reasons.WOULD_BE_LOST)
        assert "system-assigned identity" in (ended.status.message or "")
        assert "Delete" not in world.asked()


UNADDED: Final[Mapping[str, tuple[Mapping[str, Any], str]]] = {
    "it fails": (
        {
            "operation_errors": ("VMExtensionProvisioningError",),
            "operation_errors_for": ("VirtualMachineExtensions.CreateOrUpdate",),
        },
        "extension Agent has failed",
    ),
    "it is refused": (
        {"only": ("VirtualMachineExtensions.CreateOrUpdate",), "errors": ("InvalidParameter",)},
        "add extension Agent to VM vm-1: InvalidParameter",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("trouble", UNADDED)
@swift
async def test_failed_extension_is_named_and_the_others_are_added(trouble: str) -> None:
    faults, words = UNADDED[trouble]
    async with running_azure(shape=RICH, **faults) as world:
        ended = await world.carried_out("HostReplace")
        assert result(ended) == COMPLETE, ended.status.message
        assert words in ended.status.evidence[-1].where
        there = {
            each.name: each.provisioning for each in world.cloud.estate.extensions_of(world.cloud.machines()["vm-1"].id)
        }
        assert there.pop("Monitor") is Provisioning.SUCCEEDED
        assert there in ({}, {"Agent": Provisioning.FAILED})
        asked = [call for call in world.asked() if call.startswith("VirtualMachineExtensions")]
        assert len(asked) <= 3  # Azure takes one at a time
        await nothing_is_left(world)


@swift
async def test_extension_is_retried_after_a_temporary_read_only_error() -> None:
    async with running_azure(shape=RICH) as world:
        world.cloud.set_faults(
            only=("VirtualMachineExtensions.CreateOrUpdate",), errors=("ReadOnlyDisabledSubscription",)
        )
        ended = await world.carried_out("HostReplace")
        assert result(ended) == COMPLETE, ended.status.message
        assert "ReadOnlyDisabledSubscription" not in ended.status.evidence[-1].where
        there = world.cloud.estate.extensions_of(world.cloud.machines()["vm-1"].id)
        assert {each.name for each in there} == {"Agent", "Monitor"}


PROVIDERS: Final = "/subscriptions/{}/resourceGroups/rg-workers/providers/Microsoft.Compute"
URN: Final = {"publisher": "Canonical", "offer": "ubuntu-24_04-lts", "sku": "server"}
IMAGES: Final[Mapping[str, tuple[Mapping[str, str], str]]] = {
    "version": ({**URN, "version": EXACT_VERSION}, ""),
    "latest": ({**URN, "version": "latest"}, ""),
    "image": ({"id": f"{PROVIDERS}/images/gold"}, ""),
    "gallery": ({"id": f"{PROVIDERS}/galleries/g/images/gold/versions/1.0.0"}, ""),
    "gallery, latest": ({"id": f"{PROVIDERS}/galleries/g/images/gold"}, "/versions/1.0.0"),
    "shared": ({"sharedGalleryImageId": "/sharedGalleries/one/images/gold/versions/latest"}, "/versions/1.0.0"),
    "community": ({"communityGalleryImageId": "/communityGalleries/all/images/gold/versions/1.0.0"}, ""),
}
"""Forms of an imageReference, and the version that there is where it names none."""
LOOKS: Final = ("VirtualMachineImages.*", "Images.*", "*GalleryImageVersions.*")


def _made_of(world: AzureWorld, image: str) -> str:
    """Have a VM that was made of an image of this form, which is there; its name."""
    cloud, (form, version) = world.cloud, IMAGES[image]
    reference = {name: value.format(cloud.subscription) for name, value in form.items()}
    machine = cloud.machines()["vm-1"]
    pinned = {**machine.properties["storageProfile"], "imageReference": reference}
    model = {**machine.model, "properties": {**machine.properties, "storageProfile": pinned}}
    cloud.estate.put_machine(replace(machine, model=model), cloud.clock.now())
    name = ":".join(reference.values())
    cloud.estate.others.add(f"{name.removesuffix('/versions/latest')}{version}".lower())
    return name


@pytest.mark.slow
@pytest.mark.parametrize("image", IMAGES)
@swift
async def test_an_image_that_is_not_there_is_found_before_anything_is_touched(image: str) -> None:
    async with running_azure(shape=PLAIN) as world:
        name = _made_of(world, image)
        assert result(await world.carried_out("HostReplace", {"keep": "strict"}, name="first")) == COMPLETE
        asked = len(world.asked())
        world.cloud.estate.others.clear()
        world.cloud.estate.images.clear()
        ended = await world.carried_out("HostReplace")
        assert result(ended) == ("Failed", reasons.PROVIDER_REFUSED)
        assert f"image {name}" in (ended.status.message or "")
        assert len(world.asked()) == asked


@pytest.mark.slow
@pytest.mark.parametrize("image", ["latest", "gallery", "community"])
@swift
async def test_unreadable_image_is_rejected_or_reported_as_possible_loss(image: str) -> None:
    async with running_azure(shape=PLAIN) as world:
        name = _made_of(world, image)
        world.cloud.set_faults(only=LOOKS, errors=("AuthorizationFailed",), errors_go_on=True)
        ended = await world.carried_out("HostReplace", {"keep": "strict"})
        is_own = "id" in IMAGES[image][0]
        assert result(ended) == ("Failed", reasons.AUTH_REFUSED if is_own else reasons.WOULD_BE_LOST)
        words = f"image {name} cannot be read" if is_own else f"the availability of its image {name}"
        assert words in (ended.status.message or "")
        assert world.asked() == []
        if not is_own:
            ended = await world.carried_out("HostReplace", name="all the same")
            assert result(ended) == COMPLETE
            assert f"the availability of its image {name}" in ended.status.evidence[0].where


@pytest.mark.slow
@pytest.mark.parametrize("crash", [False, True])
@swift
async def test_failed_creation_without_a_vm_is_reported_from_its_async_operation(*, crash: bool) -> None:
    async with azure_world("create-fails-and-is-gone", shape=PLAIN) as world:
        await world.begin()
        world.cloud.estate.times = AzureTimes(create_s=20.0)
        controller = world.controller().start()
        await world.operation("op", "HostReplace", "m1")
        await eventually(lambda: "CreateOrUpdate" in world.asked())
        if crash:
            await world.until("op", lambda one: _handle(one) is not None, within_s=10)
            await controller.stop()
            world.controller().start()
        failed = "the last attempt failed: Azure created no VM: the asynchronous operation: Failed, AllocationFailed: "
        await world.until("op", lambda one: failed in (one.status.message or ""), within_s=25)
        assert result(await world.ended("op", within_s=60)) == COMPLETE
        assert world.asked().count("CreateOrUpdate") == 2
        await nothing_is_left(world)


@swift
async def test_a_system_that_does_not_report_is_told_with_where_to_look() -> None:
    async with running_azure("provisioning-times-out", shape=PLAIN) as world:
        await world.operation("op", "HostReplace", "m1")
        words = "it may still report; see its serial console"
        told = await world.until("op", lambda one: words in (one.status.message or ""), within_s=120)
        assert "OS Provisioning" in (told.status.message or "")


def _handle(operation: MachineOperation) -> str | None:
    return operation.status.execution.handle if operation.status.execution is not None else None


MADE_WITH: Final[Mapping[str, Mapping[str, Any]]] = {
    "flexProfile": {"flexProfile": {"preferredVMSize": "Standard_D2s_v5"}},
    "networkProfile": {
        "networkInterfaceConfigurations": [{"name": "nic-0", "properties": {"primary": True}}],
        "networkApiVersion": "2022-11-01",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("part", MADE_WITH)
@swift
async def test_creation_only_vm_properties_do_not_prevent_a_new_vm(part: str) -> None:
    async with running_azure(shape=PLAIN) as world:
        machine = world.cloud.machines()["vm-1"]
        own = MADE_WITH[part].get(part) or {**machine.properties[part], **MADE_WITH[part]}
        model = {**machine.model, "properties": {**machine.properties, part: own}}
        world.cloud.estate.put_machine(replace(machine, model=model), world.cloud.clock.now())
        ended = await world.carried_out("HostReplace")
        assert result(ended) == COMPLETE, ended.status.message
        assert world.asked().count("CreateOrUpdate") == 1
        await nothing_is_left(world)


@pytest.mark.slow
@swift
async def test_resource_lock_is_reported_and_former_changes_are_restored() -> None:
    async with running_azure(shape=PLAIN) as world:
        before = document(world)
        world.cloud.set_faults(locked=("vm-1",))
        ended = await world.carried_out("HostReplace")
        assert result(ended) == ("Failed", reasons.PROVIDER_REFUSED)
        assert "ScopeLocked" in (ended.status.message or "")
        assert "new OS disk" not in (ended.status.message or "")
        assert (ended.status.message or "").startswith(
            f"in the end, {replacement.EVIDENCE_RESTORED_NO_STATE}; before that: "
        )
        assert (ended.status.message or "").endswith(f"deleteOption is changed, and was {WAS}")
        assert document(world) == before
        assert world.asked() == ["Update", "Delete", "Update"]


@pytest.mark.slow
@swift
async def test_extension_removed_after_a_rollback_is_not_restored() -> None:
    async with _failed(RICH, locked=("vm-1",)) as (world, _):
        await nothing_is_left(world)
        machine, estate = world.cloud.machines()["vm-1"], world.cloud.estate
        (agent,) = [each for each in estate.extensions_of(machine.id) if each.name == "Agent"]
        estate.extensions.drop(agent.key, world.cloud.clock.now())
        assert result(await world.carried_out("HostReplace")) == COMPLETE
        assert [each.name for each in estate.extensions_of(machine.id)] == ["Monitor"]


@pytest.mark.slow
@swift
async def test_rolled_back_replacement_keeps_the_state_of_missing_extensions() -> None:
    async with _failed(RICH, errors_go_on=True, **HALF_WAY["no extensions"]) as (world, _):
        world.cloud.set_faults(locked=("vm-1",))
        second = await world.carried_out("HostReplace", name="second")
        assert second.status.phase == "Failed"
        assert (second.status.message or "").startswith(
            f"in the end, {replacement.EVIDENCE_STATE_NEEDED}; {replacement.EVIDENCE_RESTORED}; "
            f"Secret {NAMESPACE}/replacement-"
        )
        assert len(await of_replacements(world)) == 1
        world.cloud.set_faults(locked=())
        assert result(await world.carried_out("HostReplace")) == COMPLETE
        async with azure_world(shape=RICH) as untouched:
            assert document(world) == document(untouched)


@pytest.mark.slow
@swift
async def test_new_vm_in_failed_provisioning_state_is_updated_once_more() -> None:
    async with running_azure(shape=PLAIN) as world:
        twice = ("InternalExecutionError",) * 2  # the detaching that came true all the same, and the restoring
        world.cloud.set_faults(operation_errors=twice, operation_errors_for=("VirtualMachines.Update",))
        assert result(await world.carried_out("HostReplace")) == COMPLETE
        assert world.asked() == ["Update", "Delete", "CreateOrUpdate", "Update", "Update"]
        assert world.cloud.machines()["vm-1"].provisioning is Provisioning.SUCCEEDED
        await nothing_is_left(world)


@pytest.mark.slow
@swift
async def test_a_part_that_is_not_found_is_not_told_as_the_vm() -> None:
    async with running_azure(
        shape=PLAIN, only=("VirtualMachines.CreateOrUpdate",), errors=("NotFound",), errors_go_on=True
    ) as world:
        assert result(await world.carried_out("HostReplace")) == ("Failed", reasons.PROVIDER_REFUSED)


async def _cut_off(world: AzureWorld, crash_at: int) -> bool:
    """A replacement in the middle of which the controller is cut off; whether that came before its end."""
    first = world.controller().start(crash_at=crash_at)
    await world.operation("op", "HostReplace", "m1")
    ends = asyncio.create_task(world.ended("op"))
    cut = asyncio.create_task(first.life.dead.wait())
    await asyncio.wait({ends, cut}, return_when=asyncio.FIRST_COMPLETED)
    ends.cancel()
    cut.cancel()
    was_cut = first.life.dead.is_set()
    await first.stop()
    world.controller().start()
    ended = await world.ended("op", within_s=7200)
    assert result(ended) == COMPLETE, (crash_at, first.life.crashed_in, ended.status.message)
    await nothing_is_left(world)
    made = [event for event in world.cloud.history.of("VirtualMachine", "vm-1") if event.what == "created"]
    assert len(made) == 2, (crash_at, first.life.crashed_in)
    return was_cut


async def _crashed(crash_at: int) -> bool:
    async with azure_world(shape=PLAIN, chance=random.Random(crash_at)) as world:
        await world.begin()
        return await _cut_off(world, crash_at)


async def _crashed_going_on(crash_at: int) -> bool:
    """The same where an earlier replacement has failed and left no VM."""
    async with _failed(PLAIN, cores_quota=0, deadline_s=240) as (world, _):
        assert not world.cloud.machines()
        for life in world.lives:
            if life.name.startswith("machine-ops"):
                life.crash()
        return await _cut_off(world, crash_at)


Crashed = Callable[[int], Coroutine[Any, Any, bool]]


async def _crashes(crashed: Crashed, start: int, step: int) -> None:
    crash_at = start
    while await crashed(crash_at):
        crash_at += step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("crashed", "start", "step"), [(_crashed, 0, 17), (_crashed, 5, 17), (_crashed_going_on, 0, 40)]
)
@swift
async def test_it_survives_a_crash_at_awaits_here_and_there(crashed: Crashed, start: int, step: int) -> None:
    await _crashes(crashed, start, step)


@pytest.mark.soak
@pytest.mark.parametrize("crashed", [_crashed, _crashed_going_on])
@swift
async def test_it_survives_a_crash_at_any_await(crashed: Crashed) -> None:
    await _crashes(crashed, 0, 1)


@pytest.mark.slow
@swift
async def test_an_answer_that_is_lost_anywhere_costs_no_machine() -> None:
    for lost in ("lost_before", "lost_after", "cut_off"):
        for spared in range(5):
            faults: dict[str, Any] = {"of": "changes", "spared": spared, lost: 1}
            async with running_azure(shape=PLAIN, **faults) as world:
                ended = await world.carried_out("HostReplace")
                assert result(ended) == COMPLETE, (lost, spared, ended.status.message)
                await nothing_is_left(world)
