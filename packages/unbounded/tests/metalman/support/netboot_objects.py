"""Machines and HostReplace operations as network boot sees them, made of plain data."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation

IMAGE: Final = "registry.example/host:v1"
ADDRESS: Final = "10.0.0.50"
MAC: Final = "52:54:00:00:00:01"
REDFISH: Final = {
    "url": "https://bmc.example",
    "username": "admin",
    "passwordRef": {"name": "bmc", "namespace": "unbounded-kube", "key": "password"},
}


def lease(address: str = ADDRESS, mac: str = MAC, mask: str = "255.255.255.0") -> dict[str, Any]:
    return {"ipv4": address, "mac": mac, "subnetMask": mask, "gateway": "10.0.0.1", "dns": []}


def machine_body(name: str = "m1", *, leases: list[dict[str, Any]] | None = None, **fields: Any) -> dict[str, Any]:
    """A manifest with spec.pxe; `pxe` and `spec` hold further fields."""
    pxe = {"image": IMAGE, "dhcpLeases": [lease()] if leases is None else leases, **fields.pop("pxe", {})}
    return {"metadata": {"name": name}, "spec": {"pxe": pxe, **fields.pop("spec", {})}, **fields}


def machine(name: str = "m1", *, status: dict[str, Any] | None = None, **fields: Any) -> Machine:
    body = machine_body(name, **fields)
    body["metadata"] |= {"uid": f"uid-{name}", "resourceVersion": "7"}
    return msgspec.convert(body | {"status": status or {}}, Machine)


def replacing(
    stage: str | None,
    *,
    machine: str = "m1",
    name: str = "replace",
    uid: str = "op-uid",
    machine_uid: str | None = None,
    phase: str = "InProgress",
    executor: str = "metalman/lab",
    kind: str = "HostReplace",
) -> MachineOperation:
    """An operation that its executor has brought into a stage; None before its claim."""
    body: dict[str, Any] = {
        "metadata": {"name": name, "uid": uid, "creationTimestamp": "2030-01-01T00:00:00Z"},
        "spec": {"operationKind": kind, "machineRef": machine},
    }
    if stage is not None:
        body["status"] = replacing_status(stage, machine=machine, machine_uid=machine_uid or f"uid-{machine}")
        body["status"] |= {"phase": phase}
        body["status"]["execution"]["executor"] = executor
    return msgspec.convert(body, MachineOperation)


def replacing_status(stage: str, *, machine: str, machine_uid: str) -> dict[str, Any]:
    return {
        "phase": "InProgress",
        "targets": [{"machineRef": machine, "phase": "InProgress", "stage": stage}],
        "execution": {
            "executor": "metalman/lab",
            "incarnation": "one",
            "machineUID": machine_uid,
            "binding": "a-bmc",
        },
    }
