"""Objects of Container Cloud for tests, each in a project of its own."""

from __future__ import annotations

import itertools
from typing import Any, Final

from unbounded.api.container_cloud.cluster import CLUSTER_RELEASES, CLUSTERS, Cluster
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.container_cloud.names import LABEL_CLUSTER, LABEL_CONTROL_PLANE, LABEL_PROVIDER
from unbounded.api.core import NAMESPACES
from unbounded.kube.api import Api

NUMBERS: Final = itertools.count(1)
DISTRIBUTIONS: Final = (
    {"id": "ubuntu/jammy", "default": True, "image": {"url": "registry.example.com/jammy:1"}},
    {"id": "ubuntu/focal", "image": {"url": "oci://registry.example.com/focal:1"}},
)
NODE_LABELS: Final = (
    {"key": "stacklight", "value": "enabled", "displayName": "StackLight"},
    {"key": "rack", "displayName": "Rack"},
)

Raw = dict[str, Any]


async def project(api: Api) -> str:
    """Create a namespace, and return its name."""
    name = f"project{next(NUMBERS)}"
    await api.create(NAMESPACES, {"metadata": {"name": name}})
    return name


async def release(api: Api, **spec: Any) -> str:
    """Create a ClusterRelease, and return its name."""
    name = f"release{next(NUMBERS)}"
    body: Raw = {
        "version": "17.3.0",
        "kubernetes": {"version": "v1.34.0"},
        "agent": {"image": "registry.example.com/node:1"},
        "allowedDistributions": list(DISTRIBUTIONS),
        "allowedNodeLabels": list(NODE_LABELS),
    }
    await api.create(CLUSTER_RELEASES, {"metadata": {"name": name}, "spec": body | spec})
    return name


async def cluster(api: Api, namespace: str, name: str = "example-cluster", **value: Any) -> Cluster:
    """Create a Cluster."""
    full = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BaremetalClusterProviderSpec", "release": "none"}
    body = {
        "metadata": {"name": name, "labels": {LABEL_PROVIDER: "baremetal"}},
        "spec": {"providerSpec": {"value": full | value}},
    }
    return await api.create(CLUSTERS, body, namespace=namespace)


def machine_body(name: str, cluster_name: str = "example-cluster", *, manager: bool = False, **value: Any) -> Raw:
    """Return a Machine."""
    full = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BareMetalMachineProviderSpec"}
    labels = {LABEL_PROVIDER: "baremetal", LABEL_CLUSTER: cluster_name}
    role = {LABEL_CONTROL_PLANE: "true"} if manager else {}
    return {
        "metadata": {"name": name, "labels": labels | role},
        "spec": {"providerSpec": {"value": full | value}},
    }


async def machine(
    api: Api, namespace: str, name: str, cluster_name: str = "example-cluster", *, manager: bool = False, **value: Any
) -> ContainerCloudMachine:
    """Create a Machine."""
    body = machine_body(name, cluster_name, manager=manager, **value)
    return await api.create(CONTAINER_CLOUD_MACHINES, body, namespace=namespace)
