"""MachineConfiguration, the template of a group's Nodes, and MachineConfigurationVersion, its numbered versions."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from unbounded.api.fields import (
    ApiStruct,
    Count,
    Field,
    ImageReference,
    Int32,
    KubernetesVersion,
    LabelKey,
    LabelValue,
    Time,
)
from unbounded.api.machine_spec import NodeLabels
from unbounded.api.meta import Condition, Kind, LabelSelector, Object
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


class UpdateStrategy(ApiStruct, frozen=True, kw_only=True):
    """The time at which Nodes move to a new version."""

    type: Annotated[
        str,
        Field(
            "OnDelete: apply a new version when the Node is deleted. RollingUpdate is not implemented, and rejected.",
            enum=tuple(UpdateStrategyType),
            defaulted=True,
        ),
    ] = UpdateStrategyType.ON_DELETE.value
    max_unavailable: Annotated[
        Int32 | None, Field("With RollingUpdate: maximum number of unavailable Nodes.", minimum=1)
    ] = None


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


class MachineConfigurationStatus(ApiStruct, frozen=True, kw_only=True):
    """The existing versions."""

    latest_version: Annotated[Int32 | None, Field("Highest version number.")] = None
    current_version: Annotated[Int32 | None, Field("Version that holds the current template.")] = None
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
    def about_to_change(self) -> bool:
        """Return whether machina may edit or delete the version at any moment; a holder of the lock reads it again."""
        return ANNOTATION_ABOUT_TO_CHANGE in self.metadata.annotations


MACHINE_CONFIGURATIONS: Final = Kind(
    GROUP, VERSION, "MachineConfiguration", "machineconfigurations", MachineConfiguration
)
MACHINE_CONFIGURATION_VERSIONS: Final = Kind(
    GROUP, VERSION, "MachineConfigurationVersion", "machineconfigurationversions", MachineConfigurationVersion
)
