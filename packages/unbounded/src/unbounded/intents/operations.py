"""Intents of operations: the manifest of one, the check before it exists, what it destroys, and its cancel.

Consent to a loss of data names the user who gives it, and what is on the disks by the last inspection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from unbounded.api.core import SELF_SUBJECT_REVIEWS
from unbounded.api.hardware import DiskFacts, DiskState
from unbounded.api.machine import Machine
from unbounded.api.machine_status import pcr_text
from unbounded.api.names import ANNOTATION_MACHINE_UID, ANNOTATION_REQUESTED_BY, API_VERSION
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationKind
from unbounded.intents.rejections import IntentRejected
from unbounded.kube.api import Api
from unbounded.metalman.disks_to_erase import ErasurePlan, choose_erasures
from unbounded.operations import parameters as operation_parameters
from unbounded.operations import reasons
from unbounded.operations.executor_selection import executor_of, why_unsupported
from unbounded.plan.consequences import DESTROYS
from unbounded.plan.intent import Intent, IntentPatch, Raw, bound_to

KIND: Final = "MachineOperation"
SHOWN: Final = 10
NAME_CHARACTERS: Final = 253
CANCEL, ABANDON = "cancel", "abandon"


async def intend_operation(
    api: Api,
    kind: OperationKind,
    machine: Machine,
    name: str,
    *,
    parameters: Mapping[str, str] | None = None,
    ttl_s: int | None = None,
) -> Intent:
    """Return the creation of an operation on one Machine, which owns it; that of a HostErase, whose report stays, not.

    Args:
        ttl_s: the operation is deleted this long after its end; a HostErase stays.

    Raises:
        IntentRejected: no executor can execute the operation there.
        ApiError: the present user is not known.
    """
    spec: dict[str, Any] = {"operationKind": kind.value, "machineRef": machine.name}
    if parameters:
        spec["parameters"] = dict(parameters)
    stays = kind is OperationKind.HOST_ERASE
    if not stays and ttl_s is not None:
        spec["ttlSecondsAfterFinished"] = ttl_s
    desired = await manifest(api, name, spec, machine, owned=not stays)
    operation = decoded(desired)
    check_machine(operation, machine)
    return Intent((desired,), destroys=destroyed_machines(operation, (machine.name,)), loses=losses(operation, machine))


def operation_name(machine: str, verb: str, now: datetime) -> str:
    """Return MACHINE-VERB-YYYYMMDD-HHMMSS: two requests within one second mean one operation. Raises IntentRejected."""
    name = f"{machine}-{verb}-{now:%Y%m%d-%H%M%S}"
    if len(name) > NAME_CHARACTERS:
        raise IntentRejected(f"the name of Machine {machine} is too long for a generated operation name")
    return name


def intend_end(operation: MachineOperation, field: str) -> Intent:
    """Return the request to cancel or to abandon an operation. Raises IntentRejected for one that has ended."""
    status = operation.status
    is_cancelled = operation.terminal and status.reason == reasons.CANCELLED
    if operation.terminal and not is_cancelled:
        raise IntentRejected(f"operation {operation.name} has ended already: {status.phase} ({status.reason})")
    if operation.terminal or getattr(operation.spec, field):
        return Intent(notes=(f"operation {operation.name} has this request already",))
    verb = "cancel requested" if field == CANCEL else "abandon requested"
    body = bound_to(operation.metadata.uid, {"spec": {field: True}})
    return Intent(patches=(IntentPatch(MACHINE_OPERATIONS, operation.name, body, verb=verb),))


async def manifest(api: Api, name: str, spec: Raw, machine: Machine | None = None, *, owned: bool = False) -> Raw:
    """Return the manifest of a MachineOperation; one that may erase disks names the present user.

    Args:
        machine: the Machine that it is meant for, and no later one of the same name.
        owned: it is deleted with that Machine.
    """
    metadata: dict[str, Any] = {"name": name}
    annotations: dict[str, str] = {}
    if machine is not None:
        annotations[ANNOTATION_MACHINE_UID] = machine.metadata.uid
    if machine is not None and owned:
        reference = {"apiVersion": API_VERSION, "kind": "Machine", "name": machine.name, "uid": machine.metadata.uid}
        metadata["ownerReferences"] = [reference]
    if operation_parameters.consent_field(spec["operationKind"], spec.get("parameters", {})) is not None:
        annotations[ANNOTATION_REQUESTED_BY] = await user_name(api)
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def decoded(desired: Raw) -> MachineOperation:
    return msgspec.convert(desired, MachineOperation)


def check_parameters(operation: MachineOperation) -> None:
    """Raise IntentRejected where a parameter is unknown, missing or invalid for every executor."""
    wrong = operation_parameters.invalid(operation)
    if wrong is not None:
        raise IntentRejected(wrong, is_usage=True)


def check_machine(operation: MachineOperation, machine: Machine) -> None:
    """Raise IntentRejected where no executor can execute this operation on this Machine."""
    kind = OperationKind(operation.spec.operation_kind)
    executor = executor_of(kind, machine)
    if executor is None:
        raise IntentRejected(why_unsupported(kind, machine))
    wrong = operation_parameters.invalid(operation, executor)
    if wrong is not None:
        raise IntentRejected(wrong, is_usage=True)


def destroyed_machines(operation: MachineOperation, machines: Sequence[str]) -> tuple[str, ...]:
    """Return those of the Machines that lose data by the operation."""
    return tuple(machines) if operation.spec.operation_kind in DESTROYS else ()


def loss_text(kind: OperationKind) -> str:
    """Describe the loss, for the user's confirmation."""
    return f"this loses {DESTROYS.get(kind, 'nothing')}"


def losses(operation: MachineOperation, machine: Machine | None = None) -> str:
    """Describe the loss with the disks that the operation may erase, and the PCRs that it accepts, for the user's
    confirmation.

    Args:
        machine: the target, with the last inspection of its disks.

    Raises:
        IntentRejected: what a disk of parameters.eraseDisks or parameters.disks holds is not known.
    """
    text = loss_text(OperationKind(operation.spec.operation_kind))
    if accepted := operation_parameters.accepted_pcrs(operation):
        text += f". It accepts other values of {', '.join(map(pcr_text, sorted(accepted)))}"
    serials, to_erase = operation_parameters.erased_disks(operation), operation_parameters.disks_to_erase(operation)
    if not serials and not to_erase:
        return text
    if machine is None:
        raise IntentRejected(f"Machine {operation.spec.machine_ref} does not exist, so nothing is known of its disks")
    if to_erase:
        return f"{text}. It erases {erased_data(machine, to_erase)}"
    return f"{text}. It may erase {lost_data(machine, serials)}"


async def user_name(api: Api) -> str:
    """Return the name of the present user, as the API server knows it."""
    review = await api.create(SELF_SUBJECT_REVIEWS, {})
    return str(review["status"]["userInfo"]["username"])


def lost_data(machine: Machine, serials: Sequence[str]) -> str:
    """Describe what is on the disks with these serial numbers.

    Raises:
        IntentRejected: a serial number does not identify a disk of the last inspection.
    """
    return "; ".join(_described(_disk(machine, serial)) for serial in serials)


def erased_data(machine: Machine, disks: Sequence[str]) -> str:
    """Describe what is on the disks that a HostErase erases, by the last inspection.

    Args:
        disks: serial numbers, or `ALL_DISKS` alone.

    Raises:
        IntentRejected: no inspection is known, or it does not have these disks.
    """
    if tuple(disks) != (operation_parameters.ALL_DISKS,):
        return lost_data(machine, disks)
    hardware = machine.status.hardware
    if hardware is None:
        raise IntentRejected(
            f"Machine {machine.name} has not reported its hardware, so nothing is known of its disks",
            next_step=f"`kubectl unbounded machine inspect {machine.name}` reports what is on its disks",
        )
    chosen = choose_erasures(hardware.disks, disks, (), final=True)
    if not isinstance(chosen, ErasurePlan):
        raise IntentRejected(chosen.message)
    described = "; ".join(_described(disk) for disk in hardware.disks if disk.name in chosen.names)
    return f"all local disks: {described}" + (f". It leaves {chosen.left_out}" if chosen.left_out else "")


def _disk(machine: Machine, serial: str) -> DiskFacts:
    hardware = machine.status.hardware
    if hardware is None:
        raise IntentRejected(
            f"Machine {machine.name} has not reported its hardware, so nothing is known of its disk {serial}",
            next_step=f"`kubectl unbounded machine inspect {machine.name}` reports what is on its disks",
        )
    found = [disk for disk in hardware.disks if disk.serial_number == serial]
    if len(found) == 1:
        return found[0]
    there = sorted({disk.serial_number for disk in hardware.disks if disk.serial_number})
    words = f"several disks of Machine {machine.name} have" if found else f"no disk of Machine {machine.name} has"
    shown = ", ".join(there[:SHOWN]) or "none"
    raise IntentRejected(
        f"{words} serial number {serial} in the inspection of {hardware.at}; the serial numbers are: {shown}"
    )


def _described(disk: DiskFacts) -> str:
    model = f", {disk.model}" if disk.model else ""
    size = f"{(disk.size_bytes or 0) // 1_000_000} MB"
    return f"disk {disk.serial_number} ({disk.name}, {size}{model}): {_content(disk)}"


def _content(disk: DiskFacts) -> str:
    if disk.state == DiskState.FOREIGN:
        return disk.contents or "data of an unknown kind"
    if disk.state == DiskState.OWN:
        return "this Machine's earlier install"
    return "blank" if disk.state == DiskState.BLANK else "content unknown, as no installer has reported it"
