"""The dials that every simulated cloud has: how requests and answers go wrong on the way, and what time lags.

The defaults are a cloud without faults. A cloud adds dials of its own in a class that inherits from this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Dials:
    """Counts are of calls from the moment they are set, or FOR_EVER; `_s` is seconds.

    Args:
        only: names of the calls that the faults below are for, as the journal has them; `*` stands for any letters.
            Logins are only hit when they are named.
        accounts: subscriptions or tenancies that they are for; all if empty.
        of: whether they are for calls that change something.
        spared: so many of those calls pass before the counting begins.
        errors: names from the cloud's table of errors; the next calls are answered with them, one each.
    """

    only: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    of: Literal["any", "reads", "changes"] = "any"
    spared: int = 0

    errors: tuple[str, ...] = ()
    errors_go_on: bool = False  # begin anew with the first of them when the last was given
    errors_after: bool = False  # what was asked for is done all the same
    retry_after_s: float | None = 5.0  # what throttled and unavailable answers ask for; None: they ask for nothing

    lost_before: int = 0  # the connection is closed and nothing was done
    lost_after: int = 0  # it was done, then the connection is closed
    cut_off: int = 0  # it was done, and the connection ends in the middle of the answer
    stalls: int = 0
    stall_s: float = 30.0
    stall_then: Literal["acted-before", "acts-after"] = "acted-before"
    slow_s: float = 0.0  # each answer takes so long

    get_lag_s: float = 0.0  # single things are shown as they were so long ago
    list_lag_s: float = 0.0  # lists, too
    rate_limits: bool = True  # the published ones are kept


COUNTS: Final = frozenset({"spared", "lost_before", "lost_after", "cut_off", "stalls"})
