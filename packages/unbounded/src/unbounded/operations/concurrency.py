"""A fair limit on the operations that an executor works on at once."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from heapq import merge
from itertools import islice
from operator import itemgetter

Order = tuple[str, str]
Turn = tuple[Order, str]
"""When an operation is due, and its name."""


class FairLimiter:
    """A concurrency limit that operations acquire in order of age.

    An operation that waits for a slow outside yields its capacity, so that only this operation is slow. Operations of
    one
    lane share a bottleneck: at most `count` of a lane run or wait for an answer at once.

    Args:
        count: the number of operations that run at once.
        wake: called with the name of the operation whose turn has come.
    """

    def __init__(self, count: int, wake: Callable[[str], None]) -> None:
        self.count = count
        self._wake = wake
        self._inside: dict[str, str] = {}  # lane by UID; empty for an operation without a shared bottleneck
        self._lent: set[str] = set()  # of those inside: UIDs that have yielded
        self._busy: dict[str, set[str]] = {}  # by lane: UIDs that run or wait for an answer
        self._waiting: dict[str, tuple[str, Turn]] = {}  # lane and turn by UID
        self._in_order: dict[str, list[Turn]] = {}  # the turns of each lane; there may be thousands
        self._woken: set[Turn] = set()  # of those that wait: woken, and not back since

    @property
    def taken(self) -> int:
        return len(self._inside) - len(self._lent)

    def take(self, uid: str, name: str, order: Order, lane: str = "") -> bool:
        """Return whether the operation has acquired capacity; else `wake` calls it at its turn, oldest first."""
        return uid in self._inside or self._queue(uid, (order, name), lane)

    def enter(self, uid: str, lane: str = "") -> None:
        """Adopt an operation that was claimed before this process started, even beyond the limit."""
        if uid not in self._inside:
            self._come_in(uid, lane)
            self._wake_next()

    def lend(self, uid: str) -> None:
        """Yield the capacity of an operation that has nothing to do."""
        self._busy_no_longer(uid)
        self._lend(uid)
        self._wake_next()

    def wait(self, uid: str) -> None:
        """Yield the capacity of an operation that waits for an answer; it still counts in its lane."""
        self._lend(uid)
        if uid in self._inside:
            self._busy.setdefault(self._inside[uid], set()).add(uid)
        self._wake_next()

    def resume(self, uid: str) -> None:
        """Run again at once; for a moment, more than `count` operations may run."""
        if uid in self._lent:
            self._come_in(uid, self._inside[uid])
            self._wake_next()

    def retake(self, uid: str, name: str, order: Order) -> bool:
        """Return whether the operation may run again after it yielded; else `wake` calls it at its turn."""
        return uid not in self._lent or self._queue(uid, (order, name), self._inside[uid])

    def leave(self, uid: str) -> None:
        """Release the capacity, or stop waiting for it."""
        self._busy_no_longer(uid)
        self._wait_no_longer(uid)
        self._inside.pop(uid, None)
        self._lent.discard(uid)
        self._wake_next()

    def _queue(self, uid: str, turn: Turn, lane: str) -> bool:
        """Acquire capacity where no older operation could use it; else wait for it."""
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
        """Return the turns of the lanes that free capacity would help."""
        return [turns for lane, turns in self._in_order.items() if not self._is_full(lane)]

    def _lend(self, uid: str) -> None:
        """Yield the capacity, or stop waiting for it."""
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
        """Wake the operations that could acquire capacity now.

        Each change wakes them, not only a release: a woken operation that does not come leaves its turn to the next,
        and
        one that fills a lane leaves the rest to other lanes.
        """
        free = self.count - self.taken
        for turn in list(islice(merge(*self._open()), max(free, 0))):
            if turn not in self._woken:
                self._woken.add(turn)
                self._wake(turn[1])
