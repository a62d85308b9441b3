"""The Pods of a Node, and marking them as not ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache, partial

from unbounded_apiserver import metadata
from unbounded_apiserver.controllers.nodes.conditions import FALSE, READY
from unbounded_apiserver.controllers.nodes.events import ApiEventRecorder
from unbounded_apiserver.field_index import FieldTerm
from unbounded_apiserver.records import StoredObject
from unbounded_apiserver.selection import select
from unbounded_apiserver.store import Store
from unbounded_apiserver.types import Object
from unbounded_apiserver.workloads.pods import PODS
from unbounded_apiserver.writes import Writes, WriteTarget

NODE_CONTROLLER = "node-controller"


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
