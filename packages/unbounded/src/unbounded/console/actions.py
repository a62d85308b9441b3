"""Actions of a view: what the user asks for, its plan, and its execution. No browser is known here.

An action becomes the same intent as the command of the same name. It is planned first: the API server takes the writes
as a dry run, and the controllers' own functions tell the consequences. The writes are made with the user's rights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationKind
from unbounded.console import urls
from unbounded.intents.consent import consent_question, typed_consent
from unbounded.intents.machines import intend_maintenance, intend_pause, pause_value
from unbounded.intents.operations import CANCEL, intend_end, intend_operation, operation_name
from unbounded.intents.writes import perform_intent
from unbounded.kube.client import HttpApi
from unbounded.operations.claim_gates import in_maintenance, is_paused
from unbounded.operations.executor_selection import executor_of
from unbounded.plan.changes import PlanScope, plan_intent
from unbounded.plan.intent import Intent
from unbounded.plan.text import change_lines

PROGRAM: Final = "kubectl unbounded"
MANAGER: Final = "unbounded-console"
TTL_S: Final = 300  # of the operations, as the commands have it
SCOPE: Final = PlanScope(reads_secrets=False)  # passwords of BMCs are not for a process of several users


class ConsoleAction(StrEnum):
    """An action, named as its command."""

    HOST_REBOOT = "host-reboot"
    NODE_REBOOT = "node-reboot"
    REPLACE = "replace"
    DRAIN = "drain"
    RETURN = "return"
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"


LABELS: Final = {
    ConsoleAction.HOST_REBOOT: "Reboot the host",
    ConsoleAction.NODE_REBOOT: "Restart the node",
    ConsoleAction.REPLACE: "Replace",
    ConsoleAction.DRAIN: "Drain",
    ConsoleAction.RETURN: "End the maintenance",
    ConsoleAction.PAUSE: "Pause operations",
    ConsoleAction.RESUME: "Resume operations",
    ConsoleAction.CANCEL: "Cancel",
}
KINDS: Final = {
    ConsoleAction.HOST_REBOOT: OperationKind.HOST_REBOOT,
    ConsoleAction.NODE_REBOOT: OperationKind.NODE_REBOOT,
    ConsoleAction.REPLACE: OperationKind.HOST_REPLACE,
}


@dataclass(frozen=True)
class PlannedAction:
    """An action that waits for the consent of its user.

    Attributes:
        uid: of the object that it was planned for.
        command: the equivalent command.
        lines: the plan, as `plan` prints it.
        question: what is lost; empty where nothing is.
        consent: the text that the user has to type; empty where none is needed.
        is_refused: it would be rejected, or would fail at once.
        open_operations: on the Machine, as the plan was made.
    """

    action: ConsoleAction
    name: str
    uid: str
    intent: Intent
    command: str
    lines: tuple[str, ...]
    question: str = ""
    consent: str = ""
    is_refused: bool = False
    open_operations: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ActionResult:
    """The result of an action: what was written, and the path of the view that shows it."""

    text: str
    path: str


def machine_actions(machine: Machine) -> tuple[ConsoleAction, ...]:
    """Return the actions that something can carry out on a Machine."""
    kinds = [action for action, kind in KINDS.items() if executor_of(kind, machine) is not None]
    maintained, paused = in_maintenance(machine), is_paused(machine.metadata.annotations)
    return (
        *kinds,
        ConsoleAction.RETURN if maintained else ConsoleAction.DRAIN,
        ConsoleAction.RESUME if paused else ConsoleAction.PAUSE,
    )


def operation_actions(operation: MachineOperation) -> tuple[ConsoleAction, ...]:
    """Return the actions on an operation."""
    return () if operation.terminal or operation.spec.cancel else (ConsoleAction.CANCEL,)


def command_of(action: ConsoleAction, name: str) -> str:
    """Return the command that does the same."""
    if action is ConsoleAction.CANCEL:
        return f"{PROGRAM} machine operation cancel {name}"
    return f"{PROGRAM} machine {action} {name}"


async def plan_action(api: HttpApi, action: ConsoleAction, name: str, now: datetime) -> PlannedAction:
    """Return the plan of an action; nothing is written.

    Raises:
        IntentRejected: nothing can carry it out.
        ApiError: an object that the action or its plan needs cannot be read.
    """
    subject = await _subject(api, action, name)
    open_operations = await _open_operations(api, action, name)
    intent = await _intent(api, action, subject, now)
    plan = await plan_intent(api, intent, SCOPE)
    lines = (*intent.notes, *change_lines(plan.changes, PROGRAM, wide=None, digest=""))
    has_loss = bool(intent.destroys)
    return PlannedAction(
        action,
        name,
        subject.metadata.uid,
        intent,
        command_of(action, name),
        lines,
        consent_question(intent.destroys, intent.loses) if has_loss else "",
        typed_consent(intent.destroys) if has_loss else "",
        plan.is_refused or not plan.changes,
        open_operations,
    )


async def _subject(api: HttpApi, action: ConsoleAction, name: str) -> Machine | MachineOperation:
    if action is ConsoleAction.CANCEL:
        return await api.get(MACHINE_OPERATIONS, name)
    return await api.get(MACHINES, name)


async def _intent(api: HttpApi, action: ConsoleAction, subject: Machine | MachineOperation, now: datetime) -> Intent:
    if isinstance(subject, MachineOperation):
        return intend_end(subject, CANCEL)
    match action:
        case ConsoleAction.DRAIN | ConsoleAction.RETURN:
            return intend_maintenance(subject, enabled=action is ConsoleAction.DRAIN)
        case ConsoleAction.PAUSE | ConsoleAction.RESUME:
            return intend_pause(subject, pause_value("") if action is ConsoleAction.PAUSE else None)
    operation = operation_name(subject.name, action, now)
    return await intend_operation(api, KINDS[action], subject, operation, ttl_s=TTL_S)


class ConsentMissing(Exception):
    """The user has not typed what the action needs."""


class PlanOutdated(Exception):
    """The plan is not for what there is now."""


async def perform_action(api: HttpApi, planned: PlannedAction, typed: str) -> ActionResult:
    """Make the writes of a planned action.

    Args:
        typed: the text that the user has typed.

    Raises:
        ConsentMissing: it differs from what the action needs; nothing is written.
        PlanOutdated: the object was deleted and created again since, or has a further operation; nothing is written.
        ApiError: the API server rejected a write.
    """
    if planned.is_refused or typed.strip() != planned.consent:
        raise ConsentMissing("the text differs: nothing was changed")
    subject = await _subject(api, planned.action, planned.name)
    if subject.metadata.uid != planned.uid:
        raise PlanOutdated(f"{planned.name} was deleted and created again: nothing was changed")
    if further := await _open_operations(api, planned.action, planned.name) - planned.open_operations:
        raise PlanOutdated(f"{', '.join(sorted(further))} was requested after this plan: nothing was changed")
    await perform_intent(api, planned.intent, manager=MANAGER)
    made = _created(planned.intent.creates)
    if made:
        return ActionResult(f"operation {made} created", urls.operation(made))
    of_operation = planned.action is ConsoleAction.CANCEL
    path = urls.operation(planned.name) if of_operation else urls.machine(planned.name)
    return ActionResult(", ".join(patch.verb for patch in planned.intent.patches), path)


async def _open_operations(api: HttpApi, action: ConsoleAction, machine: str) -> frozenset[str]:
    """Return the operations that an operation of this action would come after; empty where it makes none."""
    if action not in KINDS:
        return frozenset()
    found = (await api.list(MACHINE_OPERATIONS)).items
    return frozenset(one.name for one in found if not one.terminal and one.spec.machine_ref == machine)


def _created(manifests: Sequence[dict[str, object]]) -> str:
    """Return the name of the operation that is created; empty where none is."""
    for one in manifests:
        metadata = one["metadata"]
        if isinstance(metadata, dict):
            return str(metadata["name"])
    return ""
