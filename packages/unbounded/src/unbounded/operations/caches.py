"""Caches that the engine and the supervisor read, with their indexes. The process owns and runs the caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from unbounded.api.core import ConfigMap, Node
from unbounded.api.machine import Machine
from unbounded.api.names import CONFIGMAP_OPERATIONS, LABEL_MACHINE, NAMESPACE
from unbounded.api.operation import MachineOperation
from unbounded.kube.cache import Cache
from unbounded.operations.executor_selection import bmc_of

INDEX_MACHINE: Final = "machine"
INDEX_PARENT: Final = "parent"
INDEX_EXECUTOR: Final = "executor"
INDEX_BMC: Final = "bmc"


@dataclass(frozen=True)
class Caches:
    """Caches that an engine reads.

    Args:
        operations: indexed by INDEX_MACHINE.
        pause: contains at least ConfigMap `unbounded-operations`; None for a process that does not watch it. The engine
            then reads the ConfigMap before each claim, and again while it blocks one.
        nodes: None for a process that does not watch them.
    """

    operations: Cache[MachineOperation]
    machines: Cache[Machine]
    pause: Cache[ConfigMap] | None = None
    nodes: Cache[Node] | None = None

    @property
    def followed(self) -> tuple[Cache[Any], ...]:
        """The caches that the process has to run."""
        return (self.operations, self.machines, *((self.pause,) if self.pause is not None else ()))


@dataclass(frozen=True)
class SupervisorCaches:
    """Caches that the supervisor reads."""

    operations: Cache[MachineOperation]  # indexed by INDEX_MACHINE, INDEX_PARENT and INDEX_EXECUTOR
    machines: Cache[Machine]  # indexed by INDEX_BMC
    nodes: Cache[Node]  # indexed by INDEX_MACHINE
    pause: Cache[ConfigMap]


def by_machine(operation: MachineOperation) -> tuple[str, ...]:
    """Index operations by the Machine that they act on."""
    return (operation.spec.machine_ref,) if operation.spec.machine_ref else ()


def by_parent(operation: MachineOperation) -> tuple[str, ...]:
    """Index operations by the UID of their owner."""
    return tuple(owner.uid for owner in operation.metadata.owner_references)


def by_executor(operation: MachineOperation) -> tuple[str, ...]:
    """Index operations in progress by their executor."""
    execution = operation.status.execution
    return (execution.executor,) if execution is not None and not operation.terminal else ()


def by_bmc(machine: Machine) -> tuple[str, ...]:
    """Index Machines by the BMC and the system of their host operations."""
    bmc = bmc_of(machine)
    return () if bmc is None else (bmc,)


def sharing_bmc(machines: Cache[Machine], machine: Machine) -> tuple[Machine, ...]:
    """Return the other Machines whose host operations go to the same BMC and system.

    Args:
        machines: indexed by INDEX_BMC.
    """
    bmc = bmc_of(machine)
    found = () if bmc is None else machines.by(INDEX_BMC, bmc)
    return tuple(one for one in found if one.name != machine.name)


def node_by_machine(node: Node) -> tuple[str, ...]:
    """Index Nodes by the Machine that their label names."""
    machine = node.metadata.labels.get(LABEL_MACHINE)
    return (machine,) if machine else ()


def node_of(nodes: Cache[Node], machine: str) -> Node | None:
    """Return the Node of a Machine: the one of its name, or else the one whose label names it.

    Args:
        nodes: indexed by INDEX_MACHINE.
    """
    node = nodes.get(machine)
    return node if node is not None else next(iter(nodes.by(INDEX_MACHINE, machine)), None)


def pause_of(cache: Cache[ConfigMap]) -> ConfigMap | None:
    """Return the ConfigMap whose annotation pauses all operations."""
    return cache.get(CONFIGMAP_OPERATIONS, NAMESPACE)
