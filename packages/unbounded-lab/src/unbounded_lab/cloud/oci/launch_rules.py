"""Rules of a launch, checked before anything is created.

Messages are the service's own where a thread on GitHub shows them; it is named beside them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from ipaddress import IPv4Address
from typing import Any, Final

import msgspec

from unbounded_lab.cloud.oci import model
from unbounded_lab.cloud.oci.details import CreateVnic, DefinedTags, Launch, ShapeConfig, SourceDetails
from unbounded_lab.cloud.oci.errors import OciProblem, invalid, not_found
from unbounded_lab.cloud.oci.model import OciImage, OciShape, OciSubnet, ResourceState, Vnic
from unbounded_lab.cloud.oci.tenancy import Tenancy

METADATA_BYTES: Final = 32_000
FREEFORM_TAGS: Final = 10
DEFINED_TAGS: Final = 64
TAG_KEY_LENGTH: Final = 100
TAG_VALUE_LENGTH: Final = 256
TOKEN_LENGTH: Final = 64
GB: Final = 1024
LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
"""A host name: RFC 952 and RFC 1123."""


def check_token(token: str | None) -> None:
    """Check a retry token.

    Raises:
        OciProblem: it is empty, or too long.
    """
    if token is not None and not 1 <= len(token) <= TOKEN_LENGTH:
        raise invalid(f"opc-retry-token size must be between 1 and {TOKEN_LENGTH}")


def check(tenancy: Tenancy, details: Launch) -> tuple[OciShape, OciImage, OciSubnet]:
    """Check a launch against the rules.

    Raises:
        OciProblem: it breaks one.
    """
    if details.compartment_id not in (tenancy.id, tenancy.compartment_id):
        raise not_found()
    if details.availability_domain not in model.AVAILABILITY_DOMAINS:
        raise invalid(f"availabilityDomain: {details.availability_domain} is not one of this tenancy")
    if details.fault_domain is not None and details.fault_domain not in model.FAULT_DOMAINS:
        raise invalid(f"faultDomain: {details.fault_domain} is not in {details.availability_domain}")
    shape = tenancy.shapes.get(details.shape)
    if shape is None:
        raise OciProblem("NotAuthorizedOrNotFound", f"shape {details.shape} not found")
    _check_shape(shape, details.shape_config)
    _check_platform(shape, details)
    check_metadata(details.metadata, details.extended_metadata)
    vnic = details.create_vnic_details
    for each in (details, vnic):
        check_tags(tenancy, each.freeform_tags, each.defined_tags)
    if details.security_attributes and vnic.security_attributes:
        raise invalid("securityAttributes: they can be given for the instance or for its VNIC, not for both")
    for kind, idents in _references(details):
        if not all(tenancy.permitted.has(kind, ident) for ident in idents if ident):
            raise not_found()
    return shape, _image(tenancy, details, shape), _subnet(tenancy, details)


def _check_shape(shape: OciShape, config: ShapeConfig) -> None:
    if config.nvmes and not shape.local_disks:
        raise invalid(f"shapeConfig: {shape.name} has no local drives")
    if shape.flexible:
        _check_flexible(shape, config)
    elif config.ocpus not in (None, shape.ocpus) or config.memory_in_gbs not in (None, shape.memory_gb):
        raise invalid(f"shapeConfig: {shape.name} is not a flexible shape")


def _check_flexible(shape: OciShape, config: ShapeConfig) -> None:
    if config == ShapeConfig():  # oracle/oci-ansible-modules#142
        raise invalid("Invalid ShapeConfig: null (Cannot launch flexible instance without ShapeConfig)")
    if config.ocpus is None and config.vcpus is None:
        raise invalid(f"shapeConfig: ocpus have to be given for the flexible shape {shape.name}")
    if config.vcpus is not None and config.vcpus % shape.threads:
        raise invalid(f"shapeConfig: vcpus have to be a multiple of {shape.threads}")
    ocpus = shape.ocpus_of(config)
    if not shape.ocpus <= ocpus <= shape.max_ocpus:
        raise invalid(f"shapeConfig: {shape.name} has at least {shape.ocpus:g} and at most {shape.max_ocpus:g} ocpus")
    memory_gb = shape.memory_of(config)
    if memory_gb > shape.max_memory_gb:
        raise invalid(f"shapeConfig: {shape.name} has at most {shape.max_memory_gb:g} GB of memory")
    low, high = shape.gb_per_ocpu
    if not low <= memory_gb / ocpus <= high:  # oracle/oci-python-sdk#358
        ratio = f"Current ratio: {memory_gb / ocpus}. Valid ratio range: {low:g} - {high:g}"
        raise invalid(f"Invalid ratio of memory in GB to OCPUs. {ratio}")
    if config.nvmes not in (None, shape.drives_of(config)):
        raise invalid(f"shapeConfig: {shape.name} has {shape.drives_of(config)} nvmes for {ocpus:g} ocpus")


def _check_platform(shape: OciShape, details: Launch) -> None:
    platform = details.platform_config
    if platform is None:
        return
    vendor = platform.type.partition("_")[0]
    if shape.bare_metal or vendor not in shape.processor.upper():
        raise invalid(f"platformConfig: {platform.type} is not the platform of shape {shape.name}")


def check_metadata(metadata: dict[str, str], extended: dict[str, Any]) -> None:
    """Check metadata.

    Raises:
        OciProblem: it is too large, or has user data that is not in base64.
    """
    size = len(msgspec.json.encode(metadata)) + (len(msgspec.json.encode(extended)) if extended else 0)
    if size > METADATA_BYTES:  # oracle/terraform-provider-oci#635
        raise invalid(f"Metadata size is {size} bytes and cannot be larger than {METADATA_BYTES} bytes")
    try:
        base64.b64decode("".join(metadata.get("user_data", "").split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid("metadata: user_data has to be encoded in base64") from error


def check_tags(tenancy: Tenancy, freeform: dict[str, str], defined: DefinedTags) -> None:
    """Check tags.

    Raises:
        OciProblem: there are too many, one is too long, or one is not defined.
    """
    if len(freeform) > FREEFORM_TAGS:
        raise invalid(f"freeformTags: there are {len(freeform)}; at most {FREEFORM_TAGS} are allowed")
    for key, value in freeform.items():
        if not 1 <= len(key) <= TAG_KEY_LENGTH or len(value) > TAG_VALUE_LENGTH:
            raise invalid(
                f"freeformTags: {key!r} has to have at most {TAG_KEY_LENGTH} characters, its value {TAG_VALUE_LENGTH}"
            )
    given = [(space, key, value) for space, tags in defined.items() for key, value in tags.items()]
    if len(given) > DEFINED_TAGS:
        raise invalid(f"definedTags: there are {len(given)}; at most {DEFINED_TAGS} are allowed")
    for space in defined:
        if space not in tenancy.permitted.tag_keys:  # hashicorp/terraform#32357
            raise _unknown_tag(f"TagNamespace {space} does not exists.")
    for space, key, value in given:
        if key not in tenancy.permitted.tag_keys[space]:  # oracle/oci-cloud-controller-manager, pkg/oci/client
            raise _unknown_tag(f"TagDefinition {key} in TagNamespace {space} does not exists.")
        if len(str(value)) > TAG_VALUE_LENGTH:
            raise invalid(f"definedTags: the value of {space}.{key} has to have at most {TAG_VALUE_LENGTH} characters")


def _unknown_tag(which: str) -> OciProblem:
    words = f"The following tag namespaces / keys are not authorized or not found: {which}"
    return OciProblem("RelatedResourceNotAuthorizedOrNotFound", words)


def _references(details: Launch) -> Iterable[tuple[str, Iterable[str | None]]]:
    """Return the references of a launch beside its image and its subnet, by the kinds in their OCIDs."""
    vnic, source, place = details.create_vnic_details, details.source_details, details.placement_constraint_details
    hosts = (place.compute_host_group_id, place.compute_bare_metal_host_id) if place else (None, None)
    return (
        ("capacityreservation", [details.capacity_reservation_id]),
        ("clusterplacementgroup", [details.cluster_placement_group_id]),
        ("computecluster", [details.compute_cluster_id]),
        ("dedicatedvmhost", [details.dedicated_vm_host_id]),
        ("instanceconfiguration", [details.instance_configuration_id]),
        ("computehostgroup", [hosts[0]]),
        ("computebaremetalhost", [hosts[1]]),
        ("key", [source.kms_key_id if source else None]),
        ("networksecuritygroup", vnic.nsg_ids),
        ("privateip", [vnic.private_ip_id]),
        ("vlan", [vnic.vlan_id]),
    )


def _image(tenancy: Tenancy, details: Launch, shape: OciShape) -> OciImage:
    source = details.source_details or SourceDetails(source_type="image", image_id=details.image_id)
    return image_of(tenancy, source, shape)


def image_of(tenancy: Tenancy, source: SourceDetails, shape: OciShape) -> OciImage:
    """Return the image for a boot volume.

    Raises:
        OciProblem: there is none, or it does not fit.
    """
    if source.image_id is None:
        raise OciProblem("MissingParameter", "sourceDetails.imageId is missing")
    image = tenancy.images.get(source.image_id)
    if image is None:  # oracle/terraform-provider-oci#1520
        raise not_found()
    if image.state != "AVAILABLE":
        raise OciProblem("IncorrectState", f"Image {image.id} is {image.state}")
    if not image.fits(shape):  # hitrov/oci-arm-host-capacity#59
        raise invalid(f"Shape {shape.name} is not valid for image {image.id}")
    size_gb = source.boot_volume_size_in_gbs
    if size_gb is not None and size_gb * GB < image.size_mb:
        raise invalid(f"bootVolumeSizeInGBs: image {image.id} has {image.size_mb} MB, which {size_gb} GB do not hold")
    return image


def _subnet(tenancy: Tenancy, details: Launch) -> OciSubnet:
    vnic = details.create_vnic_details
    ident = vnic.subnet_id or details.subnet_id
    if ident is None:
        raise OciProblem("MissingParameter", "createVnicDetails.subnetId is missing")
    subnet = tenancy.subnets.get(ident)
    if subnet is None:  # mohankumarpaluru/oracle-freetier-instance-creation#70
        raise not_found()
    if subnet.availability_domain not in (None, details.availability_domain):
        raise invalid(f"subnetId: {ident} is in {subnet.availability_domain}, not in {details.availability_domain}")
    _check_addresses(tenancy, subnet, vnic)
    _check_host_name(details)
    return subnet


def _check_addresses(tenancy: Tenancy, subnet: OciSubnet, vnic: CreateVnic) -> None:
    if vnic.assign_public_ip and subnet.prohibits_public_ip:
        raise invalid(f"assignPublicIp: subnet {subnet.id} prohibits public IPs on VNICs")
    if vnic.assign_ipv6_ip or vnic.ipv6_address_ipv6_subnet_cidr_pair_details:
        raise invalid(f"assignIpv6Ip: subnet {subnet.id} has no IPv6 network")
    if vnic.subnet_cidr not in (None, str(subnet.network)):
        raise invalid(f"subnetCidr: {vnic.subnet_cidr} is not a network of subnet {subnet.id}")
    if vnic.private_ip is None:
        return
    try:
        is_usable = IPv4Address(vnic.private_ip) in subnet
    except ValueError:
        is_usable = False
    if not is_usable:
        raise invalid(f"privateIp: {vnic.private_ip} is no address that subnet {subnet.id} can give: {subnet.usable}")
    if any(other.private_ip == vnic.private_ip for other in _others(tenancy, subnet)):
        raise invalid(f"privateIp: {vnic.private_ip} is taken in subnet {subnet.id}")


def _check_host_name(details: Launch) -> None:
    vnic = details.create_vnic_details
    label = vnic.hostname_label or details.hostname_label
    if label is None:
        return
    if not LABEL.fullmatch(label):
        raise invalid(f"hostnameLabel: {label!r} is no host name (RFC 952, RFC 1123)")
    if details.hostname_label not in (None, label):
        raise invalid("hostnameLabel: those of the instance and of createVnicDetails have to be the same")
    if vnic.assign_private_dns_record is False:  # Binsabbar/oracle-cloud-terraform#36
        raise invalid(f"Hostname {label} is provided when AssignPrivateDnsRecord is false")


def conflict_of(tenancy: Tenancy, subnet: OciSubnet, details: Launch) -> str | None:
    """Return why a VNIC cannot be created, as another one has its host name or address; None when it can.

    A host name is not checked earlier (oracle/terraform-provider-oci#1348).
    """
    vnic = details.create_vnic_details
    label = vnic.hostname_label or details.hostname_label
    for other in _others(tenancy, subnet):
        if label is not None and other.hostname_label == label:
            return f"Hostname {label} is already used in subnet {subnet.id}"
        if vnic.private_ip == other.private_ip:
            return f"Private IP {vnic.private_ip} is already used in subnet {subnet.id}"
    return None


def _others(tenancy: Tenancy, subnet: OciSubnet) -> Iterable[Vnic]:
    return (
        each for each in tenancy.vnics if each.subnet_id == subnet.id and each.state is not ResourceState.TERMINATED
    )
