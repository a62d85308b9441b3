"""`machine operation wait`, `cancel` and `abandon`."""

from __future__ import annotations

from collections.abc import Callable

from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.cli.operation_commands import lookup
from unbounded.cli.plugin.command import DONE, FAILED, CommandSession
from unbounded.cli.plugin.intents import confirm, execute_intent
from unbounded.cli.plugin.progress import OperationResult
from unbounded.cli.plugin.wait import report_result, wait_result
from unbounded.intents.operations import ABANDON, CANCEL, intend_end
from unbounded.operations import reasons
from unbounded.operations.supervisor_plan import ABANDON_AFTER_S
from unbounded.plan.intent import Intent

UNKNOWN = "its result is unknown"


async def wait(session: CommandSession) -> int:
    args = session.invocation.args
    operation = await lookup.operation(session, args.name)
    return await report_result(session, args.name, await wait_result(session, operation, timeout_s=args.timeout))


async def cancel(session: CommandSession) -> int:
    operation = await lookup.operation(session, session.invocation.args.name)
    is_rescue = operation.spec.operation_kind == OperationKind.HOST_RESCUE  # its rescue system ends regularly by that
    return await _execute_and_wait(
        session,
        operation,
        intend_end(operation, CANCEL),
        lambda end: end.cancelled or (is_rescue and end.complete),
        "complete" if is_rescue else "cancelled",
    )


async def abandon(session: CommandSession) -> int:
    operation = await lookup.operation(session, session.invocation.args.name)
    intent = intend_end(operation, ABANDON)
    if intent.patches:
        await confirm(session.invocation, (operation.name,), f"{UNKNOWN}; the next executor observes its Machine first")
    if operation.claimed and not operation.terminal:
        silence = f"once its executor has been silent for {ABANDON_AFTER_S:.0f} s"
        session.printer.info(f"it ends {silence}; use `cancel` to stop an operation in progress")
    lost = {reasons.EXECUTOR_LOST, reasons.CANCELLED}
    return await _execute_and_wait(session, operation, intent, lambda end: end.reason in lost, "abandoned")


async def intend_cancel(session: CommandSession) -> Intent:
    return intend_end(await lookup.operation(session, session.invocation.args.name), CANCEL)


async def intend_abandon(session: CommandSession) -> Intent:
    return intend_end(await lookup.operation(session, session.invocation.args.name), ABANDON)


async def _execute_and_wait(
    session: CommandSession,
    operation: MachineOperation,
    intent: Intent,
    desired: Callable[[OperationResult], bool],
    word: str,
) -> int:
    """Carry out the intent and wait for an end that fulfils it; returns the exit status."""
    args = session.invocation.args
    status = await execute_intent(session, intent, wait=False, timeout_s=None)
    if status != DONE or not args.wait:
        return status
    end = await wait_result(session, operation, timeout_s=args.timeout)
    if desired(end):
        word = "cancelled" if end.cancelled else word
        session.printer.info(f"operation {operation.name} is {word}: {end.message}".rstrip(": "))
        return DONE
    how = "completed" if end.complete else f"failed: {end.reason}: {end.message}"
    session.printer.warn(f"error: operation {operation.name} was not {word}, it {how}")
    return FAILED
