"""The lifecycle of an instance as a table: the effect of each action in each state."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Final


class InstanceState(StrEnum):
    """Lifecycle states of an instance."""

    PROVISIONING = "PROVISIONING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    CREATING_IMAGE = "CREATING_IMAGE"
    MOVING = "MOVING"
    TERMINATING = "TERMINATING"
    TERMINATED = "TERMINATED"


class InstanceAction(StrEnum):
    """Actions of InstanceAction, and the termination."""

    START = "START"
    STOP = "STOP"
    SOFTSTOP = "SOFTSTOP"
    RESET = "RESET"
    SOFTRESET = "SOFTRESET"
    TERMINATE = "TERMINATE"


class ActionEffect(Enum):
    START = "starts"
    STOP = "stops"
    RESTART = "stops and starts"
    TERMINATE = "is terminated"
    ALREADY = "no effect: the instance is in this state"
    BUSY = "rejected: another change is in progress"
    WRONG = "rejected in this state"


POWER_ACTIONS: Final = tuple(action for action in InstanceAction if action is not InstanceAction.TERMINATE)
SOFT: Final = frozenset({InstanceAction.SOFTSTOP, InstanceAction.SOFTRESET})
"""Actions that ask the operating system, and take the power away when it does not listen."""

SETTLED: Final = frozenset({InstanceState.RUNNING, InstanceState.STOPPED})
LIVE: Final = frozenset(InstanceState) - {InstanceState.TERMINATED}
POWERED: Final = frozenset({InstanceState.STARTING, InstanceState.RUNNING, InstanceState.STOPPING})


def _row(
    *,
    start: ActionEffect = ActionEffect.BUSY,
    stop: ActionEffect = ActionEffect.BUSY,
    reset: ActionEffect = ActionEffect.BUSY,
    terminate: ActionEffect,
) -> Mapping[InstanceAction, ActionEffect]:
    return {
        InstanceAction.START: start,
        InstanceAction.STOP: stop,
        InstanceAction.SOFTSTOP: stop,
        InstanceAction.RESET: reset,
        InstanceAction.SOFTRESET: reset,
        InstanceAction.TERMINATE: terminate,
    }


EFFECTS: Final[Mapping[InstanceState, Mapping[InstanceAction, ActionEffect]]] = {
    InstanceState.PROVISIONING: _row(terminate=ActionEffect.TERMINATE),
    InstanceState.STARTING: _row(start=ActionEffect.ALREADY, terminate=ActionEffect.TERMINATE),
    InstanceState.RUNNING: _row(
        start=ActionEffect.ALREADY, stop=ActionEffect.STOP, reset=ActionEffect.RESTART, terminate=ActionEffect.TERMINATE
    ),
    InstanceState.STOPPING: _row(stop=ActionEffect.ALREADY, terminate=ActionEffect.TERMINATE),
    InstanceState.STOPPED: _row(
        start=ActionEffect.START, stop=ActionEffect.ALREADY, reset=ActionEffect.WRONG, terminate=ActionEffect.TERMINATE
    ),
    InstanceState.CREATING_IMAGE: _row(
        start=ActionEffect.WRONG, stop=ActionEffect.WRONG, reset=ActionEffect.WRONG, terminate=ActionEffect.WRONG
    ),
    InstanceState.MOVING: _row(
        start=ActionEffect.WRONG, stop=ActionEffect.WRONG, reset=ActionEffect.WRONG, terminate=ActionEffect.WRONG
    ),
    InstanceState.TERMINATING: _row(
        start=ActionEffect.WRONG, stop=ActionEffect.WRONG, reset=ActionEffect.WRONG, terminate=ActionEffect.ALREADY
    ),
    InstanceState.TERMINATED: _row(
        start=ActionEffect.WRONG, stop=ActionEffect.WRONG, reset=ActionEffect.WRONG, terminate=ActionEffect.WRONG
    ),
}
