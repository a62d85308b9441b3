"""Delete Pods that do not tolerate a NoExecute taint of their Node, each when its toleration ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from unbounded_apiserver.builtin import NODES
from unbounded_apiserver.collection import ObjectChange
from unbounded_apiserver.controllers.nodes.conditions import NO_EXECUTE
from unbounded_apiserver.controllers.nodes.events import ApiEventRecorder
from unbounded_apiserver.controllers.nodes.pods import pods_of
from unbounded_apiserver.controllers.work_queue import ControllerQueue, delete_expired
from unbounded_apiserver.deletes import Deletes
from unbounded_apiserver.records import StoredObject
from unbounded_apiserver.store import Store
from unbounded_apiserver.types import Object
from unbounded_apiserver.workloads.evictions import mark_disruption
from unbounded_apiserver.workloads.pods import PODS
from unbounded_apiserver.writes import Writes, WriteTarget

COMPONENT: Final = "taint-eviction-controller"
EVENT: Final = "TaintManagerEviction"
REASON: Final = "DeletionByTaintManager"
MESSAGE: Final = "Taint manager: deleting due to NoExecute taint"


class EvictionKey(NamedTuple):
    """A key of the work queue: a Node, or a Pod of one."""

    resource: str
    key: str


class TaintEviction:
    """The controller of taint-based evictions. Without tainted Nodes it is idle."""

    def __init__(
        self, store: Store, writes: Writes, deletes: Deletes, events: ApiEventRecorder, now: Callable[[], datetime]
    ) -> None:
        self._store = store
        self._writes = writes
        self._deletes = deletes
        self._events = events
        self._now = now
        self._due: dict[str, float] = {}  # by key of the Pod, on this process's clock
        self._tainted: set[str] = set()  # Nodes with a NoExecute taint
        self._queue: ControllerQueue[EvictionKey] = ControllerQueue(self._reconcile)

    def begin(self) -> None:
        for record in self._store.snapshot(NODES.name).with_prefix(""):
            if _no_execute(record):
                self._tainted.add(record.key)
                self._queue.add(EvictionKey(NODES.name, record.key))
        self._store.listen(self._on_node, NODES.name)
        self._store.listen(self._on_pod, PODS.name)

    async def run(self) -> None:
        await self._queue.run()

    def _on_node(self, change: ObjectChange) -> None:
        before = [] if change.previous is None else _no_execute(change.previous)
        taints = [] if change.deleted else _no_execute(change.record)
        if before != taints:
            (self._tainted.add if taints else self._tainted.discard)(change.record.key)
            self._queue.add(EvictionKey(NODES.name, change.record.key))

    def _on_pod(self, change: ObjectChange) -> None:
        key = EvictionKey(PODS.name, change.record.key)
        if change.deleted:
            self._due.pop(key.key, None)
            self._queue.cancel(key)
        elif self._tainted and (change.previous is None or _place(change.previous) != _place(change.record)):
            self._queue.add(key)

    async def _reconcile(self, key: EvictionKey) -> None:
        if key.resource == NODES.name:
            taints = self._taints(key.key)
            for record in list(pods_of(self._store, key.key)):
                await self._plan(record, taints)
            return
        pod = self._store.get(PODS.name, key.key)
        if pod is not None and (node := pod.decode()["spec"].get("nodeName")):
            await self._plan(pod, self._taints(node))

    def _taints(self, node: str) -> list[Object]:
        record = self._store.get(NODES.name, node)
        return [] if record is None else _no_execute(record)

    async def _plan(self, record: StoredObject, taints: Sequence[Object]) -> None:
        """Delete a Pod whose toleration has ended, or set its timer. A running timer continues when taints change."""
        pod, key, clock = record.decode(), EvictionKey(PODS.name, record.key), asyncio.get_running_loop().time()
        wait_s = tolerated_s(pod["spec"].get("tolerations") or (), taints) if taints else None
        if wait_s is None or "deletionTimestamp" in pod["metadata"]:
            self._queue.cancel(key)
            if self._due.pop(key.key, None) is not None and wait_s is None:
                await self._record_event(record, "Cancelling deletion of Pod")
            return
        due = clock + wait_s if wait_s == 0 else self._due.setdefault(key.key, clock + wait_s)
        if due > clock:
            self._queue.add_after(key, due - clock)
            return
        self._due.pop(key.key, None)
        await self._delete(record, pod["metadata"]["uid"])

    async def _delete(self, record: StoredObject, uid: str) -> None:
        target = WriteTarget(PODS, record.namespace, record.name)

        def mark(pod: Object) -> None:
            if pod["metadata"]["uid"] == uid:
                mark_disruption(pod, REASON, MESSAGE, self._now())

        await self._record_event(record, "Marking for deletion Pod")
        await self._writes.edit(target, mark)
        await delete_expired(self._deletes, target, uid)

    async def _record_event(self, record: StoredObject, what: str) -> None:
        about = {"kind": "Pod", "apiVersion": "v1", "namespace": record.namespace, "name": record.name}
        await self._events.record(COMPONENT, about, EVENT, f"{what} {record.key}")


def tolerated_s(tolerations: Sequence[Mapping[str, Any]], taints: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the seconds that a Pod tolerates these taints, None for ever."""
    used: list[Mapping[str, Any]] = []
    for taint in taints:
        fitting = [one for one in tolerations if _tolerates(one, taint)]
        if not fitting:
            return 0.0
        used.append(fitting[0])
    limits = [one["tolerationSeconds"] for one in used if one.get("tolerationSeconds") is not None]
    return max(0.0, float(min(limits))) if limits else None


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")


def _no_execute(record: StoredObject) -> list[Object]:
    if b'"NoExecute"' not in record.bare:
        return []
    return [taint for taint in record.decode()["spec"].get("taints") or () if taint["effect"] == NO_EXECUTE]


def _place(record: StoredObject) -> tuple[Any, Any]:
    spec = record.decode()["spec"]
    return spec.get("nodeName"), spec.get("tolerations")
