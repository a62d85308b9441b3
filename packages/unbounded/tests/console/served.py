"""The objects that the tests of the console work on: Machines, and users with some rights."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import yaml

from unbounded.api.container_cloud.host import BARE_METAL_HOSTS
from unbounded.api.core import LEASES, NAMESPACES, SERVICE_ACCOUNTS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import GROUP, LABEL_SITE, NAMESPACE
from unbounded.cli.manifests import install_container_cloud
from unbounded.kube.api import AlreadyExists
from unbounded.kube.client import HttpApi

SITES: Final = 3
FLEET: Final = 120
RBAC: Final = "rbac.authorization.k8s.io"
ROLES: Final[Kind[dict[str, Any]]] = Kind(RBAC, "v1", "ClusterRole", "clusterroles", dict)
BINDINGS: Final[Kind[dict[str, Any]]] = Kind(RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", dict)
ROLE_BINDINGS: Final[Kind[dict[str, Any]]] = Kind(RBAC, "v1", "RoleBinding", "rolebindings", dict, namespaced=True)


async def create_machine(api: HttpApi, name: str, site: str, **labels: str) -> None:
    await api.create(MACHINES, {"metadata": {"name": name, "labels": {LABEL_SITE: site, **labels}}})


async def set_status(api: HttpApi, name: str, **status: Any) -> None:
    await api.patch(MACHINES, name, {"status": status}, subresource="status")


async def create_host(api: HttpApi, name: str, error: str) -> None:
    """Create a BareMetalHost with an error, in a namespace of its own."""
    await install_container_cloud(api)
    await api.create(NAMESPACES, {"metadata": {"name": name}})
    spec = {"bmc": {"address": "redfish://192.0.2.1/redfish/v1/Systems/1"}, "bootMACAddress": "52:54:00:00:00:09"}
    await api.create(BARE_METAL_HOSTS, {"metadata": {"name": name}, "spec": spec}, namespace=name)
    status = {"operationalStatus": "error", "errorMessage": error}
    await api.patch(BARE_METAL_HOSTS, name, {"status": status}, namespace=name, subresource="status")


async def create_reader(api: HttpApi, name: str, *resources: str) -> str:
    """Create a user who may read some kinds; returns a token."""
    await api.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}}, namespace="default")
    rules = [{"apiGroups": [GROUP], "resources": list(resources), "verbs": ["get", "list", "watch"]}]
    await api.create(ROLES, {"metadata": {"name": name}, "rules": rules if resources else []})
    await bind(api, name)
    return (await api.token(name, namespace="default")).token


async def bind(api: HttpApi, name: str) -> None:
    """Give a user the rights of the role of the same name."""
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    ref = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
    await api.create(BINDINGS, {"metadata": {"name": name}, "roleRef": ref, "subjects": [subject]})


async def create_lease_reader(api: HttpApi, name: str) -> str:
    """Create a user who may read the Leases of the controllers' namespace alone; returns a token."""
    await api.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}}, namespace="default")
    rules = [{"apiGroups": [LEASES.group], "resources": [LEASES.plural], "verbs": ["get", "list", "watch"]}]
    await api.create(ROLES, {"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    ref = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
    body = {"metadata": {"name": name}, "roleRef": ref, "subjects": [subject]}
    await api.create(ROLE_BINDINGS, body, namespace=NAMESPACE)
    return (await api.token(name, namespace="default")).token


async def create_namespace(api: HttpApi, name: str) -> None:
    """Create a namespace, unless another test has."""
    with suppress(AlreadyExists):
        await api.create(NAMESPACES, {"metadata": {"name": name}})


async def unbind(api: HttpApi, name: str) -> None:
    await api.delete(BINDINGS, name)


def kubeconfig_of(admin: Path, token: str, file: Path) -> Path:
    """Write a kubeconfig of the same server with a token."""
    body = yaml.safe_load(admin.read_text())
    body["users"] = [{"name": one["name"], "user": {"token": token}} for one in body["users"]]
    file.write_text(yaml.safe_dump(body))
    return file


def kubeconfig_at(admin: Path, url: str, file: Path) -> Path:
    """Write a kubeconfig that reaches the same server by another URL."""
    body = yaml.safe_load(admin.read_text())
    for one in body["clusters"]:
        one["cluster"]["server"] = url
    file.write_text(yaml.safe_dump(body))
    return file
