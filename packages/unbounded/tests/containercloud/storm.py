"""A site whose controllers crash, freeze and lead twice, in virtual time, and a judge of each of its writes.

container-cloud, the disruption controller and machina's controllers of configurations are the real ones. The executors
are those of `Site`, which claim through the real gates.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from tests.containercloud.refusals import ANSWERS, RefusingApi
from tests.containercloud.site import Site
from tests.containercloud.stock import HARDWARE
from tests.containercloud.unread import watched_caches
from tests.operations.disruption.cluster import disruption_of
from tests.operations.disruption.updates import run_updates
from tests.operations.faults import FAIR, STORM, Between, Incarnation, Weather, WeatheredApi
from tests.operations.world import Process, defaults, live
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import virtual_now
from unbounded.api.configuration import MACHINE_CONFIGURATIONS
from unbounded.api.container_cloud.cluster import CLUSTER_RELEASES, CLUSTERS
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS, BareMetalHost
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine, MachineStage
from unbounded.api.container_cloud.names import (
    ANNOTATION_FOR_UID,
    ANNOTATION_NETWORK_OF,
    GROUP_CLUSTER,
    LABEL_CLUSTER,
    LABEL_CONTROL_PLANE,
)
from unbounded.api.container_cloud.network import IPAM_HOSTS, SUBNETS
from unbounded.api.core import CONFIG_MAPS, LEASES, NODE_LEASES, NODES, Node
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.machine_spec import MachineSpec
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.containercloud.claims import ClaimReason
from unbounded.containercloud.controller import controllers
from unbounded.containercloud.hosts.machine_fields import claim_fields
from unbounded.containercloud.hosts.model import consumer_of, consumer_uid, machine_of_host
from unbounded.containercloud.machines.model import DELETION_STAGES, MachineReason
from unbounded.containercloud.settings import ContainerCloudSettings
from unbounded.join.labels_and_taints import read_bound_version
from unbounded.kube.api import Api, Conflict, NotFound, StrategicMerge
from unbounded.kube.clock import rfc3339, seconds_since
from unbounded.kube.events import no_events
from unbounded.kube.process import Runtime
from unbounded.operations import claim_gates
from unbounded.operations.disruption.model import started_change

T = TypeVar("T")
Raw = dict[str, Any]
NAMESPACE: Final = "example-ns"
NAMESPACES: Final = ("default", NAMESPACE, "unbounded-kube", "kube-system", NODE_LEASES)
RELEASES: Final = ("mke-17-3-0", "mke-17-4-0")
HELD: Final = frozenset(
    {
        ClaimReason.INSUFFICIENT_RESOURCES,
        ClaimReason.HOST_TAKEN,
        ClaimReason.HOST_NOT_AVAILABLE,
        MachineReason.CANCELLED,
        MachineReason.ATTEMPTS_EXHAUSTED,
    }
)
"""Reasons with which a Machine may rest: more hosts, or a user, have to come."""


class Judge:
    """The judge of each write of a site: it knows what must never be."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.api: MemoryApi
        self.reset_requested: Callable[[ContainerCloudMachine], None] = lambda _machine: None
        self.kept: dict[str, Raw] = {}  # spec of the Machines that others have installed, by name
        self.refused: set[str] = set()  # names of objects that the server has refused to write
        self._claimants: set[str] = set()  # UIDs of Machines that have had a host
        self._installs: defaultdict[str, list[str]] = defaultdict(list)  # HostReplaces by the UID of their Machine
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.power: Mapping[str, str] = {}  # the true power of the hosts, by Machine
        self.runs_for: dict[str, str] = {}  # UID of the consumer for which a host was switched on last, by Machine

    def fault(self, text: str) -> None:
        at = asyncio.get_running_loop().time()
        self.faults.append(f"{at:.2f} s: {text}")

    def all(self, kind: Kind[T]) -> Iterator[T]:
        """Yield the stored objects of a kind, without a call."""
        for _, version in sorted(self.api._collection(kind).versions.items()):
            yield version.decode(kind.type)

    def find(self, kind: Kind[T], name: str, namespace: str = "") -> T | None:
        version = self.api._collection(kind).versions.get((namespace, name))
        return None if version is None else version.decode(kind.type)

    def machine_of(self, uid: str) -> ContainerCloudMachine | None:
        return next((one for one in self.all(CONTAINER_CLOUD_MACHINES) if one.metadata.uid == uid), None)

    # ---- writes

    def admit(self, kind: Kind[Any], old: Raw | None, new: Raw) -> None:
        match kind.kind:
            case "BareMetalHost" if old is not None:
                self._host(msgspec.convert(old, BareMetalHost), msgspec.convert(new, BareMetalHost))
            case "Machine" if kind.group == GROUP_CLUSTER and old is not None:
                self._machine(msgspec.convert(old, ContainerCloudMachine), msgspec.convert(new, ContainerCloudMachine))
            case "Machine" if kind.group != GROUP_CLUSTER:
                self._leases(new)
                self._written(new)
            case "MachineOperation" if old is None:
                self._requested(new)
            case "Subnet":
                self._addresses((old or {}).get("status", {}), new.get("status", {}))
                self._freed((old or {}).get("status", {}), new.get("status", {}))

    def gone(self, kind: Kind[Any], body: Raw) -> None:
        name = body["metadata"]["name"]
        if kind.kind == "BareMetalHost" or (kind.kind == "Machine" and kind.group != GROUP_CLUSTER):
            self.fault(f"{kind.kind} {name} is lost")
        if kind.kind == "Node" and name in self.kept:
            self.fault(f"Node {name}, whose host others have installed, is deleted")
        if kind.kind == "Machine" and kind.group == GROUP_CLUSTER:
            machine = msgspec.convert(body, ContainerCloudMachine)
            if machine.status.execution is not None:
                self._forgotten(machine, machine.status.execution.operation)
            self.counts["gone"] += 1

    def _host(self, old: BareMetalHost, new: BareMetalHost) -> None:
        """Check that a host changes hands only through its Machine's release, and is in stock only while it is off."""
        if new.state == "available" != old.state and self.power.get(machine_of_host(new)) == "On":
            self.fault(f"host {new.name} is available, and runs")
        before, after = (consumer_of(old), consumer_uid(old)), (consumer_of(new), consumer_uid(new))
        if before == after or before[0] is None:
            return
        machine = self.machine_of(before[1])
        if machine is None:
            return
        if after[0] is not None:
            self.fault(f"host {new.name} went from {before} to {after}")
        execution = machine.status.execution
        claimed = None if execution is None else execution.host
        is_its = claimed is not None and claimed.name == new.name
        if execution is not None and is_its and execution.stage != MachineStage.RELEASING:
            self.fault(f"host {new.name} was released under {machine.name} in stage {execution.stage}")

    def _machine(self, old: ContainerCloudMachine, new: ContainerCloudMachine) -> None:
        before, after = old.status.execution, new.status.execution
        if after is None:
            return
        waits = after.waiting
        if waits is not None and not (waits.held_by and waits.until_event and bool(waits.until) == bool(waits.then)):
            self.fault(f"{new.name} waits without a holder or an end: {waits}")
        if after.host is not None and (before is None or before.host != after.host):
            self._claimed(new)
        if before is not None and before.host is not None and before.host != after.host:
            self.fault(f"{new.name} went from host {before.host} to {after.host}")
        if before is not None and before.operation not in (None, after.operation):
            self._forgotten(new, before.operation)
        is_new = after.operation is not None and (before is None or before.operation != after.operation)
        if is_new and after.stage == MachineStage.RESETTING:
            self.reset_requested(new)

    def _claimed(self, machine: ContainerCloudMachine) -> None:
        """Check that the host is the Machine's, and no other Machine's."""
        execution = machine.status.execution
        assert execution is not None
        assert execution.host is not None
        self._claimants.add(machine.metadata.uid)
        host = self.find(BARE_METAL_HOSTS, execution.host.name, execution.host.namespace)
        if host is None or consumer_uid(host) != machine.metadata.uid:
            self.fault(f"{machine.name} has recorded host {execution.host}, which is not its own")
        for other in self.all(CONTAINER_CLOUD_MACHINES):
            theirs = other.status.execution
            if theirs is None or theirs.host != execution.host or other.metadata.uid == machine.metadata.uid:
                continue
            if theirs.stage != MachineStage.RELEASING:
                self.fault(f"host {execution.host} has two owners: {other.name} and {machine.name}")

    def _forgotten(self, machine: ContainerCloudMachine, name: str | None) -> None:
        """Check that a Machine forgets no operation that may still start; one that the server refused never will."""
        operation = None if name is None else self.find(MACHINE_OPERATIONS, name)
        if operation is None and name in self.refused:
            return
        if name is not None and (operation is None or not (operation.terminal or operation.spec.cancel)):
            state = "was never created" if operation is None else f"is {operation.status.phase or 'Pending'}"
            self.fault(f"{machine.name} forgets {name}, which {state}")

    def _requested(self, new: Raw) -> None:
        """Check that an operation is that of its Machine's record, and no second one of an attempt."""
        spec, uid = new["spec"], new["metadata"].get("annotations", {}).get(ANNOTATION_FOR_UID)
        self.counts[spec["operationKind"]] += 1
        if spec["machineRef"] in self.kept and not spec.get("cancel"):
            self.fault(f"{spec['operationKind']} of {spec['machineRef']}, which others have installed")
        if uid is None or spec.get("cancel"):
            return
        name, machine = new["metadata"]["name"], self.machine_of(uid)
        execution = None if machine is None else machine.status.execution
        if execution is None or execution.operation != name:
            self.fault(f"{name} is requested for {machine and machine.name}, whose record is {execution}")
        if spec["operationKind"] == "HostReplace":
            for other in self._installs[uid]:
                before = self.find(MACHINE_OPERATIONS, other)
                if before is not None and not before.terminal and not before.spec.cancel:
                    self.fault(f"{name} is a second HostReplace beside {other}")
            self._installs[uid].append(name)

    def _written(self, new: Raw) -> None:
        """Check that a host that others have installed keeps its image, its disks, its network and its version."""
        own = self.kept.get(new["metadata"]["name"])
        for key in ("pxe", "agent", "network", "configurationRef") if own is not None else ():
            if own is not None and new["spec"].get(key) != own.get(key):
                self.fault(f"{key} of {new['metadata']['name']} is {new['spec'].get(key)}")

    def _leases(self, new: Raw) -> None:
        """Check that no address is leased to two hosts."""
        mine = {one["ipv4"] for one in new["spec"].get("pxe", {}).get("dhcpLeases", ())}
        for other in self.all(MACHINES) if mine else ():
            leases = other.spec.pxe.dhcp_leases if other.spec.pxe is not None else ()
            if other.name != new["metadata"]["name"] and (twice := mine & {one.ipv4 for one in leases}):
                self.fault(f"{sorted(twice)} is leased to {other.name} and {new['metadata']['name']}")

    def _addresses(self, old: Raw, new: Raw) -> None:
        """Check that an address has one owner, whose Machine has claimed a host."""
        entries = new.get("allocatedIPs", [])
        addresses = [one.partition(":")[0] for one in entries]
        if len(set(addresses)) < len(addresses):
            self.fault(f"an address is allocated twice: {entries}")
        for entry in set(entries) - set(old.get("allocatedIPs", [])):
            uid = entry.partition(":")[2].partition("/")[0]
            ipam = next((one for one in self.all(IPAM_HOSTS) if one.metadata.uid == uid), None)
            owners = set() if ipam is None else {one.uid for one in ipam.metadata.owner_references}
            if ipam is not None and not owners & self._claimants:
                self.fault(f"{entry} was allocated for {ipam.name}, whose Machine has not claimed a host")

    def _freed(self, old: Raw, new: Raw) -> None:
        """Check that no address is freed with which a host truly runs: it was not off since its claim."""
        for entry in set(old.get("allocatedIPs", [])) - set(new.get("allocatedIPs", [])):
            uid = entry.partition(":")[2].partition("/")[0]
            ipam = next((one for one in self.all(IPAM_HOSTS) if one.metadata.uid == uid), None)
            name = "" if ipam is None else ipam.metadata.annotations.get(ANNOTATION_NETWORK_OF, "")
            owners = set() if ipam is None else {one.uid for one in ipam.metadata.owner_references}
            if self.power.get(name) == "On" and self.runs_for.get(name) in owners:
                self.fault(f"{entry} was freed, and {name} runs")

    def switched_on(self, machine: str) -> None:
        """Note the consumer of a host that is switched on."""
        host = next((one for one in self.all(BARE_METAL_HOSTS) if machine_of_host(one) == machine), None)
        self.runs_for[machine] = "" if host is None else consumer_uid(host)

    # ---- executors

    def starts(self, operation: MachineOperation, target: Machine) -> None:
        """Check that an operation that starts belongs to the present owner of the host."""
        kind, uid = operation.spec.operation_kind, operation.metadata.annotations.get(ANNOTATION_FOR_UID)
        owner = next((one for one in self.all(BARE_METAL_HOSTS) if machine_of_host(one) == target.name), None)
        consumer = None if owner is None else consumer_uid(owner)
        if uid is None:
            has_image = target.spec.pxe is not None and target.spec.pxe.image is not None
            if kind == "HostReplace" and not consumer and has_image:  # without one, metalman ends it as NoImage
                self.fault(f"{operation.name} installs {target.name}, which is in stock")
            return
        machine = self.machine_of(uid)
        execution = None if machine is None else machine.status.execution
        if execution is None or execution.operation != operation.name:
            self.fault(f"{operation.name} starts on {target.name} for {machine and machine.name} in {execution}")
        elif consumer != uid:
            self.fault(f"{operation.name} starts on {target.name}, which has another owner")
        self.counts[f"{kind} started"] += 1


class JudgedApi(MemoryApi):
    def __init__(self, judge: Judge) -> None:
        super().__init__(now=virtual_now, namespaces=NAMESPACES, admit=judge.admit, defaults=defaults)
        self._judge = judge
        judge.api = self

    def _remove(self, collection: Any, key: Any, old: Any) -> None:
        super()._remove(collection, key, old)
        self._judge.gone(collection.kind, old.body)


class FrozenApi(WeatheredApi):
    """The API as a leader calls it that is frozen at the worst moments: when others have decided otherwise since.

    Args:
        freezes: kinds of operations; the next leader that creates one is frozen for two minutes.
    """

    def __init__(self, api: Api, life: Incarnation, between: Between, freezes: set[str]) -> None:
        super().__init__(api, life, between)
        self._freezes = freezes

    async def create(self, kind: Kind[T], body: Mapping[str, Any], *, namespace: str = "") -> T:
        if kind.kind == "MachineOperation":
            await self._doze()
            if (operation := body["spec"]["operationKind"]) in self._freezes:
                self._freezes.discard(operation)
                await asyncio.sleep(120)
        return await super().create(kind, body, namespace=namespace)

    async def patch(
        self, kind: Kind[T], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        if kind.group != GROUP_CLUSTER and patch.get("spec", {}).keys() & {"maintenance", "cancel"}:
            await self._doze()
        return await super().patch(kind, name, patch, namespace=namespace, subresource=subresource)

    async def _doze(self) -> None:
        if self._life.dice(10 * self._life.weather.freeze):
            await asyncio.sleep(self._life.chance.uniform(1, 60))


@dataclass
class CrashSite(Site):
    """A site with real controllers around container-cloud; its executors claim through the real gates."""

    judge: Judge = field(default_factory=Judge)
    chance: random.Random = field(default_factory=random.Random)
    weather: Weather = FAIR
    reaps: bool = True
    lives: list[Incarnation] = field(default_factory=list)
    between: Between = field(default_factory=Between)
    freezes: set[str] = field(default_factory=set)  # kinds of operations
    stuck: set[str] = field(default_factory=set)  # Machines whose operations nobody executes
    breaks: bool = False  # a BMC may fail just after it has switched its host on
    broken: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Loop times at which the power of a host becomes Unknown, and at which its BMC answers again, by Machine."""
    boots: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    # ---- processes

    def container_cloud(self) -> Process:
        return Process(self, "container-cloud", self._container_cloud)  # type: ignore[arg-type]

    def disrupter(self) -> Process:
        return Process(self, "disruption", lambda life, api: disruption_of(life, api, no_events))  # type: ignore[arg-type]

    def updater(self) -> Process:
        return Process(self, "machina", run_updates)  # type: ignore[arg-type]

    async def _container_cloud(self, life: Incarnation, _api: Api) -> None:
        refusing: Any = RefusingApi(self.api, self.refusals)
        api = FrozenApi(refusing, life, self.between, self.freezes)
        caches = watched_caches(api)

        async def run() -> None:
            async with asyncio.TaskGroup() as group:
                for one in controllers(Runtime(api, now=virtual_now), caches, self.settings, life.epoch).values():
                    group.create_task(one.run())

        await live(run, caches.followed)

    # ---- executors, kubelets and agents

    async def world(self) -> None:
        while True:
            self._age_readings()
            for machine in self.judge.all(MACHINES):
                await self._observe(machine)
                await self._mark(machine)
                await self._image_ready(machine)
            for operation in self.judge.all(MACHINE_OPERATIONS):
                if not operation.terminal:
                    await self._operate(operation)
            for node in self.judge.all(NODES):
                await self._kubelet(node)
            await asyncio.sleep(1)

    def _break(self, name: str) -> None:
        """Have a BMC fail for some time. Its last reading stands until three others have failed."""
        now = asyncio.get_running_loop().time()
        self.broken[name] = now + self.chance.uniform(200, 300), now + self.chance.uniform(20, 900)

    def _age_readings(self) -> None:
        """Let the readings of BMCs that fail grow old, and those that answer again be read."""
        now = asyncio.get_running_loop().time()
        self.broken = {name: times for name, times in self.broken.items() if now < times[1]}
        self.unread = {name for name, (unknown_at, _back_at) in self.broken.items() if now < unknown_at}
        self.silent = self.broken.keys() - self.unread

    async def _kubelet(self, node: Node) -> None:
        """Renew the lease of a Node, and report that it is not Ready while its host is off."""
        name, loop = node.name, asyncio.get_running_loop()
        if self.power.get(name) != "On":
            await self._ready(name, ready=False)
        elif node.ready and int(loop.time()) % 10 == 0:
            spec = {"renewTime": rfc3339(virtual_now(), micro=True)}
            with contextlib.suppress(NotFound):
                await self.api.patch(LEASES, name, {"spec": spec}, namespace=NODE_LEASES)
                return
            await self.api.create(LEASES, {"metadata": {"name": name}, "spec": spec}, namespace=NODE_LEASES)

    async def _ready(self, name: str, *, ready: bool) -> None:
        node = self.judge.find(NODES, name)
        boot = f"boot-{self.boots[name]}"
        known = node.status.node_info.boot_id if node is not None and node.status.node_info is not None else ""
        if node is None or (node.ready is ready and (not ready or known == boot)):
            return
        now = rfc3339(virtual_now())
        condition = {"type": "Ready", "status": "True" if ready else "Unknown", "reason": "Kubelet"}
        condition |= {"lastTransitionTime": now, "lastHeartbeatTime": now}
        status: Raw = {"conditions": [condition], "addresses": [{"type": "Hostname", "address": name}]}
        if ready:
            status["nodeInfo"] = {"bootID": boot, "kubeletVersion": "v1.34.0"}
        await self.api.patch(NODES, name, StrategicMerge({"status": status}), subresource="status")

    async def _image_ready(self, machine: Machine) -> None:
        """Report that the image is there, as metalman does before an installation."""
        await self._condition(machine, {"type": "NetbootImageReady", "status": "True", "reason": "Ready"})

    async def _condition(self, machine: Machine, condition: Raw) -> None:
        if not any((one.type, one.status) == (condition["type"], condition["status"]) for one in _conditions(machine)):
            others = [msgspec.to_builtins(one) for one in _conditions(machine) if one.type != condition["type"]]
            condition = {"lastTransitionTime": rfc3339(virtual_now())} | condition
            await self._status(machine, conditions=[*others, condition])

    async def _operate(self, operation: MachineOperation) -> None:
        name, loop = operation.spec.machine_ref or "", asyncio.get_running_loop()
        machine = self.judge.find(MACHINES, name)
        if machine is None:
            return
        active = machine.status.active_operation
        if active is None or active.uid != operation.metadata.uid:
            await self._claim(operation, machine)
            return
        after_s = loop.time() - self.began[operation.metadata.uid]
        match operation.spec.operation_kind:
            case "HostReplace" if operation.spec.cancel:
                await self._end(operation, "Failed", "Cancelled", "cancelled")
            case kind if name in self.broken and kind != "AgentReset":
                is_of_update = kind == "HostReplace" and ANNOTATION_FOR_UID not in operation.metadata.annotations
                if after_s >= 20 and not is_of_update:  # a failed update would need a person
                    await self._end(operation, "Failed", "NoAnswer", "no answer from the BMC")
            case "HostReplace" if name in self.failing:
                await self._end(operation, "Failed", "InstallFailed", "no disk of this size")
            case "HostReplace":
                await self._install(machine, operation, after_s)
            case "AgentReset" if after_s >= 3:
                await self._status(machine, agent=None)
                await self._end(operation, "Complete", "", "")
            case "AgentReset":
                await self._ready(name, ready=False)
            case kind if after_s >= 2:
                self.power[name] = "On" if kind in ("HostPowerOn", "HostReboot") else "Off"
                await self._end(operation, "Complete", "", "")

    async def _claim(self, operation: MachineOperation, machine: Machine) -> None:
        """Claim an operation once its gates are open, with the lock in one write."""
        others = [one for one in self.judge.all(MACHINE_OPERATIONS) if one.spec.machine_ref == machine.name]
        gate = claim_gates.closed_gate(operation, machine, others, None)
        if operation.spec.cancel:
            await self._end(operation, "Failed", "Cancelled", "cancelled before its start")
            return
        if gate is not None:
            waits_s = seconds_since(operation.metadata.creation_timestamp or "", virtual_now())
            limit_s = operation.spec.start_deadline_seconds or 3600
            if waits_s > limit_s and not claim_gates.rests_deadline(gate, machine):
                await self._end(operation, "Failed", "StartDeadlineExceeded", gate.text)
            return
        if machine.name in self.stuck:
            return
        self.judge.starts(operation, machine)
        kind, uid = operation.spec.operation_kind, operation.metadata.uid
        lock = {"name": operation.name, "uid": uid, "kind": kind, "executor": "metalman/lab", "since": self._now()}
        await self._status(machine, activeOperation=lock, **started_change(machine, uid, self._now()))
        await self._progress(operation)
        self.operated.append(kind)
        self.began[uid] = asyncio.get_running_loop().time()
        if kind in ("HostReplace", "HostReboot"):
            self.boots[machine.name] += 1
            await self._ready(machine.name, ready=False)

    async def _install(self, machine: Machine, operation: MachineOperation, after_s: float) -> None:
        """Install a host step by step, each with what metalman, the agent and the kubelet report of it."""
        name, boot = machine.name, operation.metadata.uid
        image = machine.spec.pxe.image if machine.spec.pxe is not None else None
        if image is None:
            await self._end(operation, "Failed", "NoImage", "spec.pxe.image is absent")
            return
        if self.power.get(name) != "On":
            self.power[name] = "On"
            self.judge.switched_on(name)
            if self.breaks and self.chance.random() < 0.2:
                self._break(name)
                return
        hardware, written = machine.status.hardware, machine.status.image
        if hardware is None or hardware.boot != boot:
            mac = f"02:00:00:00:01:{sorted(self.power).index(name):02x}"
            report = {**HARDWARE, "source": "Installer", "boot": boot, "at": self._now()}
            nics = {"nics": [{"name": "eno1", "mac": mac, "link": True}]}
            others = [msgspec.to_builtins(one) for one in _conditions(machine) if one.type != "CloudInitDone"]
            await self._status(machine, hardware=report | nics, image=None, conditions=others)
        elif written is None:
            if after_s >= 3 and await self._network_is_there(machine):
                digest = f"sha256:{'1' * 64}"
                written_now = {"image": image, "digest": digest, "boot": boot, "at": self._now()}
                await self._status(machine, image=written_now, agent=None)
        elif after_s >= 5 and machine.status.agent is None:
            await self._condition(machine, {"type": "CloudInitDone", "status": "False", "reason": "Running"})
            machine = await self.api.get(MACHINES, name)
            agent = {"version": "1.0.0", "waitsForGrants": True, "host": {"hostname": name, "osID": "ubuntu"}}
            is_former = sorted(self.power).index(name) % 2  # of the version before, which does not report its work
            await self._status(machine, agent=agent if is_former else agent | {"stage": "Preparing"})
        elif after_s >= 6 and machine.status.agent is not None and machine.status.agent.stage == "Preparing":
            await self._status(machine, agent={"stage": "Starting"})
        elif after_s >= 7 and machine.spec.configuration_ref is not None:
            version = await read_bound_version(self.api, machine.spec.configuration_ref)
            made = {"name": machine.spec.configuration_ref.name, "version": version.spec.version}
            await self._status(machine, configuration=made | {"versionName": version.metadata.name})
            if self.judge.find(NODES, name) is None:
                metadata = {"name": name, "labels": {"unbounded-cloud.io/machine": name}}
                await self.api.create(NODES, {"metadata": metadata})
            await self._ready(name, ready=True)
            if after_s >= 9:
                await self._end(operation, "Complete", "", "")

    async def _status(self, machine: Machine, **status: Any) -> None:
        patch = {"metadata": {"resourceVersion": machine.metadata.resource_version}, "status": status}
        with contextlib.suppress(Conflict):  # in the next pass
            await self.api.patch(MACHINES, machine.name, patch, subresource="status")

    # ---- users

    async def stocked(self, hosts: int) -> None:
        """Create hosts, beside the one of the surroundings."""
        for number in range(hosts):
            bmc = {"address": f"redfish://192.0.2.1/redfish/v1/Systems/2{number}", "credentialsName": "bmc-2"}
            await self.host(f"host-{number}", NAMESPACE, bmc=bmc, bootMACAddress=f"02:00:00:00:00:2{number}")

    async def kept(self) -> None:
        """Create a host that others have installed, and that a Machine may pin."""
        machine = await self.joined("rack-0", nodeLabels={"rack": "r1"})
        self.judge.kept[machine.name] = (await self.api.get(MACHINES.raw(), machine.name))["spec"]
        await self.adopted("rack-0", machine.name, "default")

    async def asked(self, name: str, *, manager: bool = False, pin: str = "", **value: Any) -> None:
        """Create a Machine."""
        labels = {LABEL_CLUSTER: "example-cluster"} | ({LABEL_CONTROL_PLANE: ""} if manager else {})
        await self.claimant(name, pin=pin, labels=labels, l2TemplateSelector={"name": "one-nic"}, **value)

    async def edit_machine(self, name: str, **value: Any) -> None:
        """Edit spec.providerSpec.value of a Machine, unless it is gone."""
        with contextlib.suppress(NotFound):
            await self.change(name, **value)

    async def release(self, name: str, image: str = "2") -> None:  # type: ignore[override]
        """Create a ClusterRelease with another image, and have the Cluster update to it."""
        known = await self.api.get(CLUSTER_RELEASES.raw(), RELEASES[0])
        spec = known["spec"] | {"version": name.removeprefix("mke-").replace("-", ".")}
        system = spec["allowedDistributions"][0]
        system["image"] = {"url": f"oci://registry.example.com/jammy:{image}"}
        await self.api.create(CLUSTER_RELEASES, {"metadata": {"name": name}, "spec": spec})
        patch = {"spec": {"providerSpec": {"value": {"release": name}}}}
        await self.api.patch(CLUSTERS, "example-cluster", patch, namespace=NAMESPACE)

    def machines(self) -> list[ContainerCloudMachine]:
        return list(self.judge.all(CONTAINER_CLOUD_MACHINES))

    def ready(self) -> list[str]:
        """Return the names of the Machines that are Ready, and not being deleted."""
        return [
            one.name for one in self.machines() if stage_of(one) == MachineStage.READY and one.provider_status.ready
        ]

    def updated(self) -> bool:
        """Return whether all installed hosts have the image that their Machines name."""
        images = [
            (one.spec.pxe.image, one.status.image)
            for one in self.judge.all(MACHINES)
            if one.spec.pxe is not None and one.name not in self.judge.kept
        ]
        return all(not desired or (image is not None and image.is_of(desired)) for desired, image in images)

    def current(self) -> str:
        """Return the release of the Cluster: the one that no Machine is outdated by."""
        cluster = self.judge.find(CLUSTERS, "example-cluster", NAMESPACE)
        current = None if cluster is None else cluster.provider_status.releases.current
        return "" if current is None else current.name

    async def wait(self, holds: Callable[[], bool], *, within_s: float = 20_000) -> None:
        """Wait until something holds, or a fault was seen."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within_s
        while not holds() and not self.judge.faults:
            assert loop.time() < end, "\n".join((f"not within {within_s:g} s:", *self.restless(), *self.described()))
            await asyncio.sleep(1)
        self.assert_sound()

    def assert_sound(self) -> None:
        assert not self.judge.faults, "\n".join((*self.judge.faults[:5], *self.described()))

    def described(self) -> list[str]:
        """Return the state of all Machines, hosts and operations, a line each."""
        return [
            *(f"{one.name}: delete {one.value.delete}, {one.status.execution}" for one in self.machines()),
            *(f"{one.name}: {one.state} {consumer_of(one)}" for one in self.judge.all(BARE_METAL_HOSTS)),
            *(f"{one.name}: {one.status.disruption}" for one in self.judge.all(MACHINES)),
            *(f"{one.name}: {one.status}" for one in self.judge.all(MACHINE_OPERATIONS) if not one.terminal),
            *(f"{one.name}: {one.status.rollout}" for one in self.judge.all(MACHINE_CONFIGURATIONS)),
        ]

    # ---- the end

    def restless(self) -> list[str]:
        """Return what is not at rest: each Machine ends Ready, held with a reason, or gone, and each host with one
        owner, or in stock.
        """
        return list(self._restless())

    def _restless(self) -> Iterator[str]:
        judge = self.judge
        owners: dict[str, list[str]] = defaultdict(list)
        for host in judge.all(BARE_METAL_HOSTS):
            target, consumer = judge.find(MACHINES, machine_of_host(host)), consumer_of(host)
            if target is None:
                yield f"host {host.name} has no Machine: {host.state}"
                continue
            if consumer is None:
                if not self._is_stock(host, target):
                    yield f"host {host.name} is not in stock: {host.state}, {claim_fields(target, host)}"
                continue
            owners[consumer_uid(host)].append(host.name)
            machine = judge.machine_of(consumer_uid(host))
            if machine is None:
                yield f"host {host.name} is lost: {consumer} is gone"
            if target.spec.maintenance is not None and target.spec.maintenance.enabled:
                yield f"host {host.name} stays in maintenance"
            node = judge.find(NODES, target.name)
            if target.status.disruption is not None or (node is not None and node.spec.unschedulable):
                yield f"host {host.name} stays drained: {target.status.disruption}"
        for machine in self.machines():
            hosts, stage, reason = owners.get(machine.metadata.uid, []), stage_of(machine), reason_of(machine)
            is_ready = machine.name in self.ready() and len(hosts) == 1
            if not is_ready and (reason not in HELD or stage in DELETION_STAGES or len(hosts) > 1):
                yield f"{machine.name} with hosts {hosts} is in stage {stage}: {reason}"
        yield from self._left(owners)

    def _is_stock(self, host: BareMetalHost, target: Machine) -> bool:
        """Return whether nothing of a claim is left, and the host is off, or runs as it did before the claim."""
        node, power = self.judge.find(NODES, target.name), self.power[target.name]
        if claim_fields(target, host):
            return False
        if target.name not in self.judge.kept:
            return host.state == "available" and power == "Off" and node is None
        is_same = _spec(target.spec) == _spec(msgspec.convert(self.judge.kept[target.name], type(target.spec)))
        is_running = power == "On" and node is not None and node.ready and not node.spec.unschedulable
        return host.state == "externally provisioned" and is_same and is_running

    def _left(self, owners: dict[str, list[str]]) -> Iterator[str]:
        """Yield what should not be left of Machines that are gone, and of operations."""
        judge = self.judge
        ipams = {
            one.metadata.uid: {owner.uid for owner in one.metadata.owner_references} for one in judge.all(IPAM_HOSTS)
        }
        living = {one.metadata.uid for one in self.machines()}
        if any(not uids & living for uids in ipams.values()):
            yield f"an IpamHost has outlived its Machine: {ipams}"
        for subnet in judge.all(SUBNETS):
            held = {entry.partition(":")[2].partition("/")[0] for entry in subnet.status.allocated_ips}
            if any(not ipams.get(uid, set()) & owners.keys() for uid in held):
                yield f"addresses have no owner: {subnet.status.allocated_ips}"
        configs = [one.name for one in judge.all(CONFIG_MAPS) if one.name.startswith("container-cloud-network-")]
        if any(one.removeprefix("container-cloud-network-") not in ipams for one in configs):
            yield f"network configurations have outlived their Machines: {configs}"
        for operation in judge.all(MACHINE_OPERATIONS):
            if not operation.terminal:
                yield f"{operation.name} has not ended"
        for budget in judge.all(MACHINE_DISRUPTION_BUDGETS):
            if budget.status.grants:
                yield f"{budget.name} has grants: {budget.status.grants}"


def _spec(spec: MachineSpec) -> Raw:
    """Return a spec for a comparison: taints that were absent before a claim are an empty list after it."""
    raw: Raw = msgspec.to_builtins(spec)
    if not raw.get("kubernetes", {}).get("registerWithTaints"):
        raw.get("kubernetes", {}).pop("registerWithTaints", None)
    return raw


def _conditions(machine: Machine) -> Any:
    return machine.status.conditions


def stage_of(machine: ContainerCloudMachine) -> str:
    execution = machine.status.execution
    return MachineStage.CLAIMING if execution is None else execution.stage


def reason_of(machine: ContainerCloudMachine) -> str:
    waiting = machine.status.execution.waiting if machine.status.execution is not None else None
    return "" if waiting is None else waiting.reason


@asynccontextmanager
async def crash_site(seed: int, weather: Weather = FAIR) -> AsyncIterator[CrashSite]:
    """A site without controllers, whose executors work."""
    random.seed(seed)  # of the jitter in back-off, so that a seed is one schedule
    judge = Judge()
    api = JudgedApi(judge)
    settings = ContainerCloudSettings(site="lab", min_other_managers=0)
    site = CrashSite(api, watched_caches(api), settings=settings, judge=judge)
    site.chance, site.weather, site.refusals.names = random.Random(seed), weather, judge.refused
    judge.power = site.power
    world = asyncio.create_task(site.world())
    try:
        yield site
        assert not world.done(), world
    finally:
        world.cancel()
        await asyncio.gather(world, return_exceptions=True)


# ---- stories


async def life(site: CrashSite) -> None:
    """Four Machines race for three hosts, are updated, and deleted in all ways; each host has another Machine then.

    A fifth one has a host that others have installed, which no update touches.
    """

    def ours() -> list[str]:
        return [name for name in site.ready() if name != "kept"]

    await site.surroundings()
    await site.kept()
    await site.asked("kept", pin="default/rack-0")
    await site.asked("manager", manager=True)
    await site.asked("worker-0")
    await site.asked("worker-1")
    await site.asked("pinned", pin="default/master-0")
    await site.stocked(2)
    await site.wait(lambda: len(site.ready()) == 4)
    await site.release(RELEASES[1])
    await site.wait(lambda: any(stage_of(one) == MachineStage.UPDATING for one in site.machines()))
    leaving = next(one.name for one in site.machines() if one.name in ours() and one.name != "pinned")
    await site.edit_machine(leaving, delete=True, deletionPolicy="graceful")
    await site.wait(lambda: leaving not in {one.name for one in site.machines()})
    await site.wait(lambda: len(site.ready()) == 4 and site.updated() and site.current() == RELEASES[1])
    unsafe, forced, aborted = ours()
    await site.edit_machine(unsafe, delete=True)
    await site.edit_machine(forced, deletionPolicy="forced")
    await site.api.delete(CONTAINER_CLOUD_MACHINES, forced, namespace=NAMESPACE)
    abort_at_reset(site, {aborted})
    await site.edit_machine(aborted, delete=True, deletionPolicy="graceful")
    await site.edit_machine("kept", delete=True, deletionPolicy="graceful")
    await site.wait(lambda: not {unsafe, forced, "kept"} & {one.name for one in site.machines()})
    await calm(site)


def abort_at_reset(site: CrashSite, names: set[str], within_s: float = 0.05) -> None:
    """Abort the deletion of each of these Machines once, while its AgentReset is being created."""
    loop, tasks = asyncio.get_running_loop(), site.tasks

    def requested(machine: ContainerCloudMachine) -> None:
        if machine.name in names:
            names.discard(machine.name)
            abort = site.edit_machine(machine.name, delete=False)
            loop.call_later(site.chance.uniform(0, within_s), lambda: tasks.append(asyncio.create_task(abort)))

    site.judge.reset_requested = requested


async def meddle(site: CrashSite) -> None:
    """Do what users do, at any time: make, delete, withdraw and update Machines; each deed but the last is random."""
    chance, made = site.chance, 0
    await site.surroundings()
    abort_at_reset(site, {f"m{number}" for number in range(6) if chance.random() < 0.6}, within_s=3.0)
    await site.stocked(chance.randint(1, 2))
    await site.kept()
    for _ in range(chance.randrange(10, 30)):
        names = [one.name for one in site.machines()]
        deed = chance.choice(
            ("make", "make", "delete", "delete", "waver", "waver", "withdraw", "remove", "update", "maintain", "stick",
             "break")
        )  # fmt: skip
        name = chance.choice(names) if names else ""
        if deed == "make" and made < 6:
            pin = chance.choice(("default/master-0", "default/rack-0")) if chance.random() < 0.5 else ""
            policy = chance.choice(("graceful", "graceful", "unsafe", "forced"))
            await site.asked(f"m{made}", manager=made == 0, pin=pin, deletionPolicy=policy)
            made += 1
        elif deed == "update" and site.judge.find(CLUSTER_RELEASES, RELEASES[1]) is None:
            await site.release(RELEASES[1])
        elif deed == "remove" and name and chance.random() < 0.5:
            await site.api.delete(CONTAINER_CLOUD_MACHINES, name, namespace=NAMESPACE)
        elif deed == "maintain" and name:
            await site.edit_machine(name, maintenance=chance.random() < 0.5)
        elif deed == "waver" and name:
            await site.edit_machine(name, delete=True)
            await asyncio.sleep(chance.uniform(0, 8))
            await site.edit_machine(name, delete=False)
        elif deed == "stick":
            site.stuck ^= {chance.choice(("master-0.default", "host-0.example-ns", "host-1.example-ns"))}
        elif deed == "break" and (readable := sorted(site.power.keys() - site.judge.kept.keys())):
            site._break(chance.choice(readable))
        elif deed in ("delete", "withdraw") and name:
            await site.edit_machine(name, delete=deed == "delete")
        await asyncio.sleep(chance.uniform(0, 30) if chance.random() < 0.7 else chance.uniform(0, 1))
    site.stuck.clear()
    site.breaks = False
    site.broken.clear()
    site.weather = FAIR
    for one in site.lives:
        one.weather = FAIR
    for machine in site.machines():
        await site.edit_machine(machine.name, maintenance=False)
    await calm(site)


async def calm(site: CrashSite) -> None:
    """Wait for the end, and judge it; it has to last."""
    await site.wait(lambda: not site.restless())
    await asyncio.sleep(300)
    site.assert_sound()
    assert not site.restless(), "\n".join((*site.restless(), *site.described()))


async def refused_life(site: CrashSite) -> None:
    """Two Machines are deleted, one of them by force, while a write of each deletion is refused; then two others."""
    await site.surroundings()
    await site.stocked(1)
    for number, write in enumerate(("release", "request", "node", "leave")):
        answer = site.chance.choice(tuple(ANSWERS))
        for name in ("forced", "unsafe"):
            pin = "default/master-0" if (name == "forced") is bool(number % 2) else ""
            await site.asked(name, pin=pin, deletionPolicy=name)
        await site.wait(lambda: len(site.ready()) == 2)
        site.refusals.begin(write, answer)
        for name in ("forced", "unsafe"):
            await site.edit_machine(name, delete=True)
        await site.wait(lambda: [one.name for one in site.machines()] == ["unsafe"], within_s=600)
        await site.wait(lambda: [reason_of(one) for one in site.machines()] == [MachineReason.WRITE_REFUSED])
        site.refusals.end()
        await site.wait(lambda: not site.machines())
    await calm(site)


async def run_cut(who: str, at: int, story: Callable[[CrashSite], Awaitable[None]] = life) -> bool:
    """Run the story of some Machines, with one process cut off at an await; return whether it came to that."""
    async with crash_site(1) as site:
        processes = {"container-cloud": site.container_cloud(), "disruption": site.disrupter(), "": site.updater()}
        keepers = [
            asyncio.create_task(one.keep(crashes=[at] if name == who else [], pause_s=(0.0, 3.0)))
            for name, one in processes.items()
        ]
        try:
            await story(site)
        finally:
            for keeper in keepers:
                keeper.cancel()
        return any(one.dead.is_set() for one in site.lives)


async def run_storm(seed: int) -> None:
    """Run random deeds with two leaders at once, both of which freeze and crash."""
    async with crash_site(seed, STORM) as site:
        chance, site.breaks = site.chance, True
        crashes = [[chance.randrange(400) for _ in range(chance.randrange(4))] for _ in range(3)]
        updater = site.updater().start(weather=FAIR)  # its own storms are elsewhere
        processes = [site.container_cloud(), site.container_cloud(), site.disrupter()]
        keepers = [asyncio.create_task(one.keep(crashes=at)) for one, at in zip(processes, crashes, strict=True)]
        try:
            await meddle(site)
        finally:
            for task in (*keepers, updater.task):
                task.cancel()


async def run_late_reset(seed: int) -> None:
    """Abort a deletion whose leader is frozen between the record of the AgentReset and its creation."""
    async with crash_site(seed) as site:
        processes = (site.container_cloud(), site.disrupter(), site.updater())
        tasks = [one.start().task for one in processes]
        await site.surroundings()
        await site.asked("worker")
        await site.stocked(1)
        await site.wait(lambda: site.ready() == ["worker"])
        site.freezes.add("AgentReset")
        await site.edit_machine("worker", delete=True, deletionPolicy="graceful")
        await site.wait(lambda: not site.freezes)
        await asyncio.sleep(site.chance.uniform(0, 20))
        tasks.append(site.container_cloud().start().task)
        await site.edit_machine("worker", delete=False)
        await calm(site)
        assert "AgentReset" not in site.operated
        for task in tasks:
            task.cancel()
