"""Deadline of an operation, from its claim to its end in any stage. Procedures and the supervisor share it."""

from __future__ import annotations

from typing import Final

from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.operations.parameters import rescue_minutes

DEADLINE_S: Final = {
    OperationKind.HOST_REBOOT: 1800,
    OperationKind.HOST_POWER_OFF: 1200,
    OperationKind.HOST_POWER_ON: 1200,
    OperationKind.HOST_REPLACE: 7200,
    OperationKind.HOST_INSPECT: 3600,
    OperationKind.HOST_ERASE: 259_200,  # a large hard disk takes more than a day to overwrite
    OperationKind.HOST_RESCUE: 3600,  # beside the minutes of the rescue
    OperationKind.BMC_RESET: 2400,
    OperationKind.FIRMWARE_UPDATE: 14_400,
    OperationKind.BMC_ROTATE_PASSWORD: 1800,
    OperationKind.NODE_REBOOT: 900,
    OperationKind.AGENT_UPGRADE: 1800,
    OperationKind.AGENT_RESET: 1800,
}
# beyond the deadline, for the executor's own end: late calls, a cleanup stage, and one call
LOST_AFTER_S: Final = 240.0


def deadline_s(operation: MachineOperation) -> int:
    """Return the seconds from the claim after which the operation ends in any stage."""
    kind = OperationKind(operation.spec.operation_kind)
    rescue_s = rescue_minutes(operation) * 60 if kind is OperationKind.HOST_RESCUE else 0
    return operation.spec.deadline_seconds or DEADLINE_S[kind] + rescue_s
