"""The objects that the tests of the console work on: Machines, and users with some rights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from unbounded.api.container_cloud.names import LABEL_CLUSTER
from unbounded.api.core import LEASES, NAMESPACES, SERVICE_ACCOUNTS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.names import GROUP, LABEL_SITE, NAMESPACE
from unbounded.api.operation import MachineOperation
from unbounded.kube.api import AlreadyExists, NotFound
from unbounded.kube.client import HttpApi

Raw = dict[str, Any]
T = TypeVar("T")

SITES: Final = 3
FLEET: Final = 120
RBAC: Final = "rbac.authorization.k8s.io"
ROLES: Final[Kind[dict[str, Any]]] = Kind(RBAC, "v1", "ClusterRole", "clusterroles", dict)
BINDINGS: Final[Kind[dict[str, Any]]] = Kind(RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", dict)
ROLE_BINDINGS: Final[Kind[dict[str, Any]]] = Kind(RBAC, "v1", "RoleBinding", "rolebindings", dict, namespaced=True)


async def create_new(api: HttpApi, kind: Kind[T], body: Raw, *, namespace: str = "", status: Raw | None = None) -> T:
    """Create an object with a status, in place of one that an earlier attempt of a test has left."""
    name = body["metadata"]["name"]
    try:
        made = await api.create(kind, body, namespace=namespace)
    except AlreadyExists:
        await api.delete(kind, name, namespace=namespace)
        made = await api.create(kind, body, namespace=namespace)
    if status is None:
        return made
    return await api.patch(kind, name, {"status": status}, namespace=namespace, subresource="status")


@asynccontextmanager
async def created(
    api: HttpApi, kind: Kind[T], body: Raw, *, namespace: str = "", status: Raw | None = None
) -> AsyncIterator[T]:
    """Create an object with a status for the time of the context; a test may delete it before."""
    try:
        yield await create_new(api, kind, body, namespace=namespace, status=status)
    finally:
        with suppress(NotFound):
            await api.delete(kind, body["metadata"]["name"], namespace=namespace)


def bmc_spec(number: int) -> Raw:
    """Return the spec of a Machine with a BMC and an address of its own; `number` has two digits."""
    reference = {"name": "bmc", "namespace": NAMESPACE, "key": "password"}
    redfish = {"url": f"https://bmc-{number}.example.com", "username": "admin", "passwordRef": reference}
    address = {"ipv4": f"10.0.0.{number}", "mac": f"52:54:00:00:00:{number}"}
    lease = {**address, "subnetMask": "255.255.255.0", "gateway": "10.0.0.1"}
    return {"pxe": {"image": "registry.example.com/ubuntu:1", "redfish": redfish, "dhcpLeases": [lease]}}


def lock_of(operation: MachineOperation, executor: str, now: str) -> Raw:
    """Return `activeOperation` of a Machine on which an operation is at work."""
    kind = operation.spec.operation_kind
    return {"uid": operation.metadata.uid, "name": operation.name, "kind": kind, "executor": executor, "since": now}


def execution_on(machine: Machine, executor: str, now: str) -> Raw:
    """Return `execution` of an operation that shuts a Machine down."""
    call = {"action": "GracefulShutdown", "recordedAt": now}
    return {"executor": executor, "incarnation": "p1", "machineUID": machine.metadata.uid, "binding": "b", **call}


def host_body(name: str, **spec: Any) -> Raw:
    """Return a BareMetalHost."""
    address = {"bmc": {"address": "redfish://192.0.2.1/redfish/v1/Systems/1"}, "bootMACAddress": "52:54:00:00:00:09"}
    return {"metadata": {"name": name}, "spec": {**address, **spec}}


def cluster_body(name: str) -> Raw:
    """Return a Cluster of Container Cloud."""
    labels = {"kaas.mirantis.com/provider": "baremetal", "kaas.mirantis.com/region": "region-one"}
    kind = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BaremetalClusterProviderSpec"}
    value = {**kind, "release": "release-1", "maxWorkerUpgradeCount": 1}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"providerSpec": {"value": value}}}


def pool_body(name: str, cluster: str) -> Raw:
    """Return a MachinePool of a Cluster."""
    value = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BareMetalMachineProviderSpec"}
    labels = {LABEL_CLUSTER: cluster}
    spec = {"replicas": 2, "machineSpec": {"providerSpec": {"value": value}}}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


async def create_machine(api: HttpApi, name: str, site: str, **labels: str) -> None:
    await create_new(api, MACHINES, machine_body(name, site, **labels))


def machine_body(name: str, site: str, **labels: str) -> Raw:
    return {"metadata": {"name": name, "labels": {LABEL_SITE: site, **labels}}}


async def set_status(api: HttpApi, name: str, **status: Any) -> None:
    await api.patch(MACHINES, name, {"status": status}, subresource="status")


@asynccontextmanager
async def temporary_status(api: HttpApi, *names: str, **status: Any) -> AsyncIterator[None]:
    """Set fields in the status of Machines for the time of the context; they have their former values afterwards."""
    machines = [await api.get(MACHINES.raw(), name) for name in names]
    try:
        for name in names:
            await set_status(api, name, **status)
        yield
    finally:
        for name, machine in zip(names, machines, strict=True):
            former = machine.get("status", {})
            await set_status(api, name, **{field: former.get(field) for field in status})


async def create_reader(api: HttpApi, name: str, *resources: str) -> str:
    """Create a user who may read some kinds; returns a token."""
    await create_new(api, SERVICE_ACCOUNTS, {"metadata": {"name": name}}, namespace="default")
    rules = [{"apiGroups": [GROUP], "resources": list(resources), "verbs": ["get", "list", "watch"]}]
    await create_new(api, ROLES, {"metadata": {"name": name}, "rules": rules if resources else []})
    await bind(api, name)
    return (await api.token(name, namespace="default")).token


async def create_project_viewer(api: HttpApi, name: str, namespace: str) -> str:
    """Create a user who may view the objects of Container Cloud in one namespace alone; returns a token."""
    await create_new(api, SERVICE_ACCOUNTS, {"metadata": {"name": name}}, namespace="default")
    await bind(api, name, namespace=namespace, role="container-cloud-view")
    return (await api.token(name, namespace="default")).token


async def bind(api: HttpApi, name: str, *, namespace: str = "", role: str = "") -> None:
    """Give a user the rights of a role, that of the same name unless another is given, in one namespace or in all."""
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    ref = {"apiGroup": RBAC, "kind": "ClusterRole", "name": role or name}
    body = {"metadata": {"name": name}, "roleRef": ref, "subjects": [subject]}
    await create_new(api, ROLE_BINDINGS if namespace else BINDINGS, body, namespace=namespace)


async def create_lease_reader(api: HttpApi, name: str) -> str:
    """Create a user who may read the Leases of the controllers' namespace alone; returns a token."""
    await create_new(api, SERVICE_ACCOUNTS, {"metadata": {"name": name}}, namespace="default")
    rules = [{"apiGroups": [LEASES.group], "resources": [LEASES.plural], "verbs": ["get", "list", "watch"]}]
    await create_new(api, ROLES, {"metadata": {"name": name}, "rules": rules})
    await bind(api, name, namespace=NAMESPACE)
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
