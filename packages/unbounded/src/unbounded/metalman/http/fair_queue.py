"""Fair scheduling of transfers. No socket, no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Client(Generic[T]):
    ready: deque[T] = field(default_factory=deque)
    waiting: deque[T] = field(default_factory=deque)
    places: int = 0  # taken ones, whether their transfers are ready or not


class FairQueue(Generic[T]):
    """Round robin over clients, independent of their number of transfers, and over the transfers of a client.

    A client has a limited number of places; its further transfers wait until a place is free.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._clients: dict[str, _Client[T]] = {}
        self._ring: deque[str] = deque()  # clients with a ready transfer, each once

    def __len__(self) -> int:
        """Number of clients with a ready transfer."""
        return len(self._ring)

    def add(self, client: str, item: T) -> bool:
        """Add a transfer, and return whether it has a place at once. It becomes ready by `mark_ready`."""
        state = self._clients.setdefault(client, _Client())
        if state.places >= self._limit:
            state.waiting.append(item)
            return False
        state.places += 1
        return True

    def mark_ready(self, client: str, item: T) -> None:
        """Mark a transfer ready that has a place and is not ready yet."""
        state = self._clients[client]
        if not state.ready:
            self._ring.append(client)
        state.ready.append(item)

    def next(self) -> T | None:
        """Take the next ready transfer, which is no longer ready then; None if there is none."""
        if not self._ring:
            return None
        client = self._ring.popleft()
        state = self._clients[client]
        item = state.ready.popleft()
        if state.ready:
            self._ring.append(client)
        return item

    def remove(self, client: str, item: T) -> T | None:
        """Remove a transfer in any state; return the waiting one that gets its place, if there is one."""
        state = self._clients[client]
        if item in state.waiting:
            state.waiting.remove(item)
            return None
        if item in state.ready:
            state.ready.remove(item)
            if not state.ready:
                self._ring.remove(client)
        state.places -= 1
        if state.waiting:
            state.places += 1
            return state.waiting.popleft()
        if not state.places:
            del self._clients[client]
        return None
