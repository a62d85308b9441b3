"""LaunchInstance: the resources that it creates, and their way to RUNNING."""

from __future__ import annotations

import hashlib
from typing import Final

from unbounded_lab.cloud.history import HistoryMap
from unbounded_lab.cloud.oci import model
from unbounded_lab.cloud.oci.details import Launch, SourceDetails, parsed
from unbounded_lab.cloud.oci.errors import OciProblem, problem_named
from unbounded_lab.cloud.oci.launch_rules import check, check_token, conflict_of
from unbounded_lab.cloud.oci.lifecycle import InstanceState
from unbounded_lab.cloud.oci.power import NO_HOST, begin_work, end, end_work
from unbounded_lab.cloud.oci.tenancy import RetryToken, Tenancy

BOOT_VOLUME_GB: Final = 50


def launch(tenancy: Tenancy, body: bytes, token: str | None, now: float) -> tuple[model.OciInstance, str]:
    """Create an instance, or find the one of an earlier request with the same token; with the id of its work request.

    Raises:
        OciProblem: the request breaks a rule, the token was used for another one, or a limit is reached.
    """
    request = hashlib.sha256(body).digest()
    if (used := earlier_result(tenancy, token, request, now)) is not None:
        return tenancy.instances[used.instance_id], used.work_request_id
    details = parsed(body, Launch)
    shape, image, subnet = check(tenancy, details)
    _check_room(tenancy, shape)
    instance = make(tenancy, details, image, now)
    work = _provision(tenancy, instance, now)
    vnic_at = now + tenancy.faults.vnic_late_s
    tenancy.later_for(instance, vnic_at, lambda at: _join(tenancy, instance, subnet, work, at))
    if token is not None:
        tenancy.tokens[token] = RetryToken(now, request, instance.id, work.id)
    return instance, work.id


def earlier_result(tenancy: Tenancy, token: str | None, request: bytes, now: float) -> RetryToken | None:
    """Return the result of an earlier request with this token, which is not executed again; None without one.

    Raises:
        OciProblem: the token is invalid, it was used for another request, or a later change has invalidated it.
    """
    check_token(token)
    used = tenancy.tokens.get(token or "")
    if used is None or now - used.at >= tenancy.faults.retry_token_s:
        return None
    instance = tenancy.instances.get(used.instance_id)
    if instance is None or used.request != request or used.turn not in (None, instance.turn):
        raise problem_named("InvalidatedRetryToken")
    return used


def _check_room(tenancy: Tenancy, shape: model.OciShape) -> None:
    faults = tenancy.faults
    used = sum(each.launch.shape == shape.name for each in tenancy.live())
    if faults.shape_limit is not None and used >= faults.shape_limit:
        count = f"{shape.name.removeprefix('VM.').removesuffix('.Flex').replace('.', '-').lower()}-core-count"
        raise OciProblem(
            "LimitExceeded",
            f"The following service limits were exceeded: {count}. Request a service limit increase from the "
            "service limits page in the console. ",
        )


def make(tenancy: Tenancy, details: Launch, image: model.OciImage, now: float) -> model.OciInstance:
    """Create an instance with its boot volume, PROVISIONING; it has no VNIC yet."""
    ident = tenancy.new_id("instance")
    instance = model.OciInstance(
        ident,
        details.display_name or f"instance{tenancy.numbers}",
        details,
        image.id,
        now,
        freeform_tags=dict(details.freeform_tags),
        defined_tags=dict(details.defined_tags),
        metadata=dict(details.metadata),
        extended_metadata=dict(details.extended_metadata),
        fault_domain=details.fault_domain or model.FAULT_DOMAINS[tenancy.numbers % len(model.FAULT_DOMAINS)],
    )
    tenancy.instances.put(instance, now)
    tenancy.record(now, instance, "created")
    attach_boot_volume(tenancy, instance, details.source_details or SourceDetails(source_type="image"), now)
    return instance


def attach_boot_volume(tenancy: Tenancy, instance: model.OciInstance, source: SourceDetails, now: float) -> None:
    """Create a boot volume from the instance's image, ATTACHING."""
    where = (instance.compartment_id, instance.availability_domain)
    volume = model.Volume(
        tenancy.new_id("bootvolume"),
        f"{instance.name} (Boot Volume)",
        *where,
        source.boot_volume_size_in_gbs or BOOT_VOLUME_GB,
        now,
        instance.image_id,
        vpus_per_gb=source.boot_volume_vpus_per_gb or model.BALANCED_VPUS,
        kms_key_id=source.kms_key_id,
    )
    tenancy.boot_volumes.put(volume, now)
    tenancy.record(now, volume, "created")
    attachment = model.Attachment(
        instance.id, instance.id, volume.id, *where, now, name="Remote boot attachment for instance"
    )
    tenancy.boot_volume_attachments.put(attachment, now)


def attach_vnic(
    tenancy: Tenancy, instance: model.OciInstance, subnet: model.OciSubnet, now: float, *, primary: bool = True
) -> model.Vnic:
    """Create a VNIC of an instance with an address of its subnet, ATTACHING."""
    requested, details = instance.launch.create_vnic_details, instance.launch
    public = not subnet.prohibits_public_ip if requested.assign_public_ip is None else requested.assign_public_ip
    ident = tenancy.new_id("vnic")
    vnic = model.Vnic(
        ident,
        requested.display_name or instance.name,
        instance.compartment_id,
        instance.availability_domain,
        subnet.id,
        (requested.private_ip if primary else None) or _free_address(tenancy, subnet),
        model.public_ip(tenancy.numbers) if public else None,
        model.mac(ident),
        requested.nsg_ids,
        requested.skip_source_dest_check,
        (requested.hostname_label or details.hostname_label) if primary else None,
        now,
        dict(requested.freeform_tags),
        dict(requested.defined_tags),
        dict(requested.security_attributes),
        is_primary=primary,
    )
    tenancy.vnics.put(vnic, now)
    where = (instance.compartment_id, instance.availability_domain)
    ident = tenancy.new_id("vnicattachment")
    tenancy.vnic_attachments.put(
        model.Attachment(ident, instance.id, vnic.id, *where, now, name=vnic.name, subnet_id=subnet.id), now
    )
    return vnic


def _free_address(tenancy: Tenancy, subnet: model.OciSubnet) -> str:
    """Return the first address without a VNIC."""
    used = {vnic.private_ip for vnic in tenancy.vnics if vnic.state is not model.ResourceState.TERMINATED}
    address = next((each for each in subnet.addresses() if each not in used), None)
    if address is None:
        raise OciProblem("LimitExceeded", f"Subnet {subnet.id} has no free address")
    return address


def _join(
    tenancy: Tenancy, instance: model.OciInstance, subnet: model.OciSubnet, work: model.LabWorkRequest, at: float
) -> None:
    """Create a new instance's VNIC. A RUNNING one is settled at once; if the VNIC is impossible, it is lost."""
    if (trouble := conflict_of(tenancy, subnet, instance.launch)) is not None:
        words = f"A problem occurred while preparing the instance's VNIC. ({trouble})"
        _fail_launch(tenancy, instance, work, at, ("Conflict", words))
        return
    attach_vnic(tenancy, instance, subnet, at)
    if instance.state is InstanceState.RUNNING:
        settle(tenancy, instance, at)


def _provision(tenancy: Tenancy, instance: model.OciInstance, now: float) -> model.LabWorkRequest:
    """Let an instance come up, or fail, as the faults require."""
    work = begin_work(tenancy, "LaunchInstance", instance, now)
    done = now + tenancy.times.provision_s
    if tenancy.spend("lost_launches"):
        tenancy.later_for(instance, done, lambda at: _fail_launch(tenancy, instance, work, at, NO_HOST))
    elif not tenancy.faults.launch_never_ends:
        tenancy.later_for(instance, done, lambda at: _arrive(tenancy, instance, work, at))
    return work


def _arrive(tenancy: Tenancy, instance: model.OciInstance, work: model.LabWorkRequest, at: float) -> None:
    settle(tenancy, instance, at)
    tenancy.enter(instance, InstanceState.RUNNING, at)
    end_work(tenancy, work, at)


def settle(tenancy: Tenancy, instance: model.OciInstance, at: float) -> None:
    """Complete the resources of a new instance: attached and available."""
    for attachment in _attached(tenancy, tenancy.vnic_attachments, instance, at):
        vnic = tenancy.vnics[attachment.target_id]
        vnic.state = model.ResourceState.AVAILABLE
        tenancy.vnics.put(vnic, at)
    for shelf, volumes in (
        (tenancy.boot_volume_attachments, tenancy.boot_volumes),
        (tenancy.volume_attachments, tenancy.volumes),
    ):
        for attachment in _attached(tenancy, shelf, instance, at):
            volume = volumes[attachment.target_id]
            volume.state = model.ResourceState.AVAILABLE
            volumes.put(volume, at)


def _attached(
    tenancy: Tenancy, shelf: HistoryMap[model.Attachment], instance: model.OciInstance, at: float
) -> list[model.Attachment]:
    attachments = list(tenancy.attachments_of(shelf, instance))
    for attachment in attachments:
        tenancy.link(shelf, attachment, model.AttachmentState.ATTACHED, at)
    return attachments


def _fail_launch(
    tenancy: Tenancy, instance: model.OciInstance, work: model.LabWorkRequest, at: float, error: tuple[str, str]
) -> None:
    """Fail an accepted launch that is impossible: the instance is gone with all its resources."""
    end(tenancy, instance, at)
    end_work(tenancy, work, at, error=error)
