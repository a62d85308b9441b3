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
        self._woken: set[Turn] = set()  # of those that wait: who has not come since

    @property
    def taken(self) -> int:
        return len(self._inside) - len(self._lent)

    def take(self, uid: str, name: str, order: Order, lane: str = "") -> bool:
        """Take a place, or be woken when it is this operation's turn: the oldest first."""
        return uid in self._inside or self._queue(uid, (order, name), lane)

    def enter(self, uid: str, lane: str = "") -> None:
        """Be inside without asking: it was claimed before this process started."""
        if uid not in self._inside:
            self._come_in(uid, lane)
            self._wake_next()

    def lend(self, uid: str) -> None:
        """Let somebody else in while there is nothing to do for this one."""
        self._busy_no_longer(uid)
        self._lend(uid)
        self._wake_next()

    def wait(self, uid: str) -> None:
        """Let somebody else in while this one waits for an answer."""
        self._lend(uid)
        if uid in self._inside:
            self._busy.setdefault(self._inside[uid], set()).add(uid)
        self._wake_next()

    def resume(self, uid: str) -> None:
        """Go on; for a moment there may be more inside than places."""
        if uid in self._lent:
            self._come_in(uid, self._inside[uid])
            self._wake_next()

    def retake(self, uid: str, name: str, order: Order) -> bool:
        """Go on from a place that may be lent for long: when there is one again, or be woken when it is its turn."""
        return uid not in self._lent or self._queue(uid, (order, name), self._inside[uid])

    def leave(self, uid: str) -> None:
        """Give the place back, or stop waiting for one."""
        self._busy_no_longer(uid)
        self._wait_no_longer(uid)
        self._inside.pop(uid, None)
        self._lent.discard(uid)
        self._wake_next()

    def _queue(self, uid: str, turn: Turn, lane: str) -> bool:
        """Be inside now where there is a place that nobody older could have; else wait for it."""
        self._wait_no_longer(uid)
        older = sum(bisect_left(turns, turn[0], key=itemgetter(0)) for turns in self._open())
        has_place = not self._is_full(lane) and self.taken + older < self.count
        if has_place:
            self._come_in(uid, lane)
        else:
            self._waiting[uid] = (lane, turn)
            insort(self._in_order.setdefault(lane, []), turn)
        self._wake_next()
        return has_place

    def _come_in(self, uid: str, lane: str) -> None:
        self._wait_no_longer(uid)
        self._inside[uid] = lane
        self._lent.discard(uid)
        self._busy.setdefault(lane, set()).add(uid)

    def _is_full(self, lane: str) -> bool:
        return lane != "" and len(self._busy.get(lane, ())) >= self.count

    def _open(self) -> list[list[Turn]]:
        """The turns of those that a place would help."""
        return [turns for lane, turns in self._in_order.items() if not self._is_full(lane)]

    def _lend(self, uid: str) -> None:
        """Lend its place, or give up waiting for one."""
        self._wait_no_longer(uid)
        if uid in self._inside:
            self._lent.add(uid)

    def _busy_no_longer(self, uid: str) -> None:
        lane = self._inside.get(uid, "")
        busy = self._busy.get(lane, set())
        busy.discard(uid)
        if not busy:
            self._busy.pop(lane, None)

    def _wait_no_longer(self, uid: str) -> None:
        waited = self._waiting.pop(uid, None)
        if waited is None:
            return
        lane, turn = waited
        self._woken.discard(turn)
        turns = self._in_order[lane]
        del turns[bisect_left(turns, turn)]
        if not turns:
            del self._in_order[lane]

    def _wake_next(self) -> None:
        """Wake who could come in by now, after whatever has changed.

        Not those alone to whom a place was given back: who was woken for one and did not take it leaves it to the next,
        and who fills a lane leaves the rest to other lanes.
        """
        free = self.count - self.taken
        for turn in list(islice(merge(*self._open()), max(free, 0))):
            if turn not in self._woken:
                self._woken.add(turn)
                self._wake(turn[1])
