"""Machine of cluster.k8s.io: a node to be, which claims a BareMetalHost; and the parts that other kinds share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from unbounded.api.container_cloud.names import (
    ANNOTATION_HOST,
    GROUP_CLUSTER,
    LABEL_CLUSTER,
    LABEL_CONTROL_PLANE,
    LABEL_MACHINE_POOL,
    PROVIDER_API_VERSION,
    V1ALPHA1,
)
from unbounded.api.fields import (
    ApiStruct,
    Count,
    Field,
    Int32,
    LabelKey,
    LabelValue,
    Message,
    NamespaceName,
    ObjectName,
    Time,
)
from unbounded.api.meta import Kind, Object
from unbounded.api.operation import Waiting

NoEffect = Annotated[Any, Field("Kept. It has no effect.")]
UID = Annotated[str, Field(max_length=128)]
InterfaceName = Annotated[str, Field(pattern=r"^[^/:\s]+$", min_length=1, max_length=15)]
Distribution = Annotated[
    str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*)?$", max_length=64)
]
MAX_UNPROVEN: Final = 16


class DeletionPolicy(StrEnum):
    """The steps of the deletion of a Machine, from the most careful on."""

    GRACEFUL = "graceful"
    UNSAFE = "unsafe"
    FORCED = "forced"


class LCMPhase(StrEnum):
    """The words of `status.providerStatus.status`."""

    PROVISION = "Provision"
    UNINITIALIZED = "Uninitialized"
    PENDING = "Pending"
    PREPARE = "Prepare"
    DEPLOY = "Deploy"
    RECONFIGURE = "Reconfigure"
    READY = "Ready"
    MAINTENANCE = "Maintenance"


class DeletionPhase(StrEnum):
    """The words of `status.providerStatus.prepareDeletionPhase`; absent without a graceful deletion."""

    STARTED = "started"
    COMPLETED = "completed"
    ABORTING = "aborting"
    FAILED = "failed"


class ErrorReason(StrEnum):
    """The words of `status.errorReason`."""

    INVALID_CONFIGURATION = "InvalidConfiguration"
    UNSUPPORTED_CHANGE = "UnsupportedChange"
    INSUFFICIENT_RESOURCES = "InsufficientResources"
    CREATE_ERROR = "CreateError"
    UPDATE_ERROR = "UpdateError"
    DELETE_ERROR = "DeleteError"
    JOIN_CLUSTER_TIMEOUT = "JoinClusterTimeoutError"


class MachineStage(StrEnum):
    """The stages of `status.execution`: of the life of a Machine, and of its deletion."""

    CLAIMING = "Claiming"
    PLANNING = "Planning"
    PROVISIONING = "Provisioning"
    BACKOFF = "Backoff"
    BOOTING = "Booting"
    ASSIGNING = "Assigning"
    PREPARING = "Preparing"
    DEPLOYING = "Deploying"
    CONFIGURING = "Configuring"
    READY = "Ready"
    UPDATING = "Updating"
    MAINTAINED = "Maintained"
    STUCK = "Stuck"
    GUARDING = "Guarding"
    DRAINING = "Draining"
    RESETTING = "Resetting"
    POWERING_OFF = "PoweringOff"
    REMOVING = "Removing"
    RELEASING = "Releasing"


class ProviderConditionType(StrEnum):
    """The types of `status.providerStatus.conditions` of a Machine."""

    HOST_CLAIMED = "HostClaimed"
    PROFILE = "Profile"
    NETWORK = "Network"
    PROVIDER_INSTANCE = "ProviderInstance"
    LCM = "LCM"
    KUBELET = "Kubelet"
    MAINTENANCE = "Maintenance"
    PREPARE_DELETION = "PrepareDeletion"
    REBOOT = "Reboot"


class ProviderCondition(ApiStruct, frozen=True, kw_only=True):
    """One aspect of the current state of the object, in the form of Container Cloud."""

    type: Annotated[str, Field("Aspect, in CamelCase; one entry for each.", min_length=1, max_length=128)]
    ready: Annotated[bool, Field("True if nothing is to be done or waited for.")] = False
    reason: Annotated[str | None, Field("Cause, in CamelCase.", max_length=128)] = None
    message: Annotated[Message | None, Field("Details, for users.")] = None


class ProfileReference(ApiStruct, frozen=True, kw_only=True):
    """A BareMetalHostProfile."""

    name: Annotated[ObjectName, Field("Name of the profile.")]
    namespace: Annotated[NamespaceName | None, Field("Namespace of the profile. Defaults to that of the Machine.")] = (
        None
    )


class TemplateSelector(ApiStruct, frozen=True, kw_only=True):
    """An L2Template: by its name, or else by a label key that it carries."""

    name: Annotated[ObjectName | None, Field("Name of the template. It precedes label.")] = None
    label: Annotated[LabelKey | None, Field("Key of a label that the template carries, with any value.")] = None


class HostSelectorRequirement(ApiStruct, frozen=True, kw_only=True):
    """One requirement on a label of hosts."""

    key: Annotated[LabelKey, Field("Label key that the requirement applies to.")]
    operator: Annotated[
        str,
        Field(
            "In, NotIn, Exists, DoesNotExist, Gt or Lt, in any case; or =, ==, != and !.",
            pattern=(
                "^([Ii][Nn]|[Nn][Oo][Tt][Ii][Nn]|[Ee][Xx][Ii][Ss][Tt][Ss]"
                "|[Dd][Oo][Ee][Ss][Nn][Oo][Tt][Ee][Xx][Ii][Ss][Tt]|[Gg][Tt]|[Ll][Tt]|=|==|!=|!)$"
            ),
            max_length=12,
        ),
    ]
    values: Annotated[
        tuple[LabelValue, ...],
        Field("At least one for In and NotIn, one for =, ==, !=, Gt and Lt, none for the others.", max_items=32),
    ] = ()


class HostSelector(ApiStruct, frozen=True, kw_only=True):
    """Hosts by their labels; matchLabels and matchExpressions have to hold together."""

    match_labels: Annotated[dict[str, LabelValue], Field("Labels with the exact values that a host must have.")] = {}
    match_expressions: Annotated[
        tuple[HostSelectorRequirement, ...], Field("Requirements that a host must meet.", max_items=32)
    ] = ()


class NodeLabel(ApiStruct, frozen=True, kw_only=True):
    """A label for the Node."""

    key: Annotated[LabelKey, Field("Key, one of the Cluster's allowedNodeLabels.")]
    value: Annotated[LabelValue, Field("Value; that of allowedNodeLabels, if it gives one.")] = ""


class BareMetalMachineProviderSpec(ApiStruct, frozen=True, kw_only=True):
    """The bare-metal instance that the Machine is to become."""

    api_version: Annotated[str, Field("Version of this part.", enum=(PROVIDER_API_VERSION,))]
    kind: Annotated[str, Field("Kind of this part.", enum=("BareMetalMachineProviderSpec",))]
    bare_metal_host_profile: Annotated[
        ProfileReference | None,
        Field(
            "Profile of the host's disks. If absent, the profile of the namespace with the label "
            "kaas.mirantis.com/defaultBMHProfile; without one, the image is written to one whole disk. A change "
            "counts at the next install."
        ),
    ] = None
    l2_template_if_mapping_override: Annotated[
        tuple[InterfaceName, ...],
        Field(
            "Names of all network interfaces of the host, in the order that macros count by, in place of the "
            "template's ifMapping. Copied to the IpamHost once, when it is created.",
            max_items=32,
        ),
    ] = ()
    l2_template_selector: Annotated[
        TemplateSelector | None,
        Field("Template of the network. Copied to the IpamHost once, when it is created: edit it there afterwards."),
    ] = None
    host_selector: Annotated[
        HostSelector | None, Field("Hosts that the Machine may claim. It is immutable after the claim.")
    ] = None
    node_labels: Annotated[tuple[NodeLabel, ...], Field("Labels for the Node.", map_keys=("key",), max_items=64)] = ()
    distribution: Annotated[
        Distribution | None,
        Field("Operating system, one of the Cluster's allowedDistributions. Defaults to the default one of them."),
    ] = None
    maintenance: Annotated[bool, Field("While true, the Node is drained and cordoned.")] = False
    upgrade_index: Annotated[
        Int32 | None,
        Field(
            "Order of the update: managers, then workers, each with the lowest number first. If absent, a number is "
            "generated once.",
            minimum=1,
        ),
    ] = None
    deletion_policy: Annotated[
        str | None,
        Field(
            "graceful: drain and reset the node first. unsafe: do neither. forced: continue after a step that fails. "
            "Defaults to unsafe, unless container-cloud is set to another default. Once the deletion has started, it "
            "can only be loosened, from that in status.execution.policy, and unsafe and forced cannot be removed.",
            enum=tuple(DeletionPolicy),
        ),
    ] = None
    delete: Annotated[bool, Field("True starts the deletion of the Machine, false aborts it.")] = False
    metadata: NoEffect = None
    image: NoEffect = None
    user_data: NoEffect = None
    ansible_extra_passthrough: NoEffect = None
    rhel_license: NoEffect = None
    day1_provisioning: NoEffect = None
    day1_deployment: NoEffect = None
    disable: NoEffect = None


class MachineProviderSpec(ApiStruct, frozen=True, kw_only=True):
    """The part of the spec that the provider defines."""

    value: Annotated[BareMetalMachineProviderSpec, Field("The bare-metal instance.")]


class ContainerCloudMachineSpec(ApiStruct, frozen=True, kw_only=True):
    """Desired state of a node."""

    provider_spec: Annotated[MachineProviderSpec, Field("The part that the provider defines.")]
    metadata: NoEffect = None
    taints: NoEffect = None
    versions: NoEffect = None
    config_source: NoEffect = None
    provider_id: NoEffect = None


class StorageDevice(ApiStruct, frozen=True, kw_only=True):
    """A disk of the host."""

    name: Annotated[str, Field("Name of the disk, such as /dev/vda.", min_length=1, max_length=253)]
    size: Annotated[Count | None, Field("Size in GB.")] = None
    type: Annotated[str | None, Field("hdd, ssd or nvme.", max_length=16)] = None
    by_id: Annotated[str | None, Field("Name below /dev/disk/by-id.", max_length=253)] = None
    by_path: Annotated[str | None, Field("Name below /dev/disk/by-path.", max_length=253)] = None


class MachineHardware(ApiStruct, frozen=True, kw_only=True):
    """The hardware of the host."""

    cpu: Annotated[Count | None, Field("Number of CPUs.")] = None
    ram: Annotated[Count | None, Field("Memory in GB.")] = None
    storage: Annotated[tuple[StorageDevice, ...], Field("Disks.", map_keys=("name",), max_items=128)] = ()


class RebootStatus(ApiStruct, frozen=True, kw_only=True):
    """The reboot that updates of the operating system need."""

    required: Annotated[
        bool, Field("True if the host has to be rebooted. It is never rebooted for this by itself.")
    ] = False
    reason: Annotated[Message | None, Field("Names of the packages that need it, one a line.")] = None


class ProviderInstanceState(ApiStruct, frozen=True, kw_only=True):
    """The host of the Machine."""

    id: Annotated[str | None, Field("NAMESPACE/NAME of the BareMetalHost.", max_length=320)] = None
    state: Annotated[str | None, Field("status.provisioning.state of the host.", max_length=64)] = None
    ready: Annotated[bool, Field("True once the host is installed.")] = False


class BareMetalMachineProviderStatus(ApiStruct, frozen=True, kw_only=True):
    """Observed state of the bare-metal instance."""

    api_version: Annotated[
        str | None, Field("Version of this part. Also cluster.k8s.io/v1alpha1 is read.", max_length=64)
    ] = None
    kind: Annotated[str | None, Field("Kind of this part.", enum=("BareMetalMachineProviderStatus",))] = None
    status: Annotated[
        str | None,
        Field(
            "Provision: until the image is written. Uninitialized: until the host reports its name and address. "
            "Pending: until it may join, and its agent reports. Prepare: the agent downloads, and builds the root file "
            "system of the node. Deploy: the node starts until it is Ready, or is updated. Reconfigure: labels and "
            "taints. Ready: all of it. Maintenance: drained and cordoned.",
            enum=tuple(LCMPhase),
        ),
    ] = None
    ready: Annotated[bool, Field("True while all conditions but Reboot are ready.")] = False
    hardware: Annotated[MachineHardware | None, Field("Hardware of the host.")] = None
    storage: Annotated[
        tuple[StorageDevice, ...],
        Field("Disks, in the place where others write them. Read, never written.", map_keys=("name",), max_items=128),
    ] = ()
    current_distribution: Annotated[Distribution | None, Field("Operating system that runs.")] = None
    maintenance: Annotated[bool, Field("True while the Node is drained and cordoned for maintenance.")] = False
    reboot: Annotated[RebootStatus | None, Field("Reboot that is required.")] = None
    upgrade_index: Annotated[
        Int32 | None, Field("Order of the update: that of the spec, or a generated number, which stays.", minimum=1)
    ] = None
    delete: Annotated[bool, Field("True once the deletion has started; false after it was aborted.")] = False
    prepare_deletion_phase: Annotated[
        str | None,
        Field(
            "Preparation of a graceful deletion. started: drain, then reset. completed: the Node and the host are "
            "released. aborting: the Node is uncordoned. failed: the drain, the reset or the abort has failed; the "
            "condition PrepareDeletion has the cause.",
            enum=("", *DeletionPhase),
        ),
    ] = None
    provider_instance_state: Annotated[ProviderInstanceState | None, Field("Host of the Machine.")] = None
    private_ip: Annotated[str | None, Field("Address of the host in the management network.", max_length=45)] = (
        msgspec.field(default=None, name="privateIp")
    )
    conditions: Annotated[
        tuple[ProviderCondition, ...], Field("Conditions of the Machine.", map_keys=("type",), max_items=32)
    ] = ()


class NodeReference(ApiStruct, frozen=True, kw_only=True):
    """The Node of the Machine."""

    name: Annotated[ObjectName, Field("Name of the Node.")]
    uid: Annotated[UID | None, Field("UID of the Node.")] = None


class MachineAddress(ApiStruct, frozen=True, kw_only=True):
    """An address of the Node."""

    type: Annotated[str, Field("Type of the address.", enum=("InternalIP", "ExternalIP", "Hostname"))]
    address: Annotated[str, Field("Address.", min_length=1, max_length=253)]


class ClaimedHost(ApiStruct, frozen=True, kw_only=True):
    """The host that the Machine has claimed."""

    namespace: Annotated[NamespaceName, Field("Namespace of the BareMetalHost.")]
    name: Annotated[ObjectName, Field("Name of the BareMetalHost.")]
    uid: Annotated[UID, Field("UID of the BareMetalHost.")]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class MachineWaiting(Waiting, frozen=True, kw_only=True):
    """The wait of a Machine: its reason and holder, its begin, and the event or the time that ends it."""

    held_by: Annotated[
        str | None,
        Field("Object or process that the Machine waits for; the Machine itself, where a person has to change it."),
    ] = None
    until_event: Annotated[str | None, Field("Event or action that ends the wait.")] = None
    until: Annotated[
        Time | None,
        Field("Time at which container-cloud acts without that event. Absent: the wait lasts until the event."),
    ] = None
    then: Annotated[str | None, Field("What container-cloud does at that time.")] = None


class MachineExecution(ApiStruct, frozen=True, kw_only=True):
    """The work on the Machine. container-cloud writes it before it creates an operation, and resumes from it."""

    host: Annotated[ClaimedHost | None, Field("Host that the Machine has claimed.")] = None
    machine: Annotated[ObjectName | None, Field("Machine of unbounded-cloud.io of the host.")] = None
    stage: Annotated[str, Field("Stage of the life or of the deletion of the Machine.", enum=tuple(MachineStage))]
    since: Annotated[Time | None, Field("Begin of the stage.")] = None
    operation: Annotated[ObjectName | None, Field("MachineOperation of the stage.")] = None
    attempt: Annotated[Count, Field("Number of the install, of those with the same inputs.")] = 0
    inputs: Annotated[
        str | None, Field("Digest of all that an install depends on: image, profile, network.", max_length=128)
    ] = None
    policy: Annotated[str | None, Field("deletionPolicy that the deletion follows.", enum=tuple(DeletionPolicy))] = None
    unproven: Annotated[
        tuple[Annotated[str, Field(max_length=256)], ...],
        Field("Steps of a forced deletion that failed, or that the server refused.", max_items=MAX_UNPROVEN),
    ] = ()
    waiting: Annotated[MachineWaiting | None, Field("Cause for which the Machine does not go on now.")] = None
    message: Annotated[Message | None, Field("Progress, or cause of the wait, for users.")] = None


class ContainerCloudMachineStatus(ApiStruct, frozen=True, kw_only=True):
    """Observed state of a node."""

    node_ref: Annotated[NodeReference | None, Field("Node of the Machine.")] = None
    addresses: Annotated[
        tuple[MachineAddress, ...], Field("Addresses of the Node.", map_keys=("type", "address"), max_items=32)
    ] = ()
    error_reason: Annotated[str | None, Field("Cause of an error that needs a person.", enum=tuple(ErrorReason))] = None
    error_message: Annotated[Message | None, Field("Details of the error, for users.")] = None
    last_updated: Annotated[Time | None, Field("Time of the last change of the status.")] = None
    provider_status: Annotated[BareMetalMachineProviderStatus | None, Field("Bare-metal instance.")] = None
    execution: Annotated[MachineExecution | None, Field("Work on the Machine.")] = None


class ContainerCloudMachine(Object, frozen=True, kw_only=True):
    """A node of a Cluster, which claims a BareMetalHost."""

    spec: Annotated[ContainerCloudMachineSpec, Field("Desired state of the node.")]
    status: Annotated[ContainerCloudMachineStatus, Field("Observed state of the node.")] = ContainerCloudMachineStatus()

    @property
    def value(self) -> BareMetalMachineProviderSpec:
        return self.spec.provider_spec.value

    @property
    def provider_status(self) -> BareMetalMachineProviderStatus:
        return self.status.provider_status or BareMetalMachineProviderStatus()

    @property
    def cluster(self) -> str:
        """Name of the Cluster, in the namespace of the Machine; empty if the label is absent."""
        return self.metadata.labels.get(LABEL_CLUSTER, "")

    @property
    def is_manager(self) -> bool:
        """Return whether the Machine is a manager: its label counts with any value."""
        return LABEL_CONTROL_PLANE in self.metadata.labels

    @property
    def pool(self) -> str:
        """Name of the MachinePool, or empty."""
        return self.metadata.labels.get(LABEL_MACHINE_POOL, "")

    @property
    def pinned_host(self) -> tuple[str, str] | None:
        """Namespace and name of the host in the annotation; the namespace is empty in an annotation without a slash."""
        text = self.metadata.annotations.get(ANNOTATION_HOST, "")
        namespace, _, name = text.rpartition("/")
        return (namespace, name) if text else None


CONTAINER_CLOUD_MACHINES: Final = Kind(
    GROUP_CLUSTER, V1ALPHA1, "Machine", "machines", ContainerCloudMachine, namespaced=True
)
