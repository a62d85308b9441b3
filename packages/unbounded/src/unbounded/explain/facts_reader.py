"""Reading of the facts, in few requests: eight where the command names the kind of its subject, and one more
for a Machine with a MachineConfiguration.

Only the subject has to exist and be readable. Any other fact that cannot be read is left out and reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

from unbounded.api.conditions import ConditionStatus, ConditionType
from unbounded.api.configuration import MACHINE_CONFIGURATIONS, MachineConfiguration
from unbounded.api.container_cloud.cluster import CLUSTERS, Cluster, MachinePool
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS, BareMetalHost
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.container_cloud.names import LABEL_CLUSTER, LABEL_MACHINE_POOL, scoped_name
from unbounded.api.core import CONFIG_MAPS, EVENTS, LEASES, NODE_LEASES, NODES, ConfigMap, Event, Lease, Node
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS, MachineDisruptionBudget
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Condition, Kind
from unbounded.api.names import CONFIGMAP_OPERATIONS, LABEL_MACHINE, LABEL_PARENT, LEASE_SUPERVISOR, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationKind
from unbounded.containercloud.hosts.model import consumer_of, host_of_machine, machine_of_host
from unbounded.explain.container_cloud import host_of, unready, unready_machines
from unbounded.explain.facts import CONTAINER_CLOUD, ExplainFacts, LeaderLease, leases_of, resource_of
from unbounded.explain.links import UnreadFact
from unbounded.explain.operations import blocking
from unbounded.kube.api import ApiError, Forbidden, NotFound, ObjectList, key_of, version_number
from unbounded.kube.clock import WallClock, utc_now
from unbounded.operations import reasons
from unbounded.operations.component_record import COMPONENTS, absent_in
from unbounded.operations.executor_selection import ExecutorKind, bmc_of, executor_name
from unbounded.operations.machine_counters import due

EVENTS_OF_CLUSTER: Final = "default"  # the namespace of events on cluster-scoped objects
LEASE_S: Final = 15.0
POLL_S: Final = 1.0

T = TypeVar("T")


class ReadApi(Protocol):
    """Reads of an explanation: those of an `Api`, or of watch caches that hold only what the reader may read.

    A list has to be whole. Both raise the ApiErrors of an `Api`.
    """

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T: ...

    async def list(
        self, kind: Kind[T], *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> ObjectList[T]: ...


@dataclass
class FactsReader:
    """One reading of the facts.

    Args:
        spares: errors after which a fact is left out; others end the reading. Of Machines and operations, only
            Forbidden leaves one out: an unread one would count as missing.
        is_late: tells of the name of a Lease whether it was not renewed for LEASE_S, from a caller that observes all
            Leases. Without, the reader observes those that look old, for as long.
    """

    api: ReadApi
    now: WallClock = utc_now
    spares: type[ApiError] = Forbidden
    is_late: Callable[[str], bool] | None = None
    unread: list[UnreadFact] = field(default_factory=list)
    watched: set[str] = field(default_factory=set)  # further Leases whose holders count

    async def of_machine(self, machine: Machine) -> ExplainFacts:
        """Read the facts for a chain from this Machine."""
        around = await self._around(machine.name, machine)
        return await self._completed(around, None)

    async def of_operation(self, operation: MachineOperation) -> ExplainFacts:
        """Read the facts for a chain from this operation."""
        if operation.spec.machine_ref is None:
            return await self._of_parent(operation)
        around = await self._around(operation.spec.machine_ref, None)
        return await self._completed(_with(around, (operation,)), operation)

    async def of_claim(self, machine: ContainerCloudMachine) -> ExplainFacts:
        """Read the facts for a chain from this Machine of cluster.k8s.io."""
        key, name = key_of(machine), host_of(machine)
        host: BareMetalHost | None = None
        if name is not None:
            host = await self._got(BARE_METAL_HOSTS, name.name, "its host", name.namespace)
        facts = await self._around_host(host)
        if name is None:
            hosts = await self._listed(BARE_METAL_HOSTS, "hosts of its namespace", namespace=key.namespace)
            facts = replace(facts, hosts={str(key_of(one)): one for one in hosts})
        cluster: Cluster | None = None
        if machine.cluster:
            cluster = await self._got(CLUSTERS, machine.cluster, "its Cluster", key.namespace)
        facts = replace(facts, claims={str(key): machine}, unread=tuple(self.unread))
        return facts if cluster is None else replace(facts, clusters={str(key_of(cluster)): cluster})

    async def of_host(self, host: BareMetalHost) -> ExplainFacts:
        """Read the facts for a chain from this host."""
        return await self._around_host(host)

    async def of_cluster(self, cluster: Cluster) -> ExplainFacts:
        """Read the facts for a chain from this Cluster: to its update, or to its first Machine that is not ready."""
        key = key_of(cluster)
        name = scoped_name(key.namespace, key.name)
        configuration = await self._got(MACHINE_CONFIGURATIONS, name, "its MachineConfiguration")
        labels = f"{LABEL_CLUSTER}={key.name}"
        machines = await self._listed(CONTAINER_CLOUD_MACHINES, "its Machines", namespace=key.namespace, labels=labels)
        claims = {str(key_of(one)): one for one in machines}
        facts = await self._of_first(unready_machines(cluster, ExplainFacts(claims=claims)))
        known = {} if configuration is None else {name: configuration}
        return replace(
            facts,
            claims=claims,
            clusters={str(key): cluster},
            configurations={**facts.configurations, **known},
            unread=tuple(self.unread),
        )

    async def of_pool(self, pool: MachinePool) -> ExplainFacts:
        """Read the facts for a chain from this MachinePool: to its first Machine that is not ready."""
        key, labels = key_of(pool), f"{LABEL_MACHINE_POOL}={pool.name}"
        machines = await self._listed(CONTAINER_CLOUD_MACHINES, "its Machines", namespace=key.namespace, labels=labels)
        claims = {str(key_of(one)): one for one in machines}
        facts = await self._of_first(unready(machines))
        cluster: Cluster | None = await self._got(CLUSTERS, pool.cluster, "its Cluster", key.namespace)
        known = {} if cluster is None else {str(key_of(cluster)): cluster}
        pools = {str(key): pool}
        return replace(facts, claims=claims, pools=pools, clusters=known, unread=tuple(self.unread))

    async def related(self, found: Machine | BareMetalHost | ContainerCloudMachine) -> ExplainFacts:
        """Read the objects around a Machine: its operations, Node, host and claim. The state of processes is not read.

        Args:
            found: the Machine, its host, or the Machine of cluster.k8s.io that has claimed that.
        """
        machine = found if isinstance(found, Machine) else None
        host = found if isinstance(found, BareMetalHost) else None
        claim = found if isinstance(found, ContainerCloudMachine) else None
        key = host_of_machine(machine) if machine is not None else None if claim is None else host_of(claim)
        if host is None and key is not None:
            host = await self._got(BARE_METAL_HOSTS, key.name, "its host", key.namespace)
        consumer = None if host is None else consumer_of(host)
        if claim is None and consumer is not None:
            claim = await self._got(CONTAINER_CLOUD_MACHINES, consumer.name, "its claim", consumer.namespace)
        if machine is None and host is not None and (claim is None or consumer == key_of(claim)):
            machine = await self._machine(machine_of_host(host), None)
        facts = ExplainFacts() if machine is None else await self._with_own(machine)
        return replace(
            facts,
            hosts={} if host is None else {str(key_of(host)): host},
            claims={} if claim is None else {str(key_of(claim)): claim},
            unread=tuple(self.unread),
            read_at=self.now(),
        )

    async def _with_own(self, machine: Machine) -> ExplainFacts:
        """Read the operations, the Node, the configuration and the budgets of a Machine."""
        operations, node = await asyncio.gather(
            self._listed(MACHINE_OPERATIONS, "its operations", fields=f"spec.machineRef={machine.name}"),
            self._node(machine),
        )
        facts = ExplainFacts(
            machines={machine.name: machine},
            nodes={} if node is None else {machine.name: node},
            configurations=await self._configuration(machine),
        )
        return await self.with_budgets(_with(facts, operations), machine.status.disruption_budgets)

    async def _configuration(self, machine: Machine) -> dict[str, MachineConfiguration]:
        """Read the MachineConfiguration that a Machine is bound to, by its name."""
        ref = machine.spec.configuration_ref
        if ref is None:
            return {}
        bound = await self._got(MACHINE_CONFIGURATIONS, ref.name, "its MachineConfiguration")
        return {} if bound is None else {ref.name: bound}

    async def _of_first(self, machines: Sequence[ContainerCloudMachine]) -> ExplainFacts:
        """Read the facts for a chain from the first of some Machines; for none, only who is alive."""
        return await (self.of_claim(machines[0]) if machines else self._around_host(None))

    async def _around_host(self, host: BareMetalHost | None) -> ExplainFacts:
        """Read a host's Machine and its surroundings, and whether container-cloud is alive."""
        self.watched.update(leases_of(CONTAINER_CLOUD))
        target = None if host is None else await self._machine(machine_of_host(host), None)
        if target is not None:
            if target.site:
                self.watched.update(leases_of(f"{ExecutorKind.METALMAN}/{target.site}"))
            facts = await self.of_machine(target)
        else:
            facts = await self._completed(ExplainFacts(leader_leases=await self._beats()), None)
        return facts if host is None else replace(facts, hosts={str(key_of(host)): host})

    async def _of_parent(self, parent: MachineOperation) -> ExplainFacts:
        label = parent.name if len(parent.name) <= 63 else parent.metadata.uid
        children, beats = await asyncio.gather(
            self._listed(MACHINE_OPERATIONS, "its operations", labels=f"{LABEL_PARENT}={label}"),
            self._beats(),
        )
        facts = _with(ExplainFacts(leader_leases=beats), (parent, *children))
        child = blocking(parent, facts)
        if child is None:
            return await self._completed(facts, parent)
        around = await self._around(child.spec.machine_ref or "", None, beats)
        return await self._completed(_with(around, (parent, *children)), child)

    async def _around(
        self, name: str, machine: Machine | None, beats: dict[str, LeaderLease] | None = None
    ) -> ExplainFacts:
        """Read a Machine, the operations on it, and its pause."""
        found, operations, pause, leases = await asyncio.gather(
            self._machine(name, machine),
            self._listed(MACHINE_OPERATIONS, "operations on the Machine", fields=f"spec.machineRef={name}"),
            self._pause(),
            self._beats(beats),
        )
        facts = ExplainFacts(machines={} if found is None else {name: found}, leader_leases=leases, pause=pause)
        facts = _with(facts if found is not None else replace(facts, sites=await self._sites()), operations)
        return await self._with_sharing(facts, found)

    async def _with_sharing(self, facts: ExplainFacts, machine: Machine | None) -> ExplainFacts:
        """Add the Machines with the same BMC and the operations that hold their locks, if a condition reports such
        Machines.
        """
        if machine is None or not any(_names_a_duplicate(one) for one in machine.status.conditions):
            return facts
        bmc = bmc_of(machine)
        listed: tuple[Machine, ...] = await self._listed(MACHINES, "Machines with the same BMC")
        others = [one for one in listed if one.name != machine.name and bmc_of(one) == bmc]
        holders = [one.status.active_operation for one in others]
        held: list[MachineOperation] = []
        for holder in holders:
            if holder is not None:
                operation = await self._got(MACHINE_OPERATIONS, holder.name, "the holder of its lock")
                held += [operation] if operation is not None else []
        facts = replace(facts, machines={**facts.machines, **{one.name: one for one in others}})
        return _with(facts, tuple(held))

    async def _completed(self, facts: ExplainFacts, operation: MachineOperation | None) -> ExplainFacts:
        """Add the Node, the configuration, the place of the controllers, and the liveness of the relevant processes."""
        machine = next(iter(facts.machines.values()), None)
        node, facts = await asyncio.gather(self._node(machine), self._with_components(facts))
        if machine is not None:
            facts = replace(facts, configurations=await self._configuration(machine))
        record = None if machine is None else machine.status.disruption
        if record is not None and record.reason == reasons.WAITING_FOR_BUDGET:
            facts = await self.with_budgets(facts, [(record.held_by or "").removeprefix("MachineDisruptionBudget ")])
        if machine is not None:
            facts = await self._with_node(facts, machine, node)
        leases = _leases_of(machine, operation, facts) | self.watched
        facts = replace(facts, leader_leases=await self._watched(facts, leases))
        return replace(facts, unread=tuple(self.unread), read_at=self.now())

    async def with_budgets(self, facts: ExplainFacts, names: Iterable[str]) -> ExplainFacts:
        """Add the disruption budgets of these names that exist and can be read."""
        budgets = dict(facts.budgets)
        for name in filter(None, names):
            budget: MachineDisruptionBudget | None = await self._got(
                MACHINE_DISRUPTION_BUDGETS, name, "its disruption budgets"
            )
            budgets |= {} if budget is None else {name: budget}
        return replace(facts, budgets=budgets, unread=tuple(self.unread))

    async def of_all(self, kind: OperationKind) -> ExplainFacts:
        """Read the facts for a forecast of an operation of this kind on any Machines."""
        machines, operations, nodes, pause, beats = await asyncio.gather(
            self._listed(MACHINES, "Machines"),
            self._listed(MACHINE_OPERATIONS, "operations"),
            self._listed(NODES, "Nodes"),
            self._pause(),
            self._beats(),
        )
        facts = ExplainFacts(
            machines={machine.name: machine for machine in machines},
            operations={operation.name: operation for operation in operations},
            nodes={node.metadata.labels.get(LABEL_MACHINE, node.metadata.name): node for node in nodes},
            leader_leases=beats,
            pause=pause,
        )
        facts = await self._with_components(facts)
        executors = {name for machine in machines if (name := executor_name(kind, machine)) is not None}
        names = {lease for executor in executors for lease in leases_of(executor)}
        return replace(facts, leader_leases=await self._watched(facts, names), unread=tuple(self.unread))

    async def _with_node(self, facts: ExplainFacts, machine: Machine, node: Node | None) -> ExplainFacts:
        """Add the Node and its lease; for a Machine without a Node, its Events."""
        if node is None:
            about = f"involvedObject.kind=Machine,involvedObject.name={machine.name}"
            events = await self._listed(EVENTS, "Events", namespace=EVENTS_OF_CLUSTER, fields=about)
            own = [one for one in events if one.involved_object.uid in (None, machine.metadata.uid)]
            return replace(facts, events=tuple(sorted(own, key=_last)))
        lease = await self._got(LEASES, node.metadata.name, "the Node's lease", NODE_LEASES)
        leases = {} if lease is None else {machine.name: lease}
        return replace(facts, nodes={machine.name: node}, node_leases=leases)

    async def _node(self, machine: Machine | None) -> Node | None:
        if machine is None:
            return None
        kubernetes = machine.spec.kubernetes
        ref = kubernetes.node_ref if kubernetes is not None else None
        return await self._got(NODES, ref.name if ref is not None else machine.name, "its Node")

    async def _machine(self, name: str, known: Machine | None) -> Machine | None:
        if known is not None:
            return known
        return await self._got(MACHINES, name, "the Machine")

    async def _sites(self) -> frozenset[str]:
        return frozenset(site for machine in await self._listed(MACHINES, "Machines") if (site := machine.site))

    async def _pause(self) -> ConfigMap | None:
        return await self._got(CONFIG_MAPS, CONFIGMAP_OPERATIONS, "the pause of all operations", NAMESPACE)

    async def _with_components(self, facts: ExplainFacts) -> ExplainFacts:
        """Add whether the server itself runs the controllers, so that there is no Lease of machina."""
        if facts.leader_leases is None or LEASE_SUPERVISOR in facts.leader_leases:
            return facts
        found = await self._got(CONFIG_MAPS, COMPONENTS, "the state of the controllers", NAMESPACE)
        return facts if found is None else replace(facts, embedded=True, absent=absent_in(found.data))

    async def _beats(self, known: dict[str, LeaderLease] | None = None) -> dict[str, LeaderLease] | None:
        if known is not None:
            return known
        try:
            found = await self.api.list(LEASES, namespace=NAMESPACE)
        except self.spares as error:
            self._leave_out(LEASES, "Leases", error)
            return None
        return {lease.metadata.name: leader_lease(lease) for lease in found.items}

    # Liveness

    async def _watched(self, facts: ExplainFacts, leases: set[str]) -> dict[str, LeaderLease] | None:
        """Watch the relevant Leases that look old: a clock is no proof, a missing renewal is. Returns all Leases."""
        if facts.leader_leases is None or facts.embedded:
            return None if facts.leader_leases is None else dict(facts.leader_leases)
        names = {LEASE_SUPERVISOR, *leases}
        suspects = [beat for name, beat in facts.leader_leases.items() if name in names and self._is_suspect(beat)]
        watched = await asyncio.gather(*map(self._watch, suspects))
        return {**facts.leader_leases, **{beat.name: beat for beat in watched}}

    def _is_suspect(self, beat: LeaderLease) -> bool:
        if not beat.holder:
            return False
        try:
            renewed = datetime.fromisoformat(beat.renewed)
        except ValueError:
            return True
        return abs((self.now() - renewed).total_seconds()) > LEASE_S

    async def _watch(self, beat: LeaderLease) -> LeaderLease:
        """Poll a Lease until it is renewed, or its duration has passed, unless the caller observes it."""
        if self.is_late is not None:
            return replace(beat, unrenewed_s=LEASE_S) if self.is_late(beat.name) else beat
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - began < LEASE_S:
            await asyncio.sleep(POLL_S)
            lease = await self._got(LEASES, beat.name, "Leases", NAMESPACE)
            if lease is None or leader_lease(lease) != beat:
                return beat if lease is None else leader_lease(lease)
        return replace(beat, unrenewed_s=LEASE_S)

    async def late_leases(self) -> frozenset[str]:
        """Watch all Leases that look old; return the names of those that are not renewed."""
        suspects = [beat for beat in (await self._beats() or {}).values() if self._is_suspect(beat)]
        watched = await asyncio.gather(*map(self._watch, suspects))
        return frozenset(beat.name for beat in watched if beat.unrenewed_s)

    # Requests

    async def _got(self, kind: Kind[T], name: str, what: str, namespace: str = "") -> T | None:
        try:
            return await self.api.get(kind, name, namespace=namespace)
        except NotFound:
            return None
        except self._spared(kind) as error:
            self._leave_out(kind, what, error)
            return None

    async def _listed(
        self, kind: Kind[T], what: str, *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> tuple[T, ...]:
        try:
            return (await self.api.list(kind, namespace=namespace, labels=labels, fields=fields)).items
        except self._spared(kind) as error:
            self._leave_out(kind, what, error)
            return ()

    def _spared(self, kind: Kind[T]) -> type[ApiError]:
        return Forbidden if kind.plural in {MACHINES.plural, MACHINE_OPERATIONS.plural} else self.spares

    def _leave_out(self, kind: Kind[Any], what: str, error: ApiError) -> None:
        code, why = "Unreadable", f"it cannot be read: {error}"
        if isinstance(error, Forbidden):  # its message has the name of the object
            code, why = "Forbidden", "you have no permission to read it"
        fact = UnreadFact(resource_of(kind), what, code, why)
        if fact not in self.unread:  # some facts are read several times
            self.unread.append(fact)


def _names_a_duplicate(reported: Condition) -> bool:
    return reported.type == ConditionType.BMC_EXCLUSIVE and reported.status == ConditionStatus.FALSE


def _with(facts: ExplainFacts, operations: Iterable[MachineOperation]) -> ExplainFacts:
    return replace(facts, operations={**facts.operations, **{one.name: one for one in operations}})


def leader_lease(lease: Lease) -> LeaderLease:
    """Return a Lease as a fact; nothing is known of how long it has not been renewed."""
    return LeaderLease(lease.metadata.name, lease.spec.holder_identity or "", lease.spec.renew_time or "")


def _last(event: Event) -> tuple[str, int]:
    """Return an Event's time with its version, as times have whole seconds."""
    return event.last_timestamp or "", version_number(event.metadata.resource_version)


def _leases_of(machine: Machine | None, operation: MachineOperation | None, facts: ExplainFacts) -> set[str]:
    """Return the names of the Leases of the executors of open operations on a Machine."""
    open_ones = [one for one in (operation, *facts.operations.values()) if one is not None and not one.terminal]
    executors = {one.status.execution.executor for one in open_ones if one.status.execution is not None}
    if machine is not None:
        kinds = {OperationKind(one.spec.operation_kind) for one in open_ones}
        due_operation = due(machine)
        kinds |= {due_operation.kind} if due_operation is not None else set()
        executors |= {name for kind in kinds if (name := executor_name(kind, machine)) is not None}
        holder = machine.status.active_operation
        executors |= {holder.executor} if holder is not None else set()
    return {lease for executor in executors for lease in leases_of(executor)}
