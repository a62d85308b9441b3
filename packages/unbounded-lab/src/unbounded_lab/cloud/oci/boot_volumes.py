"""Replacement of an instance's boot volume: UpdateInstance with sourceDetails.

According to the SDK's models, the new boot volume is made from an image, or exists already. A running instance is
stopped for that and started again, unless the request forbids it. isPreserveBootVolumeEnabled keeps the old boot
volume.
"""

from __future__ import annotations

import msgspec

from unbounded_lab.cloud.oci.details import SourceDetails, UpdateSource
from unbounded_lab.cloud.oci.errors import OciProblem, invalid, not_found
from unbounded_lab.cloud.oci.launch_rules import image_of
from unbounded_lab.cloud.oci.launching import attach_boot_volume, settle
from unbounded_lab.cloud.oci.lifecycle import SETTLED, InstanceState
from unbounded_lab.cloud.oci.model import (
    Attachment,
    AttachmentState,
    LabWorkRequest,
    OciInstance,
    ResourceState,
    Volume,
)
from unbounded_lab.cloud.oci.tenancy import Tenancy
from unbounded_lab.cloud.oci.work_requests import begin_work, end_work


def check_source(tenancy: Tenancy, instance: OciInstance, source: UpdateSource, *, may_stop: bool) -> None:
    """Check a new boot source against the rules.

    Raises:
        Problem: the instance cannot boot from it, or not now.
    """
    if instance.state not in SETTLED:
        raise OciProblem("Conflict", f"instance {instance.id} is {instance.state.value}, try again later")
    if instance.launch.preemptible_instance_config is not None:
        raise invalid(f"sourceDetails: instance {instance.id} is preemptible")
    if instance.state is InstanceState.RUNNING and not may_stop:
        raise invalid(
            "updateOperationConstraint: replacing the boot volume needs a reboot, which AVOID_DOWNTIME forbids"
        )
    if source.source_type == "image":
        image_of(tenancy, _of_image(source), tenancy.shapes[instance.launch.shape])
        if source.kms_key_id and not tenancy.permitted.has("key", source.kms_key_id):
            raise not_found()
        return
    if source.boot_volume_id is None:
        raise OciProblem("MissingParameter", "sourceDetails.bootVolumeId is missing")
    volume = tenancy.boot_volumes.get(source.boot_volume_id)
    if volume is None or volume.state is not ResourceState.AVAILABLE:
        raise not_found()
    if any(each.is_attached and each.target_id == volume.id for each in tenancy.boot_volume_attachments):
        raise OciProblem("Conflict", f"Boot volume {volume.id} is attached to an instance")


def replace_boot_volume(tenancy: Tenancy, instance: OciInstance, source: UpdateSource, now: float) -> LabWorkRequest:
    """Begin to replace an instance's boot volume; it ends in the state that it had before."""
    tenancy.begin(instance, now)
    tenancy.record(now, instance, "asked", "ReplaceBootVolume")
    work = begin_work(tenancy, "UpdateInstance", instance, now)
    if instance.state is InstanceState.STOPPED:
        tenancy.later_for(
            instance, now + tenancy.times.boot_s, lambda at: _swapped(tenancy, instance, source, work, at)
        )
        return work
    tenancy.enter(instance, InstanceState.STOPPING, now)
    tenancy.later_for(instance, now + tenancy.times.stop_s, lambda at: _start_anew(tenancy, instance, source, work, at))
    return work


def _start_anew(tenancy: Tenancy, instance: OciInstance, source: UpdateSource, work: LabWorkRequest, at: float) -> None:
    _swap(tenancy, instance, source, at)
    tenancy.enter(instance, InstanceState.STARTING, at)
    tenancy.later_for(instance, at + tenancy.times.boot_s, lambda then: _arrive(tenancy, instance, work, then))


def _arrive(tenancy: Tenancy, instance: OciInstance, work: LabWorkRequest, at: float) -> None:
    tenancy.enter(instance, InstanceState.RUNNING, at)
    end_work(tenancy, work, at)


def _swapped(tenancy: Tenancy, instance: OciInstance, source: UpdateSource, work: LabWorkRequest, at: float) -> None:
    _swap(tenancy, instance, source, at)
    end_work(tenancy, work, at)


def _swap(tenancy: Tenancy, instance: OciInstance, source: UpdateSource, at: float) -> None:
    for attachment in list(tenancy.attachments_of(tenancy.boot_volume_attachments, instance)):
        tenancy.link(tenancy.boot_volume_attachments, attachment, AttachmentState.DETACHED, at)
        volume = tenancy.boot_volumes.get(attachment.target_id)
        if volume is not None and not source.is_preserve_boot_volume_enabled:
            tenancy.end_volume(tenancy.boot_volumes, volume, at)
    if source.source_type == "image":
        of_image = _of_image(source)
        instance.image_id = str(of_image.image_id)
        instance.launch = msgspec.structs.replace(instance.launch, source_details=of_image)
        attach_boot_volume(tenancy, instance, of_image, at)
    else:
        _attach(tenancy, instance, tenancy.boot_volumes[str(source.boot_volume_id)], at)
    settle(tenancy, instance, at)
    tenancy.instances.put(instance, at)


def _attach(tenancy: Tenancy, instance: OciInstance, volume: Volume, at: float) -> None:
    where = (instance.compartment_id, instance.availability_domain)
    attachment = Attachment(instance.id, instance.id, volume.id, *where, at, name="Remote boot attachment for instance")
    tenancy.boot_volume_attachments.put(attachment, at)


def _of_image(source: UpdateSource) -> SourceDetails:
    return SourceDetails(
        source_type="image",
        image_id=source.image_id,
        boot_volume_size_in_gbs=source.boot_volume_size_in_gbs,
        kms_key_id=source.kms_key_id,
    )
