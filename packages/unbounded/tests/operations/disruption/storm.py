"""Storms: schedules of drains under budgets, with crashes, two leaders, and users who meddle, judged at every write."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tests.operations.disruption.cluster import Cluster, ClusterApi
from tests.operations.faults import FAIR, STORM
from tests.operations.simulated import Violation
from tests.operations.world import TERMINAL, Process, Running, World, defaults
from tests.support.virtual_time import virtual_now
from unbounded.api.core import NODES, Pod
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import ANNOTATION_CORDONED_BY
from unbounded.api.operation import MACHINE_OPERATIONS, OperationKind
from unbounded.kube.api import ApiError

Raw = dict[str, Any]
KINDS: Final = ("HostReboot", "HostReboot", "HostReboot", "HostPowerOff", "HostPowerOn")
OBSERVED_S: Final = 15.0  # until the caches of all processes have surely shown a change
CALM_S: Final = 200.0  # after all has ended: minReadySeconds, a renewed lease, and a grant that nothing uses


@dataclass
class Judge:
    """The state of the cluster at each write, and what must never be."""

    machines: dict[str, Raw] = field(default_factory=dict)
    nodes: dict[str, Raw] = field(default_factory=dict)
    operations: dict[str, Raw] = field(default_factory=dict)  # by UID
    budgets: dict[str, Raw] = field(default_factory=dict)
    available_since: dict[str, float] = field(default_factory=dict)  # Machines; absent while they are unavailable
    unavailable_since: dict[str, float] = field(default_factory=dict)
    ended_at: dict[str, float] = field(default_factory=dict)  # operations, by UID
    user: bool = False  # a user writes now
    faults: list[str] = field(default_factory=list)

    def admit(self, kind: Kind[Any], old: Raw | None, new: Raw) -> None:
        name = new["metadata"].get("name", "")
        match kind.kind:
            case "Machine":
                self._lock_taken(name, old or {}, new)
                self.machines[name] = new
            case "Node":
                self._cordon_removed(name, old or {}, new)
                self.nodes[name] = new
                self._count(name)
            case "MachineOperation":
                uid = new["metadata"]["uid"] if old else name
                self.operations[uid] = new
                if new.get("status", {}).get("phase") in TERMINAL:
                    self.ended_at.setdefault(uid, _now())
            case "MachineDisruptionBudget":
                self._granted(name, old or {}, new)
                self.budgets[name] = new

    def _count(self, name: str) -> None:
        node, now = self.nodes[name], _now()
        ready = any(
            c["type"] == "Ready" and c["status"] == "True" for c in node.get("status", {}).get("conditions", ())
        )
        if ready and not node.get("spec", {}).get("unschedulable"):
            self.available_since.setdefault(name, now)
            self.unavailable_since.pop(name, None)
        else:
            self.unavailable_since.setdefault(name, now)
            self.available_since.pop(name, None)

    def _lock_taken(self, name: str, old: Raw, new: Raw) -> None:
        """Check that no operation takes the lock of a Machine that is not drained for it."""
        before = old.get("status", {}).get("activeOperation") or {}
        after = new.get("status", {}).get("activeOperation") or {}
        if not after or before.get("uid") == after["uid"] or after["kind"] not in tuple(OperationKind):
            return
        spec = self.operations.get(after["uid"], {}).get("spec", {})
        status = old.get("status", {})
        asks = spec.get("drain", {}).get("mode") == "Always" or status.get("disruptionBudgets")
        if not OperationKind(after["kind"]).is_disruptive or not asks:
            return
        record = status.get("disruption") or {}
        holder = record.get("holder", {}).get("uid")
        if record.get("stage") not in ("Drained", "Working") or holder not in (after["uid"], old["metadata"]["uid"]):
            self.faults.append(f"{after['name']} took the lock of {name} without a drained Node: {record}")

    def _cordon_removed(self, name: str, old: Raw, new: Raw) -> None:
        was, is_now = old.get("spec", {}).get("unschedulable"), new.get("spec", {}).get("unschedulable")
        ours = ANNOTATION_CORDONED_BY in old.get("metadata", {}).get("annotations", {})
        if was and not is_now and not ours and not self.user:
            self.faults.append(f"the cordon of a user was removed from {name}")

    def _granted(self, name: str, old: Raw, new: Raw) -> None:
        """Check that a new grant leaves each group within its limit, unless the operation overrides it."""
        before = {one["machine"]: one for one in old.get("status", {}).get("grants", ())}
        after = {one["machine"]: one for one in new.get("status", {}).get("grants", ())}
        for machine, grant in after.items():
            if machine in before:
                continue
            holder, now = grant["holder"], _now()
            if now - self.ended_at.get(holder["uid"], now) > OBSERVED_S:
                self.faults.append(f"{name}: a grant for {holder}, which has ended long before")
            if self.operations.get(holder["uid"], {}).get("spec", {}).get("override"):
                continue
            if now - self.available_since.get(machine, now) < OBSERVED_S:
                continue  # it may count as unavailable, and takes no room then
            used = {one for one in before if one in self.machines} | {
                one for one, since in self.unavailable_since.items() if now - since > OBSERVED_S
            }
            group = [
                one for one in self.machines if _group(new, self.machines[one]) == _group(new, self.machines[machine])
            ]
            limit = new["spec"]["maxUnavailable"]
            limit = limit if isinstance(limit, int) else int(limit[:-1]) * len(group) // 100
            if len(used & set(group) - {machine}) >= limit:
                self.faults.append(f"{name}: {machine} is granted beside {used & set(group)}, the limit is {limit}")

    def evicted(self, pod: Pod) -> None:
        """Check that a pod is evicted only from a Node that is being drained, with a grant of each of its budgets."""
        machine = self.machines.get(pod.spec.node_name, {})
        record = machine.get("status", {}).get("disruption") or {}
        if record.get("stage") != "Draining":
            self.faults.append(f"{pod.metadata.name} was evicted from {pod.spec.node_name} in {record}")
        for name in record.get("budgets", ()):
            grants = self.budgets.get(name, {}).get("status", {}).get("grants", ())
            if name in self.budgets and all(one["machine"] != pod.spec.node_name for one in grants):
                self.faults.append(f"{pod.metadata.name} was evicted without a grant of {name}")

    def at_rest(self) -> None:
        """Check that nothing is left of any disruption."""
        for name, node in self.nodes.items():
            notes, status = node["metadata"].get("annotations", {}), node.get("status", {})
            true = [one for one in status.get("conditions", ()) if one["type"] != "Ready" and one["status"] == "True"]
            if ANNOTATION_CORDONED_BY in notes or true:
                self.faults.append(f"Node {name} is left with {notes} and {true}: {self.machines[name]['status']}")
        for name, machine in self.machines.items():
            if machine.get("status", {}).get("disruption"):
                self.faults.append(f"Machine {name} is left with {machine['status']['disruption']}")
        for name, budget in self.budgets.items():
            if budget.get("status", {}).get("grants"):
                self.faults.append(f"{name} is left with grants {budget['status']['grants']}")

    def check(self) -> None:
        if self.faults:
            raise Violation(self.faults[0])


def _group(budget: Raw, machine: Raw) -> str:
    labels = machine["metadata"].get("labels", {})
    return "/".join(labels.get(key, "") for key in budget["spec"].get("groupBy", ()))


def _now() -> float:
    return asyncio.get_running_loop().time()


class JudgedApi(ClusterApi):
    def __init__(self, judge: Judge, **options: Any) -> None:
        super().__init__(**options)
        self._judge = judge

    async def end_pod(self, pod: Pod) -> None:
        self._judge.evicted(pod)
        await super().end_pod(pod)


class Leaders:
    """Leaders of the disruption controller one after another. One that lost its Lease lives on beside its successor."""

    def __init__(self, process: Process, chance: random.Random) -> None:
        self._process = process
        self._chance = chance
        self.calm = asyncio.Event()

    def _lead(self, crash_at: int | None) -> tuple[Running, list[float]]:
        running, until = self._process.start(crash_at=crash_at), [float("inf")]
        running.life.epoch = replace(running.life.epoch, acts_until=lambda: until[0])
        return running, until

    async def keep(self) -> None:
        chance, former = self._chance, list[Running]()
        try:
            while not self.calm.is_set():
                running, until = self._lead(chance.randrange(80) if chance.random() < 0.5 else None)
                former.append(running)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(chance.uniform(5, 200)):
                        await running.life.dead.wait()
                until[0] = _now()
                if running.life.dead.is_set():
                    await running.stop()
                await asyncio.sleep(chance.uniform(2, 20))  # until the Lease is free
            former.append(self._lead(None)[0])
            await asyncio.get_running_loop().create_future()
        finally:
            for one in former:
                await one.stop()


class DrainStorm:
    """One schedule: a number is a seed."""

    def __init__(self, number: int) -> None:
        self.chance = random.Random(number)
        self.judge = Judge()
        self.world = World(self.chance, weather=STORM if self.chance.random() < 0.6 else FAIR)
        self.api = JudgedApi(
            self.judge,
            defaults=defaults,
            admit=self._admit,
            now=virtual_now,
            namespaces=("default", "kube-system", "unbounded-kube", "kube-node-lease"),
        )
        self.world.api = self.api
        self.cluster = Cluster(self.world, self.api)
        self.names: list[str] = []
        self.tasks: list[asyncio.Task[Any]] = []

    def _admit(self, kind: Kind[Any], old: Raw | None, new: Raw) -> None:
        self.world._write_down(kind, old, new)
        self.judge.admit(kind, old, new)

    async def run(self) -> None:
        chance, world = self.chance, self.world
        machines = [f"m{number}" for number in range(chance.randint(2, 4))]
        for name in machines:
            redfish = {"url": f"https://{name}", "username": "u", "passwordRef": {"name": "s", "namespace": "n"}}
            rack = {"rack": chance.choice(("a", "b"))}
            await world.machine(name, labels=rack, pxe={"image": "i", "redfish": redfish}, kubernetes={
                "nodeRef": {"name": name}})  # fmt: skip
            await self.cluster.node(name, *(f"{name}-{pod}" for pod in range(chance.randint(0, 2))))
        leaders = Leaders(self.cluster.disrupter(), chance)
        self._start(leaders.keep())
        for process in (world.redfish(), world.steward()):
            self._start(process.keep(crashes=[chance.randrange(80) for _ in range(chance.randrange(3))]))
        if chance.random() < 0.8:
            await self._budget("first")
        await asyncio.sleep(chance.uniform(0, 20))
        for number in range(chance.randint(1, 5)):
            await self._operation(f"op{number}", chance.choice(machines))
            await asyncio.sleep(chance.uniform(0, 30))
        for _ in range(chance.randrange(8)):
            await asyncio.sleep(chance.uniform(0, 40))
            await self._meddle(chance.choice(machines))
        await self._calm(leaders, machines)

    def _start(self, work: Coroutine[Any, Any, Any]) -> None:
        self.tasks.append(asyncio.create_task(work))

    async def _budget(self, name: str) -> None:
        chance = self.chance
        spec: Raw = {
            "machineSelector": {"matchLabels": {"unbounded-cloud.io/site": "lab"}},
            "maxUnavailable": chance.choice((1, 1, 2, "50%")),
        }
        if chance.random() < 0.3:
            spec["groupBy"] = ["rack"]
        if chance.random() < 0.3:
            spec["drain"] = {"enabled": False}
        if chance.random() < 0.3:
            spec["minReadySeconds"] = chance.choice((0, 30))
        await self.api.create(MACHINE_DISRUPTION_BUDGETS, {"metadata": {"name": name}, "spec": spec})

    async def _operation(self, name: str, machine: str) -> None:
        chance = self.chance
        spec: Raw = {}
        if chance.random() < 0.6:
            mode, limit = chance.choice(("Always", "Always", "Never", "Auto")), chance.choice((30, 600))
            spec["drain"] = {"mode": mode, "timeoutSeconds": limit, "onTimeout": chance.choice(("Fail", "Proceed"))}
        if chance.random() < 0.1:
            spec["override"] = "it burns"
        operation = await self.world.operation(name, chance.choice(KINDS), machine, **spec)
        self.judge.operations[operation.metadata.uid] = {"spec": {**spec}, "status": {}}
        self.names.append(name)

    async def _meddle(self, machine: str) -> None:
        """Let a user or another controller do something."""
        with contextlib.suppress(ApiError):
            self.judge.user = True
            try:
                await self.chance.choice(self._acts)(self, machine)
            finally:
                self.judge.user = False

    async def _cordon(self, machine: str) -> None:
        node = await self.api.get(NODES, machine)
        if ANNOTATION_CORDONED_BY not in node.metadata.annotations:
            await self.cluster.cordon(machine)

    async def _uncordon(self, machine: str) -> None:
        await self.cluster.cordon(machine, unschedulable=False)

    async def _guard(self, machine: str) -> None:
        for pod in await self.cluster.pods_on(machine):
            self.api.guarded.add(pod)

    async def _hold(self, machine: str) -> None:
        hold = None if self.chance.random() < 0.5 else "busy"
        await self.api.patch(NODES, machine, {"metadata": {"annotations": {"hold.unbounded-cloud.io/app": hold}}})

    async def _stop_kubelet(self, machine: str) -> None:
        self.cluster.down ^= {machine}

    async def _maintain(self, machine: str) -> None:
        on = self.chance.random() < 0.7
        await self.api.patch(MACHINES, machine, {"spec": {"maintenance": {"enabled": on}}})

    async def _cancel(self, _machine: str) -> None:
        await self.world.cancel(self.chance.choice(self.names))

    async def _delete(self, _machine: str) -> None:
        await self.api.delete(MACHINE_OPERATIONS, self.chance.choice(self.names))

    async def _edit(self, _machine: str) -> None:
        limit = self.chance.choice((0, 1, 2, "50%"))
        await self.api.patch(MACHINE_DISRUPTION_BUDGETS, "first", {"spec": {"maxUnavailable": limit}})

    async def _another(self, _machine: str) -> None:
        await self._budget("second")

    async def _no_budget(self, _machine: str) -> None:
        await self.api.delete(MACHINE_DISRUPTION_BUDGETS, "first")
        self.judge.budgets.pop("first", None)

    async def _new_pod(self, machine: str) -> None:
        await self.cluster.pod(machine, f"new-{self.chance.randrange(10**6)}")

    async def _compact(self, _machine: str) -> None:
        self.api.compact()

    _acts: tuple[Callable[[DrainStorm, str], Coroutine[Any, Any, None]], ...] = (
        _cordon,
        _uncordon,
        _guard,
        _hold,
        _stop_kubelet,
        _maintain,
        _cancel,
        _delete,
        _edit,
        _another,
        _no_budget,
        _new_pod,
        _compact,
    )

    async def _calm(self, leaders: Leaders, machines: list[str]) -> None:
        """Let all be well again, and check that everything comes to an end and nothing is left."""
        world = self.world
        world.weather = FAIR
        for life in world.lives:
            life.weather = FAIR
        leaders.calm.set()
        self.api.guarded.clear()
        self.cluster.down.clear()
        for name in ("first", "second"):  # 50% of one Machine is none
            with contextlib.suppress(ApiError):
                await self.api.patch(MACHINE_DISRUPTION_BUDGETS, name, {"spec": {"maxUnavailable": 1}})
        for name in machines:
            await self.api.patch(MACHINES, name, {"spec": {"maintenance": {"enabled": False}}})
            await self.api.patch(NODES, name, {"metadata": {"annotations": {"hold.unbounded-cloud.io/app": None}}})
            self.judge.user = True
            if ANNOTATION_CORDONED_BY not in (await self.api.get(NODES, name)).metadata.annotations:
                await self.cluster.cordon(name, unschedulable=False)
            self.judge.user = False
        self._start(self._switch_on(machines))
        for name in self.names:
            with contextlib.suppress(ApiError):
                await world.ended(name, within_s=3 * 3600)
        await asyncio.sleep(CALM_S)
        self.judge.at_rest()
        self.judge.check()
        world.judge()
        for task in (*self.tasks, *self.cluster.kubelets.values()):
            task.cancel()

    async def _switch_on(self, machines: list[str]) -> None:
        """Be the user who switches hosts on by hand, which a HostPowerOff has left off."""
        while True:
            await asyncio.sleep(30)
            for name in machines:
                host, machine = self.world.outside.host(name), await self.api.get(MACHINES, name)
                if host.power != "On" and machine.status.active_operation is None:
                    host.on_at = _now()
