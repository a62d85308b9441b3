"""Caches that the controllers of container-cloud share, and their indexes. The process runs the caches."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from unbounded.api.configuration import MACHINE_CONFIGURATIONS, MachineConfiguration
from unbounded.api.container_cloud.cluster import (
    CLUSTER_RELEASES,
    CLUSTERS,
    MACHINE_POOLS,
    Cluster,
    ClusterRelease,
    MachinePool,
)
from unbounded.api.container_cloud.host import (
    BARE_METAL_HOST_CREDENTIALS,
    BARE_METAL_HOST_PROFILES,
    BARE_METAL_HOSTS,
    BareMetalHost,
    BareMetalHostCredential,
    BareMetalHostProfile,
)
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.container_cloud.names import LABEL_CLAIM_CLUSTER, scoped_name
from unbounded.api.container_cloud.network import IPAM_HOSTS, L2_TEMPLATES, SUBNETS, IpamHost, L2Template, Subnet
from unbounded.api.core import NAMESPACES, NODES, Namespace, Node
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS, MachineDisruptionBudget
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import Api
from unbounded.kube.cache import Cache
from unbounded.operations.caches import INDEX_BMC, INDEX_MACHINE, by_bmc, by_machine, node_by_machine

INDEX_CLUSTER: Final = "cluster"
INDEX_SCOPED_NAME: Final = "scoped name"  # of Clusters
INDEX_HOST_MACHINE: Final = "host machine"  # of Machines of cluster.k8s.io, by their Machine of unbounded-cloud.io
INDEX_POOL: Final = "pool"
INDEX_RELEASE: Final = "release"


@dataclass(frozen=True)
class ContainerCloudCaches:
    """Local copies of all that several controllers read."""

    machines: Cache[ContainerCloudMachine]
    clusters: Cache[Cluster]
    releases: Cache[ClusterRelease]
    pools: Cache[MachinePool]
    hosts: Cache[BareMetalHost]
    profiles: Cache[BareMetalHostProfile]
    credentials: Cache[BareMetalHostCredential]
    templates: Cache[L2Template]
    subnets: Cache[Subnet]
    ipam_hosts: Cache[IpamHost]
    namespaces: Cache[Namespace]
    host_machines: Cache[Machine]
    operations: Cache[MachineOperation]
    nodes: Cache[Node]
    configurations: Cache[MachineConfiguration]
    budgets: Cache[MachineDisruptionBudget]

    @property
    def followed(self) -> tuple[Cache[Any], ...]:
        """The caches that the process has to run."""
        return tuple(getattr(self, field.name) for field in fields(self))


def container_cloud_caches(api: Api) -> ContainerCloudCaches:
    """Return the caches with their indexes, which nothing runs yet."""
    return ContainerCloudCaches(
        machines=Cache(
            api,
            CONTAINER_CLOUD_MACHINES,
            indexes={INDEX_CLUSTER: by_cluster, INDEX_POOL: by_pool, INDEX_HOST_MACHINE: by_host_machine},
        ),
        clusters=Cache(api, CLUSTERS, indexes={INDEX_RELEASE: by_release, INDEX_SCOPED_NAME: by_scoped_name}),
        releases=Cache(api, CLUSTER_RELEASES),
        pools=Cache(api, MACHINE_POOLS, indexes={INDEX_CLUSTER: by_cluster}),
        hosts=Cache(api, BARE_METAL_HOSTS),
        profiles=Cache(api, BARE_METAL_HOST_PROFILES),
        credentials=Cache(api, BARE_METAL_HOST_CREDENTIALS),
        templates=Cache(api, L2_TEMPLATES),
        subnets=Cache(api, SUBNETS),
        ipam_hosts=Cache(api, IPAM_HOSTS),
        namespaces=Cache(api, NAMESPACES),
        host_machines=Cache(api, MACHINES, indexes={INDEX_BMC: by_bmc, INDEX_CLUSTER: by_cluster_label}),
        operations=Cache(api, MACHINE_OPERATIONS, indexes={INDEX_MACHINE: by_machine}),
        nodes=Cache(api, NODES, indexes={INDEX_MACHINE: node_by_machine}),
        configurations=Cache(api, MACHINE_CONFIGURATIONS),
        budgets=Cache(api, MACHINE_DISRUPTION_BUDGETS),
    )


def by_cluster(item: ContainerCloudMachine | MachinePool) -> tuple[str, ...]:
    """Index Machines and pools by their Cluster, as NAMESPACE/NAME."""
    return (f"{item.metadata.namespace}/{item.cluster}",) if item.cluster else ()


def by_host_machine(machine: ContainerCloudMachine) -> tuple[str, ...]:
    """Index Machines by the Machine of unbounded-cloud.io of their host."""
    execution = machine.status.execution
    return () if execution is None or execution.machine is None else (execution.machine,)


def by_cluster_label(machine: Machine) -> tuple[str, ...]:
    """Index Machines of unbounded-cloud.io by the label of their Cluster."""
    name = machine.metadata.labels.get(LABEL_CLAIM_CLUSTER)
    return () if name is None else (name,)


def by_scoped_name(cluster: Cluster) -> tuple[str, ...]:
    """Index Clusters by the name of their MachineConfiguration."""
    return (scoped_name(cluster.metadata.namespace or "", cluster.name),)


def by_pool(machine: ContainerCloudMachine) -> tuple[str, ...]:
    """Index Machines by their MachinePool, as NAMESPACE/NAME."""
    return (f"{machine.metadata.namespace}/{machine.pool}",) if machine.pool else ()


def by_release(cluster: Cluster) -> tuple[str, ...]:
    """Index Clusters by their ClusterRelease."""
    return (cluster.value.release,)
