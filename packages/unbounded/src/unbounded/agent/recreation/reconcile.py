"""One reconcile pass over a recreation under way: observe, plan, claim the Machine, act, write the next phase."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from unbounded.agent.durations import Durations, TimedWork
from unbounded.agent.interfaces import Nodes
from unbounded.agent.model import BuildRecord, Slot, SlotFacts
from unbounded.agent.node_spec import DesiredNode, desired_node
from unbounded.agent.recreation import plan as recreation_plan
from unbounded.agent.recreation import report
from unbounded.agent.recreation.perform import Performer
from unbounded.agent.recreation.recreation_decision import retry_message
from unbounded.agent.recreation.state_store import FailedRecreation, RecreationPhase, RecreationStore, Transition
from unbounded.agent.recreation.status import RecreationStatusWriter
from unbounded.agent.recreation.version_resolution import Unresolved, VersionResolver
from unbounded.api.core import LEASES, NODE_LEASES, Node
from unbounded.api.failures import Failure, Rejected, Stale
from unbounded.api.machine import MACHINES
from unbounded.api.operation import OperationPhase
from unbounded.kube.api import Api, NotFound
from unbounded.kube.clock import Backoff
from unbounded.kube.logs import Log

_UNREAD = object()


class EvidenceCollector:
    """Accumulator of evidence. A lease counts as renewed when it has changed; clocks of others are not compared."""

    def __init__(self) -> None:
        self._about: tuple[str, str] | None = None
        self._first_renewal: object = _UNREAD
        self._renewed = False
        self._node_uid = ""
        self._sandbox_ran = False

    def begin(self, phase: str, boot_id: str) -> None:
        """Discard observations of another boot or of another phase, which prove nothing."""
        if self._about != (phase, boot_id):
            self._about = (phase, boot_id)
            self._first_renewal, self._renewed, self._node_uid = _UNREAD, False, ""
            self._sandbox_ran = False

    def forget_node(self) -> None:
        """Forget the Node, as kubelet registers again."""
        self._node_uid = ""

    async def prove_sandbox(self, nodes: Nodes, slot: Slot) -> str:
        """Run a Pod sandbox, once for each boot of the machine; return why it failed, empty when it ran."""
        if not self._sandbox_ran:
            trouble = await nodes.sandbox_problem(slot)
            self._sandbox_ran = not trouble
            return trouble
        return ""

    def observe(self, node: Node | None, renewal: str | None) -> recreation_plan.NodeEvidence:
        """Return the evidence after one more observation.

        Args:
            renewal: renewal time in the lease; None when there is no lease.
        """
        if self._first_renewal is _UNREAD:
            self._first_renewal = renewal
        elif renewal is not None and renewal != self._first_renewal:
            self._renewed = True
        vanished = bool(self._node_uid) and (node is None or node.metadata.uid != self._node_uid)
        info = node.status.node_info if node is not None else None
        if node is not None and info is not None and self._about and info.boot_id == self._about[1]:
            self._node_uid, vanished = node.metadata.uid, False
        return recreation_plan.NodeEvidence(node=node, renewed=self._renewed, vanished=vanished)


AGAIN: Final = Backoff(base_s=2.0, max_s=60.0)  # after a failed step on the host

log = Log("agent")


@dataclass
class _PhaseState:
    """State of this process about the current phase; a crash loses it, and no decision depends on it then."""

    phase: RecreationPhase | None = None
    spent_s: float = 0.0
    observed_at: float = 0.0
    failures: int = 0
    error: str = ""
    hopeless: bool = False
    reported: str = ""
    evidence: EvidenceCollector = field(default_factory=EvidenceCollector)

    def enter(self, phase: RecreationPhase, now: float) -> None:
        if phase is not self.phase:
            self.phase, self.spent_s, self.observed_at = phase, 0.0, now
            self.failures, self.error, self.hopeless, self.reported = 0, "", False, ""

    def count(self, now: float, *, readable: bool) -> None:
        """Count the time in this phase. Time without the API server does not count: nothing can be proven then."""
        if readable:
            self.spent_s += now - self.observed_at
        self.observed_at = now

    def failed(self, error: Failure) -> float:
        self.failures += 1
        self.error, self.hopeless = str(error), isinstance(error, Rejected)
        return 0.0 if self.hopeless else AGAIN.after(self.failures)


class RecreationReconciler:
    def __init__(
        self,
        api: Api,
        machine: str,
        nodes: Nodes,
        store: RecreationStore,
        status: RecreationStatusWriter,
        resolver: VersionResolver,
        performer: Performer,
        limits: recreation_plan.RecreationLimits,
        durations: Durations,
    ) -> None:
        self._api = api
        self._machine = machine
        self._nodes = nodes
        self._store = store
        self._status = status
        self._resolver = resolver
        self._performer = performer
        self._limits = limits
        self._durations = durations
        self._memory = _PhaseState()

    async def reconcile(self, transition: Transition, node: Node | None) -> float | None:
        """Execute the next step; return the seconds until the next pass, None to wait for a change of the Machine."""
        memory, now = self._memory, asyncio.get_running_loop().time()
        memory.enter(transition.phase, now)
        try:
            observation = await self._observe(transition, node)
        except Failure:
            memory.count(asyncio.get_running_loop().time(), readable=False)
            raise
        step = recreation_plan.plan(transition, observation, self._limits.on_this_host(self._durations))
        if isinstance(step, recreation_plan.ProveNode):
            await self._report(transition, step.lacks)
            return self._limits.poll_s
        lacks = step.lacks if isinstance(step, recreation_plan.StartMachine) else ""
        holder = await self._status.claim(transition, report.in_progress(transition, report.one_line(lacks)))
        if holder:
            await self._pause(transition, holder)
            return None
        return await self._act(step, transition)

    async def _pause(self, transition: Transition, holder: str) -> None:
        """Pause the recreation while another operation has the claim; its release is a change of the Machine."""
        log.warning(
            "recreation waits: another operation holds the Machine's lock", machine=self._machine, holder=holder
        )
        self._memory.phase = None  # its time starts over
        await self._status.report((report.in_progress(transition, f"waiting, as {holder}"),), None, None)

    async def _observe(self, transition: Transition, node: Node | None) -> recreation_plan.RecreationObservation:
        """Observe both slots, and the node where it is to be proven."""
        memory = self._memory
        source = await self._nodes.observe(transition.source)
        target = await self._nodes.observe(transition.target)
        row, evidence = recreation_plan.TABLE[transition.phase], recreation_plan.NodeEvidence()
        if row.do is recreation_plan.PhaseAction.PROVE:
            here = source if row.side is recreation_plan.Side.SOURCE else target
            memory.evidence.begin(transition.phase, here.boot_id)
            trouble = await self._nodes.kubelet_problem(here.slot) if here.running else ""
            sandbox = await self._sandbox_problem(transition, here)
            seen = memory.evidence.observe(node, await self._renewal())
            evidence = replace(seen, trouble=trouble, sandbox_problem=sandbox)
        memory.count(asyncio.get_running_loop().time(), readable=True)
        return recreation_plan.RecreationObservation(
            source, target, evidence, memory.spent_s, memory.error, memory.hopeless
        )

    async def _sandbox_problem(self, transition: Transition, here: SlotFacts) -> str:
        """Prove a new slot by a Pod sandbox. The old one served before, and may be from an agent without this proof."""
        if transition.phase is not RecreationPhase.VERIFYING:
            return ""
        if not here.kubelet or not here.containerd:
            return f"containerd in {here.slot} is not running"
        return await self._memory.evidence.prove_sandbox(self._nodes, here.slot)

    async def _renewal(self) -> str | None:
        try:
            lease = await self._api.get(LEASES, self._machine, namespace=NODE_LEASES)
        except NotFound:
            return None
        return lease.spec.renew_time

    async def _act(self, step: recreation_plan.Step, transition: Transition) -> float | None:
        memory = self._memory

        async def note(text: str) -> None:
            await self._status.report_progress(transition, report.in_progress(transition, report.one_line(text)))

        try:
            await self._performer.perform(step, transition, note)
        except Failure as error:
            again_s = memory.failed(error)
            log.warning(
                "recreation: step failed", error=error, phase=str(transition.phase), again_in_s=round(again_s, 1)
            )
            return again_s
        memory.failures, memory.error, memory.hopeless = 0, "", False
        if isinstance(step, recreation_plan.CommitNode):
            self._durations.completed(TimedWork.READY, memory.spent_s)
        if isinstance(step, recreation_plan.ChangePhase):
            return await self._change_phase(step, transition)
        if isinstance(step, recreation_plan.RegisterNode):
            memory.evidence.forget_node()
        then = getattr(step, "then", transition.phase)
        if then is None:
            return await self._complete(transition)
        if then is not transition.phase:
            self._enter(msgspec.structs.replace(transition, phase=then))
        return 0.0

    def _enter(self, transition: Transition) -> None:
        self._store.write(transition)
        log.info("recreation", phase=str(transition.phase), machine=self._machine, slot=str(transition.target))

    async def _change_phase(self, step: recreation_plan.ChangePhase, transition: Transition) -> float | None:
        log.warning("recreation failed", machine=self._machine, why=step.why)
        if step.to is None:
            return await self._complete(transition, left=step.why)
        stranded = step.to is RecreationPhase.ABANDONED
        failure = f"{transition.failure}; {step.why}" if transition.failure else step.why
        self._enter(msgspec.structs.replace(transition, phase=step.to, failure=failure, stranded=stranded))
        return 0.0

    async def _report(self, transition: Transition, text: str) -> None:
        if text != self._memory.reported:
            await self._status.report_progress(transition, report.in_progress(transition, report.one_line(text)))
            self._memory.reported = text

    async def _complete(self, transition: Transition, left: str = "") -> float | None:
        """End after the last phase: report the result, release the claim, and remove the record."""
        good = not transition.failure
        failed = None if good else self._failed(transition)
        applied = self._nodes.applied(transition.target if good else transition.source)
        desired = await self._desired(applied)
        again = "" if failed is None else retry_message(failed, self._limits)
        condition = report.succeeded(transition, left) if good else report.rolled_back(transition, again)
        conditions = (condition,) if desired is None else (condition, report.repave_pending(desired, failed))
        if failed is None:
            self._store.forget()
        else:
            self._store.fail(failed)
        phase = OperationPhase.COMPLETE if good else OperationPhase.FAILED
        if not await self._status.complete(transition, conditions, applied, desired, phase):
            raise Stale("another operation holds the Machine's lock")
        self._store.clear()
        self._memory = _PhaseState()
        log.info("recreation ended", machine=self._machine, result=str(condition.reason))
        return 0.0

    def _failed(self, transition: Transition) -> FailedRecreation:
        return FailedRecreation(
            uid=transition.uid,
            goal=transition.goal,
            attempts=transition.attempt,
            why=transition.failure,
            at=self._status.now(),
            stranded=transition.stranded,
        )

    async def _desired(self, applied: BuildRecord | None) -> DesiredNode | None:
        if applied is None:
            return None
        try:
            machine = await self._api.get(MACHINES, self._machine)
        except NotFound:
            return None
        version = await self._resolver.version(machine, fresh=True)
        return None if isinstance(version, Unresolved) else desired_node(machine, version, applied.goal)
