"""Index of objects and of watchers by the value of one field, so that neither is searched as a whole.

An agent watches the operations of its own machine. With thousands of agents and no index, each new watch would visit
all operations, and each change all watches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

Extract = Callable[[Mapping[str, Any]], tuple[str, ...]]
T = TypeVar("T")


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
        return len(self._of_all) + sum(len(told) for values in self._of_some.values() for told in values.values())

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
