"""Leases of processes, and which of them are not renewed any more.

Each process renews its Lease every few seconds, by its own clock, so a renewal in time changes nothing that a page
shows. A Lease counts as late by the time since its last renewal was observed here. Its own time counts at most when it
is first observed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from unbounded.api.core import Lease
from unbounded.explain.facts import ExplainFacts
from unbounded.kube.clock import WallClock, utc_now

LATE_S: Final = 30.0  # without a renewal: twice the time for which a Lease is held


@dataclass(frozen=True)
class SiteProcesses:
    """The processes that serve a site.

    Attributes:
        facts: their Leases, and whether the API server itself runs the controllers.
        late: names of the Leases that are not renewed any more.
    """

    facts: ExplainFacts
    late: frozenset[str] = frozenset()


class LeaderTimes:
    """Times of the last renewals of some Leases.

    Args:
        names: of the Leases; others are left out. None for all.
        late_s: time without a renewal after which a Lease is late.
        by_observation: the time in a Lease never counts, also not when it is first observed.

    Attributes:
        late: names of the Leases that are not renewed any more.
    """

    def __init__(
        self,
        names: Collection[str] | None,
        now: WallClock = utc_now,
        *,
        late_s: float = LATE_S,
        by_observation: bool = False,
    ) -> None:
        self.late: frozenset[str] = frozenset()
        self._names = names
        self._now = now
        self._late_s = late_s
        self._by_observation = by_observation
        self._renewed: dict[str, datetime] = {}  # by this clock
        self._is_interrupted = False

    def note(self, old: Lease | None, new: Lease | None) -> bool:
        """Take a change into account; return whether it shows: a renewal in time does not."""
        found = new or old
        if found is None or (self._names is not None and found.metadata.name not in self._names):
            return False
        name, now = found.metadata.name, self._now()
        if new is None:
            self._renewed.pop(name, None)
        elif old is None or name not in self._renewed:
            self._renewed[name] = now if self._by_observation else min(now, _renewed_at(new) or now)
        elif new.spec.renew_time != old.spec.renew_time:
            self._renewed[name] = now
        has_aged = self._age(now)
        return has_aged or old is None or new is None or old.spec.holder_identity != new.spec.holder_identity

    def interrupt(self) -> None:
        """Note that no renewal can be observed now."""
        self._is_interrupted = True

    def has_aged(self) -> bool:
        """Return whether other Leases are late than before, by the time alone."""
        now = self._now()
        if self._is_interrupted:  # renewals meanwhile were not observed, so that their lack proves nothing
            self._is_interrupted = False
            self._renewed = {name: at if name in self.late else now for name, at in self._renewed.items()}
        return self._age(now)

    def _age(self, now: datetime) -> bool:
        late = frozenset(name for name, at in self._renewed.items() if (now - at).total_seconds() > self._late_s)
        is_other, self.late = late != self.late, late
        return is_other


def _renewed_at(lease: Lease) -> datetime | None:
    try:
        return datetime.fromisoformat(lease.spec.renew_time or "")
    except ValueError:
        return None
