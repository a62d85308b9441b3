"""Reasons of ends and waits, for users' scripts (`status.reason`, condition Completed).

An executor has additional reasons. Each set has a table of meanings, which the reference page includes.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from unbounded.workflow import decisions

# Ends
SUCCEEDED: Final = decisions.SUCCEEDED
CANCELLED: Final = decisions.CANCELLED
CRD_OUTDATED: Final = "CRDOutdated"
CRD_OUTDATED_TEXT: Final = "the CRDs on the server are older than this controller and drop fields: apply deploy/crd/"
DEADLINE_EXCEEDED: Final = decisions.DEADLINE_EXCEEDED
DRAIN_TIMED_OUT: Final = "DrainTimedOut"
EXECUTOR_LOST: Final = "ExecutorLost"
INTERNAL_ERROR: Final = "InternalError"
INVALID_PARAMETERS: Final = "InvalidParameters"
INVALID_SPEC: Final = "InvalidSpec"
INVALID_TARGET_SCOPE: Final = "InvalidTargetScope"
MACHINE_NOT_FOUND: Final = "MachineNotFound"
NAME_TAKEN: Final = "NameTaken"
NO_MATCHING_MACHINES: Final = "NoMatchingMachines"
NOT_STARTED: Final = "NotStarted"
NODE_NOT_READY: Final = "NodeNotReady"
NO_EFFECT: Final = decisions.NO_EFFECT
OUTCOME_UNKNOWN: Final = decisions.OUTCOME_UNKNOWN
PREEMPTED: Final = "Preempted"
TARGET_CHANGED: Final = "TargetChanged"
TARGET_FAILED: Final = "TargetFailed"
TIMED_OUT: Final = decisions.TIMED_OUT
TOO_MANY_TARGETS: Final = "TooManyTargets"
UNSUPPORTED_OPERATION: Final = "UnsupportedOperation"
UNSUPPORTED_TARGET: Final = "UnsupportedTarget"
AGENT_OUTDATED: Final = "AgentOutdated"

# Waits
EXECUTOR_SILENT: Final = "ExecutorSilent"
FOREIGN_MAINTENANCE: Final = "ForeignMaintenance"
HALTED: Final = "Halted"
IN_PROGRESS: Final = decisions.IN_PROGRESS
NO_ANSWER: Final = decisions.NO_ANSWER
PAUSED: Final = "Paused"
PROVIDER_NOT_SERVED: Final = "ProviderNotServed"
SETTLING: Final = decisions.SETTLING
SLOT_HELD: Final = "SlotHeld"
SOAKING: Final = "Soaking"
TARGET_IN_USE: Final = "TargetInUse"
WAITING_FOR_BUDGET: Final = "WaitingForBudget"
WAITING_FOR_DRAIN: Final = "WaitingForDrain"
WAITING_FOR_EXECUTOR: Final = "WaitingForExecutor"
WAITING_FOR_HOLD: Final = "WaitingForHold"
WAITING_FOR_MACHINE: Final = "WaitingForMachine"
WAITING_FOR_OLDER: Final = "WaitingForOlderOperation"
WAITING_FOR_TARGETS: Final = "WaitingForTargets"
WAITING_FOR_TURN: Final = "WaitingForTurn"

# Events
ABANDON_WAITS: Final = "AbandonWaits"
BUDGET_OVERRIDDEN: Final = "BudgetOverridden"
HOST_KEY_FORGOTTEN: Final = "HostKeyForgotten"
HOST_SILENT: Final = "HostSilent"

MEANING: Final[Mapping[str, str]] = {
    SUCCEEDED: "The operation completed, and an observation proves it.",
    CANCELLED: "The user cancelled the operation.",
    CRD_OUTDATED: "The CRDs on the server are older than the controller: apply deploy/crd/.",
    DEADLINE_EXCEEDED: "The operation did not complete within deadlineSeconds of the claim.",
    DRAIN_TIMED_OUT: (
        "The Node was not drained within drain.timeoutSeconds. The message names the pods that are left."
    ),
    EXECUTOR_LOST: (
        "The executor was silent past the deadline, or when the user abandoned the operation. The result is unknown."
    ),
    INTERNAL_ERROR: "The controller met an internal error; its log has the details.",
    INVALID_PARAMETERS: "A parameter is unknown, invalid or missing.",
    INVALID_SPEC: "The selector is empty or invalid.",
    INVALID_TARGET_SCOPE: "The selector of a host operation does not name one site (in clouds: one site and provider).",
    MACHINE_NOT_FOUND: "The Machine does not exist, or was deleted during the operation.",
    NAME_TAKEN: "Another MachineOperation has the name of the operation for this target.",
    NO_MATCHING_MACHINES: "The selector matches no Machine.",
    NOT_STARTED: "No executor started the operation within startDeadlineSeconds.",
    NODE_NOT_READY: "The target's operation completed, and its Node was not Ready in the soak of its stage.",
    NO_EFFECT: "Every attempt was accepted, and none had an effect.",
    OUTCOME_UNKNOWN: "The result of the action cannot be observed.",
    PREEMPTED: "An agent operation without progress gave way to a host operation.",
    TARGET_CHANGED: "The Machine is not the claimed one, or names another host.",
    TARGET_FAILED: "At least one target failed.",
    TIMED_OUT: "A stage exceeded its limit.",
    TOO_MANY_TARGETS: "The selector matches more Machines than one operation accepts.",
    UNSUPPORTED_OPERATION: "The executor does not support this kind.",
    AGENT_OUTDATED: "The agent of the Machine is of a version that does not wait for the drain that is needed.",
    UNSUPPORTED_TARGET: "No executor supports this kind on this Machine.",
    HALTED: "Targets of a stage have failed. Nothing starts until spec.retryFailed is raised, or a cancel.",
    IN_PROGRESS: "The operation is in progress.",
    EXECUTOR_SILENT: (
        "The Node was drained, and no executor started the operation. The Node is usable until the next attempt."
    ),
    FOREIGN_MAINTENANCE: "The drain waits for the end of another controller's maintenance of the Node.",
    NO_ANSWER: "The operation waits for an answer, for example of the BMC. As a final reason: no answer came.",
    PAUSED: "The operation waits until the pause annotation is removed, or spec.paused is false.",
    PROVIDER_NOT_SERVED: "No process serves the Machine's provider. The message names the missing part and the fix.",
    SETTLING: "The operation waits until calls of an earlier controller can no longer arrive.",
    SLOT_HELD: "The operation waits for the holder of the Machine's lock.",
    SOAKING: "A stage of a selector operation is complete when the Nodes of its targets have stayed Ready long enough.",
    TARGET_IN_USE: "The operation waits for an operation on another Machine that names the same BMC and device.",
    WAITING_FOR_BUDGET: (
        "The operation waits until a MachineDisruptionBudget lets one more Machine be unavailable. The message names "
        "the Machines that are, and their holders."
    ),
    WAITING_FOR_DRAIN: "The operation waits until the Node is drained.",
    WAITING_FOR_EXECUTOR: "The operation waits for an executor to claim it.",
    WAITING_FOR_HOLD: "The drain waits for an annotation hold.unbounded-cloud.io/… of the Node to be removed.",
    WAITING_FOR_MACHINE: "The operation waits for the Machine to exist, or for the end of its deletion.",
    WAITING_FOR_OLDER: "The operation waits for an older operation on the same Machine.",
    WAITING_FOR_TARGETS: "The targets of a selector operation are in progress.",
    WAITING_FOR_TURN: "The operation waits for the executor's concurrency limit.",
    ABANDON_WAITS: "Event on an operation: its executor is not silent yet, so it is not abandoned yet.",
    BUDGET_OVERRIDDEN: "Event on an operation: its spec.override let it exceed a disruption budget.",
    HOST_KEY_FORGOTTEN: "Event on the Machine: its host was replaced. machina trusts its next SSH key on first use.",
    HOST_SILENT: "Event on an AgentReset: the host is silent, as expected after a reset.",
}


class Blocker(StrEnum):
    """The party that an operation waits for."""

    BUDGET = "budget"
    EXECUTOR = "executor"
    HOST = "host"  # its BMC, its cloud or its agent
    NODE = "node"  # a drain
    OPERATION = "operation"  # another one, or its lock
    USER = "user"


_BLOCKERS: Final[Mapping[str, Blocker | None]] = {
    EXECUTOR_SILENT: Blocker.EXECUTOR,
    FOREIGN_MAINTENANCE: Blocker.NODE,
    HALTED: Blocker.USER,
    IN_PROGRESS: None,
    PAUSED: Blocker.USER,
    PROVIDER_NOT_SERVED: Blocker.EXECUTOR,
    SETTLING: None,
    SLOT_HELD: Blocker.OPERATION,
    SOAKING: None,
    TARGET_IN_USE: Blocker.OPERATION,
    WAITING_FOR_BUDGET: Blocker.BUDGET,
    WAITING_FOR_DRAIN: Blocker.NODE,
    WAITING_FOR_EXECUTOR: Blocker.EXECUTOR,
    WAITING_FOR_HOLD: Blocker.NODE,
    WAITING_FOR_MACHINE: Blocker.USER,
    WAITING_FOR_OLDER: Blocker.OPERATION,
    WAITING_FOR_TARGETS: None,
    WAITING_FOR_TURN: Blocker.EXECUTOR,
}


def is_known_wait(reason: str) -> bool:
    """Return whether the reason of a wait is one of this module, and not an executor's own."""
    return reason in _BLOCKERS


def blocker_of(reason: str) -> Blocker | None:
    """Return the blocker of a wait; None for progress. An executor's own reason is about the host."""
    return _BLOCKERS.get(reason, Blocker.HOST)
