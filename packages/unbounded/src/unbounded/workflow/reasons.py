"""Reasons of ends and waits that every procedure has.

`unbounded.operations.reasons` has their meanings for users.
"""

from typing import Final

# Ends
SUCCEEDED: Final = "Succeeded"
CANCELLED: Final = "Cancelled"
DEADLINE_EXCEEDED: Final = "DeadlineExceeded"
NO_EFFECT: Final = "NoEffect"
OUTCOME_UNKNOWN: Final = "OutcomeUnknown"
TIMED_OUT: Final = "TimedOut"

# Waits
IN_PROGRESS: Final = "InProgress"
NO_ANSWER: Final = "NoAnswer"
SETTLING: Final = "Settling"
