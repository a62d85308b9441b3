"""Write the status of PodDisruptionBudgets: the number of healthy Pods, and of evictions that are allowed now.

A Pod that was marked for an eviction, and whose deletion did not follow within two minutes, loses the mark. This time
counts from the server's observation of the mark, so other clocks do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from unbounded_apiserver.collection import ObjectChange, StoredObject
from unbounded_apiserver.controllers.work_queue import ControllerQueue
from unbounded_apiserver.resource_model import Object
from unbounded_apiserver.store import Store
from unbounded_apiserver.workloads import disruption_budgets
from unbounded_apiserver.workloads.evictions import DISRUPTION_TARGET, set_pod_condition
from unbounded_apiserver.workloads.pods import ENDED, PODS
from unbounded_apiserver.writes import Writes, WriteTarget

MARK_LASTS: Final = timedelta(minutes=2)
BY_KUBELET: Final = "TerminationByKubelet"  # such a condition may stand long before the deletion
_MARK: Final = DISRUPTION_TARGET.encode()


class DisruptionController:
    """The controller of PodDisruptionBudgets. It reads only Pods in namespaces with budgets, and marked Pods."""

    def __init__(
        self,
        store: Store,
        budgets: disruption_budgets.DisruptionBudgets,
        writes: Writes,
        now: Callable[[], datetime],
        *,
        mark_lasts: timedelta = MARK_LASTS,
    ) -> None:
        self._store = store
        self._mark_lasts_s = mark_lasts.total_seconds()
        self._budgets = budgets
        self._writes = writes
        self._now = now
        self._queue: ControllerQueue[tuple[str, str]] = ControllerQueue(self._reconcile)  # resource and key

    def begin(self) -> None:
        for key in self._store.snapshot(disruption_budgets.BUDGETS.name).keys:
            self._queue.add((disruption_budgets.BUDGETS.name, key))
        for record in self._store.snapshot(PODS.name).with_prefix(""):
            if _is_marked(record):
                self._queue.add_after((PODS.name, record.key), self._mark_lasts_s)
        self._store.listen(self._on_budget, disruption_budgets.BUDGETS.name)
        self._store.listen(self._on_pod, PODS.name)

    async def run(self) -> None:
        await self._queue.run()

    def _on_budget(self, change: ObjectChange) -> None:
        if not change.deleted:
            self._queue.add((disruption_budgets.BUDGETS.name, change.record.key))

    def _on_pod(self, change: ObjectChange) -> None:
        """Queue a marked Pod, and the budgets whose counts a change can affect."""
        if not change.deleted and _is_marked(change.record) and not _is_marked(change.previous):
            self._queue.add_after((PODS.name, change.record.key), self._mark_lasts_s)
        namespace = change.record.namespace
        if not (budgets := self._budgets.of_namespace(namespace)):
            return
        before = None if change.previous is None else disruption_budgets.PodFacts.of(change.previous)
        after = None if change.deleted else disruption_budgets.PodFacts.of(change.record)
        for budget in budgets:
            if disruption_budgets.affects_budget(budget["spec"].get("selector"), before, after):
                self._queue.add((disruption_budgets.BUDGETS.name, f"{namespace}/{budget['metadata']['name']}"))

    async def _reconcile(self, item: tuple[str, str]) -> None:
        resource, key = item
        namespace, _, name = key.partition("/")
        if resource == PODS.name:
            await self._writes.edit(WriteTarget(PODS, namespace, name), self._unmark)
            return
        self._queue.cancel(item)
        record = await self._writes.edit(WriteTarget(disruption_budgets.BUDGETS, namespace, name), self._write)
        if record is not None and (granted := record.decode()["status"].get("disruptedPods")):
            due = datetime.fromisoformat(min(granted.values())) + disruption_budgets.GRANT_LASTS
            self._queue.add_after(item, max(0.0, (due - self._now()).total_seconds()) + 1)

    def _write(self, budget: Object) -> None:
        budget["status"] = self._budgets.state(budget["metadata"]["namespace"], budget, self._now())

    def _unmark(self, pod: Object) -> None:
        if _awaits_deletion(pod):
            set_pod_condition(pod, {"type": DISRUPTION_TARGET, "status": "False"}, self._now())


def _is_marked(record: StoredObject | None) -> bool:
    return record is not None and _MARK in record.bare and _awaits_deletion(record.decode())


def _awaits_deletion(pod: Object) -> bool:
    """Return whether a Pod has DisruptionTarget, not from its kubelet, and nothing ends it."""
    if "deletionTimestamp" in pod["metadata"] or pod["status"].get("phase") in ENDED:
        return False
    marks = (one for one in pod["status"].get("conditions") or () if one["type"] == DISRUPTION_TARGET)
    return any(mark["status"] == "True" and mark.get("reason") != BY_KUBELET for mark in marks)
