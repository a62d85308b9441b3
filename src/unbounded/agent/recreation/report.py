"""The node's part of the Machine's status: conditions, configuration and image. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from unbounded.agent.desired import Desired, same_node
from unbounded.agent.model import Applied, ConfigurationId, NodeGoal, Slot
from unbounded.agent.node.settings import faults
from unbounded.agent.recreation.state import Failed, Phase, Transition
from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType, set_condition

LONGEST: Final = 400  # of a failure's text in a message

_PROGRESS: Final[Mapping[Phase, str]] = {
    Phase.CLEARING: "clearing {target}",
    Phase.PREPARING: "building {goal} in {target}",
    Phase.SWITCHING: "stopping {source}",
    Phase.STARTING: "starting {target}",
    Phase.VERIFYING: "waiting until the node in {target} is proven",
    Phase.COMMITTED: "the node in {target} is proven; removing {source}",
    Phase.RETURNING: "going back to {source}; stopping {target}",
    Phase.RESTORING: "going back to {source}; starting it",
    Phase.CHECKING: "going back to {source}; waiting until its node is back",
    Phase.ABANDONED: "went back to {source}; removing {target}",
}


@dataclass(frozen=True)
class Says:
    """A condition to set."""

    type: ConditionType
    status: ConditionStatus
    reason: ConditionReason
    message: str


def in_progress(transition: Transition, note: str = "") -> Says:
    """Return NodeUpdated for a recreation under way.

    Args:
        note: progress of its phase.
    """
    doing = _PROGRESS[transition.phase].format(
        source=transition.source, target=transition.target, goal=named(transition.goal)
    )
    failure = f" (attempt {transition.attempt}: {short(transition.failure)})" if transition.failure else ""
    progress = f": {note}" if note else ""
    text = f"{transition.why}; {doing}{progress}{failure}"
    return Says(ConditionType.NODE_UPDATED, ConditionStatus.FALSE, ConditionReason.IN_PROGRESS, text)


def succeeded(transition: Transition, left: str = "") -> Says:
    """Return NodeUpdated after a successful recreation.

    Args:
        left: what remains of the old slot.
    """
    text = f"{transition.why}; {transition.target} is the node now, made from {named(transition.goal)}"
    text += "; a Pod sandbox ran in it"
    rest = f"; {short(left)}" if left else ""
    return Says(ConditionType.NODE_UPDATED, ConditionStatus.TRUE, ConditionReason.SUCCEEDED, text + rest)


def went_back(transition: Transition, again: str) -> Says:
    """Return NodeUpdated after a failed recreation; its original cause is the reason while there is no node.

    Args:
        again: time of the next attempt, for the message.
    """
    goal, why = named(transition.goal), short(transition.failure)
    if transition.stranded:
        text = f"{transition.why}; {goal} did not work: {why}; {again}"
        return Says(ConditionType.NODE_UPDATED, ConditionStatus.FALSE, ConditionReason.NO_WORKING_NODE, text)
    text = f"{goal} did not work, so {transition.source} is the node again: {why}; {again}"
    return Says(ConditionType.NODE_UPDATED, ConditionStatus.FALSE, ConditionReason.ROLLED_BACK, text)


def waiting(why: str, for_what: str) -> Says:
    """Return NodeUpdated while a recreation is due and blocked."""
    text = f"{why}; {for_what}"
    return Says(ConditionType.NODE_UPDATED, ConditionStatus.FALSE, ConditionReason.WAITING, text)


def came_back(home: Slot, failed: Failed) -> Says:
    """Return NodeUpdated for an old node that is back after a failure to restore it."""
    text = f"{named(failed.goal)} did not work, so {home} is the node again: {short(failed.why)}"
    return Says(ConditionType.NODE_UPDATED, ConditionStatus.FALSE, ConditionReason.ROLLED_BACK, text)


def broken(why: str) -> Says:
    """Return NodeUpdated for an unreadable record on disk, which the user has to inspect."""
    return Says(ConditionType.NODE_UPDATED, ConditionStatus.UNKNOWN, ConditionReason.FAILED, short(why))


def pending(wanted: Desired, failed: Failed | None, refused: str = "") -> Says:
    """Return RepavePending for a node and its desired goal.

    Args:
        refused: why labels and taints of the Node cannot be updated.
    """
    conflicts = ""
    if wanted.conflicts and wanted.goal.configuration is not None:
        fields = ", ".join(wanted.conflicts)
        conflicts = f"; {wanted.goal.configuration.version_name} wins over spec in {fields}"
    if wanted.same:
        text = f"the node is made from {named(wanted.goal)}"
        return Says(ConditionType.REPAVE_PENDING, ConditionStatus.FALSE, ConditionReason.APPLIED, text + conflicts)
    text = f"{named(wanted.goal)} differs in {'; '.join(wanted.drift)}"
    text += f"; labels and taints of the Node do not follow: {short(refused)}" if refused else ""
    if failed is not None and same_node(failed.goal, wanted.goal):
        text = f"{text}; tried {failed.attempts} times and taken back: {short(failed.why)}"
        return Says(ConditionType.REPAVE_PENDING, ConditionStatus.TRUE, ConditionReason.ROLLED_BACK, text + conflicts)
    wrong = "; ".join(faults(wanted.goal.settings))
    outlook = (
        f"a node made from it would be taken back: {short(wrong)}" if wrong else "applied when the Node is deleted"
    )
    text = f"{text}; {outlook}"
    return Says(ConditionType.REPAVE_PENDING, ConditionStatus.TRUE, ConditionReason.PENDING, text + conflicts)


def unresolved(why: str) -> Says:
    """Return RepavePending while the configuration that the Machine names does not exist."""
    return Says(
        ConditionType.REPAVE_PENDING, ConditionStatus.UNKNOWN, ConditionReason.CONFIGURATION_MISSING, short(why)
    )


def set_up() -> Says:
    """Return AgentBootstrapped for a host whose agent runs and has a node."""
    text = "the agent runs, and has set up the node"
    return Says(ConditionType.AGENT_BOOTSTRAPPED, ConditionStatus.TRUE, ConditionReason.SUCCEEDED, text)


def setting_up(doing: str) -> Says:
    """Return AgentBootstrapped while `start` is not complete."""
    return Says(ConditionType.AGENT_BOOTSTRAPPED, ConditionStatus.FALSE, ConditionReason.RUNNING, short(doing))


def taken_back() -> Says:
    """Return AgentBootstrapped for a host after an AgentReset."""
    text = "an AgentReset has taken agent and node off the host; `unbounded-agent start` there sets them up again"
    return Says(ConditionType.AGENT_BOOTSTRAPPED, ConditionStatus.FALSE, ConditionReason.RESET, text)


def status_change(
    machine: Mapping[str, Any], says: Iterable[Says], applied: Applied | None, wanted: Desired | None, *, now: str
) -> dict[str, Any]:
    """Return the merge patch for a Machine's status; empty when its fields are equal already.

    Args:
        machine: plain JSON of the object.
        applied: record of the node's build; None does not change configuration and image.
        wanted: None while unknown.
    """
    status = machine.get("status") or {}
    before = list(status.get("conditions") or ())
    conditions = before
    for one in says:
        changed = set_condition(conditions, one.type, one.status, one.reason, one.message, now)
        conditions = conditions if changed is None else changed
    change: dict[str, Any] = {} if conditions == before else {"conditions": conditions}
    if applied is None:
        return change
    image = (status.get("agent") or {}).get("image")
    if (applied.goal.image or None) != image:
        change["agent"] = {"image": applied.goal.image or None}
    told = status.get("configuration") or None
    made_from = configuration_told(applied, wanted, told)
    if made_from != told:
        change["configuration"] = None if made_from is None else {**dict.fromkeys(told or (), None), **made_from}
    return change


def configuration_told(
    applied: Applied, wanted: Desired | None, told: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return `status.configuration`: the version that the node was built from, or an equivalent one."""
    if wanted is not None and wanted.same:
        return _plain(wanted.goal.configuration)
    made_from = _plain(applied.goal.configuration)
    return made_from if made_from is not None else told


def named(goal: NodeGoal) -> str:
    """Return a short description of a goal."""
    version = f"Kubernetes {goal.kubernetes_version}"
    return version if goal.configuration is None else f"{goal.configuration.version_name} ({version})"


def short(text: str) -> str:
    """Return the text as one line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _plain(configuration: ConfigurationId | None) -> Mapping[str, Any] | None:
    return None if configuration is None else msgspec.to_builtins(configuration)
