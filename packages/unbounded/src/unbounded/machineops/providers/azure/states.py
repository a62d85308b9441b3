"""Power states from Azure's instance view of a virtual machine."""

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
    """Return the provisioning state of the last change, in lower case: succeeded, updating …"""
    return _code(statuses, "provisioningstate").partition("/")[0]


def power(statuses: Iterable[Mapping[str, Any]]) -> Power:
    """Return the power of an existing machine. One that never got a host has none; starting it would give it one."""
    statuses = list(statuses)
    if provisioning(statuses) in _UNDER_WAY:
        return Power.CHANGING  # during a restart the power state is running all the time
    return _POWER.get(_code(statuses, "powerstate"), Power.RELEASED)


def os_failed(statuses: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the operating system of a created machine has not reported to Azure, or has reported a failure."""
    return _code(statuses, "provisioningstate").startswith("failed/osprovisioning")


def describe(statuses: Iterable[Mapping[str, Any]]) -> str:
    """Return the statuses in Azure's words, with the cause of a failure."""
    words = [
        ": ".join(filter(None, (str(one.get("displayStatus") or one.get("code")), str(one.get("message") or ""))))
        for one in statuses
    ]
    return said(", ".join(words)) or "without a status"


def progress(status: str) -> State:
    """Return the progress of a long call from the status of its document."""
    return _STATE.get(status.lower(), State.RUNNING)


def _code(statuses: Iterable[Mapping[str, Any]], kind: str) -> str:
    for one in statuses:
        found, _, state = str(one.get("code") or "").lower().partition("/")
        if found == kind:
            return state
    return ""
