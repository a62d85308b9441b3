"""Procedures of operations, from the tables of the components that execute them, for display."""

from __future__ import annotations

from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.operations.ownership import ExecutorKind
from unbounded.workflow.procedure import Procedure


def procedure_of(operation: MachineOperation, executor: str) -> Procedure | None:
    """Return the procedure of an operation; None for a controller that is not part of this program.

    Args:
        executor: as the status names it, `metalman/lab`.
    """
    kind, owner = OperationKind(operation.spec.operation_kind), executor.partition("/")[0]
    if owner == ExecutorKind.METALMAN:
        from unbounded.metalman.executor import PROCEDURES  # noqa: PLC0415  # only for an operation of its own

        return PROCEDURES[kind](operation) if kind in PROCEDURES else None
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
