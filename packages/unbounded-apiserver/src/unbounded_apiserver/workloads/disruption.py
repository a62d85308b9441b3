"""The condition DisruptionTarget: the cluster, and not the Pod's owner, is about to end the Pod."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from unbounded_apiserver import metadata
from unbounded_apiserver.types import Object

DISRUPTION_TARGET: Final = "DisruptionTarget"


def set_pod_condition(pod: Object, condition: Object, now: datetime) -> bool:
    """Set a condition of a Pod in place; return whether that is a change. lastTransitionTime follows the status."""
    status = pod["status"]
    conditions: list[Object] = status.get("conditions") or []
    index = next((i for i, one in enumerate(conditions) if one["type"] == condition["type"]), None)
    before = {} if index is None else conditions[index]
    same = before.get("status") == condition["status"]
    times = {"lastProbeTime": before.get("lastProbeTime"), "lastTransitionTime": metadata.format_time(now)}
    if same:
        times["lastTransitionTime"] = before["lastTransitionTime"]
    new = {**condition, **times}
    if new == before:
        return False
    status["conditions"] = [*conditions, new] if index is None else [*conditions[:index], new, *conditions[index + 1 :]]
    return True


def mark_disruption(pod: Object, reason: str, message: str, now: datetime, *, observed: bool = True) -> None:
    """Set DisruptionTarget in place.

    Args:
        observed: whether the condition has the Pod's generation, as kubelet's conditions do.
    """
    condition = {"type": DISRUPTION_TARGET, "status": "True", "reason": reason, "message": message}
    if observed and pod["status"].get("observedGeneration"):
        condition["observedGeneration"] = pod["metadata"].get("generation", 0)
    set_pod_condition(pod, condition, now)
