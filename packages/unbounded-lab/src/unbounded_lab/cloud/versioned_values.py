"""Values of a cloud with their past, so that reads can show an earlier state."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


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
