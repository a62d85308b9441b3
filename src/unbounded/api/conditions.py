"""Conditions: the types and reasons that users script against, and pure changes to the list of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from unbounded.api.fields import CONDITION_REASON, MAX_MESSAGE, MAX_REASON

Raw = dict[str, Any]


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ConditionType(StrEnum):
    SSH_REACHABLE = "SSHReachable"
    PROVISIONING = "Provisioning"
    PROVISIONED = "Provisioned"
    POWERED_OFF = "PoweredOff"
    BOOT_ORDER_CONFIG_SUPPORTED = "BootOrderConfigSupported"
    REPAVED = "Repaved"
    CLOUD_INIT_DONE = "CloudInitDone"
    NODE_UPDATED = "NodeUpdated"
    CONFIGURATION_PENDING = "ConfigurationPending"
    REPAVE_PENDING = "RepavePending"
    AGENT_BOOTSTRAPPED = "AgentBootstrapped"


class ConditionReason(StrEnum):
    REACHABLE = "Reachable"
    UNREACHABLE = "Unreachable"
    IN_PROGRESS = "InProgress"
    COMPLETED = "Completed"
    FAILED = "Failed"
    PROVISIONED = "Provisioned"
    POWERING_OFF = "PoweringOff"
    POWERED_OFF = "PoweredOff"
    POWERING_ON = "PoweringOn"
    SUPPORTED = "Supported"
    NOT_SUPPORTED = "NotSupported"
    PENDING = "Pending"
    SUCCEEDED = "Succeeded"
    RUNNING = "Running"
    TIMED_OUT = "TimedOut"
    RESOLVED = "Resolved"
    APPLIED = "Applied"


@dataclass(frozen=True)
class Meaning:
    """Who writes a condition, what True means, and the reasons that come with it."""

    writer: str
    meaning: str
    reasons: tuple[ConditionReason, ...]


_R = ConditionReason

CONDITIONS: Final[Mapping[ConditionType, Meaning]] = {
    ConditionType.SSH_REACHABLE: Meaning("machina", "The SSH port answers.", (_R.REACHABLE, _R.UNREACHABLE)),
    ConditionType.PROVISIONING: Meaning(
        "machina", "The install script runs over SSH.", (_R.IN_PROGRESS, _R.COMPLETED, _R.FAILED)
    ),
    ConditionType.PROVISIONED: Meaning(
        "machina", "The host was provisioned, at observedGeneration of the spec.", (_R.PROVISIONED,)
    ),
    ConditionType.POWERED_OFF: Meaning(
        "metalman", "The BMC reported the host as off.", (_R.POWERING_OFF, _R.POWERED_OFF, _R.POWERING_ON)
    ),
    ConditionType.BOOT_ORDER_CONFIG_SUPPORTED: Meaning(
        "metalman", "False when the BMC cannot set the boot order.", (_R.SUPPORTED, _R.NOT_SUPPORTED)
    ),
    ConditionType.REPAVED: Meaning("metalman", "The last repave has written its image.", (_R.PENDING, _R.SUCCEEDED)),
    ConditionType.CLOUD_INIT_DONE: Meaning(
        "metalman", "cloud-init has finished.", (_R.RUNNING, _R.FAILED, _R.SUCCEEDED, _R.TIMED_OUT)
    ),
    ConditionType.NODE_UPDATED: Meaning(
        "unbounded-agent", "The node was made anew.", (_R.IN_PROGRESS, _R.SUCCEEDED, _R.FAILED)
    ),
    ConditionType.CONFIGURATION_PENDING: Meaning(
        "machina", "No MachineConfiguration is bound yet.", (_R.PENDING, _R.RESOLVED)
    ),
    ConditionType.REPAVE_PENDING: Meaning(
        "unbounded-agent", "The node differs from its configuration.", (_R.PENDING, _R.APPLIED)
    ),
    ConditionType.AGENT_BOOTSTRAPPED: Meaning(
        "unbounded-agent", "The agent has set up the node.", (_R.RUNNING, _R.SUCCEEDED)
    ),
}


def set_condition(
    conditions: Sequence[Mapping[str, Any]],
    kind: str,
    status: str,
    reason: str,
    message: str,
    now: str,
    *,
    observed_generation: int | None = None,
) -> list[Raw] | None:
    """The list with one condition set, to be written back whole; None when it says so already.

    Everything else in the list is kept, unknown fields of this condition too. `lastTransitionTime` moves to `now`
    (RFC 3339) only when the status changes; `observedGeneration` stays where none is given.
    """
    said: Raw = {"type": kind, "status": status, "reason": camel_reason(reason), "message": fit_message(message)}
    if observed_generation is not None:
        said["observedGeneration"] = observed_generation
    old = find_condition(conditions, kind)
    if old is None:
        return [*map(dict, conditions), said | {"lastTransitionTime": now}]
    since = old.get("lastTransitionTime", now) if old.get("status") == status else now
    new = {"message": "", **old, **said, "lastTransitionTime": since}
    if new == {"message": "", **old}:
        return None
    return [new if condition is old else dict(condition) for condition in conditions]


def remove_condition(conditions: Sequence[Mapping[str, Any]], kind: str) -> list[Raw] | None:
    """The list without one condition, to be written back whole; None when it is not there."""
    if find_condition(conditions, kind) is None:
        return None
    return [dict(condition) for condition in conditions if condition.get("type") != kind]


def find_condition(conditions: Sequence[Mapping[str, Any]], kind: str) -> Mapping[str, Any] | None:
    """The condition of this type, or None."""
    return next((condition for condition in conditions if condition.get("type") == kind), None)


def camel_reason(text: str) -> str:
    """The text as a reason that the API accepts: as it is, or made CamelCase; Unknown when nothing is left of it."""
    if len(text) <= MAX_REASON and re.fullmatch(CONDITION_REASON, text):
        return text
    words = re.findall(r"[A-Za-z0-9]+", text)
    joined = "".join(word[0].upper() + word[1:] for word in words).lstrip("0123456789")
    return joined[:MAX_REASON] or "Unknown"


def fit_message(text: str, limit: int = MAX_MESSAGE) -> str:
    """The text, cut where the API's limit demands it; a cut text ends with an ellipsis.

    Lone surrogates, which undecodable bytes leave behind and JSON cannot carry, become question marks.
    """
    clean = text.encode(errors="replace").decode()
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
