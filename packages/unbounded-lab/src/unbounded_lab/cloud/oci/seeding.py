"""Instances that exist at the start of a simulation, with shapes of real fleets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from unbounded_lab.cloud.oci import model
from unbounded_lab.cloud.oci.details import CreateVnic, DefinedTags, Launch, ShapeConfig, SourceDetails
from unbounded_lab.cloud.oci.launch_rules import check
from unbounded_lab.cloud.oci.launching import attach_vnic, make, settle
from unbounded_lab.cloud.oci.lifecycle import InstanceState
from unbounded_lab.cloud.oci.tenancy import Tenancy


@dataclass(frozen=True, slots=True, kw_only=True)
class Disks:
    """Data volumes: the number of attached ones, and whether they were created with the instance."""

    count: int = 0
    size_gb: int = 100
    created_at_launch: bool = False


@dataclass(frozen=True, slots=True)
class SeededInstance:
    """Description of an instance to create.

    Args:
        image_id: the newest Ubuntu 24.04 that fits the shape if None.
        subnet: the public one if None; `vnics` is the number of network interfaces in it.
        launch: further fields of LaunchInstanceDetails, in their wire form.
    """

    name: str
    shape: str = "VM.Standard3.Flex"
    ocpus: float | None = 2
    memory_gb: float | None = 32
    state: InstanceState = InstanceState.RUNNING
    image_id: str | None = None
    subnet: model.OciSubnet | None = None
    availability_domain: str = model.AVAILABILITY_DOMAINS[0]
    fault_domain: str = model.FAULT_DOMAINS[1]
    nsg_ids: tuple[str, ...] = ()
    skip_source_dest_check: bool = False
    hostname_label: str | None = None
    vnics: int = 1
    data_volumes: Disks = Disks()
    freeform_tags: dict[str, str] = field(default_factory=dict)
    defined_tags: DefinedTags = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    launch: dict[str, Any] = field(default_factory=dict)


def seed_instance(tenancy: Tenancy, requested: SeededInstance, now: float) -> model.OciInstance:
    """Create an instance in the described state, with all its resources.

    Raises:
        OciProblem: the service would have rejected its launch.
    """
    details = _details(tenancy, requested)
    _, image, subnet = check(tenancy, details)
    instance = make(tenancy, details, image, now)
    for number in range(requested.vnics):
        attach_vnic(tenancy, instance, subnet, now, primary=number == 0)
    for number in range(requested.data_volumes.count):
        attach_volume(tenancy, instance, requested.data_volumes, number, now)
    settle(tenancy, instance, now)
    tenancy.enter(instance, requested.state, now)
    return instance


def _details(tenancy: Tenancy, requested: SeededInstance) -> Launch:
    shape = tenancy.shapes[requested.shape]
    config = ShapeConfig(ocpus=requested.ocpus, memory_in_gbs=requested.memory_gb) if shape.flexible else ShapeConfig()
    subnet = requested.subnet or tenancy.public_subnet
    vnic = CreateVnic(
        subnet_id=subnet.id,
        nsg_ids=requested.nsg_ids,
        skip_source_dest_check=requested.skip_source_dest_check,
        hostname_label=requested.hostname_label,
    )
    details = Launch(
        availability_domain=requested.availability_domain,
        compartment_id=tenancy.compartment_id,
        shape=requested.shape,
        shape_config=config,
        display_name=requested.name,
        fault_domain=requested.fault_domain,
        create_vnic_details=vnic,
        source_details=SourceDetails(
            source_type="image", image_id=requested.image_id or newest_ubuntu(tenancy, shape.name)
        ),
        freeform_tags=requested.freeform_tags,
        defined_tags=requested.defined_tags,
        metadata=requested.metadata,
    )
    return msgspec.convert({**msgspec.to_builtins(details), **requested.launch}, Launch)


def newest_ubuntu(tenancy: Tenancy, shape_name: str) -> str:
    """Return the default image of a replacement."""
    shape = tenancy.shapes[shape_name]
    found = [
        each
        for each in tenancy.images
        if each.fits(shape) and (each.operating_system, each.version) == (model.UBUNTU, "24.04")
    ]
    return max(found, key=lambda image: image.created).id


def attach_volume(tenancy: Tenancy, instance: model.OciInstance, disks: Disks, number: int, now: float) -> model.Volume:
    """Create a data volume of an instance, ATTACHED."""
    where = (instance.compartment_id, instance.availability_domain)
    name = f"{instance.name}-data-{number}"
    ident = tenancy.new_id("volume")
    volume = tenancy.volumes.put(
        model.Volume(ident, name, *where, disks.size_gb, now, state=model.ResourceState.AVAILABLE), now
    )
    tenancy.record(now, volume, "created")
    attachment = model.Attachment(
        tenancy.new_id("volumeattachment"),
        instance.id,
        volume.id,
        *where,
        now,
        name=name,
        created_at_launch=disks.created_at_launch,
        device=f"/dev/oracleoci/oraclevd{chr(ord('b') + number)}",
    )
    tenancy.link(tenancy.volume_attachments, attachment, model.AttachmentState.ATTACHED, now)
    return volume
