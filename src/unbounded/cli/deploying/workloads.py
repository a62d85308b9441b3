"""The processes of the project on a cluster: Deployments and what belongs to them, from one table.

`deploy/components/` is written from here, and `install` and `site deploy-pxe` bring the same objects.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from unbounded.api.names import LABEL_SITE, NAMESPACE

Raw = dict[str, Any]

NOBODY: Final = 65532  # a user that no image has anything of
MACHINA: Final = "machina-controller"
METALMAN: Final = "metalman-controller"
MACHINA_CONFIG: Final = "machina-config"
CONFIG_FILE: Final = "config.yaml"
CONFIG_FOLDER: Final = "/etc/machina"
CONFIG_DIGEST: Final = "unbounded-cloud.io/config-digest"  # on Pods: another configuration makes other Pods
CACHE: Final = "/var/cache/metalman"
_PART_OF: Final = {"app.kubernetes.io/part-of": "unbounded"}

# Control planes that only run what tolerates it, and gateways, are where the reference lets machina run too.
_TOLERATIONS: Final = [
    {"key": "CriticalAddonsOnly", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
    {"key": "unbounded.aks.azure.com/gateway-node", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
]
# The limit of memory leaves room for what 10,000 Machines take, above the reference's 256Mi.
_RESOURCES: Final = {
    "requests": {"cpu": "100m", "memory": "128Mi"},
    "limits": {"cpu": "500m", "memory": "512Mi"},
}


@dataclass(frozen=True)
class Machina:
    """The Deployment of machina.

    Args:
        config: keys and values of its file.
    """

    image: str
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Metalman:
    """The Deployment of the metalman of one site.

    Args:
        site: empty for the Machines without one.
        interface: what DHCP is served on; empty for the one with the address that machines reach.
    """

    image: str
    site: str = ""
    interface: str = ""

    @property
    def name(self) -> str:
        return f"{METALMAN}-{self.site}" if self.site else METALMAN


def machina_config(there: Mapping[str, Any] | None = None, given: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What machina is told by file: what was given now, over what it was told before, over the defaults."""
    return {"maxConcurrentReconciles": 50} | dict(there or {}) | dict(given or {})


def config_text(config: Mapping[str, Any]) -> str:
    """The file."""
    text: str = yaml.safe_dump(dict(config), sort_keys=True)
    return text


def machina_objects(machina: Machina) -> tuple[Raw, ...]:
    """What machina needs beside its account and rights, in the order in which it is applied."""
    text = config_text(machina.config)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return (
        machina_config_map(machina.config),
        machina_service(),
        machina_budget(),
        machina_deployment(machina.image, annotations={CONFIG_DIGEST: digest}),
    )


def machina_config_map(config: Mapping[str, Any]) -> Raw:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _meta(MACHINA_CONFIG, _labels("machina")),
        "data": {CONFIG_FILE: config_text(config)},
    }


def machina_service() -> Raw:
    return _service(MACHINA, "machina", {"name": "metrics", "port": 8080, "targetPort": "metrics"})


def machina_budget() -> Raw:
    """One of its processes may be taken away at a time: the other one leads on."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _meta(MACHINA, _labels("machina")),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _selector("machina")}},
    }


def machina_deployment(image: str, *, annotations: Mapping[str, str] | None = None) -> Raw:
    """Two processes, of which one leads; neither has any right on its node."""
    container = {
        "name": "machina",
        "image": image,
        "command": ["machina"],
        "args": ["controller", "--config", f"{CONFIG_FOLDER}/{CONFIG_FILE}"],
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - the Pod's own, and empty
        "ports": [
            {"name": "metrics", "containerPort": 8080, "protocol": "TCP"},
            {"name": "health", "containerPort": 8081, "protocol": "TCP"},
        ],
        "livenessProbe": _probe("/healthz", delay_s=5, period_s=10),
        "readinessProbe": _probe("/readyz", delay_s=3, period_s=5),
        "resources": _copy(_RESOURCES),
        "securityContext": _confined(),
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        ],
    }
    pod = {
        "serviceAccountName": "machina",
        "securityContext": _as_nobody(),
        "tolerations": _copy(_TOLERATIONS),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": _selector("machina")},
            }
        ],
        "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": MACHINA_CONFIG}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    return _deployment(MACHINA, "machina", pod, replicas=2, annotations=annotations)


def metalman_objects(metalman: Metalman) -> tuple[Raw, ...]:
    """What the metalman of a site needs beside its account and rights."""
    return (metalman_service(metalman), metalman_deployment(metalman))


def metalman_service(metalman: Metalman) -> Raw:
    """Its metrics; machines that boot speak to the node itself."""
    port = {"name": "metrics", "port": 8081, "targetPort": "health"}
    return _service(metalman.name, "metalman", port, site=metalman.site, headless=True)


def metalman_deployment(metalman: Metalman) -> Raw:
    """One process on the network of its node, which has to stand in the site.

    Ports 67 and 69 and raw packets need two rights. A process that is not root would get them from its image only, and
    `allowPrivilegeEscalation: false` would take them away again: so it is root, without any other right of root's.
    """
    interface = f"--dhcp-interface={metalman.interface}" if metalman.interface else "--dhcp-auto-interface"
    container = {
        "name": "metalman",
        "image": metalman.image,
        "command": ["metalman"],
        "args": ["serve-pxe", f"--site={metalman.site}", interface, f"--cache-dir={CACHE}"],
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108
        "ports": [{"name": "health", "containerPort": 8081, "protocol": "TCP"}],
        "livenessProbe": _probe("/healthz", delay_s=5, period_s=10),
        "readinessProbe": _probe("/readyz", delay_s=3, period_s=5),
        "resources": _copy(_RESOURCES),
        "securityContext": _confined("NET_BIND_SERVICE", "NET_RAW"),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            {"name": "cache", "mountPath": CACHE},
        ],
    }
    pod: Raw = {
        "serviceAccountName": "metalman",
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "cache", "emptyDir": {}}],
    }
    if metalman.site:
        pod["nodeSelector"] = {LABEL_SITE: metalman.site}
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}  # ports are the node's
    return _deployment(metalman.name, "metalman", pod, replicas=1, site=metalman.site, strategy=strategy)


def monitors() -> tuple[Raw, ...]:
    """ServiceMonitors of the Prometheus operator, for clusters that have its definitions."""
    return tuple(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "ServiceMonitor",
            "metadata": _meta(name, _labels(component)),
            "spec": {
                "selector": {"matchLabels": _selector(component)},
                "namespaceSelector": {"matchNames": [NAMESPACE]},
                "endpoints": [{"port": "metrics", "path": "/metrics"}],
            },
        }
        for component, name in (("machina", MACHINA), ("metalman", METALMAN))
    )


def _deployment(
    name: str,
    component: str,
    pod: Raw,
    *,
    replicas: int,
    site: str = "",
    annotations: Mapping[str, str] | None = None,
    strategy: Raw | None = None,
) -> Raw:
    meta: Raw = {"labels": _labels(component, site)}
    if annotations:
        meta["annotations"] = dict(annotations)
    spec: Raw = {
        "replicas": replicas,
        "selector": {"matchLabels": _selector(component, site)},
        "template": {"metadata": meta, "spec": pod},
    }
    if strategy is not None:
        spec["strategy"] = strategy
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _meta(name, _labels(component, site)),
        "spec": spec,
    }


def _service(name: str, component: str, port: Raw, *, site: str = "", headless: bool = False) -> Raw:
    spec: Raw = {"selector": _selector(component, site), "ports": [{"protocol": "TCP", **port}]}
    if headless:
        spec["clusterIP"] = "None"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(name, _labels(component, site)),
        "spec": spec,
    }


def _meta(name: str, labels: Mapping[str, str]) -> Raw:
    return {"name": name, "namespace": NAMESPACE, "labels": dict(labels)}


def _selector(component: str, site: str = "") -> dict[str, str]:
    return {"app.kubernetes.io/name": component} | ({LABEL_SITE: site} if site else {})


def _labels(component: str, site: str = "") -> dict[str, str]:
    return _selector(component, site) | _PART_OF


def _probe(path: str, *, delay_s: int, period_s: int) -> Raw:
    return {
        "httpGet": {"path": path, "port": "health"},
        "initialDelaySeconds": delay_s,
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
    }


def _as_nobody() -> Raw:
    return {
        "runAsNonRoot": True,
        "runAsUser": NOBODY,
        "runAsGroup": NOBODY,
        "fsGroup": NOBODY,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _confined(*capabilities: str) -> Raw:
    """No right but these, no way to more of them, and nothing of the image can be changed."""
    kept: Raw = {"add": list(capabilities)} if capabilities else {}
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], **kept},
    }


def _copy(part: Any) -> Any:
    return json.loads(json.dumps(part))
