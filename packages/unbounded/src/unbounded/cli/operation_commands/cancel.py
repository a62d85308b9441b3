"""`machine operation wait`, `cancel` and `abandon`."""

from __future__ import annotations

from collections.abc import Callable

from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationKind
from unbounded.cli.operation_commands import lookup
from unbounded.cli.plugin import progress
from unbounded.cli.plugin.command import DONE, FAILED, CliError, CommandSession
from unbounded.cli.plugin.intents import confirm, execute_intent
from unbounded.cli.plugin.progress import OperationResult
from unbounded.cli.plugin.wait import report_result, wait_result
from unbounded.operations import reasons
from unbounded.operations.supervisor_plan import ABANDON_AFTER_S
from unbounded.plan.intent import Intent, IntentPatch

CANCEL, ABANDON = "cancel", "abandon"
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
        _intent(operation, CANCEL),
        lambda end: end.cancelled or (is_rescue and end.complete),
        "complete" if is_rescue else "cancelled",
    )


async def abandon(session: CommandSession) -> int:
    operation = await lookup.operation(session, session.invocation.args.name)
    intent = _intent(operation, ABANDON)
    if intent.patches:
        await confirm(session.invocation, (operation.name,), f"{UNKNOWN}; the next executor observes its Machine first")
    if operation.claimed and not operation.terminal:
        silence = f"once its executor has been silent for {ABANDON_AFTER_S:.0f} s"
        session.printer.info(f"it ends {silence}; use `cancel` to stop an operation in progress")
    lost = {reasons.EXECUTOR_LOST, reasons.CANCELLED}
    return await _execute_and_wait(session, operation, intent, lambda end: end.reason in lost, "abandoned")


async def intend_cancel(session: CommandSession) -> Intent:
    return _intent(await lookup.operation(session, session.invocation.args.name), CANCEL)


async def intend_abandon(session: CommandSession) -> Intent:
    return _intent(await lookup.operation(session, session.invocation.args.name), ABANDON)


def _intent(operation: MachineOperation, field: str) -> Intent:
    """Set the field in the operation's spec. Raise CliError if the operation has ended other than by that."""
    end = progress.end_of(operation)
    if end is not None and not end.cancelled:
        raise CliError(f"operation {operation.name} has ended already: {operation.status.phase} ({end.reason})")
    if end is not None or getattr(operation.spec, field):
        return Intent(notes=(f"operation {operation.name} has this request already",))
    verb = "cancel requested" if field == CANCEL else "abandon requested"
    return Intent(patches=(IntentPatch(MACHINE_OPERATIONS, operation.name, {"spec": {field: True}}, verb=verb),))


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
