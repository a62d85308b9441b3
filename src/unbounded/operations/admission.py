"""Whether an operation may be claimed now: the gates as the caches show them, and what only a live read can tell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from unbounded.api.core import CONFIG_MAPS, ConfigMap
from unbounded.api.machine import PROVISIONING, Machine
from unbounded.api.names import CONFIGMAP_OPERATIONS, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
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
from unbounded.operations.memory import ACT_WITHIN_S, Memory
from unbounded.operations.ports import Executor, Target
from unbounded.operations.procedure import Sight, Unseen

PAUSE_LOOK_S: Final = 5.0  # between looks at a pause that is not watched, while it holds an operation back
TARGET_LOOK_S: Final = 2.0  # between looks, in memory, at another Machine with the same BMC
AFRESH_LOOK_S: Final = 5.0  # between looks at a machine whose executor was lost, and which is not seen
MARGIN_S: Final = 5.0  # beyond a call's limit, for its answer to be noticed
LEAST_S: Final = 0.01  # of waits: one that a clock can tell from none

Look = Callable[[Target, Memory], Awaitable[Sight | Unseen | None]]


class Admission:
    """Asked by an engine before it claims.

    Args:
        look: at what the executor acts on; None where there is no answer yet.
    """

    def __init__(self, api: Api, executor: Executor, caches: Caches, look: Look) -> None:
        self._api = api
        self._executor = executor
        self._caches = caches
        self._look = look

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
        return self.afresh_s(memory) if memory.lost_since else None

    async def looked_afresh(self, lost: str, target: Target, memory: Memory) -> bool:
        """Whether the machine was seen after a lost executor could no longer act on it."""
        since = memory.lost_since.setdefault(lost, _loop_time())
        if _loop_time() - since < self.settle_s:
            return False
        return isinstance(await self._look(target, memory), Sight)

    def afresh_s(self, memory: Memory) -> float:
        """When to look again at a slot that was lost: once it has settled, and then until the machine is seen."""
        left_s = max(memory.lost_since.values()) + self.settle_s - _loop_time()
        return left_s if left_s > 0 else AFRESH_LOOK_S

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
            live = await self._api.get(MACHINE_OPERATIONS, gate.held_by)
            gone = live.metadata.uid != holder.uid or live.terminal
        except NotFound:
            gone = True
        if not gone or not holder.lost:
            return gone
        return await self.looked_afresh(holder.uid, target, memory)

    def _recreation_still_s(self, machine: Machine, memory: Memory) -> float:
        return memory.recreation_stands_still(recreation_state(machine), _loop_time())


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
