"""Lifecycle states of instances as the engine's power states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unbounded.machineops.provider import Power

PROVISIONING: Final = "PROVISIONING"
RUNNING: Final = "RUNNING"
STOPPED: Final = "STOPPED"
STARTING: Final = "STARTING"
STOPPING: Final = "STOPPING"
TERMINATED: Final = "TERMINATED"
TERMINATING: Final = "TERMINATING"

RESTARTING: Final = frozenset({STOPPING, STARTING})
"""States during a restart."""
ENDED: Final = frozenset({TERMINATING, TERMINATED})

_POWERS: Final[Mapping[str, Power]] = {
    RUNNING: Power.RUNNING,
    STOPPED: Power.STOPPED,
    TERMINATED: Power.GONE,
}


def power(lifecycle_state: str) -> Power:
    """Return the power state. All other states are transitions: PROVISIONING, STARTING, STOPPING, TERMINATING, MOVING,

    CREATING_IMAGE.
    """
    return _POWERS.get(lifecycle_state, Power.CHANGING)
