"""The lifecycle of an instance as a table: the effect of each action in each state."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Final


class State(StrEnum):
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


class Action(StrEnum):
    """Actions of InstanceAction, and the termination."""

    START = "START"
    STOP = "STOP"
    SOFTSTOP = "SOFTSTOP"
    RESET = "RESET"
    SOFTRESET = "SOFTRESET"
    TERMINATE = "TERMINATE"


class Effect(Enum):
    START = "starts"
    STOP = "stops"
    RESTART = "stops and starts"
    TERMINATE = "is terminated"
    ALREADY = "is so already"
    BUSY = "something else is going on"
    WRONG = "cannot be done in this state"


POWER_ACTIONS: Final = tuple(action for action in Action if action is not Action.TERMINATE)
SOFT: Final = frozenset({Action.SOFTSTOP, Action.SOFTRESET})
"""Actions that ask the operating system, and take the power away when it does not listen."""

SETTLED: Final = frozenset({State.RUNNING, State.STOPPED})
LIVE: Final = frozenset(State) - {State.TERMINATED}
POWERED: Final = frozenset({State.STARTING, State.RUNNING, State.STOPPING})


def _row(
    *, start: Effect = Effect.BUSY, stop: Effect = Effect.BUSY, reset: Effect = Effect.BUSY, terminate: Effect
) -> Mapping[Action, Effect]:
    return {
        Action.START: start,
        Action.STOP: stop,
        Action.SOFTSTOP: stop,
        Action.RESET: reset,
        Action.SOFTRESET: reset,
        Action.TERMINATE: terminate,
    }


EFFECTS: Final[Mapping[State, Mapping[Action, Effect]]] = {
    State.PROVISIONING: _row(terminate=Effect.TERMINATE),
    State.STARTING: _row(start=Effect.ALREADY, terminate=Effect.TERMINATE),
    State.RUNNING: _row(start=Effect.ALREADY, stop=Effect.STOP, reset=Effect.RESTART, terminate=Effect.TERMINATE),
    State.STOPPING: _row(stop=Effect.ALREADY, terminate=Effect.TERMINATE),
    State.STOPPED: _row(start=Effect.START, stop=Effect.ALREADY, reset=Effect.WRONG, terminate=Effect.TERMINATE),
    State.CREATING_IMAGE: _row(start=Effect.WRONG, stop=Effect.WRONG, reset=Effect.WRONG, terminate=Effect.WRONG),
    State.MOVING: _row(start=Effect.WRONG, stop=Effect.WRONG, reset=Effect.WRONG, terminate=Effect.WRONG),
    State.TERMINATING: _row(start=Effect.WRONG, stop=Effect.WRONG, reset=Effect.WRONG, terminate=Effect.ALREADY),
    State.TERMINATED: _row(start=Effect.WRONG, stop=Effect.WRONG, reset=Effect.WRONG, terminate=Effect.WRONG),
}
