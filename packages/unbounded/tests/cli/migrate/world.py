"""A control plane with all that a migration has to carry, and a cluster that it goes to."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS, MACHINE_CONFIGURATIONS
from unbounded.api.core import CONFIG_MAPS, NODES, SECRETS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.names import (
    ANNOTATION_MACHINE_UID,
    LABEL_CONFIGURATION,
    LABEL_CONFIGURATION_VERSION,
    LABEL_PARENT,
    LABEL_SITE,
    NAMESPACE,
)
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.manifests import CRDS, KINDS, install_definitions, install_manifests
from unbounded.cli.migrate.migration_record import MarkerFile
from unbounded.cli.migrate.sides import MigrationSource, MigrationTarget
from unbounded.cli.servers import api_server
from unbounded.join.bootstrap_tokens import machine_group
from unbounded.kube.api import Api
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded_apiserver.controllers.nodes import NodeTimes

Raw = dict[str, Any]

AT: Final = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")  # a TTL takes away what ended long ago
WIDGETS: Final[Kind[Raw]] = Kind("example.com", "v1", "Widget", "widgets", dict, namespaced=True)
SITE: Final = "dc1"
SILENT_S: Final = 3600  # no kubelet is behind these Nodes


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def owner(kind: Kind[Any], there: Any) -> Raw:
    named = {"name": there.metadata.name, "uid": there.metadata.uid}
    return {"apiVersion": kind.api_version, "kind": kind.kind, **named}


@asynccontextmanager
async def served(data: Path) -> AsyncIterator[HttpApi]:
    """An embedded API server of its own, with the definitions, as its administrator."""
    server = api_server(data, node_times=NodeTimes(grace_s=SILENT_S))
    await server.start()
    try:
        async with HttpApi(from_kubeconfig(server.kubeconfig_path)) as api:
            yield api
    finally:
        await server.stop()


@dataclass(frozen=True)
class World:
    source: MigrationSource
    target: MigrationTarget


@asynccontextmanager
async def world(folder: Path, *, machines: int = 3) -> AsyncIterator[World]:
    """A source with machines, and an empty target."""
    async with served(folder / "source") as here, served(folder / "target") as there:
        await fill(here, machines)
        yield World(MigrationSource(here, MarkerFile(folder / "source"), "test"), MigrationTarget(there))


async def fill(api: Api, count: int) -> None:
    """Make what a control plane has after some time of use."""
    await install_definitions(api)
    await install_manifests(api)
    await _foreign(api)
    configuration = await api.create(
        MACHINE_CONFIGURATIONS,
        {"metadata": {"name": "workers"}, "spec": {"template": {"kubernetes": {"version": "v1.34.0"}}}},
    )
    version = await api.create(
        MACHINE_CONFIGURATION_VERSIONS,
        {
            "metadata": {
                "name": "workers-v1",
                "labels": {LABEL_CONFIGURATION: "workers", LABEL_CONFIGURATION_VERSION: "1"},
                "ownerReferences": [owner(MACHINE_CONFIGURATIONS, configuration)],
            },
            "spec": {"version": 1, "template": {"kubernetes": {"version": "v1.34.0"}}},
        },
    )
    latest = {"status": {"latestVersion": 1, "currentVersion": 1}}
    await api.patch(MACHINE_CONFIGURATIONS, "workers", latest, subresource="status")
    in_use = {"type": "InUse", "status": "True", "reason": "Bound", "message": "m-000", "lastTransitionTime": AT}
    used = {"status": {"deployed": True, "conditions": [in_use]}}
    await api.patch(MACHINE_CONFIGURATION_VERSIONS, version.metadata.name, used, subresource="status")
    for number in range(count):
        await machine(api, f"m-{number:03}")
    await _selector_operation(api)


async def _foreign(api: Api) -> None:
    """Objects of users that are no Machines."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}
    definition = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    await api.create(CRDS, {"metadata": {"name": "widgets.example.com"}, "spec": definition})
    await api.create(Kind("", "v1", "Namespace", "namespaces", dict), {"metadata": {"name": "team"}})
    rules = [{"apiGroups": ["unbounded-cloud.io"], "resources": ["machines"], "verbs": ["get"]}]
    await api.create(
        KINDS["Role"], {"metadata": {"name": "readers", "namespace": "team"}, "rules": rules}, namespace="team"
    )
    await api.create(
        CONFIG_MAPS, {"metadata": {"name": "notes", "namespace": "team"}, "data": {"a": "1"}}, namespace="team"
    )


async def machine(api: Api, name: str, **spec: Any) -> Machine:
    """A Machine that joined, with a Node, Secrets, and operations that have ended and that wait."""
    password = await api.create(
        SECRETS,
        {"metadata": {"name": f"{name}-bmc", "namespace": NAMESPACE}, "data": {"password": b64("secret")}},
        namespace=NAMESPACE,
    )
    redfish = {
        "url": f"https://{name}.example.com",
        "deviceID": "1",
        "username": "admin",
        "passwordRef": {"name": f"{name}-bmc", "namespace": NAMESPACE, "key": "password"},
    }
    made = await api.create(
        MACHINES,
        {
            "metadata": {"name": name, "labels": {LABEL_SITE: SITE}},
            "spec": {
                "kubernetes": {"version": "v1.34.0"},
                "pxe": {"image": "registry.example.com/image:v1", "redfish": redfish},
                "operations": {"rebootCounter": 2, "repaveCounter": 3},
                **spec,
            },
        },
    )
    replace = await operation(api, f"{name}-replace", name, "HostReplace", made, ended=True)
    await operation(api, f"{name}-waits", name, "HostReboot", made)
    await _token(api, name, made.metadata.uid)
    await _kept(api, name, replace)
    node = {"metadata": {"name": name, "labels": {"unbounded-cloud.io/machine": name}}, "spec": {"unschedulable": True}}
    await api.create(NODES, node)
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastTransitionTime": AT}
    info = {"bootID": "b", "kubeletVersion": "v1.34.0"}
    seen = {"status": {"conditions": [ready | {"lastHeartbeatTime": AT}], "nodeInfo": _node_info(info)}}
    await api.patch(NODES, name, seen, subresource="status")
    return await api.patch(MACHINES, name, {"status": status(made, replace, password)}, subresource="status")


def _node_info(known: Mapping[str, str]) -> Raw:
    empty = ("machineID", "systemUUID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeProxyVersion")
    return dict.fromkeys(empty, "") | {"operatingSystem": "linux", "architecture": "amd64"} | dict(known)


def status(made: Machine, replace: Any, password: Any) -> Raw:
    """Return its status, as its components write it; much of it by UIDs."""
    uid = replace.metadata.uid
    return {
        "phase": "Ready",
        "message": "it runs",
        "redfish": {"certFingerprint": "AA:BB", "refusedSecretVersion": password.metadata.resource_version},
        "operations": {"rebootCounter": 2, "repaveCounter": 3},
        "netboot": {"boot": uid, "milestone": "ImageWritten"},
        "agent": {"version": "v1", "hostBootID": "h", "apiServer": "https://old.example.com:6443"},
        "join": {"used": [{"purpose": "agent", "cause": f"HostReplace/{uid}", "request": "r", "at": AT}]},
        "provisioning": {"attempt": "a", "generation": made.metadata.generation, "startedAt": AT, "endedAt": AT},
        "recentOperations": [
            {"name": replace.metadata.name, "uid": uid, "kind": "HostReplace", "phase": "Complete", "completedAt": AT}
        ],
        "conditions": [
            {
                "type": "Provisioned",
                "status": "True",
                "reason": "Provisioned",
                "message": "",
                "lastTransitionTime": AT,
                "observedGeneration": made.metadata.generation,
            }
        ],
    }


async def operation(api: Api, name: str, of: str, kind: str, made: Machine, *, ended: bool = False) -> Any:
    body = {
        "metadata": {
            "name": name,
            "ownerReferences": [owner(MACHINES, made)],
            "finalizers": ["unbounded-cloud.io/operation"],
        },
        "spec": {"machineRef": of, "operationKind": kind, "ttlSecondsAfterFinished": 86400},
    }
    there = await api.create(MACHINE_OPERATIONS, body)
    if not ended:
        return there
    execution = {"executor": "metalman/dc1", "incarnation": "i", "machineUID": made.metadata.uid, "binding": "b"}
    done = {"phase": "Complete", "reason": "Succeeded", "execution": execution, "completedAt": AT}
    return await api.patch(MACHINE_OPERATIONS, name, {"status": done}, subresource="status")


async def _token(api: Api, name: str, uid: str) -> None:
    number = f"{int(name[2:]):06}"
    groups = f"system:bootstrappers:unbounded-agent-daemons,{machine_group(uid)}"
    data = {"token-id": number, "token-secret": "0123456789abcdef", "auth-extra-groups": groups}
    meta = {
        "name": f"bootstrap-token-{number}",
        "namespace": "kube-system",
        "annotations": {ANNOTATION_MACHINE_UID: uid},
    }
    body = {
        "metadata": meta,
        "type": "bootstrap.kubernetes.io/token",
        "data": {key: b64(value) for key, value in data.items()},
    }
    await api.create(SECRETS, body, namespace="kube-system")


async def _kept(api: Api, name: str, replace: Any) -> None:
    uid = replace.metadata.uid
    data = {"operation": replace.metadata.name, "operationUID": uid, "replacement": f"disk of {uid}"}
    meta = {
        "name": f"{name}-kept",
        "namespace": NAMESPACE,
        "ownerReferences": [owner(MACHINE_OPERATIONS, replace)],
    }
    body = {
        "metadata": meta,
        "type": "unbounded-cloud.io/replacement",
        "data": {key: b64(value) for key, value in data.items()},
    }
    await api.create(SECRETS, body, namespace=NAMESPACE)


async def _selector_operation(api: Api) -> None:
    """One that has ended, with a child that names it by label and owner."""
    spec = {"machineSelector": {"matchLabels": {LABEL_SITE: SITE}}, "operationKind": "HostReboot"}
    parent = await api.create(MACHINE_OPERATIONS, {"metadata": {"name": "all"}, "spec": spec})
    child = {
        "metadata": {
            "name": "all-m-000",
            "labels": {LABEL_PARENT: parent.metadata.uid},
            "ownerReferences": [owner(MACHINE_OPERATIONS, parent)],
        },
        "spec": {"machineRef": "m-000", "operationKind": "HostReboot"},
    }
    await api.create(MACHINE_OPERATIONS, child)
    for name in ("all-m-000", "all"):
        await api.patch(
            MACHINE_OPERATIONS, name, {"status": {"phase": "Complete", "completedAt": AT}}, subresource="status"
        )
