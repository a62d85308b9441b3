"""Calls that change resources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from unbounded_lab.cloud.oci.boot_volumes import check_source, replace_boot_volume
from unbounded_lab.cloud.oci.details import PowerAction, Update, parsed
from unbounded_lab.cloud.oci.errors import OciProblem, invalid, not_found, problem_named
from unbounded_lab.cloud.oci.history_map import HistoryMap
from unbounded_lab.cloud.oci.launch_rules import check_metadata, check_tags
from unbounded_lab.cloud.oci.launching import earlier_result, launch
from unbounded_lab.cloud.oci.lifecycle import LIVE, POWER_ACTIONS, InstanceAction
from unbounded_lab.cloud.oci.model import OciInstance, ResourceState
from unbounded_lab.cloud.oci.power import act, terminate
from unbounded_lab.cloud.oci.reads import Query, json_reply, one_of
from unbounded_lab.cloud.oci.tenancy import RetryToken, Tenancy
from unbounded_lab.cloud.oci.work_requests import begin_work, end_work
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
        told = work.id if work is not None and tenancy.dials.action_work == "told" else ""
        used = RetryToken(now, request_digest, instance.id, told, instance.turn)
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


def _check_update(tenancy: Tenancy, instance: OciInstance, update: Update) -> None:
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
    if volume.state is ResourceState.TERMINATED:
        raise not_found()
    tenancy.end_volume(tenancy.boot_volumes, volume, now)
    return LabReply(204)


def _found(shelf: HistoryMap[Any], ident: str, request: LabRequest) -> Any:
    """Return the true resource, if If-Match fits its present ETag.

    Raises:
        Problem: it does not exist, or If-Match has an older ETag.
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
