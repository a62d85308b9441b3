"""A fair limit on concurrent runs."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from heapq import merge
from itertools import islice
from operator import itemgetter

Order = tuple[str, str]
Turn = tuple[Order, str]
"""Time at which a run is due, and its name."""


class FairLimiter:
    """A concurrency limit that runs acquire in order of age.

    A run that waits for a slow outside yields its capacity, so that only this run is slow. Runs of one group share a
    bottleneck: at most `count` of a group work or wait for an answer at once.

    Args:
        count: the number of runs that work at once.
        wake: called with the name of the run whose turn has come.
    """

    def __init__(self, count: int, wake: Callable[[str], None]) -> None:
        self.count = count
        self._wake = wake
        self._inside: dict[str, str] = {}  # group by UID; empty for a run without a shared bottleneck
        self._yielded: set[str] = set()  # of those inside: UIDs that have yielded
        self._busy: dict[str, set[str]] = {}  # by group: UIDs that run or wait for an answer
        self._waiting: dict[str, tuple[str, Turn]] = {}  # group and turn by UID
        self._in_order: dict[str, list[Turn]] = {}  # the turns of each group; there may be thousands
        self._woken: set[Turn] = set()  # of those that wait: woken, and not back since

    @property
    def in_use(self) -> int:
        return len(self._inside) - len(self._yielded)

    def acquire(self, uid: str, name: str, order: Order, group: str = "") -> bool:
        """Return whether the run has acquired capacity; else `wake` calls it at its turn, oldest first."""
        return uid in self._inside or self._queue(uid, (order, name), group)

    def adopt(self, uid: str, group: str = "") -> None:
        """Adopt a run that was claimed before this process started, even beyond the limit."""
        if uid not in self._inside:
            self._admit(uid, group)
            self._wake_next()

    def yield_(self, uid: str) -> None:
        """Yield the capacity of a run that has nothing to do."""
        self._remove_busy(uid)
        self._yield(uid)
        self._wake_next()

    def yield_waiting(self, uid: str) -> None:
        """Yield the capacity of a run that waits for an answer; it still counts in its group."""
        self._yield(uid)
        if uid in self._inside:
            self._busy.setdefault(self._inside[uid], set()).add(uid)
        self._wake_next()

    def resume(self, uid: str) -> None:
        """Work again at once; for a moment, more than `count` runs may work."""
        if uid in self._yielded:
            self._admit(uid, self._inside[uid])
            self._wake_next()

    def reacquire(self, uid: str, name: str, order: Order) -> bool:
        """Return whether the run may work again after it yielded; else `wake` calls it at its turn."""
        return uid not in self._yielded or self._queue(uid, (order, name), self._inside[uid])

    def release(self, uid: str) -> None:
        """Release the capacity, or stop waiting for it."""
        self._remove_busy(uid)
        self._remove_waiting(uid)
        self._inside.pop(uid, None)
        self._yielded.discard(uid)
        self._wake_next()

    def _queue(self, uid: str, turn: Turn, group: str) -> bool:
        """Acquire capacity where no older run could use it; else wait for it."""
        self._remove_waiting(uid)
        older = sum(bisect_left(turns, turn[0], key=itemgetter(0)) for turns in self._helped_groups())
        is_free = not self._is_full(group) and self.in_use + older < self.count
        if is_free:
            self._admit(uid, group)
        else:
            self._waiting[uid] = (group, turn)
            insort(self._in_order.setdefault(group, []), turn)
        self._wake_next()
        return is_free

    def _admit(self, uid: str, group: str) -> None:
        self._remove_waiting(uid)
        self._inside[uid] = group
        self._yielded.discard(uid)
        self._busy.setdefault(group, set()).add(uid)

    def _is_full(self, group: str) -> bool:
        return group != "" and len(self._busy.get(group, ())) >= self.count

    def _helped_groups(self) -> list[list[Turn]]:
        """Return the turns of the groups that free capacity would help."""
        return [turns for group, turns in self._in_order.items() if not self._is_full(group)]

    def _yield(self, uid: str) -> None:
        """Yield the capacity, or stop waiting for it."""
        self._remove_waiting(uid)
        if uid in self._inside:
            self._yielded.add(uid)

    def _remove_busy(self, uid: str) -> None:
        group = self._inside.get(uid, "")
        busy = self._busy.get(group, set())
        busy.discard(uid)
        if not busy:
            self._busy.pop(group, None)

    def _remove_waiting(self, uid: str) -> None:
        waited = self._waiting.pop(uid, None)
        if waited is None:
            return
        group, turn = waited
        self._woken.discard(turn)
        turns = self._in_order[group]
        del turns[bisect_left(turns, turn)]
        if not turns:
            del self._in_order[group]

    def _wake_next(self) -> None:
        """Wake the runs that could acquire capacity now.

        Each change wakes them, not only a release: a woken run that does not come leaves its turn to the next,
        and one that fills a group leaves the rest to other groups.
        """
        free = self.count - self.in_use
        for turn in list(islice(merge(*self._helped_groups()), max(free, 0))):
            if turn not in self._woken:
                self._woken.add(turn)
                self._wake(turn[1])
