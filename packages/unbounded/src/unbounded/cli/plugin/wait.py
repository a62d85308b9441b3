"""Waiting for an operation's end or for a change of another object, over any failure of the connection.

An interruption (Ctrl-C, --timeout) does not change the operation. A `Cache` handles dropped, half-open and expired
watches. This module adds what a user needs to know: that the server does not answer, and that a right is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Generic, TypeVar

from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.cli.plugin import progress
from unbounded.cli.plugin.command import DONE, FAILED, TIMED_OUT, CliError, CommandSession
from unbounded.cli.plugin.progress import OperationResult, view_for
from unbounded.kube.api import Api, ApiError, Expired, Forbidden, NotFound, ObjectList, WatchEvent
from unbounded.kube.cache import Cache

REDRAW_S: Final = 1.0  # elapsed times change without any event
T = TypeVar("T")


QUIET_S: Final = 3.0


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

    def record_latest(followed: WatchedObject[MachineOperation]) -> bool:
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
            while not record_latest(followed) and not last.terminal:
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


class WatchedObject(Generic[T]):
    """Latest state of one object.

    Attributes:
        synced: whether the state is known; before, `now` has no meaning.
    """

    def __init__(self, changed: asyncio.Event) -> None:
        self._changed = changed
        self._now: T | None = None
        self._refused: Forbidden | None = None
        self.synced = False
        self._trouble: tuple[str, float] | None = None  # the error, and the loop time of its start

    @property
    def trouble(self) -> str:
        """The reason why the server has not answered for QUIET_S; empty when all is well.

        A broken watch is usually restored at once, and is not reported.
        """
        if self._trouble is None:
            return ""
        text, since = self._trouble
        return text if asyncio.get_running_loop().time() - since >= QUIET_S else ""

    @property
    def now(self) -> T | None:
        """The object; None when there is none (any more). Raises Forbidden when the user may not watch it."""
        if self._refused is not None:
            raise self._refused
        return self._now

    def on_change(self, old: T | None, new: T | None) -> None:  # noqa: ARG002  # as a cache calls it
        self._now, self.synced = new, True
        self._changed.set()

    def on_synced(self) -> None:
        """Record that the first list is complete, whether the object exists or not."""
        self.synced = True
        self._changed.set()

    def on_response(self) -> None:
        if self._trouble is not None:
            self._trouble = None
            self._changed.set()

    def on_error(self, error: ApiError) -> None:
        if isinstance(error, Forbidden):
            self._refused = error
        elif not isinstance(error, Expired):  # a long watch regularly ends with Expired
            since = asyncio.get_running_loop().time() if self._trouble is None else self._trouble[1]
            self._trouble = (str(error), since)
        self._changed.set()


@asynccontextmanager
async def watched_object(
    api: Api, kind: Kind[T], name: str, changed: asyncio.Event, *, namespace: str = ""
) -> AsyncIterator[WatchedObject[T]]:
    """Follow one object inside the context; `changed` is set after each change."""
    followed: WatchedObject[T] = WatchedObject(changed)
    cache = Cache(_ReportingApi(api, followed), kind, namespace=namespace, fields=f"metadata.name={name}")
    task = asyncio.create_task(_run(cache, followed))
    try:
        with cache.subscribed(followed.on_change):
            yield followed
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _run(cache: Cache[T], followed: WatchedObject[T]) -> None:
    running = asyncio.create_task(cache.run())
    try:
        await cache.synced.wait()
        followed.on_synced()
        await running
    finally:
        running.cancel()


class _ReportingApi:
    """An `Api` that forwards all calls and reports the results of reads."""

    def __init__(self, api: Api, followed: WatchedObject[Any]) -> None:
        self._api, self._followed = api, followed

    async def list(self, kind: Kind[T], *, namespace: str = "", labels: str = "", fields: str = "") -> ObjectList[T]:
        try:
            found = await self._api.list(kind, namespace=namespace, labels=labels, fields=fields)
        except ApiError as error:
            self._followed.on_error(error)
            raise
        self._followed.on_response()
        return found

    async def watch(
        self, kind: Kind[T], *, resource_version: str, namespace: str = "", labels: str = "", fields: str = ""
    ) -> AsyncIterator[WatchEvent[T]]:
        selection = {"namespace": namespace, "labels": labels, "fields": fields}
        stream = self._api.watch(kind, resource_version=resource_version, **selection)
        try:
            async for event in stream:
                self._followed.on_response()
                yield event
        except ApiError as error:
            self._followed.on_error(error)
            raise
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T:
        return await self._api.get(kind, name, namespace=namespace)

    async def create(self, kind: Kind[T], body: Mapping[str, Any], *, namespace: str = "") -> T:
        return await self._api.create(kind, body, namespace=namespace)

    async def patch(
        self, kind: Kind[T], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        return await self._api.patch(kind, name, patch, namespace=namespace, subresource=subresource)

    async def delete(
        self, kind: Kind[T], name: str, *, namespace: str = "", uid: str = "", resource_version: str = ""
    ) -> None:
        await self._api.delete(kind, name, namespace=namespace, uid=uid, resource_version=resource_version)

    async def version(self) -> str:
        return await self._api.version()
