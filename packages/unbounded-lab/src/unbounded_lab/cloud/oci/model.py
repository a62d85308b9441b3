"""Resources of a tenancy: instances, their network interfaces and volumes, and the shapes and images of a fresh one.

Names have Oracle's form (OCIDs, availability domains, addresses) and are derived from a seed.
"""

from __future__ import annotations

import hashlib
from base64 import b32encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network
from itertools import islice
from typing import Any, Final

from unbounded_lab.cloud.oci.details import DefinedTags, Launch, ShapeConfig
from unbounded_lab.cloud.oci.lifecycle import POWERED, InstanceState

REGION: Final = "us-phoenix-1"
REGION_KEY: Final = "phx"
REALM: Final = "oc1"
AVAILABILITY_DOMAINS: Final = ("lAbX:PHX-AD-1", "lAbX:PHX-AD-2", "lAbX:PHX-AD-3")
FAULT_DOMAINS: Final = ("FAULT-DOMAIN-1", "FAULT-DOMAIN-2", "FAULT-DOMAIN-3")
GLOBAL_KINDS: Final = frozenset({"tenancy", "compartment", "user"})
"""Kinds whose OCIDs name no region."""
BALANCED_VPUS: Final = 10
"""The volume performance units per GB of a volume for which none are named."""
INTEL: Final = "3.0 GHz Intel® Xeon® Platinum 8358 (Ice Lake)"
AMD: Final = "2.4 GHz AMD EPYC™ 9J14 (Genoa)"
AMPERE: Final = "3.0 GHz Ampere® Altra™"
UBUNTU: Final = "Canonical Ubuntu"
DAY_S: Final = 86_400.0


class ResourceState(StrEnum):
    """Lifecycle states of VNICs, volumes and images."""

    PROVISIONING = "PROVISIONING"
    AVAILABLE = "AVAILABLE"
    TERMINATING = "TERMINATING"
    TERMINATED = "TERMINATED"


class AttachmentState(StrEnum):
    """Lifecycle states of an attachment."""

    ATTACHING = "ATTACHING"
    ATTACHED = "ATTACHED"
    DETACHING = "DETACHING"
    DETACHED = "DETACHED"


class WorkStatus(StrEnum):
    """Progress of a work request."""

    ACCEPTED = "ACCEPTED"
    IN_PROGRESS = "IN_PROGRESS"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class OciShape:
    """A shape of instances.

    Args:
        ocpus: of a flexible shape, the minimum; memory_gb belongs to it and is the default.
    """

    name: str
    processor: str
    ocpus: float
    memory_gb: float
    arm: bool = False
    flexible: bool = False
    bare_metal: bool = False
    max_ocpus: float = 0.0
    max_memory_gb: float = 0.0
    gb_per_ocpu: tuple[float, float] = (1.0, 64.0)  # of a flexible shape, minimum and maximum
    gpus: int = 0
    gpu: str = ""
    max_vnics: int = 2
    bandwidth_gbps: float = 1.0
    local_disks: int = 0  # of a flexible shape, for the minimum of its cores
    local_disk_gb: float = 0.0

    @property
    def threads(self) -> int:
        return 1 if self.arm else 2

    def ocpus_of(self, config: ShapeConfig) -> float:
        """Return the number of cores of an instance."""
        return config.ocpus or (config.vcpus / self.threads if config.vcpus else self.ocpus)

    def memory_of(self, config: ShapeConfig) -> float:
        if config.memory_in_gbs is not None or not self.flexible:
            return config.memory_in_gbs or self.memory_gb
        return min(self.memory_gb / self.ocpus * self.ocpus_of(config), self.max_memory_gb)

    def drives_of(self, config: ShapeConfig) -> int:
        return int(self.local_disks * self.ocpus_of(config) // self.ocpus)


@dataclass(frozen=True, slots=True)
class OciImage:
    id: str
    name: str
    compartment_id: str | None  # None: Oracle's own
    operating_system: str
    version: str
    arm: bool
    created: float
    state: str = "AVAILABLE"
    size_mb: int = 47_694

    def fits(self, shape: OciShape) -> bool:
        return self.arm == shape.arm


@dataclass(frozen=True, slots=True)
class OciSubnet:
    id: str
    name: str
    compartment_id: str
    vcn_id: str
    network: IPv4Network
    created: float
    prohibits_public_ip: bool = False
    availability_domain: str | None = None  # None: regional
    dns_label: str = "lab"

    def __contains__(self, address: IPv4Address) -> bool:
        """Return whether the subnet can assign an address: its first two and its last are reserved."""
        return address in self.network and self.network[2] <= address < self.network.broadcast_address

    def addresses(self) -> Iterator[str]:
        """Yield the addresses that it can assign."""
        return map(str, islice(self.network.hosts(), 1, None))

    @property
    def usable(self) -> str:
        """The range of the addresses that it can assign, as text."""
        return f"{self.network[2]} to {self.network[-2]}"


@dataclass(slots=True)
class OciInstance:
    id: str
    name: str
    launch: Launch
    image_id: str
    created: float
    state: InstanceState = InstanceState.PROVISIONING
    freeform_tags: dict[str, str] = field(default_factory=dict)
    defined_tags: DefinedTags = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    extended_metadata: dict[str, Any] = field(default_factory=dict)
    fault_domain: str = ""
    ended: float | None = None  # time of TERMINATED
    shown: InstanceState | None = None  # the shown state, in place of the true one
    before: InstanceState | None = None  # the state before and after an image or a move
    keep_boot_volume: bool = False  # at its termination
    keep_data_volumes: bool = True  # those created with it
    busy_until: float = 0.0
    turn: int = 0  # counts the actions begun: steps of an earlier one are void

    @property
    def compartment_id(self) -> str:
        return self.launch.compartment_id

    @property
    def availability_domain(self) -> str:
        return self.launch.availability_domain

    @property
    def is_on(self) -> bool:
        return (self.before if self.state is InstanceState.MOVING else self.state) in POWERED


@dataclass(slots=True)
class Vnic:
    id: str
    name: str
    compartment_id: str
    availability_domain: str
    subnet_id: str
    private_ip: str
    public_ip: str | None
    mac: str
    nsg_ids: tuple[str, ...]
    skip_source_dest_check: bool
    hostname_label: str | None
    created: float
    freeform_tags: dict[str, str]
    defined_tags: DefinedTags
    security_attributes: DefinedTags
    is_primary: bool = True
    state: ResourceState = ResourceState.PROVISIONING


@dataclass(slots=True)
class Attachment:
    """Attachment of a VNIC, a boot volume or a data volume to an instance."""

    id: str
    instance_id: str
    target_id: str
    compartment_id: str
    availability_domain: str
    created: float
    state: AttachmentState = AttachmentState.ATTACHING
    name: str = ""
    subnet_id: str = ""  # of a VNIC
    created_at_launch: bool = False  # of a data volume
    device: str = ""  # of a data volume

    @property
    def is_attached(self) -> bool:
        return self.state is not AttachmentState.DETACHED


@dataclass(slots=True)
class Volume:
    """A boot volume (with its image), or a data volume."""

    id: str
    name: str
    compartment_id: str
    availability_domain: str
    size_gb: int
    created: float
    image_id: str | None = None
    state: ResourceState = ResourceState.PROVISIONING
    ended: float | None = None
    freeform_tags: dict[str, str] = field(default_factory=dict)
    defined_tags: DefinedTags = field(default_factory=dict)
    vpus_per_gb: int = BALANCED_VPUS
    kms_key_id: str | None = None
    security_attributes: DefinedTags = field(default_factory=dict)


@dataclass(slots=True)
class LabWorkRequest:
    id: str
    operation: str
    compartment_id: str
    instance_id: str
    accepted: float
    started: float | None = None
    finished: float | None = None
    status: WorkStatus = WorkStatus.ACCEPTED
    error: tuple[str, str] | None = None  # code and message


SHAPES: Final = (
    OciShape("VM.Standard3.Flex", INTEL, 1, 16, flexible=True, max_ocpus=32, max_memory_gb=512),
    OciShape("VM.Standard.E5.Flex", AMD, 1, 12, flexible=True, max_ocpus=94, max_memory_gb=1049),
    OciShape("VM.Standard.A1.Flex", AMPERE, 1, 6, arm=True, flexible=True, max_ocpus=80, max_memory_gb=512),
    OciShape("VM.Standard2.2", "2.0 GHz Intel® Xeon® Platinum 8167M (Skylake)", 2, 30, bandwidth_gbps=2.0),
    OciShape(
        "VM.DenseIO.E4.Flex",
        "2.55 GHz AMD EPYC™ 7J13 (Milan)",
        8,
        128,
        flexible=True,
        max_ocpus=32,
        max_memory_gb=512,
        gb_per_ocpu=(16.0, 16.0),
        local_disks=1,
        local_disk_gb=6800,
    ),
    OciShape("VM.GPU.A10.1", INTEL, 15, 240, gpus=1, gpu="NVIDIA® A10", bandwidth_gbps=24.0),
    OciShape("BM.Standard.E5.192", AMD, 192, 2304, bare_metal=True, max_vnics=256, bandwidth_gbps=100.0),
)


def platform_images(now: float) -> tuple[OciImage, ...]:
    """Return Ubuntu for both architectures in two releases of two dates each, and Oracle Linux; the newest is 10 days
    old.
    """
    requested = [
        *((UBUNTU, version, arm, age) for version in ("24.04", "22.04") for arm in (False, True) for age in (10, 40)),
        ("Oracle Linux", "9", False, 12),
        ("Oracle Linux", "9", True, 12),
    ]
    return tuple(_image(system, version, arm=arm, created=now - age * DAY_S) for system, version, arm, age in requested)


def _image(system: str, version: str, *, arm: bool, created: float) -> OciImage:
    build = int(created // DAY_S)
    name = f"{system.replace(' ', '-')}-{version}-{'aarch64-' if arm else ''}{build}-0"
    return OciImage(ocid("image", name), name, None, system, version, arm, created)


def digest(*parts: object) -> bytes:
    return hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=32).digest()


def ocid(kind: str, *parts: object) -> str:
    """Return `ocid1.<kind>.oc1.<region>.<60 characters>`, which differs for other parts."""
    is_global = kind in GLOBAL_KINDS
    unique = b32encode(digest(kind, *parts)).decode().rstrip("=").lower()
    return f"ocid1.{kind}.{REALM}.{'' if is_global else REGION_KEY}.{'aaaaaaaa' if is_global else 'anyhqljs'}{unique}"


def mac(*parts: object) -> str:
    """Return a locally administered address."""
    return ":".join(f"{byte:02X}" for byte in (0x02, *digest("mac", *parts)[:5]))


def public_ip(number: int) -> str:
    """Return an address that RFC 5737 reserves for examples, and after these one for benchmarks (RFC 2544)."""
    if number < 254:
        return f"203.0.113.{number + 1}"
    return f"198.18.{number // 256 % 256}.{number % 256}"
