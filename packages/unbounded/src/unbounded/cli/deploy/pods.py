"""Parts of the project's Pods (security contexts, probes, volumes), and their environment on a cluster.

machina and machine-ops-controller comply with the Pod security standard `restricted`, and the namespace enforces it.
metalman is on the network of its node and sends raw packets, which only `privileged` allows. A namespace has one level,
so it is `privileged` where a metalman is deployed, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from unbounded.api.names import NAMESPACE
from unbounded.fetch.store import StoreLimits

Raw = dict[str, Any]

PRIORITY: Final = "unbounded-controllers"
PART_OF: Final = {"app.kubernetes.io/part-of": "unbounded"}
SELECTOR: Final = "app.kubernetes.io/part-of=unbounded"  # selects all objects with these labels
RESTRICTED: Final = "restricted"
PRIVILEGED: Final = "privileged"
# `warn` reports what a Deployment's template violates when it is applied; `enforce` alone applies to Pods only.
MODES: Final = ("pod-security.kubernetes.io/enforce", "pod-security.kubernetes.io/warn")
_PRIORITY_VALUE: Final = 1_000_000
NOBODY: Final = 65532  # a user that owns nothing in any image
_RUN: Final = "1Mi"
_TMP: Final = "64Mi"  # for certificates and tokens that libraries read from a file

ROOT_CA: Final = "kube-root-ca.crt"  # in each namespace, from Kubernetes
ACCOUNT_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
# The reference lets controllers run on control planes with the taint for critical add-ons, and on gateways, too.
TOLERATIONS: Final = [
    {"key": "CriticalAddonsOnly", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
    {"key": "unbounded.aks.azure.com/gateway-node", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
]


def namespace(level: str = RESTRICTED) -> Raw:
    """Return the namespace.

    Args:
        level: the Pod security standard; empty where no Pod of the project runs.
    """
    meta: Raw = {"name": NAMESPACE}
    if level:
        meta["labels"] = dict.fromkeys(MODES, level)
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}


def priority_class() -> Raw:
    """Return the priority of the controllers, above that of Pods without a class.

    They do not use `system-cluster-critical`: a cluster's quota may restrict it to kube-system.
    """
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": PRIORITY, "labels": dict(PART_OF)},
        "value": _PRIORITY_VALUE,
        "description": "Controllers of machines: without them no Node is created, repaired or replaced.",
    }


def deny_all() -> Raw:
    """Return the policy that denies the project's Pods all traffic that no other policy allows."""
    return _policy("unbounded-deny-all", PART_OF, {"podSelector": {"matchLabels": dict(PART_OF)}})


def controller_network(
    name: str, selector: Mapping[str, str], *, served: str = "", scraped: Sequence[str] = ("metrics",)
) -> Raw:
    """Return the policy of a controller: it admits scrapes of metrics, and allows outgoing DNS and TCP.

    TCP has no list of ports and addresses. The port of the API server depends on the cluster, that of SSH on the
    Machine, that of a proxy or a cloud's metadata on the site. Probes come from the node, which no policy stops.

    Args:
        served: name of a port that everybody may reach.
        scraped: names of the ports with metrics.
    """
    everybody = [{"ports": [{"protocol": "TCP", "port": served}]}] if served else []
    spec = {
        "podSelector": {"matchLabels": dict(selector)},
        "ingress": [
            {"from": [{"namespaceSelector": {}}], "ports": [{"protocol": "TCP", "port": port} for port in scraped]},
            *everybody,
        ],
        "egress": [{"ports": [{"protocol": "TCP"}]}, {"ports": [{"protocol": "UDP", "port": 53}]}],
    }
    return _policy(name, {**selector, **PART_OF}, spec)


def _policy(name: str, labels: Mapping[str, str], spec: Mapping[str, Any]) -> Raw:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": dict(labels)},
        "spec": {**spec, "policyTypes": ["Ingress", "Egress"]},
    }


def probe(path: str, *, delay_s: int, period_s: int, port: str = "health") -> Raw:
    return {
        "httpGet": {"path": path, "port": port},
        "initialDelaySeconds": delay_s,
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
    }


def tls_server(port: str, health: str, tls: str, folder: str, resources: Raw) -> Raw:
    """Return the fields of a container that serves with TLS and the rights of its callers.

    The account's token is not in it: the mount of the authority takes the place of that of the account.

    Args:
        port, health: names of its ports.
        tls, folder: the volume with tls.crt and tls.key, and where it is mounted.
    """
    files = {"--tls-cert-file": "tls.crt", "--tls-private-key-file": "tls.key"}
    return {
        "args": [f"{flag}={folder}/{file}" for flag, file in files.items()],
        "ports": [
            {"name": port, "containerPort": 8443, "protocol": "TCP"},
            {"name": health, "containerPort": 8082, "protocol": "TCP"},
        ],
        "livenessProbe": probe("/healthz", delay_s=5, period_s=10, port=health),
        "resources": resources,
        "securityContext": confined(),
        "volumeMounts": [
            {"name": "api-server-ca", "mountPath": ACCOUNT_FOLDER, "readOnly": True},
            {"name": tls, "mountPath": folder, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        ],
    }


def as_nobody() -> Raw:
    return {
        "runAsNonRoot": True,
        "runAsUser": NOBODY,
        "runAsGroup": NOBODY,
        "fsGroup": NOBODY,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def confined(*capabilities: str) -> Raw:
    """Return a security context with these capabilities, without privilege escalation, and with a read-only image."""
    added: Raw = {"add": list(capabilities)} if capabilities else {}
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], **added},
    }


def tmp_volume() -> Raw:
    """Return the volume of /tmp; kubelet evicts the Pod that fills it, and no other Pod of the node."""
    return _empty("tmp", _TMP)


def cache_volume() -> Raw:
    """Return metalman's cache, with the size of its full store and of one image that is being unpacked."""
    limits = StoreLimits()
    return _empty("cache", f"{(limits.bytes + limits.image_bytes) >> 30}Gi")


def run_volume() -> Raw:
    """Return the volume of /run/unbounded, with which a container detects that its predecessor in the Pod has ended."""
    return _empty("run", _RUN, medium="Memory")


def _empty(name: str, size: str, **more: str) -> Raw:
    return {"name": name, "emptyDir": {"sizeLimit": size, **more}}
