"""A BMC as a state machine: its systems, account, Tasks and dials. No socket and no clock: time comes in as a value.

`resources.py` renders it, `actions.py` changes it, `faults.py` disturbs requests and replies, and `service.py` combines
them.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import Final

from unbounded_lab.bmc.access import BmcAccounts
from unbounded_lab.bmc.dials import COUNTS, IDEAL, BmcDials
from unbounded_lab.bmc.identity import BmcIdentity
from unbounded_lab.bmc.power import HostEvent, HostPower, Press, PressEffect, SimulatedHost
from unbounded_lab.bmc.system import USUAL_TIMES, BmcSystem, HostTimes, traits
from unbounded_lab.bmc.tasks import Tasks
from unbounded_lab.dials import FOR_EVER, Counts

JOURNAL_LENGTH: Final = 1_000


@dataclass(frozen=True, slots=True)
class BmcExchange:
    """A request as the BMC received it: the status of its reply (0: lost on the way), and the reply's delivery."""

    at: float
    method: str
    path: str
    status: int
    fate: str


class SimulatedBmc:
    """One BMC and the hosts behind it."""

    def __init__(
        self,
        identity: BmcIdentity,
        dials: BmcDials = IDEAL,
        times: HostTimes = USUAL_TIMES,
        *,
        now: float,
        power: HostPower = HostPower.ON,
    ) -> None:
        self.identity = identity
        self.times = times
        self.rng = random.Random(f"{identity.seed}/{identity.name}")  # noqa: S311 - a simulation, no secret
        self.access = BmcAccounts(identity.username, identity.password, self.rng)
        self.tasks = Tasks()
        self.mains = True
        self.requests = 0
        self.journal: deque[BmcExchange] = deque(maxlen=JOURNAL_LENGTH)
        self.recent: deque[float] = deque()  # times of the requests of the last second
        self.available_at = now
        self._first_power = power
        self._systems: dict[str, BmcSystem] = {}
        self.set_dials(dials, now)

    def set_dials(self, dials: BmcDials, now: float) -> None:
        """Set the dials; counts and durations restart."""
        self.dials = dials
        self.dials_since = now
        self.available_at = now + dials.unavailable_s
        self.access.password_changed = False
        self._counts = Counts(dials, COUNTS)
        for index, name in enumerate(dials.systems):
            if name not in self._systems:
                host = SimulatedHost(traits(self.times, dials), now=now, power=self._first_power)
                self._systems[name] = BmcSystem(name, index, host)
        for system in self._systems.values():
            system.host.advance(now)
            system.host.traits = traits(self.times, dials)

    def system(self, name: str) -> BmcSystem | None:
        return self._systems.get(name) if name in self.dials.systems else None

    @property
    def systems(self) -> list[BmcSystem]:
        return [self._systems[name] for name in self.dials.systems]

    def spend(self, count: str) -> bool:
        """Return whether a dial that counts is still on; each call uses one up."""
        return self._counts.spend(count)

    def advance(self, now: float) -> None:
        """Execute everything that is due by `now`, in order."""
        for task in self.tasks.due(now):
            task.carried_out = True
            system = self.system(task.system)
            if system is not None:
                system.press(task.press, task.ends, self.dials)
        for system in self._systems.values():
            system.host.advance(now)

    def press(self, system: BmcSystem, press: Press, now: float) -> PressEffect:
        return system.press(press, now, self.dials)

    def record_ignored_reset(self, system: BmcSystem, press: Press, now: float) -> None:
        """Record a reset that is answered with success and not executed."""
        system.host.history.append(HostEvent(now, "unheard", press.value))

    def restart(self, now: float) -> None:
        """Restart the BMC itself: it loses its sessions and Tasks and is unavailable for a while; the hosts are not
        affected.
        """
        self.access.forget_sessions()
        self.tasks.clear()
        self.available_at = now + self.dials.restart_s

    def unplug(self, now: float) -> None:
        """Cut the mains of the BMC and its hosts."""
        self.advance(now)
        self.mains = False
        for system in self._systems.values():
            system.host.unplug(now)

    def plug(self, now: float) -> None:
        """Restore the mains: the BMC restarts, the hosts follow the dial `power_restore`."""
        self.advance(now)
        if not self.mains:
            self.mains = True
            self.restart(now)
            for system in self._systems.values():
                system.host.plug(now, restore=self.dials.power_restore)

    def listening(self, now: float) -> tuple[bool, float | None]:
        """Return whether the BMC listens now, and when that changes by itself (None: never)."""
        dials, since = self.dials, self.dials_since
        if not self.mains or dials.refused_s == FOR_EVER:
            return False, None
        if now < since + dials.refused_s:
            return False, since + dials.refused_s
        if dials.flaps_s is None:
            return True, None
        up_s, down_s = dials.flaps_s
        round_start = since + (now - since) // (up_s + down_s) * (up_s + down_s)
        if now < round_start + up_s:
            return True, round_start + up_s
        return False, round_start + up_s + down_s
