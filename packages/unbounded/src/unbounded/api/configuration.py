"""MachineConfiguration, the template of a group's Nodes, and MachineConfigurationVersion, its numbered versions.

`NodeSettings` are a node's settings beside version, labels, taints and image. kubelet's settings have the names and the
values of KubeletConfiguration (kubelet.config.k8s.io/v1beta1).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from unbounded.api.fields import (
    ApiStruct,
    Count,
    Field,
    HttpUrl,
    ImageReference,
    Int32,
    KubernetesVersion,
    LabelKey,
    LabelValue,
    Message,
    ObjectName,
    Time,
)
from unbounded.api.machine_spec import NodeLabels
from unbounded.api.meta import Condition, Kind, LabelSelector, LocalObjectReference, Object
from unbounded.api.names import ANNOTATION_ABOUT_TO_CHANGE, GROUP, LABEL_CONFIGURATION, VERSION
from unbounded.api.operation import MAX_STAGES, RolloutStage, RolloutStageStatus, StageName, Waiting

_NUMBER: Final = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)"
_QUANTITY: Final = rf"\+?{_NUMBER}([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?"
QUANTITY: Final = rf"^{_QUANTITY}$"
THRESHOLD: Final = rf"^((100(\.0*)?|[0-9]{{1,2}}(\.[0-9]*)?)%|{_QUANTITY})$"
DURATION: Final = rf"^(0|({_NUMBER}(ns|us|ms|s|m|h))+)$"
REGISTRY: Final = r"^(_default|[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(:[0-9]{1,5})?)$"
PEM: Final = r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----"
SIGNALS: Final = (
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "pid.available",
)
RESERVED: Final = ("cpu", "memory", "ephemeral-storage", "pid")

Quantity = Annotated[str, Field(pattern=QUANTITY, min_length=1, max_length=64)]
Threshold = Annotated[str, Field(pattern=THRESHOLD, min_length=1, max_length=64)]
Duration = Annotated[str, Field(pattern=DURATION, min_length=1, max_length=64)]
Percent = Annotated[Int32, Field(minimum=0, maximum=100)]
CABundle = Annotated[str, Field(pattern=PEM, max_length=65536)]
Resources = Annotated[dict[str, Quantity], Field(max_properties=len(RESERVED))]
Thresholds = Annotated[dict[str, Threshold], Field(max_properties=len(SIGNALS))]
CONDITION_IN_USE: Final = "InUse"  # on both kinds: Machines use it, so that it cannot be deleted
CONDITION_BAD: Final = "Bad"  # on a version: its rollout was rolled back, and no node is created from it any more
MAX_FAILED: Final = 100  # Machines in the status of a rollout
MAX_UPDATING: Final = 1000
MAX_CONFIGURATION_NAME: Final = 63  # it becomes a label value of its versions


class KubeletSettings(ApiStruct, frozen=True, kw_only=True):
    """Settings of kubelet, as KubeletConfiguration names them; left out, kubelet has its own defaults."""

    system_reserved: Annotated[
        Resources | None, Field("Resources reserved for the system: cpu, memory, ephemeral-storage, pid.")
    ] = None
    kube_reserved: Annotated[
        Resources | None, Field("Resources reserved for kubelet and containerd: cpu, memory, ephemeral-storage, pid.")
    ] = None
    max_pods: Annotated[Int32 | None, Field("Maximum number of Pods on the Node.", minimum=1)] = None
    eviction_hard: Annotated[
        Thresholds | None,
        Field('Thresholds for the immediate eviction of Pods, such as memory.available: "100Mi" or "5%".'),
    ] = None
    eviction_soft: Annotated[
        Thresholds | None,
        Field("Thresholds for the eviction of Pods after evictionSoftGracePeriod."),
    ] = None
    eviction_soft_grace_period: Annotated[
        Annotated[dict[str, Duration], Field(max_properties=len(SIGNALS))] | None,
        Field("Grace period for each threshold of evictionSoft, such as 1m30s. Each threshold needs one."),
    ] = None
    node_ip: Annotated[
        str | None,
        Field(
            "Address of the Node: an address of the host; a network, such as 10.0.0.0/16, that contains an "
            "address of the host; or 0.0.0.0 or :: for the family.",
            max_length=64,
        ),
    ] = None
    feature_gates: Annotated[
        dict[str, bool] | None, Field("Feature gates of kubelet's release.", max_properties=64)
    ] = None
    server_tls_bootstrap: Annotated[
        bool | None,
        Field("kubelet requests its serving certificate from the cluster. machina approves those that name its Node."),
    ] = None
    image_gc_high_threshold_percent: Annotated[
        Percent | None, Field("Disk usage above which kubelet removes unused images. Defaults to 85.")
    ] = None
    image_gc_low_threshold_percent: Annotated[
        Percent | None, Field("Disk usage at which kubelet stops removing unused images. Defaults to 80.")
    ] = None
    image_minimum_gc_age: Annotated[
        Duration | None, Field("Minimum age of an unused image before kubelet removes it, such as 2m.")
    ] = None
    container_log_max_size: Annotated[
        Quantity | None, Field("Size at which kubelet rotates a container's log, such as 10Mi.")
    ] = None
    container_log_max_files: Annotated[
        Int32 | None, Field("Number of log files to retain for a container.", minimum=2)
    ] = None


class RegistryHost(ApiStruct, frozen=True, kw_only=True):
    """A host that serves the images of a registry."""

    url: Annotated[HttpUrl, Field("URL of the mirror, such as https://mirror.example.com.")]
    ca_bundle: Annotated[
        CABundle | None, Field("PEM certificates of authorities that sign the mirror's certificate.")
    ] = None


class RegistryConfig(ApiStruct, frozen=True, kw_only=True):
    """Hosts from which containerd pulls the images of one registry."""

    name: Annotated[
        str,
        Field("Registry as images name it, such as docker.io, or _default for all others.", pattern=REGISTRY,
              min_length=1, max_length=253),
    ]  # fmt: skip
    hosts: Annotated[
        tuple[RegistryHost, ...],
        Field("Mirrors to try in this order before the registry itself.", min_items=1, max_items=8),
    ]


class ContainerdSettings(ApiStruct, frozen=True, kw_only=True):
    """Settings of containerd: where images come from."""

    registries: Annotated[
        tuple[RegistryConfig, ...],
        Field("Registries with mirrors, or with their own certificate authority.", map_keys=("name",), max_items=16),
    ] = ()
    pull_secrets: Annotated[
        tuple[LocalObjectReference, ...],
        Field(
            "Secrets of type kubernetes.io/dockerconfigjson in namespace unbounded-kube. The agent uses them "
            "for the node's image, and kubelet for images of Pods. Agents need RBAC permission to get each "
            "of them.",
            map_keys=("name",),
            max_items=8,
        ),
    ] = ()


class ProxySettings(ApiStruct, frozen=True, kw_only=True):
    """Proxies of the agent's downloads, of containerd and of kubelet."""

    http: Annotated[HttpUrl | None, Field("For http URLs.")] = None
    https: Annotated[HttpUrl | None, Field("For https URLs.")] = None
    no_proxy: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[^\s,]+$", min_length=1, max_length=253)], ...],
        Field("Hosts, domains, addresses and networks to reach directly. The API server is always reached directly."),
    ] = ()


class NodeSettings(ApiStruct, frozen=True, kw_only=True):
    """All settings of a node together."""

    kubelet: Annotated[KubeletSettings | None, Field("Settings of kubelet.")] = None
    containerd: Annotated[ContainerdSettings | None, Field("Settings of containerd.")] = None
    proxy: Annotated[ProxySettings | None, Field("Proxies of the agent, of containerd and of kubelet.")] = None
    ca_bundle: Annotated[
        CABundle | None,
        Field(
            "PEM certificates of authorities that the agent, containerd and kubelet trust in addition to "
            "those of the system."
        ),
    ] = None
    sysctl: Annotated[
        dict[str, Annotated[str, Field(pattern=r"^[^\n]+$", min_length=1, max_length=256)]] | None,
        Field("Kernel parameters of the host and their values, such as vm.max_map_count.", max_properties=64),
    ] = None


def node_settings(template: NodeSettings | None) -> NodeSettings:
    """Return the settings of a template, without its other fields."""
    if template is None:
        return NodeSettings()
    return NodeSettings(
        kubelet=template.kubelet,
        containerd=template.containerd,
        proxy=template.proxy,
        ca_bundle=template.ca_bundle,
        sysctl=template.sysctl,
    )


class UpdateStrategyType(StrEnum):
    ON_DELETE = "OnDelete"
    ROLLING_UPDATE = "RollingUpdate"


class Taint(ApiStruct, frozen=True, kw_only=True):
    """A taint that the Node registers with."""

    key: Annotated[LabelKey, Field("Key of the taint.")]
    value: Annotated[LabelValue | None, Field("Value of the taint.")] = None
    effect: Annotated[
        str,
        Field("Effect on pods without a toleration.", enum=("NoSchedule", "PreferNoSchedule", "NoExecute")),
    ]
    time_added: Annotated[Time | None, Field("Time at which the taint was added.")] = None


class KubernetesTemplate(ApiStruct, frozen=True, kw_only=True):
    """Cluster settings of the Nodes of this configuration."""

    version: Annotated[
        KubernetesVersion | None,
        Field('Kubernetes version, such as "v1.34.0"; the v is optional. Defaults to the version of the cluster.'),
    ] = None
    node_labels: NodeLabels | None = None
    register_with_taints: Annotated[
        tuple[Taint, ...] | None,
        Field("Taints for the Node. If absent, the Node keeps its taints; an empty list removes them."),
    ] = None


class AgentTemplate(ApiStruct, frozen=True, kw_only=True):
    """The source from which the agent starts Nodes of this configuration."""

    image: Annotated[ImageReference, Field("OCI image of the node's root file system.")]


class HostTemplate(ApiStruct, frozen=True, kw_only=True):
    """The operating system of hosts of this configuration."""

    image: Annotated[ImageReference | None, Field("Image of the host's operating system.")] = None


class MachineConfigurationTemplate(NodeSettings, frozen=True, kw_only=True):
    """The template of a Node."""

    kubernetes: Annotated[KubernetesTemplate | None, Field("Settings of the Node in the cluster.")] = None
    agent: Annotated[AgentTemplate | None, Field("Image and sources of the node.")] = None
    host: Annotated[HostTemplate | None, Field("Operating system of the host.")] = None


class UpdateFailurePolicy(StrEnum):
    """The reaction of a rolling update to failed Machines."""

    HALT = "Halt"
    ROLLBACK = "Rollback"


class RollingUpdate(ApiStruct, frozen=True, kw_only=True):
    """The stages and the order in which Nodes move to a new version. Every field can change at any time."""

    stages: Annotated[
        tuple[RolloutStage, ...],
        Field(
            "Stages, in order, such as a canary. Every Machine of the configuration belongs to one. If absent, one "
            "stage has all Machines.",
            map_keys=("name",),
            max_items=MAX_STAGES,
        ),
    ] = ()
    order_by: Annotated[
        LabelKey | None,
        Field(
            "Label of the Machines that orders them: integers ascending, then all other values, then by name. If "
            "absent, Machines are ordered by name."
        ),
    ] = None
    max_failures: Annotated[
        Int32 | None,
        Field("Failed Machines of a stage at which no further update starts. Defaults to 1.", minimum=1),
    ] = None
    on_failure: Annotated[
        str | None,
        Field(
            "Reaction when maxFailures Machines of a stage have failed. Halt: no further update starts until a new "
            "version exists, maxFailures is raised, or the failed Nodes have the version. Rollback: the version is "
            "marked with the condition Bad, and all Machines return to the last version whose rollout completed. "
            "Defaults to Halt.",
            enum=tuple(UpdateFailurePolicy),
        ),
    ] = None
    host: Annotated[
        bool,
        Field(
            "Replace hosts, too: a Machine with spec.pxe.redfish is also outdated if status.image is not of "
            "spec.pxe.image. Its update is a HostReplace, which writes the image and creates the Node from the version."
        ),
    ] = False
    prepare_ahead: Annotated[
        Int32 | None,
        Field(
            "Machines of each stage, in their order, that may download the version, or the image of their host, before "
            "their turn. 0: a download is requested in its turn. Defaults to 50.",
            minimum=0,
            maximum=MAX_UPDATING,
        ),
    ] = None
    paused: Annotated[
        bool,
        Field(
            "While true, no update starts, and drains before an update end. A Node that is deleted already is created "
            "again. Failed updates are tried again once it is false. A stage with pauseAfter sets it."
        ),
    ] = False


class UpdateStrategy(ApiStruct, frozen=True, kw_only=True):
    """The time at which Nodes move to a new version."""

    type: Annotated[
        str,
        Field(
            "OnDelete: apply a new version when the Node is deleted. RollingUpdate: drain the Nodes, a few at a time, "
            "and create them again from the new version.",
            enum=tuple(UpdateStrategyType),
            defaulted=True,
        ),
    ] = UpdateStrategyType.ON_DELETE.value
    max_unavailable: Annotated[
        Int32 | None,
        Field("With RollingUpdate: maximum number of unavailable Nodes, whatever the cause. Defaults to 1.", minimum=1),
    ] = None
    rolling_update: Annotated[RollingUpdate | None, Field("Settings of RollingUpdate.")] = None


class MachineConfigurationSpec(ApiStruct, frozen=True, kw_only=True):
    """The template of Nodes, and the Machines it applies to."""

    template: Annotated[MachineConfigurationTemplate, Field("Template of the node.")]
    machine_selector: Annotated[
        LabelSelector | None, Field("Machines to bind to this configuration if they name none.")
    ] = None
    priority: Annotated[
        Int32,
        Field(
            "Precedence among configurations that select the same Machine: the highest, then the first name.",
            defaulted=True,
        ),
    ] = 0
    update_strategy: Annotated[UpdateStrategy, Field("Strategy for the rollout of a new version.", defaulted=True)] = (
        UpdateStrategy()
    )
    revision_history_limit: Annotated[
        Int32, Field("Number of unused versions to retain.", minimum=0, defaulted=True)
    ] = 10


class UpdatePhase(StrEnum):
    """The phases of a rolling update."""

    IN_PROGRESS = "InProgress"
    PAUSED = "Paused"
    HALTED = "Halted"
    ROLLING_BACK = "RollingBack"
    ROLLED_BACK = "RolledBack"
    COMPLETE = "Complete"


class FailedUpdate(ApiStruct, frozen=True, kw_only=True):
    """A Machine whose update failed."""

    machine: Annotated[ObjectName, Field("Name of the Machine.")]
    message: Annotated[str | None, Field("Cause, for a person.", max_length=512)] = None


class UpdateStatus(ApiStruct, frozen=True, kw_only=True):
    """The progress of the rolling update to the newest version that is not Bad."""

    version: Annotated[Int32, Field("Number of the version.", minimum=1)]
    phase: Annotated[str, Field("Phase of the update.", enum=tuple(UpdatePhase))]
    stage: Annotated[StageName | None, Field("First stage that is not complete.")] = None
    updated: Annotated[
        Count, Field("Number of Machines whose Node has the version, and, with rollingUpdate.host, the host its image.")
    ] = 0
    outdated: Annotated[Count, Field("Number of the other Machines.")] = 0
    prepared: Annotated[
        Count, Field("Number of outdated Machines whose version, or whose host's image, is downloaded.")
    ] = 0
    updating: Annotated[
        tuple[ObjectName, ...],
        Field(
            "Machines whose update has started. An update starts only after this is written.", max_items=MAX_UPDATING
        ),
    ] = ()
    failed: Annotated[
        tuple[FailedUpdate, ...],
        Field("Machines whose update failed, the first 100.", map_keys=("machine",), max_items=MAX_FAILED),
    ] = ()
    stages: Annotated[
        tuple[RolloutStageStatus, ...], Field("Stages, in order.", map_keys=("name",), max_items=MAX_STAGES)
    ] = ()
    last_good: Annotated[
        Int32 | None, Field("Last version whose update completed: the one that a rollback returns to.", minimum=1)
    ] = None
    waiting: Annotated[Waiting | None, Field("Cause for which the update does not go on now.")] = None
    message: Annotated[Message | None, Field("Progress or cause of the wait, for a person.")] = None


class MachineConfigurationStatus(ApiStruct, frozen=True, kw_only=True):
    """The existing versions."""

    latest_version: Annotated[Int32 | None, Field("Highest version number.")] = None
    current_version: Annotated[Int32 | None, Field("Version that holds the current template.")] = None
    rollout: Annotated[UpdateStatus | None, Field("Progress of the update, with the strategy RollingUpdate.")] = None
    conditions: Annotated[
        tuple[Condition, ...], Field("Conditions of the configuration.", map_keys=("type",), max_items=32)
    ] = ()


class MachineConfiguration(Object, frozen=True, kw_only=True):
    """The template of the Nodes of a group of Machines."""

    spec: Annotated[MachineConfigurationSpec, Field("Template of nodes, and the Machines that use it.")]
    status: Annotated[MachineConfigurationStatus, Field("Versions of the configuration.")] = (
        MachineConfigurationStatus()
    )


class MachineConfigurationVersionSpec(ApiStruct, frozen=True, kw_only=True):
    """One state of a MachineConfiguration's template."""

    version: Annotated[Int32, Field("Number of the version.", minimum=1)]
    template: Annotated[MachineConfigurationTemplate, Field("Template of the node. Immutable once deployed.")]


class MachineConfigurationVersionStatus(ApiStruct, frozen=True, kw_only=True):
    """The Machines that use the version."""

    deployed: Annotated[bool, Field("True once a Node was created from this version.")] = False
    deployed_machines: Annotated[
        Annotated[Count, Field(format="int32")], Field("Number of Machines that use the version.")
    ] = 0
    conditions: Annotated[
        tuple[Condition, ...], Field("Conditions of the version.", map_keys=("type",), max_items=32)
    ] = ()


class MachineConfigurationVersion(Object, frozen=True, kw_only=True):
    """One numbered state of a MachineConfiguration, named <configuration>-v<number>."""

    spec: Annotated[MachineConfigurationVersionSpec, Field("Version number and template.")]
    status: Annotated[MachineConfigurationVersionStatus, Field("Use of the version.")] = (
        MachineConfigurationVersionStatus()
    )

    @property
    def configuration(self) -> str:
        """Name of the MachineConfiguration that this is a version of, or the empty string."""
        return self.metadata.labels.get(LABEL_CONFIGURATION, "")

    @property
    def bad(self) -> bool:
        """Return whether a rollback has marked the version; a Machine that names its number still gets it."""
        return any(one.type == CONDITION_BAD and one.status == "True" for one in self.status.conditions)

    @property
    def about_to_change(self) -> bool:
        """Return whether machina may edit or delete the version at any moment; a holder of the lock reads it again."""
        return ANNOTATION_ABOUT_TO_CHANGE in self.metadata.annotations


MACHINE_CONFIGURATIONS: Final = Kind(
    GROUP, VERSION, "MachineConfiguration", "machineconfigurations", MachineConfiguration
)
MACHINE_CONFIGURATION_VERSIONS: Final = Kind(
    GROUP, VERSION, "MachineConfigurationVersion", "machineconfigurationversions", MachineConfigurationVersion
)
