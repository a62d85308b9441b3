"""The past and the future of a simulated cloud: true events, earlier values, and scheduled events.

The cloud may report less to its clients: reads may show an earlier state.
"""

from __future__ import annotations

import hashlib
import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")
Act = Callable[[float], None]
"""Takes the time at which it was due."""
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CloudEvent:
    """A true event.

    Args:
        kind: of the resource: VirtualMachine, Disk, Instance …
        name: of the resource, in the form of its cloud.
        what: the change: created, deleted, on, off, attached, detached …
        identity: distinguishes resources with one name: a VM's vmId, an OCID.
    """

    at: float
    kind: str
    name: str
    what: str
    detail: str = ""
    identity: str = ""


class CloudHistory:
    def __init__(self) -> None:
        self.events: list[CloudEvent] = []

    def add(self, event: CloudEvent) -> None:
        self.events.append(event)

    def of(self, kind: str, name: str | None = None) -> Iterator[CloudEvent]:
        """Yield the events of all resources of a kind, or of those with one name, oldest first."""
        return (event for event in self.events if event.kind == kind and name in (None, event.name))

    def max_concurrent(self, begins: str, ends: str, *, kind: str, name: str | None = None) -> int:
        """Return the maximum number of resources at one time: one kind of event adds one, another removes one."""
        there = most = 0
        for event in self.of(kind, name):
            there += (event.what == begins) - (event.what == ends)
            most = max(most, there)
        return most


class VersionedValues(Generic[K, V]):
    """Values by key. A value is never changed in place, but replaced. The times of one key do not decrease."""

    def __init__(self) -> None:
        self._versions: dict[K, list[tuple[float, V | None]]] = {}
        self._now: dict[K, V] = {}

    def put(self, key: K, value: V, at: float) -> None:
        self._now[key] = value
        self._add(key, value, at)

    def drop(self, key: K, at: float) -> None:
        del self._now[key]
        self._add(key, None, at)

    def _add(self, key: K, value: V | None, at: float) -> None:
        versions = self._versions.setdefault(key, [])
        versions.append((max(at, versions[-1][0]) if versions else at, value))

    def get(self, key: K) -> V | None:
        """Return the true value."""
        return self._now.get(key)

    def value_at(self, key: K, as_of: float) -> V | None:
        """Return the value as it was at a time."""
        versions = self._versions.get(key, [])
        place = bisect_right(versions, as_of, key=lambda version: version[0])
        return versions[place - 1][1] if place else None

    def __iter__(self) -> Iterator[tuple[K, V]]:
        """Yield all present values, in the order of their first `put`."""
        return iter(self._now.items())

    def values_at(self, as_of: float) -> Iterator[tuple[K, V]]:
        """Yield all values as they were at a time."""
        for key in self._versions:
            value = self.value_at(key, as_of)
            if value is not None:
                yield key, value


class Schedule:
    def __init__(self) -> None:
        self._order = count()
        self._entries: list[tuple[float, int, Act]] = []

    def put(self, due: float, act: Act) -> None:
        heapq.heappush(self._entries, (due, next(self._order), act))

    def run(self, now: float) -> None:
        """Execute everything that is due by now, including what it schedules itself."""
        while self._entries and self._entries[0][0] <= now:
            due, _, act = heapq.heappop(self._entries)
            act(due)


class Named(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=Named)


@dataclass(frozen=True, slots=True)
class TaggedView:
    """The view of a resource."""

    etag: str
    body: Body


class HistoryMap(Generic[T]):
    """Resources by id, oldest first."""

    def __init__(self, view: Callable[[T], Body]) -> None:
        self._view = view
        self._things: dict[str, T] = {}
        self._shown: VersionedValues[str, TaggedView] = VersionedValues()
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
        self._shown.put(thing.id, TaggedView(etag, self._view(thing)), at)
        return thing

    def drop(self, ident: str, at: float) -> None:
        del self._things[ident]
        self._shown.drop(ident, at)

    def latest(self, thing: T) -> TaggedView:
        """Return the present view of a resource."""
        shown = self._shown.get(thing.id)
        if shown is None:
            raise KeyError(thing.id)
        return shown

    def view_at(self, ident: str, as_of: float) -> TaggedView | None:
        """Return the view of a resource as it was at a time."""
        return self._shown.value_at(ident, as_of)

    def views_at(self, as_of: float) -> list[TaggedView]:
        return [shown for _, shown in self._shown.values_at(as_of)]
