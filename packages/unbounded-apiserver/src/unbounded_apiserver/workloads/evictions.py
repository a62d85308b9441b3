"""Evictions of Pods, as by `kubectl drain`, within the limits of disruption budgets.

The condition DisruptionTarget reports that the cluster, and not the Pod's owner, is about to end the Pod.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from unbounded_apiserver import metadata, status
from unbounded_apiserver.deletes import Deletes, check_preconditions
from unbounded_apiserver.options import DeleteOptions
from unbounded_apiserver.types import Object
from unbounded_apiserver.workloads.disruption_budgets import DisruptionBudgets
from unbounded_apiserver.workloads.pods import PODS
from unbounded_apiserver.writes import Writes, WriteTarget

DISRUPTION_TARGET: Final = "DisruptionTarget"
REASON: Final = "EvictionByEvictionAPI"
MESSAGE: Final = "Eviction API: evicting"
DONE: Final[dict[str, Any]] = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Success",
    "code": 201,
}


class Evictions:
    """Evictions of the Pods of one store."""

    def __init__(
        self, budgets: DisruptionBudgets, writes: Writes, deletes: Deletes, now: Callable[[], datetime]
    ) -> None:
        self._budgets = budgets
        self._lock = (
            asyncio.Lock()
        )  # no other eviction runs between the check of a budget and the deletion that uses it
        self._writes = writes
        self._deletes = deletes
        self._now = now

    async def evict(self, namespace: str, name: str, eviction: Object, *, dry_run: bool) -> dict[str, Any]:
        """Delete a Pod as an eviction requests; return the Status of the answer. Raises StatusError."""
        if eviction["metadata"].get("name") != name:
            raise status.bad_request("name in URL does not match name in Eviction object")
        asked = dict(eviction.get("deleteOptions") or {})
        if dry_run:
            asked["dryRun"] = ["All"]
        target, options = WriteTarget(PODS, namespace, name), DeleteOptions.read({}, asked)
        async with self._lock:
            self._budgets.check(namespace, name, self._now())
            await self._deletes.delete(target, options if options.dry_run else await self._mark(target, options))
        return DONE

    async def _mark(self, target: WriteTarget, options: DeleteOptions) -> DeleteOptions:
        """Write the reason of the deletion into the Pod; return the options for the changed Pod."""

        def edit(pod: Object) -> None:
            check_preconditions(target, pod["metadata"], options)
            mark_disruption(pod, REASON, MESSAGE, self._now(), observed=False)

        record = await self._writes.edit(target, edit)
        if record is None or not options.resource_version:
            return options
        return dataclasses.replace(options, resource_version=str(record.revision))


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
