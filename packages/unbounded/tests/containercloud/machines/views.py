"""Views of a Machine, built from JSON as the API server stores it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec.structs import replace as replace_struct

from unbounded.api.container_cloud.cluster import Cluster, ClusterRelease
from unbounded.api.container_cloud.host import BareMetalHost
from unbounded.api.container_cloud.machine import ContainerCloudMachine
from unbounded.api.container_cloud.names import FINALIZER_MACHINE, PROVIDER_API_VERSION
from unbounded.api.core import Node
from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation
from unbounded.containercloud.claims import Claim, ClaimReason, ClaimStep
from unbounded.containercloud.cluster_plan import upgrade_index
from unbounded.containercloud.machines.model import MachineStep, MachineView
from unbounded.containercloud.machines.report import status_change
from unbounded.containercloud.machines.target_fields import CONTROL_PLANE, CONTROL_PLANE_TAINT
from unbounded.kube.clock import rfc3339

START: Final = datetime(2030, 1, 1, tzinfo=UTC)
IMAGE: Final = "registry.example.com/ubuntu:jammy"
UID: Final = "11112222-3333-4444-5555-666677778888"
TARGET: Final = "master-0.default"
OPERATION: Final = "cc-11112222-replace-20300101000000"
LABELS: Final = {"stacklight": "enabled", CONTROL_PLANE: ""}
CLAIM_LABELS: Final = {
    "unbounded-cloud.io/cluster": "example-cluster.example-ns",
    "unbounded-cloud.io/role": "control-plane",
    "unbounded-cloud.io/upgrade-index": "3",
}


def at(seconds: float = 0.0) -> str:
    return rfc3339(START + timedelta(seconds=seconds))


def machine(
    stage: str | None = None,
    *,
    manager: bool = True,
    execution: Mapping[str, Any] = {},
    status: Mapping[str, Any] = {},
    metadata: Mapping[str, Any] = {},
    **value: Any,
) -> ContainerCloudMachine:
    labels = {"kaas.mirantis.com/provider": "baremetal", "cluster.sigs.k8s.io/cluster-name": "example-cluster"}
    role = {"cluster.sigs.k8s.io/control-plane": "true"} if manager else {}
    provider = {
        "apiVersion": PROVIDER_API_VERSION,
        "kind": "BareMetalMachineProviderSpec",
        "nodeLabels": [{"key": "stacklight", "value": "enabled"}],
        "upgradeIndex": 3,
    }
    body: dict[str, Any] = {
        "metadata": {
            "name": "example-control-plane",
            "namespace": "example-ns",
            "uid": UID,
            "labels": labels | role,
            "finalizers": [FINALIZER_MACHINE],
            **metadata,
        },
        "spec": {"providerSpec": {"value": provider | value}},
        "status": dict(status),
    }
    if stage is not None:
        claimed = {} if stage == "Claiming" else {"host": host_reference(), "machine": TARGET}
        body["status"]["execution"] = {"stage": stage, "since": at(), **claimed, **execution}
    return msgspec.convert(body, ContainerCloudMachine)


def host_reference() -> dict[str, str]:
    return {"namespace": "default", "name": "master-0", "uid": "host-uid"}


def bare_metal_host(state: str = "provisioned", **spec: Any) -> BareMetalHost:
    consumer = {
        "apiVersion": "cluster.k8s.io/v1alpha1",
        "kind": "Machine",
        "namespace": "example-ns",
        "name": "example-control-plane",
    }
    body = {
        "metadata": {"name": "master-0", "namespace": "default", "uid": "host-uid"},
        "spec": {"consumerRef": consumer, **spec},
        "status": {"provisioning": {"state": state}},
    }
    return msgspec.convert(body, BareMetalHost)


def cluster(**value: Any) -> Cluster:
    spec = {"apiVersion": PROVIDER_API_VERSION, "kind": "BaremetalClusterProviderSpec", "release": "r1"}
    body = {
        "metadata": {"name": "example-cluster", "namespace": "example-ns", "uid": "cluster-uid"},
        "spec": {"providerSpec": {"value": spec | value}},
    }
    return msgspec.convert(body, Cluster)


def release() -> ClusterRelease:
    body = {
        "metadata": {"name": "r1"},
        "spec": {
            "version": "1.0.0",
            "kubernetes": {"version": "v1.34.0"},
            "allowedDistributions": [{"id": "ubuntu/jammy", "default": True, "image": {"url": f"oci://{IMAGE}"}}],
            "allowedNodeLabels": [{"key": "stacklight", "value": "enabled"}],
        },
    }
    return msgspec.convert(body, ClusterRelease)


def target(*, claimed: bool = True, spec: Mapping[str, Any] = {}, **status: Any) -> Machine:
    """The Machine of the host; `claimed` with all that a claim gives it."""
    redfish = {
        "url": "https://192.0.2.1",
        "username": "admin",
        "passwordRef": {"name": "s", "namespace": "n", "key": "k"},
    }
    body: dict[str, Any] = {
        "metadata": {"name": TARGET, "uid": "target-uid", "resourceVersion": "7"},
        "spec": {"pxe": {"redfish": redfish}},
        "status": status,
    }
    if claimed:
        body["metadata"]["labels"] = CLAIM_LABELS
        body["spec"]["pxe"]["image"] = IMAGE
        body["spec"]["kubernetes"] = {"nodeLabels": LABELS, "registerWithTaints": [CONTROL_PLANE_TAINT]}
    body["spec"] |= spec
    return msgspec.convert(body, Machine)


def node(*, ready: bool = True, marked: bool = True, **spec: Any) -> Node:
    key, _, effect = CONTROL_PLANE_TAINT.partition("=:")
    marks: dict[str, Any] = (
        {"taints": [{"key": key, "effect": effect}], "providerID": "metal3://default/master-0/x"} if marked else {}
    )
    conditions = [{"type": "Ready", "status": "True" if ready else "False", "reason": "Kubelet", "message": "posting"}]
    addresses = [{"type": "InternalIP", "address": "10.0.0.5"}, {"type": "Hostname", "address": TARGET}]
    body = {
        "metadata": {"name": TARGET, "uid": "node-uid", "labels": LABELS if marked else {}},
        "spec": marks | spec,
        "status": {"conditions": conditions, "addresses": addresses},
    }
    return msgspec.convert(body, Node)


def operation(
    phase: str | None, reason: str = "", message: str = "", kind: str = "HostReplace", **more: Any
) -> MachineOperation:
    body = {
        "metadata": {"name": OPERATION, "uid": "op-uid"},
        "spec": {"operationKind": kind, "machineRef": TARGET, **more.pop("spec", {})},
        "status": {"phase": phase, "reason": reason, "message": message, **more},
    }
    return msgspec.convert(body, MachineOperation)


def claimed() -> Claim:
    return Claim(ClaimStep.CLAIMED, ClaimReason.CLAIMED, "BareMetalHost default/master-0 is claimed", bare_metal_host())


def view(subject: ContainerCloudMachine, **given: Any) -> MachineView:
    after_s = given.pop("after_s", 0.0)
    known: dict[str, Any] = {
        "now": START + timedelta(seconds=after_s),
        "claim": claimed(),
        "cluster": cluster(),
        "release": release(),
        "host": bare_metal_host(),
        "target": target(),
        "upgrade_index": upgrade_index(subject),
    }
    return MachineView(machine=subject, **(known | given))


def told(seen: MachineView, plan: MachineStep) -> ContainerCloudMachine:
    """Return the Machine as it is after the plan's status has been written."""
    patch = status_change(seen, plan)
    raw = merged(msgspec.to_builtins(seen.machine.status), patch)
    return replace_struct(seen.machine, status=msgspec.convert(raw, type(seen.machine.status)))


def merged(before: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a JSON merge patch (RFC 7386)."""
    result = dict(before)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            inner = result.get(key)
            result[key] = merged(inner if isinstance(inner, Mapping) else {}, value)
        else:
            result[key] = value
    return result
