"""Waiting for an operation's end. An interruption (Ctrl-C, --timeout) does not change the operation."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.cli.plugin import progress
from unbounded.cli.plugin.command import DONE, FAILED, TIMED_OUT, CliError, CommandSession
from unbounded.cli.plugin.object_watch import WatchedObject, watched_object
from unbounded.cli.plugin.progress import OperationResult
from unbounded.cli.plugin.progress_views import view_for
from unbounded.kube.errors import NotFound

REDRAW_S: Final = 1.0  # elapsed times change without any event


async def wait_operation(session: CommandSession, name: str, *, timeout_s: float | None) -> int:
    """Show an operation until it has ended, and print its result.

    Args:
        timeout_s: None for no limit.

    Returns:
        The exit status.
    """
    end = await wait_result(session, await session.api.get(MACHINE_OPERATIONS, name), timeout_s=timeout_s)
    return await report_result(session, name, end)


async def report_result(session: CommandSession, name: str, end: OperationResult) -> int:
    """Print the result of an operation; returns the exit status."""
    kind = MACHINE_OPERATIONS
    if session.printer.whole:
        with contextlib.suppress(NotFound):  # its TTL may have deleted it
            session.printer.objects(kind, [await session.api.get(kind.raw(), name)], alone=True)
    if end.complete:
        session.printer.info(f"operation {name} is complete: {end.message}".rstrip(": "))
        return DONE
    session.printer.warn(f"error: operation {name} failed: {_because(end)}")
    if not end.cancelled:
        session.printer.warn(f"  `{session.invocation.program} why operation/{name}` explains it")
    return FAILED


def _because(end: OperationResult) -> str:
    return ": ".join(part for part in (end.reason, end.message) if part) or "no cause was reported"


async def wait_result(
    session: CommandSession, operation: MachineOperation, *, timeout_s: float | None
) -> OperationResult:
    """Wait until an operation has ended; returns its result.

    Raises:
        CliError: the time was up (TIMED_OUT), or it was deleted and its Machine's history does not have its result.
        Forbidden: the user may not watch it.
    """
    name, uid = operation.name, operation.metadata.uid
    last = operation
    end = progress.end_of(operation)
    if end is not None:
        with view_for(session) as view:
            view.show(progress.of_operation(operation), "")
        return end

    def look(followed: WatchedObject[MachineOperation]) -> bool:
        """Record the latest state; returns whether the wait is over."""
        nonlocal last
        now = followed.now
        if now is not None and now.metadata.uid == uid:
            last = now
            return now.terminal
        return followed.synced

    changed = asyncio.Event()
    async with (
        _limited(session, name, timeout_s),
        watched_object(session.api, MACHINE_OPERATIONS, name, changed) as followed,
    ):
        with view_for(session) as view:
            while not look(followed) and not last.terminal:
                view.show(progress.of_operation(last), followed.trouble)
                await next_change(changed)
            view.show(progress.of_operation(last), "")
    return progress.end_of(last) or await _end_of_deleted(session, last)


async def _end_of_deleted(session: CommandSession, last: MachineOperation) -> OperationResult:
    """Return the result of an operation that was deleted before its end was observed, such as one with a TTL of 0."""
    end = None
    if last.spec.machine_ref is not None:
        with contextlib.suppress(NotFound):
            machine = await session.api.get(MACHINES, last.spec.machine_ref)
            end = progress.end_in_history(machine, uid=last.metadata.uid)
    if end is None:
        phase = last.status.phase or progress.PENDING
        raise CliError(f"operation {last.name} was deleted before it ended; its last phase was {phase}")
    return end


async def wait_counter(
    session: CommandSession, machine: Machine, name: str, reached: Callable[[Machine], bool], *, timeout_s: float | None
) -> OperationResult:
    """Wait until the operation that a counter requests has ended; returns its result.

    Its executor creates it: it may not exist yet, and may be deleted when the counter has moved.

    Args:
        name: of the operation.
        reached: tells whether the counter in the Machine's status has moved.

    Raises:
        CliError: the time was up (TIMED_OUT), or the Machine was deleted.
    """
    changed = asyncio.Event()
    async with (
        _limited(session, name, timeout_s),
        watched_object(session.api, MACHINE_OPERATIONS, name, changed) as operations,
        watched_object(session.api, MACHINES, machine.name, changed) as machines,
    ):
        with view_for(session) as view:
            while True:
                now = operations.now
                view.show(None if now is None else progress.of_operation(now), operations.trouble or machines.trouble)
                end = _counted(machine, name, reached, operations, machines)
                if end is not None:
                    return end
                await next_change(changed)


def _counted(
    machine: Machine,
    name: str,
    reached: Callable[[Machine], bool],
    operations: WatchedObject[MachineOperation],
    machines: WatchedObject[Machine],
) -> OperationResult | None:
    end = None if operations.now is None else progress.end_of(operations.now)
    if end is not None or not machines.synced:
        return end
    now = machines.now
    if now is None or now.metadata.uid != machine.metadata.uid:
        raise CliError(f"Machine {machine.name} was deleted")
    if not reached(now):
        return None
    return progress.end_in_history(now, name=name) or OperationResult(True, "", "")


async def next_change(changed: asyncio.Event) -> None:
    """Wait for a change, or for the next redraw of the elapsed times."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REDRAW_S):
            await changed.wait()
    changed.clear()


def _limited(session: CommandSession, name: str, timeout_s: float | None) -> AbstractAsyncContextManager[None]:
    """Limit a wait for an operation."""
    program = session.invocation.program
    hint = (
        f"`{program} machine operation wait {name}` continues to wait, `{program} machine operation "
        f"cancel {name}` stops it"
    )
    return limited(session, f"operation {name}", hint, timeout_s, late="has not ended")


@contextlib.asynccontextmanager
async def limited(
    session: CommandSession, what: str, hint: str, timeout_s: float | None, *, late: str
) -> AsyncIterator[None]:
    """Limit a wait, and print at its end by the limit or Ctrl-C that the operation continues.

    Args:
        hint: commands to continue with.
        late: predicate of the message at the limit, such as `has not ended`.

    Raises:
        CliError: the time was up (TIMED_OUT).
    """
    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            yield
    except TimeoutError as error:
        if not deadline.expired():
            raise
        text = f"{what} {late} within {timeout_s:g} s; it continues"
        raise CliError(text, next_step=hint, status=TIMED_OUT) from error
    except asyncio.CancelledError:
        session.printer.warn(f"\n{what} continues\n  {hint}")
        raise
