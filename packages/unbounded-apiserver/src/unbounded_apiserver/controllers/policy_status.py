"""Type-check the expressions of admission policies against the schemas that they match, and write their status."""

from __future__ import annotations

from unbounded_apiserver.admission.policy_types import POLICIES
from unbounded_apiserver.admission.typecheck import expression_warnings
from unbounded_apiserver.catalog import Catalog
from unbounded_apiserver.collection import ObjectChange
from unbounded_apiserver.controllers.work_queue import ControllerQueue
from unbounded_apiserver.store import Store
from unbounded_apiserver.types import Object
from unbounded_apiserver.writes import Writes, WriteTarget


class PolicyStatusController:
    """The controller of policies' status; it checks each generation once, as kube-controller-manager does."""

    def __init__(self, store: Store, catalog: Catalog, writes: Writes) -> None:
        self._store = store
        self._catalog = catalog
        self._writes = writes
        self._queue: ControllerQueue[str] = ControllerQueue(self._reconcile)

    def begin(self) -> None:
        for record in self._store.snapshot(POLICIES.name).with_prefix(""):
            self._queue.add(record.key)
        self._store.listen(self._on_change, POLICIES.name)

    async def run(self) -> None:
        await self._queue.run()

    def _on_change(self, change: ObjectChange) -> None:
        if not change.deleted:
            self._queue.add(change.record.key)

    async def _reconcile(self, name: str) -> None:
        await self._writes.edit(WriteTarget(POLICIES, "", name), self._settle)

    def _settle(self, policy: Object) -> None:
        generation = policy["metadata"].get("generation", 1)
        status = policy["status"]
        if status.get("observedGeneration") == generation:
            return
        warnings = expression_warnings(self._catalog, policy["spec"])
        status["observedGeneration"] = generation
        status["typeChecking"] = {"expressionWarnings": warnings} if warnings else {}
