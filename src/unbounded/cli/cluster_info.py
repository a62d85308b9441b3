"""ConfigMap kube-public/cluster-info, as kubeadm publishes it: where the API server is, and whom to trust."""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from typing import Any, Final

import yaml

from unbounded.api.core import CONFIG_MAPS
from unbounded.api.kinds import Kind
from unbounded.kube.cluster_info import NAME, NAMESPACE
from unbounded.kube.errors import AlreadyExists
from unbounded.kube.port import Api

RBAC: Final = "rbac.authorization.k8s.io"
ROLES: Final[Kind[dict[str, Any]]] = Kind(RBAC, "v1", "Role", "roles", dict, namespaced=True)
ROLE_BINDINGS: Final[Kind[dict[str, Any]]] = Kind(RBAC, "v1", "RoleBinding", "rolebindings", dict, namespaced=True)
READERS: Final = "kubeadm:bootstrap-signer-clusterinfo"  # as kubeadm calls it


async def publish_cluster_info(api: Api, url: str, ca: bytes) -> None:
    """Create it, or make it say what is true now, and let everybody read it; what is so already is not written.

    Hosts that are to join read it before they show a token; the signatures in it are the server's.

    Args:
        url: how other machines reach the API server.
        ca: PEM.
    """
    cluster = {"certificate-authority-data": b64encode(ca).decode(), "server": url}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"cluster": cluster, "name": ""}],
        "contexts": [],
        "current-context": "",
        "preferences": {},
        "users": [],
    }
    data = {"kubeconfig": yaml.dump(kubeconfig, Dumper=yaml.CSafeDumper)}
    body = {"metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data}
    for kind, obj in ((ROLES, _role()), (ROLE_BINDINGS, _binding())):
        with suppress(AlreadyExists):  # it is the administrator's from then on
            await api.create(kind, obj, namespace=NAMESPACE)
    try:
        await api.create(CONFIG_MAPS, body, namespace=NAMESPACE)
    except AlreadyExists:  # an equal one is left as it is by the server
        await api.patch(CONFIG_MAPS, NAME, {"data": data}, namespace=NAMESPACE)


def _role() -> dict[str, Any]:
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [NAME], "verbs": ["get"]}
    return {"metadata": {"name": READERS, "namespace": NAMESPACE}, "rules": [rule]}


def _binding() -> dict[str, Any]:
    return {
        "metadata": {"name": READERS, "namespace": NAMESPACE},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": READERS},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "system:anonymous"}],
    }
