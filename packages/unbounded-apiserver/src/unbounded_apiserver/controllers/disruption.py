"""Write the status of PodDisruptionBudgets: the number of healthy Pods, and of evictions that are allowed now."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from unbounded_apiserver.controllers.work_queue import ControllerQueue
from unbounded_apiserver.records import ObjectChange
from unbounded_apiserver.store import Store
from unbounded_apiserver.types import Object
from unbounded_apiserver.workloads.disruption_budgets import BUDGETS, DisruptionBudgets, PodFacts, affects_budget
from unbounded_apiserver.workloads.pods import PODS
from unbounded_apiserver.writes import Writes, WriteTarget


class DisruptionController:
    """The controller of PodDisruptionBudgets. It reads only Pods in namespaces with budgets."""

    def __init__(self, store: Store, budgets: DisruptionBudgets, writes: Writes, now: Callable[[], datetime]) -> None:
        self._store = store
        self._budgets = budgets
        self._writes = writes
        self._now = now
        self._queue: ControllerQueue[str] = ControllerQueue(self._observe)

    def begin(self) -> None:
        for key in self._store.snapshot(BUDGETS.name).keys:
            self._queue.add(key)
        self._store.listen(self._on_budget, BUDGETS.name)
        self._store.listen(self._on_pod, PODS.name)

    async def run(self) -> None:
        await self._queue.run()

    def _on_budget(self, change: ObjectChange) -> None:
        if not change.deleted:
            self._queue.add(change.record.key)

    def _on_pod(self, change: ObjectChange) -> None:
        """Queue the budgets whose counts a change can affect."""
        namespace = change.record.namespace
        if not (budgets := self._budgets.of_namespace(namespace)):
            return
        before = None if change.previous is None else PodFacts.of(change.previous)
        after = None if change.deleted else PodFacts.of(change.record)
        for budget in budgets:
            if affects_budget(budget["spec"].get("selector"), before, after):
                self._queue.add(f"{namespace}/{budget['metadata']['name']}")

    async def _observe(self, key: str) -> None:
        if self._store.get(BUDGETS.name, key) is None:
            return
        namespace, _, name = key.partition("/")
        await self._writes.edit(WriteTarget(BUDGETS, namespace, name), self._write)

    def _write(self, budget: Object) -> None:
        budget["status"] = self._budgets.state(budget["metadata"]["namespace"], budget, self._now())
