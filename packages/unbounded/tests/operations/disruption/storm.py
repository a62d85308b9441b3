"""Storms: schedules of drains under budgets, with crashes, two leaders, and users who meddle, judged at every write."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from tests.operations.disruption.cluster import Cluster, ClusterApi, disruption_of
from tests.operations.disruption.updates import NodeAgents, run_updates
from tests.operations.faults import FAIR, STORM, Incarnation, WeatheredApi
from tests.operations.rollouts import PARENT, RolloutWorld, draw_strategy, finish, meddle
from tests.operations.simulated import Act, Violation
from tests.operations.world import TERMINAL, Process, Running, defaults
from tests.support.virtual_time import virtual_now
from unbounded.api.configuration import (
    MACHINE_CONFIGURATION_VERSIONS,
    MACHINE_CONFIGURATIONS,
    MachineConfigurationVersion,
)
from unbounded.api.core import NODE_LEASES, NODES, PODS, Pod
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import ANNOTATION_CORDONED_BY
from unbounded.api.operation import MACHINE_OPERATIONS, OperationKind
from unbounded.kube.api import Api, ApiError, Forbidden, NotFound, ServerError
from unbounded.kube.clock import seconds_since
from unbounded.operations.reasons import EXECUTOR_SILENT, PAUSED

T = TypeVar("T")
Raw = dict[str, Any]
KINDS: Final = ("HostReboot", "HostReboot", "HostReboot", "HostPowerOff", "HostPowerOn")
STAGED: Final = 0.1  # of the schedules have a rollout
UPDATED: Final = 0.1  # of the schedules have a rolling update
OPEN: Final = ("Preparing", "Draining", "Recreating")  # phases of an update that has started
REFUSING: Final = 0.1  # of the schedules have a webhook that refuses cordons at times
USING: Final = ("Granted", "Cordoned", "Draining", "Drained", "Working")  # stages that need the grant
OBSERVED_S: Final = 15.0  # until the caches of all processes have surely shown a change
WITHDRAWN_S: Final = 20.0  # after a halt, with a machina that works: no update is under way that has deleted no Node
USABLE_S: Final = 60.0  # after the end of the holder, with a Ready Node and a leader: the Node is usable again
SENT_S: Final = 0.1  # from the check of the Lease until the write is on its way
MIN_READY_S: Final = 10.0
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
    pods: Callable[[], list[Raw]] = list
    ready_rules: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, MIN_READY_S)])  # from when, seconds
    cordoned_at: dict[str, float] = field(default_factory=dict)  # Nodes, by a disruption
    maintained_at: dict[str, float] = field(default_factory=dict)  # Nodes, drained for maintenance since their cordon
    ready_since: dict[str, float] = field(default_factory=dict)  # Nodes, but for gaps that a cache may not have shown
    boots: dict[str, str] = field(default_factory=dict)  # boot IDs of Nodes
    renewed_at: dict[str, float] = field(default_factory=dict)  # leases of Nodes
    away_since: dict[str, float] = field(default_factory=dict)  # Nodes that are not Ready
    due_since: dict[str, float] = field(default_factory=dict)  # Nodes that nothing keeps cordoned any more
    leads_since: Callable[[], float] = lambda: math.inf  # since when a leader has worked without a fault around it
    holders: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # of Machines, by UID
    updates: set[str] = field(default_factory=set)  # UIDs of versions to which Nodes were updated
    halted_since: dict[str, float] = field(default_factory=dict)  # rolling updates; absent while they are not halted
    updates_since: Callable[[], float] = lambda: math.inf  # since when machina rolls updates out, as `leads_since`
    acts: list[Act] = field(default_factory=list)  # on hosts
    faults: list[str] = field(default_factory=list)

    def admit(self, kind: Kind[Any], old: Raw | None, new: Raw) -> None:
        self._overdue()
        self._admit(kind, old, new)
        for name in self.nodes:
            if self._is_left_cordoned(name):
                self.due_since.setdefault(name, _now())
            else:
                self.due_since.pop(name, None)

    def _admit(self, kind: Kind[Any], old: Raw | None, new: Raw) -> None:
        name = new["metadata"].get("name", "")
        match kind.kind:
            case "Machine":
                self._lock_taken(name, old or {}, new)
                self._drained(name, old or {}, new)
                self._started(name, old or {}, new)
                self._update_started(name, old or {}, new)
                self.machines[name] = new
                record = new.get("status", {}).get("disruption") or {}
                if record.get("stage", "Waiting") != "Waiting":
                    self.holders[name].add(record["holder"]["uid"])
                    if record["holder"]["uid"] == new["metadata"]["uid"] and record["stage"] == "Drained":
                        self.maintained_at.setdefault(name, _now())
            case "Node":
                self._cordon_removed(name, old or {}, new)
                self.nodes[name] = new
                self._count(name)
                self._observe_ready(name)
            case "Lease" if new["metadata"].get("namespace") == NODE_LEASES:
                self.renewed_at[name] = _now()
            case "MachineOperation":
                uid = new["metadata"]["uid"] if old else name
                self.operations[uid] = new
                if new.get("status", {}).get("phase") in TERMINAL:
                    self.ended_at.setdefault(uid, _now())
            case "MachineConfiguration" if new.get("status", {}).get("rollout", {}).get("phase") == "Halted":
                self.halted_since.setdefault(name, _now())
            case "MachineConfiguration":
                self.halted_since.pop(name, None)
            case "MachineDisruptionBudget":
                self._granted(name, old or {}, new)
                self._grants_ended(name, old or {}, new)
                self.budgets[name] = new
                self._note_ready_rule()

    def gone(self, body: Raw) -> None:
        """Note that an object was deleted."""
        if body["kind"] == "Node":
            self._node_deleted(body["metadata"]["name"], body)
        if body["kind"] == "MachineOperation":
            self.ended_at.setdefault(body["metadata"]["uid"], _now())
        if body["kind"] == "MachineDisruptionBudget":
            self.budgets.pop(body["metadata"]["name"], None)
            self._note_ready_rule()

    def _node_deleted(self, name: str, node: Raw) -> None:
        """Check that a Node is deleted only for an update that has started, of this Node."""
        update = self.machines[name]["status"].get("nodeUpdate") or {}
        if (update.get("phase"), update.get("nodeUID")) != ("Recreating", node["metadata"]["uid"]):
            self.faults.append(f"Node {name} was deleted for {update}")
        for known in (
            self.nodes,
            self.due_since,
            self.cordoned_at,
            self.maintained_at,
            self.available_since,
            self.ready_since,
        ):
            known.pop(name, None)
        self.unavailable_since.setdefault(name, _now())

    def _update_started(self, name: str, old: Raw, new: Raw) -> None:
        """Check that a halted rolling update starts nothing, and that a Node is drained before it is deleted."""
        before, after = old.get("status", {}).get("nodeUpdate") or {}, new.get("status", {}).get("nodeUpdate") or {}
        self.updates |= {after["uid"]} if after else set()
        if after.get("phase") not in OPEN or (before.get("phase"), before.get("uid")) == (after["phase"], after["uid"]):
            return
        halted_s = _now() - self._halted_at(after)
        if halted_s > OBSERVED_S:
            self.faults.append(f"{name} starts {after['phase']} {halted_s:.0f} s after its rolling update was halted")
        record = old["status"].get("disruption") or {}
        is_drained = record.get("stage") == "Drained" and record["holder"]["uid"] == after["uid"]
        if after["phase"] == "Recreating" and not is_drained:
            self.faults.append(f"the Node of {name} is deleted in {record}")

    def _note_ready_rule(self) -> None:
        given = [one["spec"].get("minReadySeconds", MIN_READY_S) for one in self.budgets.values()]
        self.ready_rules.append((_now(), max(given, default=MIN_READY_S)))

    def _least_ready_s(self) -> float:
        """Return the least of the limits that a leader may know now."""
        known = [at for at, _ in self.ready_rules if at < _now() - OBSERVED_S]
        return min(seconds for at, seconds in self.ready_rules if at >= max(known, default=0.0))

    def _count(self, name: str) -> None:
        node, now = self.nodes[name], _now()
        if _is_ready(node) and not node.get("spec", {}).get("unschedulable"):
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
        stages = ("Drained", "Working") if holder == after["uid"] else ("Drained",)  # it had lost the lock
        if record.get("stage") not in stages or holder not in (after["uid"], old["metadata"]["uid"]):
            self.faults.append(f"{after['name']} took the lock of {name} without a drained Node: {record}")
        if holder == after["uid"] and new["status"].get("disruption", {}).get("stage") != "Working":
            self.faults.append(f"{after['name']} took the lock of {name}, whose stage is {new['status']['disruption']}")

    def _started(self, name: str, old: Raw, new: Raw) -> None:
        """Check that a disruption is Working only for a holder that has started."""
        before, after = old.get("status", {}).get("disruption") or {}, new.get("status", {}).get("disruption") or {}
        if after.get("stage") != "Working" or before.get("stage") == "Working":
            return
        uid, status = after["holder"]["uid"], new["status"]
        has_lock = (status.get("activeOperation") or {}).get("uid") == uid
        has_claimed = self.operations.get(uid, {}).get("status", {}).get("execution")
        if not (has_lock or has_claimed or (status.get("nodeUpdate") or {}).get("phase") == "Recreating"):
            self.faults.append(f"{name} is Working for {after['holder']}, which has not started")

    def _drained(self, name: str, old: Raw, new: Raw) -> None:
        """Check that no pod is left on a drained Node, unless the drain or the gate was late, or the pod is new."""
        before, after = old.get("status", {}).get("disruption") or {}, new.get("status", {}).get("disruption") or {}
        if (before.get("stage"), after.get("stage")) != ("Draining", "Drained"):
            return
        if (
            "onTimeout is Proceed" in after["message"]
            or "started before" in after["message"]
            or not _is_ready(self.nodes.get(name, {}))
        ):
            return
        now = virtual_now()
        left = [
            pod["metadata"]["name"]
            for pod in self.pods()
            if pod["spec"]["nodeName"] == name and seconds_since(pod["metadata"]["creationTimestamp"], now) > OBSERVED_S
        ]
        if left:
            self.faults.append(f"{name} is drained, and has pods {left}")

    def _cordon_removed(self, name: str, old: Raw, new: Raw) -> None:
        was, is_now = old.get("spec", {}).get("unschedulable"), new.get("spec", {}).get("unschedulable")
        ours = ANNOTATION_CORDONED_BY in old.get("metadata", {}).get("annotations", {})
        if was and not is_now and not ours and not self.user:
            self.faults.append(f"the cordon of a user was removed from {name}")

        if was and not is_now and ours and not self.user:
            self._returned(name, old)
        if is_now and ANNOTATION_CORDONED_BY in new["metadata"].get("annotations", {}):
            if name not in self.cordoned_at:  # an earlier holder that never started has nothing to prove
                record = self.machines[name]["status"].get("disruption") or {}
                self.holders[name] = {record["holder"]["uid"]} if record else set()
            self.cordoned_at.setdefault(name, _now())
        elif self.cordoned_at.pop(name, None) is not None:
            self.holders.pop(name, None)
            self.maintained_at.pop(name, None)

    def _returned(self, name: str, node: Raw) -> None:
        """Check that a Node on whose host a holder has acted is Ready for as long as the budgets say."""
        since = self.cordoned_at.get(name, math.inf)
        if self.machines[name]["status"].get("disruption", {}).get("reason") in (EXECUTOR_SILENT, PAUSED):
            return  # the next attempt begins with a drain of its own
        acts = [one for one in self.acts if one.machine == name and one.at >= since and self._is_disruptive(one)]
        maintained_at = self.maintained_at.get(name, math.inf)  # one that started before needs no drained Node
        acted = [one for one in acts if one.at >= maintained_at or one.operation in self.holders[name]]
        if not acted:
            return
        if not _is_ready(node):
            self.faults.append(f"Node {name} was uncordoned after {acted[-1]}, and is not Ready")
        ready_s = _now() - self.ready_since.get(name, _now())
        if ready_s < self._least_ready_s():
            self.faults.append(f"Node {name} was uncordoned {ready_s:.1f} s after it was Ready, after {acted[-1]}")
        if self.renewed_at.get(name, math.inf) <= self.ready_since.get(name, 0.0):
            self.faults.append(f"Node {name} was uncordoned before a new lease, after {acted[-1]}")

    def _is_disruptive(self, act: Act) -> bool:
        kind = self.operations.get(act.operation, {}).get("spec", {}).get("operationKind")
        return kind is not None and OperationKind(kind).is_disruptive

    def _observe_ready(self, name: str) -> None:
        now = _now()
        if not _is_ready(self.nodes[name]):
            self.away_since.setdefault(name, now)
        else:
            away_s = now - self.away_since.pop(name, now)
            boot = self.nodes[name]["status"].get("nodeInfo", {}).get("bootID", "")
            if boot != self.boots.get(name) or away_s > OBSERVED_S:
                self.ready_since[name] = now
            self.boots[name] = boot

    def _is_left_cordoned(self, name: str) -> bool:
        """Return whether a Node is Ready and cordoned for what has ended."""
        node, machine = self.nodes[name], self.machines.get(name, {})
        holder, status = node["metadata"].get("annotations", {}).get(ANNOTATION_CORDONED_BY), machine.get("status", {})
        if holder is None or not _is_ready(node) or status.get("activeOperation"):
            return False
        record = status.get("disruption") or {}
        next_one = record.get("holder", {}).get("uid") if record.get("stage") != "Waiting" else None
        return self._has_ended(holder, machine) and (next_one is None or self._has_ended(next_one, machine))

    def _has_ended(self, uid: str, machine: Raw) -> bool:
        if uid == machine["metadata"]["uid"]:
            return not machine["spec"].get("maintenance", {}).get("enabled")
        update = machine["status"].get("nodeUpdate") or {}
        if update.get("uid") == uid:
            return update["phase"] not in ("Draining", "Recreating")
        return uid in self.ended_at or uid in self.updates

    def _overdue(self) -> None:
        for name, since in self.due_since.items():
            late_s = _now() - max(since, self.leads_since())
            if late_s > USABLE_S:
                record = self.machines[name]["status"].get("disruption")
                self.faults.append(f"Node {name} is cordoned {late_s:.0f} s after nothing needs it: {record}")
        self._continued()

    def _continued(self) -> None:
        """Check that a halted rolling update withdraws what it has begun, unless a Node is deleted already."""
        updating_since = self.updates_since() if self.halted_since else math.inf
        for name, machine in self.machines.items():
            update = machine.get("status", {}).get("nodeUpdate") or {}
            if update.get("phase") not in ("Preparing", "Draining"):
                continue
            halted_s = _now() - max(self._halted_at(update), updating_since)
            if halted_s > WITHDRAWN_S:
                self.faults.append(f"{name} is {update['phase']} {halted_s:.0f} s after its rolling update was halted")

    def _halted_at(self, update: Raw) -> float:
        return self.halted_since.get(update["version"].rpartition("-v")[0], math.inf)

    def sent(self, what: str, acts_until: float) -> None:
        """Check that a write of the controller leaves within its Lease."""
        if _now() > acts_until + SENT_S:
            self.faults.append(f"{what} was sent {_now() - acts_until:.1f} s after the end of the Lease")

    def _grants_ended(self, name: str, old: Raw, new: Raw) -> None:
        """Check that no grant ends that a disruption still uses."""
        after = {(one["machine"], one["holder"]["uid"]) for one in new.get("status", {}).get("grants", ())}
        for grant in old.get("status", {}).get("grants", ()):
            record = self.machines.get(grant["machine"], {}).get("status", {}).get("disruption") or {}
            uses = record.get("holder", {}).get("uid") == grant["holder"]["uid"] and record["stage"] in USING
            if uses and (grant["machine"], grant["holder"]["uid"]) not in after:
                self.faults.append(f"{name}: the grant of {grant['machine']} ended in {record}")

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
        stages = ("Draining", "Drained", "Working")  # a call may be on its way when the last pod has left
        is_cordoned = self.nodes.get(pod.spec.node_name, {}).get("spec", {}).get("unschedulable")
        if record.get("stage") not in (*stages, *(("Granted",) if is_cordoned else ())):
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


def _is_ready(node: Raw) -> bool:
    found = node.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in found)


def _group(budget: Raw, machine: Raw) -> str:
    labels = machine["metadata"].get("labels", {})
    return "/".join(labels.get(key, "") for key in budget["spec"].get("groupBy", ()))


def _now() -> float:
    return asyncio.get_running_loop().time()


def _template(version: str) -> Raw:
    return {"kubernetes": {"version": version}}


def _is_last(version: MachineConfigurationVersion) -> bool:
    kubernetes = version.spec.template.kubernetes
    return kubernetes is not None and kubernetes.version == "v1.34.0"


class JudgedApi(ClusterApi):
    def __init__(self, judge: Judge, **options: Any) -> None:
        super().__init__(**options)
        self._judge = judge

    async def end_pod(self, pod: Pod) -> None:
        self._judge.evicted(pod)
        await super().end_pod(pod)

    def _remove(self, collection: Any, key: Any, old: Any) -> None:
        self._judge.gone(old.body)
        super()._remove(collection, key, old)


class LeaderApi(WeatheredApi):
    """The API as a leader calls it, which is told to the judge."""

    def __init__(self, judge: Judge, api: Api, life: Incarnation) -> None:
        super().__init__(api, life)
        self._judge = judge

    async def _write(self, what: str, effect: Callable[[], Awaitable[T]], *, conflicts: bool) -> T:
        self._judge.sent(what, self._life.epoch.acts_until())
        return await super()._write(what, effect, conflicts=conflicts)


class Leaders:
    """Leaders of the disruption controller one after another. One that lost its Lease lives on beside its successor."""

    def __init__(self, process: Process, chance: random.Random) -> None:
        self._process = process
        self._chance = chance
        self._leader: tuple[Running, list[float]] | None = None
        self.calm = asyncio.Event()
        self.fair_since = 0.0

    def since(self) -> float:
        """Return since when a leader has worked, in fair weather, and has not stood still."""
        if self._leader is None:
            return math.inf
        (running, until), now = self._leader, _now()
        life = running.life
        is_gone = life.dead.is_set() or until[0] < now
        if is_gone or life.weather is not FAIR or any(begin <= now < end for begin, end in life.freezes):
            return math.inf
        return max(life.born_at, self.fair_since, *(end for _begin, end in life.freezes))

    def _lead(self, crash_at: int | None) -> tuple[Running, list[float]]:
        running, until = self._process.start(crash_at=crash_at), [float("inf")]
        running.life.epoch = replace(running.life.epoch, acts_until=lambda: until[0])
        self._leader = running, until
        return running, until

    async def keep(self) -> None:
        chance, former = self._chance, list[Running]()
        try:
            while not self.calm.is_set():
                running, until = self._lead(chance.randrange(80) if chance.random() < 0.5 else None)
                for one in former[:-1]:  # the last of them lives on beside its successor
                    await one.stop()
                former = [*former[-1:], running]
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
        self.world = RolloutWorld(self.chance, weather=STORM if self.chance.random() < 0.6 else FAIR)
        self.stages = random.Random(f"stages of {number}")  # so that without them a schedule is what it is
        self.webhook = random.Random(f"webhook of {number}")  # likewise
        self.updates = random.Random(f"updates of {number}")
        self.api = JudgedApi(
            self.judge,
            defaults=defaults,
            admit=self._admit,
            now=virtual_now,
            namespaces=("default", "kube-system", "unbounded-kube", "kube-node-lease"),
        )
        self.world.api = self.api
        self.judge.acts = self.world.outside.acts
        self.judge.pods = lambda: [one.body for one in self.api._collection(PODS).versions.values()]
        self.cluster = Cluster(self.world, self.api)
        self.agents = NodeAgents(self.cluster)
        self.wanted = 0  # versions of the configuration
        self.machina: Leaders | None = None
        self.names: list[str] = []
        self.is_calm = False
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
        leaders = Leaders(Process(world, "disruption", self._disrupt), chance)
        self.judge.leads_since = leaders.since
        self._start(leaders.keep())
        for process in (world.redfish(), world.steward()):
            self._start(process.keep(crashes=[chance.randrange(80) for _ in range(chance.randrange(3))]))
        if chance.random() < 0.8:
            await self._budget("first")
        await asyncio.sleep(chance.uniform(0, 20))
        if self.stages.random() < STAGED:
            await self._rollout()
        if self.updates.random() < UPDATED:
            await self._update(machines)
        if self.webhook.random() < REFUSING:
            self._start(self._refuse_cordons())
        for number in range(chance.randint(1, 5)):
            await self._operation(f"op{number}", chance.choice(machines))
            await asyncio.sleep(chance.uniform(0, 30))
        for _ in range(chance.randrange(8)):
            await asyncio.sleep(chance.uniform(0, 40))
            await self._meddle(chance.choice(machines))
        if self.machina is not None:
            await asyncio.sleep(self.updates.uniform(60, 400))  # until an update may have failed, and been halted
        await self._calm(leaders, machines)

    def _disrupt(self, life: Incarnation, _api: Api) -> Coroutine[Any, Any, None]:
        return disruption_of(life, LeaderApi(self.judge, self.api, life), self.world.announce)

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

    async def _rollout(self) -> None:
        """Create an operation on all Machines in stages, and let its users do what they do."""
        chance, selector = self.stages, {"matchLabels": {"unbounded-cloud.io/site": "lab"}}
        policy, most = draw_strategy(chance), chance.randint(1, 3)
        drain = {"mode": "Always", "timeoutSeconds": chance.choice((30, 600))}
        await self.world.operation(
            PARENT, "HostReboot", machineSelector=selector, strategy=policy, maxConcurrent=most, drain=drain
        )

        async def users() -> None:
            for _ in range(chance.randrange(8)):
                await asyncio.sleep(chance.uniform(0, 40))
                with contextlib.suppress(ApiError):
                    await meddle(self.world, chance, chance.choice(("pause", "resume", "retry", "fail", "cancel")))

        self._start(users())

    async def _update(self, machines: list[str]) -> None:
        """Roll versions of a configuration out, with leaders one after another, and let its users do what they do."""
        chance = self.updates
        rolling = {"onFailure": chance.choice(("Halt", "Halt", "Rollback")), "maxFailures": chance.choice((1, 1, 2))}
        strategy = {"type": "RollingUpdate", "maxUnavailable": chance.randint(1, 2), "rollingUpdate": rolling}
        selector = {"matchLabels": {"unbounded-cloud.io/site": "lab"}}
        spec = {"template": _template("v1.33.0"), "machineSelector": selector, "updateStrategy": strategy}
        await self.api.create(MACHINE_CONFIGURATIONS, {"metadata": {"name": "c"}, "spec": spec})
        for name in machines:
            await self.agents.start_agent(name, "c-v1")
        process = Process(self.world, "machina", run_updates)
        self.machina = Leaders(process, chance)
        self.judge.updates_since = self.machina.since
        self._start(self.machina.keep())

        async def users() -> None:
            await asyncio.sleep(chance.uniform(0, 20))
            if not self.is_calm:
                await self._want()
            for _ in range(chance.randrange(8)):
                await asyncio.sleep(chance.uniform(0, 120))
                if self.is_calm:
                    return
                match chance.choice(("want", "pause", "resume", "break", "mend")):
                    case "want":
                        await self._want()
                    case "break":
                        await self._break()
                    case "mend":
                        self.agents.broken.clear()
                    case what:
                        await self._roll(paused=what == "pause")

        self._start(users())

    async def _want(self) -> None:
        """Be the user who wants another version; two in three are broken."""
        self.wanted += 1
        if self.updates.random() < 0.65:
            await self._break()
        await self.api.patch(MACHINE_CONFIGURATIONS, "c", {"spec": {"template": _template(f"v1.33.{self.wanted}")}})

    async def _break(self) -> None:
        """Let no node be created from the newest version, and from the next one."""
        newest = len(await self._versions())
        self.agents.broken |= {f"c-v{newest}", f"c-v{newest + 1}"}

    async def _versions(self) -> Sequence[MachineConfigurationVersion]:
        return (await self.api.list(MACHINE_CONFIGURATION_VERSIONS)).items

    async def _finish_update(self) -> None:
        """Let another version be good, and check that all Nodes get it."""
        self.agents.broken.clear()
        await self._roll(paused=False)
        await self.api.patch(MACHINE_CONFIGURATIONS, "c", {"spec": {"template": _template("v1.34.0")}})
        try:
            async with asyncio.timeout(3 * 3600):
                while True:
                    found = (await self.api.get(MACHINE_CONFIGURATIONS, "c")).status.rollout
                    last = [one.spec.version for one in await self._versions() if _is_last(one)]
                    if found is not None and found.phase == "Complete" and found.version in last:
                        return
                    await asyncio.sleep(5)
        except TimeoutError:
            machines = (await self.api.list(MACHINES)).items
            states = [(one.name, one.status.node_update, one.status.disruption) for one in machines]
            raise Violation(f"the rolling update does not complete: {found}, {states}") from None

    async def _roll(self, **settings: Any) -> None:
        strategy = {"updateStrategy": {"rollingUpdate": settings}}
        await self.api.patch(MACHINE_CONFIGURATIONS, "c", {"spec": strategy})

    async def _refuse_cordons(self) -> None:
        """Let a webhook refuse cordons, or be down, for a while; several times."""
        while not self.is_calm:
            self.api.refuses = self.webhook.choice((Forbidden, ServerError))
            await asyncio.sleep(self.webhook.uniform(0, 120))
            self.api.refuses = None
            await asyncio.sleep(self.webhook.uniform(0, 60))

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
        leaders.fair_since = _now()
        self.api.guarded.clear()
        self.is_calm = True
        self.api.refuses = None
        self.cluster.down.clear()
        for name in ("first", "second"):  # 50% of one Machine is none
            with contextlib.suppress(ApiError):
                await self.api.patch(MACHINE_DISRUPTION_BUDGETS, name, {"spec": {"maxUnavailable": 1}})
        for name in machines:
            await self.api.patch(MACHINES, name, {"spec": {"maintenance": {"enabled": False}}})
            with contextlib.suppress(NotFound):  # a rolling update has deleted it
                await self._free(name)
        self._start(self._switch_on(machines))
        if PARENT in self.world.kinds:
            await finish(world, self.stages)
        if self.machina is not None:
            self.machina.calm.set()
            self.machina.fair_since = _now()
            await self._finish_update()
        for name in self.names:
            with contextlib.suppress(ApiError):
                await world.ended(name, within_s=3 * 3600)
        await asyncio.sleep(CALM_S)
        self.judge.at_rest()
        self.judge.check()
        world.judge()
        for task in (*self.tasks, *self.cluster.kubelets.values(), *self.agents.agents):
            task.cancel()

    async def _free(self, node: str) -> None:
        """Remove the hold, and the cordon of a user."""
        await self.api.patch(NODES, node, {"metadata": {"annotations": {"hold.unbounded-cloud.io/app": None}}})
        if ANNOTATION_CORDONED_BY not in (await self.api.get(NODES, node)).metadata.annotations:
            self.judge.user = True
            await self.cluster.cordon(node, unschedulable=False)
            self.judge.user = False

    async def _switch_on(self, machines: list[str]) -> None:
        """Be the user who switches hosts on by hand, which a HostPowerOff has left off."""
        while True:
            await asyncio.sleep(30)
            for name in machines:
                host, machine = self.world.outside.host(name), await self.api.get(MACHINES, name)
                if host.power != "On" and machine.status.active_operation is None:
                    host.on_at = _now()
