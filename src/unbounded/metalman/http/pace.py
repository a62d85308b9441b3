"""Whether a client takes what it is sent. No clock: times come in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Least:
    """What a client has to take to be worth a place: so many bytes in so many seconds."""

    bytes: int = 64 << 10  # firmware over the slowest BMC takes more; a reader that stalls takes none
    within_s: float = 30.0


LEAST: Final = Least()


@dataclass(slots=True)
class Pace:
    """One transfer's. The time runs from its first look on."""

    least: Least
    since: float
    sent: int = 0  # by then

    def too_slow(self, sent: int, now: float) -> bool:
        """Whether too little has gone out for too long.

        Args:
            sent: bytes since the transfer began.
        """
        if sent - self.sent >= self.least.bytes:
            self.since, self.sent = now, sent
            return False
        return now - self.since > self.least.within_s
