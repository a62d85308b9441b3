"""Whether an operation may be claimed now: the gates as the caches show them, and what only a live read can tell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from unbounded.api.core import CONFIG_MAPS, ConfigMap
from unbounded.api.machine import PROVISIONING, ActiveOperation, Machine
from unbounded.api.names import CONFIGMAP_OPERATIONS, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.epoch import ProcessEpoch
from unbounded.kube.errors import NotFound
from unbounded.kube.port import Api
from unbounded.operations import reasons
from unbounded.operations.caches import INDEX_MACHINE, Caches, pause_of
from unbounded.operations.gates import (
    NO_PROGRESS_S,
    Gate,
    closed_gate,
    is_host,
    is_recreation,
    paused,
    recreation_state,
)
from unbounded.operations.ledger import COUNT_S
from unbounded.operations.memory import ACT_WITHIN_S, Memory
from unbounded.operations.ports import Executor, Target
from unbounded.operations.procedure import Sight, Unseen
from unbounded.operations.record import run_of

PAUSE_LOOK_S: Final = 5.0  # between looks at a pause that is not watched, while it holds an operation back
TARGET_LOOK_S: Final = 2.0  # between looks, in memory, at another Machine with the same BMC
AFRESH_LOOK_S: Final = 5.0  # between looks at a machine whose executor was lost, and which is not seen
MARGIN_S: Final = 5.0  # beyond a call's limit, for its answer to be noticed
LEAST_S: Final = 0.01  # of waits: one that a clock can tell from none

Look = Callable[[Target, Memory], Awaitable[Sight | Unseen | None]]
Count = Callable[[Machine, int], Awaitable[None]]


class Admission:
    """Asked by an engine before it claims.

    Args:
        look: at what the executor acts on; None where there is no answer yet.
        epoch: of this process, which knows what other processes have ended.
        count: stores the seconds since an executor was lost.
    """

    def __init__(
        self, api: Api, executor: Executor, caches: Caches, look: Look, *, epoch: ProcessEpoch, count: Count
    ) -> None:
        self._api = api
        self._executor = executor
        self._caches = caches
        self._look = look
        self._epoch = epoch
        self._count = count

    async def closed_gate(self, target: Target, memory: Memory) -> Gate | None:
        """What holds the operation back; None when it may be claimed."""
        operation, machine = target.operation, target.machine
        others = self._caches.operations.by(INDEX_MACHINE, machine.name)
        watched = self._caches.pause
        gate = closed_gate(operation, machine, others, pause_of(watched) if watched is not None else None)
        if gate is not None:
            held = gate.reason != reasons.SLOT_HELD
            if held or not await self._slot_freed(gate, target, memory):
                return gate
        gate = None if watched is not None else paused(machine, await self._pause())
        return gate or self._executor.claim_gate(operation, machine)

    def opens_s(self, gate: Gate, target: Target, memory: Memory) -> float | None:
        """When to look again at a gate that no event may open."""
        if self._caches.pause is None and gate.reason == reasons.PAUSED:
            return PAUSE_LOOK_S
        if gate.reason == reasons.TARGET_IN_USE:
            return TARGET_LOOK_S
        holder = target.machine.status.active_operation
        if gate.reason == reasons.SLOT_HELD and holder is not None and is_recreation(holder):
            left_s = NO_PROGRESS_S - self._recreation_still_s(target.machine, memory)
            return max(left_s, LEAST_S) if is_host(target.operation) else None
        return self.afresh_s(memory) if holder is not None and holder.lost else None

    async def looked_afresh(
        self, active: ActiveOperation, holder: MachineOperation | None, target: Target, memory: Memory
    ) -> Sight | None:
        """Return what was read of the machine after a lost executor could no longer act on it; None before that.

        Args:
            active: the slot of the Machine, which is lost.
            holder: its operation, which has ended; None where that is gone.
        """
        now = _loop_time()
        lost = memory.count_lost(active, now, ended=holder is not None and self._has_ended(holder))
        if lost.left_s(now, self.settle_s, self.landing_s) <= 0:
            sight = await self._look(target, memory)
            return sight if isinstance(sight, Sight) else None
        if lost.count_s(now) - active.lost_seconds >= COUNT_S - LEAST_S:
            await self._count(target.machine, int(lost.count_s(now) + LEAST_S))
        return None

    def _has_ended(self, holder: MachineOperation) -> bool:
        """Return whether each process acts no more for an operation whose call may still arrive."""
        run = run_of(holder)
        epochs = [] if run is None else [run.incarnation, *(call.epoch for call in run.late)]
        own = self._epoch.identity  # it has ended the operation, and sends nothing more for it
        return bool(epochs) and all(epoch == own or self._epoch.has_ended(epoch) for epoch in epochs)

    def afresh_s(self, memory: Memory) -> float | None:
        """When to look again at a slot that was lost: once it has settled, and then until the machine is seen."""
        if memory.lost is None:
            return None
        left_s = memory.lost.left_s(_loop_time(), self.settle_s, self.landing_s)
        return min(max(left_s, LEAST_S), COUNT_S) if left_s > 0 else AFRESH_LOOK_S

    @property
    def landing_s(self) -> float:
        """How long a call of a process that has ended may still arrive."""
        return self._executor.call_limit_s + MARGIN_S

    @property
    def settle_s(self) -> float:
        """How long a process that is not known to have ended could still act on its intent, from its first sight."""
        return ACT_WITHIN_S + self.landing_s

    async def _pause(self) -> ConfigMap | None:
        """What pauses all operations, read now: whoever claims seldom does not watch it."""
        try:
            return await self._api.get(CONFIG_MAPS, CONFIGMAP_OPERATIONS, namespace=NAMESPACE)
        except NotFound:
            return None

    async def _slot_freed(self, gate: Gate, target: Target, memory: Memory) -> bool:
        """Whether a live read shows that the slot's holder is gone; a lost one only after a fresh look."""
        holder = target.machine.status.active_operation
        if holder is None:
            return True
        if holder.kind == PROVISIONING:  # machina gives it back, or whoever takes up its work
            return False
        if is_recreation(holder):  # its agent gives it back; the host's own operations need not wait for one that hangs
            return is_host(target.operation) and self._recreation_still_s(target.machine, memory) >= NO_PROGRESS_S
        try:
            live: MachineOperation | None = await self._api.get(MACHINE_OPERATIONS, gate.held_by)
        except NotFound:
            live = None
        ended = live if live is not None and live.metadata.uid == holder.uid else None
        gone = ended is None or ended.terminal
        if not gone or not holder.lost:
            return gone
        return await self.looked_afresh(holder, ended, target, memory) is not None

    def _recreation_still_s(self, machine: Machine, memory: Memory) -> float:
        return memory.recreation_stands_still(recreation_state(machine), _loop_time())


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
