"""The size of a group of writes that share a commit.

Writers that wait for their answers write again soon after the answer. On a slow disk, the first of them would get a
commit of its own and all others the next one: two syncs instead of one. The commit therefore waits for them, for a
part of the time that this saves. A single writer never waits for others.
"""

from __future__ import annotations

from typing import Final

SLOW_S: Final = 0.004  # waiting does not pay off for a faster commit
SHARE: Final = 0.5  # of a commit's duration
LONGEST_S: Final = 0.05
GAP_S: Final = 0.002  # without another write: no more are expected then
RECENT: Final = 0.3  # weight of the last commit


class CommitGrouping:
    """The time that the next commit waits for more writes."""

    def __init__(self) -> None:
        self._writers = 1
        self._last = 0
        self._usual_s = 0.0

    def committed(self, entries: int, took_s: float) -> None:
        """Note a commit."""
        self._last = entries
        self._usual_s += RECENT * (took_s - self._usual_s)

    def begin(self, waiting: int) -> None:
        """Note the number of writes that arrived during the last commit. All of them have different writers."""
        self._writers = self._last + waiting

    def wait_s(self, count: int, waited_s: float) -> float:
        """Return the seconds to wait for one more write beside the `count` present ones; 0 to commit now."""
        if count >= self._writers or self._usual_s < SLOW_S:
            return 0.0
        left = min(SHARE * self._usual_s, LONGEST_S) - waited_s
        return max(min(left, max(GAP_S, self._usual_s / 8)), 0.0)
