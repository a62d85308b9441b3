"""API objects for tests, made from the few fields that a test is about."""

from __future__ import annotations

from typing import Any

import msgspec

from unbounded.api.core import ConfigMap
from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation

REDFISH = {
    "url": "https://bmc-1",
    "username": "root",
    "passwordRef": {"name": "bmc-1", "namespace": "unbounded-kube", "key": "password"},
}


def operation_of(
    name: str = "op",
    kind: str = "HostReboot",
    machine: str | None = "m1",
    *,
    created: str = "2030-01-01T00:00:00Z",
    metadata: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> MachineOperation:
    """Return an operation, unclaimed without a status; `spec` has the names of the API."""
    meta = {"name": name, "uid": f"uid-{name}", "creationTimestamp": created, **(metadata or {})}
    target = {"machineRef": machine} if machine else {}
    body = {"metadata": meta, "spec": {"operationKind": kind, **target, **spec}, "status": status or {}}
    return msgspec.convert(body, MachineOperation)


def machine_of(
    name: str = "m1",
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> Machine:
    """Return a Machine of site lab with a BMC, unless `spec` differs."""
    meta = {
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "labels": {"unbounded-cloud.io/site": "lab"} if labels is None else labels,
        "annotations": annotations or {},
    }
    spec = spec or {"pxe": {"image": "i", "redfish": REDFISH}}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status or {}}, Machine)


def claim(machine: str = "m1", executor: str = "metalman/lab", stage: str = "Starting") -> dict[str, Any]:
    """The status of an operation that an executor has claimed."""
    return {
        "phase": "InProgress",
        "targets": [{"machineRef": machine, "phase": "InProgress", "stage": stage}],
        "execution": {"executor": executor, "incarnation": "p1", "machineUID": f"uid-{machine}", "binding": "b"},
    }


def ended(phase: str = "Complete") -> dict[str, Any]:
    return {"phase": phase, "completedAt": "2030-01-01T00:10:00Z"}


def slot_of(operation: str, *, executor: str = "metalman/lab", kind: str = "HostReboot", lost: bool = False) -> Any:
    """`Machine.status.activeOperation` held by an operation of that name."""
    return {
        "uid": f"uid-{operation}",
        "name": operation,
        "kind": kind,
        "executor": executor,
        "since": "2030-01-01T00:00:00Z",
        "lost": lost,
    }


def config_map(**annotations: str) -> ConfigMap:
    meta = {"name": "unbounded-operations", "namespace": "unbounded-kube", "annotations": annotations}
    return msgspec.convert({"metadata": meta}, ConfigMap)
