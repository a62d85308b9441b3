"""The size of a group of writes that share a commit.

Writers that wait for their answers come again soon after it. On a slow disk the first of them would have a commit of
its own, and all others the next one: two syncs for what one could do. So the commit waits for them, for a part of what
it saves; a single writer never waits for others.
"""

from __future__ import annotations

from typing import Final

SLOW_S: Final = 0.004  # a commit that is faster is not worth waiting for
SHARE: Final = 0.5  # of a commit's duration
LONGEST_S: Final = 0.05
GAP_S: Final = 0.002  # without another write: then no more are on their way
RECENT: Final = 0.3  # weight of the last commit


class Grouping:
    """How long the next commit waits for more writes."""

    def __init__(self) -> None:
        self._writers = 1
        self._last = 0
        self._usual_s = 0.0

    def committed(self, entries: int, took_s: float) -> None:
        """Note a commit."""
        self._last = entries
        self._usual_s += RECENT * (took_s - self._usual_s)

    def begin(self, waiting: int) -> None:
        """Note how many writes have come during the last commit: they and its own are by writers of their own."""
        self._writers = self._last + waiting

    def wait_s(self, count: int, waited_s: float) -> float:
        """Return for how long to wait for one more write beside the `count` that are there; 0 to commit now."""
        if count >= self._writers or self._usual_s < SLOW_S:
            return 0.0
        left = min(SHARE * self._usual_s, LONGEST_S) - waited_s
        return max(min(left, max(GAP_S, self._usual_s / 8)), 0.0)
