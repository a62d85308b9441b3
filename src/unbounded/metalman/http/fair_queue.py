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

    def __init__(self, places_of_one: int) -> None:
        self._places_of_one = places_of_one
        self._clients: dict[str, _Client[T]] = {}
        self._ring: deque[str] = deque()  # clients with a ready transfer, each once

    def __len__(self) -> int:
        """Number of clients with a ready transfer."""
        return len(self._ring)

    def enter(self, client: str, item: T) -> bool:
        """Add a transfer, and return whether it has a place at once. It becomes ready by `ready`."""
        its = self._clients.setdefault(client, _Client())
        if its.places >= self._places_of_one:
            its.waiting.append(item)
            return False
        its.places += 1
        return True

    def ready(self, client: str, item: T) -> None:
        """Mark a transfer ready that has a place and is not ready yet."""
        its = self._clients[client]
        if not its.ready:
            self._ring.append(client)
        its.ready.append(item)

    def next(self) -> T | None:
        """Take the next ready transfer, which is no longer ready then; None if there is none."""
        if not self._ring:
            return None
        client = self._ring.popleft()
        its = self._clients[client]
        item = its.ready.popleft()
        if its.ready:
            self._ring.append(client)
        return item

    def leave(self, client: str, item: T) -> T | None:
        """Remove a transfer in any state; return the waiting one that gets its place, if there is one."""
        its = self._clients[client]
        if item in its.waiting:
            its.waiting.remove(item)
            return None
        if item in its.ready:
            its.ready.remove(item)
            if not its.ready:
                self._ring.remove(client)
        its.places -= 1
        if its.waiting:
            its.places += 1
            return its.waiting.popleft()
        if not its.places:
            del self._clients[client]
        return None
