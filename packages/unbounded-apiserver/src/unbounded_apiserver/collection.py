"""The objects of one resource: their current state, their changes and their past states."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from unbounded_apiserver.records import FieldIndex, FieldKey, FieldTerm, StoredObject, Watchers

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
