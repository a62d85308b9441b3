"""Whose turn it is to be sent something. No socket, no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Client(Generic[T]):
    ready: deque[T] = field(default_factory=deque)
    waiting: deque[T] = field(default_factory=deque)
    places: int = 0  # taken, whether ready or not


class Turns(Generic[T]):
    """Clients take turns, however many transfers each has; of its own transfers, a client's take turns too.

    So many transfers of a client have a place at a time, and its others wait for one of these to end.
    """

    def __init__(self, places_of_one: int) -> None:
        self._places_of_one = places_of_one
        self._clients: dict[str, _Client[T]] = {}
        self._ring: deque[str] = deque()  # clients with something ready, each once

    def __len__(self) -> int:
        """How many clients have something ready."""
        return len(self._ring)

    def enter(self, client: str, item: T) -> bool:
        """Take a transfer in; whether it has a place at once. It is not ready before `ready` says so."""
        its = self._clients.setdefault(client, _Client())
        if its.places >= self._places_of_one:
            its.waiting.append(item)
            return False
        its.places += 1
        return True

    def ready(self, client: str, item: T) -> None:
        """It can go on. It has a place, and is not ready yet."""
        its = self._clients[client]
        if not its.ready:
            self._ring.append(client)
        its.ready.append(item)

    def next(self) -> T | None:
        """The one whose turn it is, which is no longer ready; None if nobody is."""
        if not self._ring:
            return None
        client = self._ring.popleft()
        its = self._clients[client]
        item = its.ready.popleft()
        if its.ready:
            self._ring.append(client)
        return item

    def leave(self, client: str, item: T) -> T | None:
        """It has ended, wherever it was; the one that has its place now, if one waited."""
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
