"""MachineConfiguration, the template of a group's Nodes, and MachineConfigurationVersion, its numbered versions."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from unbounded.api.base import ApiStruct
from unbounded.api.fields import Count, Field, ImageReference, Int32, KubernetesVersion, LabelKey, LabelValue, Time
from unbounded.api.kinds import Kind
from unbounded.api.machine import NodeLabels
from unbounded.api.meta import Condition, LabelSelector, Object
from unbounded.api.names import ANNOTATION_ABOUT_TO_CHANGE, GROUP, LABEL_CONFIGURATION, VERSION
from unbounded.api.node_settings import NodeSettings

CONDITION_IN_USE: Final = "InUse"  # on both kinds: Machines use it, so that it cannot be deleted
MAX_CONFIGURATION_NAME: Final = 63  # it becomes a label value of its versions


class UpdateStrategyType(StrEnum):
    ON_DELETE = "OnDelete"
    ROLLING_UPDATE = "RollingUpdate"


class Taint(ApiStruct, frozen=True, kw_only=True):
    """A taint that the Node registers with."""

    key: Annotated[LabelKey, Field("Key of the taint.")]
    value: Annotated[LabelValue | None, Field("Value of the taint.")] = None
    effect: Annotated[
        str,
        Field("What happens to pods without toleration.", enum=("NoSchedule", "PreferNoSchedule", "NoExecute")),
    ]
    time_added: Annotated[Time | None, Field("When the taint was added.")] = None


class KubernetesTemplate(ApiStruct, frozen=True, kw_only=True):
    """Cluster settings of the Nodes of this configuration."""

    version: Annotated[
        KubernetesVersion | None,
        Field('Kubernetes version, such as "v1.34.0"; the v may be left out. Left out, that of the cluster.'),
    ] = None
    node_labels: NodeLabels | None = None
    register_with_taints: Annotated[
        tuple[Taint, ...] | None,
        Field("Taints for the Node. Left out, it keeps those it has; empty takes them away."),
    ] = None


class AgentTemplate(ApiStruct, frozen=True, kw_only=True):
    """The source from which the agent starts Nodes of this configuration."""

    image: Annotated[ImageReference, Field("OCI image of the node's root file system.")]


class HostTemplate(ApiStruct, frozen=True, kw_only=True):
    """The operating system of hosts of this configuration."""

    image: Annotated[ImageReference | None, Field("Image of the host's operating system.")] = None


class MachineConfigurationTemplate(NodeSettings, frozen=True, kw_only=True):
    """The template of a Node."""

    kubernetes: Annotated[KubernetesTemplate | None, Field("How the Node joins the cluster.")] = None
    agent: Annotated[AgentTemplate | None, Field("What the agent starts the Node from.")] = None
    host: Annotated[HostTemplate | None, Field("The operating system of the host.")] = None


class UpdateStrategy(ApiStruct, frozen=True, kw_only=True):
    """The time at which Nodes move to a new version."""

    type: Annotated[
        str,
        Field(
            "OnDelete: when the Node is deleted. RollingUpdate is not built yet, and refused.",
            enum=tuple(UpdateStrategyType),
            defaulted=True,
        ),
    ] = UpdateStrategyType.ON_DELETE.value
    max_unavailable: Annotated[
        Int32 | None, Field("With RollingUpdate: how many Nodes may be away at a time.", minimum=1)
    ] = None


class MachineConfigurationSpec(ApiStruct, frozen=True, kw_only=True):
    """The template of Nodes, and the Machines it applies to."""

    template: Annotated[MachineConfigurationTemplate, Field("What a Node is made from.")]
    machine_selector: Annotated[
        LabelSelector | None, Field("Machines that are bound to this configuration when they name none.")
    ] = None
    priority: Annotated[
        Int32,
        Field("Among several that select a Machine the highest counts, then the first name.", defaulted=True),
    ] = 0
    update_strategy: Annotated[UpdateStrategy, Field("When Nodes move to a new version.", defaulted=True)] = (
        UpdateStrategy()
    )
    revision_history_limit: Annotated[
        Int32, Field("How many versions that no Machine uses are kept.", minimum=0, defaulted=True)
    ] = 10


class MachineConfigurationStatus(ApiStruct, frozen=True, kw_only=True):
    """The existing versions."""

    latest_version: Annotated[Int32 | None, Field("Highest number of a version so far.")] = None
    current_version: Annotated[Int32 | None, Field("Version that holds the template as it stands.")] = None
    conditions: Annotated[
        tuple[Condition, ...], Field("Conditions of the configuration.", map_keys=("type",), max_items=32)
    ] = ()


class MachineConfiguration(Object, frozen=True, kw_only=True):
    """The template of the Nodes of a group of Machines."""

    spec: Annotated[MachineConfigurationSpec, Field("What Nodes are made from, and which Machines it is for.")]
    status: Annotated[MachineConfigurationStatus, Field("Which versions exist.")] = MachineConfigurationStatus()


class MachineConfigurationVersionSpec(ApiStruct, frozen=True, kw_only=True):
    """One state of a MachineConfiguration's template."""

    version: Annotated[Int32, Field("Number of the version.", minimum=1)]
    template: Annotated[
        MachineConfigurationTemplate, Field("What a Node is made from. Cannot be changed once deployed.")
    ]


class MachineConfigurationVersionStatus(ApiStruct, frozen=True, kw_only=True):
    """The Machines that use the version."""

    deployed: Annotated[bool, Field("Whether a Node was ever made from this version.")] = False
    deployed_machines: Annotated[Annotated[Count, Field(format="int32")], Field("How many Machines use it now.")] = 0
    conditions: Annotated[
        tuple[Condition, ...], Field("Conditions of the version.", map_keys=("type",), max_items=32)
    ] = ()


class MachineConfigurationVersion(Object, frozen=True, kw_only=True):
    """One numbered state of a MachineConfiguration, named <configuration>-v<number>."""

    spec: Annotated[MachineConfigurationVersionSpec, Field("The number and the template.")]
    status: Annotated[MachineConfigurationVersionStatus, Field("Who uses the version.")] = (
        MachineConfigurationVersionStatus()
    )

    @property
    def configuration(self) -> str:
        """Name of the MachineConfiguration that this is a version of, or the empty string."""
        return self.metadata.labels.get(LABEL_CONFIGURATION, "")

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
