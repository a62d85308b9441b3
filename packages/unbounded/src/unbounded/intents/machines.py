"""Intents on Machines: their maintenance, and the pause of their operations."""

from __future__ import annotations

from typing import Any

from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import ANNOTATION_PAUSED
from unbounded.intents.rejections import IntentRejected
from unbounded.operations.claim_gates import in_maintenance, is_paused
from unbounded.plan.intent import Intent, IntentPatch, bound_to


def intend_maintenance(machine: Machine, *, enabled: bool, reason: str = "") -> Intent:
    """Return the begin of a Machine's maintenance, which drains its Node, or its end."""
    before = machine.spec.maintenance
    if in_maintenance(machine) == enabled and (not reason or (before is not None and before.reason == reason)):
        state = "in maintenance already" if enabled else "not in maintenance"
        return Intent(notes=(f"Machine {machine.name} is {state}",))
    body = {"spec": {"maintenance": {"enabled": True, "reason": reason or None} if enabled else None}}
    body = bound_to(machine.metadata.uid, body)
    verb = "maintenance requested" if enabled else "maintenance ended"
    return Intent(patches=(IntentPatch(MACHINES, machine.name, body, verb=verb),))


def intend_pause(machine: Machine, value: str | None) -> Intent:
    """Return the pause of the operations on a Machine, or its end.

    Args:
        value: of the annotation, from `pause_value`; None ends the pause.
    """
    before = machine.metadata.annotations.get(ANNOTATION_PAUSED)
    if before == value:
        return Intent(notes=(f"Machine {machine.name} is {pause_state(value)} already",))
    body = bound_to(machine.metadata.uid, pause_annotation(value))
    return Intent(patches=(IntentPatch(MACHINES, machine.name, body, verb=pause_state(value)),))


def pause_value(reason: str) -> str:
    """Return the value of the annotation for a reason. Raises IntentRejected for one that would not pause."""
    value = reason or "true"
    if not is_paused({ANNOTATION_PAUSED: value}):
        text = f"--reason: the annotation with the value {value!r} would not pause"
        raise IntentRejected(text, is_usage=True)
    return value


def pause_annotation(value: str | None) -> dict[str, Any]:
    """Return the merge patch that sets or removes the annotation."""
    return {"metadata": {"annotations": {ANNOTATION_PAUSED: value}}}


def pause_state(value: str | None) -> str:
    return "resumed" if value is None else "paused"
