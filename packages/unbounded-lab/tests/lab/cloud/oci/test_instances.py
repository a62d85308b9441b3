"""Instances through Oracle's SDK: what they are, how they are launched, moved through their life, and found."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import oci
import oci.core
import pytest

from tests.lab.cloud.oci.sdk import Sdk, serving
from unbounded_lab.cloud.oci import InstanceAction, InstanceState, LabOci, OciTimes
from unbounded_lab.cloud.oci.lifecycle import EFFECTS
from unbounded_lab.cloud.oci.seeding import Disks

pytestmark = pytest.mark.slow

MODELS = oci.core.models
DAY_S = 86_400.0


async def test_everything_about_an_instance_can_be_read() -> None:
    async with serving() as (cloud, sdk, _):
        tenancy = cloud.tenancy
        instance = cloud.add_instance(
            "worker",
            vnics=2,
            data_volumes=Disks(count=2),
            nsg_ids=(tenancy.nsg_id,),
            skip_source_dest_check=True,
            freeform_tags={"team": "blue"},
            defined_tags={"Operations": {"CostCenter": "42"}},
        )
        here = {"compartment_id": tenancy.compartment_id, "instance_id": instance.id}
        shown = (await sdk.ask(sdk.compute.get_instance, instance.id)).data
        assert (shown.lifecycle_state, shown.freeform_tags) == ("RUNNING", {"team": "blue"})
        assert shown.defined_tags == {"Operations": {"CostCenter": "42"}}
        vnics = [
            (await sdk.ask(sdk.network.get_vnic, each.vnic_id)).data
            for each in (await sdk.ask(sdk.compute.list_vnic_attachments, **here)).data
        ]
        primary = next(each for each in vnics if each.is_primary)
        assert (len(vnics), primary.nsg_ids, primary.skip_source_dest_check) == (2, [tenancy.nsg_id], True)
        assert (await sdk.ask(sdk.network.get_subnet, primary.subnet_id)).data.prohibit_public_ip_on_vnic is False
        volumes = (await sdk.ask(sdk.compute.list_volume_attachments, **here)).data
        assert [each.lifecycle_state for each in volumes] == ["ATTACHED", "ATTACHED"]
        assert (await sdk.ask(sdk.storage.get_volume, volumes[0].volume_id)).data.size_in_gbs == 100
        boots = await sdk.ask(
            sdk.compute.list_boot_volume_attachments, availability_domain=shown.availability_domain, **here
        )
        boot = (await sdk.ask(sdk.storage.get_boot_volume, boots.data[0].boot_volume_id)).data
        assert (boot.image_id, boot.lifecycle_state) == (shown.image_id, "AVAILABLE")


async def test_what_a_replacement_looks_up_beforehand_is_there() -> None:
    async with serving() as (cloud, sdk, _):
        where = cloud.tenancy.compartment_id
        for shape, arch in (("VM.Standard3.Flex", ""), ("VM.Standard.A1.Flex", "aarch64-")):
            found = await sdk.ask(
                sdk.compute.list_images,
                where,
                operating_system="Canonical Ubuntu",
                operating_system_version="24.04",
                shape=shape,
                lifecycle_state="AVAILABLE",
                sort_by="TIMECREATED",
                sort_order="DESC",
            )
            assert [each.display_name.startswith(f"Canonical-Ubuntu-24.04-{arch}2") for each in found.data] == [
                True
            ] * 2
            assert found.data[0].time_created > found.data[1].time_created
            assert (await sdk.ask(sdk.compute.get_image, found.data[0].id)).data == found.data[0]
        shapes = (await sdk.ask(sdk.compute.list_shapes, where)).data
        assert {each.shape for each in shapes if not each.is_flexible} >= {"VM.Standard2.2", "BM.Standard.E5.192"}
        assert len((await sdk.ask(sdk.identity.list_availability_domains, where)).data) == 3
        subnets = (await sdk.ask(sdk.network.list_subnets, where)).data
        assert sorted(each.prohibit_public_ip_on_vnic for each in subnets) == [False, True]


async def test_a_launch_takes_its_time_and_shows_it() -> None:
    async with serving() as (cloud, sdk, clock):
        user_data = base64.b64encode(b"#cloud-config").decode()
        details = sdk.launch_details(
            metadata={"user_data": user_data},
            freeform_tags={"unbounded_machine": "worker"},
            fault_domain="FAULT-DOMAIN-3",
        )
        launched = await sdk.ask(sdk.compute.launch_instance, details)
        ident, work = launched.data.id, launched.headers["opc-work-request-id"]
        assert (launched.data.lifecycle_state, launched.data.metadata) == ("PROVISIONING", {"user_data": user_data})
        attachments = {"compartment_id": cloud.tenancy.compartment_id, "instance_id": ident}
        assert (await sdk.ask(sdk.compute.list_vnic_attachments, **attachments)).data == []
        clock.move(0.5)
        attached = (await sdk.ask(sdk.compute.list_vnic_attachments, **attachments)).data
        assert [each.lifecycle_state for each in attached] == ["ATTACHING"]
        assert (await sdk.ask(sdk.work.get_work_request, work)).data.status == "IN_PROGRESS"
        clock.move(1.5)
        assert await sdk.state(ident) == "RUNNING"
        vnic = (await sdk.ask(sdk.network.get_vnic, attached[0].vnic_id)).data
        assert (vnic.lifecycle_state, bool(vnic.public_ip)) == ("AVAILABLE", True)
        done = (await sdk.ask(sdk.work.get_work_request, work)).data
        assert (done.status, done.resources[0].identifier) == ("SUCCEEDED", ident)
        assert [each.what for each in cloud.history.of("Instance", "fresh")] == ["created", "state", "on"]


RICH: dict[str, Any] = {
    "agentConfig": {"isMonitoringDisabled": True, "pluginsConfig": [{"name": "Bastion", "desiredState": "ENABLED"}]},
    "availabilityConfig": {"isLiveMigrationPreferred": True, "recoveryAction": "STOP_INSTANCE"},
    "instanceOptions": {"areLegacyImdsEndpointsDisabled": True},
    "platformConfig": {"type": "INTEL_VM", "isSecureBootEnabled": True},
    "preemptibleInstanceConfig": {"preemptionAction": {"type": "TERMINATE", "preserveBootVolume": False}},
    "ipxeScript": "#!ipxe",
    "securityAttributes": {"Zone": {"level": {"value": "2", "mode": "enforce"}}},
    "licensingConfigs": [{"type": "WINDOWS", "licenseType": "BRING_YOUR_OWN_LICENSE"}],
    "isPvEncryptionInTransitEnabled": True,
    "isAIEnterpriseEnabled": False,
}


def copied(shown: Any, kind: Any, *names: str) -> Any:
    """Details for a launch, with some of the fields of what is shown."""
    return kind(**{name: getattr(shown, name) for name in names if getattr(shown, name) is not None})


async def test_an_instance_is_replaced_by_one_like_it() -> None:
    async with serving() as (cloud, sdk, clock):
        tenancy = cloud.tenancy
        tenancy.permitted.ids.add("ocid1.capacityreservation.lab")
        old = cloud.add_instance(
            "worker",
            nsg_ids=(tenancy.nsg_id,),
            freeform_tags={"team": "blue"},
            launch=RICH | {"capacityReservationId": "ocid1.capacityreservation.lab"},
        )
        shown = (await sdk.ask(sdk.compute.get_instance, old.id)).data
        attached = await sdk.ask(sdk.compute.list_vnic_attachments, tenancy.compartment_id, instance_id=old.id)
        nic = (await sdk.ask(sdk.network.get_vnic, attached.data[0].vnic_id)).data
        details = copied(
            shown,
            MODELS.LaunchInstanceDetails,
            *("availability_domain", "fault_domain", "compartment_id", "capacity_reservation_id", "display_name"),
            *("shape", "defined_tags", "extended_metadata", "ipxe_script", "instance_options", "security_attributes"),
        )
        details.shape_config = copied(
            shown.shape_config, MODELS.LaunchInstanceShapeConfigDetails, "ocpus", "vcpus", "memory_in_gbs"
        )
        details.availability_config = copied(
            shown.availability_config,
            MODELS.LaunchInstanceAvailabilityConfigDetails,
            *("is_live_migration_preferred", "recovery_action"),
        )
        details.agent_config = copied(
            shown.agent_config, MODELS.LaunchInstanceAgentConfigDetails, "is_monitoring_disabled", "plugins_config"
        )
        details.source_details = MODELS.InstanceSourceViaImageDetails(image_id=shown.image_id)
        details.create_vnic_details = copied(
            nic, MODELS.CreateVnicDetails, "subnet_id", "nsg_ids", "skip_source_dest_check"
        )
        details.create_vnic_details.assign_public_ip = True
        details.freeform_tags = shown.freeform_tags | {"unbounded_old_provider_id": f"oci://{old.id}"}
        error = await sdk.failure(sdk.compute.instance_action, old.id, "STOP")
        assert "is preemptible" in error.message
        new = (await sdk.ask(sdk.compute.launch_instance, details, opc_retry_token="operation-1")).data
        clock.move(2.0)
        assert await sdk.state(new.id) == "RUNNING"
        for name in (
            "shape_config",
            "availability_config",
            "agent_config",
            "instance_options",
            "capacity_reservation_id",
        ):
            assert getattr(new, name) == getattr(shown, name), name
        await sdk.ask(sdk.compute.terminate_instance, old.id, preserve_boot_volume=False)
        clock.move(1.0)
        assert (list(cloud.machines()), cloud.alive("worker")) == ([new.id], [new.id])
        assert cloud.strays() == []
        history = cloud.history
        assert history.max_concurrent("created", "deleted", kind="Instance", name="worker") == 2
        assert history.max_concurrent("on", "off", kind="Instance", name="worker") == 2  # it is preemptible


async def test_a_retry_token_makes_one_instance() -> None:
    async with serving() as (cloud, sdk, clock):
        details, token = sdk.launch_details(), "unbounded-machine-op-launch-replacement-1"
        first = await sdk.ask(sdk.compute.launch_instance, details, opc_retry_token=token)
        clock.move(2.0)
        again = await sdk.ask(sdk.compute.launch_instance, details, opc_retry_token=token)
        assert (again.data.id, again.data.lifecycle_state) == (first.data.id, "RUNNING")
        assert again.headers["opc-work-request-id"] == first.headers["opc-work-request-id"]
        other = sdk.launch_details(display_name="another")
        error = await sdk.failure(sdk.compute.launch_instance, other, opc_retry_token=token)
        assert (error.status, error.code) == (409, "InvalidatedRetryToken")
        clock.move(DAY_S)
        late = await sdk.ask(sdk.compute.launch_instance, details, opc_retry_token=token)
        assert late.data.id != first.data.id
        assert len(cloud.machines()) == 2


async def test_a_retry_token_ends_with_what_it_made() -> None:
    async with serving() as (cloud, sdk, clock):
        details = sdk.launch_details()
        made = (await sdk.ask(sdk.compute.launch_instance, details, opc_retry_token="once")).data.id
        await sdk.ask(sdk.compute.terminate_instance, made)
        clock.move(1.0)
        again = await sdk.ask(sdk.compute.launch_instance, details, opc_retry_token="once")
        assert (again.data.id, again.data.lifecycle_state) == (made, "TERMINATED")
        clock.move(DAY_S / 2)
        assert (await sdk.failure(sdk.compute.get_instance, made)).status == 404
        error = await sdk.failure(sdk.compute.launch_instance, details, opc_retry_token="once")
        assert (error.status, error.code) == (409, "InvalidatedRetryToken")
        assert cloud.machines() == {}


async def test_a_power_action_with_a_retry_token_is_carried_out_once() -> None:
    async with serving() as (cloud, sdk, clock):
        ident = cloud.add_instance("worker").id

        def resets() -> int:
            return sum((each.what, each.detail) == ("asked", "RESET") for each in cloud.history.of("Instance"))

        for pause_s in (0.5, 10.0, 0.0):  # in progress, and after the end
            await sdk.ask(sdk.compute.instance_action, ident, "RESET", opc_retry_token="once")
            clock.move(pause_s)
        assert resets() == 1
        error = await sdk.failure(sdk.compute.instance_action, ident, "STOP", opc_retry_token="once")
        assert (error.status, error.code) == (409, "InvalidatedRetryToken")
        await sdk.ask(sdk.compute.instance_action, ident, "RESET", opc_retry_token="another")
        assert resets() == 2
        error = await sdk.failure(sdk.compute.instance_action, ident, "RESET", opc_retry_token="once")
        assert (error.status, error.code) == (409, "InvalidatedRetryToken")


async def test_invalid_launch_is_rejected_with_the_message_of_the_service() -> None:
    async with serving() as (cloud, sdk, _):
        config = MODELS.LaunchInstanceShapeConfigDetails(ocpus=1.0, memory_in_gbs=512.0)
        error = await sdk.failure(sdk.compute.launch_instance, sdk.launch_details(shape_config=config))
        assert (error.status, error.code) == (400, "InvalidParameter")
        ratio = "Current ratio: 512.0. Valid ratio range: 1 - 64"
        assert error.message == f"Invalid ratio of memory in GB to OCPUs. {ratio}"
        error = await sdk.failure(sdk.compute.launch_instance, sdk.launch_details(), opc_retry_token="")
        assert (error.status, error.message) == (400, "opc-retry-token size must be between 1 and 64")
        assert cloud.machines() == {}


async def test_a_public_ip_is_what_the_subnet_and_the_request_say() -> None:
    async with serving() as (cloud, sdk, clock):
        public, private = cloud.tenancy.public_subnet.id, cloud.tenancy.private_subnet.id
        for subnet, asked, given in (
            (public, None, True),
            (public, False, False),
            (private, None, False),
            (private, False, False),
        ):
            vnic = MODELS.CreateVnicDetails(subnet_id=subnet, assign_public_ip=asked)
            details = sdk.launch_details(create_vnic_details=vnic)
            await sdk.ask(sdk.compute.launch_instance, details)
            clock.move(2.0)
            newest = list(cloud.tenancy.vnics)[-1]
            assert (newest.subnet_id, newest.public_ip is not None) == (subnet, given)


async def through(sdk: Sdk, ident: str, clock: Any, *seconds: float) -> Sequence[str]:
    states = [await sdk.state(ident)]
    for each in seconds:
        clock.move(each)
        states.append(await sdk.state(ident))
    return states


async def test_power_actions_are_followed_through_their_states() -> None:
    async with serving() as (cloud, sdk, clock):
        ident = cloud.add_instance("worker").id
        for action, seconds, states in (
            ("STOP", (0.9, 0.1), ["STOPPING", "STOPPING", "STOPPED"]),
            ("START", (1.0,), ["STARTING", "RUNNING"]),
            ("RESET", (1.0, 1.0), ["STOPPING", "STARTING", "RUNNING"]),
            ("SOFTRESET", (2.0, 1.0), ["STOPPING", "STARTING", "RUNNING"]),
            ("SOFTSTOP", (2.0,), ["STOPPING", "STOPPED"]),
        ):
            answer = await sdk.ask(sdk.compute.instance_action, ident, action)
            assert answer.data.lifecycle_state == states[0]
            assert await through(sdk, ident, clock, *seconds) == states, action
        switched = [each.what for each in cloud.history.of("Instance") if each.what in ("on", "off")]
        assert switched == ["on", "off", "on", "off"]


def test_every_action_has_an_effect_in_every_state() -> None:
    assert EFFECTS.keys() == set(InstanceState)
    assert all(row.keys() == set(InstanceAction) for row in EFFECTS.values())


async def test_what_a_state_does_not_allow_is_refused() -> None:
    async with serving() as (cloud, sdk, clock):
        ident = cloud.add_instance("worker", state=InstanceState.STOPPED).id
        for action in ("STOP", "SOFTSTOP", "RESET", "SOFTRESET"):
            error = await sdk.failure(sdk.compute.instance_action, ident, action)
            assert (error.status, error.code) == (409, "IncorrectState"), action
        await sdk.ask(sdk.compute.instance_action, ident, "START")
        error = await sdk.failure(sdk.compute.instance_action, ident, "STOP")
        assert (error.status, error.code) == (409, "Conflict")
        clock.move(1.0)
        await sdk.ask(sdk.compute.terminate_instance, ident)
        assert (await sdk.failure(sdk.compute.instance_action, ident, "START")).code == "IncorrectState"
        await sdk.ask(sdk.compute.terminate_instance, ident)
        clock.move(1.0)
        assert (await sdk.failure(sdk.compute.terminate_instance, ident)).code == "IncorrectState"


async def test_terminating_takes_what_belongs_to_it_along() -> None:
    async with serving() as (cloud, sdk, clock):
        ident = cloud.add_instance("worker", data_volumes=Disks(count=1)).id
        answer = await sdk.ask(sdk.compute.terminate_instance, ident)
        assert await through(sdk, ident, clock, 1.0) == ["TERMINATING", "TERMINATED"]
        assert (
            await sdk.ask(sdk.work.get_work_request, answer.headers["opc-work-request-id"])
        ).data.status == "SUCCEEDED"
        data = next(iter(cloud.tenancy.volumes))
        assert list(cloud.strays()) == [data.id]
        assert [each.state.value for each in cloud.tenancy.boot_volumes] == ["TERMINATED"]
        assert (await sdk.failure(sdk.compute.instance_action, ident, "START")).status == 409
        clock.move(DAY_S / 2 - 0.5)
        assert await sdk.state(ident) == "TERMINATED"
        clock.move(1.0)
        assert (await sdk.failure(sdk.compute.get_instance, ident)).code == "NotAuthorizedOrNotFound"
        where = cloud.tenancy.compartment_id
        assert (await sdk.ask(sdk.compute.list_vnic_attachments, where, instance_id=ident)).data == []


async def test_a_boot_volume_is_kept_on_request_and_can_be_deleted_then() -> None:
    async with serving() as (cloud, sdk, clock):
        ident = cloud.add_instance("worker").id
        volume = next(iter(cloud.tenancy.boot_volumes)).id
        assert (await sdk.failure(sdk.storage.delete_boot_volume, volume)).status == 409
        await sdk.ask(sdk.compute.terminate_instance, ident, preserve_boot_volume=True)
        clock.move(1.0)
        assert cloud.strays() == [volume]
        await sdk.ask(sdk.storage.delete_boot_volume, volume)
        assert cloud.strays() == []
        here = {"availability_domain": "lAbX:PHX-AD-1", "compartment_id": cloud.tenancy.compartment_id}
        listed = (await sdk.ask(sdk.storage.list_boot_volumes, **here)).data
        assert [each.lifecycle_state for each in listed] == ["TERMINATED"]


async def test_volumes_made_with_the_instance_have_to_be_spoken_of() -> None:
    async with serving() as (cloud, sdk, clock):
        ident = cloud.add_instance("worker", data_volumes=Disks(count=1, created_at_launch=True)).id
        error = await sdk.failure(sdk.compute.terminate_instance, ident)
        assert (error.status, "preserveDataVolumesCreatedAtLaunch" in error.message) == (400, True)
        await sdk.ask(sdk.compute.terminate_instance, ident, preserve_data_volumes_created_at_launch=False)
        clock.move(1.0)
        assert cloud.strays() == []


async def test_lists_are_filtered_ordered_and_come_in_pages() -> None:
    async with serving() as (cloud, sdk, clock):
        for number in range(5):
            cloud.add_instance(
                f"worker-{number}", state=InstanceState.STOPPED if number == 3 else InstanceState.RUNNING
            )
            clock.move(1.0)
        find, where = sdk.compute.list_instances, cloud.tenancy.compartment_id

        async def names(**query: Any) -> list[str]:
            return [each.display_name for each in (await sdk.ask(find, where, **query)).data]

        assert await names() == [f"worker-{number}" for number in (4, 3, 2, 1, 0)]
        assert await names(sort_by="DISPLAYNAME") == [f"worker-{number}" for number in range(5)]
        assert await names(display_name="worker-2", availability_domain="lAbX:PHX-AD-1") == ["worker-2"]
        assert await names(lifecycle_state="STOPPED") == ["worker-3"]
        assert await names(availability_domain="lAbX:PHX-AD-2") == []
        first = await sdk.ask(find, where, limit=2)
        assert (len(first.data), first.has_next_page) == (2, True)
        every = await sdk.ask(oci.pagination.list_call_get_all_results, find, where, limit=2)
        assert [each.display_name for each in every.data] == [f"worker-{number}" for number in (4, 3, 2, 1, 0)]
        assert (await sdk.failure(find, where, page="nonsense")).status == 400
        assert (await sdk.failure(find, "ocid1.compartment.oc1..other")).status == 404


async def test_an_etag_guards_against_what_happened_in_between() -> None:
    async with serving() as (cloud, sdk, clock):
        ident = cloud.add_instance("worker").id
        etag = (await sdk.ask(sdk.compute.get_instance, ident)).headers["etag"]
        await sdk.ask(sdk.compute.instance_action, ident, "STOP", if_match=etag)
        clock.move(1.0)
        for call, *args in (
            (sdk.compute.instance_action, ident, "START"),
            (sdk.compute.terminate_instance, ident),
            (sdk.compute.update_instance, ident, MODELS.UpdateInstanceDetails(display_name="other")),
        ):
            error = await sdk.failure(call, *args, if_match=etag)
            assert (error.status, error.code) == (412, "NoEtagMatch")
        assert cloud.machines()[ident].state is InstanceState.STOPPED


async def test_user_data_cannot_be_changed_after_the_launch() -> None:
    async with serving() as (cloud, sdk, _):
        ident = cloud.add_instance("worker", metadata={"user_data": "b2xk", "note": "a"}).id
        update = MODELS.UpdateInstanceDetails
        error = await sdk.failure(sdk.compute.update_instance, ident, update(metadata={"user_data": "bmV3"}))
        assert (error.status, "user_data" in error.message) == (400, True)
        changed = update(metadata={"user_data": "b2xk", "note": "b"}, freeform_tags={"a": "b"}, display_name="renamed")
        shown = (await sdk.ask(sdk.compute.update_instance, ident, changed)).data
        assert (shown.metadata["note"], shown.freeform_tags, shown.display_name) == ("b", {"a": "b"}, "renamed")


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_boot_volume_is_replaced_by_one_of_another_image(keeps: bool) -> None:
    async with serving() as (cloud, sdk, clock):
        ident = cloud.add_instance("worker").id
        (old,) = cloud.tenancy.boot_volumes
        image = next(each for each in cloud.tenancy.images if each.version == "22.04" and not each.arm)
        source = MODELS.UpdateInstanceSourceViaImageDetails(
            image_id=image.id, boot_volume_size_in_gbs=80, is_preserve_boot_volume_enabled=keeps
        )
        update = MODELS.UpdateInstanceDetails(source_details=source)
        answer = await sdk.ask(sdk.compute.update_instance, ident, update)
        assert await sdk.state(ident) == "STOPPING"
        clock.move(60.0)
        assert await sdk.state(ident) == "RUNNING"
        work = await sdk.ask(sdk.work.get_work_request, answer.headers["opc-work-request-id"])
        assert work.data.status == "SUCCEEDED"
        shown = (await sdk.ask(sdk.compute.get_instance, ident)).data
        assert (shown.image_id, shown.source_details.image_id) == (image.id, image.id)
        where = (shown.availability_domain, shown.compartment_id)
        attached = await sdk.ask(sdk.compute.list_boot_volume_attachments, *where, instance_id=ident)
        (now,) = [each.boot_volume_id for each in attached.data if each.lifecycle_state == "ATTACHED"]
        assert now != old.id
        assert (await sdk.ask(sdk.storage.get_boot_volume, now)).data.size_in_gbs == 80
        assert old.state.value == ("AVAILABLE" if keeps else "TERMINATED")
        if keeps:
            back = MODELS.UpdateInstanceSourceViaBootVolumeDetails(boot_volume_id=old.id)
            await sdk.ask(sdk.compute.update_instance, ident, MODELS.UpdateInstanceDetails(source_details=back))
            clock.move(60.0)
            attached = await sdk.ask(sdk.compute.list_boot_volume_attachments, *where, instance_id=ident)
            assert [each.boot_volume_id for each in attached.data if each.lifecycle_state == "ATTACHED"] == [old.id]


async def test_a_boot_volume_is_not_replaced_where_it_cannot_be() -> None:
    async with serving() as (cloud, sdk, _):
        ident = cloud.add_instance("worker").id
        (volume,) = cloud.tenancy.boot_volumes
        arm, intel = (
            next(each.id for each in cloud.tenancy.images if each.arm is arm and each.version == "24.04")
            for arm in (True, False)
        )
        of_image, of_volume = (
            MODELS.UpdateInstanceSourceViaImageDetails,
            MODELS.UpdateInstanceSourceViaBootVolumeDetails,
        )
        for source, constraint, status in (
            (of_image(image_id=arm), "ALLOW_DOWNTIME", 400),
            (of_image(image_id=intel), "AVOID_DOWNTIME", 400),
            (of_image(image_id="ocid1.image.gone"), "ALLOW_DOWNTIME", 404),
            (of_volume(boot_volume_id=volume.id), "ALLOW_DOWNTIME", 409),
        ):
            update = MODELS.UpdateInstanceDetails(source_details=source, update_operation_constraint=constraint)
            assert (await sdk.failure(sdk.compute.update_instance, ident, update)).status == status
        assert await sdk.state(ident) == "RUNNING"


async def test_the_waiters_of_the_sdk_get_what_they_wait_for() -> None:
    async with LabOci(times=OciTimes(provision_s=0.0, terminate_s=0.1)) as cloud:
        sdk = Sdk(cloud)
        composite = oci.core.ComputeClientCompositeOperations(sdk.compute, work_request_client=sdk.work)
        launched = await sdk.ask(composite.launch_instance_and_wait_for_work_request, sdk.launch_details())
        ident = launched.data.resources[0].identifier
        assert await sdk.state(ident) == "RUNNING"
        quick = {"waiter_kwargs": {"max_interval_seconds": 1}}
        ended = await sdk.ask(composite.terminate_instance_and_wait_for_work_request, ident, **quick)
        assert ended.data.status == "SUCCEEDED"
        assert cloud.machines() == {}


async def test_what_the_service_does_not_have_is_said() -> None:
    async with serving() as (cloud, sdk, _):
        error = await sdk.failure(sdk.compute.list_dedicated_vm_hosts, cloud.tenancy.compartment_id)
        assert (error.status, error.code) == (404, "NotFound")
        error = await sdk.failure(sdk.network.delete_subnet, cloud.tenancy.public_subnet.id)
        assert (error.status, error.code) == (405, "MethodNotAllowed")
        error = await sdk.failure(sdk.compute.instance_action, cloud.add_instance("worker").id, "DANCE")
        assert (error.status, error.code) == (400, "InvalidParameter")
        error = await sdk.failure(sdk.compute.launch_instance, "{")
        assert (error.status, error.code) == (400, "CannotParseRequest")
        error = await sdk.failure(sdk.compute.launch_instance, '{"colour": "red"}')
        assert (error.status, error.code, "colour" in error.message) == (400, "InvalidParameter", True)
