"""Plans of selector operations: snapshot the targets, create a child operation for each, mirror the children. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from unbounded.api.machine import Machine
from unbounded.api.meta import LabelSelector
from unbounded.api.names import API_VERSION, LABEL_PARENT, LABEL_SITE
from unbounded.api.operation import (
    FailurePolicy,
    MachineOperation,
    OperationKind,
    OperationPhase,
    TargetStatus,
)
from unbounded.kube.clock import rfc3339
from unbounded.kube.selectors import SelectorError, label_test, selector_text
from unbounded.operations import reasons, rollout_plan
from unbounded.operations.claim_gates import order
from unbounded.operations.executor_selection import ExecutorKind, executor_name, executor_of
from unbounded.operations.parameters import invalid

MAX_TARGETS: Final = 1000
MIRRORED_MESSAGE: Final = 256  # limits the size of a parent of a thousand for etcd; the child has the whole message
_ENDED: Final = frozenset({OperationPhase.COMPLETE.value, OperationPhase.FAILED.value})


@dataclass(frozen=True)
class BatchRejection:
    reason: str
    text: str


def snapshot(parent: MachineOperation, machines: Sequence[Machine]) -> tuple[TargetStatus, ...] | BatchRejection:
    """Return the targets of a selector operation in order; or the reason why it cannot start.

    The order is that of spec.strategy; without one, targets are sorted by name.
    """
    selector = parent.spec.machine_selector
    if selector is None or not (selector.match_labels or selector.match_expressions):
        return BatchRejection(
            reasons.INVALID_SPEC, "spec.machineSelector must not be empty: name labels, or use spec.machineRef"
        )
    kind = OperationKind(parent.spec.operation_kind)
    if kind.is_host and pinned_site(selector) is None:
        text = f"the selector of {kind} must name one site: {LABEL_SITE}=SITE in spec.machineSelector.matchLabels"
        return BatchRejection(reasons.INVALID_TARGET_SCOPE, text)
    wrong = invalid(parent)
    if wrong is not None:
        return BatchRejection(reasons.INVALID_PARAMETERS, wrong)
    try:
        fits = label_test(selector_text(selector))
    except SelectorError as error:
        return BatchRejection(reasons.INVALID_SPEC, f"spec.machineSelector: {error}")
    matched = sorted((m for m in machines if fits(m.metadata.labels)), key=lambda m: m.name)
    if not matched:
        return BatchRejection(reasons.NO_MATCHING_MACHINES, "spec.machineSelector matches no Machine")
    if len(matched) > MAX_TARGETS:
        text = f"spec.machineSelector matches {len(matched)} Machines; the maximum is {MAX_TARGETS}"
        return BatchRejection(reasons.TOO_MANY_TARGETS, text)
    mixed = _mixed_executors(kind, matched)
    if mixed is not None:
        return BatchRejection(reasons.INVALID_TARGET_SCOPE, mixed)
    if parent.spec.strategy is None:
        return tuple(TargetStatus(machine_ref=m.name, phase=OperationPhase.PENDING) for m in matched)
    try:
        targets = rollout_plan.staged(parent.spec.strategy, matched)
    except SelectorError as error:
        return BatchRejection(reasons.INVALID_SPEC, f"spec.strategy.stages: {error}")
    return BatchRejection(reasons.INVALID_SPEC, targets) if isinstance(targets, str) else targets


def _mixed_executors(kind: OperationKind, machines: Sequence[Machine]) -> str | None:
    """Return an error where host operations would go to several executors; None where they would not.

    Agent operations may go to many agents.
    """
    if not kind.is_host:
        return None
    owners = ((executor_of(kind, m), executor_name(kind, m)) for m in machines)
    names = {str(owner) if owner is ExecutorKind.AGENT else name for owner, name in owners if name is not None}
    if len(names) <= 1:
        return None
    return (
        f"spec.machineSelector spans several executors ({', '.join(sorted(names)[:5])}): select the "
        "Machines of one executor"
    )


def pinned_site(selector: LabelSelector) -> str | None:
    """Return the one site that a selector names; None when it does not name exactly one."""
    site = selector.match_labels.get(LABEL_SITE)
    if site:
        return site
    for requirement in selector.match_expressions:
        if (requirement.key, requirement.operator) == (LABEL_SITE, "In") and len(requirement.values) == 1:
            return requirement.values[0]
    return None


def child_name(parent: MachineOperation, machine: str, retry: int = 0) -> str:
    """Return the child's name: a function of parent, Machine and retry, so that no child is created twice."""
    plain = f"{parent.name}-{machine}"
    if len(plain) <= 253 and not retry:
        return plain
    source = f"{parent.metadata.uid}/{machine}{f'/{retry}' if retry else ''}"
    digest = hashlib.sha256(source.encode()).hexdigest()[:10]
    return f"{plain[:242].rstrip('.-')}-{digest}"


def child_manifest(parent: MachineOperation, machine: str) -> dict[str, Any]:
    retry = next((target.retry for target in parent.status.targets if target.machine_ref == machine), 0)
    owner = {
        "apiVersion": API_VERSION,
        "kind": "MachineOperation",
        "name": parent.name,
        "uid": parent.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    spec: dict[str, Any] = {
        "machineRef": machine,
        "operationKind": parent.spec.operation_kind,
        "startDeadlineSeconds": parent.spec.start_deadline_seconds,
    }
    if parent.spec.parameters:
        spec["parameters"] = dict(parent.spec.parameters)
    if parent.spec.drain is not None:
        spec["drain"] = msgspec.to_builtins(parent.spec.drain)
    if parent.spec.deadline_seconds is not None:
        spec["deadlineSeconds"] = parent.spec.deadline_seconds
    labels = {LABEL_PARENT: parent.name if len(parent.name) <= 63 else parent.metadata.uid}
    metadata = {"name": child_name(parent, machine, retry), "labels": labels, "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": spec}


def is_child_of(operation: MachineOperation, parent_uid: str) -> bool:
    return any(owner.uid == parent_uid for owner in operation.metadata.owner_references)


@dataclass(frozen=True)
class BatchStep:
    """The next step of a running parent.

    Attributes:
        targets: the mirror of the children.
        start: Machines whose children are to be created now.
        cancel: children to cancel.
        abandon: children to abandon.
        end: phase and reason of the parent, once all its targets have ended.
        rollout: the step of the stages; None without spec.strategy, and once the parent stops.
        wait: the reason why no target starts, where that is not its concurrency limit.
    """

    targets: tuple[TargetStatus, ...]
    message: str
    start: tuple[str, ...] = ()
    cancel: tuple[str, ...] = ()
    abandon: tuple[str, ...] = ()
    end: tuple[OperationPhase, str] | None = None
    rollout: rollout_plan.RolloutStep | None = None
    wait: rollout_plan.RolloutWait | None = None


def plan_batch(
    parent: MachineOperation, operations: Iterable[MachineOperation], facts: rollout_plan.RolloutFacts
) -> BatchStep:
    """Return the next step of a parent, from its recorded targets and its child operations.

    Args:
        facts: the Machines and the Nodes matter with spec.strategy only.
    """
    now, strategy, known = rfc3339(facts.now), parent.spec.strategy, tuple(operations)
    cancelled, abandoned = bool(parent.spec.cancel or parent.metadata.deletion_timestamp), parent.spec.abandon
    stopping = cancelled or abandoned
    targets: Sequence[TargetStatus] = parent.status.targets
    if strategy is not None and not stopping:
        targets = rollout_plan.retried(parent, targets, facts)
    children = _children(parent, targets, known)
    mirrored = [_mirror(target, children.get(target.machine_ref), now) for target in targets]
    running = {child.spec.machine_ref or "": child for child in known if not child.terminal}
    rollout = None
    if strategy is not None and not stopping:
        rollout = rollout_plan.plan_rollout(rollout_plan.rules_of(parent, strategy), mirrored, running, facts)
        mirrored = list(rollout.targets)
        failed = rollout.broken if strategy.on_failure == FailurePolicy.FAIL else 0
    else:
        failed = sum(target.phase == OperationPhase.FAILED for target in mirrored)
        failed = failed if failed >= parent.spec.max_failures else 0
    stop_reason = reasons.CANCELLED if stopping else reasons.NOT_STARTED if failed else None
    if stop_reason is not None:
        how = "cancelled" if cancelled else "abandoned"
        text = f"{how} before it started" if stopping else f"not started: {failed} of the others failed"
        mirrored = [failed_target(t, stop_reason, text, now) if _open(t, children) else t for t in mirrored]
    room = max(parent.spec.max_concurrent - len(running), 0)
    waiting = tuple(t.machine_ref for t in mirrored if _open(t, children))
    if stop_reason:
        start = tuple[str, ...]()
    elif rollout is not None:
        start = rollout.start
    else:
        start = () if parent.spec.paused else waiting[:room]
    cancel = tuple(child.name for child in sorted(running.values(), key=order) if cancelled and not child.spec.cancel)
    abandon = tuple(child.name for child in sorted(running.values(), key=order) if abandoned and not child.spec.abandon)
    ended = all(target.phase in _ENDED for target in mirrored)
    if rollout is not None and not failed:
        ended = rollout.is_over
    wait = None
    if not stop_reason and not ended:
        wait = rollout.wait if rollout is not None else rollout_plan.PAUSED if parent.spec.paused and waiting else None
    message = _message(mirrored) + (f"; {wait.text}" if wait is not None else "")
    end = _end(mirrored, stopping) if ended else None
    return BatchStep(tuple(mirrored), message, start, cancel, abandon, end, rollout, wait)


def _children(
    parent: MachineOperation, targets: Sequence[TargetStatus], operations: Sequence[MachineOperation]
) -> dict[str, MachineOperation]:
    """Return the children by Machine: of a target that was started again, the one of its last retry."""
    names = {
        target.machine_ref: child_name(parent, target.machine_ref, target.retry) for target in targets if target.retry
    }
    found = ((child.spec.machine_ref or "", child) for child in operations)
    return {machine: child for machine, child in found if names.get(machine, child.name) == child.name}


def _open(target: TargetStatus, children: Mapping[str, MachineOperation]) -> bool:
    """Return whether the target has no child yet."""
    return target.phase not in _ENDED and target.operation is None and target.machine_ref not in children


def _mirror(target: TargetStatus, child: MachineOperation | None, now: str) -> TargetStatus:
    if target.phase in _ENDED:
        return target
    if child is None:
        if target.operation is None:
            return target
        return failed_target(target, reasons.CANCELLED, f"its operation {target.operation} was deleted", now)
    own = child.status.targets[0] if child.status.targets else target
    return TargetStatus(
        machine_ref=target.machine_ref,
        phase=child.status.phase or OperationPhase.PENDING,
        stage=own.stage if child.status.targets else None,
        message=(child.status.message or "")[:MIRRORED_MESSAGE] or None,
        reason=child.status.reason,
        operation=child.name,
        started_at=own.started_at,
        completed_at=child.status.completed_at,
        observed_generation=own.observed_generation,
        target_operations=own.target_operations,
        attempts=own.attempts,
        last_attempt_at=own.last_attempt_at,
        rollout_stage=target.rollout_stage,
        retry=target.retry,
    )


def fail_uncreated(
    targets: Sequence[TargetStatus], refused: Mapping[str, BatchRejection], *, now: str
) -> tuple[TargetStatus, ...]:
    """Return the targets, failed where their child, by Machine, could not be created."""
    return tuple(
        failed_target(t, refused[t.machine_ref].reason, refused[t.machine_ref].text, now)
        if t.machine_ref in refused
        else t
        for t in targets
    )


def failed_target(target: TargetStatus, reason: str, text: str, now: str) -> TargetStatus:
    """Return a target that has ended without its executor."""
    return msgspec.structs.replace(
        target, phase=OperationPhase.FAILED, reason=reason, message=text[:MIRRORED_MESSAGE], completed_at=now
    )


def _end(targets: Sequence[TargetStatus], stopping: bool) -> tuple[OperationPhase, str]:
    if all(target.phase == OperationPhase.COMPLETE for target in targets):
        return OperationPhase.COMPLETE, reasons.SUCCEEDED
    return OperationPhase.FAILED, reasons.CANCELLED if stopping else reasons.TARGET_FAILED


def _message(targets: Sequence[TargetStatus]) -> str:
    def count(phase: OperationPhase) -> int:
        return sum(target.phase == phase for target in targets)

    return (
        f"targets complete={count(OperationPhase.COMPLETE)} failed={count(OperationPhase.FAILED)} "
        f"inProgress={count(OperationPhase.IN_PROGRESS)} pending={count(OperationPhase.PENDING)}"
    )
