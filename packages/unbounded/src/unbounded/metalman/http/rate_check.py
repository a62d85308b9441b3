"""Detection of slow clients. Pure: times are arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class MinimumRate:
    """Minimum rate of a client: `bytes` within `within_s` seconds."""

    bytes: int = 64 << 10  # firmware over the slowest BMC is faster; a stalled reader takes none
    within_s: float = 30.0


MINIMUM_RATE: Final = MinimumRate()


@dataclass(slots=True)
class RateCheck:
    """Rate of one transfer, measured from `since` on."""

    least: MinimumRate
    since: float
    sent: int = 0  # bytes sent at `since`

    def too_slow(self, sent: int, now: float) -> bool:
        """Return whether the client was slower than the minimum rate.

        Args:
            sent: bytes since the transfer began.
        """
        if sent - self.sent >= self.least.bytes:
            self.since, self.sent = now, sent
            return False
        return now - self.since > self.least.within_s
