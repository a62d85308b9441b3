"""Publish the server's CA to Pods: ConfigMap `kube-root-ca.crt` in each namespace, as kube-controller-manager does."""

from __future__ import annotations

from typing import Final

from unbounded_apiserver.builtin import CONFIG_MAPS, NAMESPACES
from unbounded_apiserver.collection import ObjectChange
from unbounded_apiserver.controllers.work_queue import ControllerQueue
from unbounded_apiserver.decoding import normalize
from unbounded_apiserver.options import WriteOptions
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.store import Store
from unbounded_apiserver.types import Object
from unbounded_apiserver.workloads.pod_admission import ROOT_CA
from unbounded_apiserver.writes import Writes, WriteTarget

_DESCRIPTION: Final = "kubernetes.io/description"
_WORDS: Final = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
    "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes "
    "clusters."
)


class RootCaPublisher:
    """The controller that publishes `certificate`, which is set before it begins."""

    def __init__(self, store: Store, writes: Writes) -> None:
        self._store = store
        self._writes = writes
        self.certificate = ""
        self._queue: ControllerQueue[str] = ControllerQueue(self.ensure)

    def begin(self) -> None:
        for key in self._store.snapshot(NAMESPACES.name).keys:
            self._queue.add(key)
        self._store.listen(self._on_namespace, NAMESPACES.name)
        self._store.listen(self._on_config_map, CONFIG_MAPS.name)

    async def run(self) -> None:
        await self._queue.run()

    def _on_namespace(self, change: ObjectChange) -> None:
        if change.previous is None:
            self._queue.add(change.record.key)

    def _on_config_map(self, change: ObjectChange) -> None:
        """Queue the namespace of a ConfigMap that another client changed or deleted."""
        if change.record.name == ROOT_CA and (change.deleted or change.previous is not None):
            self._queue.add(change.record.namespace)

    async def ensure(self, namespace: str) -> None:
        """Create or correct the ConfigMap of a namespace that is not being deleted."""
        if (holder := self._store.get(NAMESPACES.name, namespace)) is None or b'"deletionTimestamp"' in holder.bare:
            return
        if self._store.get(CONFIG_MAPS.name, f"{namespace}/{ROOT_CA}") is not None:
            await self._writes.edit(WriteTarget(CONFIG_MAPS, namespace, ROOT_CA), self._correct)
            return
        obj: Object = {"metadata": {"name": ROOT_CA}}
        self._correct(obj)
        normalize(CONFIG_MAPS, obj)
        try:
            await self._writes.create_object(CONFIG_MAPS, namespace, obj, WriteOptions())
        except StatusError as error:
            if error.code not in {403, 404, 409}:  # created meanwhile, or the namespace is being deleted
                raise

    def _correct(self, obj: Object) -> None:
        obj["data"] = {"ca.crt": self.certificate}
        if not obj["metadata"].get("annotations", {}).get(_DESCRIPTION):
            obj["metadata"].setdefault("annotations", {})[_DESCRIPTION] = _WORDS
