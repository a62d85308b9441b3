"""Circuit breaker, without clock and sockets: after several unanswered calls, a BMC gets no calls for a while."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

SILENCES: Final = 3  # in a row, before it opens
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Pause:
    """Reason and duration of an open circuit, in seconds of the caller's monotonic clock."""

    since: float
    until: float
    silences: int
    why: str


@dataclass(slots=True)
class CircuitBreaker:
    """State of the circuit: closed, open until a time, or half open while one probe decides."""

    silences: int = 0
    opened_at: float = 0.0
    retry_at: float = 0.0
    probing: bool = False
    why: str = ""

    def pause(self, now: float) -> Pause | None:
        """Return the pause during which no call is allowed; None if a call is allowed."""
        if self.silences < SILENCES or (now >= self.retry_at and not self.probing):
            return None
        return Pause(self.opened_at, max(now, self.retry_at), self.silences, self.why)

    def call_started(self) -> None:
        """Record that an allowed call is made. If the circuit is open, the call is the probe."""
        self.probing = self.silences >= SILENCES

    def call_answered(self) -> None:
        """Record that the BMC answered, with any content."""
        self.silences, self.probing = 0, False

    def call_abandoned(self) -> None:
        """Record that the caller was cancelled before the result was known."""
        self.probing = False

    def call_unanswered(self, now: float, why: str, jitter: float | None = None) -> None:
        """Record that there was no answer. `jitter` in 0..1 shortens the pause by up to half, so that probes do not
        coincide.
        """
        self.silences, self.probing, self.why = self.silences + 1, False, why
        if self.silences == SILENCES:
            self.opened_at = now
        doublings = min(max(self.silences - SILENCES, 0), 16)
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**doublings)
        share = random.random() if jitter is None else jitter  # noqa: S311 (spreading load, not a secret)
        self.retry_at = now + pause_s * (1 - share / 2)
