"""How many operations an executor carries out at once, and who is next."""

from __future__ import annotations

from collections.abc import Callable

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
        self._inside: dict[str, bool] = {}  # uid: whether its place is lent
        self._waiting: dict[str, tuple[Order, str]] = {}  # uid: when it is due, its name

    @property
    def taken(self) -> int:
        return sum(not lent for lent in self._inside.values())

    def take(self, uid: str, name: str, order: Order) -> bool:
        """Take a place, or be woken when it is this operation's turn: the oldest first."""
        return uid in self._inside or self._queue(uid, name, order)

    def enter(self, uid: str) -> None:
        """Be inside without asking: it was claimed before this process started."""
        if uid not in self._inside:
            self._waiting.pop(uid, None)
            self._inside[uid] = False

    def lend(self, uid: str) -> None:
        """Let somebody else in while this one waits for an answer."""
        lends = self._inside.get(uid) is False
        if lends:
            self._inside[uid] = True
        waited = self._waiting.pop(uid, None) is not None
        if lends or waited:
            self._wake_next()

    def resume(self, uid: str) -> None:
        """Go on; for a moment there may be more inside than places."""
        if uid in self._inside:
            self._inside[uid] = False

    def retake(self, uid: str, name: str, order: Order) -> bool:
        """Go on from a place that may be lent for long: when there is one again, or be woken when it is its turn."""
        return self._inside.get(uid) is not True or self._queue(uid, name, order)

    def leave(self, uid: str) -> None:
        """Give the place back, or stop waiting for one."""
        waited = self._waiting.pop(uid, None) is not None
        inside = self._inside.pop(uid, None) is not None
        if waited or inside:
            self._wake_next()

    def _queue(self, uid: str, name: str, order: Order) -> bool:
        """Be inside now where there is a place that nobody older waits for; else wait for it."""
        self._waiting[uid] = (order, name)
        ahead = sum(other[0] < order for other in self._waiting.values())
        if self.taken + ahead >= self.count:
            return False
        del self._waiting[uid]
        self._inside[uid] = False
        return True

    def _wake_next(self) -> None:
        free = self.count - self.taken
        for _order, name in sorted(self._waiting.values())[: max(free, 0)]:
            self._wake(name)
