"""Changes by others during a replacement, and the remains of an earlier one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import pytest

from tests.machineops.oci.world import NearOci, OciWorld, oci_story, wait
from tests.operations.staging import result
from unbounded.api.core import SECRETS
from unbounded.api.fields import Cause
from unbounded.api.machine import MACHINES
from unbounded.api.names import NAMESPACE
from unbounded.machineops import reasons
from unbounded.operations import reasons as common
from unbounded_lab.cloud.oci.lifecycle import InstanceAction
from unbounded_lab.cloud.oci.model import Attachment, AttachmentState, OciInstance, ResourceState, Volume
from unbounded_lab.cloud.oci.power import act, end, terminate
from unbounded_lab.cloud.oci.seeding import Disks, attach_volume

pytestmark = pytest.mark.slow


async def _begin(world: OciWorld, *, until: str = "", within_s: int = 3600, **wanted: Any) -> OciInstance:
    """Begin a replacement up to a request; return its instance."""
    old = await world.oci_machine(**wanted)
    world.steward().start()
    world.controller().start()
    await world.operation("op", "HostReplace", "m1", deadlineSeconds=within_s)
    if until:
        await wait(lambda: until in world.asked)
    return old


async def _end(world: OciWorld, name: str = "op") -> tuple[str, str, str]:
    ended = await world.ended(name, within_s=3 * 3600)
    phase, reason = result(ended)
    return phase or "", reason or "", ended.status.message or ""


async def _handed_over(world: OciWorld) -> OciInstance:
    """The replacement, as soon as the Machine names it."""
    await wait(lambda: world.bound["m1"] != world.first)
    return world.near.tenancy.instances[world.bound["m1"].removeprefix("oci://")]


def _boot_volume(near: NearOci, owner: OciInstance, link: AttachmentState) -> Volume:
    """One that was attached to an instance by hand, or is again on its own."""
    tenancy, now = near.tenancy, near.now
    where = (owner.compartment_id, owner.availability_domain)
    volume = Volume(tenancy.new_id("bootvolume"), "by hand", *where, 50, now, state=ResourceState.AVAILABLE)
    tenancy.boot_volumes.put(volume, now)
    attachment = Attachment(tenancy.new_id("bootvolumeattachment"), owner.id, volume.id, *where, now, state=link)
    tenancy.boot_volume_attachments.put(attachment, now)
    return volume


def _detach(near: NearOci, owner: OciInstance) -> str:
    """Detach the boot volume of an instance, and return it."""
    tenancy = near.tenancy
    (attached,) = tenancy.attachments_of(tenancy.boot_volume_attachments, owner)
    tenancy.link(tenancy.boot_volume_attachments, attached, AttachmentState.DETACHED, near.now)
    return attached.target_id


# The boot volume


@oci_story(judged=False)
async def test_a_boot_volume_that_was_detached_long_ago_is_left_alone(world: OciWorld) -> None:
    old = await world.oci_machine()
    mine = _boot_volume(world.near, old, AttachmentState.DETACHED)
    world.steward().start()
    world.controller().start()
    await world.operation("op", "HostReplace", "m1")
    assert (await _end(world))[0] == "Complete"
    assert world.near.strays() == [mine.id]


@oci_story(judged=False)
async def test_a_boot_volume_that_is_detached_meanwhile_is_not_deleted(world: OciWorld) -> None:
    old = await _begin(world, until="LaunchInstance")
    mine = _detach(world.near, old)
    phase, reason, message = await _end(world)
    assert (phase, reason) == ("Failed", reasons.WOULD_BE_LOST)
    assert f"boot volume {mine} was detached since the replacement of {old.id} began" in message
    assert world.near.strays() == [mine]


@oci_story(judged=False)
async def test_a_boot_volume_that_is_put_in_meanwhile_is_not_deleted(world: OciWorld) -> None:
    old = await _begin(world, until="LaunchInstance")
    first = _detach(world.near, old)
    other = _boot_volume(world.near, old, AttachmentState.ATTACHED)
    phase, reason, message = await _end(world)
    assert (phase, reason) == ("Failed", reasons.WOULD_BE_LOST)
    assert f"boot volume {other.id} was attached, boot volume {first} was detached since the replacement of" in message
    assert {world.near.tenancy.boot_volumes[each].state for each in (first, other.id)} == {ResourceState.AVAILABLE}


@oci_story(judged=False)
async def test_a_boot_volume_that_somebody_keeps_on_terminating_is_not_deleted(world: OciWorld) -> None:
    old = await _begin(world, until="LaunchInstance")
    (attached,) = world.near.tenancy.attachments_of(world.near.tenancy.boot_volume_attachments, old)
    terminate(world.near.tenancy, old, world.near.now, keep_boot_volume=True, keep_data_volumes=True)
    phase, reason, message = await _end(world)
    assert (phase, reason) == ("Failed", reasons.WOULD_BE_LOST)
    assert f"boot volume {attached.target_id} is left" in message
    assert world.near.strays() == [attached.target_id]


# Attachments and changes during a replacement


@oci_story(judged=False)
async def test_volume_attached_during_replacement_fails_it_by_name(world: OciWorld) -> None:
    old = await _begin(world, until="LaunchInstance")
    volume = attach_volume(world.near.tenancy, old, Disks(count=1), 3, world.near.now)
    phase, reason, message = await _end(world)
    assert (phase, reason) == ("Failed", reasons.WOULD_BE_LOST)
    assert f"volume {volume.id} was attached since the replacement of {old.id} began" in message
    assert f"the old instance {old.id} is STOPPED" in message
    assert "TerminateInstance" not in world.asked


@oci_story(judged=False)
async def test_it_goes_on_as_soon_as_what_was_attached_is_detached(world: OciWorld) -> None:
    tenancy = world.near.tenancy
    old = await _begin(world, until="LaunchInstance")
    attach_volume(tenancy, old, Disks(count=1), 3, world.near.now)
    await _handed_over(world)
    await asyncio.sleep(10)
    (attached,) = tenancy.attachments_of(tenancy.volume_attachments, old)
    tenancy.link(tenancy.volume_attachments, attached, AttachmentState.DETACHED, world.near.now)
    assert (await _end(world))[0] == "Complete"
    assert world.near.machines().keys() == {world.bound["m1"].removeprefix("oci://")}


@oci_story(judged=False)
async def test_message_names_the_launched_instance_of_a_rebound_machine(
    world: OciWorld,
) -> None:
    other = await world.oci_machine("m2")
    old = await world.oci_machine("m1")
    world.steward().start()
    first = world.controller().start()
    await world.operation("op", "HostReplace", "m1")
    await wait(lambda: "LaunchInstance" in world.asked)
    await first.stop()
    await world.api.patch(MACHINES, "m2", {"spec": {"providerID": f"oci://{old.id}"}})
    await world.api.patch(MACHINES, "m1", {"spec": {"providerID": f"oci://{other.id}"}})
    world.controller().start()
    phase, reason, message = await _end(world)
    assert (phase, reason) == ("Failed", common.TARGET_CHANGED)
    (ident,) = world.near.machines().keys() - {old.id, other.id}
    new = world.near.tenancy.instances[ident]
    tag = f"unbounded_machine_operation_uid: {new.freeform_tags['unbounded_machine_operation_uid']}"
    assert f"what is launched has freeform tag {tag}, name {new.name}, in {new.compartment_id}" in message
    assert "HostPowerOn starts the old one again once no such instance exists" in message


@oci_story(judged=False)
async def test_machine_bound_to_a_replaced_instance_gets_its_replacement_named(world: OciWorld) -> None:
    await _begin(world)
    assert (await _end(world))[0] == "Complete"
    new = world.bound["m1"]
    await world.api.patch(MACHINES, "m1", {"spec": {"providerID": world.first}})
    await world.operation("again", "HostReplace", "m1")
    phase, reason, message = await _end(world, "again")
    assert (phase, reason) == ("Failed", reasons.INSTANCE_NOT_FOUND)
    replaced = Cause(code=reasons.INSTANCE_REPLACED, about={reasons.PROVIDER_ID: new})
    assert (await world.get("again")).status.cause == replaced
    assert f"have spec.providerID of Machine m1 name {new}" in message


@pytest.mark.slow
@oci_story(judged=False)
async def test_what_replaced_an_instance_is_found_over_further_replacements(world: OciWorld) -> None:
    await _begin(world)
    assert (await _end(world))[0] == "Complete"
    for name in ("second", "third"):
        await world.operation(name, "HostReplace", "m1")
        assert (await _end(world, name))[0] == "Complete"
    newest = world.bound["m1"]
    await world.api.patch(MACHINES, "m1", {"spec": {"providerID": world.first}})
    await world.operation("again", "HostReplace", "m1")
    phase, reason, message = await _end(world, "again")
    assert (phase, reason) == ("Failed", reasons.INSTANCE_NOT_FOUND)
    assert f"was launched in its place by operation third: have spec.providerID of Machine m1 name {newest}" in message


@oci_story()
async def test_tags_that_are_changed_meanwhile_are_told(world: OciWorld) -> None:
    old = await _begin(world, until="LaunchInstance", freeform_tags={"team": "blue"})
    old.freeform_tags["team"] = "red"
    world.near.tenancy.instances.put(old, world.near.now)
    await world.until("op", lambda one: "its freeformTags as changed since" in (one.status.message or ""), within_s=600)
    assert (await _end(world))[0] == "Complete"


# The end

HELD_UP: Final[Mapping[str, Any]] = {
    "only": ("TerminateInstance",),
    "errors": ("IncorrectState",),
    "errors_go_on": True,
}


@oci_story(judged=False)
async def test_it_is_not_complete_where_the_replacement_is_gone_by_then(world: OciWorld) -> None:
    old = await _begin(world, until="TerminateInstance")
    new = await _handed_over(world)
    end(world.near.tenancy, new, world.near.now)
    phase, reason, message = await _end(world)
    assert (phase, reason) == ("Failed", reasons.INSTANCE_NOT_FOUND)
    assert f"its replacement {new.id} is TERMINATED" in message
    assert f"the old instance {old.id} is TERMINATED" in message


@oci_story(judged=False)
async def test_old_instance_stays_when_its_replacement_was_terminated(world: OciWorld) -> None:
    world.near.set_faults(**HELD_UP)
    old = await _begin(world, until="TerminateInstance")
    end(world.near.tenancy, await _handed_over(world), world.near.now)
    world.near.set_profile("ideal")
    phase, reason, message = await _end(world)
    assert (phase, reason) == ("Failed", reasons.INSTANCE_NOT_FOUND)
    assert f"bind the Machine to {world.first} again, and start the old one with HostPowerOn" in message
    assert world.near.machines().keys() == {old.id}


@oci_story(judged=False)
async def test_nothing_is_terminated_while_the_replacement_does_not_run(world: OciWorld) -> None:
    world.near.set_faults(**HELD_UP)
    old = await _begin(world, until="TerminateInstance")
    new = await _handed_over(world)
    world.near.set_profile("ideal")
    act(world.near.tenancy, new, InstanceAction.STOP, world.near.now)
    phase, reason, message = await _end(world)
    assert (phase, reason) == ("Failed", common.TIMED_OUT)
    assert f"the old instance {old.id} is STOPPED; its replacement {new.id} is STOPPED" in message


@pytest.mark.parametrize("only", [(), ("GetInstance",)])
def test_what_may_not_be_seen_any_more_is_not_taken_for_gone(only: tuple[str, ...]) -> None:
    @oci_story(judged=False)
    async def story(world: OciWorld) -> None:
        world.near.set_faults(**HELD_UP)
        old = await _begin(world, until="TerminateInstance")
        new = await _handed_over(world)
        world.near.set_faults(only=only, errors=("NotAuthorizedOrNotFound",), errors_go_on=True)
        phase, reason, message = await _end(world)
        assert (phase, reason) == ("Failed", common.TIMED_OUT)
        assert f"the old instance {old.id} is not listed; its replacement {new.id} is not listed" in message

    story()


@oci_story("terminate-leaves-the-boot-volume", judged=False)
async def test_unreadable_boot_volume_is_not_reported_as_deleted(world: OciWorld) -> None:
    await _begin(world, until="TerminateInstance")
    denied = {"only": ("GetBootVolume",), "errors": ("NotAuthorizedOrNotFound",), "errors_go_on": True}
    world.near.set_faults(terminate="leaves-boot-volume", **denied)
    phase, reason, message = await _end(world)
    (left,) = world.near.strays()
    assert (phase, reason) == ("Failed", common.TIMED_OUT)
    assert f"boot volume {left} may be left, and is not listed" in message


# Loss of the stored state


async def _lose_what_is_kept(world: OciWorld) -> None:
    (name,) = [each for _, each in world.api._collection(SECRETS).versions if each.startswith("replacement-")]
    await world.api.delete(SECRETS, name, namespace=NAMESPACE)


@oci_story()
async def test_replacement_with_lost_state_is_found_by_its_tags(world: OciWorld) -> None:
    await _begin(world, until="LaunchInstance")
    await asyncio.sleep(5)
    await _lose_what_is_kept(world)
    phase, _, message = await _end(world)
    assert phase == "Complete", message


@oci_story(judged=False)
async def test_state_lost_before_the_launch_names_the_old_instance(world: OciWorld) -> None:
    world.near.set_faults(only=("LaunchInstance",), errors=("OutOfHostCapacity",), errors_go_on=True)
    old = await _begin(world, until="LaunchInstance", within_s=120)
    await _lose_what_is_kept(world)
    phase, reason, message = await _end(world)
    assert (phase, reason) == ("Failed", common.DEADLINE_EXCEEDED)
    assert f"instance {old.id}, which is STOPPED, can be replaced" in message


# Remains of an earlier replacement


@oci_story(judged=False)
async def test_next_replacement_names_the_instance_left_by_an_earlier_one(world: OciWorld) -> None:
    denied = {"only": ("TerminateInstance",), "errors": ("NotAuthorizedOrNotFound",), "errors_go_on": True}
    world.near.set_faults(**denied)
    oldest = await _begin(world)
    assert (await _end(world))[:2] == ("Failed", reasons.AUTH_REFUSED)
    world.near.set_profile("ideal")
    await world.operation("op2", "HostReplace", "m1")
    phase, reason, message = await _end(world, "op2")
    assert (phase, reason) == ("Failed", reasons.PROVIDER_REFUSED)
    assert f"instance {oldest.id}, which is STOPPED, is still there" in message
    earlier = Cause(code=reasons.EARLIER_INSTANCE, about={reasons.INSTANCE: oldest.id})
    assert (await world.get("op2")).status.cause == earlier
    assert "was launched in its place by operation op, which did not come to its end" in message
    assert world.asked.count("STOP") == 1
    terminate(world.near.tenancy, oldest, world.near.now, keep_boot_volume=False, keep_data_volumes=True)
    await asyncio.sleep(60)
    await world.operation("op3", "HostReplace", "m1")
    assert (await _end(world, "op3"))[0] == "Complete"


# Missing rights before any change


@pytest.mark.parametrize("call", ["GetSubnet", "GetBootVolume", "GetVnic"])
def test_unreadable_prerequisite_rejects_a_replacement_before_any_change(call: str) -> None:
    @oci_story(judged=False)
    async def story(world: OciWorld) -> None:
        world.near.set_faults(only=(call,), errors=("NotAuthorizedOrNotFound",), errors_go_on=True)
        await _begin(world)
        phase, reason, message = await _end(world)
        assert (phase, reason) == ("Failed", reasons.AUTH_REFUSED)
        assert "does not exist, or MachineOperationCredential oci has no permission" in message
        assert world.asked == []

    story()
