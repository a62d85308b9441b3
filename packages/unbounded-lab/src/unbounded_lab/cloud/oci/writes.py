"""Calls that change resources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from unbounded_lab.cloud.history import HistoryMap
from unbounded_lab.cloud.oci import model
from unbounded_lab.cloud.oci.details import PowerAction, SourceDetails, Update, UpdateSource, parsed
from unbounded_lab.cloud.oci.errors import OciProblem, invalid, not_found, problem_named
from unbounded_lab.cloud.oci.launch_rules import check_metadata, check_tags, image_of
from unbounded_lab.cloud.oci.launching import attach_boot_volume, earlier_result, launch, settle
from unbounded_lab.cloud.oci.lifecycle import LIVE, POWER_ACTIONS, SETTLED, InstanceAction, InstanceState
from unbounded_lab.cloud.oci.power import act, begin_work, end_work, terminate
from unbounded_lab.cloud.oci.reads import Query, json_reply, one_of
from unbounded_lab.cloud.oci.tenancy import RetryToken, Tenancy
from unbounded_lab.http import LabReply, LabRequest

Write = Callable[[Tenancy, tuple[str, ...], Query, LabRequest, float], LabReply]
FIXED_METADATA = ("user_data", "ssh_authorized_keys")

T = TypeVar("T")


def launch_instance(
    tenancy: Tenancy, _ids: tuple[str, ...], _query: Query, request: LabRequest, now: float
) -> LabReply:
    instance, work_id = launch(tenancy, request.body, request.headers.get("opc-retry-token"), now)
    shown = tenancy.instances.latest(instance)
    return json_reply(shown.body, etag=shown.etag, opc_work_request_id=work_id)


def instance_action(tenancy: Tenancy, ids: tuple[str, ...], query: Query, request: LabRequest, now: float) -> LabReply:
    instance = _found(tenancy.instances, ids[0], request)
    requested = one_of(query, "action", *POWER_ACTIONS)
    if requested is None:
        raise OciProblem("MissingParameter", "action is missing")
    if request.body and parsed(request.body, PowerAction).action_type != requested.lower():
        raise invalid(f"actionType has to be that of the action {requested}")
    token = request.headers.get("opc-retry-token")
    request_digest = f"{instance.id} {requested} ".encode() + request.body
    if (used := earlier_result(tenancy, token, request_digest, now)) is None:
        work = act(tenancy, instance, InstanceAction(requested), now)
        work_id = work.id if work is not None and tenancy.faults.action_work == "told" else ""
        used = RetryToken(now, request_digest, instance.id, work_id, instance.turn)
        if token is not None:
            tenancy.tokens[token] = used
    shown = tenancy.instances.latest(instance)
    return json_reply(shown.body, etag=shown.etag, opc_work_request_id=used.work_request_id or None)


def update_instance(tenancy: Tenancy, ids: tuple[str, ...], _query: Query, request: LabRequest, now: float) -> LabReply:
    instance = _found(tenancy.instances, ids[0], request)
    if instance.state not in LIVE:
        raise OciProblem("IncorrectState", f"Instance {instance.id} is {instance.state.value}")
    update = parsed(request.body, Update)
    _check_update(tenancy, instance, update)
    instance.name = instance.name if update.display_name is None else update.display_name
    for name in ("freeform_tags", "defined_tags", "metadata", "extended_metadata"):
        if getattr(update, name) is not None:
            setattr(instance, name, dict(getattr(update, name)))
    tenancy.instances.put(instance, now)
    if update.source_details is not None:
        work = replace_boot_volume(tenancy, instance, update.source_details, now)
    else:
        work = begin_work(tenancy, "UpdateInstance", instance, now)
        end_work(tenancy, work, now)
    shown = tenancy.instances.latest(instance)
    return json_reply(shown.body, etag=shown.etag, opc_work_request_id=work.id)


def _check_update(tenancy: Tenancy, instance: model.OciInstance, update: Update) -> None:
    if update.metadata is not None:
        for key in FIXED_METADATA:
            if update.metadata.get(key) != instance.metadata.get(key):
                raise invalid(f"metadata: {key} cannot be changed after launch")
        check_metadata(update.metadata, update.extended_metadata or instance.extended_metadata)
    check_tags(tenancy, update.freeform_tags or {}, update.defined_tags or {})
    if update.source_details is not None:
        may_stop = update.update_operation_constraint != "AVOID_DOWNTIME"
        check_source(tenancy, instance, update.source_details, may_stop=may_stop)


def terminate_instance(
    tenancy: Tenancy, ids: tuple[str, ...], query: Query, request: LabRequest, now: float
) -> LabReply:
    instance = _found(tenancy.instances, ids[0], request)
    # for the drives of bare metal, without a visible effect
    one_of(query, "recycleLevel", "FULL_RECYCLE", "SKIP_RECYCLE")
    work = terminate(
        tenancy,
        instance,
        now,
        keep_boot_volume=_flag(query, "preserveBootVolume") or False,
        keep_data_volumes=_flag(query, "preserveDataVolumesCreatedAtLaunch"),
    )
    return LabReply(204, headers={} if work is None else {"opc-work-request-id": work.id})


def delete_boot_volume(
    tenancy: Tenancy, ids: tuple[str, ...], _query: Query, request: LabRequest, now: float
) -> LabReply:
    volume = _found(tenancy.boot_volumes, ids[0], request)
    if any(each.is_attached and each.target_id == volume.id for each in tenancy.boot_volume_attachments):
        raise OciProblem("Conflict", f"Boot volume {volume.id} is attached to an instance")
    if volume.state is model.ResourceState.TERMINATED:
        raise not_found()
    tenancy.end_volume(tenancy.boot_volumes, volume, now)
    return LabReply(204)


def _found(shelf: HistoryMap[Any], ident: str, request: LabRequest) -> Any:
    """Return the true resource, if If-Match fits its present ETag.

    Raises:
        OciProblem: it does not exist, or If-Match has an older ETag.
    """
    thing = shelf.get(ident)
    if thing is None:
        raise not_found()
    given = request.headers.get("if-match")
    if given not in (None, "*", shelf.latest(thing).etag):
        raise problem_named("NoEtagMatch")
    return thing


def _flag(query: Query, name: str) -> bool | None:
    value = one_of(query, name, "true", "false")
    return None if value is None else value == "true"


def check_source(tenancy: Tenancy, instance: model.OciInstance, source: UpdateSource, *, may_stop: bool) -> None:
    """Check a new boot source against the rules.

    Raises:
        OciProblem: the instance cannot boot from it, or not now.
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
    if volume is None or volume.state is not model.ResourceState.AVAILABLE:
        raise not_found()
    if any(each.is_attached and each.target_id == volume.id for each in tenancy.boot_volume_attachments):
        raise OciProblem("Conflict", f"Boot volume {volume.id} is attached to an instance")


def replace_boot_volume(
    tenancy: Tenancy, instance: model.OciInstance, source: UpdateSource, now: float
) -> model.LabWorkRequest:
    """Begin to replace an instance's boot volume; it ends in the state that it had before.

    According to the SDK's models, the new boot volume is made from an image, or exists already. A running instance is
    stopped for that and started again, unless the request forbids it. isPreserveBootVolumeEnabled keeps the old one.
    """
    tenancy.begin(instance, now)
    tenancy.record(now, instance, "asked", "ReplaceBootVolume")
    work = begin_work(tenancy, "UpdateInstance", instance, now)
    if instance.state is InstanceState.STOPPED:
        tenancy.later_for(
            instance, now + tenancy.times.boot_s, lambda at: _swapped(tenancy, instance, source, work, at)
        )
        return work
    tenancy.enter(instance, InstanceState.STOPPING, now)
    tenancy.later_for(
        instance, now + tenancy.times.stop_s, lambda at: _start_again(tenancy, instance, source, work, at)
    )
    return work


def _start_again(
    tenancy: Tenancy, instance: model.OciInstance, source: UpdateSource, work: model.LabWorkRequest, at: float
) -> None:
    _swap(tenancy, instance, source, at)
    tenancy.enter(instance, InstanceState.STARTING, at)
    tenancy.later_for(instance, at + tenancy.times.boot_s, lambda then: _arrive(tenancy, instance, work, then))


def _arrive(tenancy: Tenancy, instance: model.OciInstance, work: model.LabWorkRequest, at: float) -> None:
    tenancy.enter(instance, InstanceState.RUNNING, at)
    end_work(tenancy, work, at)


def _swapped(
    tenancy: Tenancy, instance: model.OciInstance, source: UpdateSource, work: model.LabWorkRequest, at: float
) -> None:
    _swap(tenancy, instance, source, at)
    end_work(tenancy, work, at)


def _swap(tenancy: Tenancy, instance: model.OciInstance, source: UpdateSource, at: float) -> None:
    for attachment in list(tenancy.attachments_of(tenancy.boot_volume_attachments, instance)):
        tenancy.link(tenancy.boot_volume_attachments, attachment, model.AttachmentState.DETACHED, at)
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


def _attach(tenancy: Tenancy, instance: model.OciInstance, volume: model.Volume, at: float) -> None:
    where = (instance.compartment_id, instance.availability_domain)
    attachment = model.Attachment(
        instance.id, instance.id, volume.id, *where, at, name="Remote boot attachment for instance"
    )
    tenancy.boot_volume_attachments.put(attachment, at)


def _of_image(source: UpdateSource) -> SourceDetails:
    return SourceDetails(
        source_type="image",
        image_id=source.image_id,
        boot_volume_size_in_gbs=source.boot_volume_size_in_gbs,
        kms_key_id=source.kms_key_id,
    )
