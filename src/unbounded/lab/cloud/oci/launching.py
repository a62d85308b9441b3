"""LaunchInstance: the rules that a request has to follow, and what it makes."""

from __future__ import annotations

import hashlib
from itertools import islice
from typing import Any, Final

import msgspec

from unbounded.lab.cloud.oci import names
from unbounded.lab.cloud.oci.details import CreateVnic, DefinedTags, Launch, ShapeConfig, parsed
from unbounded.lab.cloud.oci.errors import SAID, Problem, invalid, not_found, said
from unbounded.lab.cloud.oci.lifecycle import State
from unbounded.lab.cloud.oci.model import (
    Attachment,
    Image,
    Instance,
    Link,
    Presence,
    Shape,
    Subnet,
    Vnic,
    Volume,
    WorkRequest,
)
from unbounded.lab.cloud.oci.power import end
from unbounded.lab.cloud.oci.shelf import Shelf
from unbounded.lab.cloud.oci.tenancy import Tenancy, Token
from unbounded.lab.cloud.oci.work import begin_work, end_work

METADATA_BYTES: Final = 32_000
FREEFORM_TAGS: Final = 10
TAG_KEY_LENGTH: Final = 100
TAG_VALUE_LENGTH: Final = 256
BOOT_VOLUME_GB: Final = 50
TOKEN_LENGTH: Final = 64


def launch(tenancy: Tenancy, body: bytes, token: str | None, now: float) -> tuple[Instance, str]:
    """Make an instance, or find the one that the same token made before; with the id of its work request.

    Raises:
        Problem: the request breaks a rule, the token was used for another one, or there is no room.
    """
    if token is not None and len(token) > TOKEN_LENGTH:
        raise invalid(f"opc-retry-token size must be between 1 and {TOKEN_LENGTH}")
    request = hashlib.sha256(body).digest()
    if token is not None and (earlier := _earlier(tenancy, token, request, now)) is not None:
        return earlier
    details = parsed(body, Launch)
    shape, image, subnet = check(tenancy, details)
    _check_room(tenancy, shape)
    instance = make(tenancy, details, image, now)
    vnic_at = now + tenancy.dials.vnic_late_s
    tenancy.later_for(instance, vnic_at, lambda at: _join(tenancy, instance, subnet, at))
    work = _provision(tenancy, instance, now)
    if token is not None:
        tenancy.tokens[token] = Token(now, request, instance.id, work.id)
    return instance, work.id


def _earlier(tenancy: Tenancy, token: str, request: bytes, now: float) -> tuple[Instance, str] | None:
    used = tenancy.tokens.get(token)
    if used is None or now - used.at >= tenancy.dials.retry_token_s:
        return None
    instance = tenancy.instances.get(used.instance_id)
    if instance is None or used.request != request:  # purged, or another body
        raise said("InvalidatedRetryToken")
    return instance, used.work_request_id


# Rules


def check(tenancy: Tenancy, details: Launch) -> tuple[Shape, Image, Subnet]:
    """Hold a launch against the rules.

    Raises:
        Problem: it breaks one.
    """
    if details.compartment_id not in (tenancy.id, tenancy.compartment_id):
        raise not_found()
    if details.availability_domain not in names.AVAILABILITY_DOMAINS:
        raise invalid(f"availabilityDomain: {details.availability_domain} is not one of this tenancy")
    if details.fault_domain is not None and details.fault_domain not in names.FAULT_DOMAINS:
        raise invalid(f"faultDomain: {details.fault_domain} is not in {details.availability_domain}")
    shape = tenancy.shapes.get(details.shape)
    if shape is None:
        raise Problem("NotAuthorizedOrNotFound", f"shape {details.shape} not found")
    _check_shape(shape, details.shape_config)
    check_metadata(details.metadata, details.extended_metadata)
    check_tags(tenancy, details.freeform_tags, details.defined_tags)
    _check_references(tenancy, details)
    return shape, _image(tenancy, details, shape), _subnet(tenancy, details)


def _check_shape(shape: Shape, config: ShapeConfig) -> None:
    if config.nvmes and not shape.local_disks:
        raise invalid(f"shapeConfig: {shape.name} has no local drives")
    if not shape.flexible:
        if config.ocpus not in (None, shape.ocpus) or config.memory_in_gbs not in (None, shape.memory_gb):
            raise invalid(f"shapeConfig: {shape.name} is not a flexible shape")
        return
    if config.ocpus is None and config.vcpus is None:
        raise invalid(f"shapeConfig: ocpus have to be given for the flexible shape {shape.name}")
    if config.ocpus is not None and config.ocpus > shape.max_ocpus:
        raise invalid(f"shapeConfig: {shape.name} has at most {shape.max_ocpus:g} ocpus")
    if config.memory_in_gbs is not None and config.memory_in_gbs > shape.max_memory_gb:
        raise invalid(f"shapeConfig: {shape.name} has at most {shape.max_memory_gb:g} GB of memory")


def check_metadata(metadata: dict[str, str], extended: dict[str, Any]) -> None:
    size = len(msgspec.json.encode(metadata)) + (len(msgspec.json.encode(extended)) if extended else 0)
    if size > METADATA_BYTES:
        raise invalid(f"metadata and extendedMetadata have {size} bytes together; at most {METADATA_BYTES} are allowed")


def check_tags(tenancy: Tenancy, freeform: dict[str, str], defined: DefinedTags) -> None:
    if len(freeform) > FREEFORM_TAGS:
        raise invalid(f"freeformTags: there are {len(freeform)}; at most {FREEFORM_TAGS} are allowed")
    for key, value in freeform.items():
        if not 1 <= len(key) <= TAG_KEY_LENGTH or len(value) > TAG_VALUE_LENGTH:
            raise invalid(
                f"freeformTags: {key!r} has to have at most {TAG_KEY_LENGTH} characters, its value {TAG_VALUE_LENGTH}"
            )
    for namespace in defined:
        if namespace not in tenancy.permitted.tag_namespaces:
            raise invalid(f"definedTags: the tag namespace {namespace} does not exist")


def _check_references(tenancy: Tenancy, details: Launch) -> None:
    permitted = tenancy.permitted
    references = (
        (details.capacity_reservation_id, permitted.capacity_reservation_ids),
        (details.cluster_placement_group_id, permitted.cluster_placement_group_ids),
        (details.dedicated_vm_host_id, permitted.dedicated_vm_host_ids),
        *((nsg_id, permitted.nsg_ids) for nsg_id in details.create_vnic_details.nsg_ids),
    )
    if any(ident is not None and ident not in known for ident, known in references):
        raise not_found()


def _image(tenancy: Tenancy, details: Launch, shape: Shape) -> Image:
    source = details.source_details
    if source is not None and source.source_type != "image":
        raise invalid(f"sourceDetails.sourceType: the lab launches from an image, not from {source.source_type}")
    ident = source.image_id if source is not None else details.image_id
    if ident is None:
        raise Problem("MissingParameter", "sourceDetails.imageId is missing")
    image = tenancy.images.get(ident)
    if image is None:
        raise not_found()
    if image.state != "AVAILABLE":
        raise Problem("IncorrectState", f"Image {ident} is {image.state}")
    if not image.fits(shape):
        raise invalid(f"Shape {shape.name} is not valid for image {ident}")
    return image


def _subnet(tenancy: Tenancy, details: Launch) -> Subnet:
    vnic = details.create_vnic_details
    ident = vnic.subnet_id or details.subnet_id
    if ident is None:
        raise Problem("MissingParameter", "createVnicDetails.subnetId is missing")
    subnet = tenancy.subnets.get(ident)
    if subnet is None:
        raise not_found()
    if subnet.availability_domain not in (None, details.availability_domain):
        raise invalid(f"subnetId: {ident} is in {subnet.availability_domain}, not in {details.availability_domain}")
    if vnic.assign_public_ip and subnet.prohibits_public_ip:
        raise invalid(f"assignPublicIp: subnet {ident} prohibits public IPs on VNICs")
    if vnic.assign_ipv6_ip:
        raise invalid(f"assignIpv6Ip: subnet {ident} has no IPv6 network")
    _check_free(tenancy, subnet, vnic, vnic.hostname_label or details.hostname_label)
    return subnet


def _check_free(tenancy: Tenancy, subnet: Subnet, wanted: CreateVnic, label: str | None) -> None:
    for other in tenancy.vnics:
        if other.subnet_id != subnet.id or other.state is Presence.TERMINATED:
            continue
        if label is not None and other.hostname_label == label:
            raise invalid(f"hostnameLabel: {label} is taken in subnet {subnet.id}")
        if wanted.private_ip == other.private_ip:
            raise invalid(f"privateIp: {other.private_ip} is taken in subnet {subnet.id}")


def _check_room(tenancy: Tenancy, shape: Shape) -> None:
    dials = tenancy.dials
    used = sum(each.launch.shape == shape.name for each in tenancy.live())
    if dials.shape_limit is not None and used >= dials.shape_limit:
        count = f"{shape.name.removeprefix('VM.').removesuffix('.Flex').replace('.', '-').lower()}-core-count"
        raise Problem(
            "LimitExceeded",
            f"The following service limits were exceeded: {count}. Request a service limit increase from the "
            "service limits page in the console. ",
        )


# What it makes


def make(tenancy: Tenancy, details: Launch, image: Image, now: float) -> Instance:
    """An instance with its boot volume, PROVISIONING; it has no VNIC yet."""
    ident = tenancy.new_id("instance")
    instance = Instance(
        ident,
        details.display_name or f"instance{tenancy.numbers}",
        details,
        image.id,
        now,
        freeform_tags=dict(details.freeform_tags),
        defined_tags=dict(details.defined_tags),
        metadata=dict(details.metadata),
        extended_metadata=dict(details.extended_metadata),
        fault_domain=details.fault_domain or names.FAULT_DOMAINS[tenancy.numbers % len(names.FAULT_DOMAINS)],
    )
    tenancy.instances.put(instance, now)
    tenancy.note(now, instance, "created")
    source = details.source_details
    _attach_boot_volume(tenancy, instance, (source and source.boot_volume_size_in_gbs) or BOOT_VOLUME_GB, now)
    return instance


def _attach_boot_volume(tenancy: Tenancy, instance: Instance, size_gb: int, now: float) -> None:
    where = (instance.compartment_id, instance.availability_domain)
    volume = Volume(
        tenancy.new_id("bootvolume"), f"{instance.name} (Boot Volume)", *where, size_gb, now, instance.image_id
    )
    tenancy.boot_volumes.put(volume, now)
    tenancy.note(now, volume, "created")
    attachment = Attachment(
        instance.id, instance.id, volume.id, *where, now, name="Remote boot attachment for instance"
    )
    tenancy.boot_volume_attachments.put(attachment, now)


def attach_vnic(tenancy: Tenancy, instance: Instance, subnet: Subnet, now: float, *, primary: bool = True) -> Vnic:
    """Give an instance a VNIC with an address of its subnet, ATTACHING."""
    wanted, details = instance.launch.create_vnic_details, instance.launch
    public = not subnet.prohibits_public_ip if wanted.assign_public_ip is None else wanted.assign_public_ip
    ident = tenancy.new_id("vnic")
    vnic = Vnic(
        ident,
        wanted.display_name or instance.name,
        instance.compartment_id,
        instance.availability_domain,
        subnet.id,
        (wanted.private_ip if primary else None) or _free_address(tenancy, subnet),
        names.public_ip(tenancy.numbers) if public else None,
        names.mac(ident),
        wanted.nsg_ids,
        wanted.skip_source_dest_check,
        (wanted.hostname_label or details.hostname_label) if primary else None,
        now,
        dict(wanted.freeform_tags),
        dict(wanted.defined_tags),
        dict(wanted.security_attributes),
        is_primary=primary,
    )
    tenancy.vnics.put(vnic, now)
    where = (instance.compartment_id, instance.availability_domain)
    ident = tenancy.new_id("vnicattachment")
    tenancy.vnic_attachments.put(
        Attachment(ident, instance.id, vnic.id, *where, now, name=vnic.name, subnet_id=subnet.id), now
    )
    return vnic


def _free_address(tenancy: Tenancy, subnet: Subnet) -> str:
    """The first address that no VNIC has; a subnet keeps its first two and its last for itself."""
    taken = {vnic.private_ip for vnic in tenancy.vnics if vnic.state is not Presence.TERMINATED}
    usable = map(str, islice(subnet.network.hosts(), 1, None))
    address = next((each for each in usable if each not in taken), None)
    if address is None:
        raise Problem("LimitExceeded", f"Subnet {subnet.id} has no free address")
    return address


def _join(tenancy: Tenancy, instance: Instance, subnet: Subnet, at: float) -> None:
    """Give a new instance its VNIC; one that is RUNNING already has it at once."""
    attach_vnic(tenancy, instance, subnet, at)
    if instance.state is State.RUNNING:
        settle(tenancy, instance, at)


def _provision(tenancy: Tenancy, instance: Instance, now: float) -> WorkRequest:
    """Have an instance come up, or not, as the dials say."""
    work = begin_work(tenancy, "LaunchInstance", instance, now)
    done = now + tenancy.times.provision_s
    if tenancy.spend("lost_launches"):
        tenancy.later_for(instance, done, lambda at: _lose(tenancy, instance, work, at))
    elif not tenancy.dials.launch_never_ends:
        tenancy.later_for(instance, done, lambda at: _arrive(tenancy, instance, work, at))
    return work


def _arrive(tenancy: Tenancy, instance: Instance, work: WorkRequest, at: float) -> None:
    settle(tenancy, instance, at)
    tenancy.enter(instance, State.RUNNING, at)
    end_work(tenancy, work, at)


def settle(tenancy: Tenancy, instance: Instance, at: float) -> None:
    """Bring what belongs to a new instance to its place: attached and available."""
    for attachment in _attached(tenancy, tenancy.vnic_attachments, instance, at):
        vnic = tenancy.vnics[attachment.target_id]
        vnic.state = Presence.AVAILABLE
        tenancy.vnics.put(vnic, at)
    for shelf, volumes in (
        (tenancy.boot_volume_attachments, tenancy.boot_volumes),
        (tenancy.volume_attachments, tenancy.volumes),
    ):
        for attachment in _attached(tenancy, shelf, instance, at):
            volume = volumes[attachment.target_id]
            volume.state = Presence.AVAILABLE
            volumes.put(volume, at)


def _attached(tenancy: Tenancy, shelf: Shelf[Attachment], instance: Instance, at: float) -> list[Attachment]:
    held = list(tenancy.held(shelf, instance))
    for attachment in held:
        tenancy.link(shelf, attachment, Link.ATTACHED, at)
    return held


def _lose(tenancy: Tenancy, instance: Instance, work: WorkRequest, at: float) -> None:
    """The end of a launch that was accepted and finds no host: the instance is gone with all that was made for it."""
    end(tenancy, instance, at)
    end_work(tenancy, work, at, error=SAID["OutOfHostCapacity"])
