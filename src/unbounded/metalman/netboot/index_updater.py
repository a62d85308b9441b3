"""Synchronization of the index with Machines and the HostReplace operations on them, one change at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final

from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, utc_now
from unbounded.metalman.netboot.boot_index import BootIndex
from unbounded.metalman.netboot.boot_requests import requested_boot
from unbounded.metalman.netboot.model import BootRequest, BootWindow
from unbounded.metalman.netboot.pending_repaves import PendingRepaves
from unbounded.operations.caches import INDEX_MACHINE
from unbounded.operations.ownership import Executor

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
        roll: BootIndex,
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
        self._roll = roll
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

    def wants(self, machine: Machine, boot: str) -> bool:
        """Return whether the boot is the requested one of a Machine as it was read; true also of one that was
        contested.
        """
        wanted = requested_boot(machine, self._operations.by(INDEX_MACHINE, machine.name))
        return wanted is not None and wanted.boot == boot

    def close(self, wanted: BootRequest) -> None:
        """End a boot at once, before the status records it."""
        self._contested[wanted.machine] = (wanted.uid, wanted.boot)
        self._want(wanted.machine, None)

    # ---- inside

    def _machine_changed(self, old: Machine | None, new: Machine | None) -> None:
        if new is not None:
            self._look_at(new)
        elif old is not None:
            self._leave(old.name)

    def _operation_changed(self, old: MachineOperation | None, new: MachineOperation | None) -> None:
        operation = new or old
        if operation is None or operation.spec.operation_kind != OperationKind.HOST_REPLACE:
            return
        machine = self._machines.get(operation.spec.machine_ref or "")
        if machine is not None:
            self._look_at(machine)

    def _look_at(self, machine: Machine) -> None:
        """Update the index and the pending repaves from a Machine."""
        wanted = requested_boot(machine, self._operations.by(INDEX_MACHINE, machine.name))
        if not self._is_ours(machine, wanted):
            self._leave(machine.name)
            return
        leases = () if machine.spec.pxe is None else machine.spec.pxe.dhcp_leases
        self._tell(self._roll.enrol(machine.name, leases) | {machine.name})
        self._pending.look_at(machine)
        if wanted is not None and (self._is_contested(wanted) or self._took_too_long(machine, wanted)):
            wanted = None
        before = self._roll.wanted(machine.name)
        self._want(machine.name, wanted)
        if wanted is not None and not _same(before, wanted):
            self._began(machine, wanted)

    def _is_ours(self, machine: Machine, wanted: BootRequest | None) -> bool:
        """Return whether this site serves a Machine: by the executor of the running operation, else by the Machine's
        label.
        """
        if self._site is None:
            return True
        if wanted is not None and wanted.operation:
            return wanted.executor == "/".join(part for part in (Executor.METALMAN, self._site) if part)
        return machine.site == self._site

    def _leave(self, name: str) -> None:
        """Remove a Machine that was deleted or belongs to another site."""
        self._tell(self._roll.enrol(name, ()) - {name})
        self._want(name, None)
        self._pending.leave(name)
        self._contested.pop(name, None)
        self._finishing.pop(name, None)

    def _tell(self, names: set[str]) -> None:
        for name in names:
            machine = self._machines.get(name)
            if machine is not None:
                self._changed(machine)

    def _want(self, name: str, wanted: BootRequest | None) -> None:
        before = self._roll.wanted(name)
        self._roll.want(name, wanted)
        if before is not None and not _same(before, wanted):
            self._ended(before)

    def _is_contested(self, wanted: BootRequest) -> bool:
        return self._contested.get(wanted.machine) == (wanted.uid, wanted.boot)

    def _took_too_long(self, machine: Machine, wanted: BootRequest) -> bool:
        """Return whether a counted repave has been finishing for too long; an operation has limits of its own.

        This process measures from its own first observation. A restart must not open the window again, so a milestone
        that the status recorded long ago counts, too. This is the only place that compares a time of the status.
        """
        if wanted.window is not BootWindow.FINISHING or wanted.operation:
            return False
        if self._age_s(machine) >= FINISH_S:
            return True
        loop = asyncio.get_running_loop()
        uid, boot, since = self._finishing.get(wanted.machine, ("", "", 0.0))
        if (uid, boot) != (wanted.uid, wanted.boot):
            self._finishing[wanted.machine] = (wanted.uid, wanted.boot, loop.time())
            loop.call_later(FINISH_S, self._look_again, wanted.machine)
            return False
        return loop.time() - since >= FINISH_S

    def _age_s(self, machine: Machine) -> float:
        """Return the age of the last milestone in the status in seconds; 0 if it is unknown."""
        seen = machine.status.netboot
        try:
            return (self._now() - datetime.fromisoformat(seen.at or "")).total_seconds() if seen is not None else 0.0
        except (ValueError, TypeError):
            return 0.0

    def _look_again(self, name: str) -> None:
        machine = self._machines.get(name)
        if machine is not None:
            self._look_at(machine)


def _same(one: BootRequest | None, other: BootRequest | None) -> bool:
    return one is not None and other is not None and (one.uid, one.boot) == (other.uid, other.boot)
