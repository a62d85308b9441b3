"""References of pods: the Secrets, ConfigMaps and the ServiceAccount that a pod's node has to read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

MIRROR: Final = "kubernetes.io/config.mirror"
CONFIG_MAPS: Final = "configmaps"
PODS: Final = "pods"
SECRETS: Final = "secrets"
SERVICE_ACCOUNTS: Final = "serviceaccounts"

Reference = tuple[str, str]  # a resource, and a name in the namespace of the pod
_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")
# Fields in which a source of variables, or a volume, names an object.
_ENV: Final = ((CONFIG_MAPS, "configMapKeyRef", "name"), (SECRETS, "secretKeyRef", "name"))
_ENV_FROM: Final = ((CONFIG_MAPS, "configMapRef", "name"), (SECRETS, "secretRef", "name"))
_VOLUME: Final = (
    (CONFIG_MAPS, "configMap", "name"),
    (SECRETS, "azureFile", "secretName"),
    (SECRETS, "secret", "secretName"),
)
_PROJECTED: Final = ((CONFIG_MAPS, "configMap", "name"), (SECRETS, "secret", "name"))
_DRIVERS: Final = {
    "csi": "nodePublishSecretRef",
    **dict.fromkeys(("cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos"), "secretRef"),
}


def references(pod: Mapping[str, Any]) -> Iterator[Reference]:
    """Yield the objects that a pod's node may read; some of them more than once."""
    spec = pod.get("spec") or {}
    if account := spec.get("serviceAccountName"):
        yield SERVICE_ACCOUNTS, account
    yield from of_content(spec)


def of_content(spec: Mapping[str, Any]) -> Iterator[Reference]:
    """Yield the Secrets and ConfigMaps of a pod's spec."""
    for pull in _list(spec, "imagePullSecrets"):
        yield from _named(SECRETS, pull, "name")
    for kind in _CONTAINERS:
        for container in _list(spec, kind):
            for variable in _list(container, "env"):
                yield from _of(variable.get("valueFrom"), _ENV)
            for source in _list(container, "envFrom"):
                yield from _of(source, _ENV_FROM)
    for volume in _list(spec, "volumes"):
        yield from _of(volume, _VOLUME)
        for source in _list(volume.get("projected") or {}, "sources"):
            yield from _of(source, _PROJECTED)
        for driver, field in _DRIVERS.items():
            yield from _named(SECRETS, (volume.get(driver) or {}).get(field), "name")


def _list(holder: Mapping[str, Any], name: str) -> Iterable[Mapping[str, Any]]:
    return holder.get(name) or ()


def _of(holder: Mapping[str, Any] | None, places: Iterable[tuple[str, str, str]]) -> Iterator[Reference]:
    for resource, place, field in places:
        yield from _named(resource, (holder or {}).get(place), field)


def _named(resource: str, holder: Mapping[str, Any] | None, field: str) -> Iterator[Reference]:
    if name := (holder or {}).get(field):
        yield resource, name
