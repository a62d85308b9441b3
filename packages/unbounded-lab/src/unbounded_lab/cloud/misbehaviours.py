"""Faults of every simulated cloud, and its named misbehaviours, each of which sets faults.

Faults concern requests and replies on their way, and lags. Misbehaviours can be combined (`stalls+stale-reads`):
each sets only its own faults.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final, Generic, Literal, TypeVar

from unbounded_lab.faults import FOR_EVER

COUNTS: Final = frozenset({"spared", "lost_before", "lost_after", "cut_off", "stalls"})
IDEAL: Final = "ideal"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudFaults:
    """Faults of a cloud. Counts are of calls from the moment they are set, or FOR_EVER; `_s` is seconds.

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


D = TypeVar("D", bound=CloudFaults)


class Misbehaviours(Generic[D]):
    """The misbehaviours of one cloud by name: the name of a function with dashes for underscores.

    Args:
        ideal: a cloud without faults.
    """

    def __init__(self, ideal: D, turns: Iterable[Callable[[D], D]]) -> None:
        self._ideal = ideal
        self.turns: Mapping[str, Callable[[D], D]] = {turn.__name__.replace("_", "-"): turn for turn in turns}

    def faults(self, profile: str) -> D:
        """Return the faults of one misbehaviour, of several joined with `+`, or of `ideal`.

        Raises:
            ValueError: there is no such misbehaviour; lists those that exist.
        """
        requested = [name for name in profile.split("+") if name != IDEAL]
        if unknown := [name for name in requested if name not in self.turns]:
            raise ValueError(f"unknown profile: {', '.join(unknown)}; the profiles are {', '.join(self.names())}")
        return reduce(lambda faults, name: self.turns[name](faults), requested, self._ideal)

    def names(self) -> tuple[str, ...]:
        return (IDEAL, *self.turns)

    def explain(self, name: str) -> str:
        """Return one line about a profile."""
        if name == IDEAL:
            return "No faults."
        return (inspect.getdoc(self.turns[name]) or "").partition("\n")[0]


def answers_lost_before_acting(faults: D) -> D:
    """The next two changes are lost: the connection is closed and nothing was done."""
    return replace(faults, of="changes", lost_before=2)


def answers_lost_after_acting(faults: D) -> D:
    """The next two changes are carried out, and their answers are lost with the connection."""
    return replace(faults, of="changes", lost_after=2)


def answers_cut_off(faults: D) -> D:
    """The next two answers end in the middle, with the connection."""
    return replace(faults, cut_off=2)


def stalls(faults: D) -> D:
    """Every request is carried out at once and answered after 30 s."""
    return replace(faults, stalls=FOR_EVER)


def stalls_before_acting(faults: D) -> D:
    """Every request waits 30 s before it is carried out."""
    return replace(faults, stalls=FOR_EVER, stall_then="acts-after")


def slow(faults: D) -> D:
    """Every answer takes 3 s."""
    return replace(faults, slow_s=3.0)


def throttles(faults: D) -> D:
    """The next five requests are refused with 429 and Retry-After."""
    return replace(faults, errors=(*faults.errors, *("TooManyRequests",) * 5))


def throttles_without_a_hint(faults: D) -> D:
    """The next five requests are refused with 429, without Retry-After."""
    return replace(faults, errors=(*faults.errors, *("TooManyRequests",) * 5), retry_after_s=None)


def internal_errors(faults: D) -> D:
    """The next three requests fail with 500; nothing was done."""
    return replace(faults, errors=(*faults.errors, *("InternalServerError",) * 3))


def unavailable(faults: D) -> D:
    """The next three requests are refused with 503."""
    return replace(faults, errors=(*faults.errors, *("ServiceUnavailable",) * 3))


def stale_reads(faults: D) -> D:
    """Single things and lists are shown as they were 10 s ago: what was just created is not there (404)."""
    return replace(faults, get_lag_s=10.0, list_lag_s=10.0)


def stale_lists(faults: D) -> D:
    """Lists are shown as they were 30 s ago; single things as they are."""
    return replace(faults, list_lag_s=30.0)


COMMON: Final = (
    answers_lost_before_acting,
    answers_lost_after_acting,
    answers_cut_off,
    stalls,
    stalls_before_acting,
    slow,
    throttles,
    throttles_without_a_hint,
    internal_errors,
    unavailable,
    stale_reads,
    stale_lists,
)
"""In every cloud's table. They name the errors TooManyRequests, InternalServerError and ServiceUnavailable, which every
cloud has under these names."""
