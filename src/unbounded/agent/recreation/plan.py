"""The next step of a recreation: pure, from its phase and what is seen of both slots.

Each phase has one thing to do, which may be done again after a cut at any point, and one phase that follows when it is
done. What is seen comes before the phase: two machines never run side by side, whatever was cut off where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from unbounded.agent.durations import Durations, Work
from unbounded.agent.model import Slot, SlotFacts
from unbounded.agent.recreation.proof import Evidence, missing
from unbounded.agent.recreation.state import Phase, Transition
from unbounded.join.agent_config import Recreation


@dataclass(frozen=True)
class Limits:
    """Seconds; those of a phase count only while the API can be read, as nothing can be proven without it.

    `build_s`, `start_s` and `verify_s` are floors: what this host needed before raises them; see `on_this_host`.

    Attributes:
        build_s: for the new slot, downloads included.
        start_s: until a machine runs, with its kubelet; over all attempts.
        verify_s: until a node that was started is proven.
        join_s: until a slot that `start` made has registered its Node; then it is made anew.
        look_s: between two looks while a proof is waited for.
        retry_s: after a failure, before the same is tried again; doubled with each attempt, up to `retry_max_s`.
        attempts: at the same goal, while the old node works.
        resolve_s: how old the newest version of a configuration may be known.
        keep_s: between two looks whether a node that is there serves, where nothing else makes one look.
        down_s: how long one has to be down before it is started.
    """

    build_s: float = 1800.0
    start_s: float = 300.0
    verify_s: float = 300.0
    join_s: float = 900.0
    look_s: float = 2.0
    retry_s: float = 900.0
    retry_max_s: float = 14_400.0
    attempts: int = 3
    resolve_s: float = 600.0
    keep_s: float = 300.0
    down_s: float = 10.0

    def configured(self, told: Recreation) -> Limits:
        """These, but for what the agent's configuration says."""
        verify_s, retry_s = told.verify_seconds or self.verify_s, told.retry_seconds or self.retry_s
        return replace(self, verify_s=verify_s, retry_s=retry_s, retry_max_s=max(retry_s, self.retry_max_s))

    def on_this_host(self, durations: Durations) -> Limits:
        """These, raised by what the host needed for the same before."""
        return replace(
            self,
            build_s=durations.limit(Work.BUILD, floor=self.build_s),
            start_s=durations.limit(Work.START, floor=self.start_s),
            verify_s=durations.limit(Work.READY, floor=self.verify_s),
        )

    def retry_after(self, attempts: int) -> float:
        return min(self.retry_max_s, self.retry_s * 2.0 ** (attempts - 1))


_NOTHING: Final = Evidence()


@dataclass(frozen=True)
class Seen:
    """What is known when a step is chosen.

    Attributes:
        evidence: of the node that is to be proven; only read where the phase proves one.
        spent_s: in this phase.
        error: of the last attempt at this phase's step; empty when there was none, or it went well.
        hopeless: that attempt can only fail again.
    """

    source: SlotFacts
    target: SlotFacts
    evidence: Evidence = _NOTHING
    spent_s: float = 0.0
    error: str = ""
    hopeless: bool = False


class Side(Enum):
    SOURCE = "the old slot"
    TARGET = "the new slot"


class Do(Enum):
    """The one thing that a phase does; each may be done again."""

    REMOVE = "stop the machine and take the slot away"
    BUILD = "make the slot from scratch"
    STOP = "stop the machine, so that it does not come back at boot either"
    START = "start the machine and its services"
    PROVE = "look on until its node is proven"


@dataclass(frozen=True)
class Row:
    """One phase.

    Attributes:
        then: the phase when it is done; None for the end.
        quiet: the side whose machine must not run meanwhile.
        unserved: the side whose services must not run meanwhile.
        limit: the limit for it; None for one that is tried for as long as it takes.
        back: the phase when it cannot be done; None ends the recreation all the same.
        failed: what went wrong then.
    """

    do: Do
    side: Side
    then: Phase | None
    quiet: Side | None = None
    unserved: Side | None = None
    limit: Callable[[Limits], float] | None = None
    back: Phase | None = None
    failed: str = ""


def _build_s(limits: Limits) -> float:
    return limits.build_s


def _start_s(limits: Limits) -> float:
    return limits.start_s


def _verify_s(limits: Limits) -> float:
    return limits.verify_s


_S, _T = Side.SOURCE, Side.TARGET
TABLE: Final[Mapping[Phase, Row]] = {
    Phase.CLEARING: Row(
        Do.REMOVE, _T, Phase.PREPARING, _T, _S, _start_s, Phase.RESTORING, "the other slot could not be cleared"
    ),
    Phase.PREPARING: Row(
        Do.BUILD, _T, Phase.SWITCHING, _T, _S, _build_s, Phase.RESTORING, "the new slot could not be built"
    ),
    Phase.SWITCHING: Row(Do.STOP, _S, Phase.STARTING),
    Phase.STARTING: Row(
        Do.START, _T, Phase.VERIFYING, _S, None, _start_s, Phase.RETURNING, "the new machine did not start"
    ),
    Phase.VERIFYING: Row(
        Do.PROVE, _T, Phase.COMMITTED, _S, None, _verify_s, Phase.RETURNING, "the new node was not proven"
    ),
    Phase.COMMITTED: Row(Do.REMOVE, _S, None, _S, None, _start_s, None, "the old slot could not be removed"),
    Phase.RETURNING: Row(Do.STOP, _T, Phase.RESTORING),
    Phase.RESTORING: Row(
        Do.START, _S, Phase.CHECKING, _T, None, _start_s, Phase.ABANDONED, "the old machine did not start again"
    ),
    Phase.CHECKING: Row(
        Do.PROVE, _S, Phase.ABANDONED, _T, None, _verify_s, Phase.ABANDONED, "the old node did not come back"
    ),
    Phase.ABANDONED: Row(Do.REMOVE, _T, None, _T, None, _start_s, None, "the new slot could not be removed"),
}


@dataclass(frozen=True)
class StopServices:
    slot: Slot


@dataclass(frozen=True)
class Remove:
    slot: Slot
    then: Phase | None


@dataclass(frozen=True)
class Build:
    slot: Slot
    then: Phase | None


@dataclass(frozen=True)
class Stop:
    """Args:
    again: it should not run in this phase at all; the phase stays.
    """

    slot: Slot
    then: Phase | None
    again: bool = False


@dataclass(frozen=True)
class Start:
    """Args:
    lacks: what the node in it still lacks, where it should run already.
    """

    slot: Slot
    then: Phase | None
    lacks: str = ""


@dataclass(frozen=True)
class Register:
    """kubelet has to introduce its node once more: its services are stopped and started."""

    slot: Slot


@dataclass(frozen=True)
class Prove:
    """Nothing to do but to look on, and what is looked for."""

    slot: Slot
    lacks: str


@dataclass(frozen=True)
class Commit:
    """The node in the slot is proven: its UID is remembered."""

    slot: Slot
    node_uid: str
    then: Phase | None


@dataclass(frozen=True)
class Turn:
    """What the phase is for cannot be done: another phase, or (None) the end."""

    to: Phase | None
    why: str


Step = StopServices | Remove | Build | Stop | Start | Register | Prove | Commit | Turn


def plan(transition: Transition, seen: Seen, limits: Limits) -> Step:
    """What a recreation does next."""
    row = TABLE[transition.phase]
    facts = {Side.SOURCE: seen.source, Side.TARGET: seen.target}
    here, slot = facts[row.side], facts[row.side].slot
    lacks = missing(here, _version(transition, row, here), seen.evidence) if row.do is Do.PROVE else ""
    if _too_late(row, seen, limits) and (row.do is not Do.PROVE or lacks):
        return Turn(row.back, _why(row, seen, lacks, limits))
    if row.quiet is not None and facts[row.quiet].running:
        return Stop(facts[row.quiet].slot, transition.phase, again=True)
    if row.unserved is not None and (facts[row.unserved].kubelet or facts[row.unserved].containerd):
        return StopServices(facts[row.unserved].slot)
    match row.do:
        case Do.REMOVE:
            return Remove(slot, row.then)
        case Do.BUILD:
            return Build(slot, row.then)
        case Do.STOP:
            return Stop(slot, row.then)
        case Do.START:
            return Start(slot, row.then)
        case Do.PROVE:
            return _prove(transition, row, here, seen.evidence, lacks)


def _prove(transition: Transition, row: Row, here: SlotFacts, evidence: Evidence, lacks: str) -> Step:
    if not here.running or not here.kubelet:
        return Start(here.slot, transition.phase, lacks)
    if not lacks and evidence.node is not None:
        return Commit(here.slot, evidence.node.metadata.uid, row.then)
    return Register(here.slot) if evidence.vanished else Prove(here.slot, lacks)


def _version(transition: Transition, row: Row, here: SlotFacts) -> str:
    """The version of Kubernetes that the node in a slot has to report."""
    if row.side is Side.TARGET:
        return transition.goal.kubernetes_version
    return here.applied.goal.kubernetes_version if here.applied else ""


def _too_late(row: Row, seen: Seen, limits: Limits) -> bool:
    return row.limit is not None and (seen.hopeless or seen.spent_s >= row.limit(limits))


def _why(row: Row, seen: Seen, lacks: str, limits: Limits) -> str:
    within = "" if seen.hopeless or row.limit is None else f" within {row.limit(limits):.0f} s"
    said = seen.error or lacks
    return f"{row.failed}{within}{f': {said}' if said else ''}"
