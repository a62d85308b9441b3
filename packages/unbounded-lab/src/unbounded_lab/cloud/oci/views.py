"""Resources in the form of the API. Fields that the real service omits when they are not set are omitted here, too."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from unbounded_lab.cloud.oci import model
from unbounded_lab.cloud.oci.details import Details, Launch, ShapeConfig

GB: Final = 1024
LAUNCH_OPTIONS: Final = {
    "bootVolumeType": "PARAVIRTUALIZED",
    "firmware": "UEFI_64",
    "isConsistentVolumeNamingEnabled": True,
    "isPvEncryptionInTransitEnabled": False,
    "networkType": "PARAVIRTUALIZED",
    "remoteDataVolumeType": "PARAVIRTUALIZED",
}
AGENT_CONFIG: Final = {
    "areAllPluginsDisabled": False,
    "isManagementDisabled": False,
    "isMonitoringDisabled": False,
    "pluginsConfig": [],
}
AVAILABILITY_CONFIG: Final = {"isLiveMigrationPreferred": None, "recoveryAction": "RESTORE_INSTANCE"}
STATUS_PERCENT: Final = {"ACCEPTED": 0.0, "IN_PROGRESS": 40.0, "SUCCEEDED": 100.0, "FAILED": 100.0}
ENTITY_ACTIONS: Final = {
    ("LaunchInstance", "SUCCEEDED"): "CREATED",
    ("UpdateInstance", "SUCCEEDED"): "UPDATED",
    ("TerminateInstance", "SUCCEEDED"): "DELETED",
    ("InstanceAction", "SUCCEEDED"): "UPDATED",
}

Body = dict[str, Any]


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _set(**fields: Any) -> Body:
    """Return the fields that are set."""
    return {name: value for name, value in fields.items() if value is not None}


def _given(details: Details | None) -> Body:
    """Return the fields that a request sets."""
    return {} if details is None else msgspec.to_builtins(details)


def instance_body(instance: model.OciInstance, shape: model.OciShape) -> Body:
    launch = instance.launch
    return _set(
        id=instance.id,
        displayName=instance.name,
        availabilityDomain=launch.availability_domain,
        faultDomain=instance.fault_domain,
        compartmentId=launch.compartment_id,
        region=model.REGION,
        shape=launch.shape,
        shapeConfig=_shape_config(launch.shape_config, shape),
        imageId=instance.image_id,
        sourceDetails={"sourceType": "image", "imageId": instance.image_id, **_given(launch.source_details)},
        lifecycleState=(instance.shown or instance.state).value,
        timeCreated=stamp(instance.created),
        metadata=instance.metadata,
        extendedMetadata=instance.extended_metadata,
        freeformTags=instance.freeform_tags,
        definedTags=instance.defined_tags,
        systemTags={},
        securityAttributes=launch.security_attributes,
        securityAttributesState="STABLE",
        licensingConfigs=[_given(each) for each in launch.licensing_configs],
        launchMode="PARAVIRTUALIZED",
        launchOptions=_launch_options(launch),
        instanceOptions={"areLegacyImdsEndpointsDisabled": False, **_given(launch.instance_options)},
        availabilityConfig={**AVAILABILITY_CONFIG, **_given(launch.availability_config)},
        agentConfig={**AGENT_CONFIG, **_given(launch.agent_config)},
        capacityReservationId=launch.capacity_reservation_id or None,
        clusterPlacementGroupId=launch.cluster_placement_group_id,
        dedicatedVmHostId=launch.dedicated_vm_host_id,
        instanceConfigurationId=launch.instance_configuration_id,
        placementConstraintDetails=_given(launch.placement_constraint_details) or None,
        ipxeScript=launch.ipxe_script,
        platformConfig=_given(launch.platform_config) or None,
        preemptibleInstanceConfig=_given(launch.preemptible_instance_config) or None,
        isAIEnterpriseEnabled=launch.is_ai_enterprise_enabled,
        isCrossNumaNode=False,
    )


def _launch_options(launch: Launch) -> Body:
    encrypted = launch.is_pv_encryption_in_transit_enabled
    options = {**LAUNCH_OPTIONS, **_given(launch.launch_options)}
    return options if encrypted is None else options | {"isPvEncryptionInTransitEnabled": encrypted}


def _shape_config(given: ShapeConfig, shape: model.OciShape) -> Body:
    ocpus, drives = shape.ocpus_of(given), shape.drives_of(given)
    return _set(
        ocpus=float(ocpus),
        vcpus=int(ocpus * shape.threads),
        memoryInGBs=float(shape.memory_of(given)),
        baselineOcpuUtilization=given.baseline_ocpu_utilization,
        resourceManagement=given.resource_management,
        processorDescription=shape.processor,
        networkingBandwidthInGbps=shape.bandwidth_gbps,
        maxVnicAttachments=shape.max_vnics,
        gpus=shape.gpus,
        gpuDescription=shape.gpu or None,
        localDisks=drives,
        localDisksTotalSizeInGBs=drives * shape.local_disk_gb if drives else None,
    )


def vnic_body(vnic: model.Vnic) -> Body:
    return _set(
        id=vnic.id,
        displayName=vnic.name,
        availabilityDomain=vnic.availability_domain,
        compartmentId=vnic.compartment_id,
        subnetId=vnic.subnet_id,
        privateIp=vnic.private_ip,
        publicIp=vnic.public_ip,
        macAddress=vnic.mac,
        nsgIds=list(vnic.nsg_ids),
        hostnameLabel=vnic.hostname_label,
        skipSourceDestCheck=vnic.skip_source_dest_check,
        isPrimary=vnic.is_primary,
        ipv6Addresses=[],
        lifecycleState=vnic.state.value,
        timeCreated=stamp(vnic.created),
        freeformTags=vnic.freeform_tags,
        definedTags=vnic.defined_tags,
        systemTags={},
        securityAttributes=vnic.security_attributes,
    )


def _attachment(attachment: model.Attachment) -> Body:
    return _set(
        id=attachment.id,
        instanceId=attachment.instance_id,
        compartmentId=attachment.compartment_id,
        availabilityDomain=attachment.availability_domain,
        displayName=attachment.name or None,
        lifecycleState=attachment.state.value,
        timeCreated=stamp(attachment.created),
    )


def vnic_attachment_body(attachment: model.Attachment) -> Body:
    return _attachment(attachment) | {
        "vnicId": attachment.target_id,
        "subnetId": attachment.subnet_id,
        "nicIndex": 0,
        "vlanTag": 300 + int.from_bytes(attachment.id[-1:].encode(), "big"),
    }


def boot_volume_attachment_body(attachment: model.Attachment) -> Body:
    return _attachment(attachment) | {
        "bootVolumeId": attachment.target_id,
        "encryptionInTransitType": "NONE",
        "isPvEncryptionInTransitEnabled": False,
        "timeUpdated": stamp(attachment.created),
    }


def volume_attachment_body(attachment: model.Attachment) -> Body:
    return _attachment(attachment) | {
        "attachmentType": "paravirtualized",
        "volumeId": attachment.target_id,
        "device": attachment.device,
        "isReadOnly": False,
        "isShareable": False,
        "isPvEncryptionInTransitEnabled": False,
        "isMultipath": False,
        "isVolumeCreatedDuringLaunch": attachment.created_at_launch,
    }


def boot_volume_body(volume: model.Volume) -> Body:
    return _volume(volume) | {"imageId": volume.image_id, "bootVolumeReplicas": []}


def volume_body(volume: model.Volume) -> Body:
    return _volume(volume) | {"blockVolumeReplicas": []}


def _volume(volume: model.Volume) -> Body:
    return _set(
        id=volume.id,
        displayName=volume.name,
        compartmentId=volume.compartment_id,
        availabilityDomain=volume.availability_domain,
        lifecycleState=volume.state.value,
        sizeInGBs=volume.size_gb,
        sizeInMBs=volume.size_gb * GB,
        vpusPerGB=volume.vpus_per_gb,
        kmsKeyId=volume.kms_key_id,
        isHydrated=True,
        isAutoTuneEnabled=False,
        autotunePolicies=[],
        timeCreated=stamp(volume.created),
        freeformTags=volume.freeform_tags,
        definedTags=volume.defined_tags,
        securityAttributes=volume.security_attributes or None,
        systemTags={},
    )


def subnet_body(subnet: model.OciSubnet) -> Body:
    return _set(
        id=subnet.id,
        displayName=subnet.name,
        compartmentId=subnet.compartment_id,
        vcnId=subnet.vcn_id,
        availabilityDomain=subnet.availability_domain,
        cidrBlock=str(subnet.network),
        ipv4CidrBlocks=[str(subnet.network)],
        dnsLabel=subnet.dns_label,
        subnetDomainName=f"{subnet.dns_label}.labvcn.oraclevcn.com",
        lifecycleState="AVAILABLE",
        prohibitInternetIngress=subnet.prohibits_public_ip,
        prohibitPublicIpOnVnic=subnet.prohibits_public_ip,
        routeTableId=subnet.id.replace(".subnet.", ".routetable."),
        dhcpOptionsId=subnet.id.replace(".subnet.", ".dhcpoptions."),
        securityListIds=[subnet.id.replace(".subnet.", ".securitylist.")],
        virtualRouterIp=str(subnet.network[1]),
        virtualRouterMac=model.mac("router", subnet.id),
        timeCreated=stamp(subnet.created),
        freeformTags={},
        definedTags={},
        systemTags={},
    )


def image_body(image: model.OciImage) -> Body:
    return {"compartmentId": image.compartment_id} | _set(  # null in platform images
        id=image.id,
        displayName=image.name,
        operatingSystem=image.operating_system,
        operatingSystemVersion=image.version,
        createImageAllowed=True,
        launchMode="PARAVIRTUALIZED",
        launchOptions=LAUNCH_OPTIONS,
        agentFeatures={"isMonitoringSupported": True, "isManagementSupported": True},
        listingType="NONE",
        lifecycleState=image.state,
        sizeInMBs=image.size_mb,
        billableSizeInGBs=image.size_mb // GB,
        timeCreated=stamp(image.created),
        freeformTags={},
        definedTags={},
    )


def shape_body(shape: model.OciShape) -> Body:
    return _set(
        shape=shape.name,
        processorDescription=shape.processor,
        ocpus=shape.ocpus,
        memoryInGBs=shape.memory_gb,
        networkPorts=1,
        networkingBandwidthInGbps=shape.bandwidth_gbps,
        maxVnicAttachments=shape.max_vnics,
        gpus=shape.gpus,
        gpuDescription=shape.gpu or None,
        localDisks=shape.local_disks,
        localDisksTotalSizeInGBs=shape.local_disks * shape.local_disk_gb if shape.local_disks else None,
        isFlexible=shape.flexible,
        isSubcore=False,
        isLiveMigrationSupported=not shape.bare_metal,
        isBilledForStoppedInstance=shape.bare_metal or shape.local_disks > 0,
        billingType="PAID",
        ocpuOptions={"min": float(shape.ocpus), "max": float(shape.max_ocpus)} if shape.flexible else None,
        memoryOptions=_memory_options(shape) if shape.flexible else None,
        quotaNames=[],
    )


def _memory_options(shape: model.OciShape) -> Body:
    low, high = shape.gb_per_ocpu
    return {
        "minInGBs": low * shape.ocpus,
        "maxInGBs": float(shape.max_memory_gb),
        "defaultPerOcpuInGBs": shape.memory_gb / shape.ocpus,
        "minPerOcpuInGBs": low,
        "maxPerOcpuInGBs": high,
    }


def work_request_body(work: model.LabWorkRequest) -> Body:
    action = ENTITY_ACTIONS.get((work.operation, work.status.value), "IN_PROGRESS")
    return _set(
        id=work.id,
        operationType=work.operation,
        status=work.status.value,
        compartmentId=work.compartment_id,
        percentComplete=STATUS_PERCENT[work.status.value],
        timeAccepted=stamp(work.accepted),
        timeStarted=None if work.started is None else stamp(work.started),
        timeFinished=None if work.finished is None else stamp(work.finished),
        resources=[
            {
                "actionType": action,
                "entityType": "instance",
                "identifier": work.instance_id,
                "entityUri": f"/20160918/instances/{work.instance_id}",
            }
        ],
    )


def work_request_errors(work: model.LabWorkRequest) -> list[Body]:
    if work.error is None or work.finished is None:
        return []
    code, message = work.error
    return [{"code": code, "message": message, "timestamp": stamp(work.finished)}]
