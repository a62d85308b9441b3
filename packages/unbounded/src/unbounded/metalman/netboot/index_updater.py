"""Synchronization of the index with Machines and the HostReplace operations on them, one change at a time.

Counted repaves that do not start expire here: there is no BMC, and the user did not start the host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final

from unbounded.api.conditions import ConditionStatus, ConditionType
from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, utc_now
from unbounded.metalman.boot_override import as_booted
from unbounded.metalman.host_network import installer_leases
from unbounded.metalman.netboot.boot_index import BootIndex
from unbounded.metalman.netboot.boot_requests import is_counter_only, requested_boot
from unbounded.metalman.netboot.model import BootRequest, BootWindow
from unbounded.metalman.replace_table import BOOTING_KINDS
from unbounded.operations.caches import INDEX_MACHINE
from unbounded.operations.executor_selection import ExecutorKind

FINISH_S: Final = 7200.0  # how long the installed system of a counted repave may still use its prefix

Changed = Callable[[Machine], None]
Began = Callable[[Machine, BootRequest], None]


class BootIndexUpdater:
    """Update of the index from the caches.

    Args:
        operations: indexed by INDEX_MACHINE.
        site: serve the Machines of this site only; None for all sites.
        changed: called for each Machine whose leases have to be validated again.
        began, ended: called when a Machine gets a requested boot, and when it has none any more.
        stale: called with the name of a Machine whose status announces a repave that does not happen.
    """

    def __init__(
        self,
        machines: Cache[Machine],
        operations: Cache[MachineOperation],
        index: BootIndex,
        *,
        site: str | None,
        changed: Changed,
        began: Began,
        ended: Callable[[BootRequest], None],
        stale: Callable[[str], None],
        now: WallClock = utc_now,
    ) -> None:
        self._machines = machines
        self._operations = operations
        self._index = index
        self._site = site
        self._changed, self._began, self._ended = changed, began, ended
        self._now = now
        self._pending = PendingRepaves(machines, stale)
        self._contested: dict[str, tuple[str, str]] = {}  # {Machine: (its UID, boot)}, from the moment of detection on
        self._finishing: dict[str, tuple[str, str, float]] = {}  # {Machine: (its UID, boot, since)}

    async def run(self) -> None:
        """Follow the caches until cancelled; their present content is processed at once."""
        with (
            self._machines.subscribed(self._machine_changed),
            self._operations.subscribed(self._operation_changed),
        ):
            await asyncio.Event().wait()

    def is_requested(self, machine: Machine, boot: str) -> bool:
        """Return whether the boot is the requested one of a Machine as it was read; true also of one that was
        contested.
        """
        request = requested_boot(machine, self._operations.by(INDEX_MACHINE, machine.name))
        return request is not None and request.boot == boot

    def close(self, request: BootRequest) -> None:
        """End a boot at once, before the status records it."""
        self._contested[request.machine] = (request.uid, request.boot)
        self._set_request(request.machine, None)

    # ---- inside

    def _machine_changed(self, old: Machine | None, new: Machine | None) -> None:
        if new is not None:
            self._update(new)
        elif old is not None:
            self._remove(old.name)

    def _operation_changed(self, old: MachineOperation | None, new: MachineOperation | None) -> None:
        operation = new or old
        if operation is None or operation.spec.operation_kind not in BOOTING_KINDS:
            return
        machine = self._machines.get(operation.spec.machine_ref or "")
        if machine is not None:
            self._update(machine)

    def _update(self, machine: Machine) -> None:
        """Update the index and the pending repaves from a Machine."""
        request = requested_boot(machine, self._operations.by(INDEX_MACHINE, machine.name))
        if not self._is_ours(machine, request):
            self._remove(machine.name)
            return
        leases = installer_leases(machine if request is None else as_booted(machine, request.boot))
        self._notify(self._index.set_leases(machine.name, leases) | {machine.name})
        self._pending.update(machine)
        if request is not None and (self._is_contested(request) or self._is_overdue(machine, request)):
            request = None
        before = self._index.request_of(machine.name)
        self._set_request(machine.name, request)
        if request is not None and not _is_same(before, request):
            self._began(machine, request)

    def _is_ours(self, machine: Machine, request: BootRequest | None) -> bool:
        """Return whether this site serves a Machine: by the executor of the running operation, else by the Machine's
        label.
        """
        if self._site is None:
            return True
        if request is not None and request.operation:
            return request.executor == "/".join(part for part in (ExecutorKind.METALMAN, self._site) if part)
        return machine.site == self._site

    def _remove(self, name: str) -> None:
        """Remove a Machine that was deleted or belongs to another site."""
        self._notify(self._index.set_leases(name, ()) - {name})
        self._set_request(name, None)
        self._pending.remove(name)
        self._contested.pop(name, None)
        self._finishing.pop(name, None)

    def _notify(self, names: set[str]) -> None:
        for name in names:
            machine = self._machines.get(name)
            if machine is not None:
                self._changed(machine)

    def _set_request(self, name: str, request: BootRequest | None) -> None:
        before = self._index.request_of(name)
        self._index.set_request(name, request)
        if before is not None and not _is_same(before, request):
            self._ended(before)

    def _is_contested(self, request: BootRequest) -> bool:
        return self._contested.get(request.machine) == (request.uid, request.boot)

    def _is_overdue(self, machine: Machine, request: BootRequest) -> bool:
        """Return whether a counted repave has been finishing for too long; an operation has limits of its own.

        This process measures from its own first observation. A restart must not open the window again, so a milestone
        that the status recorded long ago counts, too. This is the only place that compares a time of the status.
        """
        if request.window is not BootWindow.FINISHING or request.operation:
            return False
        if self._age_s(machine) >= FINISH_S:
            return True
        loop = asyncio.get_running_loop()
        uid, boot, since = self._finishing.get(request.machine, ("", "", 0.0))
        if (uid, boot) != (request.uid, request.boot):
            self._finishing[request.machine] = (request.uid, request.boot, loop.time())
            loop.call_later(FINISH_S, self._update_again, request.machine)
            return False
        return loop.time() - since >= FINISH_S

    def _age_s(self, machine: Machine) -> float:
        """Return the age of the last milestone in the status in seconds; 0 if it is unknown."""
        seen = machine.status.netboot
        try:
            return (self._now() - datetime.fromisoformat(seen.at or "")).total_seconds() if seen is not None else 0.0
        except (ValueError, TypeError):
            return 0.0

    def _update_again(self, name: str) -> None:
        machine = self._machines.get(name)
        if machine is not None:
            self._update(machine)


def _is_same(one: BootRequest | None, other: BootRequest | None) -> bool:
    return one is not None and other is not None and (one.uid, one.boot) == (other.uid, other.boot)


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
