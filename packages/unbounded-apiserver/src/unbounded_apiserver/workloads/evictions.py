"""Evictions of Pods, as by `kubectl drain`, within the limits of disruption budgets."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from unbounded_apiserver import status
from unbounded_apiserver.deletes import Deletes, check_preconditions
from unbounded_apiserver.options import DeleteOptions
from unbounded_apiserver.types import Object
from unbounded_apiserver.workloads.disruption import mark_disruption
from unbounded_apiserver.workloads.disruption_budgets import DisruptionBudgets
from unbounded_apiserver.workloads.pods import PODS
from unbounded_apiserver.writes import Writes, WriteTarget

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
