"""Expiry of counted repaves that do not start: there is no BMC, and the user did not start the host.

The condition Repaved is False from the moment on that such a repave is requested. Without any observation of its boot
for half an hour, the condition is removed; the boot remains requested. The next increment of the counter, or an image
that is written later, sets the condition again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from unbounded.api.conditions import ConditionStatus, ConditionType
from unbounded.api.machine import Machine
from unbounded.kube.cache import Cache
from unbounded.metalman.netboot.boot_requests import is_counter_only

STALE_S: Final = 1800.0


class PendingRepaves:
    """Timers of counted repaves that have not started.

    Args:
        stale: called with the Machine whose condition has to be removed, until the condition is gone.
    """

    def __init__(self, machines: Cache[Machine], stale: Callable[[str], None]) -> None:
        self._machines = machines
        self._stale = stale
        self._since: dict[str, tuple[object, float]] = {}  # {Machine: (state of its boot, time of its last change)}
        self._timed: set[str] = set()

    def update(self, machine: Machine) -> None:
        """Update the timer of a Machine; this process measures from its own first observation."""
        if not _is_pending(machine):
            self._since.pop(machine.name, None)
            return
        now, state = asyncio.get_running_loop().time(), (machine.metadata.uid, machine.status.netboot)
        known, since = self._since.get(machine.name, (None, now))
        if known != state:
            since = now
            self._since[machine.name] = (state, now)
        if now - since >= STALE_S:
            self._stale(machine.name)
        else:
            self._schedule(machine.name, since + STALE_S - now)

    def remove(self, name: str) -> None:
        """Forget a Machine that was deleted or belongs to another site."""
        self._since.pop(name, None)

    def _schedule(self, name: str, seconds: float) -> None:
        """Start a timer, at most one for each Machine, however often its percentage changes."""
        if name not in self._timed:
            self._timed.add(name)
            asyncio.get_running_loop().call_later(seconds, self._update_again, name)

    def _update_again(self, name: str) -> None:
        self._timed.discard(name)
        machine = self._machines.get(name)
        if machine is not None and name in self._since:
            self.update(machine)


def _is_pending(machine: Machine) -> bool:
    return is_counter_only(machine) and any(
        condition.type == ConditionType.REPAVED and condition.status == ConditionStatus.FALSE
        for condition in machine.status.conditions
    )
