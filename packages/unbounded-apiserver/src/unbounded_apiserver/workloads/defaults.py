"""Kubernetes' defaults of Pods and Services, filled in in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

Object = dict[str, Any]

FILE_MODE: Final = 0o644
TOKEN_S: Final = 3600
AFFINITY_S: Final = 10800
GRACE_S: Final = 30
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_PROBE: Final = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_POD: Final = {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
_FILES: Final = ("secret", "configMap", "downwardAPI", "projected")
_ISCSI: Final = {"iscsiInterface": "default"}
_RBD: Final = {"pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"}
_AZURE_DISK: Final = {"cachingMode": "ReadWrite", "kind": "Shared", "fsType": "ext4", "readOnly": False}
_SCALE_IO: Final = {"storageMode": "ThinProvisioned", "fsType": "xfs"}
_OF_SOURCES: Final[dict[str, Object]] = {"iscsi": _ISCSI, "rbd": _RBD, "azureDisk": _AZURE_DISK, "scaleIO": _SCALE_IO}


def default_pod(pod: Object) -> None:
    spec = pod["spec"]
    _fill(spec, _POD)
    spec.setdefault("terminationGracePeriodSeconds", GRACE_S)
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("securityContext", {})
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for volume in spec.get("volumes", ()):
        _default_volume(volume)
    for container in containers(spec):
        _default_container(container)
        if spec.get("hostNetwork"):
            for port in container.get("ports", ()):
                port["hostPort"] = port.get("hostPort") or port["containerPort"]
    for constraint in spec.get("topologySpreadConstraints", ()):
        constraint.setdefault("nodeAffinityPolicy", "Honor")
        constraint.setdefault("nodeTaintsPolicy", "Ignore")
    for amount in (container["resources"] for container in containers(spec)):
        _default_requests(amount)


def containers(spec: Object) -> Iterator[Object]:
    """Yield the containers of a pod of all three kinds."""
    for sort in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(sort) or ()


def _default_container(container: Object) -> None:
    tagged = container.get("image", "").rpartition("/")[2]
    latest = "@" not in tagged and (":" not in tagged or tagged.endswith(":latest"))
    policy = "Always" if latest else "IfNotPresent"
    _fill(container, {"imagePullPolicy": policy, "terminationMessagePath": "/dev/termination-log"})
    _fill(container, {"terminationMessagePolicy": "File"})
    for port in container.get("ports", ()):
        _fill(port, {"protocol": "TCP"})
    for probe in (container[name] for name in _PROBES if name in container):
        _fill(probe, _PROBE)
        _default_handler(probe)
    for handler in container.get("lifecycle", {}).values():
        if isinstance(handler, dict):
            _default_handler(handler)
    for variable in container.get("env", ()):
        _default_reference(variable.get("valueFrom", {}))
    if container.get("securityContext") is not None and container["securityContext"].get("procMount") == "":
        container["securityContext"]["procMount"] = "Default"


def _default_handler(handler: Object) -> None:
    if (http_get := handler.get("httpGet")) is not None:
        _fill(http_get, {"path": "/", "scheme": "HTTP"})


def _default_reference(source: Object) -> None:
    if (reference := source.get("fieldRef")) is not None:
        _fill(reference, {"apiVersion": "v1"})


def _default_requests(resources: Object) -> None:
    limits = resources.get("limits")
    if limits:
        resources["requests"] = limits | resources.get("requests", {})


def _default_volume(volume: Object) -> None:
    if volume.keys() <= {"name"}:
        volume["emptyDir"] = {}
    for source in _FILES:
        if source in volume:
            volume[source].setdefault("defaultMode", FILE_MODE)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    for source, values in _OF_SOURCES.items():
        if source in volume:
            _fill(volume[source], values)
    _default_files(volume.get("downwardAPI", {}).get("items", ()))
    for projection in volume.get("projected", {}).get("sources") or ():
        _default_files(projection.get("downwardAPI", {}).get("items", ()))
        if "serviceAccountToken" in projection:
            projection["serviceAccountToken"].setdefault("expirationSeconds", TOKEN_S)
    if "ephemeral" in volume:
        template = volume["ephemeral"].get("volumeClaimTemplate")
        if template is not None:
            template["spec"].setdefault("volumeMode", "Filesystem")


def _default_files(items: Iterable[Object]) -> None:
    for item in items:
        _default_reference(item)


def default_service(service: Object) -> None:
    spec = service["spec"]
    _fill(spec, {"sessionAffinity": "None", "type": "ClusterIP"})
    if spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    elif spec["sessionAffinity"] == "ClientIP":
        client = spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {})
        client["timeoutSeconds"] = client.get("timeoutSeconds") or AFFINITY_S
    for port in spec.get("ports", ()):
        _fill(port, {"protocol": "TCP"})
        if port["targetPort"] in {0, ""}:
            port["targetPort"] = port["port"]
    outward = spec["type"] in {"NodePort", "LoadBalancer"}
    if outward:
        _fill(spec, {"externalTrafficPolicy": "Cluster"})
    if outward or spec["type"] == "ClusterIP":
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if spec["type"] == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    if spec.get("clusterIP") and not spec.get("clusterIPs"):
        spec["clusterIPs"] = [spec["clusterIP"]]
    elif spec.get("clusterIPs") and not spec.get("clusterIP"):
        spec["clusterIP"] = spec["clusterIPs"][0]


def _fill(target: Object, values: Object) -> None:
    """Set fields that are missing or empty."""
    for key, value in values.items():
        if target.get(key) in {None, "", 0} and target.get(key) is not False:
            target[key] = value
