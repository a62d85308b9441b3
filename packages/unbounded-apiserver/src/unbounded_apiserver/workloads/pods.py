"""Pods: stored as written; kubelets run them and report their status."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from unbounded_apiserver import notation, quantity
from unbounded_apiserver.builtin import BuiltInType
from unbounded_apiserver.types import Object, ProxiedSubresource, Resource, Subresource, keep_all_but_status
from unbounded_apiserver.workloads import columns, container_fields, pod_fields, volume_fields
from unbounded_apiserver.workloads.defaults import containers, default_pod
from unbounded_apiserver.workloads.pod_rules import rules_of_pod

ENDED: Final = frozenset({"Succeeded", "Failed"})
_COMPUTED: Final = frozenset({"cpu", "memory"})  # the resources that determine the QoS class

TYPES: Final = notation.read(pod_fields.FIELDS, container_fields.FIELDS, volume_fields.FIELDS, pod_fields.STATUS_FIELDS)
POD: Final = notation.kind(TYPES, "Pod")
_OPTIONS: Final = notation.read(
    """
Preconditions meta: Conditions that the object must meet.
  uid string*  Its UID.
  resourceVersion string*  Its version.
DeleteOptions meta: How to delete an object.
  apiVersion string  Version of the options.
  kind string  DeleteOptions.
  gracePeriodSeconds int64*  Seconds that the object is given.
  preconditions Preconditions*  Conditions that it must meet.
  orphanDependents bool*  An older form of propagationPolicy.
  propagationPolicy string*  The treatment of dependents.
  dryRun [string]  All: check everything and delete nothing.
  ignoreStoreReadErrorWithClusterBreakingPotential bool*
"""
)
DELETE_OPTIONS: Final = _OPTIONS["DeleteOptions"]
EVICTION: Final = notation.kind(
    notation.read(
        """
Eviction: Requests that a pod leaves its node.
  deleteOptions DeleteOptions*  How to delete the pod.
""",
        package="io.k8s.api.policy.v1",
        known=_OPTIONS,
    ),
    "Eviction",
)


def service_class(spec: Object) -> str:
    """Return the QoS class Guaranteed, Burstable or BestEffort, by which a node evicts Pods when memory runs out."""
    amounts = [container["resources"] for container in containers({**spec, "ephemeralContainers": ()})]
    asked = [{what: _computed(amount.get(what, {})) for what in ("requests", "limits")} for amount in amounts]
    if not any(amount["requests"] or amount["limits"] for amount in asked):
        return "BestEffort"
    if all(a["limits"].keys() == _COMPUTED and a["requests"] == a["limits"] for a in asked):
        return "Guaranteed"
    return "Burstable"


def _computed(amounts: Object) -> Object:
    return {name: amount for name, amount in amounts.items() if name in _COMPUTED and quantity.parse(amount)}


def seconds_left(pod: Object, requested: int | None) -> int:
    """Return the grace period of a deletion in seconds; the kubelet deletes the Pod with 0 after it has ended.

    Args:
        requested: the grace period of the deletion's options, None if they have none.
    """
    spec = pod["spec"]
    if not spec.get("nodeName") or pod["status"].get("phase") in ENDED:
        return 0
    seconds = spec.get("terminationGracePeriodSeconds", 0) if requested is None else requested
    return seconds if seconds >= 0 else 1


def _decide(pod: Object, old: Object | None) -> None:
    if old is None:
        pod["status"] = {"phase": "Pending", "qosClass": service_class(pod["spec"])}
        if pod["spec"].get("schedulingGates"):
            why = {"reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates"}
            gated = {"type": "PodScheduled", "status": "False", "lastProbeTime": None, "lastTransitionTime": None}
            pod["status"]["conditions"] = [{**gated, **why}]
        return
    pod["status"] = old["status"]
    if pod["spec"] != old["spec"]:
        pod["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def _prepare_status(pod: Object, old: Object, now: datetime) -> None:
    """Keep the fields that a kubelet leaves out of a status, and those that it may not change, as Kubernetes does."""
    keep_all_but_status(pod, old, now)
    meta, status, before = pod["metadata"], pod.setdefault("status", {}), old.get("status") or {}
    meta.pop("ownerReferences", None)
    if "ownerReferences" in old["metadata"]:
        meta["ownerReferences"] = old["metadata"]["ownerReferences"]
    for key in ("qosClass", "observedGeneration"):
        if not status.get(key) and before.get(key):
            status[key] = before[key]
    observed = {one["type"]: one.get("observedGeneration") for one in before.get("conditions") or ()}
    for condition in status.get("conditions") or ():
        if not condition.get("observedGeneration") and observed.get(condition["type"]):
            condition["observedGeneration"] = observed[condition["type"]]


EVICTIONS: Final = Resource(
    "policy", "v1", "Eviction", "evictions", "eviction", True, BuiltInType(EVICTION), verbs=("create",)
)
PODS: Final = Resource(
    "",
    "v1",
    "Pod",
    "pods",
    "pod",
    True,
    BuiltInType(POD, generation=True, defaults=default_pod, decide=_decide, rules=rules_of_pod),
    short_names=("po",),
    categories=("all",),
    subresources={"status": Subresource(_prepare_status)},
    selectable={
        path: path
        for path in (
            "spec.hostNetwork",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.nominatedNodeName",
            "status.phase",
            "status.podIP",
        )
    },
    columns=columns.POD,
    transient={"eviction": EVICTIONS},
    proxied={
        "attach": ProxiedSubresource("PodAttachOptions", ("create", "get")),
        "exec": ProxiedSubresource("PodExecOptions", ("create", "get")),
        "log": ProxiedSubresource("Pod", ("get",)),
        "portforward": ProxiedSubresource("PodPortForwardOptions", ("create", "get")),
    },
    grace=seconds_left,
    shows_deleted=True,
)
