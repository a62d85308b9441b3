"""Drains and rollouts of many Nodes: the cost of the control plane beside the Eviction API's and the hosts' own time.

The API server, the controllers, the lab's BMCs and the client of drains run in processes of their own. This process is
the kubelets: it ends each pod some seconds after its eviction, reports each Node as its host is, and renews the lease
of a Node after a reboot. These times are the same for all.

1. A bare client drains all Nodes by the Eviction API, some at a time; no controller runs yet.
2. The maintenance of Machines drains the same Nodes, as many at a time by a disruption budget.
3. An operation for each of some hosts reboots them at once: the API writes are those of an operation.
4. One selector operation reboots all hosts in stages: a canary, its soak, and the others, as many at a time. Each Node
   is drained, and granted by a budget that allows all. The ideal takes for each target what the canary took alone.
5. A large fleet of Machines with Nodes, idle: without budgets, and with them after a restart; then its plans.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from benchmarks import children
from benchmarks.drains import NAMESPACE, Drained, DrainJob, each
from benchmarks.fleet_data import CONFIGURATION, JOINED_SITES, RACK, RACK_MACHINES
from benchmarks.frame import Limit, Measured, percentile, print_progress, run_benchmark
from benchmarks.load import Job, Report
from benchmarks.operations import NOT_COUNTED, WRITES, register
from benchmarks.progress import Progress, create_operation, followed, phases_written, watched
from unbounded.api.core import LEASES, NODE_LEASES, NODES, PODS, Pod
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import LABEL_MACHINE, LABEL_SITE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import Api, Conflict, NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import rfc3339
from unbounded.kube.config import from_kubeconfig
from unbounded_lab import machines as lab
from unbounded_lab.bmc.fleet import FleetBmc, start_fleet

PROCESSES: Final = 2  # of the lab's fleet
CLIENTS: Final = 20  # that create pods
STARTS_S: Final = 1.0  # from kubelet's first lease until its Node is Ready
SETTLED_S: Final = 2.0  # without a call: the work is done
PLANS: Final = 3
KUBELET: Final = "example.com/kubelet"  # finalizer of a pod that has not ended
REBOOT: Final = "reboot"
ROLLOUT: Final = "rollout"
BUDGET: Final = "all"
PLUGIN: Final = "kubectl-unbounded"
ALL: Final = {"matchLabels": {LABEL_SITE: lab.SITE}}

AMOUNT: Final = (
    "{machines:g} Machines, {pods:g} pods each, {concurrent:g} at a time; {fleet_machines:g} Machines, "
    "{budgets:g} budgets"
)
LIMITS: Final[Mapping[str, Limit]] = {
    "drain_wall_vs_bare_client": Limit("time to drain all Nodes, over that of a bare client", most=1.25),
    "rollout_vs_ideal": Limit("time of a rollout of reboots, over what its stages alone allow", most=1.15),
    "api_writes_per_reboot": Limit("API writes for a drained reboot; evictions, Events and Leases apart", most=18),
    "api_writes_per_target": Limit("the same for a target of the rollout, its operation included"),
    "grant_late_s": Limit("from minReadySeconds after a Node is Ready until its grant ends, p99, s", most=2.0),
    "idle_calls_per_s": Limit("idle fleet with budgets: calls to the API in a second", most=1.0),
    "memory_vs_no_budgets": Limit("memory of API server and controllers with budgets, over that without", most=1.1),
    "plan_s": Limit("plan of a rolling update of the whole fleet, s", most=3.0),
    "plan_operation_s": Limit("plan of a rollout of reboots over a tenth of the fleet, s", most=3.0),
    "controller_cpu_ms_per_drain": Limit("CPU of the controllers for a drain, ms"),
    "controller_cpu_ms_per_reboot": Limit("CPU of the controllers for a drained reboot, ms"),
}


@dataclass(frozen=True)
class Size:
    """Amounts, and the times of the simulated hosts."""

    machines: int
    pods: int
    concurrent: int
    pods_end_s: float
    shutdown_s: float
    boot_s: float
    soak_s: int
    min_ready_s: int
    renew_s: float  # from one renewal of a Node's lease until the next
    fleet: int
    budgets: int
    idle_s: float
    within_s: float


FULL: Final = Size(
    machines=1000,
    pods=20,
    concurrent=50,
    pods_end_s=3.0,
    shutdown_s=2.0,
    boot_s=4.0,
    soak_s=2,
    min_ready_s=10,
    renew_s=10.0,
    fleet=10_000,
    budgets=50,
    idle_s=30.0,
    within_s=1200.0,
)
QUICK: Final = Size(
    machines=6,
    pods=3,
    concurrent=3,
    pods_end_s=0.5,
    shutdown_s=0.5,
    boot_s=1.0,
    soak_s=1,
    min_ready_s=2,
    renew_s=1.0,
    fleet=40,
    budgets=3,
    idle_s=8.0,
    within_s=120.0,
)


async def run(quick: bool) -> Measured:
    size = QUICK if quick else FULL
    async with (
        start_fleet(size.machines, processes=PROCESSES, shutdown_s=size.shutdown_s, boot_s=size.boot_s) as bmcs,
        _hosts(size) as hosts,
    ):
        await asyncio.gather(*(_register(hosts.api, bmc) for bmc in bmcs))
        machines = [bmc.name for bmc in bmcs]
        await each(_create_node(hosts.api, number, machine) for number, machine in enumerate(machines))
        await hosts.fill("bare", size.machines)
        bare = await hosts.drain(DrainJob(nodes=[_node(number) for number in range(size.machines)]))
        options = ("--kubeconfig", hosts.kubeconfig, "--site", lab.SITE, "--concurrent", str(size.concurrent))
        async with children.start("benchmarks.controllers", *options) as controllers:
            await phases_written(hosts.api)
            await hosts.fill("maintenance", size.machines)
            maintained, drains = await _maintain(hosts, controllers, machines)
            await hosts.fill("reboot", size.machines)
            some = machines[: size.concurrent]
            reboots = await _reboot(hosts, controllers, some)
            await hosts.fill("rollout", len(some))
            rollout = await _roll_out(hosts, controllers, machines)
    fleet = await _measure_fleet(size)
    return Measured(
        figures={
            "machines": size.machines,
            "pods": size.pods,
            "concurrent": size.concurrent,
            "fleet_machines": size.fleet,
            "budgets": size.budgets,
            "drain_s": maintained.seconds,
            "bare_client_drain_s": bare.seconds,
            "controller_cpu_ms_per_drain": 1000 * drains.cpu_s / size.machines,
            "rollout_s": rollout.took_s,
            "ideal_rollout_s": rollout.ideal_s,
            "controller_cpu_ms_per_reboot": 1000 * rollout.used.cpu_s / size.machines,
            "api_writes_per_reboot": _writes(reboots) / len(some),
            "api_writes_per_target": _writes(rollout.used) / size.machines,
            "grant_late_s": percentile(rollout.late_s, 0.99),
            "grant_late_p50_s": percentile(rollout.late_s, 0.5),
            "idle_calls_per_s": fleet.calls_per_s,
            "memory_mib": fleet.memory_mib,
            "memory_without_budgets_mib": fleet.plain_mib,
            "plan_s": fleet.plan_update_s,
            "plan_operation_s": fleet.plan_operation_s,
            "plan_targets": math.ceil(size.fleet / JOINED_SITES),
        },
        ratios={
            "drain_wall_vs_bare_client": maintained.seconds / bare.seconds,
            "rollout_vs_ideal": rollout.took_s / rollout.ideal_s,
            "memory_vs_no_budgets": fleet.memory_mib / fleet.plain_mib,
        },
    )


def _writes(used: children.Usage) -> int:
    counted = ((what.split(), count) for what, count in used.requests.items())
    apart = (*NOT_COUNTED, "pods/eviction")
    return sum(count for (verb, kind), count in counted if verb in WRITES and kind not in apart)


# Nodes and pods


@dataclass
class _Hosts:
    """The API server with the Nodes of all hosts, and the processes that load it."""

    api: Api
    kubeconfig: str
    size: Size
    loader: children.Child
    drainer: children.Child

    async def fill(self, prefix: str, nodes: int) -> None:
        """Create the pods of the first Nodes. No controller creates them elsewhere, once they are evicted."""
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "none", "controller": True}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{prefix}-@", "ownerReferences": [owner], "finalizers": [KUBELET]},
            "spec": {
                "nodeName": _node("#"),
                "containers": [{"name": "web", "image": "web"}],
                "terminationGracePeriodSeconds": 0,
            },
        }
        job = Job(
            kubeconfig=self.kubeconfig,
            clients=CLIENTS,
            requests=nodes * self.size.pods,
            method="POST",
            path=PODS.path(namespace=NAMESPACE),
            body=msgspec.json.encode(pod).decode(),
            objects=nodes,
        )
        report = await self.loader.request(msgspec.json.encode(job), Report, within_s=self.size.within_s)
        if report.codes != {201: job.requests}:
            raise RuntimeError(f"pods were not created: {report.codes}")
        print_progress(f"{job.requests} pods created in {report.seconds:.1f} s")

    async def drain(self, job: DrainJob) -> Drained:
        found = await self.drainer.request(msgspec.json.encode(job), Drained, within_s=self.size.within_s)
        what = "bare client" if job.nodes else "maintenance"
        print_progress(f"{what}: {len(job.nodes or job.machines)} Nodes drained in {found.seconds:.1f} s")
        return found


def _node(number: int | str) -> str:
    return f"node-{number}"


@asynccontextmanager
async def _hosts(size: Size) -> AsyncIterator[_Hosts]:
    with TemporaryDirectory(prefix="unbounded-benchmark-") as folder:
        async with (
            children.start("benchmarks.server", str(Path(folder) / "data")) as server,
            HttpApi(from_kubeconfig(Path(server.ready["kubeconfig"]))) as api,
            children.start("benchmarks.load") as loader,
            children.start("benchmarks.drains", server.ready["kubeconfig"], str(size.concurrent)) as drainer,
            _pods_end(api, size.pods_end_s),
        ):
            yield _Hosts(api, server.ready["kubeconfig"], size, loader, drainer)


@asynccontextmanager
async def _pods_end(api: Api, after_s: float) -> AsyncIterator[None]:
    """Be the kubelets that end evicted pods while the block runs."""
    ending: set[str] = set()
    ends = asyncio.TaskGroup()
    loop = asyncio.get_running_loop()

    def changed(pod: Pod) -> None:
        if pod.metadata.deletion_timestamp and pod.metadata.uid not in ending:
            ending.add(pod.metadata.uid)
            loop.call_later(after_s, lambda: ends.create_task(end(pod.metadata.name)))

    async def end(name: str) -> None:
        await api.patch(PODS, name, {"metadata": {"finalizers": []}}, namespace=NAMESPACE)

    async with ends, followed(api, PODS, changed):
        yield


async def _register(api: Api, bmc: FleetBmc) -> None:
    """Create a Machine whose BMC was read today: the daily inventory is no work of a drain."""
    await register(api, bmc)
    hardware = {"source": "Redfish", "at": rfc3339(datetime.now(UTC)), "digest": "0" * 64}
    await api.patch(MACHINES, bmc.name, {"status": {"hardware": hardware}}, subresource="status")


async def _create_node(api: Api, number: int, machine: str) -> None:
    await api.create(NODES, {"metadata": {"name": _node(number), "labels": {LABEL_MACHINE: machine}}})
    status = {"conditions": [_ready(ready=True)], "nodeInfo": _node_info("first")}
    await api.patch(NODES, _node(number), {"status": status}, subresource="status")


def _ready(*, ready: bool) -> dict[str, Any]:
    now = rfc3339(datetime.now(UTC))
    times = {"lastTransitionTime": now, "lastHeartbeatTime": now}
    return {"type": "Ready", "status": "True" if ready else "False", "reason": "Kubelet", "message": "", **times}


def _node_info(boot_id: str) -> dict[str, str]:
    names = ("architecture", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "kubeletVersion")
    more = ("machineID", "operatingSystem", "osImage", "systemUUID")
    return {**dict.fromkeys((*names, *more), ""), "bootID": boot_id}


# Drains and reboots


@asynccontextmanager
async def _budget(api: Api, limit: int | str, min_ready_s: int) -> AsyncIterator[None]:
    """Limit the disruptions of all Machines, from when all know of the budget."""
    spec = {"machineSelector": ALL, "maxUnavailable": limit, "minReadySeconds": min_ready_s}
    await api.create(MACHINE_DISRUPTION_BUDGETS, {"metadata": {"name": BUDGET}, "spec": spec})
    await _enforced(api, 1)
    try:
        yield
    finally:
        await api.delete(MACHINE_DISRUPTION_BUDGETS, BUDGET)


async def _enforced(api: Api, budgets: int) -> None:
    """Wait until that many budgets are enforced."""
    while True:
        found = (await api.list(MACHINE_DISRUPTION_BUDGETS)).items
        conditions = [one for budget in found for one in budget.status.conditions]
        if sum((one.type, one.status) == ("Enforced", "True") for one in conditions) == budgets:
            return
        await asyncio.sleep(0.2)


async def _maintain(
    hosts: _Hosts, controllers: children.Child, machines: Sequence[str]
) -> tuple[Drained, children.Usage]:
    """Drain by maintenance; return what the controllers used until all Machines are usable again."""
    async with _budget(hosts.api, hosts.size.concurrent, 0):
        used = await controllers.usage()
        drained = await hosts.drain(DrainJob(machines=list(machines)))
        used = (await controllers.usage()).since(used)
    print_progress(f"requests of the controllers: {used.requests}")
    return drained, used


@dataclass(kw_only=True)
class _Kubelets(Progress):
    """The kubelets: each reports its Node after the reboot of its host."""

    api: Api
    prefix: str  # of the names of operations; others have ended before
    renew_s: float
    nodes: Mapping[str, str]  # by the Machine
    tasks: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    ready: dict[str, float] = field(default_factory=dict)  # Machines
    returned: dict[str, float] = field(default_factory=dict)

    def note(self, operation: MachineOperation) -> None:
        if not operation.name.startswith(self.prefix):
            return
        claimed, complete = operation.name in self.claimed, operation.name in self.complete
        self.created.setdefault(operation.name, time.monotonic())
        super().note(operation)
        node = self.nodes.get(operation.spec.machine_ref or "")
        if node is None:
            return
        if not claimed and operation.name in self.claimed:
            self.tasks.create_task(self._report(node, _ready(ready=False)))
        if not complete and operation.name in self.complete:
            self.tasks.create_task(self._start(node, operation))

    def changed(self, machine: Machine) -> None:
        if machine.name in self.ready and machine.status.disruption is None:
            self.returned.setdefault(machine.name, time.monotonic())

    async def all_returned(self) -> None:
        while not self.returned.keys() >= self.nodes.keys():  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def _report(self, node: str, condition: Mapping[str, Any], **status: Any) -> None:
        while True:  # a kubelet's patch leaves the conditions of others as they are
            present = await self.api.get(NODES.raw(), node)
            kept = [one for one in present["status"]["conditions"] if one["type"] != "Ready"]
            version = {"resourceVersion": present["metadata"]["resourceVersion"]}
            body = {"metadata": version, "status": {"conditions": [*kept, condition], **status}}
            try:
                await self.api.patch(NODES, node, body, subresource="status")
            except Conflict:
                continue
            return

    async def _start(self, node: str, operation: MachineOperation) -> None:
        machine = operation.spec.machine_ref or ""
        await self._renew(node)
        renewed = time.monotonic()
        await asyncio.sleep(STARTS_S)
        await self._report(node, _ready(ready=True), nodeInfo=_node_info(operation.metadata.uid))
        self.ready[machine] = time.monotonic()
        while machine not in self.returned:
            await asyncio.sleep(max(renewed + self.renew_s - time.monotonic(), 0.0))
            renewed = time.monotonic()
            await self._renew(node)

    async def _renew(self, node: str) -> None:
        spec = {"renewTime": rfc3339(datetime.now(UTC), micro=True), "holderIdentity": node}
        try:
            await self.api.patch(LEASES, node, {"spec": spec}, namespace=NODE_LEASES)
        except NotFound:
            await self.api.create(LEASES, {"metadata": {"name": node}, "spec": spec}, namespace=NODE_LEASES)


async def _reboot(hosts: _Hosts, controllers: children.Child, machines: Sequence[str]) -> children.Usage:
    """Reboot hosts by an operation each, at once; return what the controllers used."""
    nodes = {machine: _node(number) for number, machine in enumerate(machines)}
    kubelets = _Kubelets(api=hosts.api, prefix=REBOOT, nodes=nodes, renew_s=hosts.size.renew_s)
    async with asyncio.timeout(hosts.size.within_s), _budget(hosts.api, "100%", hosts.size.min_ready_s), kubelets.tasks:
        used = await controllers.usage()
        async with watched(hosts.api, kubelets), followed(hosts.api, MACHINES, kubelets.changed):
            await each(
                create_operation(hosts.api, kubelets, f"{REBOOT}-{name}", "HostReboot", name) for name in machines
            )
            await kubelets.all_returned()
        used = (await controllers.usage()).since(used)
    print_progress(f"requests of the controllers for {len(machines)} drained reboots: {used.requests}")
    return used


@dataclass(frozen=True)
class RolloutFigures:
    """Times of a rollout in seconds.

    Args:
        late_s: of each grant: its end after the Node was Ready for minReadySeconds.
    """

    took_s: float
    ideal_s: float
    used: children.Usage
    late_s: Sequence[float]


async def _roll_out(hosts: _Hosts, controllers: children.Child, machines: Sequence[str]) -> RolloutFigures:
    size, nodes = hosts.size, {machine: _node(number) for number, machine in enumerate(machines)}
    kubelets = _Kubelets(api=hosts.api, prefix=ROLLOUT, nodes=nodes, renew_s=size.renew_s)
    stages = [{"name": "canary", "size": 1, "soakSeconds": size.soak_s}, {"name": "rest", "size": "100%"}]
    spec = {
        "operationKind": "HostReboot",
        "machineSelector": ALL,
        "maxConcurrent": size.concurrent,
        "strategy": {"stages": stages},
    }
    async with asyncio.timeout(size.within_s), _budget(hosts.api, "100%", size.min_ready_s), kubelets.tasks:
        used, began = await controllers.usage(), time.monotonic()
        async with watched(hosts.api, kubelets), followed(hosts.api, MACHINES, kubelets.changed):
            await hosts.api.create(MACHINE_OPERATIONS, {"metadata": {"name": ROLLOUT}, "spec": spec})
            await kubelets.all_complete([ROLLOUT])
            took_s = kubelets.complete[ROLLOUT] - began
            await kubelets.all_returned()
        used = (await controllers.usage()).since(used)
    canary = min(kubelets.created.keys() - {ROLLOUT}, key=lambda name: kubelets.created[name])
    alone_s = kubelets.complete[canary] - kubelets.created[canary]
    waves = math.ceil((len(machines) - 1) / size.concurrent)
    ideal_s = alone_s + STARTS_S + size.soak_s + waves * alone_s
    print_progress(
        f"rollout: {len(machines)} reboots in {took_s:.1f} s, one alone in {alone_s:.1f} s, ideal {ideal_s:.1f} s"
    )
    print_progress(f"requests of the controllers: {used.requests}")
    late_s = [kubelets.returned[name] - ready - size.min_ready_s for name, ready in kubelets.ready.items()]
    return RolloutFigures(took_s, ideal_s, used, late_s)


# A large fleet


@dataclass(frozen=True)
class FleetFigures:
    """Figures of an idle fleet, and of its plans."""

    plain_mib: float
    memory_mib: float
    calls_per_s: float
    plan_update_s: float
    plan_operation_s: float


@dataclass(frozen=True)
class _Fleet:
    """A running control plane of the fleet."""

    api: Api
    kubeconfig: str
    server: children.Child
    controllers: children.Child

    @property
    def memory_mib(self) -> float:
        return self.server.memory_mib + self.controllers.memory_mib

    async def calls(self) -> int:
        """Return the number of requests of the controllers; a Lease that is renewed is one."""
        return sum((await self.controllers.usage()).requests.values())

    async def settled(self) -> None:
        """Wait until the controllers have sent no request for SETTLED_S, Leases apart."""
        before = -1
        while True:
            requests = (await self.controllers.usage()).requests
            found = sum(count for what, count in requests.items() if not what.endswith(" leases"))
            if found == before:
                return
            before = found
            await asyncio.sleep(SETTLED_S)


async def _measure_fleet(size: Size) -> FleetFigures:
    with TemporaryDirectory(prefix="unbounded-benchmark-") as folder:
        data = Path(folder) / "data"
        command = (sys.executable, "-m", "benchmarks.fleet_data", str(data), str(size.fleet), "--joined")
        if await (await asyncio.create_subprocess_exec(*command)).wait():
            raise RuntimeError("cannot create the fleet")
        async with asyncio.timeout(size.within_s):
            async with _running(data) as fleet:
                await fleet.settled()
                plain_mib, requests = fleet.memory_mib, (await fleet.controllers.usage()).requests
                print_progress(f"fleet without budgets: {plain_mib:.0f} MiB; requests: {requests}")
                await _create_budgets(fleet.api, size)
                await fleet.settled()
            async with _running(data) as fleet:
                await fleet.settled()
                memory_mib, calls, began = fleet.memory_mib, await fleet.calls(), time.monotonic()
                await asyncio.sleep(size.idle_s)
                calls_per_s = (await fleet.calls() - calls) / (time.monotonic() - began)
                print_progress(f"fleet with budgets: {memory_mib:.0f} MiB, {calls_per_s:.2f} calls a second")
                return FleetFigures(plain_mib, memory_mib, calls_per_s, *await _plans(fleet.kubeconfig))


@asynccontextmanager
async def _running(data: Path) -> AsyncIterator[_Fleet]:
    async with children.start("benchmarks.server", str(data)) as server:
        kubeconfig = server.ready["kubeconfig"]
        options = ("--kubeconfig", kubeconfig, "--site", "site-0")
        async with (
            HttpApi(from_kubeconfig(Path(kubeconfig))) as api,
            children.start("benchmarks.controllers", *options) as controllers,
        ):
            yield _Fleet(api, kubeconfig, server, controllers)


async def _create_budgets(api: Api, size: Size) -> None:
    """Create budgets that share the racks of the fleet, and wait until they are enforced."""
    racks = [f"rack-{number}" for number in range(math.ceil(size.fleet / RACK_MACHINES))]

    def budget(number: int) -> dict[str, Any]:
        found = racks[number :: size.budgets] or racks[:1]
        selector = {"matchExpressions": [{"key": RACK, "operator": "In", "values": found}]}
        spec = {"machineSelector": selector, "groupBy": [RACK], "maxUnavailable": "10%"}
        return {"metadata": {"name": f"budget-{number}"}, "spec": spec}

    await each(api.create(MACHINE_DISRUPTION_BUDGETS, budget(number)) for number in range(size.budgets))
    await _enforced(api, size.budgets)


async def _plans(kubeconfig: str) -> tuple[float, float]:
    """Return the seconds that a user waits for the plan of an update of all Machines, and of a rollout over a site."""
    with TemporaryDirectory(prefix="unbounded-benchmark-") as folder:
        stages = Path(folder) / "stages.yaml"
        stages.write_text('stages:\n- {name: canary, size: 1, soakSeconds: 60}\n- {name: rest, size: "100%"}\n')
        create = ("machine", "operation", "create", "rollout", "--kind", "HostReboot")
        strategy = ("--selector", f"{LABEL_SITE}=site-0", "--strategy", str(stages))
        update_s = await _plan(kubeconfig, "config", "resume", CONFIGURATION)
        return update_s, await _plan(kubeconfig, *create, *strategy)


async def _plan(kubeconfig: str, *words: str) -> float:
    """Return the seconds that a plan takes, the median of some."""
    command = (str(Path(sys.executable).with_name(PLUGIN)), "plan", *words)
    environment = os.environ | {"KUBECONFIG": kubeconfig}
    taken = []
    for _ in range(PLANS):
        began = time.monotonic()
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=pipe)
        output, _errors = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"the plan failed: {output.decode()[-2000:]}")
        taken.append(time.monotonic() - began)
    print_progress(f"plan {' '.join(words)}: {taken}, {len(output.splitlines())} lines")
    return sorted(taken)[PLANS // 2]


if __name__ == "__main__":
    run_benchmark("rollouts", run)
