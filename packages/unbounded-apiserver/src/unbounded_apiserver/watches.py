"""Watches: one client's view of the changes of a resource, in order, none lost and none twice."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from unbounded_apiserver.collection import ObjectChange
from unbounded_apiserver.options import ListOptions
from unbounded_apiserver.records import StoredObject
from unbounded_apiserver.selection import RecordSelection
from unbounded_apiserver.store import Compacted, Store
from unbounded_apiserver.types import Resource

QUEUE_EVENTS: Final = 10_000
QUEUE_BYTES: Final = 16 * 2**20


class ObjectEvent(NamedTuple):
    """One event: ADDED, MODIFIED or DELETED. `record` carries the revision of the event."""

    type: str
    record: StoredObject


class Overrun(Exception):
    """The client reads more slowly than events arrive; the watch is over."""


def watch_event(change: ObjectChange, selection: RecordSelection) -> ObjectEvent | None:
    """Return a change's event for a selection. An object that leaves it is DELETED, with its last state inside."""
    record, previous = change.record, change.previous
    if not record.key.startswith(selection.prefix):
        return None
    if selection.selects_all:
        return ObjectEvent("DELETED" if change.deleted else "MODIFIED" if previous else "ADDED", record)
    before = previous is not None and selection.matches(previous)
    if change.deleted:
        return ObjectEvent("DELETED", record) if before else None
    if selection.matches(record):
        return ObjectEvent("MODIFIED" if before else "ADDED", record)
    return ObjectEvent("DELETED", previous.at_revision(record.revision)) if before and previous is not None else None


class Watch:
    """Events for one client, queued up to a bound.

    The watch begins in one of two ways:
    - with the existing objects, if the request has no revision or 0, or asks for initial events,
    - with the changes after the requested revision.

    `compacted` is set if history does not reach back that far. `on_overrun` is called when the bound is exceeded, as
    the reader may hang in the middle of a write.
    """

    def __init__(self, store: Store, resource: Resource, selection: RecordSelection, options: ListOptions) -> None:
        self._store = store
        self._selection = selection
        self._queue: deque[ObjectEvent] = deque()
        self._bytes = 0  # and below, of events since the last take; the initial ones do not count
        self._received = 0
        self._ready = asyncio.Event()
        self._overrun = False
        self.on_overrun: Callable[[], None] | None = None
        self.closed = False
        self.compacted: Compacted | None = None
        self.initial_until: int | None = None  # after these events the list is complete, and a bookmark reports it
        self._after = 0
        self._begin(resource, options)
        self._stop = store.listen(self._on_change, resource.name, selection.term)

    def _begin(self, resource: Resource, options: ListOptions) -> None:
        start_with_state = options.initial if options.initial is not None else not options.revision
        if start_with_state:
            snapshot = self._store.snapshot(resource.name)
            matching = snapshot.with_prefix(self._selection.prefix, term=self._selection.term)
            self._queue.extend(ObjectEvent("ADDED", record) for record in matching if self._selection.matches(record))
            if options.initial and options.bookmarks:
                self.initial_until = snapshot.revision
        elif options.revision:
            self._after = options.revision
            try:
                changes = self._store.changes(resource.name, options.revision)
            except Compacted as error:
                self.compacted = error
                return
            self._queue.extend(
                event for change in changes if (event := watch_event(change, self._selection)) is not None
            )
        if self._queue:
            self._ready.set()

    def _on_change(self, change: ObjectChange) -> None:
        if self._overrun or change.revision <= self._after:
            return
        event = watch_event(change, self._selection)
        if event is None:
            return
        self._bytes += len(event.record.bare)
        self._received += 1
        if self._received > QUEUE_EVENTS or self._bytes > QUEUE_BYTES:
            self._overrun = True
            self._queue.clear()
            if self.on_overrun is not None:
                self.on_overrun()
        else:
            self._queue.append(event)
        self._ready.set()

    def take(self) -> list[ObjectEvent]:
        """Return the queued events, oldest first; none if the queue is empty. Raises Overrun."""
        if self._overrun:
            raise Overrun
        events = list(self._queue)
        self._queue.clear()
        self._bytes = self._received = 0
        self._ready.clear()
        return events

    def progress(self) -> int:
        """Return the revision up to which everything was taken; valid only if `take` left nothing behind."""
        return max(self._store.revision, self._after)

    async def wait(self) -> None:
        """Wait for something to take."""
        await self._ready.wait()

    def close(self) -> None:
        """Stop receiving events, and wake a waiting reader."""
        self.closed = True
        self._stop()
        self._ready.set()
