"""Container Cloud: what it costs to claim, install and join many bare-metal hosts through its Machines.

1. HostReplaces of that many hosts, asked for directly, until all Nodes are Ready: the bare replacement.
2. The same hosts in stock, and a Machine of cluster.k8s.io for each: until all are Ready. Then all of it at rest.
3. Another release of their Cluster, until all Nodes have it: first that of the only manager, then the others, some at
   a time. The ideal takes for each of them what the manager took alone; a budget has its place until it is returned.
4. Hosts in stock and as many Machines that claim them at once, with two leaders that do nothing else; beside it the
   same writes by a client that knows who gets which host.

Hosts boot from virtual media, "install" a small image and join; `unbounded up` is their site. A boot takes a minute, as
the firmware of a fast server does; with shorter ones the processor time of the site counts, and not what Machines wait
for. Before the time of 1 and 2 begins, their BMCs are read. The process `container-cloud` runs apart, so that its
requests and its memory are known. It is at rest once it has written what only informs, which waits for FACTS_S.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol, TypeVar

from benchmarks import children
from benchmarks.fleet import Up, running_up
from benchmarks.frame import Limit, Measured, print_progress, run_benchmark
from benchmarks.progress import Progress, create_operation, followed, watched
from tests.cli.test_lab_hosts import TOKEN, grant_token, netboot_image
from tests.fetch.layers import files, image
from tests.fetch.registries import Registry
from tests.support.ports import free_ports
from unbounded.api.conditions import ConditionStatus, ConditionType
from unbounded.api.container_cloud.cluster import CLUSTER_RELEASES, CLUSTERS
from unbounded.api.container_cloud.host import BARE_METAL_HOST_CREDENTIALS, BARE_METAL_HOSTS, BareMetalHost
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.container_cloud.names import (
    ANNOTATION_CONSUMER_UID,
    ANNOTATION_CREDENTIAL,
    ANNOTATION_HOST,
    LABEL_CLUSTER,
    LABEL_CONTROL_PLANE,
    LABEL_PROVIDER,
)
from unbounded.api.container_cloud.network import L2_TEMPLATES, SUBNETS
from unbounded.api.core import NAMESPACES, NODES, SECRETS, Node
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.names import LABEL_SITE, NAMESPACE
from unbounded.cli.manifests import install_container_cloud
from unbounded.containercloud.machines.report import FACTS_S
from unbounded.kube.api import Api
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded_lab.bmc.fleet import FleetBmc, start_fleet
from unbounded_lab.bmc.identity import BmcIdentity
from unbounded_lab.bmc.inventory import DRIVES
from unbounded_lab.bmc.power import HostPower


class Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)
PROJECT: Final = "default"
CLUSTER: Final = "bench"
RELEASES: Final = {"r1": "v1.34.0", "r2": "v1.35.0"}  # with their versions of Kubernetes
RELEASE: Final = "r1"
PROCESSES: Final = 2  # of the lab's fleet
MODULE: Final = "benchmarks.container_cloud_processes"
SITES: Final = 10  # each with the limit of concurrent operations of one site
CLIENTS: Final = 8  # as the workers of one controller
VALUE: Final = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BareMetalMachineProviderSpec"}
OF_CLUSTER: Final = {LABEL_PROVIDER: "baremetal", LABEL_CLUSTER: CLUSTER}
NETPLAN: Final = """version: 2
ethernets:
  {{nic 0}}: {match: {macaddress: "{{mac 0}}"}, set-name: {{nic 0}}, addresses: [{{ip "0:lcm"}}]}
"""
WRITES: Final = frozenset({"create", "patch", "update", "delete"})
APART: Final = ("leases", "machineoperations")

AMOUNT: Final = "{hosts:g} hosts that boot, on {sites:g} sites, and as many Machines; {updates:g} updates at a time"
LIMITS: Final[Mapping[str, Limit]] = {
    "wall_vs_bare_replace": Limit("until all Machines are Ready, over the same HostReplaces alone", most=1.15),
    "update_vs_ideal": Limit("time of an update of the Cluster, over what its steps alone allow", most=1.15),
    "claims_vs_bare_writes": Limit("claims in a second by two leaders, over the same writes by a client", least=0.25),
    "api_writes_per_machine": Limit(
        "API writes of container-cloud for a Machine to Ready, Events included; its operation apart", most=20.0
    ),
    "idle_calls_per_s": Limit("idle: calls of container-cloud to the API in a second", most=1.0),
    "memory_per_host_kib": Limit("memory of container-cloud for a host with its Machine, KiB", most=40.0),
    "cpu_ms_per_machine": Limit("CPU of container-cloud for a Machine to Ready, ms"),
}


@dataclass(frozen=True)
class Size:
    """Amounts of one run, and the times of the simulated hosts."""

    hosts: int
    claims: int
    updates: int  # Nodes that are updated at a time
    shutdown_s: float
    boot_s: float
    idle_s: float
    news_s: float
    within_s: float


FULL: Final = Size(
    hosts=500, claims=500, updates=50, shutdown_s=2.0, boot_s=60.0, idle_s=60.0, news_s=FACTS_S + 5, within_s=3000.0
)
QUICK: Final = Size(hosts=4, claims=20, updates=2, shutdown_s=0.2, boot_s=0.2, idle_s=4.0, news_s=2.0, within_s=240.0)


async def run(quick: bool) -> Measured:
    size = QUICK if quick else FULL
    bare_s = await _bare_replaces(size)
    managed = await _managed(size)
    claims = await _claims(size)
    return Measured(
        figures={
            "hosts": size.hosts,
            "sites": SITES,
            "boot_s": size.boot_s,
            "updates": size.updates,
            "bare_s": bare_s,
            "managed_s": managed.seconds,
            "api_writes_per_machine": _writes(managed.used) / size.hosts,
            "cpu_ms_per_machine": 1000 * managed.used.cpu_s / size.hosts,
            "idle_calls_per_s": managed.idle_calls_per_s,
            "memory_per_host_kib": managed.kib_per_host,
            "update_s": managed.update.took_s,
            "ideal_update_s": managed.update.ideal_s,
            "claims_per_s": claims.per_s,
            "bare_writes_per_s": claims.bare_per_s,
        },
        ratios={
            "wall_vs_bare_replace": managed.seconds / bare_s,
            "update_vs_ideal": managed.update.took_s / managed.update.ideal_s,
            "claims_vs_bare_writes": claims.per_s / claims.bare_per_s,
        },
    )


def _writes(used: children.Usage) -> int:
    counted = ((what.split(), count) for what, count in used.requests.items())
    return sum(count for (verb, kind), count in counted if verb in WRITES and kind not in APART)


# The site


@dataclass(frozen=True)
class BootingHost:
    """A simulated host that boots, and its BMC."""

    bmc: FleetBmc

    @property
    def name(self) -> str:
        return self.bmc.name

    @property
    def identity(self) -> BmcIdentity:
        return BmcIdentity(self.name)

    @property
    def mac(self) -> str:
        return self.identity.mac(0)

    @property
    def disk(self) -> str:
        """Serial number of its first disk."""
        return self.identity.serial_number(f"{DRIVES[0]} 0")


@dataclass(frozen=True)
class Site:
    """An `unbounded up` with hosts that boot.

    Args:
        image: reference of the image of all hosts.
    """

    api: HttpApi
    up: Up
    kubeconfig: str
    hosts: Sequence[BootingHost]
    image: str


@asynccontextmanager
async def _site(size: Size) -> AsyncIterator[Site]:
    registry = Registry()
    registry.add(image([files(netboot_image())]), "v1")
    media = BmcIdentity("media").certificate().pem  # for loopback, with its key
    with TemporaryDirectory(prefix="unbounded-benchmark-") as folder:
        certificate, data = Path(folder) / "media.pem", Path(folder) / "data"
        certificate.write_bytes(media)
        http_port, tftp_port, media_port = map(str, free_ports(3))
        flags = ["--pxe-interface", "lo", "--pxe-dhcp-mode", "none"]
        flags += ["--pxe-http-port", http_port, "--pxe-tftp-port", tftp_port, "--pxe-media-port", media_port]
        flags += ["--pxe-media-certificate", str(certificate), "--pxe-media-key", str(certificate)]
        async with (
            registry.running(),
            running_up(data, *flags) as (up, _),
            start_fleet(
                size.hosts,
                processes=PROCESSES,
                shutdown_s=size.shutdown_s,
                boot_s=size.boot_s,
                power=HostPower.OFF,
                prefix="host",
                media_ca=media.decode(),
                boots=True,
            ) as bmcs,
            HttpApi(from_kubeconfig(data / "kubeconfig")) as api,
        ):
            await grant_token(api)
            hosts = [BootingHost(bmc) for bmc in bmcs]
            yield Site(api, up, str(data / "kubeconfig"), hosts, f"{registry.host}/bench/host:v1")


def _lease(number: int, host: BootingHost) -> dict[str, str]:
    return {"ipv4": _address(number), "mac": host.mac, "subnetMask": "255.0.0.0", "gateway": "127.0.0.1"}


def _address(number: int) -> str:
    return f"127.41.{number // 200}.{number % 200 + 10}"


async def _each(of: Iterable[Awaitable[object]]) -> None:
    """Await all, some at a time."""
    turns = asyncio.Semaphore(CLIENTS)

    async def one(work: Awaitable[object]) -> None:
        async with turns:
            await work

    async with asyncio.TaskGroup() as group:
        for work in of:
            group.create_task(one(work))


class Awaited:
    """Names of objects that have reached a state."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._changed = asyncio.Event()

    def note(self, name: str, *, holds: bool) -> None:
        if holds:
            self.names.add(name)
            self._changed.set()

    async def all(self, count: int) -> None:
        while len(self.names) < count:
            self._changed.clear()
            await self._changed.wait()


@asynccontextmanager
async def _awaited(api: Api, kind: Kind[T], reached: Callable[[T], bool]) -> AsyncIterator[Awaited]:
    """Follow objects during the block, and collect those of which `reached` returns true."""
    found = Awaited()
    async with followed(api, kind, lambda item: found.note(item.name, holds=reached(item))):
        yield found


def _is_ready(node: Node) -> bool:
    return any((one.type, one.status) == ("Ready", "True") for one in node.status.conditions)


def _is_inspected(machine: Machine) -> bool:
    return machine.status.hardware is not None


def _has_image(machine: Machine) -> bool:
    found = machine.current_condition(ConditionType.NETBOOT_IMAGE_READY)
    return found is not None and found.status == ConditionStatus.TRUE


def _is_available(host: BareMetalHost) -> bool:
    return host.state == "available"


def _is_managed_and_ready(machine: ContainerCloudMachine) -> bool:
    return machine.provider_status.status == "Ready"


# 1. HostReplaces alone


async def _bare_replaces(size: Size) -> float:
    async with asyncio.timeout(size.within_s), _site(size) as site:
        async with (
            _awaited(site.api, MACHINES, _is_inspected) as inspected,
            _awaited(site.api, MACHINES, _has_image) as prepared,
        ):
            await _each(_bare_machine(site, number, host) for number, host in enumerate(site.hosts))
            await inspected.all(size.hosts)  # at once, as they are in stock
            await _each(_give_image(site, host) for host in site.hosts)
            await prepared.all(size.hosts)
        await site.up.settled()
        progress = Progress()
        async with watched(site.api, progress), _awaited(site.api, NODES, _is_ready) as ready:
            began = time.monotonic()
            names = [f"replace-{host.name}" for host in site.hosts]
            await _each(
                create_operation(site.api, progress, name, "HostReplace", host.name)
                for name, host in zip(names, site.hosts, strict=True)
            )
            await progress.all_complete(names)
            await ready.all(size.hosts)
            seconds = time.monotonic() - began
    print_progress(f"{size.hosts} HostReplaces, until all Nodes are Ready: {seconds:.1f} s")
    return seconds


async def _give_image(site: Site, host: BootingHost) -> None:
    await site.api.patch(MACHINES, host.name, {"spec": {"pxe": {"image": site.image}}})


async def _bare_machine(site: Site, number: int, host: BootingHost) -> None:
    secret = {"name": f"{host.name}-bmc", "namespace": NAMESPACE, "key": "password"}
    await site.api.create(
        SECRETS,
        {"metadata": {"name": secret["name"]}, "stringData": {"password": host.bmc.password}},
        namespace=NAMESPACE,
    )
    pxe = {
        "bootMode": "VirtualMedia",
        "dhcpLeases": [_lease(number, host)],
        "targetDisk": f"/dev/disk/by-id/ata-{host.disk}",
        "redfish": {"url": host.bmc.url, "username": host.bmc.username, "passwordRef": secret},
    }
    kubernetes = {"version": RELEASES[RELEASE], "bootstrapTokenRef": {"name": TOKEN}}
    labels = {LABEL_SITE: f"site-{number % SITES}"}
    body = {"metadata": {"name": host.name, "labels": labels}, "spec": {"pxe": pxe, "kubernetes": kubernetes}}
    await site.api.create(MACHINES, body)


# 2. Machines of Container Cloud


@dataclass(frozen=True)
class UpdateFigures:
    """Seconds of an update of all Nodes."""

    took_s: float
    ideal_s: float


@dataclass(frozen=True)
class ManagedFigures:
    """Figures of the Machines of Container Cloud until Ready, at rest, and in an update."""

    seconds: float
    used: children.Usage
    idle_calls_per_s: float
    kib_per_host: float
    update: UpdateFigures


async def _managed(size: Size) -> ManagedFigures:
    async with asyncio.timeout(size.within_s), _site(size) as site:
        await install_container_cloud(site.api)
        async with children.start(MODULE, site.kubeconfig) as controllers:
            await _project(site.api, site.image, size)
            await _settled(controllers)
            empty_mib = controllers.memory_mib
            await _stock(site, size)
            await _settled(controllers)
            used = await controllers.usage()
            async with _awaited(site.api, CONTAINER_CLOUD_MACHINES, _is_managed_and_ready) as ready:
                began = time.monotonic()
                await _each(_machine(site.api, number, manager=number == 0) for number in range(size.hosts))
                await ready.all(size.hosts)
                seconds = time.monotonic() - began
            used = (await controllers.usage()).since(used)
            print_progress(f"{size.hosts} Machines, until all are Ready: {seconds:.1f} s; requests: {used.requests}")
            await _settled(controllers, quiet_s=size.news_s)
            idle = await controllers.usage()
            await asyncio.sleep(size.idle_s)
            calls = sum((await controllers.usage()).since(idle).requests.values())
            memory_mib = controllers.memory_mib
            update = await _update(site.api, size)
            return ManagedFigures(
                seconds=seconds,
                used=used,
                idle_calls_per_s=calls / size.idle_s,
                kib_per_host=1024 * (memory_mib - empty_mib) / size.hosts,
                update=update,
            )


async def _update(api: Api, size: Size) -> UpdateFigures:
    """Give the Cluster another release, until all Nodes have its version of Kubernetes."""
    version = RELEASES["r2"]

    def is_updated(node: Node) -> bool:
        return (
            _is_ready(node) and node.status.node_info is not None and node.status.node_info.kubelet_version == version
        )

    disrupted: set[str] = set()

    def is_returned(machine: Machine) -> bool:
        if machine.status.disruption is not None:
            disrupted.add(machine.name)
        is_done = machine.name in updated.names & disrupted
        return is_done and machine.status.disruption is None

    async with _awaited(api, NODES, is_updated) as updated, _awaited(api, MACHINES, is_returned) as returned:
        began = time.monotonic()
        patch = {"spec": {"providerSpec": {"value": {"release": "r2"}}}}
        await api.patch(CLUSTERS, CLUSTER, patch, namespace=PROJECT)
        await updated.all(1)
        alone_s = time.monotonic() - began
        await returned.all(1)
        held_s = time.monotonic() - began
        await updated.all(size.hosts)
        took_s = time.monotonic() - began
    waves = math.ceil((size.hosts - 1) / size.updates)
    ideal_s = alone_s + (waves - 1) * held_s + alone_s
    print_progress(
        f"update: {size.hosts} Nodes in {took_s:.1f} s, the manager in {alone_s:.1f} s, and returned in {held_s:.1f} s"
    )
    return UpdateFigures(took_s, ideal_s)


async def _settled(child: children.Child, quiet_s: float = 2.0) -> None:
    """Wait until a child sends no request for some seconds, those of its Lease and of watches that have ended apart."""
    before = -1
    while True:
        requests = (await child.usage()).requests
        found = sum(count for what, count in requests.items() if not what.endswith(" leases") and "watch " not in what)
        if found == before:
            return
        before = found
        await asyncio.sleep(quiet_s)


async def _project(api: Api, image_reference: str, size: Size) -> None:
    """Create the releases, the Cluster and the network of the Machines."""
    for name, version in RELEASES.items():
        release = {
            "version": "17.3.0",
            "kubernetes": {"version": version},
            "allowedDistributions": [{"id": "ubuntu/jammy", "default": True, "image": {"url": image_reference}}],
        }
        await api.create(CLUSTER_RELEASES, {"metadata": {"name": name}, "spec": release})
    await _cluster(api, maxWorkerUpgradeCount=size.updates)
    subnet = {"cidr": "127.40.0.0/16", "includeRanges": ["127.40.0.10-127.40.200.250"], "gateway": "127.40.0.1"}
    meta = {"name": "lcm", "labels": {"ipam/SVC-k8s-lcm": "1"}}
    await api.create(SUBNETS, {"metadata": meta, "spec": subnet}, namespace=PROJECT)
    spec = {"ifMapping": ["eno1", "enp0s0"], "l3Layout": [{"subnetName": "lcm"}], "npTemplate": NETPLAN}
    meta = {"name": "all", "labels": OF_CLUSTER | {"ipam/DefaultForCluster": "1"}}
    await api.create(L2_TEMPLATES, {"metadata": meta, "spec": spec}, namespace=PROJECT)


async def _cluster(api: Api, **fields: object) -> None:
    kind = {"apiVersion": VALUE["apiVersion"], "kind": "BaremetalClusterProviderSpec"}
    meta = {"name": CLUSTER, "labels": {LABEL_PROVIDER: "baremetal"}}
    spec = {"providerSpec": {"value": kind | {"release": RELEASE} | fields}}
    await api.create(CLUSTERS, {"metadata": meta, "spec": spec}, namespace=PROJECT)


async def _stock(site: Site, size: Size) -> None:
    """Register all hosts, and wait until they are in stock."""
    async with _awaited(site.api, BARE_METAL_HOSTS, _is_available) as available:
        await _each(_host(site.api, number, host) for number, host in enumerate(site.hosts))
        await available.all(size.hosts)
    await _each(_give_token(site.api, host) for host in site.hosts)


async def _give_token(api: Api, host: BootingHost) -> None:
    """Give a host its bootstrap token, as it has no TPM."""
    token = {"spec": {"kubernetes": {"bootstrapTokenRef": {"name": TOKEN}}}}
    await api.patch(MACHINES, f"{host.name}.{PROJECT}", token)


async def _host(api: Api, number: int, host: BootingHost) -> None:
    credential = {"username": host.bmc.username, "password": {"value": host.bmc.password}}
    await api.create(
        BARE_METAL_HOST_CREDENTIALS, {"metadata": {"name": host.name}, "spec": credential}, namespace=PROJECT
    )
    meta = {
        "name": host.name,
        "annotations": {ANNOTATION_CREDENTIAL: host.name},
        "labels": {LABEL_SITE: f"site-{number % SITES}"},
    }
    spec = {
        "bmc": {"address": f"{host.bmc.url.replace('https', 'redfish-virtualmedia')}/redfish/v1/Systems/1"},
        "bootMACAddress": host.mac,
        "rootDeviceHints": {"serialNumber": host.disk},
    }
    await api.create(BARE_METAL_HOSTS, {"metadata": meta, "spec": spec}, namespace=PROJECT)


async def _machine(api: Api, number: int, *, manager: bool = False) -> None:
    labels = OF_CLUSTER | ({LABEL_CONTROL_PLANE: "true"} if manager else {})
    body = {"metadata": {"name": f"m{number}", "labels": labels}, "spec": {"providerSpec": {"value": VALUE}}}
    await api.create(CONTAINER_CLOUD_MACHINES, body, namespace=PROJECT)


# 3. Claims


@dataclass(frozen=True)
class ClaimFigures:
    """Claims in a second: of two leaders, and of a client that only writes."""

    per_s: float
    bare_per_s: float


async def _claims(size: Size) -> ClaimFigures:
    with TemporaryDirectory(prefix="unbounded-benchmark-") as folder:
        async with (
            asyncio.timeout(size.within_s),
            children.start("benchmarks.server", str(Path(folder) / "data")) as server,
            HttpApi(from_kubeconfig(Path(server.ready["kubeconfig"]))) as api,
        ):
            await install_container_cloud(api)
            bare = await _bare_claims(api, size)
            kubeconfig = server.ready["kubeconfig"]
            await _cluster(api)
            await _each(_in_stock(api, f"h{number}") for number in range(size.claims))
            await _each(_machine(api, number) for number in range(size.claims))
            async with (
                children.start(MODULE, kubeconfig, "--claims") as first,
                children.start(MODULE, kubeconfig, "--claims") as second,
                _awaited(api, CONTAINER_CLOUD_MACHINES, _is_claimed) as claimed,
            ):
                await _settled(first)
                await _settled(second)
                began = time.monotonic()
                current = {"version": "17.3.0", "name": RELEASE}
                status = {"status": {"providerStatus": {"releaseRefs": {"current": current}}}}
                await api.patch(CLUSTERS, CLUSTER, status, namespace=PROJECT, subresource="status")
                await claimed.all(size.claims)
                seconds = time.monotonic() - began
            hosts: list[BareMetalHost] = list((await api.list(BARE_METAL_HOSTS, namespace=PROJECT)).items)
            machines = (await api.list(CONTAINER_CLOUD_MACHINES, namespace=PROJECT)).items
            _judge(hosts, machines, size)
    print_progress(f"{size.claims} claims by two leaders in {seconds:.2f} s, bare writes {size.claims / bare:.2f} s")
    return ClaimFigures(size.claims / seconds, bare)


def _is_claimed(machine: ContainerCloudMachine) -> bool:
    return machine.metadata.namespace == PROJECT and machine.pinned_host is not None


def _judge(hosts: Sequence[BareMetalHost], machines: Sequence[ContainerCloudMachine], size: Size) -> None:
    """Check that each Machine has a host of its own. Raises RuntimeError if not."""
    owners = {f"{PROJECT}/{one.name}": one.spec.consumer_ref.name for one in hosts if one.spec.consumer_ref}
    for machine in machines:
        pinned = "/".join(machine.pinned_host or ())
        if owners.get(pinned) != machine.name:
            raise RuntimeError(f"Machine {machine.name} has {pinned}, which {owners.get(pinned)} has claimed")
    if len(owners) != size.claims:
        raise RuntimeError(f"{len(owners)} hosts were claimed by {size.claims} Machines")


async def _in_stock(api: Api, name: str) -> None:
    """Create a host that its controller has found in order."""
    await api.create(BARE_METAL_HOSTS, {"metadata": {"name": name}, "spec": {}}, namespace=PROJECT)
    status = {"status": {"provisioning": {"state": "available"}, "operationalStatus": "OK"}}
    await api.patch(BARE_METAL_HOSTS, name, status, namespace=PROJECT, subresource="status")


async def _bare_claims(api: Api, size: Size) -> float:
    """Return how many claims a client writes in a second that knows who gets which host."""
    project = "bare"
    await api.create(NAMESPACES, {"metadata": {"name": project}})

    async def prepare(number: int) -> tuple[BareMetalHost, ContainerCloudMachine]:
        host = await api.create(BARE_METAL_HOSTS, {"metadata": {"name": f"h{number}"}, "spec": {}}, namespace=project)
        body = {"metadata": {"name": f"m{number}", "labels": OF_CLUSTER}, "spec": {"providerSpec": {"value": VALUE}}}
        return host, await api.create(CONTAINER_CLOUD_MACHINES, body, namespace=project)

    async def claim(host: BareMetalHost, machine: ContainerCloudMachine) -> None:
        meta: dict[str, Any] = {
            "resourceVersion": host.metadata.resource_version,
            "annotations": {ANNOTATION_CONSUMER_UID: machine.metadata.uid},
            "labels": {LABEL_CLUSTER: CLUSTER},
        }
        reference = {"kind": "Machine", "namespace": project, "name": machine.name}
        spec = {"consumerRef": reference, "online": True}
        await api.patch(BARE_METAL_HOSTS, host.name, {"metadata": meta, "spec": spec}, namespace=project)
        meta = {
            "resourceVersion": machine.metadata.resource_version,
            "annotations": {ANNOTATION_HOST: f"{project}/{host.name}"},
        }
        await api.patch(CONTAINER_CLOUD_MACHINES, machine.name, {"metadata": meta}, namespace=project)

    pairs = [await prepare(number) for number in range(size.claims)]
    began = time.monotonic()
    await _each(claim(host, machine) for host, machine in pairs)
    return size.claims / (time.monotonic() - began)


if __name__ == "__main__":
    run_benchmark("container_cloud", run)
