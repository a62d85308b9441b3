"""Facts for `why`: objects as read at one moment, the Leases of live processes, and the procedures of operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from unbounded.api.configuration import MachineConfiguration
from unbounded.api.container_cloud.cluster import Cluster, MachinePool
from unbounded.api.container_cloud.host import BareMetalHost
from unbounded.api.container_cloud.machine import ContainerCloudMachine
from unbounded.api.container_cloud.names import LEASE_CONTAINER_CLOUD
from unbounded.api.core import ConfigMap, Event, Lease, Node
from unbounded.api.disruption import MachineDisruptionBudget
from unbounded.api.machine import Machine
from unbounded.api.meta import Kind
from unbounded.api.names import LEASE_SUPERVISOR, NAMESPACE
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.explain.links import UnreadFact
from unbounded.kube.clock import utc_now
from unbounded.operations.executor_selection import ExecutorKind, Unavailability, bmc_of, provider_of
from unbounded.workflow.procedure import Procedure

MACHINA: Final = "machina"
CONTAINER_CLOUD: Final = "container-cloud"


@dataclass(frozen=True)
class LeaderLease:
    """A Lease with which a process leads.

    Attributes:
        still_s: time of observation without a renewal; None for one that is renewed.
    """

    name: str
    holder: str
    renewed: str
    unrenewed_s: float | None = None


@dataclass(frozen=True)
class ExplainFacts:
    """All facts for a chain.

    Attributes:
        machines: the subject first, then others with its BMC.
        operations: by name: the subject, those on the same Machine, the children of a parent.
        nodes: by Machine.
        node_leases: by Machine.
        beats: by the name of the Lease; None where Leases cannot be read.
        embedded: the controllers run in the process of the API server, and have no Leases.
        absent: why providers are not served there, by their names.
        events: on the Machine, oldest first.
        budgets: the MachineDisruptionBudgets that the operation waits for, or that a plan rests on, by name.
        configurations: the one that the first Machine is bound to, by name.
        claims: Machines of cluster.k8s.io, by NAMESPACE/NAME: the subject, or those of the Cluster or pool that is.
        hosts: BareMetalHosts, by NAMESPACE/NAME: the host of the first of them, or those of its namespace.
        clusters: by NAMESPACE/NAME: the Cluster of the subject.
        pools: MachinePools, by NAMESPACE/NAME: the subject.
        sites: of all Machines; read only where the Machine of the subject does not exist.
        unread: facts that could not be read.
        read_at: the time of the reading.
    """

    machines: Mapping[str, Machine] = field(default_factory=dict)
    operations: Mapping[str, MachineOperation] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    node_leases: Mapping[str, Lease] = field(default_factory=dict)
    leader_leases: Mapping[str, LeaderLease] | None = field(default_factory=dict)
    embedded: bool = False
    absent: Mapping[str, Unavailability] = field(default_factory=dict)
    pause: ConfigMap | None = None
    events: tuple[Event, ...] = ()
    budgets: Mapping[str, MachineDisruptionBudget] = field(default_factory=dict)
    configurations: Mapping[str, MachineConfiguration] = field(default_factory=dict)
    claims: Mapping[str, ContainerCloudMachine] = field(default_factory=dict)
    hosts: Mapping[str, BareMetalHost] = field(default_factory=dict)
    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    pools: Mapping[str, MachinePool] = field(default_factory=dict)
    sites: frozenset[str] = frozenset()
    unread: tuple[UnreadFact, ...] = ()
    read_at: datetime = field(default_factory=utc_now)

    def is_site(self, name: str) -> bool:
        """Return whether a site of this name is known: it has Machines, or a metalman."""
        return name in self.sites or bool(self.leases_of_process(f"{ExecutorKind.METALMAN}/{name}"))

    def hides(self, kind: Kind[Any]) -> bool:
        """Return whether objects of a kind could not be read, so that a missing one may exist."""
        return any(one.resource == resource_of(kind) for one in self.unread)

    def on(self, machine: str) -> tuple[MachineOperation, ...]:
        """Return the operations on one Machine."""
        return tuple(self._by_machine.get(machine, ()))

    @cached_property
    def _by_machine(self) -> Mapping[str, Sequence[MachineOperation]]:
        found: dict[str, list[MachineOperation]] = {}
        for operation in self.operations.values():
            found.setdefault(operation.spec.machine_ref or "", []).append(operation)
        return found

    def sharing(self, machine: Machine) -> tuple[Machine, ...]:
        """Return the other known Machines with the same BMC and device."""
        bmc = bmc_of(machine)
        return tuple(one for one in self.machines.values() if one.name != machine.name and bmc and bmc_of(one) == bmc)

    def absence(self, executor: str) -> Unavailability | None:
        """Return why an executor that `unbounded up` starts does not serve now; None where it does."""
        return self.absent.get(provider_of(executor) or "")

    def is_away(self, executor: str) -> bool:
        """Return whether a process counts as away, or cannot serve; one that is starting does not."""
        absence = self.absence(executor)
        return self.silence(executor) is not None or (absence is not None and absence.is_problem)

    def silence(self, process: str) -> str | None:
        """Return why a process counts as away; None where it is alive, or where that cannot be observed.

        Args:
            process: machina, container-cloud, a metalman or a machine-ops-controller, as the status names it.
        """
        if self.embedded or self.leader_leases is None:
            return None
        names, beats = leases_of(process), self.leases_of_process(process)
        if not beats:
            foreign = len(names) != 1  # a third-party controller may serve, with a Lease of its own
            return None if foreign else f"Lease {NAMESPACE}/{names[0]} does not exist: it has never run here"
        away = [_why_away(beat) for beat in beats]
        return None if None in away else away[0]

    def leases_of_process(self, process: str) -> tuple[LeaderLease, ...]:
        """Return the existing Leases of processes that can do the work of this one."""
        return tuple(beat for name in leases_of(process) if (beat := (self.leader_leases or {}).get(name)) is not None)


def resource_of(kind: Kind[Any]) -> str:
    """Return the name of a kind's resource: `nodes`, `machines.unbounded-cloud.io`."""
    return f"{kind.plural}.{kind.group}" if kind.group else kind.plural


def _why_away(beat: LeaderLease) -> str | None:
    """Return why the Lease shows no live holder; None for a live one."""
    where = f"Lease {NAMESPACE}/{beat.name}"
    if not beat.holder:
        return f"{where} was released: it was stopped"
    if beat.unrenewed_s is None:
        return None
    return (
        f"{where} was last renewed at {beat.renewed} by {beat.holder}, and not during the "
        f"{beat.unrenewed_s:.0f} s of observation"
    )


def leases_of(process: str) -> tuple[str, ...]:
    """Return the names of the Leases with which a process may lead; none for one without, such as an agent.

    A machine-ops-controller may serve one site, one provider, one provider in one site, or all Machines.
    """
    kind, _, site = process.partition("/")
    match kind:
        case str() if kind == MACHINA:
            return (LEASE_SUPERVISOR,)
        case str() if kind == CONTAINER_CLOUD:
            return (LEASE_CONTAINER_CLOUD,)
        case ExecutorKind.METALMAN:
            from unbounded.metalman.settings import MetalmanSettings  # noqa: PLC0415  # only where a metalman is asked after

            return (MetalmanSettings(site=site).lease,)
        case ExecutorKind.CLOUD:
            return tuple(scopes_of(process))
    return ()


def scopes_of(controller: str) -> dict[str, tuple[str, str]]:
    """Return the scopes of machine-ops-controllers that can do the work of this one, by the names of their Leases.

    A scope is a site and a provider, each empty for all.
    """
    from unbounded.machineops.settings import Settings  # noqa: PLC0415

    site, _, provider = controller.partition("/")[2].rpartition("/")
    scopes = [(one, other) for one in (site, "") for other in (provider, "")]
    return {Settings(site=one, provider=other).lease: (one, other) for one, other in scopes}


def procedure_of(operation: MachineOperation, executor: str, machine: Machine | None) -> Procedure | None:
    """Return the procedure of an operation; None for a controller that is not part of this program.

    Args:
        executor: as the status names it, `metalman/lab`.
        machine: its Machine, whose boot mode decides on the stages of a boot; None if it does not exist.
    """
    kind, owner = OperationKind(operation.spec.operation_kind), executor.partition("/")[0]
    if owner == ExecutorKind.METALMAN:
        from unbounded.metalman.executor import procedure_of_machine  # noqa: PLC0415  # only for an operation of its own

        return procedure_of_machine(operation, machine)
    if owner == ExecutorKind.AGENT:
        return _of_agent(kind, operation)
    return None


def _of_agent(kind: OperationKind, operation: MachineOperation) -> Procedure | None:
    match kind:
        case OperationKind.NODE_REBOOT:
            from unbounded.agent.operations.node_reboot import NODE_REBOOT  # noqa: PLC0415

            return NODE_REBOOT
        case OperationKind.HOST_REBOOT:
            from unbounded.agent.operations.host_reboot import HOST_REBOOT  # noqa: PLC0415

            return HOST_REBOOT
        case OperationKind.AGENT_RESET:
            from unbounded.agent.operations.agent_reset import PROCEDURE  # noqa: PLC0415

            return PROCEDURE
        case OperationKind.AGENT_UPGRADE:
            from unbounded.agent.operations.agent_upgrade import trial_limit_s  # noqa: PLC0415
            from unbounded.agent.upgrade.health import DEFAULT_WINDOW_S  # noqa: PLC0415
            from unbounded.agent.upgrade.procedure import procedure  # noqa: PLC0415

            targets = operation.status.targets
            stage = targets[0].stage if targets else None
            return procedure(trial_s=trial_limit_s(DEFAULT_WINDOW_S), stage=stage or "")
        case _:
            return None
