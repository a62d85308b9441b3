"""How many operations an executor carries out at once, and who is next."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from heapq import merge
from itertools import islice
from operator import itemgetter

Order = tuple[str, str]
Turn = tuple[Order, str]
"""When an operation is due, and its name."""


class Places:
    """A bounded number of places. Whoever waits for a slow outside lends its place, so that it slows only itself.

    What shares a lane is slowed by the same: no more of a lane are worked on or wait for answers than there are places.

    Args:
        count: how many operations are worked on at once.
        wake: called with the name of the operation whose turn has come.
    """

    def __init__(self, count: int, wake: Callable[[str], None]) -> None:
        self.count = count
        self._wake = wake
        self._inside: dict[str, str] = {}  # uid: its lane; empty for one of its own
        self._lent: set[str] = set()  # of those inside
        self._busy: dict[str, set[str]] = {}  # lane: who of it is worked on or waits for an answer
        self._waiting: dict[str, tuple[str, Turn]] = {}  # uid: its lane and turn
        self._in_order: dict[str, list[Turn]] = {}  # the turns of each lane, as there may be thousands

    @property
    def taken(self) -> int:
        return len(self._inside) - len(self._lent)

    def take(self, uid: str, name: str, order: Order, lane: str = "") -> bool:
        """Take a place, or be woken when it is this operation's turn: the oldest first."""
        return uid in self._inside or self._queue(uid, (order, name), lane)

    def enter(self, uid: str, lane: str = "") -> None:
        """Be inside without asking: it was claimed before this process started."""
        if uid not in self._inside:
            self._wait_no_longer(uid)
            self._come_in(uid, lane)

    def lend(self, uid: str) -> None:
        """Let somebody else in while there is nothing to do for this one."""
        lends = self._lends(uid)
        if self._busy_no_longer(uid) or lends:
            self._wake_next()

    def wait(self, uid: str) -> None:
        """Let somebody else in while this one waits for an answer."""
        if self._lends(uid):
            self._wake_next()
        if uid in self._inside:
            self._busy.setdefault(self._inside[uid], set()).add(uid)

    def resume(self, uid: str) -> None:
        """Go on; for a moment there may be more inside than places."""
        if uid in self._lent:
            self._come_in(uid, self._inside[uid])

    def retake(self, uid: str, name: str, order: Order) -> bool:
        """Go on from a place that may be lent for long: when there is one again, or be woken when it is its turn."""
        return uid not in self._lent or self._queue(uid, (order, name), self._inside[uid])

    def leave(self, uid: str) -> None:
        """Give the place back, or stop waiting for one."""
        busy, waited = self._busy_no_longer(uid), self._wait_no_longer(uid)
        inside = self._inside.pop(uid, None) is not None
        self._lent.discard(uid)
        if busy or waited or inside:
            self._wake_next()

    def _queue(self, uid: str, turn: Turn, lane: str) -> bool:
        """Be inside now where there is a place that nobody older could have; else wait for it."""
        self._wait_no_longer(uid)
        older = sum(bisect_left(turns, turn[0], key=itemgetter(0)) for turns in self._open())
        if self._is_full(lane) or self.taken + older >= self.count:
            self._waiting[uid] = (lane, turn)
            insort(self._in_order.setdefault(lane, []), turn)
            return False
        self._come_in(uid, lane)
        return True

    def _come_in(self, uid: str, lane: str) -> None:
        self._inside[uid] = lane
        self._lent.discard(uid)
        self._busy.setdefault(lane, set()).add(uid)

    def _is_full(self, lane: str) -> bool:
        return lane != "" and len(self._busy.get(lane, ())) >= self.count

    def _open(self) -> list[list[Turn]]:
        """The turns of those that a place would help."""
        return [turns for lane, turns in self._in_order.items() if not self._is_full(lane)]

    def _lends(self, uid: str) -> bool:
        """Whether it lends its place, or gives up waiting for one, with this."""
        lends = uid in self._inside and uid not in self._lent
        if lends:
            self._lent.add(uid)
        return self._wait_no_longer(uid) or lends

    def _busy_no_longer(self, uid: str) -> bool:
        """Whether it was."""
        lane = self._inside.get(uid, "")
        busy = self._busy.get(lane, set())
        was = uid in busy
        busy.discard(uid)
        if not busy:
            self._busy.pop(lane, None)
        return was

    def _wait_no_longer(self, uid: str) -> bool:
        """Whether it has waited for a place."""
        waited = self._waiting.pop(uid, None)
        if waited is None:
            return False
        lane, turn = waited
        turns = self._in_order[lane]
        del turns[bisect_left(turns, turn)]
        if not turns:
            del self._in_order[lane]
        return True

    def _wake_next(self) -> None:
        free = self.count - self.taken
        for _order, name in list(islice(merge(*self._open()), max(free, 0))):
            self._wake(name)
