"""Reasons of ends and waits, for users' scripts (`status.reason`, condition Completed).

An executor has additional reasons. Each set has a table of meanings, which the reference page includes.
"""

from collections.abc import Mapping
from typing import Final

# Ends
SUCCEEDED: Final = "Succeeded"
CANCELLED: Final = "Cancelled"
CRD_OUTDATED: Final = "CRDOutdated"
CRD_OUTDATED_TEXT: Final = "the CRDs on the server are older than this controller and drop fields: apply deploy/crd/"
DEADLINE_EXCEEDED: Final = "DeadlineExceeded"
EXECUTOR_LOST: Final = "ExecutorLost"
INTERNAL_ERROR: Final = "InternalError"
INVALID_PARAMETERS: Final = "InvalidParameters"
INVALID_SPEC: Final = "InvalidSpec"
INVALID_TARGET_SCOPE: Final = "InvalidTargetScope"
MACHINE_NOT_FOUND: Final = "MachineNotFound"
NAME_TAKEN: Final = "NameTaken"
NO_MATCHING_MACHINES: Final = "NoMatchingMachines"
NOT_STARTED: Final = "NotStarted"
NO_EFFECT: Final = "NoEffect"
OUTCOME_UNKNOWN: Final = "OutcomeUnknown"
PREEMPTED: Final = "Preempted"
TARGET_CHANGED: Final = "TargetChanged"
TARGET_FAILED: Final = "TargetFailed"
TIMED_OUT: Final = "TimedOut"
TOO_MANY_TARGETS: Final = "TooManyTargets"
UNSUPPORTED_OPERATION: Final = "UnsupportedOperation"
UNSUPPORTED_TARGET: Final = "UnsupportedTarget"

# Waits
IN_PROGRESS: Final = "InProgress"
NO_ANSWER: Final = "NoAnswer"
PAUSED: Final = "Paused"
PROVIDER_NOT_SERVED: Final = "ProviderNotServed"
SETTLING: Final = "Settling"
SLOT_HELD: Final = "SlotHeld"
TARGET_IN_USE: Final = "TargetInUse"
WAITING_FOR_EXECUTOR: Final = "WaitingForExecutor"
WAITING_FOR_MACHINE: Final = "WaitingForMachine"
WAITING_FOR_OLDER: Final = "WaitingForOlderOperation"
WAITING_FOR_TARGETS: Final = "WaitingForTargets"
WAITING_FOR_TURN: Final = "WaitingForTurn"

# Events
ABANDON_WAITS: Final = "AbandonWaits"
HOST_KEY_FORGOTTEN: Final = "HostKeyForgotten"
HOST_SILENT: Final = "HostSilent"

MEANING: Final[Mapping[str, str]] = {
    SUCCEEDED: "Done, and seen to be done.",
    CANCELLED: "It was asked to stop, and did.",
    CRD_OUTDATED: "The CRDs on the server are older than the controller: apply deploy/crd/.",
    DEADLINE_EXCEEDED: "Not done within deadlineSeconds of the claim.",
    EXECUTOR_LOST: "Its executor was silent past the deadline, or when it was abandoned; the effect is not known.",
    INTERNAL_ERROR: "The controller met an error of its own; its log has more.",
    INVALID_PARAMETERS: "A parameter is unknown, invalid or missing.",
    INVALID_SPEC: "The selector is empty, or cannot be read.",
    INVALID_TARGET_SCOPE: "The selector of a host operation does not keep to one site (and provider).",
    MACHINE_NOT_FOUND: "The Machine does not exist, or was deleted in the middle.",
    NAME_TAKEN: "Another MachineOperation has the name that the one for this target would get.",
    NO_MATCHING_MACHINES: "The selector matches no Machine.",
    NOT_STARTED: "Nobody started it within startDeadlineSeconds.",
    NO_EFFECT: "The action was accepted at every attempt, and nothing came of it.",
    OUTCOME_UNKNOWN: "Whether the action was carried out cannot be seen.",
    PREEMPTED: "An operation on the agent that made no progress gave way to one on the host.",
    TARGET_CHANGED: "The Machine is another one than at the claim, or is bound to another host.",
    TARGET_FAILED: "At least one of the targets failed.",
    TIMED_OUT: "A stage took longer than its limit.",
    TOO_MANY_TARGETS: "The selector matches more Machines than one operation takes.",
    UNSUPPORTED_OPERATION: "The executor does not carry out this kind.",
    UNSUPPORTED_TARGET: "Nobody can carry out this kind on such a Machine.",
    IN_PROGRESS: "It is being carried out.",
    NO_ANSWER: "Waits for an answer from outside, such as the BMC; at the end: none came.",
    PAUSED: "Waits as long as a pause annotation is there.",
    PROVIDER_NOT_SERVED: "Nobody serves the Machine's provider now: the message says what is missing, and what helps.",
    SETTLING: "Waits until an earlier controller can no longer act.",
    SLOT_HELD: "Waits for the operation that has the Machine.",
    TARGET_IN_USE: "Waits for an operation on another Machine that names the same BMC and device.",
    WAITING_FOR_EXECUTOR: "Waits to be claimed.",
    WAITING_FOR_MACHINE: "Waits for the Machine to appear, or to be there to stay.",
    WAITING_FOR_OLDER: "Waits for an older operation on the same Machine.",
    WAITING_FOR_TARGETS: "A selector operation whose targets are at work.",
    WAITING_FOR_TURN: "Waits until fewer machines are worked on at once.",
    ABANDON_WAITS: "An Event on an operation that is to be abandoned: its executor is still heard of.",
    HOST_KEY_FORGOTTEN: "An Event on the Machine: its host was made anew; the next SSH key is trusted on first use.",
    HOST_SILENT: "An Event on an AgentReset: nothing was heard of the host again, as it is to be.",
}
