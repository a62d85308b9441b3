"""A site in virtual time: all controllers of container-cloud, and what they meet of metalman, agents and machina.

The world installs hosts, registers their Nodes, binds configurations, marks and drains Nodes, as the real components do
and with the same fields; it misbehaves on demand.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from tests.containercloud.refusals import Refusals, RefusingApi
from tests.containercloud.stock import Stock
from tests.containercloud.unread import watched_caches
from tests.support.memory_api import MemoryApi
from tests.support.stories import told_in
from tests.support.virtual_time import virtual_now
from tests.support.waiting import eventually
from unbounded.api.configuration import MACHINE_CONFIGURATIONS
from unbounded.api.container_cloud.cluster import CLUSTER_RELEASES, CLUSTERS, MACHINE_POOLS
from unbounded.api.container_cloud.host import (
    BARE_METAL_HOST_CREDENTIALS,
    BARE_METAL_HOST_PROFILES,
    BARE_METAL_HOSTS,
)
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.container_cloud.network import L2_TEMPLATES, SUBNETS
from unbounded.api.core import CONFIG_MAPS, NODES, Node
from unbounded.api.disruption import MAINTENANCE
from unbounded.api.failures import Transient
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.containercloud.controller import controllers
from unbounded.containercloud.settings import ContainerCloudSettings
from unbounded.join.labels_and_taints import label_changes
from unbounded.kube.api import NotFound
from unbounded.kube.clock import rfc3339
from unbounded.kube.events import EventRecorder
from unbounded.kube.process import Runtime
from unbounded.kube.process_epoch import ProcessEpoch
from unbounded.machina.configuration_binding import candidate_of
from unbounded.metalman.executor import procedure_of_machine
from unbounded.operations import machine_lock
from unbounded.operations.claim_gates import disruption_gate

KINDS: Final[dict[str, Kind[Any]]] = {
    kind.kind: kind
    for kind in (
        CLUSTER_RELEASES,
        CLUSTERS,
        MACHINE_POOLS,
        BARE_METAL_HOSTS,
        BARE_METAL_HOST_CREDENTIALS,
        BARE_METAL_HOST_PROFILES,
        CONTAINER_CLOUD_MACHINES,
        L2_TEMPLATES,
        SUBNETS,
    )
}
NICS: Final = [
    {"name": "eno1", "mac": "02:00:00:00:00:01", "link": True},
    {"name": "eno2", "mac": "02:00:00:00:00:02", "link": True},
]
STEPS_S: Final = {
    "written": 5,
    "booted": 8,
    "reported": 11,
    "started": 13,
    "registered": 14,
    "ready": 21,
    "complete": 23,
}


class SlowApi(MemoryApi):
    """An API whose writes take a moment, in which other controllers act, or the process is cut.

    Attributes:
        refuses: returns whether a write of this kind and body fails.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.chance = random.Random(0)
        self.refuses: Callable[[Kind[Any], dict[str, Any]], bool] = lambda _kind, _body: False

    def _check(self, kind: Kind[Any], body: dict[str, Any]) -> None:
        if self.refuses(kind, body):
            raise Transient(f"{kind.kind}: refused")

    async def create(self, *given: Any, **more: Any) -> Any:
        self._check(given[0], given[1])
        await asyncio.sleep(self.chance.uniform(0, 0.3))
        created = await super().create(*given, **more)
        await asyncio.sleep(self.chance.uniform(0, 0.3))
        return created

    async def patch(self, *given: Any, **more: Any) -> Any:
        self._check(given[0], given[2])
        await asyncio.sleep(self.chance.uniform(0, 0.3))
        patched = await super().patch(*given, **more)
        await asyncio.sleep(self.chance.uniform(0, 0.3))
        return patched


@dataclass
class Site(Stock):
    """Stock, and a world that installs its hosts.

    Args:
        silent_agents: Machines whose host never registers a Node after its install.
        unbound: Machines that get no configuration.
        unmarked: Machines whose Nodes get no labels and taints.
        stuck_pods: Machines whose Nodes are never drained.
        stuck_returns: Machines whose Nodes are never returned to service.
        refusals: writes of container-cloud that the server refuses.
    """

    settings: ContainerCloudSettings = field(default_factory=lambda: ContainerCloudSettings(site="lab"))
    silent_agents: set[str] = field(default_factory=set)
    unbound: set[str] = field(default_factory=set)
    unmarked: set[str] = field(default_factory=set)
    stuck_pods: set[str] = field(default_factory=set)
    stuck_returns: set[str] = field(default_factory=set)
    refusals: Refusals = field(default_factory=Refusals)
    began: dict[str, float] = field(default_factory=dict)  # of operations, by UID
    words: dict[str, list[str]] = field(default_factory=dict)  # of each Machine's status, in their order
    marked: dict[str, dict[str, str]] = field(default_factory=dict)  # labels that Nodes were given, by their Machine
    running: list[asyncio.Task[None]] = field(default_factory=list)

    # ---- objects

    async def apply(self, text: str) -> None:
        """Create the objects of a manifest."""
        for body in filter(None, yaml.safe_load_all(text)):
            kind = KINDS[body["kind"]]
            await self.api.create(kind, body, namespace=body["metadata"].get("namespace", ""))

    async def surroundings(self) -> None:
        """Create what the Machine of the API reference needs: release, Cluster, network and host."""
        await self.secret("bmc-1")
        await self.secret("bmc-2", "example-ns")
        await self.apply(SURROUNDINGS)

    async def joined(self, name: str, **kubernetes: Any) -> Machine:
        """Create a Machine that others have installed: it runs, and its agent has joined with a Ready Node."""
        reference = {"name": f"{name}-bmc", "namespace": "unbounded-kube"}
        redfish = {"url": f"https://{name}.example", "username": "u", "passwordRef": reference}
        spec = {"pxe": {"redfish": redfish, "image": "registry.example.com/own:1"}, "kubernetes": kubernetes}
        self.power[name] = "On"
        await self.api.create(MACHINES, {"metadata": {"name": name}, "spec": spec})
        await self.join(name)
        return await self.machine(name)

    async def join(self, name: str) -> None:
        """Report an image, an agent and a Ready Node of a Machine, as after an installation by others."""
        agent = {"version": "1.0.0", "waitsForGrants": True, "host": {"hostname": name}}
        image = {"image": "registry.example.com/own:1", "digest": f"sha256:{'0' * 64}", "boot": "b0", "at": self._now()}
        await self.api.patch(MACHINES, name, {"status": {"agent": agent, "image": image}}, subresource="status")
        await self.api.create(NODES, {"metadata": {"name": name, "labels": {"unbounded-cloud.io/machine": name}}})
        await self._ready(name, ready=True)

    async def adopted(self, host: str, machine: str, namespace: str = "example-ns") -> None:
        """Create the BareMetalHost that `kubectl unbounded host adopt MACHINE --externally-provisioned` creates."""
        annotations = {"unbounded-cloud.io/machine": machine}
        await self.host(host, namespace, bmc=None, externallyProvisioned=True, annotations=annotations)

    async def cc_machine(self, name: str = "example-control-plane") -> ContainerCloudMachine:
        return await self.claimed_by(name)

    async def node(self, name: str = "master-0.default") -> Node | None:
        with contextlib.suppress(NotFound):
            return await self.api.get(NODES, name)
        return None

    async def until_machine(
        self, holds: Callable[[ContainerCloudMachine], bool], name: str = "example-control-plane"
    ) -> ContainerCloudMachine:
        """Wait until a Machine is as the predicate says; return it."""

        async def check() -> ContainerCloudMachine | None:
            machine = await self.cc_machine(name)
            return machine if holds(machine) else None

        def state() -> object:
            machines = self.caches.machines.all()
            ended = [task.exception() for task in self.running if task.done()]
            return ended, self.words, [one.status.execution for one in machines], self.operated

        found: ContainerCloudMachine = await eventually(check, state, within_s=20_000, every_s=1)
        return found

    async def until_word(self, word: str, name: str = "example-control-plane") -> ContainerCloudMachine:
        return await self.until_machine(lambda one: one.provider_status.status == word, name)

    async def until_gone(self, name: str = "example-control-plane") -> None:
        async def gone() -> bool:
            try:
                await self.cc_machine(name)
            except NotFound:
                return True
            return False

        await eventually(gone, lambda: self.words, within_s=20_000, every_s=1)

    async def change(self, name: str = "example-control-plane", **value: Any) -> None:
        """Edit spec.providerSpec.value of a Machine."""
        patch = {"spec": {"providerSpec": {"value": value}}}
        await self.api.patch(CONTAINER_CLOUD_MACHINES, name, patch, namespace="example-ns")

    # ---- the world

    async def world(self) -> None:
        while True:
            for machine in (await self.api.list(MACHINES)).items:
                await self._observe(machine)
                await self._bind(machine)
                await self._mark(machine)
                await self._drain(machine)
            for operation in await self.operations():
                if not operation.terminal:
                    await self._operate(operation)
            await asyncio.sleep(1)

    def _saw(self, _old: ContainerCloudMachine | None, new: ContainerCloudMachine | None) -> None:
        """Note each word of a Machine's status, as a watch shows it."""
        if new is not None and (word := new.provider_status.status):
            seen = self.words.setdefault(new.name, [])
            if not seen or seen[-1] != word:
                seen.append(word)

    async def _bind(self, machine: Machine) -> None:
        """Bind a Machine to the configuration that selects it, as machina does."""
        is_to_be = machine.spec.kubernetes is not None and machine.name not in self.unbound
        if machine.spec.configuration_ref is not None or not is_to_be:
            return
        for configuration in (await self.api.list(MACHINE_CONFIGURATIONS)).items:
            candidate = candidate_of(configuration)
            if candidate is not None and candidate.selects(machine.metadata.labels):
                patch = {"spec": {"configurationRef": {"name": configuration.name}}}
                await self.api.patch(MACHINES, machine.name, patch)

    async def _mark(self, machine: Machine) -> None:
        """Give the Node the labels and taints of its Machine, as machina and the agent do."""
        node, kubernetes = await self.node(machine.name), machine.spec.kubernetes
        if node is None or kubernetes is None or machine.name in self.unmarked:
            return
        patch: dict[str, Any] = {}
        labels = dict(kubernetes.node_labels or {})
        if changes := label_changes(node.metadata.labels, self.marked.get(machine.name, {}), labels):
            patch["metadata"] = {"labels": changes}
        self.marked[machine.name] = labels
        if kubernetes.register_with_taints is not None:
            split = [text.partition("=") for text in kubernetes.register_with_taints]
            taints = [{"key": key, "effect": rest.partition(":")[2]} for key, _, rest in split]
            if [one.key for one in node.spec.taints] != [one["key"] for one in taints]:
                patch["spec"] = {"taints": taints}
        if patch:
            await self.api.patch(NODES, node.name, patch)

    async def _drain(self, machine: Machine) -> None:
        """Drain a Node for the maintenance of its Machine, and return it, as the disruption controller does."""
        enabled = machine.spec.maintenance is not None and machine.spec.maintenance.enabled
        disruption, node = machine.status.disruption, await self.node(machine.name)
        if disruption is not None and disruption.holder.kind != MAINTENANCE:
            return
        if enabled and node is not None and disruption is None:
            await self._disrupt(machine, "Draining", unschedulable=True)
        elif (
            enabled
            and disruption is not None
            and disruption.stage == "Draining"
            and machine.name not in self.stuck_pods
        ):
            await self._disrupt(machine, "Drained", unschedulable=True)
        elif not enabled and disruption is not None and machine.name in self.stuck_returns:
            if disruption.stage != "Returning":
                await self._disrupt(machine, "Returning", unschedulable=True)
        elif not enabled and disruption is not None:
            await self._disrupt(machine, None, unschedulable=False)

    async def _disrupt(self, machine: Machine, stage: str | None, *, unschedulable: bool) -> None:
        holder = {"kind": "Maintenance", "name": machine.name, "uid": machine.metadata.uid}
        record = {"holder": holder, "stage": stage, "since": self._now(), "message": f"Node {machine.name}: {stage}"}
        status = {"disruption": None if stage is None else record}
        patches: list[tuple[Kind[Any], dict[str, Any], str]] = [(MACHINES, {"status": status}, "status")]
        if await self.node(machine.name) is not None:  # cordoned after the record, returned before its end
            spec = {"spec": {"unschedulable": unschedulable}}
            patches.insert(len(patches) if unschedulable else 0, (NODES, spec, ""))
        for kind, patch, subresource in patches:
            await self.api.patch(kind, machine.name, patch, subresource=subresource)

    def _now(self) -> str:
        return rfc3339(virtual_now())

    async def _operate(self, operation: MachineOperation) -> None:
        name, loop = operation.spec.machine_ref or "", asyncio.get_running_loop()
        machine = await self.api.get(MACHINES, name)
        active = machine.status.active_operation
        if active is not None and active.uid != operation.metadata.uid:
            return
        if operation.spec.cancel and active is None:
            await self._end(operation, "Failed", "Cancelled", "cancelled before its start")
            return
        if active is None and disruption_gate(operation, machine) is not None:
            return
        if active is None:
            self.operated.append(operation.spec.operation_kind)
            self.began[operation.metadata.uid] = loop.time()
            lock = {"name": operation.name, "uid": operation.metadata.uid, "kind": operation.spec.operation_kind}
            lock |= {"executor": "metalman/lab", "since": self._now()}
            await self._status(machine, activeOperation=lock)
            await self._progress(operation)
            return
        if operation.spec.cancel and operation.spec.operation_kind == "HostReplace":
            await self._end(operation, "Failed", "Cancelled", "cancelled")
            return
        if name in self.failing:
            await self._end(operation, "Failed", "InstallFailed", "no disk of this size")
            return
        after_s = loop.time() - self.began[operation.metadata.uid]
        match operation.spec.operation_kind:
            case "HostReplace":
                await self._install(machine, operation, after_s)
            case "AgentReset":
                if after_s >= 3:
                    await self._status(machine, agent=None)
                    await self._end(operation, "Complete", "", "")
            case kind:
                self.power[name] = "On" if kind in ("HostPowerOn", "HostReboot") else "Off"
                if self.power[name] == "Off" and await self.node(name) is not None:
                    await self._ready(name, ready=False)
                await self._end(operation, "Complete", "", "")

    async def _install(self, machine: Machine, operation: MachineOperation, after_s: float) -> None:
        name, uid, image = machine.name, operation.metadata.uid, machine.spec.pxe.image if machine.spec.pxe else None
        if image is None:
            await self._end(operation, "Failed", "NoImage", "spec.pxe.image is absent")
            return
        self.power[name] = "On"
        hardware = machine.status.hardware
        if hardware is None or hardware.source != "Installer" or hardware.boot != uid:
            report = await self._report(uid)
            await self._status(machine, hardware=report, image=None)
            return
        if not await self._network_is_there(machine):
            return
        if after_s >= STEPS_S["written"] and machine.status.image is None:
            written = {"image": image, "digest": f"sha256:{'1' * 64}", "boot": uid, "at": self._now()}
            await self._status(machine, image=written)
        if after_s >= STEPS_S["booted"] and not any(one.type == "CloudInitDone" for one in machine.status.conditions):
            running = {
                "type": "CloudInitDone",
                "status": "False",
                "reason": "Running",
                "lastTransitionTime": self._now(),
            }
            await self._status(machine, conditions=[running])
        if after_s >= STEPS_S["reported"] and machine.status.agent is None:
            host = {"hostname": name, "osID": "ubuntu", "osCodename": "jammy"}
            await self._status(machine, agent={"version": "1.0.0", "stage": "Preparing", "host": host})
        elif after_s >= STEPS_S["started"] and machine.status.agent and machine.status.agent.stage == "Preparing":
            await self._status(machine, agent={"stage": "Starting"})
        if name in self.silent_agents:
            return
        bound = (await self.api.get(MACHINES, name)).spec.configuration_ref is not None
        if after_s >= STEPS_S["registered"] and bound and await self.node(name) is None:
            await self.api.create(NODES, {"metadata": {"name": name, "labels": {"unbounded-cloud.io/machine": name}}})
        if after_s >= STEPS_S["ready"] and await self.node(name) is not None:
            await self._ready(name, ready=True)
        if after_s >= STEPS_S["complete"] and await self.node(name) is not None:
            await self._end(operation, "Complete", "", "")

    async def _report(self, boot: str) -> dict[str, Any]:
        from tests.containercloud.stock import HARDWARE

        return {**HARDWARE, "source": "Installer", "boot": boot, "at": self._now(), "nics": NICS}

    async def _network_is_there(self, machine: Machine) -> bool:
        """Return whether the ConfigMap of the Machine's network exists: metalman answers 503 until then."""
        init = machine.spec.pxe.cloud_init if machine.spec.pxe is not None else None
        reference = None if init is None else init.network_config_config_map_ref
        if reference is None:
            return True
        with contextlib.suppress(NotFound):
            await self.api.get(CONFIG_MAPS, reference.name, namespace=reference.namespace)
            return True
        return False

    async def _ready(self, name: str, *, ready: bool) -> None:
        condition = {"type": "Ready", "status": "True" if ready else "False", "reason": "KubeletReady"}
        addresses = [{"type": "InternalIP", "address": "10.0.0.10"}, {"type": "Hostname", "address": name}]
        node = await self.node(name)
        if node is not None and node.ready is not ready:
            status = {"conditions": [condition], "addresses": addresses}
            await self.api.patch(NODES, name, {"status": status}, subresource="status")

    async def _status(self, machine: Machine, **status: Any) -> None:
        await self.api.patch(MACHINES, machine.name, {"status": status}, subresource="status")

    async def _progress(self, operation: MachineOperation) -> None:
        execution = {"executor": "metalman/lab", "incarnation": "p", "machineUID": "u", "binding": "b"}
        status = {"phase": "InProgress", "message": "in progress", "startedAt": self._now(), "execution": execution}
        await self.api.patch(MACHINE_OPERATIONS, operation.name, {"status": status}, subresource="status")

    async def _end(self, operation: MachineOperation, phase: str, reason: str, message: str) -> None:
        name = operation.spec.machine_ref or ""
        status = {"phase": phase, "reason": reason or None, "message": message or None, "completedAt": self._now()}
        await self.api.patch(MACHINE_OPERATIONS, operation.name, {"status": status}, subresource="status")
        ended, raw = await self.api.get(MACHINE_OPERATIONS, operation.name), await self.api.get(MACHINES.raw(), name)
        machine = msgspec.convert(raw, Machine)
        if machine_lock.holds_lock(ended, machine):
            procedure = procedure_of_machine(ended, machine)
            await self._status(machine, **machine_lock.release_change(raw, ended, procedure, now=self._now()))
        elif (change := machine_lock.result_change(raw, ended)) is not None:
            await self._status(machine, **change)

    # ---- the process

    def start(self) -> None:
        """Start the controllers of one process, with empty caches."""
        api: Any = RefusingApi(self.api, self.refusals)
        runtime = Runtime(api, events=EventRecorder(self.api, "container-cloud", now=virtual_now), now=virtual_now)
        self.caches = watched_caches(api)
        self.caches.machines.subscribe(self._saw)
        self.running = [asyncio.create_task(self._process(runtime))]

    async def _process(self, runtime: Runtime) -> None:
        async with asyncio.TaskGroup() as group:
            for cache in self.caches.followed:
                group.create_task(cache.run())
            for cache in self.caches.followed:
                await cache.synced.wait()
            for one in controllers(runtime, self.caches, self.settings, ProcessEpoch()).values():
                group.create_task(one.run())
            if runtime.events is not None:
                group.create_task(runtime.events.run())

    async def stop(self) -> None:
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)


@asynccontextmanager
async def site(settings: ContainerCloudSettings | None = None) -> AsyncIterator[Site]:
    """A site with one container-cloud, in virtual time."""
    api = SlowApi(now=virtual_now, namespaces=("default", "example-ns", "other-ns", "unbounded-kube", "kube-system"))
    world = Site(api, watched_caches(api))
    if settings is not None:
        world.settings = settings
    task = asyncio.create_task(world.world())
    world.start()
    try:
        yield world
        assert not task.done(), task
        assert not any(one.done() for one in world.running), world.running
    finally:
        task.cancel()
        await world.stop()
        await asyncio.gather(task, return_exceptions=True)


site_story = told_in(site)
EXAMPLE: Final = Path("examples/container-cloud-machine.yaml")
SURROUNDINGS: Final = """
apiVersion: kaas.mirantis.com/v1alpha1
kind: ClusterRelease
metadata: {name: mke-17-3-0}
spec:
  version: 17.3.0
  kubernetes: {version: v1.34.0}
  agent: {image: registry.example.com/node:1}
  allowedDistributions:
  - {id: ubuntu/jammy, default: true, image: {url: "oci://registry.example.com/jammy:1"}}
  allowedNodeLabels: [{key: stacklight, value: enabled}]
---
apiVersion: cluster.k8s.io/v1alpha1
kind: Cluster
metadata: {name: example-cluster, namespace: example-ns, labels: {kaas.mirantis.com/provider: baremetal}}
spec:
  providerSpec:
    value: {apiVersion: baremetal.k8s.io/v1alpha1, kind: BaremetalClusterProviderSpec, release: mke-17-3-0}
---
apiVersion: ipam.mirantis.com/v1alpha1
kind: Subnet
metadata: {name: lcm, namespace: example-ns, labels: {ipam/SVC-k8s-lcm: "1"}}
spec: {cidr: 10.0.0.0/24, gateway: 10.0.0.1, nameservers: [10.0.0.2], includeRanges: [10.0.0.10-10.0.0.20]}
---
apiVersion: ipam.mirantis.com/v1alpha1
kind: L2Template
metadata:
  name: one-nic
  namespace: example-ns
  labels: {cluster.sigs.k8s.io/cluster-name: example-cluster, l2-template1-label-1: "true"}
spec:
  ifMapping: [eno1, enp0s0]
  l3Layout: [{subnetName: lcm, scope: namespace}]
  npTemplate: |
    version: 2
    ethernets:
      {{nic 0}}: {dhcp4: false, match: {macaddress: "{{mac 0}}"}, set-name: {{nic 0}}}
    bridges:
      k8s-lcm:
        interfaces: [{{nic 0}}]
        addresses: [{{ip "k8s-lcm:lcm"}}]
        routes: [{to: default, via: {{gateway_from_subnet "lcm"}}}]
        nameservers: {addresses: {{nameservers_from_subnet "lcm"}}}
---
apiVersion: metal3.io/v1alpha1
kind: BareMetalHostProfile
metadata: {name: default, namespace: default, labels: {kaas.mirantis.com/defaultBMHProfile: "true"}}
spec:
  devices:
  - device: {minSize: 8Gi, type: ssd}
    partitions:
    - {name: uefi, size: 200Mi, partflags: [esp]}
    - {name: root, size: 0}
  fileSystems:
  - {fileSystem: vfat, partition: uefi, mountPoint: /boot/efi}
  - {fileSystem: ext4, partition: root, mountPoint: /}
---
apiVersion: metal3.io/v1alpha1
kind: BareMetalHost
metadata: {name: master-0, namespace: default, labels: {kaas.mirantis.com/baremetalhost-id: hw-master-0}}
spec:
  bmc: {address: "redfish://192.0.2.1/redfish/v1/Systems/1", credentialsName: bmc-1}
  bootMACAddress: 02:00:00:00:00:01
"""
