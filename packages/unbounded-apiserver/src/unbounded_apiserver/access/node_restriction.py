"""Restriction of nodes' writes to their own Node and Lease, mirror pods, and their pods' status (NodeRestriction)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from unbounded_apiserver import status
from unbounded_apiserver.access.node_authorizer import CONFIG_MAPS, LEASES, MIRROR, PODS, SECRETS, node_of, of_content
from unbounded_apiserver.auth import AuthAttributes, AuthDecision, User
from unbounded_apiserver.resource_model import Object, Resource, ResourcePath
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.store import Store

RESTRICTED: Final = "node-restriction.kubernetes.io"
_OWN_LABELS: Final = frozenset(
    {
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "kubernetes.io/arch",
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    }
)
_OWN_DOMAINS: Final = ("kubelet.kubernetes.io", "node.kubernetes.io")
_LEASE_NAME: Final = "can only access node lease with the same name as the requesting node"
CSI_DRIVERS: Final = "csidrivers.storage.k8s.io"
_ITSELF: Final = "with spec.nodeName set to itself"
AUDIENCE_VERB: Final = "request-serviceaccounts-token-audience"  # on an audience as the resource: a right of RBAC
_WRITES: Final = frozenset({"create", "update", "patch", "delete"})


class NodeRestriction:
    """Reject writes that a node's rules allow, but not for this object or with this content.

    Args:
        decide: the user's other rights.
    """

    def __init__(self, store: Store, decide: Callable[[User, AuthAttributes], AuthDecision]) -> None:
        self._store = store
        self._decide = decide
        self._contents: Mapping[str, Callable[[str, str, Object, Object | None], str]] = {
            "nodes": _why_not_node,
            "pods": self._why_not_pod,
            "leases.coordination.k8s.io": _why_not_lease,
            "csinodes.storage.k8s.io": _why_not_csi_node,
            "resourceslices.resource.k8s.io": _why_not_slice,
        }

    def check_path(self, user: User, verb: str, place: ResourcePath) -> None:
        """Reject writes to another node's objects by their path. Raises StatusError (403)."""
        node, resource = node_of(user), place.resource
        if node is None or resource is None or verb not in _WRITES:
            return
        if why := self._why_not_place(node, verb, place, resource.name):
            raise status.forbidden(resource.group, resource.plural, place.name, why)

    def check_content(self, user: User, resource: Resource, subresource: str, obj: Object, old: Object | None) -> None:
        """Reject writes by the new object and the old one (None: no old one). Raises StatusError (403)."""
        node, check = node_of(user), self._contents.get(resource.name)
        if node is not None and check is not None and (why := check(node, subresource, obj, old)):
            raise _refused(resource, obj, why)

    def check_token(self, user: User, place: ResourcePath, request: Object) -> None:
        """Reject tokens of other nodes' pods, and tokens for audiences that the pod does not have.

        Raises:
            StatusError (403, 404)
        """
        node, resource = node_of(user), place.resource
        if node is None or resource is None or place.subresource != "token":
            return
        bound = request["spec"].get("boundObjectRef") or {}
        name, uid = bound.get("name", ""), bound.get("uid", "")
        if bound.get("apiVersion") != "v1" or bound.get("kind") != "Pod" or not name:
            why = "node requested token not bound to a pod"
        elif not uid:
            why = "node requested token with a pod binding without a uid"
        else:
            why = self._why_not_bound(node, place.namespace, name, uid)
        why = why or self._why_not_audience(user, place, name, request["spec"].get("audiences") or [])
        if why:
            raise status.forbidden(resource.group, resource.plural, place.name, why)

    def _why_not_bound(self, node: str, namespace: str, name: str, uid: str) -> str:
        pod = self._pod(namespace, name)
        if pod is None:
            raise status.not_found("", PODS, name)
        if pod["metadata"]["uid"] != uid:
            return (
                f"the UID in the bound object reference ({uid}) does not match the UID in record. "
                "The object might have been deleted and then recreated"
            )
        elsewhere = _node_of_pod(pod) != node
        return "node requested token bound to a pod scheduled on a different node" if elsewhere else ""

    def _why_not_audience(self, user: User, place: ResourcePath, pod_name: str, audiences: Sequence[str]) -> str:
        if len(audiences) > 1:
            return "node may only request 0 or 1 audiences"
        audience = audiences[0] if audiences else ""
        pod = self._pod(place.namespace, pod_name)
        if pod is not None and audience in self._audiences(pod):
            return ""
        granted = AuthAttributes(AUDIENCE_VERB, "", audience, "", place.namespace, place.name)
        if self._decide(user, granted).allowed:
            return ""
        found = f'audience "{audience}" not found in pod spec volume'
        return f"{found}, {user.name} is not authorized to request tokens for this audience"

    def _audiences(self, pod: Object) -> Iterator[str]:
        """Yield the audiences of a pod's tokens: of its volumes, and those that CSI drivers get; '' is this server.

        No volume claims are served, so that only a volume of the pod itself can name a driver.
        """
        for volume in (pod.get("spec") or {}).get("volumes") or ():
            for source in (volume.get("projected") or {}).get("sources") or ():
                if (token := source.get("serviceAccountToken")) is not None:
                    yield token.get("audience") or ""
            driver = (volume.get("csi") or {}).get("driver")
            record = self._store.get(CSI_DRIVERS, driver) if driver else None
            for request in (record.decode()["spec"].get("tokenRequests") or ()) if record is not None else ():
                yield request["audience"]

    def _why_not_place(self, node: str, verb: str, place: ResourcePath, resource: str) -> str:
        match resource:
            case "nodes" if place.name and place.name != node:
                return f'node "{node}" is not allowed to modify node "{place.name}"'
            case "leases.coordination.k8s.io" if place.namespace != LEASES:
                return f'can only access leases in the "{LEASES}" system namespace'
            case "leases.coordination.k8s.io" if place.name and place.name != node:
                return _LEASE_NAME
            case "pods" if place.name:
                return self._why_not_named_pod(node, verb, place)
        return ""

    def _why_not_named_pod(self, node: str, verb: str, place: ResourcePath) -> str:
        if place.subresource not in {"", "eviction", "status"}:
            return f"unexpected pod subresource \"{place.subresource}\", only 'status' and 'eviction' are allowed"
        pod = self._pod(place.namespace, place.name)
        if pod is None or _node_of_pod(pod) == node:
            return ""
        if place.subresource == "eviction":
            return f"node {node} can only evict pods {_ITSELF}"
        return f'node "{node}" can only delete pods {_ITSELF}' if verb == "delete" else ""

    def _why_not_pod(self, node: str, subresource: str, pod: Object, old: Object | None) -> str:
        if old is None:
            return next(self._why_not_mirror(node, pod), "")
        if subresource != "status":
            return f'unexpected operation "UPDATE", node "{node}" can only create and delete mirror pods'
        if _node_of_pod(old) != node:
            return f'node "{node}" can only update pod status for pods {_ITSELF}'
        if _labels(pod) != _labels(old):
            return f'node "{node}" cannot update labels through pod status'
        claims, before = ((one.get("status") or {}).get("resourceClaimStatuses") for one in (pod, old))
        return f'node "{node}" cannot update resource claim statues' if claims != before else ""  # Kubernetes' spelling

    def _why_not_mirror(self, node: str, pod: Object) -> Iterator[str]:
        """Yield the reasons to reject a mirror pod: it must be for the node itself, and reference no other objects."""
        can_only = f'node "{node}" can only create pods'
        if MIRROR not in (pod["metadata"].get("annotations") or {}):
            yield f'pod does not have "{MIRROR}" annotation, node "{node}" can only create mirror pods'
        if _node_of_pod(pod) != node:
            yield f"{can_only} {_ITSELF}"
        owners = pod["metadata"].get("ownerReferences") or []
        if len(owners) > 1:
            yield f"{can_only} with a single owner reference set to itself"
        yield from self._why_not_owner(node, owners[0] if owners else {}, can_only)
        spec = pod.get("spec") or {}
        cannot = f'node "{node}" can not create pods that reference'
        if spec.get("serviceAccountName"):
            yield f"{cannot} a service account"
        named = {resource for resource, _ in of_content(spec)}
        yield from (f"{cannot} {resource}" for resource in (SECRETS, CONFIG_MAPS) if resource in named)
        volumes = spec.get("volumes") or ()
        projected = [s for v in volumes for s in (v.get("projected") or {}).get("sources") or ()]
        if any(source.get("clusterTrustBundle") is not None for source in projected):
            yield f"{cannot} clustertrustbundles"
        if spec.get("resourceClaims"):
            yield f"{cannot} resourceclaims"
        if any(volume.get("persistentVolumeClaim") is not None for volume in volumes):
            yield f"{cannot} persistentvolumeclaims"
        if any(volume.get("ephemeral") is not None for volume in volumes):
            yield f"{cannot} persistentvolumeclaims (via ephemeral volumes)"

    def _why_not_owner(self, node: str, owner: Mapping[str, Any], can_only: str) -> Iterator[str]:
        if (owner.get("apiVersion"), owner.get("kind"), owner.get("name")) != ("v1", "Node", node):
            yield f"{can_only} with an owner reference set to itself"
        if not owner.get("controller"):
            yield f"{can_only} with a controller owner reference set to itself"
        if owner.get("blockOwnerDeletion"):
            yield f'node "{node}" must not set blockOwnerDeletion on an owner reference'
        record = self._store.get("nodes", node)
        if record is None:
            raise status.not_found("", "nodes", node)
        uid = record.decode()["metadata"]["uid"]
        if owner.get("uid") != uid:
            yield f"node {node} UID mismatch: expected {owner.get('uid', '')} got {uid}"

    def _pod(self, namespace: str, name: str) -> Object | None:
        record = self._store.get(PODS, f"{namespace}/{name}")
        return None if record is None else record.decode()


def _refused(resource: Resource, obj: Object, why: str) -> StatusError:
    meta = obj["metadata"]
    name = meta.get("name") or meta.get("generateName") or "Unknown"
    return status.forbidden(resource.group, resource.plural, name, why)


def _why_not_node(node: str, _subresource: str, obj: Object, old: Object | None) -> str:
    name = obj["metadata"].get("name", "")
    if name != node:
        return f'node "{node}" is not allowed to modify node "{name}"'
    if old is not None and (obj["spec"].get("taints") or []) != (old["spec"].get("taints") or []):
        return f'node "{node}" is not allowed to modify taints'
    # the garbage collector would delete the Node of an owner that is gone
    if old is not None and _owners(obj) != _owners(old):
        return f'node "{node}" is not allowed to modify ownerReferences'
    changed = _labels(obj).items() ^ (_labels(old) if old is not None else {}).items()
    if not (refused := ", ".join(sorted({key for key, _ in changed if not is_own_label(key)}))):
        return ""
    if old is None:
        return f'node "{node}" is not allowed to set the following labels: {refused}'
    return f"is not allowed to modify labels: {refused}"


def _why_not_lease(node: str, _subresource: str, obj: Object, _old: Object | None) -> str:
    return "" if obj["metadata"].get("name") == node else _LEASE_NAME


def _why_not_csi_node(node: str, _subresource: str, obj: Object, _old: Object | None) -> str:
    other = obj["metadata"].get("name") != node
    return "can only access CSINode with the same name as the requesting node" if other else ""


def _why_not_slice(node: str, _subresource: str, obj: Object, old: Object | None) -> str:
    other = old is None and obj["spec"].get("nodeName") != node
    return "can only create ResourceSlice with the same NodeName as the requesting node" if other else ""


def is_own_label(key: str) -> bool:
    """Return whether a node may set this label on itself: any but those of Kubernetes that are not about hosts."""
    domain = key.partition("/")[0] if "/" in key else ""
    if _within(domain, RESTRICTED):
        return False
    if not _within(domain, "kubernetes.io") and not _within(domain, "k8s.io"):
        return True
    return key in _OWN_LABELS or any(_within(domain, own) for own in _OWN_DOMAINS)


def _within(domain: str, parent: str) -> bool:
    return domain == parent or domain.endswith(f".{parent}")


def _labels(obj: Object) -> Mapping[str, str]:
    found: Mapping[str, str] = obj["metadata"].get("labels") or {}
    return found


def _owners(obj: Object) -> Sequence[Object]:
    found: Sequence[Object] = obj["metadata"].get("ownerReferences") or []
    return found


def _node_of_pod(pod: Object) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")
