"""The next step of a recreation: pure, from its phase and the observation of both slots.

Each phase has one action, which may be repeated after an interruption at any point, and one phase that follows. The
observation overrides the phase: two machines never run at the same time, wherever the work was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from unbounded.agent.durations import Durations, TimedWork
from unbounded.agent.model import Slot, SlotFacts
from unbounded.agent.recreation.state_store import RecreationPhase, Transition
from unbounded.api.core import Node
from unbounded.join.agent_config import RecreationConfig


@dataclass(frozen=True)
class NodeEvidence:
    """Observation of the node in the API.

    Args:
        node: None when there is none.
        renewed: its lease has changed since its machine was started.
        vanished: a Node of this very boot existed and is gone: kubelet does not register a second time.
        trouble: why kubelet is not healthy, in its own words; empty when it is.
        sandbox_problem: why no Pod sandbox runs in the slot, in containerd's words; empty when one ran, and where none
            is required.
    """

    node: Node | None = None
    renewed: bool = False
    vanished: bool = False
    trouble: str = ""
    sandbox_problem: str = ""


def unmet_requirement(facts: SlotFacts, version: str, evidence: NodeEvidence) -> str:
    """Return the first requirement that a node in this slot does not meet; empty for a proven node.

    Args:
        version: of Kubernetes, from its goal.
    """
    node = evidence.node
    if not facts.running:
        return "kubelet is not running"
    if not facts.kubelet:
        return evidence.trouble or "kubelet is not running"
    if not facts.boot_id:
        return "its machine does not report its boot ID"
    if evidence.trouble:
        return evidence.trouble
    if evidence.sandbox_problem:
        return evidence.sandbox_problem
    if node is None:
        return "the Node does not exist"
    info = node.status.node_info
    if info is None or info.boot_id != facts.boot_id:
        return "this boot of the machine has not reported the Node yet"
    if not same_version(info.kubelet_version or "", version):
        return f"kubelet reports version {info.kubelet_version}, not {version}"
    if not node.ready:
        return f"the Node is not Ready{_not_ready_because(node)}"
    return "" if evidence.renewed else "the lease of the Node has not been renewed yet"


def same_version(reported: str, desired: str) -> bool:
    """Return whether the versions are equal: `v1.34.0` is 1.34.0. A build's suffix after a plus or a dash does not
    count unless the desired version has one.
    """
    bare, desired = reported.removeprefix("v"), desired.removeprefix("v")
    return bare == desired or bare.partition("+")[0].partition("-")[0] == desired


def _not_ready_because(node: Node) -> str:
    ready = node.ready_condition
    if ready is None:
        return ""
    return f": {ready.reason or ready.status}{f', {ready.message}' if ready.message else ''}"


@dataclass(frozen=True)
class RecreationLimits:
    """Limits in seconds. Those of a phase count only while the API server answers, as nothing can be proven without it.

    `build_s`, `start_s` and `verify_s` are floors, raised by this host's earlier durations; see `on_this_host`.

    Attributes:
        build_s: for the new slot, with its downloads.
        start_s: until a machine runs, with its kubelet; over all attempts.
        verify_s: until a started node is proven.
        join_s: until a slot that `start` built has registered its Node; after it, the node is recreated.
        poll_s: between two observations while a node is being proven.
        retry_s: from a failure to the next attempt; doubled with each, up to `retry_max_s`.
        attempts: at the same goal, while the old node works.
        resolve_s: longest age of the known newest configuration version.
        check_s: between two checks that a present node serves, without an event.
        down_s: from the stop of a part until it is started.
    """

    build_s: float = 1800.0
    start_s: float = 300.0
    verify_s: float = 300.0
    join_s: float = 900.0
    poll_s: float = 2.0
    retry_s: float = 900.0
    retry_max_s: float = 14_400.0
    attempts: int = 3
    resolve_s: float = 600.0
    check_s: float = 300.0
    down_s: float = 10.0

    def configured(self, config: RecreationConfig) -> RecreationLimits:
        """Return these limits, overridden by the agent's configuration."""
        verify_s, retry_s = config.verify_seconds or self.verify_s, config.retry_seconds or self.retry_s
        return replace(self, verify_s=verify_s, retry_s=retry_s, retry_max_s=max(retry_s, self.retry_max_s))

    def on_this_host(self, durations: Durations) -> RecreationLimits:
        """Return these limits, raised by the host's earlier durations."""
        return replace(
            self,
            build_s=durations.limit(TimedWork.BUILD, floor=self.build_s),
            start_s=durations.limit(TimedWork.START, floor=self.start_s),
            verify_s=durations.limit(TimedWork.READY, floor=self.verify_s),
        )

    def retry_after(self, attempts: int) -> float:
        return min(self.retry_max_s, self.retry_s * 2.0 ** (attempts - 1))


_NOTHING: Final = NodeEvidence()


@dataclass(frozen=True)
class RecreationObservation:
    """Input of a decision.

    Attributes:
        evidence: of the node to be proven; only observed in phases that prove one.
        spent_s: in this phase.
        error: of the last attempt at this phase's step; empty without one, or when it succeeded.
        hopeless: a repetition of that attempt would fail, too.
    """

    source: SlotFacts
    target: SlotFacts
    evidence: NodeEvidence = _NOTHING
    spent_s: float = 0.0
    error: str = ""
    hopeless: bool = False


class Side(Enum):
    SOURCE = "the old slot"
    TARGET = "the new slot"


class PhaseAction(Enum):
    """The action of a phase; each may be repeated."""

    REMOVE = "stop the machine and take the slot away"
    BUILD = "make the slot from scratch"
    STOP = "stop the machine, so that it does not start at boot either"
    START = "start the machine and its services"
    PROVE = "observe until its node is proven"


@dataclass(frozen=True)
class PhaseRow:
    """One phase.

    Attributes:
        then: the phase after its completion; None for the end.
        quiet: the side whose machine must not run during this phase.
        unserved: the side whose services must not run during this phase.
        limit: its limit; None for a phase that is retried without end.
        back: the phase after its failure; None ends the recreation nevertheless.
        failed: message of its failure.
    """

    do: PhaseAction
    side: Side
    then: RecreationPhase | None
    quiet: Side | None = None
    unserved: Side | None = None
    limit: Callable[[RecreationLimits], float] | None = None
    back: RecreationPhase | None = None
    failed: str = ""


def _build_s(limits: RecreationLimits) -> float:
    return limits.build_s


def _start_s(limits: RecreationLimits) -> float:
    return limits.start_s


def _verify_s(limits: RecreationLimits) -> float:
    return limits.verify_s


_S, _T = Side.SOURCE, Side.TARGET
TABLE: Final[Mapping[RecreationPhase, PhaseRow]] = {
    RecreationPhase.CLEARING: PhaseRow(
        PhaseAction.REMOVE,
        _T,
        RecreationPhase.PREPARING,
        _T,
        _S,
        _start_s,
        RecreationPhase.RESTORING,
        "the other slot could not be cleared",
    ),
    RecreationPhase.PREPARING: PhaseRow(
        PhaseAction.BUILD,
        _T,
        RecreationPhase.SWITCHING,
        _T,
        _S,
        _build_s,
        RecreationPhase.RESTORING,
        "the new slot could not be built",
    ),
    RecreationPhase.SWITCHING: PhaseRow(PhaseAction.STOP, _S, RecreationPhase.STARTING),
    RecreationPhase.STARTING: PhaseRow(
        PhaseAction.START,
        _T,
        RecreationPhase.VERIFYING,
        _S,
        None,
        _start_s,
        RecreationPhase.RETURNING,
        "the new machine did not start",
    ),
    RecreationPhase.VERIFYING: PhaseRow(
        PhaseAction.PROVE,
        _T,
        RecreationPhase.COMMITTED,
        _S,
        None,
        _verify_s,
        RecreationPhase.RETURNING,
        "the new node did not become healthy",
    ),
    RecreationPhase.COMMITTED: PhaseRow(
        PhaseAction.REMOVE, _S, None, _S, None, _start_s, None, "the old slot could not be removed"
    ),
    RecreationPhase.RETURNING: PhaseRow(PhaseAction.STOP, _T, RecreationPhase.RESTORING),
    RecreationPhase.RESTORING: PhaseRow(
        PhaseAction.START,
        _S,
        RecreationPhase.CHECKING,
        _T,
        None,
        _start_s,
        RecreationPhase.ABANDONED,
        "the old machine did not start again",
    ),
    RecreationPhase.CHECKING: PhaseRow(
        PhaseAction.PROVE,
        _S,
        RecreationPhase.ABANDONED,
        _T,
        None,
        _verify_s,
        RecreationPhase.ABANDONED,
        "the old node did not return",
    ),
    RecreationPhase.ABANDONED: PhaseRow(
        PhaseAction.REMOVE, _T, None, _T, None, _start_s, None, "the new slot could not be removed"
    ),
}


@dataclass(frozen=True)
class StopServices:
    slot: Slot


@dataclass(frozen=True)
class RemoveSlot:
    slot: Slot
    then: RecreationPhase | None


@dataclass(frozen=True)
class BuildSlot:
    slot: Slot
    then: RecreationPhase | None


@dataclass(frozen=True)
class StopMachine:
    """Stop a slot's machine.

    Args:
        again: it should not run in this phase at all; the phase stays.
    """

    slot: Slot
    then: RecreationPhase | None
    again: bool = False


@dataclass(frozen=True)
class StartMachine:
    """Start a slot's machine.

    Args:
        lacks: unmet requirement of the node in it, where it should run already.
    """

    slot: Slot
    then: RecreationPhase | None
    lacks: str = ""


@dataclass(frozen=True)
class RegisterNode:
    """Stop and start kubelet's services, so that it registers its Node again."""

    slot: Slot


@dataclass(frozen=True)
class ProveNode:
    """Wait until the node is proven, with the unmet requirement."""

    slot: Slot
    lacks: str


@dataclass(frozen=True)
class CommitNode:
    """Record the UID of the proven node in its slot."""

    slot: Slot
    node_uid: str
    then: RecreationPhase | None


@dataclass(frozen=True)
class ChangePhase:
    """Leave a failed phase: to another phase, or (None) to the end."""

    to: RecreationPhase | None
    why: str


Step = (
    StopServices
    | RemoveSlot
    | BuildSlot
    | StopMachine
    | StartMachine
    | RegisterNode
    | ProveNode
    | CommitNode
    | ChangePhase
)


def plan(transition: Transition, observation: RecreationObservation, limits: RecreationLimits) -> Step:
    """Return the next step of a recreation."""
    row = TABLE[transition.phase]
    facts = {Side.SOURCE: observation.source, Side.TARGET: observation.target}
    here, slot = facts[row.side], facts[row.side].slot
    lacks = (
        unmet_requirement(here, _version(transition, row, here), observation.evidence)
        if row.do is PhaseAction.PROVE
        else ""
    )
    if _too_late(row, observation, limits) and (row.do is not PhaseAction.PROVE or lacks):
        return ChangePhase(row.back, _why(row, observation, lacks, limits))
    if row.quiet is not None and facts[row.quiet].running:
        return StopMachine(facts[row.quiet].slot, transition.phase, again=True)
    if row.unserved is not None and (facts[row.unserved].kubelet or facts[row.unserved].containerd):
        return StopServices(facts[row.unserved].slot)
    match row.do:
        case PhaseAction.REMOVE:
            return RemoveSlot(slot, row.then)
        case PhaseAction.BUILD:
            return BuildSlot(slot, row.then)
        case PhaseAction.STOP:
            return StopMachine(slot, row.then)
        case PhaseAction.START:
            return StartMachine(slot, row.then)
        case PhaseAction.PROVE:
            return _prove(transition, row, here, observation.evidence, lacks)


def _prove(transition: Transition, row: PhaseRow, here: SlotFacts, evidence: NodeEvidence, lacks: str) -> Step:
    if not here.running or not here.kubelet:
        return StartMachine(here.slot, transition.phase, lacks)
    if not lacks and evidence.node is not None:
        return CommitNode(here.slot, evidence.node.metadata.uid, row.then)
    return RegisterNode(here.slot) if evidence.vanished else ProveNode(here.slot, lacks)


def _version(transition: Transition, row: PhaseRow, here: SlotFacts) -> str:
    """Return the Kubernetes version that the node in a slot has to report."""
    if row.side is Side.TARGET:
        return transition.goal.kubernetes_version
    return here.applied.goal.kubernetes_version if here.applied else ""


def _too_late(row: PhaseRow, observation: RecreationObservation, limits: RecreationLimits) -> bool:
    return row.limit is not None and (observation.hopeless or observation.spent_s >= row.limit(limits))


def _why(row: PhaseRow, observation: RecreationObservation, lacks: str, limits: RecreationLimits) -> str:
    within = "" if observation.hopeless or row.limit is None else f" within {row.limit(limits):.0f} s"
    reason = observation.error or lacks
    return f"{row.failed}{within}{f': {reason}' if reason else ''}"
