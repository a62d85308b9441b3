"""Profiles: the faults of each BMC of a fleet, by a name.

- `ideal`: no faults.
- `field`: a mix as in a grown machine room: six in ten behave, the others have one or two faults that a patient client
  survives. The same seed gives the same mix.
- the name of a misbehaviour, or several joined with `+`: every BMC has them.
- several of these separated by commas: the BMCs of a fleet take turns; `*` and a number repeats, so that with
  `ideal*9,stalls` one in ten stalls.
"""

from __future__ import annotations

import random
from functools import reduce
from typing import Final

from unbounded_lab.bmc.faults import IDEAL, BmcFaults
from unbounded_lab.bmc.misbehaviours import MISBEHAVIOURS, summary

WELL_BEHAVED_SHARE: Final = 0.6
SECOND_FAULT_SHARE: Final = 0.3

SURVIVABLE: Final = (
    "accepts-and-does-nothing-twice",
    "refuses-what-is-so-already",
    "bad-request-when-so-already",
    "no-allowable-values",
    "allowable-values-in-action-info-only",
    "no-graceful-shutdown",
    "task-that-succeeds-slowly",
    "task-that-vanishes",
    "os-ignores-shutdown",
    "lies-about-power",
    "stale-power",
    "hides-transitions",
    "null-power-in-transition",
    "boot-mode-reverts",
    "few-sessions",
    "leaked-sessions",
    "no-session-service",
    "session-ends-midway",
    "locks-out",
    "if-match-required",
    "if-match-refused-on-actions",
    "weak-etags",
    "slow",
    "answers-lost-after-acting",
    "answers-lost-before-acting",
    "truncated-json",
    "wrong-content-type",
    "closes-each-connection",
    "unavailable-while-booting",
    "redirects-to-slashes",
)
"""Misbehaviours that the profile `field` draws from."""


def names() -> tuple[str, ...]:
    return ("ideal", "field", *MISBEHAVIOURS)


def explain(name: str) -> str:
    """Return one line about a profile."""
    if name in MISBEHAVIOURS:
        return summary(name)
    return {
        "ideal": "No faults.",
        "field": "A seeded mix: most BMCs have no faults, the others one or two that a patient client survives.",
    }[name]


def misbehaviours_for(profile: str, *, seed: int = 0, index: int = 0) -> tuple[str, ...]:
    """Return the misbehaviours of the BMC number `index` of a fleet; none for one without faults.

    Raises:
        ValueError: there is no such profile; lists those that exist.
    """
    turns = [turn for part in profile.split(",") for turn in _repeated(part)]
    if unknown := {name for turn in turns for name in turn.split("+")} - set(names()):
        raise ValueError(f"unknown profile: {', '.join(sorted(unknown))}; the profiles are {', '.join(names())}")
    requested = turns[index % len(turns)].split("+")
    if "field" in requested:
        requested += _draw(random.Random(f"{seed}/{index}/field"))  # noqa: S311 - a simulation, no secret
    return tuple(name for name in requested if name in MISBEHAVIOURS)


def _repeated(part: str) -> list[str]:
    """Return `slow*3` as three times `slow`."""
    name, _, times = part.partition("*")
    return [name] * int(times) if times.isdecimal() and int(times) > 0 else [part]


def faults_for(profile: str, *, seed: int = 0, index: int = 0) -> BmcFaults:
    """Return the faults of the BMC number `index` of a fleet.

    Raises:
        ValueError: there is no such profile; lists those that exist.
    """
    turns = (MISBEHAVIOURS[name] for name in misbehaviours_for(profile, seed=seed, index=index))
    return reduce(lambda faults, turn: turn(faults), turns, IDEAL)


def _draw(rng: random.Random) -> list[str]:
    if rng.random() < WELL_BEHAVED_SHARE:
        return []
    return rng.sample(SURVIVABLE, 2 if rng.random() < SECOND_FAULT_SHARE else 1)
