"""HostReplace of a virtual machine of Azure, from end to end."""

from __future__ import annotations

import asyncio
import base64
import random
from typing import Any, Final

import msgspec
import pytest

from tests.machineops.azure.world import USER_DATA, AzureWorld, azure_world, swift
from tests.operations.staging import result
from unbounded.api.core import SECRETS
from unbounded.api.names import NAMESPACE
from unbounded.lab.cloud.azure import Shape
from unbounded.lab.cloud.azure.misbehaviours import MISBEHAVIOURS
from unbounded.lab.cloud.azure.model import Power
from unbounded.lab.cloud.azure.views import machine_document
from unbounded.machineops import reasons
from unbounded.operations import reasons as common

COMPLETE = ("Complete", "Succeeded")
RICH: Final = Shape(
    data_disks=2,
    nics=2,
    zones=("2",),
    system_identity=True,
    identities=("kubelet", "registry"),
    extensions=("Acme.Agent", "Acme.Monitor"),
    plan=("server", "almalinux", "almalinux-x86_64"),
    tags={"role": "worker"},
    license_type="RHEL_BYOS",
    nic_delete_option="Delete",
    data_disk_delete_option="Delete",
)
PLAIN: Final = Shape(data_disks=1, nic_delete_option="Delete", data_disk_delete_option="Delete")
DIFFERS: Final = {"etag", "vmId", "timeCreated", "principalId", "exactVersion", "provisioningState"}
"""What another virtual machine cannot have in common with the old one, beside its OS disk."""


def _document(world: AzureWorld) -> dict[str, Any]:
    """The virtual machine as Azure shows it, without what has to differ."""
    machine = world.cloud.machines()["vm-1"]
    extensions = world.cloud.estate.extensions_of(machine.id)
    document = msgspec.json.decode(msgspec.json.encode(machine_document(world.cloud.estate, machine, extensions)))
    disk = document["properties"]["storageProfile"]["osDisk"]
    disk["name"], disk["managedDisk"]["id"] = "", ""
    found = _without(document)
    assert isinstance(found, dict)
    found["resources"] = sorted(found.get("resources", []), key=lambda one: str(one["name"]))
    return found


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without(inner) for name, inner in value.items() if name not in DIFFERS}
    return [_without(inner) for inner in value] if isinstance(value, list) else value


async def _nothing_is_left(world: AzureWorld) -> None:
    cloud = world.cloud
    assert (cloud.stray_disks(), cloud.stray_nics()) == ([], [])
    assert len(cloud.machines()) == 1
    assert cloud.history.most_at_once("on", "off", kind="VirtualMachine", name="vm-1") == 1
    secrets = (await world.api.list(SECRETS, namespace=NAMESPACE)).items
    assert [secret.metadata.name for secret in secrets] == ["azure-auth"]


@pytest.mark.parametrize("shape", [RICH, Shape(availability_set="set-1", boot_diagnostics=True, trusted_launch=True)])
@swift
async def test_the_new_one_has_all_that_the_old_one_had(shape: Shape) -> None:
    async with azure_world(shape=shape) as world:
        await world.begin()
        world.controller().start()
        before, old_id = _document(world), world.cloud.machines()["vm-1"].vm_id
        ended = await world.carried_out("HostReplace")
        assert result(ended) == COMPLETE, ended.status.message
        assert _document(world) == before
        new = world.cloud.machines()["vm-1"]
        assert new.vm_id != old_id
        assert new.power is Power.RUNNING
        assert base64.b64decode(new.custom_data or "").decode() == USER_DATA
        assert new.os_disk["name"] == f"vm-1-osdisk-{ended.metadata.uid.replace('-', '')[:12]}"
        assert [event.what for event in world.cloud.history.of("Disk", "vm-1_OsDisk_1")][-1] == "deleted"
        await _nothing_is_left(world)
        calls = [call for call in world.asked() if not call.startswith("VirtualMachineExtensions")]
        updates = ["Update"] if shape is RICH else []  # the other one's parts outlive it as it is
        assert calls == [*updates, "Delete", "CreateOrUpdate", *updates]


@swift
async def test_what_would_be_lost_is_said_before_anything_is_touched() -> None:
    async with azure_world(shape=RICH) as world:
        await world.begin()
        world.controller().start()
        ended = await world.carried_out("HostReplace", {"keep": "strict"})
        assert result(ended) == ("Failed", reasons.WOULD_BE_LOST)
        message = ended.status.message or ""
        assert "system-assigned identity" in message
        assert "protected settings of extension Agent" in message
        assert world.asked() == []


@swift
async def test_strict_keeping_replaces_what_can_be_kept_whole() -> None:
    async with azure_world(shape=PLAIN) as world:
        await world.begin()
        world.controller().start()
        assert result(await world.carried_out("HostReplace", {"keep": "strict"})) == COMPLETE
        await _nothing_is_left(world)


@swift
async def test_a_create_that_finds_no_room_says_where_it_stands_and_that_the_model_is_kept() -> None:
    async with azure_world(shape=PLAIN) as world:
        await world.begin()
        world.controller().start()
        world.cloud.set_dials(cores_quota=0)
        ended = await world.carried_out("HostReplace")
        assert result(ended) == ("Failed", reasons.QUOTA_EXCEEDED)
        message = ended.status.message or ""
        for words in ("there is no VM vm-1", f"Secret {NAMESPACE}/machineoperation-{ended.metadata.uid}"):
            assert words in message
        for stray in (*world.cloud.stray_disks(), *world.cloud.stray_nics()):
            assert stray in message
        await world.api.get(SECRETS, f"machineoperation-{ended.metadata.uid}", namespace=NAMESPACE)


@swift
async def test_user_data_that_is_too_long_is_said() -> None:
    async with azure_world(shape=PLAIN) as world:
        await world.begin()
        world.user_data = "#" * 65_536
        world.controller().start()
        ended = await world.carried_out("HostReplace")
        assert result(ended) == ("Failed", reasons.BOOTSTRAP_DATA_FAILED)
        assert "AzureVM takes 65535" in (ended.status.message or "")
        assert world.cloud.alive("vm-1")


OTHERWISE: Final = {
    "delete-gets-stuck": (("Failed", common.TIMED_OUT), "the old VM to be gone"),
    "create-never-ends": (("Failed", common.TIMED_OUT), "the new VM to be there"),
    "policy-refuses-creations": (("Failed", reasons.PROVIDER_REFUSED), "RequestDisallowedByPolicy"),
    "not-authorized": (("Failed", reasons.AUTH_REFUSED), "AuthorizationFailed"),
}
"""What does not end with Complete, and words of the message."""


@pytest.mark.slow
@pytest.mark.parametrize("profile", [name for name in MISBEHAVIOURS.names() if name != "ideal"])
@swift
async def test_under_each_misbehaviour_it_succeeds_or_says_why(profile: str) -> None:
    async with azure_world(profile, shape=PLAIN) as world:
        await world.begin()
        world.controller().start()
        ended = await world.carried_out("HostReplace")
        wanted, words = OTHERWISE.get(profile, (COMPLETE, ""))
        assert result(ended) == wanted, ended.status.message
        assert words in (ended.status.message or "")
        if wanted == COMPLETE:
            assert world.cloud.power("vm-1") is Power.RUNNING
            await _nothing_is_left(world)
        else:
            for stray in (*world.cloud.stray_disks(), *world.cloud.stray_nics()):
                assert stray in (ended.status.message or "")


async def _crashed(crash_at: int) -> bool:
    """A replacement in the middle of which the controller is cut off; whether that came before its end."""
    async with azure_world(shape=PLAIN, chance=random.Random(crash_at)) as world:
        await world.begin()
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
        await _nothing_is_left(world)
        made = [event for event in world.cloud.history.of("VirtualMachine", "vm-1") if event.what == "created"]
        assert len(made) == 2, (crash_at, first.life.crashed_in)
        return was_cut


async def _crashes(start: int, step: int) -> None:
    crash_at = start
    while await _crashed(crash_at):
        crash_at += step


@pytest.mark.slow
@pytest.mark.parametrize("start", range(2))
@swift
async def test_it_survives_a_crash_at_awaits_here_and_there(start: int) -> None:
    await _crashes(5 * start, 17)


@pytest.mark.soak
@swift
async def test_it_survives_a_crash_at_any_await() -> None:
    await _crashes(0, 1)


@pytest.mark.slow
@swift
async def test_an_answer_that_is_lost_anywhere_costs_no_machine() -> None:
    for lost in ("lost_before", "lost_after", "cut_off"):
        for spared in range(5):
            async with azure_world(shape=PLAIN) as world:
                await world.begin()
                world.cloud.set_dials(of="changes", spared=spared, **{lost: 1})
                world.controller().start()
                ended = await world.carried_out("HostReplace")
                assert result(ended) == COMPLETE, (lost, spared, ended.status.message)
                await _nothing_is_left(world)
