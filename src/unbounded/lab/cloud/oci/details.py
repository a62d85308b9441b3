"""What requests carry in their bodies, parsed. An unknown field is refused, as the service does."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from unbounded.lab.cloud.oci.errors import Problem

DefinedTags = dict[str, dict[str, Any]]
VolumeType = Literal["ISCSI", "SCSI", "IDE", "VFIO", "PARAVIRTUALIZED", "NVME"]

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


class Plugin(Details, frozen=True, kw_only=True):
    name: str
    desired_state: Literal["ENABLED", "DISABLED"]


class AgentConfig(Details, frozen=True, kw_only=True):
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
    """Of virtual machines; those of bare metal have fields that the lab does not know."""

    type: Literal["AMD_VM", "INTEL_VM"]
    is_secure_boot_enabled: bool | None = None
    is_trusted_platform_module_enabled: bool | None = None
    is_measured_boot_enabled: bool | None = None
    is_memory_encryption_enabled: bool | None = None
    is_symmetric_multi_threading_enabled: bool | None = None


class Preemption(Details, frozen=True, kw_only=True):
    type: Literal["TERMINATE"]
    preserve_boot_volume: bool | None = None


class PreemptibleConfig(Details, frozen=True, kw_only=True):
    preemption_action: Preemption


class LicensingConfig(Details, frozen=True, kw_only=True):
    type: Literal["WINDOWS"]
    license_type: Literal["OCI_PROVIDED", "BRING_YOUR_OWN_LICENSE", "PARTNER_PROVIDED"] | None = None


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
    licensing_configs: tuple[LicensingConfig, ...] = ()
    capacity_reservation_id: str | None = None
    cluster_placement_group_id: str | None = None
    dedicated_vm_host_id: str | None = None
    agent_config: AgentConfig = AgentConfig()
    availability_config: AvailabilityConfig = AvailabilityConfig()
    instance_options: InstanceOptions = InstanceOptions()
    launch_options: LaunchOptions = LaunchOptions()
    platform_config: PlatformConfig | None = None
    preemptible_instance_config: PreemptibleConfig | None = None
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
