"""Replacing instances of Oracle's cloud, from end to end: the engine, the provider, the SDK and a simulated cloud."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import os
import random
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from tests.machineops.oci.world import TIMES, NearOci, OciWorld, oci_story, wait
from tests.operations.staging import in_stage, result
from tests.support.virtual_time import run_virtual
from unbounded.api.core import SECRETS
from unbounded.api.fields import Cause
from unbounded.api.operation import MachineOperation
from unbounded.machineops import reasons
from unbounded.machineops.providers.oci import replacement_plan as names
from unbounded.machineops.replacement import PUTTING_BACK
from unbounded.operations import reasons as common
from unbounded_lab.cloud.oci import InstanceState
from unbounded_lab.cloud.oci.misbehaviours import TABLE
from unbounded_lab.cloud.oci.model import OciInstance
from unbounded_lab.cloud.oci.power import terminate
from unbounded_lab.cloud.oci.seeding import Disks, newest_ubuntu
from unbounded_lab.faults import FOR_EVER

WHOLE = ["STOP", "LaunchInstance", "TerminateInstance"]


async def _run(world: OciWorld, wanted: dict[str, Any] | None = None, **parameters: str) -> tuple[str, str, str]:
    """One replacement; how it ended, why, and in what words."""
    await world.oci_machine(**(wanted or {}))
    world.steward().start()
    world.controller().start()
    await world.operation("op", "HostReplace", "m1", parameters=parameters)
    ended = await world.ended("op", within_s=3 * 3600)
    phase, reason = result(ended)
    return phase or "", reason or "", ended.status.message or ""


def _new(world: OciWorld) -> OciInstance:
    return world.near.tenancy.instances[world.bound["m1"].removeprefix("oci://")]


@pytest.mark.slow
@oci_story()
async def test_the_new_instance_is_what_the_old_one_was(world: OciWorld) -> None:
    tenancy = world.near.tenancy
    source = {"sourceType": "image", "imageId": newest_ubuntu(tenancy, "VM.Standard.E5.Flex")}
    volume = {"bootVolumeSizeInGBs": 77, "bootVolumeVpusPerGB": 30, "kmsKeyId": tenancy.kms_key_id}
    old = {
        "shape": "VM.Standard.E5.Flex",
        "ocpus": 3.0,
        "memory_gb": 24.0,
        "availability_domain": "lAbX:PHX-AD-2",
        "fault_domain": "FAULT-DOMAIN-3",
        "nsg_ids": (tenancy.nsg_id,),
        "skip_source_dest_check": True,
        "hostname_label": "worker",
        "freeform_tags": {"team": "blue"},
        "defined_tags": {"Operations": {"CostCenter": "42"}},
        "metadata": {"ssh_authorized_keys": "ssh-ed25519 AAAA one", "user_data": "b2xk", "site": "a"},
        "launch": {
            "agentConfig": {"isMonitoringDisabled": True},
            "isPvEncryptionInTransitEnabled": True,
            "sourceDetails": source | volume,
        },
    }
    assert (await _run(world, old, sshAuthorizedKeys="ssh-ed25519 AAAAC3NzaC1lZDI1 two"))[0] == "Complete"
    new = _new(world)
    launch = new.launch
    assert (launch.shape, launch.shape_config.ocpus) == ("VM.Standard.E5.Flex", 3)
    assert launch.shape_config.memory_in_gbs == 24
    assert (new.name, new.availability_domain, new.fault_domain) == ("m1", "lAbX:PHX-AD-2", "FAULT-DOMAIN-3")
    assert launch.agent_config.is_monitoring_disabled
    assert launch.is_pv_encryption_in_transit_enabled
    assert new.defined_tags == {"Operations": {"CostCenter": "42"}}
    (boot,) = (each for each in tenancy.boot_volumes if each.state == "AVAILABLE")
    assert (boot.size_gb, boot.vpus_per_gb, boot.kms_key_id) == (77, 30, tenancy.kms_key_id)
    operation = await world.get("op")
    assert new.freeform_tags == {
        "team": "blue",
        "unbounded_machine": "m1",
        "unbounded_machine_operation": "op",
        "unbounded_machine_operation_uid": operation.metadata.uid,
        "unbounded_old_provider_id": world.first,
    }
    vnic = next(each for each in tenancy.vnics if each.name == "m1" and each.state == "AVAILABLE")
    assert (vnic.subnet_id, vnic.nsg_ids) == (tenancy.public_subnet.id, (tenancy.nsg_id,))
    assert vnic.skip_source_dest_check
    assert vnic.public_ip
    assert new.metadata["site"] == "a"
    assert new.metadata["ssh_authorized_keys"] == "ssh-ed25519 AAAA one\nssh-ed25519 AAAAC3NzaC1lZDI1 two"
    assert base64.b64decode(new.metadata["user_data"]) == b"#cloud-config of m1"
    assert world.asked == WHOLE
    assert [one.what for one in operation.status.evidence] == [
        "the launch parameters are stored",
        "the old instance is stopped, unless it is preemptible",
        "the replacement runs",
        "the Machine names its replacement",
        "the old instance and its boot volume are deleted",
    ]


PLATFORM = {
    "type": "INTEL_VM",
    "isSecureBootEnabled": True,
    "isMeasuredBootEnabled": True,
    "isTrustedPlatformModuleEnabled": True,
    "isMemoryEncryptionEnabled": False,
}


@oci_story()
async def test_secure_and_measured_boot_and_the_tpm_are_kept(world: OciWorld) -> None:
    assert (await _run(world, {"launch": {"platformConfig": PLATFORM}}))[0] == "Complete"
    platform = _new(world).launch.platform_config
    assert platform is not None
    assert msgspec.to_builtins(platform) == PLATFORM


@oci_story()
async def test_a_preemptible_instance_is_replaced_by_a_preemptible_one_without_being_stopped(world: OciWorld) -> None:
    """Oracle does not allow to stop one: the new one is launched first, and the old one ends once the Machine names the
    new.
    """
    preemptible = {"preemptionAction": {"type": "TERMINATE", "preserveBootVolume": False}}
    assert (await _run(world, {"launch": {"preemptibleInstanceConfig": preemptible}}))[0] == "Complete"
    config = _new(world).launch.preemptible_instance_config
    assert config is not None
    assert msgspec.to_builtins(config) == preemptible
    assert world.asked == ["LaunchInstance", "TerminateInstance"]


@pytest.mark.slow
@oci_story(judged=False)
async def test_a_preemptible_instance_runs_on_where_its_replacement_comes_to_nothing(world: OciWorld) -> None:
    world.near.set_faults(only=("LaunchInstance",), errors=("OutOfHostCapacity",), errors_go_on=True)
    preemptible = {"preemptionAction": {"type": "TERMINATE"}}
    phase, reason, _ = await _run(world, {"launch": {"preemptibleInstanceConfig": preemptible}})
    assert (phase, reason) == ("Failed", reasons.NO_CAPACITY)
    assert world._power("m1") == "RUNNING"
    assert set(world.asked) == {"LaunchInstance"}
    assert [name for _, name in world.api._collection(SECRETS).versions if name.startswith("replacement-")] == []


@oci_story()
async def test_what_is_lost_is_data_and_is_accepted_one_by_one(world: OciWorld) -> None:
    await world.oci_machine(hostname_label="worker")
    world.steward().start()
    world.controller().start()
    fields = ["vnic.privateIp", "vnic.publicIp", "vnic.hostnameLabel"]
    for name, accept in (("none", {}), ("two", {"accept": ", ".join(fields[:2])})):
        await world.operation(name, "HostReplace", "m1", parameters={"keep": "strict", **accept})
        ended = await world.ended(name, within_s=600)
        assert result(ended) == ("Failed", reasons.WOULD_BE_LOST)
        assert [one.field for one in ended.status.losses] == fields
        assert ended.status.losses[0].consequence == "private IP 10.0.0.2"
        told = fields[2:] if accept else fields
        assert f"would lose: {told[0]} (" in (ended.status.message or "")
        assert f'to accept, set accept: "{",".join(fields)}"' in (ended.status.message or "")
    assert world.asked == []
    await world.operation("all", "HostReplace", "m1", parameters={"keep": "strict", "accept": ",".join(fields)})
    ended = await world.ended("all", within_s=3600)
    assert result(ended) == ("Complete", "Succeeded")
    assert [one.field for one in ended.status.losses] == fields


@oci_story()
async def test_what_lessens_security_is_refused_until_somebody_accepts_that(world: OciWorld) -> None:
    world.steward().start()
    world.controller().start()
    await world.oci_machine()
    for volume in world.near.tenancy.boot_volumes:
        volume.security_attributes = {"Oracle-ZPR": {"app": {"value": "db", "mode": "enforce"}}}
        world.near.tenancy.boot_volumes.put(volume, world.near.now)
    await world.operation("op", "HostReplace", "m1")
    ended = await world.ended("op", within_s=600)
    assert result(ended) == ("Failed", reasons.WOULD_BE_LOST)
    assert "security must not decrease unless parameters.accept names it" in (ended.status.message or "")
    (loss,) = [one for one in ended.status.losses if one.lessens_security]
    assert loss.field == "bootVolume.securityAttributes"
    assert world.asked == []
    await world.operation("anyhow", "HostReplace", "m1", parameters={"accept": loss.field})
    assert result(await world.ended("anyhow", within_s=3600)) == ("Complete", "Succeeded")


@pytest.mark.slow
@oci_story()
async def test_an_instance_that_is_off_is_replaced_too(world: OciWorld) -> None:
    assert (await _run(world, {"state": InstanceState.STOPPED}))[0] == "Complete"
    assert world.asked == ["LaunchInstance", "TerminateInstance"]


@pytest.mark.slow
@oci_story()
async def test_an_image_that_is_asked_for_is_taken(world: OciWorld) -> None:
    image = next(each for each in world.near.tenancy.images if each.version == "22.04" and not each.arm)
    assert (await _run(world, imageID=image.id))[0] == "Complete"
    assert _new(world).image_id == image.id


@pytest.mark.slow
@oci_story()
async def test_custom_image_is_not_chosen_automatically(world: OciWorld) -> None:
    tenancy = world.near.tenancy
    ours = max(
        (each for each in tenancy.images if each.version == "24.04" and not each.arm), key=lambda one: one.created
    )
    made = dataclasses.replace(
        ours, id="ocid1.image.oc1.phx.made", compartment_id=tenancy.compartment_id, created=world.near.now
    )
    tenancy.images.put(made, world.near.now)
    assert (await _run(world))[0] == "Complete"
    assert _new(world).image_id == ours.id


@pytest.mark.slow
@oci_story()
async def test_what_cannot_be_kept_is_told_before_anything_is_deleted(world: OciWorld) -> None:
    old = {"shape": "VM.DenseIO.E4.Flex", "ocpus": 16.0, "memory_gb": 256.0}
    running = asyncio.create_task(_run(world, old))
    lost = "losses: private IP 10.0.0.2, public IP 203.0.113.4, the content of its 2 local drives"
    while "TerminateInstance" not in world.asked:
        await asyncio.sleep(1)
        if world.asked and lost in ((await world.get("op")).status.message or ""):
            break
    assert world.asked == ["STOP"]
    assert (await running)[0] == "Complete"
    assert _new(world).launch.shape_config.nvmes == 2


@pytest.mark.slow
@oci_story()
async def test_no_public_ip_is_asked_for_where_it_is_turned_off(world: OciWorld) -> None:
    subnet = world.near.tenancy.private_subnet
    assert (await _run(world, {"subnet": subnet}, assignPublicIP="false"))[0] == "Complete"
    assert _new(world).launch.create_vnic_details.assign_public_ip is False


REFUSED: dict[str, tuple[dict[str, Any], dict[str, str], str, str]] = {
    "data volumes": ({"data_volumes": Disks(count=2)}, {}, reasons.WOULD_BE_LOST, "detach them first: ocid1.volume."),
    "no image": ({}, {"imageID": "ocid1.image.gone"}, reasons.PROVIDER_REFUSED, "'ocid1.image.gone' of the"),
    "strict": (
        {"vnics": 2},
        {"keep": "strict"},
        reasons.WOULD_BE_LOST,
        "vnic.privateIp (private IP 10.0.0.2); vnic.publicIp (public IP 203.0.113.4); secondaryVnics (VNIC ocid1.vnic",
    ),
    "drives": (
        {"shape": "VM.DenseIO.E4.Flex", "ocpus": 8.0, "memory_gb": 128.0},
        {"keep": "strict"},
        reasons.WOULD_BE_LOST,
        "the content of its 1 local drives",
    ),
    "tags": (
        {"freeform_tags": {f"tag{number}": "x" for number in range(7)}},
        {},
        reasons.PROVIDER_REFUSED,
        "too many freeform tags",
    ),
    "pool": (
        {"freeform_tags": {"oci:compute:instancepool": "ocid1.instancepool.oc1.phx.nodes"}},
        {},
        reasons.PROVIDER_REFUSED,
        "belongs to instance pool ocid1.instancepool.oc1.phx.nodes, which would launch another one",
    ),
    "metadata": (
        {"metadata": {"big": "x" * 31_950}},
        {},
        reasons.BOOTSTRAP_DATA_FAILED,
        "has 19 bytes; the limit of OCIInstance is 15",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_replaced_says_so_before_it_is_touched(what: str) -> None:
    wanted, parameters, expected, words = REFUSED[what]

    @oci_story()
    async def story(world: OciWorld) -> None:
        world.near.set_faults(page_size=1)
        phase, reason, message = await _run(world, wanted, **parameters)
        assert (phase, reason) == ("Failed", expected)
        assert words in message
        assert world.asked == []
        for volume in [each for each in world.near.tenancy.volume_attachments if wanted.get("data_volumes")]:
            assert volume.is_attached

    story()


@pytest.mark.slow
@oci_story()
async def test_a_subnet_that_forbids_public_ips_is_told_before_anything_is_touched(world: OciWorld) -> None:
    phase, reason, message = await _run(world, {"subnet": world.near.tenancy.private_subnet})
    assert (phase, reason) == ("Failed", reasons.PROVIDER_REFUSED)
    assert 'the parameter assignPublicIP: "false"' in message
    assert world.asked == []


@oci_story()
async def test_an_image_of_another_architecture_is_told_before_anything_is_touched(world: OciWorld) -> None:
    image = next(each for each in world.near.tenancy.images if each.arm)
    phase, reason, message = await _run(world, imageID=image.id)
    assert (phase, reason) == ("Failed", reasons.PROVIDER_REFUSED)
    assert "does not fit shape VM.Standard3.Flex" in message
    assert world.asked == []


@pytest.mark.slow
@oci_story(judged=False)
async def test_a_launch_without_a_host_has_the_old_one_run_again(world: OciWorld) -> None:
    world.near.set_faults(only=("LaunchInstance",), errors=("OutOfHostCapacity",), errors_go_on=True)
    phase, reason, message = await _run(world)
    assert (phase, reason) == ("Failed", reasons.NO_CAPACITY)
    assert world._power("m1") == "RUNNING"
    assert "no replacement exists" in message
    assert message.startswith("in the end, the instance is restored, and no state of it is stored; before that: ")
    assert [name for _, name in world.api._collection(SECRETS).versions if name.startswith("replacement-")] == []
    assert (world.asked[0], world.asked[-1]) == ("STOP", "START")
    assert set(world.asked[1:-1]) == {"LaunchInstance"}
    assert world.near.strays() == []


@pytest.mark.slow
@oci_story(judged=False)
async def test_a_launch_without_a_host_leaves_off_what_was_off(world: OciWorld) -> None:
    await world.oci_machine()
    world.steward().start()
    world.controller().start()
    await world.operation("off", "HostPowerOff", "m1")
    assert result(await world.ended("off", within_s=600)) == ("Complete", "Succeeded")
    world.near.set_faults(only=("LaunchInstance",), errors=("OutOfHostCapacity",), errors_go_on=True)
    await world.operation("op", "HostReplace", "m1")
    assert result(await world.ended("op", within_s=7200)) == ("Failed", reasons.NO_CAPACITY)
    assert world._power("m1") == "STOPPED"
    assert not {"START", "STOP"} & set(world.asked[1:])


@pytest.mark.slow
@oci_story(judged=False)
async def test_cancel_before_the_launch_restarts_the_old_instance(world: OciWorld) -> None:
    await world.oci_machine()
    world.steward().start()
    world.controller().start()
    await world.operation("op", "HostReplace", "m1")
    await in_stage(world, "op", names.STOPPING_OLD)
    await world.until("op", lambda _: "STOP" in world.asked, within_s=60)
    await world.cancel("op")
    ended = await world.ended("op", within_s=600)
    assert result(ended) == ("Failed", common.CANCELLED)
    assert world._power("m1") == "RUNNING"
    assert world.asked == ["STOP", "START"]
    assert len(world.near.machines()) == 1
    assert world.near.strays() == []


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["deadline", "crash", "was off"])
def test_old_instance_is_not_started_beside_an_unlisted_replacement(ends: str) -> None:
    @oci_story(judged=False)
    async def story(world: OciWorld) -> None:
        world.near.set_faults(lost_after=1, only=("LaunchInstance",), list_lag_s=30.0)
        await world.oci_machine(**({"state": InstanceState.STOPPED} if ends == "was off" else {}))
        world.steward().start()
        controller = world.controller().start()
        await world.operation("op", "HostReplace", "m1", deadlineSeconds=25)
        await world.until("op", lambda _: "LaunchInstance" in world.asked, within_s=60)
        launched_at = world.near.now
        if ends == "crash":
            await in_stage(world, "op", PUTTING_BACK)
            await controller.stop()
            world.controller().start()
        ended = await world.ended("op", within_s=600)
        assert ended.status.reason == common.DEADLINE_EXCEEDED
        assert world.near.now - launched_at > 20
        assert "START" not in world.asked
        assert world._power("m1") == "STOPPED"
        (new,) = [each for each in world.near.machines() if each != world.bound["m1"].rpartition("/")[2]]
        assert f"its replacement {new} is " in (ended.status.message or "")

    story()


@pytest.mark.slow
@oci_story()
async def test_slow_provisioning_of_an_instance_is_awaited(world: OciWorld) -> None:
    world.near.tenancy.times = dataclasses.replace(TIMES, provision_s=2400.0)
    phase, _, message = await _run(world)
    assert (phase, world.asked.count("LaunchInstance")) == ("Complete", 1), message


NO_ROOM = "OutOfHostCapacity: Out of host capacity."
LOST_LAUNCHES: dict[str, tuple[dict[str, Any], str, float]] = {
    "as its work request says": ({}, NO_ROOM, 20),
    "as soon as it is asked for once more, where its answer was lost": (
        {"lost_after": 1, "only": ("LaunchInstance",)},
        NO_ROOM,
        70,
    ),
    "as far as one can tell without a work request": ({"work_requests": "vanish"}, "there may be no host for it", 20),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", LOST_LAUNCHES)
def test_failed_launch_is_reported_at_once_and_retried(how: str) -> None:
    faults, why, within_s = LOST_LAUNCHES[how]

    @oci_story()
    async def story(world: OciWorld) -> None:
        world.near.set_faults(lost_launches=1, **faults)
        running = asyncio.create_task(_run(world))
        await wait(lambda: world.near.history.of("Instance", "m1") and _ended(world))
        lost_at, told = world.near.now, f"was launched and is TERMINATED: {why}"
        await world.until("op", lambda one: told in (one.status.message or ""), within_s=within_s)
        await wait(lambda: len(world.near.machines()) > 1)
        assert world.near.now - lost_at < within_s + 10
        assert (await running)[0] == "Complete"

    story()


def _ended(world: OciWorld) -> bool:
    return any(each.what == "deleted" for each in world.near.history.of("Instance", "m1"))


@pytest.mark.slow
@oci_story(judged=False)
async def test_launches_that_all_come_to_nothing_end_with_why(world: OciWorld) -> None:
    world.near.set_faults(lost_launches=FOR_EVER)
    phase, reason, message = await _run(world)
    assert (phase, reason) == ("Failed", reasons.NO_CAPACITY)  # the one that is on its way at the end is waited for
    assert "the launch before that had no result: instance ocid1.instance." in message
    assert "TERMINATED: OutOfHostCapacity: Out of host capacity." in message
    assert len([each for each in world.asked if each == "LaunchInstance"]) > 20


@pytest.mark.slow
@oci_story(judged=False)
async def test_externally_terminated_replacement_is_reported_as_terminated(
    world: OciWorld,
) -> None:
    running = asyncio.create_task(_run(world))
    await wait(lambda: len(world.near.machines()) > 1)
    new = next(each for ident, each in world.near.machines().items() if ident not in world.first)
    terminate(world.near.tenancy, new, world.near.now, keep_boot_volume=False, keep_data_volumes=None)
    told = f"instance {new.id} was launched and is TERMINAT"
    seen = await world.until("op", lambda one: told in (one.status.message or ""), within_s=90)
    assert "The instance was terminated." in (seen.status.message or "")
    assert (await running)[0] == "Complete"


@pytest.mark.slow
@oci_story()
async def test_a_launch_is_asked_for_as_often_as_its_work_request_says(world: OciWorld) -> None:
    world.near.set_faults(work_again_s=12.0)
    assert (await _run(world))[0] == "Complete"
    asked = [each.at for each in world.near.journal if each.call == "GetWorkRequest"]
    assert len(asked) > 2
    assert min(later - earlier for earlier, later in pairwise(asked)) >= 12


@pytest.mark.slow
@oci_story(judged=False)
async def test_what_a_launch_has_left_that_came_to_nothing_is_named(world: OciWorld) -> None:
    world.near.set_faults(lost_launches=1, terminate="leaves-boot-volume")
    world.steward().start()
    world.controller().start()
    await world.oci_machine()
    await world.operation("op", "HostReplace", "m1")
    await in_stage(world, "op", names.TERMINATING_OLD)
    world.near.set_faults(terminate="works")
    ended = await world.ended("op", within_s=3600)
    assert result(ended) == ("Complete", "Succeeded")
    (left,) = world.near.strays()
    told = f"boot volume {left} may remain of a launch without a result"
    assert (ended.status.message or "").endswith(told)


@pytest.mark.slow
@oci_story(judged=False)
async def test_unfinished_replacement_prevents_a_second_launch(world: OciWorld) -> None:
    world.near.set_profile("launch-never-ends")
    assert (await _run(world))[1] == common.TIMED_OUT
    (left,) = [ident for ident in world.near.machines() if ident not in world.first]
    world.near.set_profile("ideal")
    await world.operation("op2", "HostReplace", "m1")
    ended = await world.ended("op2", within_s=600)
    assert result(ended) == ("Failed", reasons.PROVIDER_REFUSED)
    assert f"instance {left}, which is PROVISIONING, was launched in place of " in (ended.status.message or "")
    assert ended.status.cause == Cause(code=reasons.EARLIER_INSTANCE, about={reasons.INSTANCE: left})
    assert "by operation op, which did not come to its end: terminate it" in (ended.status.message or "")
    assert world.asked == ["STOP", "LaunchInstance"]


@pytest.mark.slow
@oci_story()
async def test_a_slow_cloud_is_not_asked_one_thing_after_the_other(world: OciWorld) -> None:
    world.near.set_faults(slow_s=4.0)
    assert (await _run(world))[0] == "Complete"
    assert world.asked == WHOLE


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["key-is-revoked", "stalls"])
@oci_story(judged=False)
async def test_failure_with_unreachable_cloud_names_every_instance(world: OciWorld, profile: str) -> None:
    running = asyncio.create_task(_run(world))
    await asyncio.sleep(100)
    assert world.asked == ["STOP", "LaunchInstance"]
    world.near.set_profile(profile)
    phase, _, message = await running
    assert phase == "Failed"
    assert len(world.near.machines()) == 2
    assert all(ident in message for ident in world.near.machines()), message


NAMED = {
    "stalls": (common.NO_ANSWER, "no answer yet from OCIInstance oci://{old}"),
    "stalls-before-acting": (common.NO_ANSWER, "no answer yet from OCIInstance oci://{old}"),
    "launch-never-ends": (common.TIMED_OUT, "its replacement {new} is PROVISIONING"),
    "stop-never-ends": (common.TIMED_OUT, "{old} is STOPPING"),
    "terminate-gets-stuck": (common.TIMED_OUT, "{old} is TERMINATING; its replacement {new} is RUNNING"),
    "terminate-leaves-the-vnic": (common.TIMED_OUT, "VNIC ocid1.vnic."),
    "key-is-revoked": (reasons.AUTH_REFUSED, "OCI rejected MachineOperationCredential oci ("),
    "clock-is-ahead": (reasons.AUTH_REFUSED, "OCI rejected MachineOperationCredential oci ("),
    "no-permission": (reasons.AUTH_REFUSED, "or MachineOperationCredential oci has no permission"),
    "no-permission-to-look": (reasons.INSTANCE_NOT_FOUND, "does not exist, or oci has no permission to read it"),
    "no-permission-for-networks": (
        reasons.AUTH_REFUSED,
        "oci has no permission; get_vnic: 404 NotAuthorizedOrNotFound",
    ),
    "no-permission-for-volumes": (
        reasons.AUTH_REFUSED,
        "has no permission; get_boot_volume: 404 NotAuthorizedOrNotFound",
    ),
    "forbidden": (reasons.AUTH_REFUSED, "oci has no permission; instance_action: 403 NotAuthorized: You are not"),
    "launch-is-invalid": (
        reasons.PROVIDER_REFUSED,
        "InvalidParameter: The request has an invalid parameter.; the old instance {old} is STOPPED",
    ),
    "launch-lacks-a-parameter": (
        reasons.PROVIDER_REFUSED,
        "{old} is STOPPED; no replacement exists; what is launched has freeform tag unbounded_machine_operation_uid",
    ),
    "launch-names-what-is-not-there": (
        reasons.AUTH_REFUSED,
        "the resource does not exist, or MachineOperationCredential oci has no permission for it; "
        "launch_instance: 400 Related",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("profile", TABLE.turns)
def test_it_succeeds_whatever_the_cloud_does_or_names_what_is_left(profile: str) -> None:
    @oci_story(profile, judged=profile not in NAMED)
    async def story(world: OciWorld) -> None:
        phase, reason, message = await _run(world)
        if profile not in NAMED:
            assert (phase, reason) == ("Complete", common.SUCCEEDED), message
            assert world.bound["m1"] != world.first
            return
        expected, words = NAMED[profile]
        old = world.first.removeprefix("oci://")
        new = next((ident for ident in world.near.machines() if ident != old), "")
        assert (phase, reason) == ("Failed", expected), message
        assert words.format(old=old, new=new) in message
        assert all(ident in message for ident in world.near.machines()) or world.asked in ([], ["STOP"])
        assert all(ident in message for ident in world.near.strays())

    story()


# Cut off anywhere


async def _told(profile: str, crashes: list[int], seed: int) -> tuple[MachineOperation, int]:
    chance = random.Random(seed)
    world = OciWorld(chance)
    async with NearOci(profile=profile, times=TIMES) as world.near:
        await world.login()
        await world.oci_machine()
        pause_s = (0.0, 1.0) if seed % 4 else (20.0, 90.0)
        keeper = asyncio.create_task(world.controller().keep(crashes=crashes, pause_s=pause_s))
        world.steward().start()
        await world.operation("op", "HostReplace", "m1")
        ended = await world.ended("op", within_s=3 * 3600)
        await asyncio.sleep(60)
        keeper.cancel()
        world.judge()
        assert world.asked.count("TerminateInstance") >= 1
        assert world.bound["m1"] != world.first
        return ended, max(life.awaits for life in world.lives if not life.name.startswith("steward"))


def _story(profile: str, crashes: list[int], seed: int) -> Coroutine[Any, Any, tuple[MachineOperation, int]]:
    return _told(profile, crashes, seed)


CRASHED_IN = ("ideal", "answers-lost-before-acting", "answers-lost-after-acting", "stale-reads")
EVERY = 1 if os.environ.get("UNBOUNDED_SOAK") else 31


@pytest.mark.slow
@pytest.mark.parametrize("profile", CRASHED_IN)
@pytest.mark.timeout(900)  # of all places, in the soak
def test_a_controller_is_cut_off_at_every_await_and_every_call(profile: str) -> None:
    ended, awaits = run_virtual(_story(profile, [], 1))
    assert result(ended) == ("Complete", "Succeeded")
    assert awaits > 60
    for crash_at in range(CRASHED_IN.index(profile), awaits + 1, EVERY):
        ended, _ = run_virtual(_story(profile, [crash_at], crash_at))
        assert result(ended) == ("Complete", "Succeeded"), (crash_at, ended.status.message)
