"""Type-check the expressions of admission policies against the schemas that they match, and write their status."""

from __future__ import annotations

from unbounded.apiserver.admission.kinds import POLICIES
from unbounded.apiserver.admission.typecheck import expression_warnings
from unbounded.apiserver.catalog import Catalog
from unbounded.apiserver.collection import ObjectChange
from unbounded.apiserver.housekeeping.work import Work
from unbounded.apiserver.store import Store
from unbounded.apiserver.types import Object
from unbounded.apiserver.writes import Writes, WriteTarget


class PolicyKeeper:
    """The controller of policies' status; it checks each generation once, as kube-controller-manager does."""

    def __init__(self, store: Store, catalog: Catalog, writes: Writes) -> None:
        self._store = store
        self._catalog = catalog
        self._writes = writes
        self._work: Work[str] = Work(self._look)

    def begin(self) -> None:
        for record in self._store.snapshot(POLICIES.name).with_prefix(""):
            self._work.note(record.key)
        self._store.listen(self._hear, POLICIES.name)

    async def run(self) -> None:
        await self._work.run()

    def _hear(self, change: ObjectChange) -> None:
        if not change.deleted:
            self._work.note(change.record.key)

    async def _look(self, name: str) -> None:
        await self._writes.edit(WriteTarget(POLICIES, "", name), self._settle)

    def _settle(self, policy: Object) -> None:
        generation = policy["metadata"].get("generation", 1)
        status = policy["status"]
        if status.get("observedGeneration") == generation:
            return
        warnings = expression_warnings(self._catalog, policy["spec"])
        status["observedGeneration"] = generation
        status["typeChecking"] = {"expressionWarnings": warnings} if warnings else {}
