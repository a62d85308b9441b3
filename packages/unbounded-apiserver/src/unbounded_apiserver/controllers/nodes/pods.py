"""The Pods of a Node: marked as not ready while it is silent, evicted by its taints, and deleted once it is gone.

Eviction deletes Pods that do not tolerate a NoExecute taint of their Node, each when its toleration ends.
The collector also deletes Pods that an interrupted deletion left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from typing import Any, Final, NamedTuple

from unbounded_apiserver import metadata
from unbounded_apiserver.builtin_resources import NODES
from unbounded_apiserver.collection import FieldTerm, ObjectChange, StoredObject
from unbounded_apiserver.controllers.nodes import NodeTimes
from unbounded_apiserver.controllers.nodes.conditions import FALSE, NO_EXECUTE, READY
from unbounded_apiserver.controllers.nodes.events import ApiEventRecorder
from unbounded_apiserver.controllers.work_queue import ControllerQueue, delete_expired
from unbounded_apiserver.deletes import Deletes
from unbounded_apiserver.options import DeleteOptions
from unbounded_apiserver.reads import select
from unbounded_apiserver.resource_model import Object
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.store import Store
from unbounded_apiserver.workloads.evictions import mark_disruption
from unbounded_apiserver.workloads.pods import ENDED, PODS
from unbounded_apiserver.writes import Writes, WriteTarget, is_deletion_complete

NODE_CONTROLLER = "node-controller"
_GONE_REASON: Final = "DeletionByPodGC"
_GONE_MESSAGE: Final = "PodGC: node no longer exists"
LEFT_BEHIND: Final = ""  # no Node has this name


@cache
def _template() -> FieldTerm:
    """Return the term of field selectors for spec.nodeName, so that both use the same index."""
    term = select(PODS, "", "", "spec.nodeName=n").term
    if term is None:
        raise AssertionError("spec.nodeName can be selected")
    return term


def pods_of(store: Store, node: str) -> Iterator[StoredObject]:
    return store.snapshot(PODS.name).with_prefix("", term=_template()._replace(value=node))


def reference(pod: Object) -> Object:
    """Return an ObjectReference of a Pod."""
    meta = pod["metadata"]
    fields = {key: meta[key] for key in ("namespace", "name", "uid", "resourceVersion") if key in meta}
    return {"kind": "Pod", "apiVersion": "v1", **fields}


async def mark_not_ready(
    store: Store, writes: Writes, events: ApiEventRecorder, now: Callable[[], datetime], node: str
) -> None:
    """Set Ready=False on the Pods of an unhealthy Node."""
    for record in list(pods_of(store, node)):
        pod = record.decode()
        if _set_not_ready(pod, now()):
            target = WriteTarget(PODS, record.namespace, record.name)
            await writes.edit(target, partial(_mark, now()))
            await events.record(NODE_CONTROLLER, reference(pod), "NodeNotReady", "Node is not ready", "Warning")


def _mark(now: datetime, pod: Object) -> None:
    _set_not_ready(pod, now)


def _set_not_ready(pod: Object, now: datetime) -> bool:
    """Set Ready=False in place; return whether that is a change. A Pod that has not reported Ready is not changed."""
    for condition in pod["status"].get("conditions") or ():
        if condition["type"] == READY and condition["status"] != FALSE:
            condition.update(status=FALSE, lastTransitionTime=metadata.format_time(now))
            return True
    return False


class OrphanCollector:
    """The controller of orphaned Pods. It waits for a Node to return before it deletes the Node's Pods by force."""

    def __init__(
        self, store: Store, writes: Writes, deletes: Deletes, now: Callable[[], datetime], times: NodeTimes
    ) -> None:
        self._store = store
        self._writes = writes
        self._deletes = deletes
        self._now = now
        self._times = times
        self._left_behind: list[StoredObject] = []
        self._due: dict[str, float] = {}  # by Node, on this process's clock
        self._queue: ControllerQueue[str] = ControllerQueue(self._reconcile)

    def begin(self) -> None:
        for record in self._store.snapshot(PODS.name).with_prefix(""):
            if b'"deletionTimestamp"' in record.bare and is_deletion_complete(record.decode()):
                self._left_behind.append(record)
            self._queue.add(record.decode()["spec"].get("nodeName") or LEFT_BEHIND)
        self._store.listen(self._on_node, NODES.name)
        self._store.listen(self._on_pod, PODS.name)

    async def run(self) -> None:
        await self._queue.run()

    def _on_node(self, change: ObjectChange) -> None:
        name = change.record.key
        if change.deleted:
            self._queue.add(name)
        elif self._due.pop(name, None) is not None:
            self._queue.cancel(name)

    def _on_pod(self, change: ObjectChange) -> None:
        if change.deleted or (change.previous is not None and b'"nodeName"' in change.previous.bare):
            return
        if node := change.record.decode()["spec"].get("nodeName"):
            self._queue.add(node)

    async def _reconcile(self, name: str) -> None:
        if name == LEFT_BEHIND:
            while self._left_behind:
                await self._delete(self._left_behind.pop())
            return
        if self._store.get(NODES.name, name) is not None or next(pods_of(self._store, name), None) is None:
            self._due.pop(name, None)
            return
        clock = asyncio.get_running_loop().time()
        if (due := self._due.setdefault(name, clock + self._times.quarantine_s)) > clock:
            self._queue.add_after(name, due - clock)
            return
        self._due.pop(name)
        for record in list(pods_of(self._store, name)):
            await self._writes.edit(WriteTarget(PODS, record.namespace, record.name), self._fail)
            await self._delete(record)

    def _fail(self, pod: Object) -> None:
        """Set the phase of a Pod to Failed, as its kubelet is gone."""
        if pod["status"].get("phase") in ENDED:
            return
        mark_disruption(pod, _GONE_REASON, _GONE_MESSAGE, self._now())
        pod["status"]["phase"] = "Failed"
        if pod["status"].get("observedGeneration"):
            pod["status"]["observedGeneration"] = pod["metadata"].get("generation", 0)

    async def _delete(self, record: StoredObject) -> None:
        target = WriteTarget(PODS, record.namespace, record.name)
        try:
            await self._deletes.delete(target, DeleteOptions(uid=record.decode()["metadata"]["uid"], grace_s=0))
        except StatusError as error:
            if error.code not in {404, 409}:
                raise


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
