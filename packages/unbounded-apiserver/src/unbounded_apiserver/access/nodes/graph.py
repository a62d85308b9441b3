"""Objects that the pods of each node reference, updated with the stored pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from unbounded_apiserver.access.nodes.references import MIRROR, PODS, references
from unbounded_apiserver.collection import ObjectChange
from unbounded_apiserver.records import StoredObject
from unbounded_apiserver.store import Store

ObjectId = tuple[str, str, str]  # resource, namespace, name
_Edge = tuple[ObjectId, str]


class NodeGraph:
    """Relations between nodes and objects. The graph reads all pods on first use, and then follows their changes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._edges: Counter[_Edge] | None = None
        self._by_pod: dict[str, tuple[_Edge, ...]] = {}
        store.listen(self._on_change, PODS)

    def related(self, node: str, resource: str, namespace: str, name: str) -> bool:
        return self._current()[(resource, namespace, name), node] > 0

    def _current(self) -> Counter[_Edge]:
        if self._edges is None:
            self._edges = Counter()
            for record in self._store.snapshot(PODS).with_prefix(""):
                self._put(self._edges, record)
        return self._edges

    def _on_change(self, change: ObjectChange) -> None:
        if self._edges is None:
            return
        for edge in self._by_pod.pop(change.record.key, ()):
            self._edges[edge] -= 1
            if not self._edges[edge]:
                del self._edges[edge]
        if not change.deleted:
            self._put(self._edges, change.record)

    def _put(self, edges: Counter[_Edge], record: StoredObject) -> None:
        if found := tuple(dict.fromkeys(_edges(record))):
            self._by_pod[record.key] = found
            edges.update(found)


def _edges(record: StoredObject) -> Iterator[_Edge]:
    """Yield the edges of a pod. A mirror pod, which a node creates itself, gives it no right to other objects."""
    pod = record.decode()
    node: Final = (pod.get("spec") or {}).get("nodeName")
    if not node:
        return
    yield (PODS, record.namespace, record.name), node
    if MIRROR not in (pod["metadata"].get("annotations") or {}):
        for resource, name in references(pod):
            yield (resource, record.namespace, name), node
