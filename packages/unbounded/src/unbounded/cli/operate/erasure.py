"""Erasure of disks: the consent before it, and `machine operation report`, the report for an auditor after it.

Consent names the user who gives it, and what is on the disks by the last inspection.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from unbounded.api.hardware import DiskFacts, DiskState
from unbounded.api.machine import Machine
from unbounded.api.machine_status import DiskErasureRecord
from unbounded.api.meta import Kind
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.cli.operate import lookup
from unbounded.cli.plugin.command import DONE, CliError, CommandSession
from unbounded.cli.plugin.output import NONE, as_yaml, table
from unbounded.kube.api import Api
from unbounded.metalman.erase_choice import ErasurePlan, choose_erasures
from unbounded.operations.parameters import ALL_DISKS, requester

REVIEWS: Final[Kind[dict[str, Any]]] = Kind(
    "authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", dict
)
SHOWN: Final = 10
HEADS: Final = ("SERIAL", "STATE", "METHOD", "SIZE", "BEGUN", "ENDED", "RESULT")


async def user_name(api: Api) -> str:
    """Return the name of the present user, as the API server knows it."""
    review = await api.create(REVIEWS, {})
    return str(review["status"]["userInfo"]["username"])


def lost_data(machine: Machine, serials: Sequence[str]) -> str:
    """Describe what is on the disks with these serial numbers.

    Raises:
        CliError: a serial number does not identify a disk of the last inspection.
    """
    return "; ".join(_described(_disk(machine, serial)) for serial in serials)


def erased_data(machine: Machine, disks: Sequence[str]) -> str:
    """Describe what is on the disks that a HostErase erases, by the last inspection.

    Args:
        disks: serial numbers, or `ALL_DISKS` alone.

    Raises:
        CliError: no inspection is known, or it does not have these disks.
    """
    if tuple(disks) != (ALL_DISKS,):
        return lost_data(machine, disks)
    hardware = machine.status.hardware
    if hardware is None:
        raise CliError(
            f"Machine {machine.name} has not reported its hardware, so nothing is known of its disks",
            next_step=f"`kubectl unbounded machine inspect {machine.name}` reports what is on its disks",
        )
    chosen = choose_erasures(hardware.disks, disks, (), final=True)
    if not isinstance(chosen, ErasurePlan):
        raise CliError(chosen.message)
    described = "; ".join(_described(disk) for disk in hardware.disks if disk.name in chosen.names)
    return f"all local disks: {described}" + (f". It leaves {chosen.left_out}" if chosen.left_out else "")


def _disk(machine: Machine, serial: str) -> DiskFacts:
    hardware = machine.status.hardware
    if hardware is None:
        raise CliError(
            f"Machine {machine.name} has not reported its hardware, so nothing is known of its disk {serial}",
            next_step=f"`kubectl unbounded machine inspect {machine.name}` reports what is on its disks",
        )
    found = [disk for disk in hardware.disks if disk.serial_number == serial]
    if len(found) == 1:
        return found[0]
    there = sorted({disk.serial_number for disk in hardware.disks if disk.serial_number})
    words = f"several disks of Machine {machine.name} have" if found else f"no disk of Machine {machine.name} has"
    shown = ", ".join(there[:SHOWN]) or "none"
    raise CliError(
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


async def report_erasure(session: CommandSession) -> int:
    invocation = session.invocation
    operation = await lookup.operation(session, invocation.args.name)
    found = report(operation)
    match invocation.args.output:
        case "json":
            print(json.dumps(found, indent=4), file=invocation.out)
        case "yaml":
            print(as_yaml(found), end="", file=invocation.out)
        case _:
            cells = [_cells(one) for one in operation.status.erasures]
            session.printer.info("\n".join((_head(operation), *table(HEADS, cells, invocation.style))))
    return DONE


def report(operation: MachineOperation) -> dict[str, Any]:
    """Return what an auditor keeps of a HostErase: it does not change any more.

    Raises:
        CliError: the operation is of another kind, or has not ended.
    """
    if operation.spec.operation_kind != OperationKind.HOST_ERASE:
        raise CliError(
            f"operation {operation.name} is a {operation.spec.operation_kind}; only a HostErase has a report"
        )
    if not operation.terminal:
        raise CliError(
            f"operation {operation.name} has not ended: its report is not final",
            next_step=f"`kubectl unbounded machine operation wait {operation.name}` waits for its end",
        )
    status = operation.status
    return {
        "operation": operation.name,
        "operationUID": operation.metadata.uid,
        "machine": operation.spec.machine_ref,
        "machineUID": None if status.execution is None else status.execution.machine_uid,
        "requestedBy": requester(operation),
        "requestedDisks": operation.spec.parameters.get("disks", ""),
        "phase": status.phase,
        "reason": status.reason,
        "message": status.message,
        "startedAt": status.started_at,
        "completedAt": status.completed_at,
        "disks": msgspec.to_builtins(status.erasures),
        "evidence": msgspec.to_builtins(status.evidence),
    }


def _head(operation: MachineOperation) -> str:
    status = operation.status
    return (
        f"Machine {operation.spec.machine_ref}, HostErase {operation.name}: {status.phase} ({status.reason}) at "
        f"{status.completed_at}, requested by {requester(operation)}"
    )


def _cells(record: DiskErasureRecord) -> list[str]:
    size = NONE if record.size_bytes is None else f"{record.size_bytes // 1_000_000} MB"
    times = (record.started_at or NONE, record.completed_at or NONE)
    result = record.verification or record.failure or NONE
    return [record.serial_number, record.state, record.method or NONE, size, *times, result]
