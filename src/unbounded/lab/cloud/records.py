"""What a cloud knows, with its past: reads can show it as it was some time ago."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Records(Generic[K, V]):
    """Values by key. A value is never changed in place: it is put anew. Of one key, no time lies before the last."""

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
        """The truth."""
        return self._now.get(key)

    def seen(self, key: K, as_of: float) -> V | None:
        """The value as it was at a time."""
        versions = self._versions.get(key, [])
        place = bisect_right(versions, as_of, key=lambda version: version[0])
        return versions[place - 1][1] if place else None

    def __iter__(self) -> Iterator[tuple[K, V]]:
        """All there is now, in the order in which it was first put."""
        return iter(self._now.items())

    def all_seen(self, as_of: float) -> Iterator[tuple[K, V]]:
        """All there was at a time."""
        for key in self._versions:
            value = self.seen(key, as_of)
            if value is not None:
                yield key, value
