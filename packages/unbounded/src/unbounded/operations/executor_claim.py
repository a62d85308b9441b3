"""The executor's check before a claim: `claim_gates` from the caches, and conditions that need a live read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from unbounded.api.core import CONFIG_MAPS, ConfigMap
from unbounded.api.machine import PROVISIONING, ActiveOperation, Machine
from unbounded.api.names import CONFIGMAP_OPERATIONS, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import Api, NotFound
from unbounded.kube.clock import loop_time
from unbounded.kube.process_epoch import ProcessEpoch
from unbounded.operations import claim_gates, reasons
from unbounded.operations.caches import INDEX_MACHINE, Caches, pause_of
from unbounded.operations.execution_record import run_of
from unbounded.operations.executor_protocol import Executor, Target
from unbounded.operations.in_memory_state import COUNT_S, OperationState
from unbounded.workflow.procedure import NotObservable, Observation
from unbounded.workflow.run_state import ACT_WITHIN_S

PAUSE_RECHECK_S: Final = 5.0  # between reads of a pause that is not watched, while it blocks an operation
TARGET_RECHECK_S: Final = 2.0  # between checks, in memory, of another Machine with the same BMC
LOST_RECHECK_S: Final = 5.0  # between observations of a machine whose executor was lost, until one succeeds
MARGIN_S: Final = 5.0  # beyond a call's limit, for its answer to be noticed
LEAST_S: Final = 0.01  # the shortest wait that a clock can measure

ObserveTarget = Callable[[Target, OperationState], Awaitable[Observation | NotObservable | None]]
StoreLostSeconds = Callable[[Machine, int], Awaitable[None]]


class ClaimCheck:
    """The check that an engine makes before it claims.

    Args:
        observe: observes the executor's target; None where there is no answer yet.
        epoch: of this process; knows the ended epochs of other processes.
        count: stores the seconds since an executor was lost.
    """

    def __init__(
        self,
        api: Api,
        executor: Executor,
        caches: Caches,
        observe: ObserveTarget,
        *,
        epoch: ProcessEpoch,
        count: StoreLostSeconds,
    ) -> None:
        self._api = api
        self._executor = executor
        self._caches = caches
        self._observe = observe
        self._epoch = epoch
        self._count = count

    async def closed_gate(self, target: Target, state: OperationState) -> claim_gates.Gate | None:
        """Return the gate that blocks the operation; None when it may be claimed."""
        operation, machine = target.operation, target.machine
        others = self._caches.operations.by(INDEX_MACHINE, machine.name)
        watched = self._caches.pause
        gate = claim_gates.closed_gate(operation, machine, others, pause_of(watched) if watched is not None else None)
        if gate is not None:
            is_lock = gate.reason == reasons.SLOT_HELD
            if not is_lock or not await self._is_lock_free(gate, target, state):
                return gate
        gate = None if watched is not None else claim_gates.paused(machine, await self._pause())
        return gate or claim_gates.disruption_gate(operation, machine) or self._executor.claim_gate(operation, machine)

    def recheck_s(self, gate: claim_gates.Gate, target: Target, state: OperationState) -> float | None:
        """Return the seconds until the next check of a gate that no event may open; None where an event opens it."""
        if self._caches.pause is None and gate.reason == reasons.PAUSED:
            return PAUSE_RECHECK_S
        if gate.reason == reasons.TARGET_IN_USE:
            return TARGET_RECHECK_S
        holder = target.machine.status.active_operation
        if gate.reason == reasons.SLOT_HELD and holder is not None and claim_gates.is_recreation(holder):
            left_s = claim_gates.NO_PROGRESS_S - self._recreation_stalled_s(target.machine, state)
            return max(left_s, LEAST_S) if claim_gates.is_host(target.operation) else None
        return self.lost_recheck_s(state) if holder is not None and holder.lost else None

    async def observe_lost(
        self, active: ActiveOperation, holder: MachineOperation | None, target: Target, state: OperationState
    ) -> Observation | None:
        """Return an observation of the machine once the calls of a lost executor can no longer arrive; None before
        that.

        Args:
            active: the lock of the Machine, which is lost.
            holder: its operation, which has ended; None where the object is gone.
        """
        now = loop_time()
        lost = state.count_lost(active, now, ended=holder is not None and self._has_ended(holder))
        if lost.left_s(now, self.settle_s, self.landing_s) <= 0:
            observation = await self._observe(target, state)
            return observation if isinstance(observation, Observation) else None
        if lost.count_s(now) - active.lost_seconds >= COUNT_S - LEAST_S:
            await self._count(target.machine, int(lost.count_s(now) + LEAST_S))
        return None

    def _has_ended(self, holder: MachineOperation) -> bool:
        """Return whether all processes have ended whose calls for the operation may still arrive."""
        run = run_of(holder)
        epochs = [] if run is None else [run.epoch, *(call.epoch for call in run.late)]
        own = self._epoch.identity  # it has ended the operation, and sends nothing more for it
        return bool(epochs) and all(epoch == own or self._epoch.has_ended(epoch) for epoch in epochs)

    def lost_recheck_s(self, state: OperationState) -> float | None:
        """Return the seconds until the next check of a lost lock; None for a lock that is not lost.

        The first check is due once no call can arrive any more; later ones repeat until an observation succeeds.
        """
        if state.lost is None:
            return None
        left_s = state.lost.left_s(loop_time(), self.settle_s, self.landing_s)
        return min(max(left_s, LEAST_S), COUNT_S) if left_s > 0 else LOST_RECHECK_S

    @property
    def landing_s(self) -> float:
        """The seconds for which a call of an ended process may still arrive."""
        return self._executor.call_limit_s + MARGIN_S

    @property
    def settle_s(self) -> float:
        """The seconds for which a process that is not known to have ended may act on its intent."""
        return ACT_WITHIN_S + self.landing_s

    async def _pause(self) -> ConfigMap | None:
        """Read the ConfigMap that pauses all operations; processes that seldom claim do not watch it."""
        try:
            return await self._api.get(CONFIG_MAPS, CONFIGMAP_OPERATIONS, namespace=NAMESPACE)
        except NotFound:
            return None

    async def _is_lock_free(self, gate: claim_gates.Gate, target: Target, state: OperationState) -> bool:
        """Return whether a live read shows that the holder is gone; a lost lock also needs a fresh observation."""
        holder = target.machine.status.active_operation
        if holder is None:
            return True
        if holder.kind == PROVISIONING:  # machina, or the process that resumes its work, releases the lock
            return False
        if claim_gates.is_recreation(
            holder
        ):  # its agent releases it; host operations need not wait for an agent that hangs
            return (
                claim_gates.is_host(target.operation)
                and self._recreation_stalled_s(target.machine, state) >= claim_gates.NO_PROGRESS_S
            )
        try:
            live: MachineOperation | None = await self._api.get(MACHINE_OPERATIONS, gate.held_by)
        except NotFound:
            live = None
        operation = live if live is not None and live.metadata.uid == holder.uid else None
        is_gone = operation is None or operation.terminal
        if not is_gone or not holder.lost:
            return is_gone
        return await self.observe_lost(holder, operation, target, state) is not None

    def _recreation_stalled_s(self, machine: Machine, state: OperationState) -> float:
        return state.recreation_stalled_s(claim_gates.recreation_state(machine), loop_time())
