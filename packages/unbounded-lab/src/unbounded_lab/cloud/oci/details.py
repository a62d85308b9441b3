"""Bodies of requests, parsed: fields, types and enumerations are those of Oracle's SDK, which a test compares.

An unknown field is rejected, as by the service, and so is a field that the lab does not simulate.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from unbounded_lab.cloud.oci.errors import OciProblem

DefinedTags = dict[str, dict[str, Any]]
VolumeType = Literal["ISCSI", "SCSI", "IDE", "VFIO", "PARAVIRTUALIZED", "NVME"]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
"""A name, or an OCID: the service takes so many characters for either."""
SIZE: Final = re.compile(r"Expected `(?P<kind>str|array)` of length .. \d+ - at `\$\.(?P<place>.+)`")
SIZES: Final = {"str": (1, 255), "array": (0, 5)}
"""Of all that has a size: names, and the security groups of a VNIC."""

T = TypeVar("T", bound="Details")


class Details(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """A request's body, in camelCase on the wire."""


class ShapeConfig(Details, frozen=True, kw_only=True):
    ocpus: Annotated[float, Meta(gt=0)] | None = None
    vcpus: Annotated[int, Meta(gt=0)] | None = None
    memory_in_gbs: Annotated[float, Meta(gt=0)] | None = field(name="memoryInGBs", default=None)
    baseline_ocpu_utilization: Literal["BASELINE_1_8", "BASELINE_1_2", "BASELINE_1_1"] | None = None
    nvmes: Annotated[int, Meta(ge=0)] | None = None
    resource_management: Literal["DYNAMIC", "STATIC"] | None = None
    local_volume_size_in_gbs: Annotated[int, Meta(ge=0)] | None = field(name="localVolumeSizeInGBs", default=None)


class SourceDetails(Details, frozen=True, kw_only=True):
    """Source of the boot volume; the lab supports images, by their OCIDs."""

    source_type: Literal["image"]
    image_id: Name | None = None
    boot_volume_size_in_gbs: Annotated[int, Meta(ge=50, le=32768)] | None = field(
        name="bootVolumeSizeInGBs", default=None
    )
    boot_volume_vpus_per_gb: Annotated[int, Meta(ge=10, le=120, multiple_of=10)] | None = field(
        name="bootVolumeVpusPerGB", default=None
    )
    kms_key_id: Name | None = None


class Ipv6Pair(Details, frozen=True, kw_only=True):
    ipv6_id: str | None = None
    ipv6_subnet_cidr: str | None = None
    ipv6_address: str | None = None


class CreateVnic(Details, frozen=True, kw_only=True):
    subnet_id: Name | None = None
    assign_public_ip: bool | None = None
    assign_ipv6_ip: bool | None = None
    assign_private_dns_record: bool | None = None
    display_name: Name | None = None
    hostname_label: Name | None = None
    ipv6_address_ipv6_subnet_cidr_pair_details: tuple[Ipv6Pair, ...] = ()
    nsg_ids: Annotated[tuple[str, ...], Meta(max_length=5)] = ()
    private_ip: str | None = None
    private_ip_id: Name | None = None
    skip_source_dest_check: bool = False
    subnet_cidr: str | None = None
    vlan_id: Name | None = None
    freeform_tags: dict[str, str] = {}
    defined_tags: DefinedTags = {}
    security_attributes: DefinedTags = {}


class Plugin(Details, frozen=True, kw_only=True):
    name: str
    desired_state: Literal["ENABLED", "DISABLED"]


class LaunchAgentConfig(Details, frozen=True, kw_only=True):
    is_monitoring_disabled: bool | None = None
    is_management_disabled: bool | None = None
    are_all_plugins_disabled: bool | None = None
    plugins_config: tuple[Plugin, ...] = ()


class AvailabilityConfig(Details, frozen=True, kw_only=True):
    is_live_migration_preferred: bool | None = None
    recovery_action: Literal["RESTORE_INSTANCE", "STOP_INSTANCE"] | None = None


class InstanceOptions(Details, frozen=True, kw_only=True):
    are_legacy_imds_endpoints_disabled: bool | None = None


class LaunchOptions(Details, frozen=True, kw_only=True):
    boot_volume_type: VolumeType | None = None
    remote_data_volume_type: VolumeType | None = None
    firmware: Literal["BIOS", "UEFI_64"] | None = None
    network_type: Literal["E1000", "VFIO", "PARAVIRTUALIZED", "ACCELERATEDPV"] | None = None
    is_pv_encryption_in_transit_enabled: bool | None = None
    is_encryption_in_transit_enabled: bool | None = None
    is_consistent_volume_naming_enabled: bool | None = None


class PlatformConfig(Details, frozen=True, kw_only=True):
    """Platform of virtual machines; those of bare metal have fields that the lab does not support."""

    type: Literal["AMD_VM", "INTEL_VM"]
    is_secure_boot_enabled: bool | None = None
    is_trusted_platform_module_enabled: bool | None = None
    is_measured_boot_enabled: bool | None = None
    is_memory_encryption_enabled: bool | None = None
    is_symmetric_multi_threading_enabled: bool | None = None


class Preemption(Details, frozen=True, kw_only=True):
    type: Literal["TERMINATE"]
    preserve_boot_volume: bool | None = None


class PlacementConstraint(Details, frozen=True, kw_only=True):
    type: Literal["HOST_GROUP", "COMPUTE_BARE_METAL_HOST"]
    compute_host_group_id: Name | None = None
    compute_bare_metal_host_id: Name | None = None


class PreemptibleConfig(Details, frozen=True, kw_only=True):
    preemption_action: Preemption


class LicensingConfig(Details, frozen=True, kw_only=True):
    type: Literal["WINDOWS"]
    license_type: Literal["OCI_PROVIDED", "BRING_YOUR_OWN_LICENSE", "PARTNER_PROVIDED"] | None = None


class Launch(Details, frozen=True, kw_only=True):
    """LaunchInstanceDetails."""

    availability_domain: Name
    compartment_id: Name
    shape: Name
    shape_config: ShapeConfig = ShapeConfig()
    display_name: Name | None = None
    fault_domain: Name | None = None
    create_vnic_details: CreateVnic = CreateVnic()
    subnet_id: Name | None = None
    hostname_label: Name | None = None
    source_details: SourceDetails | None = None
    image_id: Name | None = None
    ipxe_script: str | None = None
    metadata: dict[str, str] = {}
    extended_metadata: dict[str, Any] = {}
    freeform_tags: dict[str, str] = {}
    defined_tags: DefinedTags = {}
    security_attributes: DefinedTags = {}
    licensing_configs: tuple[LicensingConfig, ...] = ()
    capacity_reservation_id: str | None = None  # "": none, not even the default one
    cluster_placement_group_id: Name | None = None
    compute_cluster_id: Name | None = None
    dedicated_vm_host_id: Name | None = None
    instance_configuration_id: Name | None = None
    placement_constraint_details: PlacementConstraint | None = None
    agent_config: LaunchAgentConfig = LaunchAgentConfig()
    availability_config: AvailabilityConfig = AvailabilityConfig()
    instance_options: InstanceOptions = InstanceOptions()
    launch_options: LaunchOptions = LaunchOptions()
    platform_config: PlatformConfig | None = None
    preemptible_instance_config: PreemptibleConfig | None = None
    is_pv_encryption_in_transit_enabled: bool | None = None
    is_ai_enterprise_enabled: bool | None = field(name="isAIEnterpriseEnabled", default=None)


class UpdateSource(Details, frozen=True, kw_only=True):
    """UpdateInstanceSourceDetails: an image for another boot volume, or an existing boot volume."""

    source_type: Literal["image", "bootVolume"]
    image_id: Name | None = None
    boot_volume_id: Name | None = None
    boot_volume_size_in_gbs: Annotated[int, Meta(ge=50, le=32768)] | None = field(
        name="bootVolumeSizeInGBs", default=None
    )
    kms_key_id: Name | None = None
    is_preserve_boot_volume_enabled: bool = False


class Update(Details, frozen=True, kw_only=True):
    """UpdateInstanceDetails, with the fields that the lab changes."""

    display_name: Name | None = None
    freeform_tags: dict[str, str] | None = None
    defined_tags: DefinedTags | None = None
    metadata: dict[str, str] | None = None
    extended_metadata: dict[str, Any] | None = None
    source_details: UpdateSource | None = None
    update_operation_constraint: Literal["ALLOW_DOWNTIME", "AVOID_DOWNTIME"] | None = None


class PowerAction(Details, frozen=True, kw_only=True):
    """InstancePowerActionDetails."""

    action_type: Literal["reset", "softreset"]
    allow_dense_reboot_migration: bool | None = None


def parsed(body: bytes, kind: type[T]) -> T:
    """Parse a request's body.

    Raises:
        OciProblem: it is no JSON, lacks a field, or has an unknown one or one of another type; names it.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _unfit(str(error)) from error
    except msgspec.DecodeError as error:
        raise OciProblem("CannotParseRequest", "Incorrectly formatted request.") from error


def _unfit(fault: str) -> OciProblem:
    """Return the error for a body that does not fit its type; `fault`, msgspec's message, names the place."""
    if fault.startswith("Object missing required field"):
        return OciProblem("MissingParameter", fault)
    if found := SIZE.match(fault):  # hitrov/oci-arm-host-capacity#132
        low, high = SIZES[found["kind"]]
        return OciProblem("InvalidParameter", f"{found['place']} size must be between {low} and {high}")
    return OciProblem("InvalidParameter", f"Unable to process JSON input: {fault}")  # oracle/oci-cli#433
