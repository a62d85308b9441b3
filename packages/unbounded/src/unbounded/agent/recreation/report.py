"""The node's part of the Machine's status: conditions, configuration and image. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import msgspec

from unbounded.agent.model import BuildRecord, ConfigurationId, NodeGoal, Slot
from unbounded.agent.node.settings import faults
from unbounded.agent.node_spec import DesiredNode, same_node
from unbounded.agent.recreation.state_store import FailedRecreation, RecreationPhase, Transition
from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType, counted, set_condition
from unbounded.api.fields import ApiStruct
from unbounded.api.machine_status import AgentStage
from unbounded.operations.execution_record import with_nulls

LONGEST: Final = 400  # of a failure's text in a message

_PROGRESS: Final[Mapping[RecreationPhase, str]] = {
    RecreationPhase.CLEARING: "clearing {target}",
    RecreationPhase.PREPARING: "building {goal} in {target}",
    RecreationPhase.SWITCHING: "stopping {source}",
    RecreationPhase.STARTING: "starting {target}",
    RecreationPhase.VERIFYING: "waiting until the node in {target} is healthy",
    RecreationPhase.COMMITTED: "the node in {target} is healthy; removing {source}",
    RecreationPhase.RETURNING: "rolling back to {source}; stopping {target}",
    RecreationPhase.RESTORING: "rolling back to {source}; starting it",
    RecreationPhase.CHECKING: "rolling back to {source}; waiting until its node is healthy",
    RecreationPhase.ABANDONED: "rolled back to {source}; removing {target}",
}

_STAGES: Final[Mapping[RecreationPhase, AgentStage]] = {
    RecreationPhase.CLEARING: AgentStage.PREPARING,
    RecreationPhase.PREPARING: AgentStage.PREPARING,
    RecreationPhase.SWITCHING: AgentStage.STARTING,
    RecreationPhase.STARTING: AgentStage.STARTING,
    RecreationPhase.VERIFYING: AgentStage.STARTING,
    RecreationPhase.COMMITTED: AgentStage.RUNNING,
    RecreationPhase.RETURNING: AgentStage.STARTING,
    RecreationPhase.RESTORING: AgentStage.STARTING,
    RecreationPhase.CHECKING: AgentStage.STARTING,
    RecreationPhase.ABANDONED: AgentStage.RUNNING,
}


def stage_of_recreation(transition: Transition) -> dict[str, AgentStage]:
    """Return `status.agent` of a recreation under way."""
    return {"stage": _STAGES[transition.phase]}


def stage_of_node(applied: BuildRecord) -> dict[str, AgentStage]:
    """Return `status.agent` of a node that is not being recreated."""
    return {"stage": AgentStage.RUNNING if applied.node_uid else AgentStage.STARTING}


@dataclass(frozen=True)
class ConditionReport:
    """A condition to set."""

    type: ConditionType
    status: ConditionStatus
    reason: ConditionReason
    message: str


def in_progress(transition: Transition, note: str = "") -> ConditionReport:
    """Return NodeUpdated for a recreation under way.

    Args:
        note: progress of its phase.
    """
    doing = _PROGRESS[transition.phase].format(
        source=transition.source, target=transition.target, goal=describe_goal(transition.goal)
    )
    failure = f" (attempt {transition.attempt}: {one_line(transition.failure)})" if transition.failure else ""
    progress = f": {note}" if note else ""
    text = f"{transition.why}; {doing}{progress}{failure}"
    return ConditionReport(ConditionType.NODE_UPDATED, ConditionStatus.FALSE, ConditionReason.IN_PROGRESS, text)


def succeeded(transition: Transition, left: str = "") -> ConditionReport:
    """Return NodeUpdated after a successful recreation.

    Args:
        left: what remains of the old slot.
    """
    text = f"{transition.why}; {transition.target} is the node now, built from {describe_goal(transition.goal)}"
    text += "; a Pod sandbox ran in it"
    rest = f"; {one_line(left)}" if left else ""
    return ConditionReport(ConditionType.NODE_UPDATED, ConditionStatus.TRUE, ConditionReason.SUCCEEDED, text + rest)


def rolled_back(transition: Transition, again: str) -> ConditionReport:
    """Return NodeUpdated after a failed recreation; its original cause is the reason while there is no node.

    Args:
        again: time of the next attempt, for the message.
    """
    spec, why = describe_goal(transition.goal), one_line(transition.failure)
    if transition.stranded:
        text = f"{transition.why}; {spec} failed: {why}; {again}"
        return ConditionReport(ConditionType.NODE_UPDATED, ConditionStatus.FALSE, ConditionReason.NO_WORKING_NODE, text)
    text = f"{spec} failed, so {transition.source} is the node again: {why}; {again}"
    return ConditionReport(ConditionType.NODE_UPDATED, ConditionStatus.FALSE, ConditionReason.ROLLED_BACK, text)


def blocked(why: str, for_what: str) -> ConditionReport:
    """Return NodeUpdated while a recreation is due and blocked."""
    text = f"{why}; {for_what}"
    return ConditionReport(ConditionType.NODE_UPDATED, ConditionStatus.FALSE, ConditionReason.WAITING, text)


def restored(home: Slot, failed: FailedRecreation) -> ConditionReport:
    """Return NodeUpdated for an old node that is back after a failure to restore it."""
    text = f"{describe_goal(failed.goal)} failed, so {home} is the node again: {one_line(failed.why)}"
    return ConditionReport(ConditionType.NODE_UPDATED, ConditionStatus.FALSE, ConditionReason.ROLLED_BACK, text)


def unreadable(why: str) -> ConditionReport:
    """Return NodeUpdated for an unreadable record on disk, which the user has to inspect."""
    return ConditionReport(ConditionType.NODE_UPDATED, ConditionStatus.UNKNOWN, ConditionReason.FAILED, one_line(why))


def repave_pending(desired: DesiredNode, failed: FailedRecreation | None, refused: str = "") -> ConditionReport:
    """Return RepavePending for a node and its desired goal.

    Args:
        refused: why labels and taints of the Node cannot be updated.
    """
    conflicts = ""
    if desired.conflicts and desired.goal.configuration is not None:
        fields = ", ".join(desired.conflicts)
        conflicts = f"; {desired.goal.configuration.version_name} overrides spec in {fields}"
    if desired.same:
        text = f"the node is built from {describe_goal(desired.goal)}"
        return ConditionReport(
            ConditionType.REPAVE_PENDING, ConditionStatus.FALSE, ConditionReason.APPLIED, text + conflicts
        )
    text = f"{describe_goal(desired.goal)} differs in {'; '.join(desired.drift)}"
    text += f"; cannot update labels and taints of the Node: {one_line(refused)}" if refused else ""
    if failed is not None and same_node(failed.goal, desired.goal):
        text = f"{text}; tried {counted(failed.attempts, 'time')} and rolled back: {one_line(failed.why)}"
        return ConditionReport(
            ConditionType.REPAVE_PENDING, ConditionStatus.TRUE, ConditionReason.ROLLED_BACK, text + conflicts
        )
    wrong = "; ".join(faults(desired.goal.settings))
    outlook = (
        f"a node built from it would be rolled back: {one_line(wrong)}"
        if wrong
        else "applied when the Node is created again"
    )
    text = f"{text}; {outlook}"
    return ConditionReport(
        ConditionType.REPAVE_PENDING, ConditionStatus.TRUE, ConditionReason.PENDING, text + conflicts
    )


def unresolved(why: str) -> ConditionReport:
    """Return RepavePending while the configuration that the Machine names does not exist."""
    return ConditionReport(
        ConditionType.REPAVE_PENDING, ConditionStatus.UNKNOWN, ConditionReason.CONFIGURATION_MISSING, one_line(why)
    )


def bootstrapped() -> ConditionReport:
    """Return AgentBootstrapped for a host whose agent runs and has a node."""
    text = "the agent runs, and has set up the node"
    return ConditionReport(ConditionType.AGENT_BOOTSTRAPPED, ConditionStatus.TRUE, ConditionReason.SUCCEEDED, text)


def bootstrapping(doing: str) -> ConditionReport:
    """Return AgentBootstrapped while `start` is not complete."""
    return ConditionReport(
        ConditionType.AGENT_BOOTSTRAPPED, ConditionStatus.FALSE, ConditionReason.RUNNING, one_line(doing)
    )


def after_reset() -> ConditionReport:
    """Return AgentBootstrapped for a host after an AgentReset."""
    text = (
        "an AgentReset has removed agent and node from the host; run `unbounded-agent start` there to set them up again"
    )
    return ConditionReport(ConditionType.AGENT_BOOTSTRAPPED, ConditionStatus.FALSE, ConditionReason.RESET, text)


def status_change(
    machine: Mapping[str, Any],
    report: Iterable[ConditionReport],
    applied: BuildRecord | None,
    desired: DesiredNode | None,
    *,
    now: str,
    agent: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the merge patch for a Machine's status; empty when its fields are equal already.

    Args:
        machine: plain JSON of the object.
        applied: record of the node's build; None does not change configuration and image.
        desired: None while unknown.
        agent: fields of `status.agent` by their names on the wire; None removes a field.
    """
    status = machine.get("status") or {}
    before = list(status.get("conditions") or ())
    conditions = before
    for one in report:
        changed = set_condition(conditions, one.type, one.status, one.reason, one.message, now)
        conditions = conditions if changed is None else changed
    change: dict[str, Any] = {} if conditions == before else {"conditions": conditions}
    known: Mapping[str, Any] = status.get("agent") or {}
    if applied is not None:
        agent = {**agent, "image": applied.goal.image or None}
    of_agent = {key: value for key, value in agent.items() if msgspec.to_builtins(value) != known.get(key)}
    if of_agent:
        change["agent"] = {
            key: with_nulls(value) if isinstance(value, ApiStruct) else value for key, value in of_agent.items()
        }
    if applied is None:
        return change
    configuration = status.get("configuration") or None
    made_from = configuration_status(applied, desired, configuration)
    if made_from != configuration:
        change["configuration"] = (
            None if made_from is None else {**dict.fromkeys(configuration or (), None), **made_from}
        )
    return change


def configuration_status(
    applied: BuildRecord, desired: DesiredNode | None, configuration: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return `status.configuration`: the version that the node was built from, or an equivalent one."""
    if desired is not None and desired.same:
        return _plain(desired.goal.configuration)
    made_from = _plain(applied.goal.configuration)
    return made_from if made_from is not None else configuration


def describe_goal(spec: NodeGoal) -> str:
    """Return a short description of a goal."""
    version = f"Kubernetes {spec.kubernetes_version}"
    return version if spec.configuration is None else f"{spec.configuration.version_name} ({version})"


def one_line(text: str) -> str:
    """Return the text as one line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _plain(configuration: ConfigurationId | None) -> Mapping[str, Any] | None:
    return None if configuration is None else msgspec.to_builtins(configuration)
