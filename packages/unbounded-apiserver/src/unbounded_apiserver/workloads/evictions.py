"""Evictions of Pods, as by `kubectl drain`, within the limits of disruption budgets.

The check of a budget and its grant are one write of the budget's status, so two evictions never use one grant.

The condition DisruptionTarget reports that the cluster, and not the Pod's owner, is about to end the Pod.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from unbounded_apiserver import metadata, status
from unbounded_apiserver.deletes import Deletes, check_preconditions
from unbounded_apiserver.options import DeleteOptions
from unbounded_apiserver.resource_model import Object
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.store import Store
from unbounded_apiserver.workloads.disruption_budgets import BUDGETS, DisruptionBudgets, PodFacts, still_processed
from unbounded_apiserver.workloads.pods import EVICTIONS, PODS
from unbounded_apiserver.writes import Writes, WriteTarget, set_namespace

DISRUPTION_TARGET: Final = "DisruptionTarget"
REASON: Final = "EvictionByEvictionAPI"
MESSAGE: Final = "Eviction API: evicting"
ATTEMPTS: Final = 20  # to delete a Pod that changes meanwhile
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
        self, store: Store, budgets: DisruptionBudgets, writes: Writes, deletes: Deletes, now: Callable[[], datetime]
    ) -> None:
        self._store = store
        self._budgets = budgets
        self._writes = writes
        self._deletes = deletes
        self._now = now

    async def evict(self, namespace: str, name: str, eviction: Object, *, dry_run: bool) -> dict[str, Any]:
        """Delete a Pod as an eviction requests; return the Status of the answer. Raises StatusError."""
        set_namespace(EVICTIONS, namespace, eviction["metadata"])
        if eviction["metadata"].get("name") != name:
            raise status.bad_request("name in URL does not match name in Eviction object")
        given = dict(eviction.get("deleteOptions") or {})
        if dry_run:
            given["dryRun"] = ["All"]
        target, options = WriteTarget(PODS, namespace, name), DeleteOptions.read({}, given)
        for _ in range(ATTEMPTS):
            if await self._try(target, options):
                return DONE
        raise status.conflict("", PODS.plural, name)

    async def _try(self, target: WriteTarget, options: DeleteOptions) -> bool:
        """Evict a Pod in its present state; return False if it changed before its end. Raises StatusError."""
        record = await self._store.wait_current(PODS.name, target.key)
        if record is None:
            raise status.not_found("", PODS.plural, target.name)
        pod, meta = PodFacts.of(record), record.decode()["metadata"]
        budget = self._budgets.guarding(target.namespace, pod)
        if budget is not None and self._budgets.needs(target.namespace, budget, pod, self._now()):
            await self._grant(target, budget, pod, meta, options)
            await self._delete(target, options)
            return True
        check_preconditions(target, meta, options)
        bound = not options.resource_version and (budget is not None or pod.begins)
        try:  # a Pod that turns ready meanwhile needs a grant
            await self._delete(target, replace(options, resource_version=meta["resourceVersion"]) if bound else options)
        except StatusError as error:
            if error.code != 409 or not bound:
                raise
            if budget is not None:
                raise still_processed(budget) from error
            return False
        return True

    async def _grant(
        self, target: WriteTarget, budget: Object, pod: PodFacts, meta: Object, options: DeleteOptions
    ) -> None:
        """Take one of the disruptions that a budget allows. Raises StatusError (409, 429)."""

        def take(obj: Object) -> None:
            self._budgets.grant(target.namespace, obj, pod, self._now())
            check_preconditions(target, meta, options)  # an eviction that fails takes no disruption

        if options.dry_run:
            take(budget)
        else:
            await self._writes.edit(WriteTarget(BUDGETS, target.namespace, budget["metadata"]["name"]), take)

    async def _delete(self, target: WriteTarget, options: DeleteOptions) -> None:
        await self._deletes.delete(target, options if options.dry_run else await self._mark(target, options))

    async def _mark(self, target: WriteTarget, options: DeleteOptions) -> DeleteOptions:
        """Write the reason of the deletion into the Pod; return the options for the changed Pod."""

        def edit(pod: Object) -> None:
            check_preconditions(target, pod["metadata"], options)
            mark_disruption(pod, REASON, MESSAGE, self._now(), observed=False)

        record = await self._writes.edit(target, edit)
        if record is None or not options.resource_version:
            return options
        return replace(options, resource_version=str(record.revision))


def accept_earlier_version(body: Any) -> None:
    """Turn an Eviction of policy/v1beta1, which has the same fields, into one of policy/v1, in place."""
    if isinstance(body, dict) and body.get("apiVersion") == "policy/v1beta1":
        body["apiVersion"] = "policy/v1"


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
