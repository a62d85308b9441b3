"""Resources of a simulated Azure, as frozen data: a change replaces the value.

Their ids compare without regard to case and keep the given case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from unbounded_lab.cloud.azure.errors import AzureProblem

COMPUTE: Final = "Microsoft.Compute"
NETWORK: Final = "Microsoft.Network"
MANAGED_IDENTITY: Final = "Microsoft.ManagedIdentity"

MACHINES: Final = f"{COMPUTE}/virtualMachines"
SCALE_SETS: Final = f"{COMPUTE}/virtualMachineScaleSets"
DISKS: Final = f"{COMPUTE}/disks"
AVAILABILITY_SETS: Final = f"{COMPUTE}/availabilitySets"
EXTENSIONS: Final = f"{COMPUTE}/virtualMachines/extensions"
NICS: Final = f"{NETWORK}/networkInterfaces"
IDENTITIES: Final = f"{MANAGED_IDENTITY}/userAssignedIdentities"

_ID: Final = re.compile(
    r"/subscriptions/(?P<subscription>[^/]+)/resourceGroups/(?P<group>[^/]+)"
    r"/providers/(?P<type>[^/]+/[^/]+)/(?P<name>[^/]+)",
    re.IGNORECASE,
)
Document = Mapping[str, Any]
"""Part of a resource as JSON; never changed in place."""


@dataclass(frozen=True, slots=True)
class ResourceId:
    subscription: str = field(compare=False)
    group: str = field(compare=False)
    type: str = field(compare=False)
    name: str = field(compare=False)
    key: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", str(self).lower())

    def __str__(self) -> str:
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.group}/providers/{self.type}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> ResourceId | None:
        found = _ID.fullmatch(text)
        return None if found is None else cls(**found.groupdict())

    def sibling(self, resource_type: str, name: str) -> ResourceId:
        """Return the id of another resource in the same group."""
        return ResourceId(self.subscription, self.group, resource_type, name)

    def is_in(self, subscription: str, group: str | None) -> bool:
        """Return whether it is in a subscription, and in a group of it where one is named."""
        return self.subscription.lower() == subscription.lower() and (
            group is None or self.group.lower() == group.lower()
        )


class VmPower(Enum):
    """Power state as in instance views, behind `PowerState/`."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DEALLOCATING = "deallocating"
    DEALLOCATED = "deallocated"


class Provisioning(Enum):
    CREATING = "Creating"
    UPDATING = "Updating"
    DELETING = "Deleting"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class OperationStatus(Enum):
    """Status of an operation."""

    IN_PROGRESS = "InProgress"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELED = "Canceled"


@dataclass(frozen=True, slots=True)
class AzureTimes:
    """Durations, in seconds; in the real cloud they are minutes.

    `poll_s` is the Retry-After between two polls.
    """

    create_s: float = 2.0
    update_s: float = 0.5
    delete_s: float = 1.0
    force_delete_s: float = 0.2
    start_s: float = 1.0
    stop_s: float = 1.0
    skip_shutdown_s: float = 0.1
    restart_s: float = 1.5
    deallocate_s: float = 1.0
    disk_delete_s: float = 0.2
    extension_s: float = 0.5
    poll_s: float = 1.0


USUAL_TIMES: Final = AzureTimes()


@dataclass(frozen=True, slots=True)
class VirtualMachine:
    """A virtual machine.

    Args:
        model: all properties that can be set, as given or completed, without secrets.
        power: None until its first allocation.
        operation: the one in progress, "" if none.
        doomed: a deletion was begun; only another one is accepted.
    """

    id: ResourceId
    model: Document
    vm_id: str
    created: float
    provisioning: Provisioning
    power: VmPower | None = None
    custom_data: str | None = None
    user_data: str | None = None
    generation: int = 1
    operation: str = ""
    doomed: bool = False
    error: AzureProblem | None = None
    since: float = 0.0  # time of the last change

    @property
    def location(self) -> str:
        return str(self.model["location"])

    @property
    def properties(self) -> Document:
        properties: Document = self.model["properties"]
        return properties

    @property
    def os_disk(self) -> Document:
        disk: Document = self.properties["storageProfile"]["osDisk"]
        return disk

    @property
    def data_disks(self) -> list[Document]:
        return list(self.properties["storageProfile"].get("dataDisks", []))

    @property
    def nics(self) -> list[Document]:
        return list(self.properties["networkProfile"]["networkInterfaces"])


@dataclass(frozen=True, slots=True)
class Disk:
    """A managed disk. `leaving`: it is being detached from its owner; `settings`: properties that were set later."""

    id: ResourceId
    location: str
    sku: str
    size_gb: int
    created: float
    unique_id: str
    zones: tuple[str, ...] = ()
    os_type: str | None = None
    image: str | None = None
    plan: Document | None = None
    tags: Document | None = None
    owner: ResourceId | None = None
    leaving: bool = False
    deleting: bool = False
    since: float = 0.0  # time of the last change of its owner
    settings: Document | None = None


@dataclass(frozen=True, slots=True)
class Nic:
    """A network interface. `reserved_for`: a VM whose failed creation reserves it for 180 s."""

    id: ResourceId
    location: str
    mac: str
    address: str
    guid: str
    owner: ResourceId | None = None
    primary: bool = True
    reserved_for: ResourceId | None = None
    reserved_until: float = 0.0


@dataclass(frozen=True, slots=True)
class Extension:
    machine: ResourceId
    name: str
    model: Document
    provisioning: Provisioning

    @property
    def key(self) -> str:
        return f"{self.machine.key}/extensions/{self.name.lower()}"


@dataclass(frozen=True, slots=True)
class LongRunningOperation:
    """A long-running operation, with the content of its status."""

    id: str
    call: str
    subject: ResourceId
    location: str
    began: float
    status: OperationStatus = OperationStatus.IN_PROGRESS
    ended: float | None = None
    error: AzureProblem | None = None
