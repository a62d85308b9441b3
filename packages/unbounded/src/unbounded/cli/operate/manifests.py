"""Manifest of an operation and its validation before it is created, with the functions that the executors use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import ANNOTATION_REQUESTED_BY, API_VERSION
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.cli.operate import consent
from unbounded.cli.plugin.command import USAGE, CliError, CommandSession, Raw
from unbounded.operations.batch_plan import BatchRejection, snapshot
from unbounded.operations.ownership import executor_of, why_nobody
from unbounded.operations.parameters import consent_field, disks_to_erase, erased_disks, invalid

DESTROYS: Final[Mapping[OperationKind, str]] = {  # with what is lost
    OperationKind.HOST_REPLACE: "everything on its disk: the host is reinstalled from its image",
    OperationKind.HOST_ERASE: "everything on the disks that it erases, for good; the host stays Off",
    OperationKind.AGENT_RESET: "the agent, and the node with everything that runs on it; the host itself stays",
}
KIND: Final = "MachineOperation"


async def manifest(session: CommandSession, name: str, spec: Raw, *, owner: Machine | None = None) -> Raw:
    """Return the manifest of a MachineOperation; one that may erase disks names the present user.

    Args:
        owner: the Machine with which it is deleted.
    """
    metadata: dict[str, Any] = {"name": name}
    if owner is not None:
        reference = {"apiVersion": API_VERSION, "kind": "Machine", "name": owner.name, "uid": owner.metadata.uid}
        metadata["ownerReferences"] = [reference]
    if consent_field(spec["operationKind"], spec.get("parameters", {})) is not None:
        metadata["annotations"] = {ANNOTATION_REQUESTED_BY: await consent.user_name(session.api)}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def decoded(desired: Raw) -> MachineOperation:
    return msgspec.convert(desired, MachineOperation)


def check_parameters(operation: MachineOperation) -> None:
    """Raise CliError where a parameter is unknown, missing or invalid for every executor."""
    wrong = invalid(operation)
    if wrong is not None:
        raise CliError(wrong, status=USAGE)


def check_machine(operation: MachineOperation, machine: Machine) -> None:
    """Raise CliError where no executor can execute this operation on this Machine."""
    kind = OperationKind(operation.spec.operation_kind)
    executor = executor_of(kind, machine)
    if executor is None:
        raise CliError(why_nobody(kind, machine))
    wrong = invalid(operation, executor)
    if wrong is not None:
        raise CliError(wrong, status=USAGE)


async def selected(session: CommandSession, operation: MachineOperation) -> tuple[str, ...]:
    """Return the names of the Machines that a selector operation would act on now.

    Raises:
        CliError: it would be rejected.
    """
    machines = (await session.api.list(MACHINES)).items
    found = snapshot(operation, machines)
    if isinstance(found, BatchRejection):
        raise CliError(found.text, next_step="`kubectl get machines --show-labels` shows the labels")
    return tuple(target.machine_ref for target in found)


def destroyed_machines(operation: MachineOperation, machines: Sequence[str]) -> tuple[str, ...]:
    """Return those of the Machines that lose data by the operation."""
    return tuple(machines) if operation.spec.operation_kind in DESTROYS else ()


def loss_text(kind: OperationKind) -> str:
    """Describe the loss, for the user's confirmation."""
    return f"this loses {DESTROYS.get(kind, 'nothing')}"


def losses(operation: MachineOperation, machine: Machine | None = None) -> str:
    """Describe the loss with the disks that the operation may erase, for the user's confirmation.

    Args:
        machine: the target, with the last inspection of its disks.

    Raises:
        CliError: what a disk of parameters.eraseDisks or parameters.disks holds is not known.
    """
    text = loss_text(OperationKind(operation.spec.operation_kind))
    serials, to_erase = erased_disks(operation), disks_to_erase(operation)
    if not serials and not to_erase:
        return text
    if machine is None:
        raise CliError(f"Machine {operation.spec.machine_ref} does not exist, so nothing is known of its disks")
    if to_erase:
        return f"{text}. It erases {consent.erased_data(machine, to_erase)}"
    return f"{text}. It may erase {consent.lost_data(machine, serials)}"
