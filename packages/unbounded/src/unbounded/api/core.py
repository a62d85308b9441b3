"""The built-in kinds of Kubernetes that the components read or write, with the fields that they use."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from unbounded.api.fields import ApiStruct
from unbounded.api.meta import Kind, Object


class Namespace(Object, frozen=True, kw_only=True):
    pass


class Secret(Object, frozen=True, kw_only=True):
    type: str | None = None
    data: dict[str, str] = {}

    def value(self, key: str) -> bytes | None:
        """Return the decoded value of one key, or None when the Secret does not have it."""
        encoded = self.data.get(key)
        return None if encoded is None else base64.b64decode(encoded)

    def __repr__(self) -> str:
        return f"Secret({self.metadata.namespace}/{self.metadata.name}, keys={sorted(self.data)})"


class ConfigMap(Object, frozen=True, kw_only=True):
    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}


class NodeSystemInfo(ApiStruct, frozen=True, kw_only=True):
    boot_id: str | None = None
    kubelet_version: str | None = None
    container_runtime_version: str | None = None
    os_image: str | None = None
    kernel_version: str | None = None


class NodeCondition(ApiStruct, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    last_heartbeat_time: str | None = None
    last_transition_time: str | None = None


class NodeTaint(ApiStruct, frozen=True, kw_only=True):
    key: str = ""
    value: str | None = None
    effect: str = ""
    time_added: str | None = None


class NodeSpec(ApiStruct, frozen=True, kw_only=True):
    taints: tuple[NodeTaint, ...] = ()
    unschedulable: bool = False
    provider_id: str | None = None


class NodeAddress(ApiStruct, frozen=True, kw_only=True):
    type: str = ""
    address: str = ""


class NodeStatus(ApiStruct, frozen=True, kw_only=True):
    addresses: tuple[NodeAddress, ...] = ()
    conditions: tuple[NodeCondition, ...] = ()
    node_info: NodeSystemInfo | None = None


class Node(Object, frozen=True, kw_only=True):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        condition = self.ready_condition
        return condition is not None and condition.status == "True"

    @property
    def ready_condition(self) -> NodeCondition | None:
        return next((c for c in self.status.conditions if c.type == "Ready"), None)


class PodVolume(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    empty_dir: dict[str, Any] | None = None


class PodSpec(ApiStruct, frozen=True, kw_only=True):
    node_name: str = ""
    volumes: tuple[PodVolume, ...] = ()


class PodStatus(ApiStruct, frozen=True, kw_only=True):
    phase: str = ""


class Pod(Object, frozen=True, kw_only=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class LeaseSpec(ApiStruct, frozen=True, kw_only=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Object, frozen=True, kw_only=True):
    spec: LeaseSpec = LeaseSpec()


class ObjectReference(ApiStruct, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None


class EventSource(ApiStruct, frozen=True, kw_only=True):
    component: str | None = None


class Event(Object, frozen=True, kw_only=True):
    """A core/v1 Event, which `kubectl describe` shows."""

    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    type: str = "Normal"
    count: int = 1
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    source: EventSource | None = None
    reporting_component: str = ""


class ServiceAccount(Object, frozen=True, kw_only=True):
    pass


class ServiceSpec(ApiStruct, frozen=True, kw_only=True):
    cluster_ip: str | None = msgspec.field(default=None, name="clusterIP")
    cluster_ips: tuple[str, ...] = msgspec.field(default=(), name="clusterIPs")


class Service(Object, frozen=True, kw_only=True):
    spec: ServiceSpec = ServiceSpec()


class RequestCondition(ApiStruct, frozen=True, kw_only=True):
    """Approved, Denied or Failed; these three are only ever True."""

    type: str
    status: str = "True"
    reason: str = ""
    message: str = ""


class CertificateRequestSpec(ApiStruct, frozen=True, kw_only=True):
    """The certificate request, and its user; only the server writes the user."""

    request: str = ""  # base64 of PEM
    signer_name: str = ""
    usages: tuple[str, ...] = ()
    expiration_seconds: int | None = None
    username: str = ""
    groups: tuple[str, ...] = ()


class CertificateRequestStatus(ApiStruct, frozen=True, kw_only=True):
    conditions: tuple[RequestCondition, ...] = ()
    certificate: str = ""  # base64 of PEM

    def has(self, kind: str) -> bool:
        """Return whether there is a condition of this type: Approved, Denied or Failed."""
        return any(condition.type == kind for condition in self.conditions)


class CertificateRequest(Object, frozen=True, kw_only=True):
    """A CertificateSigningRequest."""

    spec: CertificateRequestSpec = CertificateRequestSpec()
    status: CertificateRequestStatus = CertificateRequestStatus()


class VersionInfo(ApiStruct, frozen=True, kw_only=True):
    """The response of /version; not an object."""

    git_version: str = ""


class TokenRequestStatus(ApiStruct, frozen=True, kw_only=True):
    token: str = ""
    expiration_timestamp: str = ""


class TokenRequest(Object, frozen=True, kw_only=True):
    """A token request, created under a ServiceAccount; the response has the token."""

    status: TokenRequestStatus = TokenRequestStatus()

    def __repr__(self) -> str:
        return f"TokenRequest({self.metadata.namespace}/{self.metadata.name})"


NAMESPACES: Final = Kind("", "v1", "Namespace", "namespaces", Namespace)
SECRETS: Final = Kind("", "v1", "Secret", "secrets", Secret, namespaced=True)
CONFIG_MAPS: Final = Kind("", "v1", "ConfigMap", "configmaps", ConfigMap, namespaced=True)
SERVICES: Final = Kind("", "v1", "Service", "services", Service, namespaced=True)
SERVICE_ACCOUNTS: Final = Kind("", "v1", "ServiceAccount", "serviceaccounts", ServiceAccount, namespaced=True)
TOKEN_REQUESTS: Final = Kind("authentication.k8s.io", "v1", "TokenRequest", "serviceaccounts/token", TokenRequest)
NODES: Final = Kind("", "v1", "Node", "nodes", Node)
PODS: Final = Kind("", "v1", "Pod", "pods", Pod, namespaced=True)


@dataclass(frozen=True)
class EvictionKind(Kind[Object]):
    """The evictions of one pod. The server takes them at a subresource of the pod, and answers with a Status."""

    pod: str = ""

    def path(self, _name: str = "", *, namespace: str = "", subresource: str = "eviction") -> str:
        return PODS.path(self.pod, namespace=namespace, subresource=subresource)


def evictions_of(pod: str) -> EvictionKind:
    """Return the resource in which an eviction of the pod is created."""
    return EvictionKind("policy", "v1", "Eviction", "pods/eviction", Object, namespaced=True, pod=pod)


EVENTS: Final = Kind("", "v1", "Event", "events", Event, namespaced=True)
LEASES: Final = Kind("coordination.k8s.io", "v1", "Lease", "leases", Lease, namespaced=True)
NODE_LEASES: Final = "kube-node-lease"  # namespace of the leases of Nodes
CERTIFICATE_REQUESTS: Final = Kind(
    "certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests", CertificateRequest
)
VERSION_INFO: Final = Kind("", "", "Info", "version", VersionInfo)
SELF_SUBJECT_REVIEWS: Final[Kind[dict[str, Any]]] = Kind(
    "authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", dict
)
SELF_SUBJECT_ACCESS_REVIEWS: Final[Kind[dict[str, Any]]] = Kind(
    "authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", dict
)
SELF_SUBJECT_RULES_REVIEWS: Final[Kind[dict[str, Any]]] = Kind(
    "authorization.k8s.io", "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews", dict
)
