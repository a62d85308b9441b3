"""What requests carry in their bodies, parsed: fields that are acted upon with their types, the others as they came.

An unknown field is refused, as the service does.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from unbounded.lab.cloud.oci.errors import Problem

DefinedTags = dict[str, dict[str, Any]]

T = TypeVar("T", bound="Details")


class Details(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """A request's body, in camelCase on the wire."""


class ShapeConfig(Details, frozen=True, kw_only=True):
    ocpus: Annotated[float, Meta(gt=0)] | None = None
    vcpus: Annotated[int, Meta(gt=0)] | None = None
    memory_in_gbs: Annotated[float, Meta(gt=0)] | None = field(name="memoryInGBs", default=None)
    baseline_ocpu_utilization: str | None = None
    nvmes: int | None = None
    resource_management: str | None = None
    local_volume_size_in_gbs: int | None = field(name="localVolumeSizeInGBs", default=None)


class SourceDetails(Details, frozen=True, kw_only=True):
    """Where the boot volume comes from; the lab knows images."""

    source_type: str
    image_id: str | None = None
    boot_volume_size_in_gbs: Annotated[int, Meta(ge=50, le=32768)] | None = field(
        name="bootVolumeSizeInGBs", default=None
    )
    boot_volume_vpus_per_gb: int | None = field(name="bootVolumeVpusPerGB", default=None)
    kms_key_id: str | None = None


class CreateVnic(Details, frozen=True, kw_only=True):
    subnet_id: str | None = None
    assign_public_ip: bool | None = None
    assign_ipv6_ip: bool | None = None
    assign_private_dns_record: bool | None = None
    display_name: str | None = None
    hostname_label: str | None = None
    nsg_ids: tuple[str, ...] = ()
    private_ip: str | None = None
    skip_source_dest_check: bool = False
    freeform_tags: dict[str, str] = {}
    defined_tags: DefinedTags = {}
    security_attributes: DefinedTags = {}


class Launch(Details, frozen=True, kw_only=True):
    """LaunchInstanceDetails."""

    availability_domain: str
    compartment_id: str
    shape: str
    shape_config: ShapeConfig = ShapeConfig()
    display_name: str | None = None
    fault_domain: str | None = None
    create_vnic_details: CreateVnic = CreateVnic()
    subnet_id: str | None = None
    hostname_label: str | None = None
    source_details: SourceDetails | None = None
    image_id: str | None = None
    ipxe_script: str | None = None
    metadata: dict[str, str] = {}
    extended_metadata: dict[str, Any] = {}
    freeform_tags: dict[str, str] = {}
    defined_tags: DefinedTags = {}
    security_attributes: DefinedTags = {}
    licensing_configs: list[dict[str, Any]] | None = None
    capacity_reservation_id: str | None = None
    cluster_placement_group_id: str | None = None
    dedicated_vm_host_id: str | None = None
    agent_config: dict[str, Any] = {}
    availability_config: dict[str, Any] = {}
    instance_options: dict[str, Any] = {}
    launch_options: dict[str, Any] = {}
    platform_config: dict[str, Any] | None = None
    preemptible_instance_config: dict[str, Any] | None = None
    is_pv_encryption_in_transit_enabled: bool | None = None
    is_ai_enterprise_enabled: bool | None = field(name="isAIEnterpriseEnabled", default=None)


class Update(Details, frozen=True, kw_only=True):
    """UpdateInstanceDetails, as far as the lab changes instances."""

    display_name: str | None = None
    freeform_tags: dict[str, str] | None = None
    defined_tags: DefinedTags | None = None
    metadata: dict[str, str] | None = None
    extended_metadata: dict[str, Any] | None = None


def parsed(body: bytes, kind: type[T]) -> T:
    """A request's body.

    Raises:
        Problem: it is no JSON, lacks a field, or has one that is unknown or of another type; says which.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise Problem("InvalidParameter", f"Unable to accept the request: {error}") from error
    except msgspec.DecodeError as error:
        raise Problem("CannotParseRequest", "Incorrectly formatted request.") from error
