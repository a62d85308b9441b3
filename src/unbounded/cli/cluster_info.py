"""ConfigMap kube-public/cluster-info, as kubeadm publishes it: where the API server is, and whom to trust."""

from __future__ import annotations

from base64 import b64encode
from typing import Final

import yaml

from unbounded.api.core import CONFIG_MAPS
from unbounded.kube.errors import AlreadyExists
from unbounded.kube.port import Api

NAMESPACE: Final = "kube-public"
NAME: Final = "cluster-info"


async def publish_cluster_info(api: Api, url: str, ca: bytes) -> None:
    """Create it, or make it say what is true now; what it says already is not written.

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
    try:
        await api.create(CONFIG_MAPS, body, namespace=NAMESPACE)
    except AlreadyExists:  # an equal one is left as it is by the server
        await api.patch(CONFIG_MAPS, NAME, {"data": data}, namespace=NAMESPACE)
