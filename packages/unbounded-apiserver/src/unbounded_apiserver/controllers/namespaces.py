"""Create the default ServiceAccount of namespaces, and empty namespaces before they are deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

from unbounded_apiserver.builtin_resources import NAMESPACES, SERVICE_ACCOUNTS
from unbounded_apiserver.collection import ObjectChange, StoredObject
from unbounded_apiserver.controllers.work_queue import ControllerQueue
from unbounded_apiserver.decoding import normalize
from unbounded_apiserver.deletes import Deletes, merge_conditions
from unbounded_apiserver.options import DeleteOptions, ListOptions, WriteOptions
from unbounded_apiserver.resource_model import Object
from unbounded_apiserver.served_resources import Catalog
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.store import Store
from unbounded_apiserver.writes import Writes, WriteTarget

FINALIZER: Final = "kubernetes"
DEFAULT_ACCOUNT: Final = "default"


class NamespaceController:
    """The controller of namespaces."""

    def __init__(
        self, store: Store, catalog: Catalog, writes: Writes, deletes: Deletes, now: Callable[[], datetime]
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._writes = writes
        self._deletes = deletes
        self._now = now
        self._queue: ControllerQueue[str] = ControllerQueue(self._reconcile)

    def begin(self) -> None:
        for key in self._store.snapshot(NAMESPACES.name).keys:
            self._queue.add(key)
        self._store.listen(self._on_change)

    async def run(self) -> None:
        await self._queue.run()

    def _on_change(self, change: ObjectChange) -> None:
        if change.resource == NAMESPACES.name:
            if not change.deleted:
                self._queue.add(change.record.key)
            return
        if (namespace := change.record.namespace) == "":
            return
        holder = self._store.get(NAMESPACES.name, namespace)
        if holder is not None and _terminating(holder):
            self._queue.add(namespace)  # one of its objects is gone, or was created late
        elif change.deleted and change.resource == SERVICE_ACCOUNTS.name:
            self._queue.add(namespace)

    async def _reconcile(self, name: str) -> None:
        record = self._store.get(NAMESPACES.name, name)
        if record is None:
            return
        if not _terminating(record):
            await self.ensure_account(name)
            return
        await self._store.wait_idle()  # wait for writes that were admitted before the namespace was marked
        for resource in self._catalog.stored():
            if resource.namespaced and any(True for _ in self._store.snapshot(resource.name).with_prefix(f"{name}/")):
                await self._deletes.delete_collection(resource, name, ListOptions(), DeleteOptions())
        await self._store.wait_idle()
        left = self._remaining(name)

        def edit(namespace: Object) -> None:
            conditions = _conditions(left)
            status = {**namespace.get("status", {}), "phase": "Terminating"}
            status["conditions"] = merge_conditions(status.get("conditions", ()), conditions, self._now())
            namespace["status"] = status
            if not left:
                finalizers = [f for f in namespace.get("spec", {}).get("finalizers", ()) if f != FINALIZER]
                namespace["spec"] = {"finalizers": finalizers} if finalizers else {}

        await self._writes.edit(WriteTarget(NAMESPACES, "", name), edit)

    def _remaining(self, name: str) -> dict[str, list[StoredObject]]:
        found: dict[str, list[StoredObject]] = {}
        for resource in self._catalog.stored():
            if resource.namespaced and (records := list(self._store.snapshot(resource.name).with_prefix(f"{name}/"))):
                found[f"{resource.plural}.{resource.group}"] = records
        return found

    async def ensure_account(self, namespace: str) -> None:
        """Create the default ServiceAccount of a namespace if it is missing."""
        if self._store.get(SERVICE_ACCOUNTS.name, f"{namespace}/{DEFAULT_ACCOUNT}") is not None:
            return
        obj: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": DEFAULT_ACCOUNT}}
        normalize(SERVICE_ACCOUNTS, obj)
        try:
            await self._writes.create_object(SERVICE_ACCOUNTS, namespace, obj, WriteOptions())
        except StatusError as error:
            if error.code not in {403, 404, 409}:  # created meanwhile, or the namespace is being deleted
                raise


def _terminating(namespace: StoredObject) -> bool:
    return b'"deletionTimestamp"' in namespace.bare and "deletionTimestamp" in namespace.decode()["metadata"]


def _conditions(left: dict[str, list[StoredObject]]) -> Iterable[Object]:
    """Yield the conditions of a namespace that is being deleted, worded as by kube-controller-manager."""
    resources = ", ".join(f"{name} has {len(records)} resource instances" for name, records in sorted(left.items()))
    counts: dict[str, int] = {}
    for records in left.values():
        for record in records:
            for finalizer in record.decode()["metadata"].get("finalizers", ()):
                counts[finalizer] = counts.get(finalizer, 0) + 1
    remaining = ", ".join(f"{name} in {count} resource instances" for name, count in sorted(counts.items()))
    yield _false("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered")
    words = "All legacy kube types successfully parsed"
    yield _false("NamespaceDeletionGroupVersionParsingFailure", "ParsedGroupVersions", words)
    words = "All content successfully deleted, may be waiting on finalization"
    yield _false("NamespaceDeletionContentFailure", "ContentDeleted", words)
    if resources:
        words = f"Some resources are remaining: {resources}"
        yield {"type": "NamespaceContentRemaining", "status": "True", "reason": "SomeResourcesRemain", "message": words}
    else:
        yield _false("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed")
    if remaining:
        words = f"Some content in the namespace has finalizers remaining: {remaining}"
        yield {
            "type": "NamespaceFinalizersRemaining",
            "status": "True",
            "reason": "SomeFinalizersRemain",
            "message": words,
        }
    else:
        yield _false(
            "NamespaceFinalizersRemaining", "ContentHasNoFinalizers", "All content-preserving finalizers finished"
        )


def _false(kind: str, reason: str, message: str) -> Object:
    return {"type": kind, "status": "False", "reason": reason, "message": message}
