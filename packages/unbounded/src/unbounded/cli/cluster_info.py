"""ConfigMap kube-public/cluster-info, as kubeadm publishes it: the URL of the API server and its CA."""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from typing import Any, Final

import yaml

from unbounded.api.core import CONFIG_MAPS
from unbounded.api.meta import Kind
from unbounded.kube.cluster_info import NAME, NAMESPACE
from unbounded.kube.errors import AlreadyExists
from unbounded.kube.port import Api

RBAC: Final = "rbac.authorization.k8s.io"
ROLES: Final[Kind[dict[str, Any]]] = Kind(RBAC, "v1", "Role", "roles", dict, namespaced=True)
ROLE_BINDINGS: Final[Kind[dict[str, Any]]] = Kind(RBAC, "v1", "RoleBinding", "rolebindings", dict, namespaced=True)
READERS: Final = "kubeadm:bootstrap-signer-clusterinfo"  # the name that kubeadm uses


async def publish_cluster_info(api: Api, url: str, ca: bytes) -> None:
    """Create or update the ConfigMap and let everybody read it; writes nothing that is up to date.

    Joining hosts read it before they present a token. The server adds the signatures.

    Args:
        url: the API server's URL for other machines.
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
        with suppress(AlreadyExists):  # from its creation on, the administrator owns it
            await api.create(kind, obj, namespace=NAMESPACE)
    try:
        await api.create(CONFIG_MAPS, body, namespace=NAMESPACE)
    except AlreadyExists:  # the server does not write an equal one
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
