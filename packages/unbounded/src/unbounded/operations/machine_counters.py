"""Counters as operations: `spec.operations` ahead of `status.operations` creates an operation with a fixed name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from unbounded.api.machine import Machine
from unbounded.api.names import API_VERSION
from unbounded.api.operation import MachineOperation, OperationKind, OperationsStatus

_KINDS: Final = {"reboot": OperationKind.HOST_REBOOT, "repave": OperationKind.HOST_REPLACE}


@dataclass(frozen=True)
class Due:
    """The operation that a counter requests."""

    name: str
    kind: OperationKind

    def manifest(self, machine: Machine) -> dict[str, Any]:
        owner = {
            "apiVersion": API_VERSION,
            "kind": "Machine",
            "name": machine.name,
            "uid": machine.metadata.uid,
        }
        return {
            "metadata": {"name": self.name, "ownerReferences": [owner]},
            "spec": {"machineRef": machine.name, "operationKind": str(self.kind)},
        }


def _values(machine: Machine) -> Iterable[tuple[str, int, int]]:
    """Yield (word, desired, reached) for each counter; the repave comes first, as it reboots the machine as well."""
    desired = machine.spec.operations or OperationsStatus()
    reached = machine.status.operations or OperationsStatus()
    yield "repave", desired.repave_counter, reached.repave_counter
    yield "reboot", desired.reboot_counter, reached.reboot_counter


def due(machine: Machine) -> Due | None:
    """Return the operation that the counters request now; the repave before the reboot."""
    for word, desired, reached in _values(machine):
        if desired > reached:
            return Due(f"{machine.name}-{word}-{desired}", _KINDS[word])
    return None


def counters_of(operation: MachineOperation, machine: Machine) -> OperationsStatus | None:
    """Return the counter values that the end of this operation reaches; None where no counter requested it."""
    reached = machine.status.operations or OperationsStatus()
    if _counts(operation, machine, "reboot"):
        value = _number(operation)
        return OperationsStatus(reboot_counter=value, repave_counter=reached.repave_counter)
    if _counts(operation, machine, "repave"):
        value = _number(operation)
        return OperationsStatus(reboot_counter=reached.reboot_counter, repave_counter=value)
    return None


def _counts(operation: MachineOperation, machine: Machine, word: str) -> bool:
    head, _dash, number = operation.name.rpartition("-")
    named = head == f"{machine.name}-{word}" and number.isdigit()
    owned = any(owner.uid == machine.metadata.uid for owner in operation.metadata.owner_references)
    return named and owned and operation.spec.operation_kind == _KINDS[word]


def _number(operation: MachineOperation) -> int:
    return int(operation.name.rpartition("-")[2])
