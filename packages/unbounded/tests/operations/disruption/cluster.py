"""A cluster in virtual time for stories about drains: Nodes that follow their hosts, pods, evictions, and budgets."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from tests.operations.faults import Between, Incarnation
from tests.operations.staging import Kinds
from tests.operations.world import Process, Running, World, defaults, live
from tests.support.memory_api import MemoryApi
from tests.support.stories import told_in
from tests.support.virtual_time import virtual_now
from unbounded.api.core import CONFIG_MAPS, LEASES, NODES, PODS, Node, Pod
from unbounded.api.disruption import (
    MACHINE_DISRUPTION_BUDGETS,
    DisruptionStage,
    DisruptionStatus,
    MachineDisruptionBudget,
)
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind, Object
from unbounded.api.names import ANNOTATION_CORDONED_BY
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.api import Api, ApiError, Conflict, EvictionBlocked
from unbounded.kube.cache import Cache
from unbounded.kube.clock import rfc3339, seconds_since
from unbounded.kube.events import EventSink
from unbounded.operations.caches import (
    INDEX_BMC,
    INDEX_EXECUTOR,
    INDEX_MACHINE,
    INDEX_PARENT,
    SupervisorCaches,
    by_bmc,
    by_executor,
    by_machine,
    by_parent,
    node_by_machine,
)
from unbounded.operations.disruption.controller import DrainController

T = TypeVar("T")
REPORT_S: Final = 300.0  # nodeStatusReportFrequency of a kubelet: the most between two reports
OWNERS: Final = Kind("apps", "v1", "ReplicaSet", "replicasets", Object, namespaced=True)


class ClusterApi(MemoryApi):
    """An API server that evicts: by UID, within the pod budgets, with a grace period after which the pod is gone."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.guarded: set[str] = set()  # pods whose budget allows no eviction now
        self.refuses: type[ApiError] | None = None  # the answer of a webhook to a cordon of ours
        self.evictions: list[tuple[float, str, str]] = []  # when, which Node, which pod
        self.grace_s = 3.0

    async def create(self, kind: Kind[T], body: Mapping[str, Any], *, namespace: str = "") -> T:
        if kind.kind != "Eviction":
            return await super().create(kind, body, namespace=namespace)
        name = body["metadata"]["name"]
        pod = await self.get(PODS, name, namespace=namespace)
        if pod.metadata.uid != body["deleteOptions"]["preconditions"]["uid"]:
            raise Conflict("the UID in the precondition is another one", code=409)
        if name in self.guarded:
            cause = {
                "reason": "DisruptionBudget",
                "message": "The disruption budget web needs 1 healthy pods and has 1 ",
            }
            raise EvictionBlocked(
                "Cannot evict pod as it would violate the pod's disruption budget.",
                code=429,
                status={"details": {"causes": [cause]}},
            )
        if pod.metadata.deletion_timestamp is None:
            self.evictions.append((asyncio.get_running_loop().time(), pod.spec.node_name, name))
            await self.end_pod(pod)
        return kind.type()

    async def patch(
        self, kind: Kind[T], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        if self.refuses is not None and kind.kind == "Node" and _cordons(patch):
            raise self.refuses('admission webhook "nodes.example.com" denied the request: not now', code=403)
        return await super().patch(kind, name, patch, namespace=namespace, subresource=subresource)

    async def end_pod(self, pod: Pod) -> None:
        """Mark a pod as terminating; its Node's kubelet ends it after the grace period."""
        meta = pod.metadata
        await self.patch(PODS, meta.name, {"metadata": {"finalizers": ["kubelet"]}}, namespace=meta.namespace or "")
        await self.delete(PODS, meta.name, namespace=meta.namespace or "")


def _cordons(patch: Mapping[str, Any]) -> bool:
    """Return whether a patch of a Node is the cordon of a disruption."""
    annotations = patch.get("metadata", {}).get("annotations", {})
    return bool(annotations.get(ANNOTATION_CORDONED_BY) and patch.get("spec", {}).get("unschedulable"))


@dataclass
class WriteCount(Between):
    """The writes of objects that exist, by verb, kind and actor. Leases, Events and evictions are created."""

    by: Counter[str] = field(default_factory=Counter)

    def answered(self, life: Incarnation, call: str, answer: object) -> None:
        if call.startswith("patch"):
            self.by[f"{call} by {life.name.partition('#')[0]}"] += 1


@dataclass
class Cluster:
    """The Kubernetes side of a World."""

    world: World
    api: ClusterApi
    writes: WriteCount = field(default_factory=WriteCount)
    kubelets: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    executor: Running | None = None
    most_unavailable: int = 0  # of the Nodes at any one time
    owner: str = ""  # UID of the controller of all pods
    down: set[str] = field(default_factory=set)  # Nodes whose kubelet does not run although the host is On
    _counted_at: int = -1  # revision of the API at which the unavailable Nodes were counted

    async def node(self, name: str, *pods: str, **spec: Any) -> Node:
        """Create a Node that follows the power of its host, with pods on it."""
        boot = self.world.outside.host(name).boot
        made = await self.api.create(NODES, {"metadata": {"name": name}, "spec": spec})
        status = {"conditions": [_ready(ready=True)], "nodeInfo": {"bootID": f"boot-{boot}"}}
        made = await self.api.patch(NODES, name, {"status": status}, subresource="status")
        lease = {"metadata": {"name": name}, "spec": {"renewTime": rfc3339(virtual_now(), micro=True)}}
        await self.api.create(LEASES, lease, namespace="kube-node-lease")
        for pod in pods:
            await self.pod(name, pod)
        self.kubelets[name] = asyncio.create_task(self._kubelet(name), name=f"kubelet {name}")
        return made

    async def pod(self, node: str, name: str, **metadata: Any) -> Pod:
        if not self.owner:
            self.owner = (
                await self.api.create(OWNERS, {"metadata": {"name": "web"}}, namespace="default")
            ).metadata.uid
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": self.owner, "controller": True}
        metadata = {"name": name, "ownerReferences": [owner]} | metadata
        body = {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": "Running"}}
        return await self.api.create(PODS, body, namespace="default")

    async def _kubelet(self, name: str) -> None:
        """Report the host's power and boot, renew the lease, and end terminating pods.

        It reads what is stored without a call, as it would be most of what a schedule costs.
        """
        renewed, reported, loop = 0.0, 0.0, asyncio.get_running_loop()
        while True:
            await asyncio.sleep(2.0)
            host, now = self.world.outside.host(name), loop.time()
            runs = host.power == "On" and name not in self.down
            self._count_unavailable()
            stored = self.api._collection(NODES).versions.get(("", name))
            if stored is None:
                continue
            node = stored.decode(Node)
            if runs and now - renewed >= 10:
                renewed = now
                spec = {"renewTime": rfc3339(virtual_now(), micro=True)}
                await self.api.patch(LEASES, name, {"spec": spec}, namespace="kube-node-lease")
            if await self._report(name, node, runs=runs, boot=f"boot-{host.boot}", is_due=now - reported >= REPORT_S):
                reported = now
            if runs:
                await self._end_pods(name)

    def _count_unavailable(self) -> None:
        if self._counted_at != self.api.revision:
            self._counted_at = self.api.revision
            nodes = [version.decode(Node) for version in self.api._collection(NODES).versions.values()]
            unavailable = sum(not one.ready or one.spec.unschedulable for one in nodes)
            self.most_unavailable = max(self.most_unavailable, unavailable)

    async def _report(self, name: str, node: Node, *, runs: bool, boot: str, is_due: bool) -> bool:
        """Report the state of a Node that has changed, or whose kubelet runs and is due; return whether it did."""
        info, ready = node.status.node_info, node.ready_condition
        boots = runs and (info is None or info.boot_id != boot)
        reports = node.ready != runs or boots or (runs and is_due)
        if reports:
            others = await self.api.get(NODES.raw(), name)
            kept = [one for one in others["status"]["conditions"] if one["type"] != "Ready"]
            since = None if ready is None or node.ready != runs else ready.last_transition_time
            status: dict[str, Any] = {"conditions": [*kept, _ready(ready=runs, since=since)]}
            if boots:
                status["nodeInfo"] = {"bootID": boot}
            await self.api.patch(NODES, name, {"status": status}, subresource="status")
        return reports

    async def _end_pods(self, node: str) -> None:
        for (namespace, name), stored in list(self.api._collection(PODS).versions.items()):
            asked = stored.body["metadata"].get("deletionTimestamp")
            is_due = asked and seconds_since(asked, virtual_now()) >= self.api.grace_s
            if is_due and stored.body["spec"]["nodeName"] == node:
                await self.api.patch(PODS, name, {"metadata": {"finalizers": []}}, namespace=namespace)

    async def pods_on(self, node: str) -> list[str]:
        return [pod.metadata.name for pod in (await self.api.list(PODS, fields=f"spec.nodeName={node}")).items]

    async def disruption(self, machine: str) -> DisruptionStatus | None:
        return (await self.api.get(MACHINES, machine)).status.disruption

    async def stage(self, machine: str, stage: DisruptionStage | None, *, within_s: float = 600) -> None:
        """Wait until the disruption of a Machine has reached a stage; None: until there is none."""
        found: DisruptionStatus | None = None
        try:
            async with asyncio.timeout(within_s):
                while True:
                    found = await self.disruption(machine)
                    if (None if found is None else found.stage) == stage:
                        return
                    await asyncio.sleep(0.25)
        except TimeoutError:
            raise AssertionError(f"{machine} is not {stage} after {within_s} s: {found}") from None

    async def budget(
        self, name: str, limit: int | str, *, enforced: str = "True", **spec: Any
    ) -> MachineDisruptionBudget:
        """Create a budget for all Machines of the lab, and wait until its condition Enforced has a status."""
        selector = {"matchLabels": {"unbounded-cloud.io/site": "lab"}}
        body = {"metadata": {"name": name}, "spec": {"machineSelector": selector, "maxUnavailable": limit, **spec}}
        await self.api.create(MACHINE_DISRUPTION_BUDGETS, body)
        async with asyncio.timeout(60):
            while True:
                found = await self.api.get(MACHINE_DISRUPTION_BUDGETS, name)
                if any(one.type == "Enforced" and one.status == enforced for one in found.status.conditions):
                    return found
                await asyncio.sleep(0.25)

    async def granted(self, name: str) -> set[str]:
        found = await self.api.get(MACHINE_DISRUPTION_BUDGETS, name)
        return {one.machine for one in found.status.grants}

    async def cordon(self, node: str, *, unschedulable: bool = True) -> None:
        await self.api.patch(NODES, node, {"spec": {"unschedulable": unschedulable or None}})

    async def is_cordoned(self, node: str) -> bool:
        return (await self.api.get(NODES, node)).spec.unschedulable

    async def conditions(self, node: str) -> dict[str, tuple[str, str | None]]:
        found = (await self.api.get(NODES, node)).status.conditions
        return {one.type: (one.status, one.reason) for one in found if one.type != "Ready"}

    def disrupter(self) -> Process:
        def main(life: Incarnation, api: Api) -> Any:
            return disruption_of(life, api, self.world.announce)

        return Process(self.world, "disruption", main)


def _ready(*, ready: bool, since: str | None = None) -> dict[str, str]:
    status, now = "True" if ready else "Unknown", rfc3339(virtual_now())
    times = {"lastTransitionTime": since or now, "lastHeartbeatTime": now}
    return {"type": "Ready", "status": status, "reason": "Kubelet", **times}


async def disruption_of(life: Incarnation, api: Api, announce: EventSink) -> None:
    indexes = {INDEX_MACHINE: by_machine, INDEX_PARENT: by_parent, INDEX_EXECUTOR: by_executor}
    caches = SupervisorCaches(
        operations=Cache(api, MACHINE_OPERATIONS, indexes=indexes),
        machines=Cache(api, MACHINES, indexes={INDEX_BMC: by_bmc}),
        nodes=Cache(api, NODES, indexes={INDEX_MACHINE: node_by_machine}),
        pause=Cache(api, CONFIG_MAPS, namespace="unbounded-kube"),
    )
    budgets = Cache(api, MACHINE_DISRUPTION_BUDGETS)
    controller = DrainController(api, caches, budgets, epoch=life.epoch, now=virtual_now, emit_event=announce)
    await live(controller.run, (caches.operations, caches.machines, caches.nodes, caches.pause, budgets))


def cluster_of(world: World) -> Cluster:
    """Replace the world's API, before anything is in it, by one that evicts."""
    namespaces = ("default", "kube-system", "unbounded-kube", "kube-node-lease")
    api = ClusterApi(defaults=defaults, admit=world._write_down, now=virtual_now, namespaces=namespaces)
    world.api = api
    return Cluster(world, api)


@told_in
@asynccontextmanager
async def cluster_story() -> AsyncIterator[Cluster]:
    """A test from an `async def test(cluster)`: all controllers run, in virtual time, and the judge judges."""
    writes = WriteCount()
    world = World(random.Random(1), kinds=Kinds(), between=writes)
    cluster = cluster_of(world)
    cluster.writes = writes
    world.steward().start()
    cluster.executor = world.redfish().start()
    cluster.disrupter().start()
    try:
        yield cluster
    finally:
        for kubelet in cluster.kubelets.values():
            kubelet.cancel()
    world.judge()
