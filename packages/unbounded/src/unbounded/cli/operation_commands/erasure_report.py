"""`machine operation report`: what an auditor keeps of a HostErase."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from unbounded.api.machine_status import DiskErasureRecord
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.cli.operation_commands import lookup
from unbounded.cli.plugin.command import DONE, CliError, CommandSession
from unbounded.cli.plugin.output import NONE, as_yaml, table
from unbounded.operations.parameters import requester

HEADS: Final = ("SERIAL", "STATE", "METHOD", "SIZE", "BEGUN", "ENDED", "RESULT")


async def run(session: CommandSession) -> int:
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
