"""Why an operation ended or waits, as users script against it (`status.reason`, condition Completed)."""

from typing import Final

# Ends
SUCCEEDED: Final = "Succeeded"
CANCELLED: Final = "Cancelled"
CRD_OUTDATED: Final = "CRDOutdated"
CRD_OUTDATED_TEXT: Final = "the CRDs on the server are older than this controller and drop fields: apply deploy/crd/"
DEADLINE_EXCEEDED: Final = "DeadlineExceeded"
EXECUTOR_LOST: Final = "ExecutorLost"
INVALID_PARAMETERS: Final = "InvalidParameters"
INVALID_SPEC: Final = "InvalidSpec"
INVALID_TARGET_SCOPE: Final = "InvalidTargetScope"
MACHINE_NOT_FOUND: Final = "MachineNotFound"
NAME_TAKEN: Final = "NameTaken"
NO_MATCHING_MACHINES: Final = "NoMatchingMachines"
NOT_STARTED: Final = "NotStarted"
NO_EFFECT: Final = "NoEffect"  # the action was accepted, every attempt, and nothing came of it
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
SETTLING: Final = "Settling"
SLOT_HELD: Final = "SlotHeld"
WAITING_FOR_EXECUTOR: Final = "WaitingForExecutor"
WAITING_FOR_MACHINE: Final = "WaitingForMachine"
WAITING_FOR_OLDER: Final = "WaitingForOlderOperation"
WAITING_FOR_TARGETS: Final = "WaitingForTargets"
