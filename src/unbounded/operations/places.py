"""How many operations an executor carries out at once, and who is next."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from operator import itemgetter

Order = tuple[str, str]


class Places:
    """A bounded number of places. Whoever waits for a slow outside lends its place, so that it slows only itself.

    Args:
        count: how many operations are worked on at once.
        wake: called with the name of the operation whose turn has come.
    """

    def __init__(self, count: int, wake: Callable[[str], None]) -> None:
        self.count = count
        self._wake = wake
        self._inside: set[str] = set()
        self._lent: set[str] = set()  # of those inside
        self._waiting: dict[str, tuple[Order, str]] = {}  # uid: when it is due, its name
        self._in_order: list[tuple[Order, str]] = []  # the same, as there may be thousands

    @property
    def taken(self) -> int:
        return len(self._inside) - len(self._lent)

    def take(self, uid: str, name: str, order: Order) -> bool:
        """Take a place, or be woken when it is this operation's turn: the oldest first."""
        return uid in self._inside or self._queue(uid, name, order)

    def enter(self, uid: str) -> None:
        """Be inside without asking: it was claimed before this process started."""
        if uid not in self._inside:
            self._wait_no_longer(uid)
            self._inside.add(uid)

    def lend(self, uid: str) -> None:
        """Let somebody else in while this one waits for an answer."""
        lends = uid in self._inside and uid not in self._lent
        if lends:
            self._lent.add(uid)
        if self._wait_no_longer(uid) or lends:
            self._wake_next()

    def resume(self, uid: str) -> None:
        """Go on; for a moment there may be more inside than places."""
        self._lent.discard(uid)

    def retake(self, uid: str, name: str, order: Order) -> bool:
        """Go on from a place that may be lent for long: when there is one again, or be woken when it is its turn."""
        return uid not in self._lent or self._queue(uid, name, order)

    def leave(self, uid: str) -> None:
        """Give the place back, or stop waiting for one."""
        inside = uid in self._inside
        self._inside.discard(uid)
        self._lent.discard(uid)
        if self._wait_no_longer(uid) or inside:
            self._wake_next()

    def _queue(self, uid: str, name: str, order: Order) -> bool:
        """Be inside now where there is a place that nobody older waits for; else wait for it."""
        self._wait_no_longer(uid)
        if self.taken + bisect_left(self._in_order, order, key=itemgetter(0)) >= self.count:
            self._waiting[uid] = (order, name)
            insort(self._in_order, (order, name))
            return False
        self._inside.add(uid)
        self._lent.discard(uid)
        return True

    def _wait_no_longer(self, uid: str) -> bool:
        """Whether it has waited."""
        waited = self._waiting.pop(uid, None)
        if waited is not None:
            del self._in_order[bisect_left(self._in_order, waited)]
        return waited is not None

    def _wake_next(self) -> None:
        free = self.count - self.taken
        for _order, name in self._in_order[: max(free, 0)]:
            self._wake(name)
