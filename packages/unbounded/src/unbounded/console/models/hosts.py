"""The views of Container Cloud: all hosts and Clusters, one host, and one Cluster with its Machines and pools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from unbounded.api.conditions import counted
from unbounded.api.container_cloud.cluster import Cluster, MachinePool
from unbounded.api.container_cloud.host import BareMetalHost, OperationalStatus
from unbounded.api.container_cloud.machine import ContainerCloudMachine
from unbounded.console import urls
from unbounded.console.models.machine import object_rows
from unbounded.console.models.parts import (
    FactList,
    NotRead,
    Tone,
    ViewData,
    ViewSection,
    ViewTable,
    ViewText,
    blockers,
    facts,
    known,
    note_unread,
    phase,
    size,
    words,
)
from unbounded.containercloud.hosts.model import CONDITION_AVAILABLE, consumer_of, is_free, machine_of_host
from unbounded.explain.container_cloud import host_of
from unbounded.explain.results import Explanation
from unbounded.explain.tree import ObjectTree

HOST_HEADS: Final = ("Host", "State", "Operational", "Online", "Claimed by", "Machine", "Message")
MACHINE_HEADS: Final = ("Machine", "Status", "Stage", "Host", "Waits for", "Message")


@dataclass(frozen=True)
class ContainerCloud:
    """The objects of Container Cloud that a user may read."""

    hosts: Sequence[BareMetalHost] | NotRead = ()
    clusters: Sequence[Cluster] | NotRead = ()
    pools: Sequence[MachinePool] | NotRead = ()
    machines: Sequence[ContainerCloudMachine] | NotRead = ()


def hosts_view(found: ContainerCloud, namespace: str = "") -> ViewData:
    """Return the view of all hosts and Clusters, or of those in one namespace, those with errors first."""
    hosts = sorted(known(found.hosts), key=lambda one: (not _has_error(one), _key(one)))
    failing = sum(map(_has_error, hosts))
    free = sum(map(is_free, hosts))
    present = words(f"{counted(len(hosts), 'host')}, {free} free")
    if isinstance(found.hosts, NotRead):
        present = words("not all readable", tone=Tone.WARN)
    state = words(f"{failing} with errors", tone=Tone.BAD) if failing else present
    clusters, pools = sorted(known(found.clusters), key=_key), sorted(known(found.pools), key=_key)
    sections: tuple[ViewSection, ...] = (
        note_unread(
            ViewTable("Clusters", _CLUSTER_HEADS, tuple(map(_cluster, clusters)), "No Cluster."), found.clusters
        ),
        note_unread(ViewTable("Hosts", HOST_HEADS, tuple(map(_host, hosts)), "No BareMetalHost."), found.hosts),
        note_unread(ViewTable("Pools", _POOL_HEADS, tuple(map(_pool, pools)), "No MachinePool."), found.pools),
        note_unread(_unhosted(known(found.machines)), found.machines),
    )
    where = f" in {namespace}" if namespace else ""
    return ViewData(f"Hosts and clusters{where}", state, sections)


def _key(item: BareMetalHost | Cluster | MachinePool | ContainerCloudMachine) -> tuple[str, str]:
    return item.metadata.namespace or "", item.name


def _named(item: BareMetalHost | Cluster | MachinePool | ContainerCloudMachine) -> str:
    return "/".join(_key(item))


def _has_error(host: BareMetalHost) -> bool:
    return host.status.operational_status == OperationalStatus.ERROR


# ---- hosts


def _host(host: BareMetalHost) -> tuple[ViewText, ...]:
    consumer, status = consumer_of(host), host.status
    machine = status.provisioning.id
    return (
        ViewText(_named(host), urls.host(*_key(host))),
        phase(host.state or "new"),
        phase(status.operational_status),
        words("" if status.powered_on is None else "on" if status.powered_on else "off"),
        words("" if consumer is None else str(consumer)),
        words(machine, urls.machine(machine) if machine else ""),
        words(status.error_message or _available(host)),
    )


def _available(host: BareMetalHost) -> str:
    return next((one.message for one in host.status.conditions if one.type == CONDITION_AVAILABLE), "")


def host_view(host: BareMetalHost, tree: ObjectTree | None, explanation: Explanation | None) -> ViewData:
    """Return the view of one host."""
    sections: list[ViewSection] = [_host_facts(host), blockers(explanation)]
    if tree is not None:
        sections.append(object_rows(tree))
    sections.append(
        ViewTable(
            "Conditions",
            ("Type", "Status", "Reason", "Message", "Since"),
            tuple(
                tuple(map(words, (one.type, one.status, one.reason, one.message, one.since)))
                for one in host.status.conditions
            ),
        )
    )
    hardware = host.status.hardware
    if hardware is not None:
        sections.append(
            ViewTable(
                "Disks",
                ("Name", "Serial number", "Model", "Size", "Type"),
                tuple(
                    tuple(map(words, (one.name, one.serial_number, one.model, size(one.size_bytes), one.type)))
                    for one in hardware.storage
                ),
            )
        )
        sections.append(
            ViewTable(
                "Network interfaces",
                ("Name", "MAC", "Address"),
                tuple(tuple(map(words, (one.name, one.mac, one.ip))) for one in hardware.nics),
            )
        )
    return ViewData(f"Host {_named(host)}", phase(host.state or "new"), tuple(sections))


def _host_facts(host: BareMetalHost) -> FactList:
    spec, status = host.spec, host.status
    consumer, hardware, machine = consumer_of(host), status.hardware, machine_of_host(host)
    vendor = None if hardware is None else hardware.system_vendor
    cpu = None if hardware is None else hardware.cpu
    memory = None if hardware is None or hardware.ram_mebibytes is None else f"{hardware.ram_mebibytes / 1024:.4g} GiB"
    return facts(
        "State",
        (
            ("State", phase(host.state or "new")),
            ("Operational", phase(status.operational_status)),
            ("Error", None if not status.error_message else words(status.error_message, tone=Tone.BAD)),
            ("Claimed by", None if consumer is None else str(consumer)),
            ("Machine", ViewText(machine, urls.machine(machine))),
            ("Desired power", "on" if spec.online else "off"),
            ("Power", None if status.powered_on is None else "on" if status.powered_on else "off"),
            ("Boot mode", spec.boot_mode),
            ("BMC", None if spec.bmc is None else spec.bmc.address),
            ("Boot MAC", spec.boot_mac_address),
            ("Image", None if status.provisioning.image is None else status.provisioning.image.url),
            ("Manufacturer", None if vendor is None else vendor.manufacturer),
            ("Product", None if vendor is None else vendor.product_name),
            ("Serial number", None if vendor is None else vendor.serial_number),
            ("Processor", None if cpu is None else cpu.model),
            ("Memory", memory),
            ("Description", spec.description),
            ("Changed", status.last_updated),
        ),
    )


# ---- Clusters

_CLUSTER_HEADS: Final = ("Cluster", "Release", "Ready", "Machines", "Ready Machines", "Maintenance")
_POOL_HEADS: Final = ("Pool", "Cluster", "Desired", "Members", "Ready")


def _cluster(cluster: Cluster) -> tuple[ViewText, ...]:
    status = cluster.provider_status
    nodes = status.nodes
    return (
        ViewText(_named(cluster), urls.cluster(*_key(cluster))),
        words(_release(cluster)),
        words("yes", tone=Tone.GOOD) if status.ready else words("no", tone=Tone.WARN),
        words("" if nodes is None else str(nodes.requested)),
        words("" if nodes is None else str(nodes.ready)),
        words("yes" if status.maintenance else ""),
    )


def _release(cluster: Cluster) -> str:
    """Return the release, and the one that the Machines are being updated to."""
    releases = cluster.provider_status.releases
    current = cluster.value.release if releases.current is None else releases.current.name
    return current if releases.next is None else f"{current}, updating to {releases.next.name}"


def _pool(pool: MachinePool) -> tuple[ViewText, ...]:
    where = pool.metadata.namespace or ""
    return (
        words(_named(pool)),
        words(pool.cluster, urls.cluster(where, pool.cluster) if pool.cluster else ""),
        *map(words, map(str, (pool.spec.replicas, pool.status.replicas, pool.status.ready_replicas))),
    )


def cluster_view(cluster: Cluster, found: ContainerCloud, explanation: Explanation | None) -> ViewData:
    """Return the view of one Cluster.

    Args:
        found: pools and Machines of all Clusters.
    """
    status, where = cluster.provider_status, cluster.metadata.namespace or ""
    machines = [
        one for one in known(found.machines) if (one.metadata.namespace or "", one.cluster) == (where, cluster.name)
    ]
    pools = [one for one in known(found.pools) if (one.metadata.namespace or "", one.cluster) == (where, cluster.name)]
    nodes = status.nodes
    sections: tuple[ViewSection, ...] = (
        facts(
            "State",
            (
                ("Release", _release(cluster)),
                ("Machines", None if nodes is None else f"{nodes.ready} of {nodes.requested} are ready"),
                ("Maintenance", "no update of a Machine starts" if status.maintenance else None),
            ),
        ),
        blockers(explanation),
        ViewTable(
            "Conditions",
            ("Type", "Ready", "Reason", "Message"),
            tuple(
                (
                    words(one.type),
                    words("yes", tone=Tone.GOOD) if one.ready else words("no", tone=Tone.WARN),
                    words(one.reason),
                    words(one.message),
                )
                for one in status.conditions
            ),
        ),
        note_unread(
            ViewTable("Machines", MACHINE_HEADS, tuple(map(_machine, sorted(machines, key=_key))), "No Machine."),
            found.machines,
        ),
        note_unread(
            ViewTable("Pools", _POOL_HEADS, tuple(map(_pool, sorted(pools, key=_key))), "No MachinePool."), found.pools
        ),
    )
    state = words("Ready", tone=Tone.GOOD) if status.ready else words("NotReady", tone=Tone.WARN)
    return ViewData(f"Cluster {_named(cluster)}", state, sections)


def _machine(machine: ContainerCloudMachine) -> tuple[ViewText, ...]:
    execution, host = machine.status.execution, host_of(machine)
    waiting = None if execution is None else execution.waiting
    target = None if execution is None else execution.machine
    return (
        words(_named(machine), urls.machine(target) if target else ""),
        phase(machine.provider_status.status),
        words(None if execution is None else execution.stage),
        words(None if host is None else str(host), "" if host is None else urls.host(host.namespace, host.name)),
        words(None if waiting is None else ", held by ".join(filter(None, (waiting.reason, waiting.held_by)))),
        words(machine.status.error_message or (None if execution is None else execution.message)),
    )


def _unhosted(machines: Iterable[ContainerCloudMachine]) -> ViewTable:
    without = [one for one in machines if host_of(one) is None]
    return ViewTable(
        "Machines without a host",
        MACHINE_HEADS,
        tuple(map(_machine, sorted(without, key=_key))),
        empty="Each Machine of cluster.k8s.io has a host.",
    )
