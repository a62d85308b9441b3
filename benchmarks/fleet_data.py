"""A child process that fills a data directory: `python -m benchmarks.fleet_data DATA COUNT`.

It creates COUNT Machines of 3.6 kB, and as many finished operations of 2.5 kB, with the checks of a client's requests.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from unbounded.api.crd import custom_resource_definitions
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import API_VERSION, LABEL_SITE, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded_apiserver import patches
from unbounded_apiserver.api_resources import Resource
from unbounded_apiserver.decoding import RequestDocument
from unbounded_apiserver.definitions import DEFINITIONS
from unbounded_apiserver.options import WriteOptions
from unbounded_apiserver.registry import ApiRegistry
from unbounded_apiserver.writes import WriteTarget

MACHINE_BYTES: Final = 3600
OPERATION_BYTES: Final = 2500
SERVER_BYTES: Final = 110  # fields of the server: uid, resourceVersion, creationTimestamp, generation
AT_ONCE: Final = 200
AT: Final = "2026-01-01T12:00:00Z"
SITES: Final = 20
TEXT: Final = "The controller observed the host, and this message has the usual length of such messages. "

Object = dict[str, Any]


def machine(number: int) -> Object:
    """Return a Machine with former operations and no open work."""
    name = f"machine-{number}"
    redfish: Object = {
        "url": f"https://10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
        "username": "admin",
        "passwordRef": {"name": f"{name}-bmc", "namespace": NAMESPACE, "key": "password"},
    }
    labels = {LABEL_SITE: f"site-{number % SITES}", "example.com/rack": f"rack-{number // 40}"}
    kinds = ("HostReboot", "HostPowerOff", "HostPowerOn")
    status = {
        "phase": "Ready",
        "message": "The Machine needs no Node",
        "redfish": {"certFingerprint": ":".join(f"{(number * 7 + byte) % 256:02X}" for byte in range(32))},
        "recentOperations": [_recent(f"{name}-{kind.lower()}", kind, redfish["url"]) for kind in kinds],
        "conditions": [
            _condition(kind) for kind in ("RedfishReachable", "PoweredOff", "CertificatePinned", "InventoryRead")
        ],
    }
    return _object(
        "Machine", name, {"pxe": {"image": "registry.example.com/host:v1", "redfish": redfish}}, status, labels
    )


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


async def fill(data: Path, count: int) -> None:
    """Create the objects in a data directory that no process has open."""
    registry = ApiRegistry()
    await registry.open(data)
    try:
        for definition in custom_resource_definitions():
            await registry.writes.create(DEFINITIONS, "", _document(definition), WriteOptions())
        machines, operations = await _served(registry, MACHINES), await _served(registry, MACHINE_OPERATIONS)
        waiting = ((resource, make(number)) for number in range(count) for resource, make in (
            (machines, machine), (operations, operation)
        ))  # fmt: skip
        await asyncio.gather(*(_store(registry, waiting) for _ in range(AT_ONCE)))
    finally:
        await registry.close()


async def _served(registry: ApiRegistry, kind: Kind[Any]) -> Resource:
    async with asyncio.timeout(20):
        while True:
            resource = (registry.catalog.version(kind.group, kind.version) or {}).get(kind.plural)
            if resource is not None:
                return resource
            await asyncio.sleep(0.01)


async def _store(registry: ApiRegistry, waiting: Iterator[tuple[Resource, Object]]) -> None:
    for resource, body in waiting:
        name, status = body["metadata"]["name"], msgspec.json.encode({"status": body["status"]})
        await registry.writes.create(resource, "", _document(body), WriteOptions())
        target = WriteTarget(resource, "", name, "status")
        await registry.writes.patch(target, patches.MERGE, status, WriteOptions())


def _document(body: Object) -> RequestDocument:
    return RequestDocument.read(msgspec.json.encode(body), body["kind"])


if __name__ == "__main__":
    asyncio.run(fill(Path(sys.argv[1]), int(sys.argv[2])))
