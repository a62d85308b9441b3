"""Objects in memory: versions as JSON bytes, indexes by the value of one field, and all objects of one resource.

With an index neither objects nor watchers are searched as a whole. A collection has the current state of its
resource, its changes and its past states.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from unbounded_apiserver.database import LogEntry
from unbounded_apiserver.managed_fields.encoding import NO_OWNERS, ManagedFields, join_body, split_body

Extract = Callable[[Mapping[str, Any]], tuple[str, ...]]
T = TypeVar("T")
_RESOURCE_VERSION: Final = b'"resourceVersion":"'


class Indexed(Protocol):
    """The part of a record that the index needs."""

    @property
    def key(self) -> str: ...

    @property
    def name(self) -> str: ...

    def extract(self, extract: Extract) -> tuple[str, ...]: ...


class FieldKey(NamedTuple):
    """One of the fields that a function extracts from an object; without a function, the name."""

    extract: Extract | None = None
    position: int = 0

    def of(self, record: Indexed) -> str:
        return record.name if self.extract is None else record.extract(self.extract)[self.position]


class FieldTerm(NamedTuple):
    """A field and a value: selects the objects whose field has this value."""

    field: FieldKey
    value: str


class FieldIndex:
    """The keys of records by the value of one field."""

    def __init__(self, field: FieldKey, records: Iterable[Indexed]) -> None:
        self._field = field
        self._keys: dict[str, str | set[str]] = {}  # a set only where a value has several keys
        for record in records:
            self._add(field.of(record), record.key)

    def keys(self, value: str) -> list[str]:
        """Return the keys of a value in order."""
        found = self._keys.get(value, set())
        return [found] if isinstance(found, str) else sorted(found)

    def update(self, before: Indexed | None, after: Indexed | None) -> None:
        """Update the index after a record was added, removed or replaced."""
        if before is not None:
            self._remove(self._field.of(before), before.key)
        if after is not None:
            self._add(self._field.of(after), after.key)

    def _add(self, value: str, key: str) -> None:
        known = self._keys.setdefault(value, key)
        if isinstance(known, set):
            known.add(key)
        elif known != key:
            self._keys[value] = {known, key}

    def _remove(self, value: str, key: str) -> None:
        known = self._keys.get(value)
        if isinstance(known, set):
            known.discard(key)
        if known == key or not known:
            self._keys.pop(value, None)


class Watchers(Generic[T]):
    """Listeners for changes: of all records, or of those whose field has, or had, one value."""

    def __init__(self) -> None:
        self._of_all: dict[object, T] = {}
        self._of_some: dict[FieldKey, dict[str, dict[object, T]]] = {}

    def add(self, listener: T, term: FieldTerm | None = None) -> Callable[[], None]:
        """Add a listener; returns the function that removes it."""
        token = object()
        if term is None:
            self._of_all[token] = listener
            return lambda: _discard(self._of_all, token)
        values = self._of_some.setdefault(term.field, {})
        values.setdefault(term.value, {})[token] = listener
        return lambda: self._leave(term, token)

    def __len__(self) -> int:
        return len(self._of_all) + sum(
            len(watchers) for values in self._of_some.values() for watchers in values.values()
        )

    def affected(self, before: Indexed | None, after: Indexed) -> Iterator[T]:
        """Yield the listeners for the replacement of `before` by `after`."""
        yield from tuple(self._of_all.values())
        for field, values in tuple(self._of_some.items()):
            found = {field.of(after)} if before is None else {field.of(after), field.of(before)}
            for value in found:
                yield from tuple(values.get(value, {}).values())

    def _leave(self, term: FieldTerm, token: object) -> None:
        values = self._of_some.get(term.field, {})
        listeners = values.get(term.value, {})
        listeners.pop(token, None)
        if not listeners:
            values.pop(term.value, None)
        if not values:
            self._of_some.pop(term.field, None)


def _discard(listeners: dict[object, T], token: object) -> None:
    listeners.pop(token, None)


class StoredObject(msgspec.Struct, eq=False):
    """One version of one object.

    `bare` is its JSON without managedFields, and metadata in it begins with name, namespace, uid, resourceVersion.
    """

    key: str
    revision: int
    bare: bytes
    owners: ManagedFields = NO_OWNERS
    _body: bytes | None = None
    _labels: Mapping[str, str] | None = None
    _extracted: tuple[Extract, tuple[str, ...]] | None = None

    @staticmethod
    def from_entry(entry: LogEntry) -> StoredObject:
        """Return the record of an entry of the journal."""
        return StoredObject(entry.key, entry.revision, *split_body(entry.body))

    @property
    def body(self) -> bytes:
        """The JSON with managedFields, joined on each use: a cached copy would double the memory."""
        body, self._body = self._body, None
        return body or join_body(self.bare, self.owners)

    def drop_body(self) -> None:
        """Drop the cached body: readers need it no more often than that of any other record."""
        self._body = None

    def to_entry(self, resource: str, *, deleted: bool) -> LogEntry:
        """Return the entry for the journal. The next reader of `body`, the answer of the write, gets the same bytes."""
        self._body = join_body(self.bare, self.owners)
        return LogEntry(self.revision, resource, self.key, deleted, self._body)

    @property
    def namespace(self) -> str:
        """The namespace; '' for cluster-scoped objects."""
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
        """Return the object as fresh plain JSON, without managedFields."""
        decoded: dict[str, Any] = msgspec.json.decode(self.bare)
        return decoded

    def extract(self, extract: Extract) -> tuple[str, ...]:
        """Return the fields that `extract` finds in the object; cached as long as the same function is used."""
        if self._extracted is None or self._extracted[0] is not extract:
            self._extracted = (extract, extract(self.decode()))
        return self._extracted[1]

    def at_revision(self, revision: int) -> StoredObject:
        """Return the same object under another resourceVersion."""
        return StoredObject(self.key, revision, with_revision(self.bare, revision), self.owners)


class _LabelsOnly(msgspec.Struct):
    labels: dict[str, str] | None = None


class _MetadataOnly(msgspec.Struct):
    metadata: _LabelsOnly


_labels_of: Final = msgspec.json.Decoder(_MetadataOnly)


def with_revision(body: bytes, revision: int) -> bytes:
    """Return the JSON with metadata.resourceVersion replaced; its first mention is that of metadata (see Record)."""
    start = body.index(_RESOURCE_VERSION) + len(_RESOURCE_VERSION)
    return b"%b%d%b" % (body[:start], revision, body[body.index(b'"', start) :])


INDEXES: Final = 8  # of one resource; which fields can be selected may change


class ObjectChange(msgspec.Struct, frozen=True):
    """One step of history: `record` replaced `previous`. For a deletion, `record` is the last state of the object."""

    resource: str
    record: StoredObject
    previous: StoredObject | None
    deleted: bool

    @property
    def revision(self) -> int:
        return self.record.revision


Listener = Callable[[ObjectChange], None]


class Collection:
    """The objects of one resource in key order, and the changes that history still contains."""

    __slots__ = ("changes", "indexes", "keys", "listeners", "records")

    def __init__(self) -> None:
        self.indexes: dict[FieldKey, FieldIndex] = {}
        self.records: dict[str, StoredObject] = {}
        self.keys: list[str] = []
        self.changes: deque[ObjectChange] = deque()
        self.listeners: Watchers[Listener] = Watchers()

    def put(self, record: StoredObject) -> StoredObject | None:
        previous = self.records.get(record.key)
        if previous is None:
            insort(self.keys, record.key)
        self.records[record.key] = record
        for index in self.indexes.values():
            index.update(previous, record)
        return previous

    def remove(self, key: str) -> StoredObject | None:
        previous = self.records.pop(key, None)
        if previous is not None:
            del self.keys[bisect_left(self.keys, key)]
            for index in self.indexes.values():
                index.update(previous, None)
        return previous

    def keys_with(self, term: FieldTerm) -> list[str]:
        """Return the keys of the objects whose field has this value, in order. Each field is indexed on first use."""
        index = self.indexes.get(term.field)
        if index is None:
            if len(self.indexes) >= INDEXES:
                del self.indexes[next(iter(self.indexes))]
            index = self.indexes[term.field] = FieldIndex(term.field, self.records.values())
        return index.keys(term.value)

    def since(self, revision: int) -> list[ObjectChange]:
        """Return the changes after `revision`, oldest first."""
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
        having: finds the keys of a term; without it there is no index.
    """

    __slots__ = ("_keys_with", "keys", "records", "revision")

    def __init__(
        self,
        records: Mapping[str, StoredObject],
        keys: Sequence[str],
        revision: int,
        having: Callable[[FieldTerm], Sequence[str]] | None = None,
    ) -> None:
        self.records = records
        self.keys = keys
        self.revision = revision
        self._keys_with = having

    def with_prefix(self, prefix: str, start: str = "", term: FieldTerm | None = None) -> Iterator[StoredObject]:
        """Yield records whose key begins with `prefix`, from key `start` on. With `term`, others may be left out."""
        keys = self.keys if term is None or self._keys_with is None else self._keys_with(term)
        first = bisect_left(keys, max(prefix, start))
        for index in range(first, len(keys)):
            key = keys[index]
            if not key.startswith(prefix):
                return
            yield self.records[key]
