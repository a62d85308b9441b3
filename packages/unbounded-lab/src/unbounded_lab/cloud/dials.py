"""Dials of every simulated cloud: faults of requests and replies on the way, and lags.

The defaults are a cloud without faults. A cloud adds dials of its own in a class that inherits from this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudDials:
    """Dials of a cloud. Counts are of calls from the moment they are set, or FOR_EVER; `_s` is seconds.

    Args:
        only: names of the calls that the faults below apply to, as in the journal; `*` stands for any letters. Faults
            apply to logins only by name.
        accounts: subscriptions or tenancies that they apply to; all if empty.
        of: whether they apply to calls that change something.
        spared: number of those calls that pass before the counting begins.
        errors: names from the cloud's table of errors; each of the next calls is answered with one.
    """

    only: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    of: Literal["any", "reads", "changes"] = "any"
    spared: int = 0

    errors: tuple[str, ...] = ()
    errors_go_on: bool = False  # restart with the first error after the last one
    errors_after: bool = False  # the request is executed all the same
    retry_after_s: float | None = 5.0  # Retry-After of throttled and unavailable replies; None: no such header

    lost_before: int = 0  # the connection is closed before the request is executed
    lost_after: int = 0  # the request is executed, then the connection is closed
    cut_off: int = 0  # the request is executed, and the connection ends in the middle of the reply
    stalls: int = 0
    stall_s: float = 30.0
    stall_then: Literal["acted-before", "acts-after"] = "acted-before"
    slow_s: float = 0.0  # delay of each reply

    get_lag_s: float = 0.0  # single resources are shown as they were this long ago
    list_lag_s: float = 0.0  # lists, too
    rate_limits: bool = True  # enforce the published limits


COUNTS: Final = frozenset({"spared", "lost_before", "lost_after", "cut_off", "stalls"})
