"""Resources of one kind with the history of their views: reads may lag behind."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from unbounded_lab.cloud.versioned_values import VersionedValues

Body = dict[str, Any]


class Named(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=Named)


@dataclass(frozen=True, slots=True)
class OciResourceView:
    """The view of a resource."""

    etag: str
    body: Body


class HistoryMap(Generic[T]):
    """Resources by id, oldest first."""

    def __init__(self, view: Callable[[T], Body]) -> None:
        self._view = view
        self._things: dict[str, T] = {}
        self._shown: VersionedValues[str, OciResourceView] = VersionedValues()
        self._count = 0

    def __iter__(self) -> Iterator[T]:
        return iter(self._things.values())

    def __len__(self) -> int:
        return len(self._things)

    def __getitem__(self, ident: str) -> T:
        return self._things[ident]

    def get(self, ident: str) -> T | None:
        return self._things.get(ident)

    def put(self, thing: T, at: float) -> T:
        """Store a resource in its present state; the caller calls it after each change."""
        self._count += 1
        etag = hashlib.blake2b(f"{thing.id}/{self._count}".encode(), digest_size=32).hexdigest()
        self._things[thing.id] = thing
        self._shown.put(thing.id, OciResourceView(etag, self._view(thing)), at)
        return thing

    def drop(self, ident: str, at: float) -> None:
        del self._things[ident]
        self._shown.drop(ident, at)

    def latest(self, thing: T) -> OciResourceView:
        """Return the present view of a resource."""
        shown = self._shown.get(thing.id)
        if shown is None:
            raise KeyError(thing.id)
        return shown

    def view_at(self, ident: str, as_of: float) -> OciResourceView | None:
        """Return the view of a resource as it was at a time."""
        return self._shown.value_at(ident, as_of)

    def views_at(self, as_of: float) -> list[OciResourceView]:
        return [shown for _, shown in self._shown.values_at(as_of)]
