"""All objects and their recent history, in memory as stored JSON bytes, over the journal.

Reads and watches never touch the disk. A write is visible here only after the journal has it, in the order of
revisions. Nothing in here knows about kinds: a resource is a string such as `configmaps` or `widgets.example.com`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from unbounded.apiserver.database import Entry, said
from unbounded.apiserver.finding import Audience, Extract, Field, Index, Term
from unbounded.apiserver.journal import Commits, Compaction, Journal
from unbounded.apiserver.managed.owners import NOBODY, Owners, joined, split
from unbounded.kube.logs import Log

INDEXES: Final = 8  # of one resource; which fields can be selected may change
HISTORY_CHANGES: Final = 20_000
HISTORY_BYTES: Final = 32 * 2**20
RESOURCE_VERSION: Final = b'"resourceVersion":"'

log = Log(__name__)


class Compacted(Exception):
    """History before `oldest` is gone."""

    def __init__(self, asked: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {asked} ({oldest})")
        self.asked = asked
        self.oldest = oldest


class NotStored(Exception):
    """The journal could not make a write durable; nothing of it is visible."""


class Record:
    """One version of one object.

    `bare` is its JSON without managedFields, and metadata in it begins with name, namespace, uid, resourceVersion.
    """

    __slots__ = ("_body", "_fields", "_labels", "bare", "key", "owners", "revision")

    def __init__(self, key: str, revision: int, bare: bytes, owners: Owners = NOBODY) -> None:
        self.key = key
        self.revision = revision
        self.bare = bare
        self.owners = owners
        self._body: bytes | None = None
        self._labels: Mapping[str, str] | None = None
        self._fields: tuple[Extract, tuple[str, ...]] | None = None

    @staticmethod
    def read(entry: Entry) -> Record:
        """What the journal holds."""
        return Record(entry.key, entry.revision, *split(entry.body))

    @property
    def body(self) -> bytes:
        """The JSON as it is shown and stored; made anew each time, as to keep it would take twice the memory."""
        body, self._body = self._body, None
        return body or joined(self.bare, self.owners)

    def settle(self) -> None:
        """The body is wanted no more than that of any other record."""
        self._body = None

    def entry(self, resource: str, *, deleted: bool) -> Entry:
        """What the journal is to hold. Whoever asks for `body` next gets the same bytes: that is the answer."""
        self._body = joined(self.bare, self.owners)
        return Entry(self.revision, resource, self.key, deleted, self._body)

    @property
    def namespace(self) -> str:
        """Empty for cluster-scoped objects."""
        return self.key.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def labels(self) -> Mapping[str, str]:
        if self._labels is None:
            self._labels = _labels_of.decode(self.bare).metadata.labels or {}
        return self._labels

    def decode(self) -> dict[str, Any]:
        """The object as fresh plain JSON, without managedFields."""
        decoded: dict[str, Any] = msgspec.json.decode(self.bare)
        return decoded

    def fields(self, extract: Extract) -> tuple[str, ...]:
        """What `extract` finds in the object, remembered for as long as the same function asks."""
        if self._fields is None or self._fields[0] is not extract:
            self._fields = (extract, extract(self.decode()))
        return self._fields[1]

    def at(self, revision: int) -> Record:
        """The same object under another resourceVersion."""
        return Record(self.key, revision, with_revision(self.bare, revision), self.owners)


class _LabelsOnly(msgspec.Struct):
    labels: dict[str, str] | None = None


class _MetadataOnly(msgspec.Struct):
    metadata: _LabelsOnly


_labels_of: Final = msgspec.json.Decoder(_MetadataOnly)


def with_revision(body: bytes, revision: int) -> bytes:
    """The JSON with metadata.resourceVersion replaced; its first mention is that of metadata (see Record)."""
    start = body.index(RESOURCE_VERSION) + len(RESOURCE_VERSION)
    return b"%b%d%b" % (body[:start], revision, body[body.index(b'"', start) :])


class _Write(asyncio.Future[Record]):
    """A write under way. Who waits for it and is cancelled hears of that when it has ended: nothing stops a write."""

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ARG002 - as futures are asked
        return False


class Change:
    """One step of history: `record` replaced `previous`; for a deletion it is the object as it was last seen."""

    __slots__ = ("deleted", "previous", "record", "resource")

    def __init__(self, resource: str, record: Record, previous: Record | None, *, deleted: bool) -> None:
        self.resource = resource
        self.record = record
        self.previous = previous
        self.deleted = deleted

    @property
    def revision(self) -> int:
        return self.record.revision


Listener = Callable[[Change], None]


class Collection:
    """The objects of one resource, their order, and the changes that history still holds."""

    __slots__ = ("changes", "indexes", "keys", "listeners", "records")

    def __init__(self) -> None:
        self.indexes: dict[Field, Index] = {}
        self.records: dict[str, Record] = {}
        self.keys: list[str] = []
        self.changes: deque[Change] = deque()
        self.listeners: Audience[Listener] = Audience()

    def put(self, record: Record) -> Record | None:
        previous = self.records.get(record.key)
        if previous is None:
            insort(self.keys, record.key)
        self.records[record.key] = record
        for index in self.indexes.values():
            index.moved(previous, record)
        return previous

    def remove(self, key: str) -> Record | None:
        previous = self.records.pop(key, None)
        if previous is not None:
            del self.keys[bisect_left(self.keys, key)]
            for index in self.indexes.values():
                index.moved(previous, None)
        return previous

    def having(self, term: Term) -> list[str]:
        """The keys of the objects in which a field has one value, in order; each field is indexed on first use."""
        index = self.indexes.get(term.field)
        if index is None:
            if len(self.indexes) >= INDEXES:
                del self.indexes[next(iter(self.indexes))]
            index = self.indexes[term.field] = Index(term.field, self.records.values())
        return index.keys(term.value)

    def since(self, revision: int) -> list[Change]:
        """Changes after `revision`, oldest first."""
        found = []
        for change in reversed(self.changes):
            if change.revision <= revision:
                break
            found.append(change)
        found.reverse()
        return found


class Snapshot:
    """The objects of one resource at one revision, in key order.

    Args:
        having: finds the keys of a term; without it nothing is indexed.
    """

    __slots__ = ("_having", "keys", "records", "revision")

    def __init__(
        self,
        records: Mapping[str, Record],
        keys: Sequence[str],
        revision: int,
        having: Callable[[Term], Sequence[str]] | None = None,
    ) -> None:
        self.records = records
        self.keys = keys
        self.revision = revision
        self._having = having

    def within(self, prefix: str, start: str = "", term: Term | None = None) -> Iterator[Record]:
        """Records whose key begins with `prefix`, from key `start` on; with `term`, others may be left out."""
        keys = self.keys if term is None or self._having is None else self._having(term)
        first = bisect_left(keys, max(prefix, start))
        for index in range(first, len(keys)):
            key = keys[index]
            if not key.startswith(prefix):
                return
            yield self.records[key]


class Store:
    """Objects by resource and key, with optimistic writes and history. Used from one event loop."""

    def __init__(
        self,
        *,
        history_changes: int = HISTORY_CHANGES,
        history_bytes: int = HISTORY_BYTES,
        open_journal: Callable[[Path], Journal] = Journal,
    ) -> None:
        self.revision = 0  # the newest that is visible
        self.compacted = 0
        self._history_changes = history_changes
        self._history_bytes = history_bytes
        self._open_journal = open_journal
        self._collections: dict[str, Collection] = {}
        self._history: deque[Change] = deque()
        self._bytes = 0
        self._issued = 0
        self._pending: dict[tuple[str, str], asyncio.Future[Record]] = {}
        self._begun: list[Entry] = []
        self._written: dict[int, Record] = {}  # what is pending, by revision
        self._listeners: list[Listener] = []
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._journal: Journal | None = None
        self._commits = Commits()
        self._leftover: list[int] = []  # rows that a compaction did not get to delete

    async def open(self, directory: Path) -> None:
        """Take the data directory and load it. Raises DataInUse, DataUnusable."""
        journal = await asyncio.to_thread(self._open_journal, directory)
        try:
            await asyncio.to_thread(self._load, journal)
        except BaseException:
            journal.close()
            raise
        journal.start(self._committed)
        self._journal, self._commits = journal, journal.commits
        if self._leftover:
            journal.compact(Compaction(self.compacted, tuple(self._leftover)))
            self._leftover.clear()

    async def close(self) -> None:
        if self._journal is not None:
            self._hand_over()
            journal, self._journal = self._journal, None
            await asyncio.to_thread(journal.close)
        for _, waiter in self._waiters:
            waiter.cancel()
        self._waiters.clear()

    @property
    def trouble(self) -> str | None:
        """Why nothing can be stored at present; reads go on."""
        return self._journal.trouble if self._journal is not None else None

    @property
    def commits(self) -> Commits:
        """What was written to disk since the store was opened."""
        return self._commits

    @property
    def history_bytes(self) -> int:
        return self._bytes

    def objects(self) -> dict[str, int]:
        """How many objects each resource has."""
        return {name: len(collection.records) for name, collection in self._collections.items()}

    def resources(self) -> Iterable[str]:
        """The resources that have, or have had, objects."""
        return tuple(self._collections)

    def get(self, resource: str, key: str) -> Record | None:
        collection = self._collections.get(resource)
        return None if collection is None else collection.records.get(key)

    def snapshot(self, resource: str, revision: int | None = None) -> Snapshot:
        """The objects at `revision`, by default now.

        Raises:
            Compacted: history does not reach back that far.
        """
        collection = self._collection(resource)
        if revision is None or revision >= self.revision:
            return Snapshot(collection.records, collection.keys, self.revision, collection.having)
        if revision < self.compacted:
            raise Compacted(revision, self.compacted)
        undo = collection.since(revision)
        if not undo:
            return Snapshot(collection.records, collection.keys, revision, collection.having)
        records = dict(collection.records)
        for change in reversed(undo):
            if change.previous is None:
                records.pop(change.record.key, None)
            else:
                records[change.record.key] = change.previous
        return Snapshot(records, sorted(records), revision)

    def changes(self, resource: str, since: int) -> list[Change]:
        """What happened after `since`, oldest first. Raises Compacted."""
        if since < self.compacted:
            raise Compacted(since, self.compacted)
        return self._collection(resource).since(since)

    def listen(self, listener: Listener, resource: str | None = None, term: Term | None = None) -> Callable[[], None]:
        """Call `listener` for each change from now on (of one resource), at once, in order; returns the way to end.

        Args:
            term: changes of objects for which it neither holds nor held may be left out.
        """
        if resource is None:
            self._listeners.append(listener)
            return lambda: self._listeners.remove(listener)
        return self._collection(resource).listeners.add(listener, term)

    async def turn(self, resource: str, key: str) -> Record | None:
        """The current record, when no write of that key is under way.

        A caller that writes before it awaits anything else has replaced exactly what this returned.
        """
        while (pending := self._pending.get((resource, key))) is not None:
            await asyncio.wait((pending,))
        return self.get(resource, key)

    def write(
        self,
        resource: str,
        key: str,
        bare: Callable[[int], bytes],
        owners: Owners = NOBODY,
        *,
        deleted: bool = False,
    ) -> asyncio.Future[Record]:
        """Begin a write, straight after `turn`; the future ends when it is durable and visible.

        Args:
            bare: the JSON for the revision that this write gets, without managedFields.
            owners: what managedFields are to say.
        Raises (from the future):
            NotStored: it is not durable, and nothing was changed.
        """
        future = _Write(loop=asyncio.get_running_loop())
        if self._journal is None:
            future.set_exception(NotStored("the store is closed"))
            return future
        self._issued = revision = max(self._issued, self.revision) + 1
        record = Record(key, revision, bare(revision), owners)
        entry = record.entry(resource, deleted=deleted)
        self._pending[resource, key] = future
        if not self._begun:
            asyncio.get_running_loop().call_soon(self._hand_over)
        self._begun.append(entry)
        self._written[revision] = record
        return future

    def _hand_over(self) -> None:
        """Give the journal what has begun in this turn of the event loop at once: that is one wake-up, not many."""
        begun, self._begun = self._begun, []
        if self._journal is not None and begun:
            self._journal.append(begun)

    def remove(self, resource: str, record: Record) -> asyncio.Future[Record]:
        """Begin a deletion; watchers see the object as it was stored last, with the finalizer that held it."""
        return self.write(resource, record.key, lambda revision: record.at(revision).bare, record.owners, deleted=True)

    async def settled(self) -> None:
        """Wait until every write that has begun before this call is visible or refused."""
        if pending := tuple(self._pending.values()):
            await asyncio.wait(pending)

    async def reached(self, revision: int) -> None:
        """Wait until `revision` is visible; the caller sets the limit."""
        if revision > self.revision:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((revision, waiter))
            await waiter

    def compact(self, revision: int) -> None:
        """Forget history up to `revision`: older snapshots and watches get Compacted."""
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

    def replace_in_place(self, resource: str, record: Record) -> None:
        """Show another body for the same version of an object, as when its schema has gained a default."""
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
            change, _ = self._apply(entry, Record.read(entry), remember=remember)
            if not remember and change.previous is not None:
                self._leftover.append(change.previous.revision)
            if not remember and change.deleted:
                self._leftover.append(entry.revision)
        self._issued = self.revision

    def _apply(self, entry: Entry, record: Record, *, remember: bool = True) -> tuple[Change, Collection]:
        collection = self._collection(entry.resource)
        previous = collection.remove(entry.key) if entry.deleted else collection.put(record)
        change = Change(entry.resource, record, previous, deleted=entry.deleted)
        if remember:
            collection.changes.append(change)
            self._history.append(change)
            self._bytes += len(record.bare)
        self.revision = max(self.revision, entry.revision)
        return change, collection

    def _committed(self, entries: Sequence[Entry], error: BaseException | None) -> None:
        records = [self._written.pop(entry.revision) for entry in entries]
        for entry, record in zip(entries, records, strict=True):
            future = self._pending.pop((entry.resource, entry.key))
            if error is not None:
                if not future.done():
                    future.set_exception(NotStored(f"the write could not be stored: {said(error)}"))
                continue
            change, collection = self._apply(entry, record)
            for listener in (*self._listeners, *collection.listeners.of(change.previous, change.record)):
                _tell(listener, change)
            if not future.done():
                future.set_result(change.record)
        self._wake()
        self._bound()
        asyncio.get_running_loop().call_soon(_settle, records)  # when those who waited have answered

    def _wake(self) -> None:
        if not self._waiters:
            return
        ready = [w for w in self._waiters if w[0] <= self.revision]
        self._waiters = [w for w in self._waiters if w[0] > self.revision]
        for _, waiter in ready:
            if not waiter.done():
                waiter.set_result(None)

    def _bound(self) -> None:
        """Keep history within its bounds, by halves, so that compaction is rare."""
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


def _settle(records: Iterable[Record]) -> None:
    for record in records:
        record.settle()


def _tell(listener: Listener, change: Change) -> None:
    try:
        listener(change)
    except Exception:
        log.exception("a listener of the store failed", resource=change.resource)
