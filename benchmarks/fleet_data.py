"""A child process that fills a data directory: `python -m benchmarks.fleet_data DATA COUNT [--joined] [OPERATIONS]`.

It creates COUNT Machines of 3.6 kB, and as many finished operations of 2.5 kB (or OPERATIONS), with the checks of a
client's requests. With `--joined` each Machine has a Node as well, created from a MachineConfiguration whose rolling
update is paused.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS, MACHINE_CONFIGURATIONS
from unbounded.api.crd import custom_resource_definitions
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import (
    ANNOTATION_NODE_APPLIED,
    API_VERSION,
    LABEL_CONFIGURATION,
    LABEL_CONFIGURATION_VERSION,
    LABEL_MACHINE,
    LABEL_SITE,
    NAMESPACE,
)
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded_apiserver import patches
from unbounded_apiserver.builtin_resources import NAMESPACES, NODES, SECRETS
from unbounded_apiserver.crd_types import DEFINITIONS
from unbounded_apiserver.decoding import RequestDocument
from unbounded_apiserver.options import WriteOptions
from unbounded_apiserver.resource_model import Resource
from unbounded_apiserver.server_core import ServerCore
from unbounded_apiserver.writes import WriteTarget

MACHINE_BYTES: Final = 3600
OPERATION_BYTES: Final = 2500
SERVER_BYTES: Final = 110  # fields of the server: uid, resourceVersion, creationTimestamp, generation
AT_ONCE: Final = 200
AT: Final = "2026-01-01T12:00:00Z"
SITES: Final = 20
JOINED_SITES: Final = 10  # of a joined fleet: an operation with a selector reaches up to 1,000 Machines of one site
RACK: Final = "example.com/rack"
RACK_MACHINES: Final = 40
CONFIGURATION: Final = "workers"  # of a joined fleet, whose Nodes have its first version
VERSIONS: Final = ("v1.33.0", "v1.34.0")  # of Kubernetes in its versions
TEXT: Final = "The controller observed the host, and this message has the usual length of such messages. "

Object = dict[str, Any]


def machine(number: int, *, joined: bool = False) -> Object:
    """Return a Machine with former operations and no open work.

    Args:
        joined: it has a Node, from the first version of CONFIGURATION.
    """
    name = f"machine-{number}"
    redfish: Object = {
        "url": f"https://10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
        "username": "admin",
        "passwordRef": {"name": f"{name}-bmc", "namespace": NAMESPACE, "key": "password"},
    }
    site = f"site-{number % (JOINED_SITES if joined else SITES)}"
    labels = {LABEL_SITE: site, RACK: f"rack-{number // RACK_MACHINES}"}
    kinds = ("HostReboot", "HostPowerOff", "HostPowerOn")
    status: Object = {
        "phase": "Ready",
        "message": "The Machine needs no Node",
        "redfish": {"certFingerprint": ":".join(f"{(number * 7 + byte) % 256:02X}" for byte in range(32))},
        "recentOperations": [_recent(f"{name}-{kind.lower()}", kind, redfish["url"]) for kind in kinds],
        "conditions": [
            _condition(kind) for kind in ("RedfishReachable", "PoweredOff", "CertificatePinned", "InventoryRead")
        ],
    }
    spec: Object = {"pxe": {"image": "registry.example.com/host:v1", "redfish": redfish}}
    if joined:
        spec |= {"kubernetes": {"nodeRef": {"name": name}}, "configurationRef": {"name": CONFIGURATION}}
        current = f"MachineConfiguration {CONFIGURATION}: its node uses its newest version, now {len(VERSIONS)}"
        resolved = {"type": "ConfigurationPending", "status": "False", "reason": "Resolved", "message": current}
        status["message"] = f"Node {name} joined"
        status["conditions"] += [{**resolved, "lastTransitionTime": AT}]
        status["configuration"] = {"name": CONFIGURATION, "version": 1, "versionName": f"{CONFIGURATION}-v1"}
    return _object("Machine", name, spec, status, labels)


def node(number: int) -> Object:
    """Return the Node of that Machine in a joined fleet."""
    name = f"machine-{number}"
    labels = {LABEL_MACHINE: name, LABEL_SITE: f"site-{number % JOINED_SITES}"}
    applied = msgspec.json.encode({"labels": labels, "taints": []}).decode()
    times = {"lastTransitionTime": AT, "lastHeartbeatTime": AT}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is ready", **times}
    status = {"conditions": [ready], "addresses": [{"type": "Hostname", "address": name}]}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {ANNOTATION_NODE_APPLIED: applied}},
        "spec": {},
        "status": status,
    }


def secret(number: int) -> Object:
    """Return the password of that Machine's BMC."""
    metadata = {"name": f"machine-{number}-bmc", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"password": "cGFzc3dvcmQ="}}


def configuration() -> Object:
    """Return the MachineConfiguration of a joined fleet."""
    stages = [{"name": "canary", "size": 1, "soakSeconds": 60}, {"name": "rest", "size": "100%"}]
    strategy = {
        "type": "RollingUpdate",
        "maxUnavailable": 50,
        "rollingUpdate": {"stages": stages, "paused": True},
    }
    spec = {"template": {"kubernetes": {"version": VERSIONS[-1]}}, "updateStrategy": strategy}
    return {
        "apiVersion": API_VERSION,
        "kind": "MachineConfiguration",
        "metadata": {"name": CONFIGURATION},
        "spec": spec,
    }


def version(number: int) -> Object:
    """Return a version of that MachineConfiguration."""
    labels = {LABEL_CONFIGURATION: CONFIGURATION, LABEL_CONFIGURATION_VERSION: str(number)}
    return {
        "apiVersion": API_VERSION,
        "kind": "MachineConfigurationVersion",
        "metadata": {"name": f"{CONFIGURATION}-v{number}", "labels": labels},
        "spec": {"version": number, "template": {"kubernetes": {"version": VERSIONS[number - 1]}}},
    }


def namespace() -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def operation(number: int) -> Object:
    """Return a complete operation of that Machine."""
    machine_name = f"machine-{number}"
    where = f"https://10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255} Systems/1"
    evidence = [{"what": f"the host was {power}", "at": AT, "where": where} for power in ("Off", "On")]
    status = {
        "phase": "Complete",
        "message": f"{where} reports PowerState On",
        "startedAt": AT,
        "completedAt": AT,
        "evidence": evidence,
        "targets": [{"machineRef": machine_name, "phase": "Complete", "stage": "Complete", "message": TEXT}],
        "conditions": [_condition(kind) for kind in ("Claimed", "Finished")],
    }
    spec = {"operationKind": "HostReboot", "machineRef": machine_name, "parameters": {"force": "true"}}
    labels = {LABEL_SITE: f"site-{number % SITES}"}
    return _object("MachineOperation", f"reboot-{number}", spec, status, labels)


def _recent(name: str, kind: str, url: str) -> Object:
    evidence = {"what": "the host was On", "at": AT, "where": f"{url} Systems/1"}
    return {
        "name": name,
        "uid": "6a1c9e34-0000-4000-8000-000000000000",
        "kind": kind,
        "phase": "Complete",
        "message": f"{url} Systems/1 reports PowerState On",
        "startedAt": AT,
        "completedAt": AT,
        "evidence": [evidence, {**evidence, "what": "the host was On again, 5 s later"}],
    }


def _condition(kind: str) -> Object:
    status = "False" if kind == "PoweredOff" else "True"
    return {"type": kind, "status": status, "reason": "Observed", "message": TEXT, "lastTransitionTime": AT}


def _object(kind: str, name: str, spec: Object, status: Object, labels: Mapping[str, str]) -> Object:
    meta: Object = {"name": name, "labels": dict(labels), "annotations": {"example.com/notes": ""}}
    body = {"apiVersion": API_VERSION, "kind": kind, "metadata": meta, "spec": spec, "status": status}
    size = MACHINE_BYTES if kind == "Machine" else OPERATION_BYTES
    missing = size - SERVER_BYTES - len(msgspec.json.encode(body))
    meta["annotations"]["example.com/notes"] = (TEXT * 40)[: max(missing, 0)]
    return body


async def fill(data: Path, count: int, *, joined: bool = False, operations: int | None = None) -> None:
    """Create the objects in a data directory that no process has open.

    Args:
        joined: also create the Nodes and their MachineConfiguration.
        operations: number of operations; as many as Machines if None.
    """
    core = ServerCore()
    await core.open(data)
    try:
        for definition in custom_resource_definitions():
            await core.writes.create(DEFINITIONS, "", _document(definition), WriteOptions())
        machines, ended = await _served(core, MACHINES), await _served(core, MACHINE_OPERATIONS)
        if joined:
            configurations = await _served(core, MACHINE_CONFIGURATIONS)
            versions = await _served(core, MACHINE_CONFIGURATION_VERSIONS)
            await _store(core, iter([(NAMESPACES, namespace()), (configurations, configuration())]))
            await _store(core, ((versions, version(number)) for number in range(1, len(VERSIONS) + 1)))
        kinds: list[tuple[Resource, Callable[[int], Object]]] = [
            (machines, partial(machine, joined=joined)),
            (ended, operation),
        ]
        kinds += [(NODES, node), (SECRETS, secret)] if joined else []
        waiting = (
            (resource, make(number))
            for number in range(count)
            for resource, make in kinds
            if resource is not ended or operations is None or number < operations
        )
        await asyncio.gather(*(_store(core, waiting) for _ in range(AT_ONCE)))
    finally:
        await core.close()


async def _served(core: ServerCore, kind: Kind[Any]) -> Resource:
    async with asyncio.timeout(20):
        while True:
            resource = (core.catalog.version(kind.group, kind.version) or {}).get(kind.plural)
            if resource is not None:
                return resource
            await asyncio.sleep(0.01)


async def _store(core: ServerCore, waiting: Iterator[tuple[Resource, Object]]) -> None:
    for resource, body in waiting:
        meta = body["metadata"]
        await core.writes.create(resource, meta.get("namespace", ""), _document(body), WriteOptions())
        if status := body.get("status"):
            target = WriteTarget(resource, "", meta["name"], "status")
            await core.writes.patch(target, patches.MERGE, msgspec.json.encode({"status": status}), WriteOptions())


def _document(body: Object) -> RequestDocument:
    return RequestDocument.read(msgspec.json.encode(body), body["kind"])


if __name__ == "__main__":
    numbers = [int(one) for one in sys.argv[2:] if one.isdigit()]
    asyncio.run(fill(Path(sys.argv[1]), numbers[0], joined="--joined" in sys.argv, operations=(*numbers, None)[1]))
