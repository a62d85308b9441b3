"""Taints that follow from a Node's conditions, and the state Unknown. Nodes change in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from unbounded_apiserver import metadata
from unbounded_apiserver.resource_model import Object
from unbounded_apiserver.workloads.pod_admission import NOT_READY, UNREACHABLE

READY: Final = "Ready"
TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"
NO_SCHEDULE: Final = "NoSchedule"
NO_EXECUTE: Final = "NoExecute"
UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
_OF_READY: Final = {FALSE: NOT_READY, UNKNOWN: UNREACHABLE}
_TAINTS: Final[Mapping[tuple[str, str], str]] = {
    (READY, FALSE): NOT_READY,
    (READY, UNKNOWN): UNREACHABLE,
    ("MemoryPressure", TRUE): "node.kubernetes.io/memory-pressure",
    ("DiskPressure", TRUE): "node.kubernetes.io/disk-pressure",
    ("NetworkUnavailable", TRUE): "node.kubernetes.io/network-unavailable",
    ("PIDPressure", TRUE): "node.kubernetes.io/pid-pressure",
}
_KEPT_UP: Final = frozenset({*_TAINTS.values(), UNSCHEDULABLE})
# by kubelet; another component reports the network
_REPORTED: Final = (READY, "MemoryPressure", "DiskPressure", "PIDPressure")
_NEVER: Final = ("NodeStatusNeverUpdated", "Kubelet never posted node status.")
_STOPPED: Final = ("NodeStatusUnknown", "Kubelet stopped posting node status.")


def conditions_of(node: Object) -> list[Object]:
    conditions: list[Object] = (node.get("status") or {}).get("conditions") or []
    return conditions


def ready_of(node: Object) -> Object:
    """Return the condition Ready, {} for a Node whose kubelet has not reported it."""
    return next((one for one in conditions_of(node) if one["type"] == READY), {})


def taint_new(node: Object, old: Object | None) -> None:
    """Keep Pods off a Node until its kubelet reports Ready, as the plugin TaintNodesByCondition does."""
    if old is None and (NOT_READY, NO_SCHEDULE) not in {(t["key"], t["effect"]) for t in _taints(node)}:
        node["spec"]["taints"] = [*_taints(node), {"key": NOT_READY, "effect": NO_SCHEDULE}]


def no_schedule_differs(node: Object) -> bool:
    """Return whether the NoSchedule taints differ from those of the Node's conditions."""
    present = [taint["key"] for taint in _taints(node) if _is_kept_up(taint)]
    return set(present) != set(_no_schedule_keys(node))


def set_no_schedule(node: Object, now: datetime) -> None:
    """Set the NoSchedule taints that follow from the conditions and `spec.unschedulable`."""
    _set(node, NO_SCHEDULE, _no_schedule_keys(node), _is_kept_up, now)


def no_execute_key(node: Object) -> str:
    """Return the taint that evicts Pods from the Node in its present state, '' where there is none."""
    return _OF_READY.get(ready_of(node).get("status", ""), "")


def no_execute_of(node: Object) -> set[str]:
    """Return the keys of the NoExecute taints that follow from the Node's state."""
    return {taint["key"] for taint in _taints(node) if _evicts(taint)}


def set_no_execute(node: Object, key: str, now: datetime) -> None:
    """Set the NoExecute taints to this one key, or with '' to none."""
    _set(node, NO_EXECUTE, [key] if key else [], _evicts, now)


def set_unknown(node: Object, now: datetime) -> None:
    """Set the kubelet's conditions of a Node to Unknown."""
    found = {one["type"]: one for one in conditions_of(node)}
    moment = metadata.format_time(now)
    for kind in _REPORTED:
        if kind not in found:
            reason, message = _NEVER
            times = {"lastHeartbeatTime": node["metadata"]["creationTimestamp"], "lastTransitionTime": moment}
            found[kind] = {"type": kind, "status": UNKNOWN, **times, "reason": reason, "message": message}
        elif found[kind]["status"] != UNKNOWN:
            reason, message = _STOPPED
            change = {"status": UNKNOWN, "lastTransitionTime": moment, "reason": reason, "message": message}
            found[kind] = {**found[kind], **change}
    node["status"] = {**(node.get("status") or {}), "conditions": list(found.values())}


def _taints(node: Object) -> list[Object]:
    taints: list[Object] = node["spec"].get("taints") or []
    return taints


def _no_schedule_keys(node: Object) -> list[str]:
    keys = [_TAINTS.get((one["type"], one["status"]), "") for one in conditions_of(node)]
    if node["spec"].get("unschedulable"):
        keys.append(UNSCHEDULABLE)
    return [key for key in keys if key]


def _is_kept_up(taint: Mapping[str, Any]) -> bool:
    return taint["effect"] == NO_SCHEDULE and taint["key"] in _KEPT_UP


def _evicts(taint: Mapping[str, Any]) -> bool:
    return taint["effect"] == NO_EXECUTE and taint["key"] in _OF_READY.values()


def _set(
    node: Object, effect: str, keys: Iterable[str], ours: Callable[[Mapping[str, Any]], bool], now: datetime
) -> None:
    """Replace our taints: keep those of other owners and those that stay, and append new ones."""
    desired = list(dict.fromkeys(keys))
    taints = [taint for taint in _taints(node) if not ours(taint) or taint["key"] in desired]
    present = {taint["key"] for taint in taints if ours(taint)}
    added = [{"key": k, "effect": effect, "timeAdded": metadata.format_time(now)} for k in desired if k not in present]
    node["spec"].pop("taints", None)
    if taints or added:
        node["spec"]["taints"] = [*taints, *added]
