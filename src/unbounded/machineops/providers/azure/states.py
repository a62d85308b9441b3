"""What Azure's record of a virtual machine, its instance view, says of its power."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from unbounded.machineops.provider import Power, State, said

_POWER: Final[Mapping[str, Power]] = {
    "running": Power.RUNNING,
    "stopped": Power.STOPPED,
    "deallocated": Power.RELEASED,
    "starting": Power.CHANGING,
    "stopping": Power.CHANGING,
    "deallocating": Power.CHANGING,
}
_UNDER_WAY: Final = frozenset({"creating", "updating", "deleting", "migrating"})
_STATE: Final[Mapping[str, State]] = {
    "succeeded": State.DONE,
    "failed": State.FAILED,
    "canceled": State.FAILED,
}


def provisioning(statuses: Iterable[Mapping[str, Any]]) -> str:
    """How far the last change is, in lower case: succeeded, updating …"""
    return _code(statuses, "provisioningstate").partition("/")[0]


def power(statuses: Iterable[Mapping[str, Any]]) -> Power:
    """The power of a machine that is there. One that never got a host has none, which starting it would give it."""
    statuses = list(statuses)
    if provisioning(statuses) in _UNDER_WAY:
        return Power.CHANGING  # a restart is shown as running all the time
    return _POWER.get(_code(statuses, "powerstate"), Power.RELEASED)


def os_failed(statuses: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the operating system of a machine that was made has not reported to Azure, or reported a failure."""
    return _code(statuses, "provisioningstate").startswith("failed/osprovisioning")


def described(statuses: Iterable[Mapping[str, Any]]) -> str:
    """The statuses as Azure words them, with the reason of a failure."""
    words = [
        ": ".join(filter(None, (str(one.get("displayStatus") or one.get("code")), str(one.get("message") or ""))))
        for one in statuses
    ]
    return said(", ".join(words)) or "without a status"


def progress(status: str) -> State:
    """How far a long call is, by the status of its document."""
    return _STATE.get(status.lower(), State.RUNNING)


def _code(statuses: Iterable[Mapping[str, Any]], kind: str) -> str:
    for one in statuses:
        found, _, state = str(one.get("code") or "").lower().partition("/")
        if found == kind:
            return state
    return ""
