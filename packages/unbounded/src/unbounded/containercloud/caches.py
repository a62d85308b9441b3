"""All that the controllers of container-cloud share: caches, their indexes, and the rest of a leadership term.

The process runs the caches.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

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
from unbounded.api.container_cloud.names import (
    ANNOTATION_CREDENTIAL,
    ANNOTATION_HOST,
    ANNOTATION_HOST_PROFILE,
    ANNOTATION_IPAM_HOST,
    ANNOTATION_NETWORK_OF,
    HOST_SECRET,
    LABEL_CLAIM_CLUSTER,
    LABEL_HOST_SECRET,
    LABEL_NETWORK_CONFIG,
    scoped_name,
)
from unbounded.api.container_cloud.network import IPAM_HOSTS, L2_TEMPLATES, SUBNETS, IpamHost, L2Template, Subnet
from unbounded.api.core import (
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    SECRETS,
    ConfigMap,
    Namespace,
    Node,
    NodeCondition,
    NodeSystemInfo,
    Secret,
)
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS, MachineDisruptionBudget
from unbounded.api.failures import Stale
from unbounded.api.hardware import DiskFacts, HardwareStatus, NICFacts, ReportedHardware
from unbounded.api.machine import MACHINES, AgentStatus, Machine, MachineStatus, RecentOperation, RedfishStatus
from unbounded.api.machine_status import HostAddress, HostSystem
from unbounded.api.meta import Condition, Kind, ObjectMeta
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, Execution, MachineOperation, MachineOperationStatus
from unbounded.api.profile import MACHINE_PROFILES, MachineProfile
from unbounded.containercloud.hosts.model import consumer_of, is_free, parse_bmc_address
from unbounded.containercloud.network.subnets import OK
from unbounded.containercloud.refused import RefusedWrites
from unbounded.kube.api import Api, NotFound, ObjectKey, identify
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, utc_now
from unbounded.kube.compaction import ObjectCompaction, Unread
from unbounded.kube.events import AnyEventSink, no_events
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.process_epoch import ProcessEpoch
from unbounded.operations.caches import INDEX_BMC, INDEX_MACHINE, by_bmc, by_machine, node_by_machine

T = TypeVar("T")

INDEX_CLUSTER: Final = "cluster"
INDEX_SCOPED_NAME: Final = "scoped name"  # of Clusters
INDEX_HOST_MACHINE: Final = "host machine"  # of Machines of cluster.k8s.io, by their Machine of unbounded-cloud.io
INDEX_POOL: Final = "pool"
INDEX_RELEASE: Final = "release"
INDEX_NAMESPACE: Final = "namespace"
INDEX_PIN: Final = "pin"  # of Machines of cluster.k8s.io, by the host that their annotation names
INDEX_MAC: Final = "mac"
INDEX_ADOPTED: Final = "adopted"
INDEX_SECRET: Final = "secret"  # noqa: S105 - a name
INDEX_CREDENTIAL: Final = "credential"
INDEX_CONSUMER: Final = "consumer"
INDEX_FREE: Final = "free"  # of hosts that a Machine may claim, by their namespace
INDEX_NETWORK: Final = "network"  # of IpamHosts, by their host
INDEX_IPAM_HOST: Final = "ipam host"  # of network configurations
INDEX_FAULTY: Final = "faulty"  # of IpamHosts
INDEX_PROFILE: Final = "profile"
PASSWORDS: Final = frozenset({"data", "annotations"})  # fields of Secrets; what was applied is among their annotations

UNREAD_OF_MACHINES: Final[Unread] = {
    MachineStatus: {
        "message": None,
        "reason": None,
        "ssh": None,
        "provisioning": None,
        "tpm": None,
        "netboot": None,
        "console_output": None,
        "target_disk": None,
        "join": None,
        "operations": None,
        "configuration": None,
        "disruption_budgets": (),
    },
    RedfishStatus: {"cert_fingerprint": None, "media_boot": None, "ssh_host_key": None},
    HardwareStatus: {
        "firmware": None,
        "tpm": None,
        "accelerators": (),
        "firmware_inventory": (),
        "power_supplies": (),
        "at": "",
        "digest": "",
        "bmc": None,
    },
    NICFacts: {"driver": None, "lldp": None},
    DiskFacts: {"sector_bytes": None, "transport": None, "hctl": None, "state": None, "contents": None, "health": None},
    AgentStatus: {"host_boot_id": None, "api_server": None, "cluster_ca": None, "prepared": None},
    HostSystem: {"kernel": None, "certificate_expires": None},
    ReportedHardware: {"processor": None, "nics": ()},
    HostAddress: {"interface": ""},
    RecentOperation: {"uid": "", "started_at": None, "completed_at": None, "evidence": ()},
    Condition: {"message": "", "last_transition_time": "", "reason_transition_time": None, "observed_generation": None},
}
UNREAD_OF_OPERATIONS: Final[Unread] = {
    ObjectMeta: {"creation_timestamp": None, "owner_references": ()},
    MachineOperationStatus: {
        "cause": None,
        "started_at": None,
        "targets": (),
        "evidence": (),
        "losses": (),
        "erasures": (),
        "waiting": None,
        "history": None,
        "rollout": None,
        "conditions": (),
    },
    Execution: {
        "executor": "",
        "incarnation": "",
        "machine_uid": "",
        "binding": "",
        "boot_id": None,
        "handle": None,
        "answer": None,
        "late": (),
        "spent_seconds": 0,
        "stage_seconds": 0,
        "recorded_at": None,
        "standing": None,
        "fact": None,
        "read_at": None,
    },
}
UNREAD_OF_NODES: Final[Unread] = {
    ObjectMeta: {"annotations": {}, "creation_timestamp": None, "owner_references": ()},
    NodeSystemInfo: {"boot_id": None},
    NodeCondition: {"last_heartbeat_time": None, "last_transition_time": None},
}


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
    secrets: Cache[Secret]  # those with the label of hosts' logins
    templates: Cache[L2Template]
    subnets: Cache[Subnet]
    ipam_hosts: Cache[IpamHost]
    namespaces: Cache[Namespace]
    host_machines: Cache[Machine]
    operations: Cache[MachineOperation]
    nodes: Cache[Node]
    network_configs: Cache[ConfigMap]  # network configurations of hosts
    layouts: Cache[MachineProfile]
    configurations: Cache[MachineConfiguration]
    budgets: Cache[MachineDisruptionBudget]

    @property
    def followed(self) -> tuple[Cache[Any], ...]:
        """The caches that the process has to run."""
        return tuple(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, kw_only=True)
class ControllerContext:
    """All that the controllers of one leadership term share.

    Args:
        epoch: of this process, which writes only as long as it surely leads.
        refused: writes for Machines of cluster.k8s.io that the server refuses.
    """

    api: Api
    caches: ContainerCloudCaches
    epoch: ProcessEpoch
    now: WallClock = utc_now
    emit_event: AnyEventSink = no_events
    metrics: ControllerMetrics | None = None
    refused: RefusedWrites = field(default_factory=RefusedWrites)


def container_cloud_caches(api: Api, *, compaction: type[ObjectCompaction] = ObjectCompaction) -> ContainerCloudCaches:
    """Return the caches with their indexes, which nothing runs yet.

    Args:
        compaction: of the objects of a fleet.
    """
    shared = compaction()
    return ContainerCloudCaches(
        machines=Cache(
            api,
            CONTAINER_CLOUD_MACHINES,
            indexes={
                INDEX_CLUSTER: by_cluster,
                INDEX_POOL: by_pool,
                INDEX_HOST_MACHINE: by_host_machine,
                INDEX_PIN: by_pin,
            },
            compact=shared,
        ),
        clusters=Cache(api, CLUSTERS, indexes={INDEX_RELEASE: by_release, INDEX_SCOPED_NAME: by_scoped_name}),
        releases=Cache(api, CLUSTER_RELEASES),
        pools=Cache(api, MACHINE_POOLS, indexes={INDEX_CLUSTER: by_cluster}),
        hosts=Cache(
            api,
            BARE_METAL_HOSTS,
            indexes={
                INDEX_NAMESPACE: in_namespace,
                INDEX_BMC: by_address,
                INDEX_MAC: by_mac,
                INDEX_ADOPTED: by_adopted,
                INDEX_SECRET: by_secret,
                INDEX_CREDENTIAL: by_credential,
                INDEX_CONSUMER: by_consumer,
                INDEX_FREE: by_free,
            },
            compact=shared,
        ),
        profiles=Cache(api, BARE_METAL_HOST_PROFILES),
        credentials=Cache(api, BARE_METAL_HOST_CREDENTIALS, compact=shared),
        secrets=Cache(api, SECRETS, labels=f"{LABEL_HOST_SECRET}={HOST_SECRET}", compact=compaction(apart=PASSWORDS)),
        templates=Cache(api, L2_TEMPLATES, indexes={INDEX_NAMESPACE: in_namespace}),
        subnets=Cache(api, SUBNETS),
        ipam_hosts=Cache(
            api,
            IPAM_HOSTS,
            indexes={INDEX_NAMESPACE: in_namespace, INDEX_NETWORK: by_network, INDEX_FAULTY: if_faulty},
            compact=shared,
        ),
        network_configs=Cache(
            api,
            CONFIG_MAPS,
            namespace=NAMESPACE,
            labels=LABEL_NETWORK_CONFIG,
            indexes={INDEX_IPAM_HOST: by_ipam_host},
            compact=shared,
        ),
        layouts=Cache(api, MACHINE_PROFILES, indexes={INDEX_PROFILE: by_profile}),
        namespaces=Cache(api, NAMESPACES),
        host_machines=Cache(
            api,
            MACHINES,
            indexes={INDEX_BMC: by_bmc, INDEX_CLUSTER: by_cluster_label},
            compact=compaction(UNREAD_OF_MACHINES),
        ),
        operations=Cache(
            api, MACHINE_OPERATIONS, indexes={INDEX_MACHINE: by_machine}, compact=compaction(UNREAD_OF_OPERATIONS)
        ),
        nodes=Cache(api, NODES, indexes={INDEX_MACHINE: node_by_machine}, compact=compaction(UNREAD_OF_NODES)),
        configurations=Cache(api, MACHINE_CONFIGURATIONS),
        budgets=Cache(api, MACHINE_DISRUPTION_BUDGETS),
    )


async def confirm(api: Api, kind: Kind[T], known: T | None, cache: Cache[T]) -> None:
    """Read an object live before a step that an older state of it would not allow.

    A host whose addresses go back may have been found to run, and a host may be released that gets its network.

    Raises:
        Stale: the object has changed.
    """
    if known is None:
        return
    key, uid, version = identify(known)
    try:
        live = await api.get(kind, key.name, namespace=key.namespace)
    except NotFound as error:
        raise Stale(f"{kind.kind} {key} is gone") from error
    if identify(live)[1:] != (uid, version):
        cache.observe(live)
        raise Stale(f"{kind.kind} {key} changed")


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


def in_namespace(item: BareMetalHost | IpamHost | L2Template) -> tuple[str, ...]:
    """Index objects by their namespace."""
    return (item.metadata.namespace or "",)


def by_network(ipam: IpamHost) -> tuple[str, ...]:
    """Index IpamHosts by the Machine of their host, and by NAMESPACE/NAME of the BareMetalHost."""
    notes = ipam.metadata.annotations
    return tuple(notes[key] for key in (ANNOTATION_NETWORK_OF, ANNOTATION_HOST) if key in notes)


def by_ipam_host(config: ConfigMap) -> tuple[str, ...]:
    """Index network configurations by their IpamHost, as NAMESPACE/NAME."""
    name = config.metadata.annotations.get(ANNOTATION_IPAM_HOST)
    return () if name is None else (name,)


def if_faulty(ipam: IpamHost) -> tuple[str, ...]:
    """Index IpamHosts whose network needs a correction, or an address that others have."""
    return (INDEX_FAULTY,) if (ipam.status.state or OK) != OK else ()


def by_profile(layout: MachineProfile) -> tuple[str, ...]:
    """Index MachineProfiles by the BareMetalHostProfile that they were made for, as NAMESPACE/NAME."""
    name = layout.metadata.annotations.get(ANNOTATION_HOST_PROFILE)
    return () if name is None else (name,)


def by_release(cluster: Cluster) -> tuple[str, ...]:
    """Index Clusters by their ClusterRelease."""
    return (cluster.value.release,)


def by_pin(machine: ContainerCloudMachine) -> tuple[str, ...]:
    """Index Machines by the host that their annotation names, as NAMESPACE/NAME."""
    pin = machine.pinned_host
    return () if pin is None else (str(ObjectKey(*pin)),)


def by_address(host: BareMetalHost) -> tuple[str, ...]:
    """Index hosts by their BMC and system, as `by_bmc` indexes Machines."""
    try:
        return () if host.spec.bmc is None else (str(parse_bmc_address(host.spec.bmc.address)),)
    except ValueError:
        return ()


def by_mac(host: BareMetalHost) -> tuple[str, ...]:
    """Index hosts by the MAC address that boots."""
    return () if host.spec.boot_mac_address is None else (host.spec.boot_mac_address.lower(),)


def by_adopted(host: BareMetalHost) -> tuple[str, ...]:
    """Index hosts by the Machine that they adopt."""
    return (host.adopts,) if host.adopts else ()


def by_secret(host: BareMetalHost) -> tuple[str, ...]:
    """Index hosts by the Secret of their login, as NAMESPACE/NAME."""
    name = host.spec.bmc.credentials_name if host.spec.bmc is not None else None
    return (f"{host.metadata.namespace}/{name}",) if name else ()


def by_credential(host: BareMetalHost) -> tuple[str, ...]:
    """Index hosts by their BareMetalHostCredential, as NAMESPACE/NAME."""
    name = host.metadata.annotations.get(ANNOTATION_CREDENTIAL)
    return (f"{host.metadata.namespace}/{name}",) if name else ()


def by_consumer(host: BareMetalHost) -> tuple[str, ...]:
    """Index hosts by the Machine of cluster.k8s.io that uses them, as NAMESPACE/NAME."""
    consumer = consumer_of(host)
    return () if consumer is None else (str(consumer),)


def by_free(host: BareMetalHost) -> tuple[str, ...]:
    """Index the hosts that a Machine may claim by their namespace."""
    return in_namespace(host) if is_free(host) else ()
