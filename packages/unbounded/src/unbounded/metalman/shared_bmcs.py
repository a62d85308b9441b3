"""Machines that name the same BMC and device: a condition on each, and mutual exclusion of their host operations.

Two Machines with one BMC are one host, which two operations would switch at the same time. The gates of `operations`
hold back a claim while another Machine is locked. This module covers two further cases: a claim in progress, and,
before each action, a lock that another metalman took at the same moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from unbounded.api.conditions import (
    ConditionReason,
    ConditionStatus,
    ConditionType,
    find_condition,
    fit_message,
    named_alike,
    set_condition,
)
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.kube.api import Api, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.controller import Controller
from unbounded.kube.logs import Log
from unbounded.kube.process import Runtime
from unbounded.kube.status_writer import StatusWriter
from unbounded.operations import reasons
from unbounded.operations.caches import INDEX_BMC, sharing_bmc
from unbounded.operations.claim_gates import Gate, target_in_use
from unbounded.operations.executor_protocol import NotDone
from unbounded.operations.executor_selection import bmc_of

CLAIMING_S: Final = 30.0  # from open gates to the lock: one reading of a BMC, which may be slow

log = Log("metalman")


@dataclass(frozen=True)
class _PendingClaim:
    """Operation that may claim its Machine, and does not hold the lock yet."""

    uid: str
    name: str
    machine: str
    until: float


class SharedBmcs:
    """Mutual exclusion of host operations on Machines with the same BMC, for all engines of one process.

    Args:
        machines: of all sites, indexed by INDEX_BMC.
    """

    def __init__(self, api: Api, machines: Cache[Machine]) -> None:
        self._api = api
        self._machines = machines
        self._claiming: dict[str, _PendingClaim] = {}  # by BMC

    def machines(self) -> Sequence[Machine]:
        """Return the Machines of all sites."""
        return self._machines.all()

    def claim_gate(self, operation: MachineOperation, machine: Machine) -> Gate | None:
        """Return the gate of another Machine with the same BMC; None reserves the BMC for this claim."""
        others, bmc = sharing_bmc(self._machines, machine), bmc_of(machine)
        if not others or bmc is None:
            return None
        if (gate := target_in_use(operation, machine, others)) is not None:
            return gate
        now, first = asyncio.get_running_loop().time(), self._claiming.get(bmc)
        if first is not None and first.uid != operation.metadata.uid and now < first.until and self._waits(first):
            text = f"{first.name} is about to claim Machine {first.machine}, which names the same BMC and device: {bmc}"
            return Gate(reasons.TARGET_IN_USE, text, first.name)
        self._claiming[bmc] = _PendingClaim(operation.metadata.uid, operation.name, machine.name, now + CLAIMING_S)
        return None

    def _waits(self, first: _PendingClaim) -> bool:
        """Return whether a reservation still counts: once the claim is complete, the Machine's lock replaces it."""
        machine = self._machines.get(first.machine)
        holder = machine.status.active_operation if machine is not None else None
        return machine is not None and (holder is None or holder.uid != first.uid)

    async def check(self, machine: Machine) -> None:
        """Check before an action that no operation holds another Machine with this BMC.

        Each operation takes its lock before it reads the others' locks, so at least one of two simultaneous ones sees
        the other.

        Raises:
            NotDone: another operation does; nothing is sent.
        """
        for other in sharing_bmc(self._machines, machine):
            try:
                live = await self._api.get(MACHINES, other.name)
            except NotFound:
                continue
            holder = live.status.active_operation
            if holder is None or holder.lost or not _is_host(holder.kind) or bmc_of(live) != bmc_of(machine):
                continue
            words = (
                f"{holder.kind} {holder.name} holds the lock of Machine {live.name}, which names the same BMC: "
                "nothing was sent"
            )
            raise NotDone(reasons.TARGET_IN_USE, words)


def _is_host(kind: str) -> bool:
    return kind in set(OperationKind) and OperationKind(kind).is_out_of_band


class SharedBmcController:
    """Writer of condition BMCExclusive on the Machines of its site.

    Args:
        site: None for all sites.
    """

    def __init__(
        self, runtime: Runtime, machines: Cache[Machine], *, site: str | None, now: WallClock = utc_now
    ) -> None:
        self._machines = machines
        self._status = StatusWriter(runtime.api, MACHINES, fields=("conditions",), cache=machines)
        self._site = site
        self._now = now
        self._controller: Controller[str] = Controller("shared BMCs", self._update, workers=4, metrics=runtime.metrics)

    async def run(self) -> None:
        """Work until cancelled."""
        with self._machines.subscribed(self._changed):
            await self._controller.run()

    def _changed(self, old: Machine | None, new: Machine | None) -> None:
        before, after = (None if one is None else bmc_of(one) for one in (old, new))
        if new is not None and (old is None or before != after or old.site != new.site):
            self._controller.enqueue(new.name)
        if before == after:
            return
        for bmc in (before, after):
            for other in self._machines.by(INDEX_BMC, bmc or ""):
                self._controller.enqueue(other.name)

    async def _update(self, name: str) -> None:
        machine = self._machines.get(name)
        if machine is None or self._site not in (None, machine.site):
            return
        conditions = exclusive_condition(machine, sharing_bmc(self._machines, machine), now=rfc3339(self._now()))
        if conditions is None:
            return
        await self._status.write(machine, {"conditions": conditions})
        log.warning("condition BMCExclusive changed", machine=name, bmc=bmc_of(machine))


def exclusive_condition(machine: Machine, others: Sequence[Machine], *, now: str) -> list[dict[str, object]] | None:
    """Return the Machine's conditions with BMCExclusive updated; None if nothing changes."""
    conditions = [msgspec.to_builtins(one) for one in machine.status.conditions]
    kind = ConditionType.BMC_EXCLUSIVE
    if others:
        same = f"{named_alike(one.name for one in others)} the same BMC and device, {bmc_of(machine)}"
        words = f"{same}: their host operations exclude each other"
        return set_condition(
            conditions, kind, ConditionStatus.FALSE, ConditionReason.DUPLICATE_BMC, fit_message(words), now
        )
    if find_condition(conditions, kind) is None:
        return None
    words = "No other Machine names its BMC and device any more"
    return set_condition(conditions, kind, ConditionStatus.TRUE, ConditionReason.RESOLVED, words, now)
