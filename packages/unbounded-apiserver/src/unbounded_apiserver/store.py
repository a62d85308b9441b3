"""All objects and their recent history, in memory as stored JSON bytes, over the journal.

Reads and watches never access the disk. A write becomes visible here only after the journal has stored it, in the order
of revisions. The store does not know kinds: a resource is a string such as `configmaps` or `widgets.example.com`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from unbounded.kube.logs import Log
from unbounded_apiserver.collection import Collection, FieldTerm, Listener, ObjectChange, Snapshot, StoredObject
from unbounded_apiserver.database import LogEntry, describe_error
from unbounded_apiserver.journal import CommitStats, Compaction, Journal
from unbounded_apiserver.managed_fields.encoding import NO_OWNERS, ManagedFields

HISTORY_CHANGES: Final = 20_000
HISTORY_BYTES: Final = 32 * 2**20

log = Log(__name__)


class Compacted(Exception):
    """History before `oldest` is gone."""

    def __init__(self, requested: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {requested} ({oldest})")
        self.requested = requested
        self.oldest = oldest


class NotStored(Exception):
    """The journal could not make a write durable; nothing of it is visible."""


class _Write(asyncio.Future[StoredObject]):
    """A running write. Cancelling a waiter takes effect only when the write has ended: nothing stops a write."""

    __slots__ = ()

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ARG002 - as futures are asked
        return False


class Store:
    """Objects by resource and key, with optimistic writes and history. Used from one event loop."""

    def __init__(
        self,
        *,
        history_changes: int = HISTORY_CHANGES,
        history_bytes: int = HISTORY_BYTES,
        open_journal: Callable[[Path], Journal] = Journal,
    ) -> None:
        self.revision = 0  # the newest visible revision
        self.compacted = 0
        self._history_changes = history_changes
        self._history_bytes = history_bytes
        self._open_journal = open_journal
        self._collections: dict[str, Collection] = {}
        self._history: deque[ObjectChange] = deque()
        self._bytes = 0
        self._issued = 0
        self._pending: dict[tuple[str, str], asyncio.Future[StoredObject]] = {}
        self._unsent: list[LogEntry] = []
        self._written: dict[int, StoredObject] = {}  # pending records by revision
        self._listeners: list[Listener] = []
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._journal: Journal | None = None
        self._commits = CommitStats()
        self._undeleted_rows: list[int] = []  # rows that a compaction failed to delete

    async def open(self, directory: Path) -> None:
        """Lock the data directory and load it. Raises DataInUse, DataUnusable."""
        journal = await asyncio.to_thread(self._open_journal, directory)
        try:
            await asyncio.to_thread(self._load, journal)
        except BaseException:
            journal.close()
            raise
        journal.start(self._committed)
        self._journal, self._commits = journal, journal.commits
        if self._undeleted_rows:
            journal.compact(Compaction(self.compacted, tuple(self._undeleted_rows)))
            self._undeleted_rows.clear()

    async def close(self) -> None:
        if self._journal is not None:
            self._flush()
            journal, self._journal = self._journal, None
            await asyncio.to_thread(journal.close)
        for _, waiter in self._waiters:
            waiter.cancel()
        self._waiters.clear()

    @property
    def storage_error(self) -> str | None:
        """The reason why nothing can be stored at present; reads still work."""
        return self._journal.storage_error if self._journal is not None else None

    @property
    def commits(self) -> CommitStats:
        """Statistics of the commits since the store was opened."""
        return self._commits

    @property
    def history_bytes(self) -> int:
        return self._bytes

    def objects(self) -> dict[str, int]:
        """Return the number of objects of each resource."""
        return {name: len(collection.records) for name, collection in self._collections.items()}

    def resources(self) -> Iterable[str]:
        """Return the resources that have, or have had, objects."""
        return tuple(self._collections)

    def get(self, resource: str, key: str) -> StoredObject | None:
        collection = self._collections.get(resource)
        return None if collection is None else collection.records.get(key)

    def snapshot(self, resource: str, revision: int | None = None) -> Snapshot:
        """Return the objects at `revision`, by default the current one.

        Raises:
            Compacted: history does not reach back that far.
        """
        collection = self._collection(resource)
        if revision is None or revision >= self.revision:
            return Snapshot(collection.records, collection.keys, self.revision, collection.keys_with)
        if revision < self.compacted:
            raise Compacted(revision, self.compacted)
        undo = collection.since(revision)
        if not undo:
            return Snapshot(collection.records, collection.keys, revision, collection.keys_with)
        records = dict(collection.records)
        for change in reversed(undo):
            if change.previous is None:
                records.pop(change.record.key, None)
            else:
                records[change.record.key] = change.previous
        return Snapshot(records, sorted(records), revision)

    def changes(self, resource: str, since: int) -> list[ObjectChange]:
        """Return the changes after `since`, oldest first. Raises Compacted."""
        if since < self.compacted:
            raise Compacted(since, self.compacted)
        return self._collection(resource).since(since)

    def listen(
        self, listener: Listener, resource: str | None = None, term: FieldTerm | None = None
    ) -> Callable[[], None]:
        """Call `listener` for each later change (of one resource), at once and in order; returns the function that ends
        it.

        Args:
            term: the caller does not need changes of objects that neither match nor matched it.
        """
        if resource is None:
            self._listeners.append(listener)
            return lambda: self._listeners.remove(listener)
        return self._collection(resource).listeners.add(listener, term)

    def is_writing(self, resource: str, key: str) -> bool:
        """Return whether a write of that key is running: then `wait_current` waits."""
        return (resource, key) in self._pending

    async def wait_current(self, resource: str, key: str) -> StoredObject | None:
        """Wait for running writes of a key, then return its current record.

        A caller that writes before its next await replaces exactly this record.
        """
        while (pending := self._pending.get((resource, key))) is not None:
            await asyncio.wait((pending,))
        return self.get(resource, key)

    def write(
        self,
        resource: str,
        key: str,
        bare: Callable[[int], bytes],
        owners: ManagedFields = NO_OWNERS,
        *,
        deleted: bool = False,
    ) -> asyncio.Future[StoredObject]:
        """Begin a write, directly after `wait_current`; the future completes when the write is durable and visible.

        Args:
            bare: returns the JSON for the revision that this write gets, without managedFields.
            owners: the content of managedFields.
        Raises (from the future):
            NotStored: the write is not durable, and nothing was changed.
        """
        loop = asyncio.get_running_loop()
        future = _Write(loop=loop)
        if self._journal is None:
            future.set_exception(NotStored("the store is closed"))
            return future
        self._issued = revision = max(self._issued, self.revision) + 1
        record = StoredObject(key, revision, bare(revision), owners)
        entry = record.to_entry(resource, deleted=deleted)
        self._pending[resource, key] = future
        if not self._unsent:
            loop.call_soon(self._flush)
        self._unsent.append(entry)
        self._written[revision] = record
        return future

    def _flush(self) -> None:
        """Pass all writes of this turn of the event loop to the journal together, which wakes its thread once."""
        unsent, self._unsent = self._unsent, []
        if self._journal is not None and unsent:
            self._journal.append(unsent)

    def remove(self, resource: str, record: StoredObject) -> asyncio.Future[StoredObject]:
        """Begin a deletion; watchers get the object as last stored, with its last finalizer."""
        return self.write(
            resource, record.key, lambda revision: record.at_revision(revision).bare, record.owners, deleted=True
        )

    async def wait_idle(self) -> None:
        """Wait until every write that has begun before this call is visible or has failed."""
        if pending := tuple(self._pending.values()):
            await asyncio.wait(pending)

    async def wait_revision(self, revision: int) -> None:
        """Wait until `revision` is visible; the caller sets the limit."""
        if revision > self.revision:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((revision, waiter))
            await waiter

    def compact(self, revision: int) -> None:
        """Drop history up to `revision`: older snapshots and watches get Compacted."""
        revision = min(revision, self.revision)
        if revision <= self.compacted:
            return
        dropped: list[int] = []
        while self._history and self._history[0].revision <= revision:
            change = self._history.popleft()
            self._bytes -= len(change.record.bare)
            self._collections[change.resource].changes.popleft()
            if change.previous is not None:
                dropped.append(change.previous.revision)
            if change.deleted:
                dropped.append(change.revision)
        self.compacted = revision
        if self._journal is not None:
            self._journal.compact(Compaction(revision, tuple(dropped)))

    def replace_in_place(self, resource: str, record: StoredObject) -> None:
        """Replace the body of an object's present version, for example when its schema has gained a default."""
        self._collection(resource).put(record)

    def _collection(self, resource: str) -> Collection:
        collection = self._collections.get(resource)
        if collection is None:
            collection = self._collections[resource] = Collection()
        return collection

    def _load(self, journal: Journal) -> None:
        self.compacted = self.revision = journal.compacted()
        for entry in journal.entries():
            remember = entry.revision > self.compacted
            change, _ = self._apply(entry, StoredObject.from_entry(entry), remember=remember)
            if not remember and change.previous is not None:
                self._undeleted_rows.append(change.previous.revision)
            if not remember and change.deleted:
                self._undeleted_rows.append(entry.revision)
        self._issued = self.revision

    def _apply(
        self, entry: LogEntry, record: StoredObject, *, remember: bool = True
    ) -> tuple[ObjectChange, Collection]:
        collection = self._collection(entry.resource)
        previous = collection.remove(entry.key) if entry.deleted else collection.put(record)
        change = ObjectChange(entry.resource, record, previous, deleted=entry.deleted)
        if remember:
            collection.changes.append(change)
            self._history.append(change)
            self._bytes += len(record.bare)
        self.revision = max(self.revision, entry.revision)
        return change, collection

    def _committed(self, entries: Sequence[LogEntry], error: BaseException | None) -> None:
        records = [self._written.pop(entry.revision) for entry in entries]
        for entry, record in zip(entries, records, strict=True):
            future = self._pending.pop((entry.resource, entry.key))
            if error is not None:
                if not future.done():
                    future.set_exception(NotStored(f"the write could not be stored: {describe_error(error)}"))
                continue
            change, collection = self._apply(entry, record)
            for listener in (*self._listeners, *collection.listeners.affected(change.previous, change.record)):
                try:
                    listener(change)
                except Exception:
                    log.exception("a listener of the store failed", resource=change.resource)
            if not future.done():
                future.set_result(change.record)
        self._wake()
        self._limit_history()
        asyncio.get_running_loop().call_soon(_drop_bodies, records)  # after the waiting requests have answered

    def _wake(self) -> None:
        if not self._waiters:
            return
        ready = [w for w in self._waiters if w[0] <= self.revision]
        self._waiters = [w for w in self._waiters if w[0] > self.revision]
        for _, waiter in ready:
            if not waiter.done():
                waiter.set_result(None)

    def _limit_history(self) -> None:
        """Limit history by halves, so that compaction is rare."""
        if len(self._history) > self._history_changes:
            self.compact(self._history[len(self._history) // 2].revision)
        if self._bytes > self._history_bytes:
            spare, last = self._bytes - self._history_bytes // 2, self.compacted
            for change in self._history:
                spare -= len(change.record.bare)
                last = change.revision
                if spare <= 0:
                    break
            self.compact(last)


def _drop_bodies(records: Iterable[StoredObject]) -> None:
    for record in records:
        record.drop_body()
