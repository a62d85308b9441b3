"""Defaults of `spec.deadlineSeconds`, from the claim: shared by the procedures and by the steward that reaps."""

from typing import Final

from unbounded.api.operation import MachineOperation, OperationKind

DEADLINE_S: Final = {
    OperationKind.HOST_REBOOT: 1800,
    OperationKind.HOST_POWER_OFF: 1200,
    OperationKind.HOST_POWER_ON: 1200,
    OperationKind.HOST_REPLACE: 7200,
    OperationKind.NODE_REBOOT: 900,
    OperationKind.AGENT_UPGRADE: 1800,
    OperationKind.AGENT_RESET: 1800,
}


def deadline_s(operation: MachineOperation) -> int:
    """Seconds from the claim after which the operation ends, whatever its stage."""
    return operation.spec.deadline_seconds or DEADLINE_S[OperationKind(operation.spec.operation_kind)]
