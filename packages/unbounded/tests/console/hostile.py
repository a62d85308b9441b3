"""Texts that attack a browser, and objects that have them in each field that takes any text."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from tests.console.served import set_status
from unbounded.api.conditions import ConditionType
from unbounded.api.configuration import MACHINE_CONFIGURATIONS
from unbounded.api.container_cloud.cluster import CLUSTERS
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS
from unbounded.api.core import EVENTS, NAMESPACES
from unbounded.api.machine import MACHINES
from unbounded.api.names import ANNOTATION_PAUSED, LABEL_SITE, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.manifests import install_container_cloud
from unbounded.kube.api import AlreadyExists
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import rfc3339

SET: Final = "window.hurt=1"
PAYLOADS: Final = (
    f"<script>{SET}</script>",
    f"</script><script>{SET}</script>",
    f"<img src=x onerror={SET}>",
    f"<svg/onload={SET}>",
    f"<iframe srcdoc='<script>parent.{SET}</script>'>",
    f"`+({SET})+`",
    f"${{{SET}}}",
    f"{{{{constructor.constructor('{SET}')()}}}}",
    f"\\`-({SET})//",
    f"' autofocus onfocus={SET} x='",
    f'"><a href="javascript:{SET}">press</a>',
    f"&lt;script&gt;{SET}&lt;/script&gt;",
    f"&#60;script&#62;{SET}&#60;/script&#62;",
    f"<!--</script><script>{SET}//-->",
    f"]]><script>{SET}</script>",
    "\u202e<b>backwards\u2028",
)
NAME: Final = "hostile"  # of the Machine, its site, operation, host, namespace and Cluster
UPDATES: Final = ("halted", "failing")

# fields that each page shows, and that have all payloads; those with room for one payload are staged, too
SHOWN: Final = {
    "/": ("update",),
    "/rollouts": ("update", "holder", "failed update"),
    f"/machine/{NAME}": (
        *("message", "paused", "disk serial", "disk model", "disk contents", "disk health"),
        *("NIC name", "NIC driver", "LLDP switch", "LLDP port", "BMC part", "BMC health"),
        *("condition", "boot", "history"),
    ),
    f"/site/{NAME}": ("boot", "lease", "image"),
    f"/operation/{NAME}": ("operation", "reason", "evidence", "source", "answer", "loss", "consequence"),
    "/hosts": ("host error",),
    f"/host/{NAME}/{NAME}": (
        *("host error", "host disk", "host disk serial", "host disk model", "host NIC", "host NIC address"),
        "host condition",
    ),
    f"/cluster/{NAME}/{NAME}": ("cluster reason", "cluster condition"),
}


def texts(field: str) -> list[str]:
    """Return the texts of a field, which no other field has."""
    return [f"{payload} {field}" for payload in PAYLOADS]


def _all(field: str) -> str:
    return "\n".join(texts(field))


def _each(**fields: str) -> list[dict[str, Any]]:
    """Return an item for each payload, which is in these fields."""
    return [dict(zip(fields, one, strict=True)) for one in zip(*map(texts, fields.values()), strict=True)]


async def stage_hostile_objects(api: HttpApi) -> None:
    """Create a Machine of a site, its operation and Event, updates, a host and a Cluster, each with these texts."""
    await install_container_cloud(api)
    for namespace in (NAMESPACE, NAME):
        with suppress(AlreadyExists):
            await api.create(NAMESPACES, {"metadata": {"name": namespace}})
    now = rfc3339()
    await _stage_machine(api, now)
    await _stage_updates(api, now)
    await _stage_host(api, now)
    await _stage_cluster(api)


async def delete_hostile_objects(api: HttpApi) -> None:
    """Delete the Machine, its operation and the updates, which other tests would count."""
    for name in UPDATES:
        await api.delete(MACHINE_CONFIGURATIONS, name)
    await api.delete(MACHINE_OPERATIONS, NAME)
    await api.delete(MACHINES, NAME)


def _condition(kind: str, message: str, now: str) -> dict[str, Any]:
    return {"type": kind, "status": "False", "reason": "Hostile", "message": message, "lastTransitionTime": now}


async def _stage_machine(api: HttpApi, now: str) -> None:
    redfish = {
        "url": "https://bmc.example.com",
        "username": "admin",
        "passwordRef": {"name": "bmc", "namespace": NAMESPACE, "key": "password"},
    }
    lease = {"ipv4": "10.0.0.9", "mac": "52:54:00:00:00:99", "subnetMask": "255.255.255.0", "gateway": "10.0.0.1"}
    spec = {
        "pxe": {"image": "registry.example.com/ubuntu:1", "redfish": redfish, "dhcpLeases": [lease]},
        "maintenance": {"enabled": True, "reason": f"{PAYLOADS[2]} maintenance"},
    }
    metadata = {"name": NAME, "labels": {LABEL_SITE: NAME}, "annotations": {ANNOTATION_PAUSED: _all("paused")}}
    made = await api.create(MACHINES, {"metadata": metadata, "spec": spec})
    request = {"operationKind": "HostReboot", "machineRef": NAME}
    operation = await api.create(MACHINE_OPERATIONS, {"metadata": {"name": NAME}, "spec": request})
    uid = operation.metadata.uid
    disks = _each(serialNumber="disk serial", model="disk model", contents="disk contents", health="disk health")
    nics = _each(name="NIC name", driver="NIC driver")
    neighbours = _each(systemName="LLDP switch", portID="LLDP port")
    parts = _each(name="BMC part", health="BMC health")
    hardware = {
        "source": "Installer",
        "at": now,
        "digest": "0" * 64,
        "system": {"product": f"{PAYLOADS[0]} product"},
        "disks": [{"name": f"sd{number}", **one} for number, one in enumerate(disks)],
        "nics": [{**nic, "lldp": neighbour} for nic, neighbour in zip(nics, neighbours, strict=True)],
        "bmc": {"at": now, "parts": [{"kind": "disk", **one} for one in parts]},
    }
    ended = {"uid": "u", "kind": "HostReboot", "phase": "Failed"}
    await set_status(
        api,
        NAME,
        phase="Failed",
        message=_all("message"),
        hardware=hardware,
        netboot={"boot": uid, "milestone": "ImageWriting", "message": _all("boot"), "at": now},
        activeOperation={"uid": uid, "name": NAME, "kind": "HostReboot", "executor": f"metalman/{NAME}", "since": now},
        conditions=[
            _condition(ConditionType.NETBOOT_SERVED, _all("lease"), now),
            _condition(ConditionType.NETBOOT_IMAGE_READY, _all("image"), now),
            _condition("Hostile", _all("condition"), now),
        ],
        recentOperations=[{**ended, "name": "ended", "message": _all("history")}],
    )
    execution = {
        "executor": f"metalman/{NAME}",
        "incarnation": "p1",
        "machineUID": made.metadata.uid,
        "binding": "b",
        "action": "GracefulShutdown",
        "recordedAt": now,
        "answer": {
            "reply": "Refused",
            "message": _all("answer"),
            "cause": {"code": "Hostile", "about": {"keys": PAYLOADS[0]}},
        },
    }
    status = {
        "phase": "InProgress",
        "message": _all("operation"),
        "reason": _all("reason"),
        "cause": {"code": "Hostile", "about": dict(zip(PAYLOADS[:8], PAYLOADS, strict=False))},
        "startedAt": now,
        "targets": [
            {
                "machineRef": NAME,
                "phase": "InProgress",
                "stage": "ShuttingDown",
                "attempts": 1,
                "message": _all("target"),
            }
        ],
        "execution": execution,
        "evidence": [{"at": now, **one} for one in _each(what="evidence", where="source")],
        "losses": _each(field="loss", consequence="consequence"),
    }
    await api.patch(MACHINE_OPERATIONS, NAME, {"status": status}, subresource="status")
    event = {
        "metadata": {"name": NAME},
        "involvedObject": {"kind": "Machine", "name": NAME, "uid": made.metadata.uid},
        "reason": "Hostile",
        "type": "Warning",
        "message": _all("event"),
    }
    await api.create(EVENTS, event, namespace="default")


async def _stage_updates(api: HttpApi, now: str) -> None:
    failed = [{"machine": f"failed-{number}", **one} for number, one in enumerate(_each(message="failed update"))]
    waiting = {"reason": "Hostile", "heldBy": _all("holder"), "since": now}
    halted, failing = UPDATES
    for name, rollout in (
        (halted, {"phase": "Halted", "message": _all("update"), "waiting": waiting}),
        (failing, {"phase": "InProgress", "failed": failed}),
    ):
        await api.create(MACHINE_CONFIGURATIONS, {"metadata": {"name": name}, "spec": {"template": {}}})
        status = {"rollout": {"version": 1, **rollout}}
        await api.patch(MACHINE_CONFIGURATIONS, name, {"status": status}, subresource="status")


async def _stage_host(api: HttpApi, now: str) -> None:
    spec = {
        "bmc": {"address": "redfish://192.0.2.1/redfish/v1/Systems/1"},
        "bootMACAddress": "52:54:00:00:00:09",
        "description": f"{PAYLOADS[3]} description",
    }
    await api.create(BARE_METAL_HOSTS, {"metadata": {"name": NAME}, "spec": spec}, namespace=NAME)
    hardware = {
        "systemVendor": {"productName": f"{PAYLOADS[1]} host product"},
        "storage": _each(name="host disk", serialNumber="host disk serial", model="host disk model"),
        "nics": _each(name="host NIC", ip="host NIC address"),
    }
    status = {
        "operationalStatus": "error",
        "errorMessage": _all("host error"),
        "hardware": hardware,
        "conditions": [_condition("Hostile", _all("host condition"), now)],
    }
    await api.patch(BARE_METAL_HOSTS, NAME, {"status": status}, namespace=NAME, subresource="status")


async def _stage_cluster(api: HttpApi) -> None:
    value = {
        "apiVersion": "baremetal.k8s.io/v1alpha1",
        "kind": "BaremetalClusterProviderSpec",
        "release": "release-1",
        "maxWorkerUpgradeCount": 1,
    }
    labels = {"kaas.mirantis.com/provider": "baremetal", "kaas.mirantis.com/region": "region-one"}
    cluster = {"metadata": {"name": NAME, "labels": labels}, "spec": {"providerSpec": {"value": value}}}
    await api.create(CLUSTERS, cluster, namespace=NAME)
    conditions = [
        {"type": f"Hostile{number}", "ready": False, **one}
        for number, one in enumerate(_each(reason="cluster reason", message="cluster condition"))
    ]
    status = {"providerStatus": {"conditions": conditions}}
    await api.patch(CLUSTERS, NAME, {"status": status}, namespace=NAME, subresource="status")
