"""Cluster, its ClusterReleases, and MachinePools: what the Machines of a Cluster have in common."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from unbounded.api.container_cloud.machine import (
    ContainerCloudMachineSpec,
    Distribution,
    NoEffect,
    ProviderCondition,
)
from unbounded.api.container_cloud.names import GROUP_CLUSTER, GROUP_KAAS, LABEL_CLUSTER, PROVIDER_API_VERSION, V1ALPHA1
from unbounded.api.fields import (
    SHA256,
    ApiStruct,
    Count,
    Field,
    HttpUrl,
    ImageReference,
    Int32,
    KubernetesVersion,
    LabelKey,
    LabelValue,
    ObjectName,
)
from unbounded.api.meta import Condition, Kind, Object

MAX_DISTRIBUTIONS: Final = 16
MAX_NODE_LABELS: Final = 256
ReleaseVersion = Annotated[str, Field(min_length=1, max_length=64)]


class AllowedNodeLabel(ApiStruct, frozen=True, kw_only=True):
    """A label that Machines may give their Nodes."""

    key: Annotated[LabelKey, Field("Key of the label.")]
    value: Annotated[LabelValue | None, Field("Value that it must have. If absent, it may have any.")] = None
    display_name: Annotated[str | None, Field("Purpose of the label, for users.", max_length=256)] = None


class DistributionImage(ApiStruct, frozen=True, kw_only=True):
    """The image of an operating system."""

    url: Annotated[ImageReference, Field("OCI image with the disk image or root archive, plain or with oci://.")]
    checksum: Annotated[
        str | None,
        Field("Digest that the OCI image must have, such as sha256:…, for a url without one.", max_length=256),
    ] = None


class ReleaseDistribution(ApiStruct, frozen=True, kw_only=True):
    """An operating system that hosts may have."""

    id: Annotated[Distribution, Field("Name that Machines use, such as ubuntu/jammy.", min_length=1)]
    version: Annotated[str | None, Field("Version of the operating system.", max_length=64)] = None
    description: Annotated[str | None, Field("Description, for users.", max_length=1024)] = None
    default: Annotated[bool, Field("True for the one that Machines get which name none.")] = False
    image: Annotated[DistributionImage, Field("Image of the operating system.")]


class ReleaseKubernetes(ApiStruct, frozen=True, kw_only=True):
    """Kubernetes of the release."""

    version: Annotated[KubernetesVersion, Field("Version of kubelet.")]


NO_AGENT: Final = "Kept. It has no effect: hosts get the agent of machina's settings, and AgentUpgrade changes it."


class ReleaseAgent(ApiStruct, frozen=True, kw_only=True):
    """The host agent, and the image of the node that it starts."""

    image: Annotated[ImageReference | None, Field("OCI image of the node's root file system.")] = None
    version: Annotated[ReleaseVersion | None, Field(NO_AGENT)] = None
    url: Annotated[HttpUrl | None, Field(NO_AGENT)] = None
    sha256: Annotated[str | None, Field(NO_AGENT, pattern=SHA256, max_length=64)] = None


class ClusterReleaseSpec(ApiStruct, frozen=True, kw_only=True):
    """The versions of a Cluster's parts. It is immutable, but for descriptions."""

    version: Annotated[ReleaseVersion, Field("Version of the release.")]
    kubernetes: Annotated[ReleaseKubernetes, Field("Kubernetes of the Nodes.")]
    agent: Annotated[ReleaseAgent | None, Field("Host agent, and image of the node.")] = None
    allowed_distributions: Annotated[
        tuple[ReleaseDistribution, ...],
        Field(
            "Operating systems that hosts may have. Exactly one is the default.",
            map_keys=("id",),
            min_items=1,
            max_items=MAX_DISTRIBUTIONS,
        ),
    ]
    allowed_node_labels: Annotated[
        tuple[AllowedNodeLabel, ...], Field("Labels that Machines may give their Nodes.", max_items=MAX_NODE_LABELS)
    ] = ()


class ClusterReleaseStatus(ApiStruct, frozen=True, kw_only=True):
    """Observed state of a release."""

    conditions: Annotated[
        tuple[Condition, ...], Field("Conditions of the release.", map_keys=("type",), max_items=8)
    ] = ()


class ClusterRelease(Object, frozen=True, kw_only=True):
    """The versions that a Cluster consists of."""

    spec: Annotated[ClusterReleaseSpec, Field("Versions of the parts.")]
    status: Annotated[ClusterReleaseStatus, Field("Observed state of the release.")] = ClusterReleaseStatus()

    def distribution(self, id: str) -> ReleaseDistribution | None:
        """Return the operating system of this ID, in any case; the default for an empty ID, None for an unknown one."""
        found = (
            each for each in self.spec.allowed_distributions if (each.id.lower() == id.lower() if id else each.default)
        )
        return next(found, None)


class BaremetalClusterProviderSpec(ApiStruct, frozen=True, kw_only=True):
    """The release of the Cluster, and the limits of its updates."""

    api_version: Annotated[str, Field("Version of this part.", enum=(PROVIDER_API_VERSION,))]
    kind: Annotated[str, Field("Kind of this part.", enum=("BaremetalClusterProviderSpec",))]
    release: Annotated[ObjectName, Field("Name of the ClusterRelease. A change updates the Machines.")]
    dedicated_control_plane: Annotated[
        bool,
        Field(
            "True: managers are tainted, and workers are updated once the first manager is. False: workers are updated "
            "after all managers.",
            defaulted=True,
        ),
    ] = True
    maintenance: Annotated[bool, Field("While true, no update of a Machine starts.")] = False
    max_worker_upgrade_count: Annotated[
        Int32, Field("Workers that are updated at a time.", minimum=1, maximum=1000, defaulted=True)
    ] = 1
    max_worker_prepare_count: Annotated[
        Int32, Field("Workers that download ahead of their update.", minimum=1, maximum=1000, defaulted=True)
    ] = 50
    public_keys: NoEffect = None


class ClusterProviderSpec(ApiStruct, frozen=True, kw_only=True):
    """The part of the spec that the provider defines."""

    value: Annotated[BaremetalClusterProviderSpec, Field("Release and limits.")]


class ClusterSpec(ApiStruct, frozen=True, kw_only=True):
    """Desired state of a Cluster."""

    provider_spec: Annotated[ClusterProviderSpec, Field("The part that the provider defines.")]
    cluster_network: NoEffect = None


class AllowedDistribution(ApiStruct, frozen=True, kw_only=True):
    """An operating system of the release."""

    id: Annotated[Distribution, Field("Name that Machines use.")]
    default: Annotated[bool, Field("True for the one that Machines get which name none.")] = False


class ReleaseReference(ApiStruct, frozen=True, kw_only=True):
    """A release, and what it allows Machines."""

    name: Annotated[ObjectName, Field("Name of the ClusterRelease.")]
    version: Annotated[ReleaseVersion | None, Field("Version of the release.")] = None
    allowed_node_labels: Annotated[
        tuple[AllowedNodeLabel, ...], Field("Labels that Machines may give their Nodes.", max_items=MAX_NODE_LABELS)
    ] = ()
    allowed_distributions: Annotated[
        tuple[AllowedDistribution, ...],
        Field("Operating systems that Machines may have.", map_keys=("id",), max_items=MAX_DISTRIBUTIONS),
    ] = ()


class ReleaseReferences(ApiStruct, frozen=True, kw_only=True):
    """The releases of a Cluster."""

    current: Annotated[ReleaseReference | None, Field("Release that all Machines have.")] = None
    previous: Annotated[ReleaseReference | None, Field("Release before the current one.")] = None
    next: Annotated[ReleaseReference | None, Field("Release that Machines are being updated to.")] = None


class ClusterNodes(ApiStruct, frozen=True, kw_only=True):
    """The number of Machines of a Cluster."""

    requested: Annotated[Count, Field("Machines.")] = 0
    ready: Annotated[Count, Field("Machines that are ready.")] = 0


class ClusterConditionType(StrEnum):
    """The types of `status.providerStatus.conditions` of a Cluster."""

    RELEASE = "Release"
    NODES = "Nodes"
    UPDATE = "Update"


class BaremetalClusterProviderStatus(ApiStruct, frozen=True, kw_only=True):
    """Observed state of the Cluster's Machines and release."""

    api_version: Annotated[str | None, Field("Version of this part.", max_length=64)] = None
    kind: Annotated[str | None, Field("Kind of this part.", enum=("BaremetalClusterProviderStatus",))] = None
    release_refs: Annotated[ReleaseReferences | None, Field("Releases of the Cluster.")] = None
    release_ref: Annotated[
        ReleaseReferences | None, Field("Releases, under the name that others write. Read, never written.")
    ] = None
    nodes: Annotated[ClusterNodes | None, Field("Number of Machines.")] = None
    distribution_required: Annotated[
        bool,
        Field(
            "True where a Machine has to name its distribution, by --strict-distribution of container-cloud. New "
            "Machines and pools that name none are rejected."
        ),
    ] = False
    maintenance: Annotated[bool, Field("True while no update of a Machine starts, by spec.maintenance.")] = False
    ready: Annotated[bool, Field("True while all conditions are ready.")] = False
    conditions: Annotated[
        tuple[ProviderCondition, ...], Field("Conditions of the Cluster.", map_keys=("type",), max_items=16)
    ] = ()

    @property
    def releases(self) -> ReleaseReferences:
        return self.release_refs or self.release_ref or ReleaseReferences()


class ClusterStatus(ApiStruct, frozen=True, kw_only=True):
    """Observed state of a Cluster."""

    provider_status: Annotated[BaremetalClusterProviderStatus | None, Field("The part that the provider defines.")] = (
        None
    )


class Cluster(Object, frozen=True, kw_only=True):
    """The Machines of one Kubernetes cluster, their release and the limits of their updates."""

    spec: Annotated[ClusterSpec, Field("Desired state of the Cluster.")]
    status: Annotated[ClusterStatus, Field("Observed state of the Cluster.")] = ClusterStatus()

    @property
    def value(self) -> BaremetalClusterProviderSpec:
        return self.spec.provider_spec.value

    @property
    def provider_status(self) -> BaremetalClusterProviderStatus:
        return self.status.provider_status or BaremetalClusterProviderStatus()


class MachinePoolSpec(ApiStruct, frozen=True, kw_only=True):
    """Desired number of equal Machines."""

    replicas: Annotated[
        Int32, Field("Number of Machines. Lowering it deletes none.", minimum=0, maximum=1000, defaulted=True)
    ] = 0
    delete_policy: Annotated[
        str, Field("never: no Machine is deleted when replicas is lowered.", enum=("never",), defaulted=True)
    ] = "never"
    machine_spec: Annotated[
        ContainerCloudMachineSpec,
        Field(
            "Spec of the Machines. Members follow it, except for maintenance, delete and deletionPolicy, which stay "
            "their own."
        ),
    ]


class MachinePoolStatus(ApiStruct, frozen=True, kw_only=True):
    """Observed number of Machines."""

    replicas: Annotated[Count, Field("Members of the pool.", format="int32")] = 0
    ready_replicas: Annotated[Count, Field("Members that are ready.", format="int32")] = 0
    observed_generation: Annotated[Count | None, Field("Generation of the pool that the numbers are of.")] = None
    conditions: Annotated[tuple[Condition, ...], Field("Conditions of the pool.", map_keys=("type",), max_items=8)] = ()


class MachinePool(Object, frozen=True, kw_only=True):
    """A number of equal Machines of a Cluster."""

    spec: Annotated[MachinePoolSpec, Field("Desired number of Machines, and their spec.")]
    status: Annotated[MachinePoolStatus, Field("Observed number of Machines.")] = MachinePoolStatus()

    @property
    def cluster(self) -> str:
        """Name of the Cluster, in the namespace of the pool; empty if the label is absent."""
        return self.metadata.labels.get(LABEL_CLUSTER, "")


CLUSTERS: Final = Kind(GROUP_CLUSTER, V1ALPHA1, "Cluster", "clusters", Cluster, namespaced=True)
CLUSTER_RELEASES: Final = Kind(GROUP_KAAS, V1ALPHA1, "ClusterRelease", "clusterreleases", ClusterRelease)
MACHINE_POOLS: Final = Kind(GROUP_KAAS, V1ALPHA1, "MachinePool", "machinepools", MachinePool, namespaced=True)
