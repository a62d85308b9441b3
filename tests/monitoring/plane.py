"""A control plane in trouble: hosts, BMCs, operations, a rollout and a token that alerts are about."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import aiohttp

from tests.e2e.plane import Plane
from tests.monitoring.recording import Recording
from tests.support.waiting import eventually
from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS, MachineConfigurationVersion
from unbounded.api.names import LABEL_SITE
from unbounded.join.bootstrap_tokens import site_token_manifest
from unbounded.kube.clock import rfc3339
from unbounded_lab.bmc import LabBmc

SITE: Final = "rack1"
CLOSED: Final = "127.0.0.1:1"  # a port at which nothing listens
SECRET: Final = "wrong-password"


async def scraped(it: Plane) -> tuple[str, str]:
    """Scrape the controllers and the API server."""
    health = (await it.running.says(r"http://\S+(?=/readyz)"))[0]
    async with aiohttp.ClientSession() as session, session.get(f"{health}/metrics") as answer:
        assert answer.status == 200
        controllers = await answer.text()
    return controllers, await it.running.kubectl("get", "--raw", "/metrics")


async def recorded(it: Plane) -> Recording:
    """Record what both serve."""
    return Recording.of(*await scraped(it))


async def make_token(it: Plane) -> None:
    """Create a bootstrap token that is valid for three days."""
    token = site_token_manifest(SITE, now=datetime.now(UTC), good_for=timedelta(days=3), default=True)
    await it.running.apply({"apiVersion": "v1", "kind": "Secret"} | token)


async def make_trouble(it: Plane, bmc: LabBmc) -> None:
    """Create what the alerts are about; `bmc` refuses the password of its Machine."""
    await _make_failed_update(it)
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": "unbounded-kube"},
        "stringData": {"password": "not the one"},
    }
    await it.running.apply(
        secret,
        _machine(
            "dark",
            ssh={"host": CLOSED, "username": "root", "privateKeyRef": {"name": SECRET, "namespace": "unbounded-kube"}},
        ),
        _machine("refused", pxe=_pxe(bmc.url)),
        *(_machine(f"halted-{number}", pxe=_pxe(f"https://127.0.0.1:{number}"), wave="first") for number in (1, 2, 3)),
        _machine("silent", pxe=_pxe("https://127.0.0.1:4")),
        _machine("without-image", pxe={"image": "registry.example.com/none:1"}, wave="none"),
        {
            "kind": "MachineDisruptionBudget",
            "metadata": {"name": "none"},
            "spec": {"machineSelector": {"matchLabels": {"wave": "none"}}, "maxUnavailable": 1},
        },
        _operation("silent", {"machineRef": "silent"}),
        _operation("stuck", {"machineRef": "dark", "operationKind": "NodeReboot"}),
        _operation(
            "reboot-all",
            {
                "machineSelector": {"matchLabels": {LABEL_SITE: SITE, "wave": "first"}},
                "deadlineSeconds": 1,
                "maxFailures": 3,
                "strategy": {"onFailure": "Halt", "stages": [{"name": "canary", "size": "100%"}]},
            },
        ),
    )
    now = rfc3339()
    condition = {"type": "NetbootImageReady", "status": "False", "reason": "PullFailed", "lastTransitionTime": now}
    parts = [{"kind": "disk", "name": "Disk 1", "health": "Critical"}, {"kind": "NIC", "name": "NIC 1", "health": "OK"}]
    hardware = {"source": "Redfish", "at": now, "digest": "0" * 64, "bmc": {"at": now, "parts": parts}}
    agent = {"host": {"certificateExpires": rfc3339(datetime.now(UTC) + timedelta(hours=5))}}
    await _patch_status(it, "without-image", {"conditions": [condition], "hardware": hardware, "agent": agent})


async def _make_failed_update(it: Plane) -> None:
    """Create a Machine whose Node has no kubelet, and the record of its agent's failed update to a configuration."""
    await it.running.apply(
        {
            "kind": "MachineConfiguration",
            "metadata": {"name": "workers"},
            "spec": {
                "template": {"kubernetes": {"version": "v1.34.0"}},
                "machineSelector": {"matchLabels": {"wave": "update"}},
                "updateStrategy": {"type": "RollingUpdate"},
            },
        },
        _machine("not-ready", wave="update", kubernetes={}),
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "not-ready"}},
    )

    async def first_version() -> MachineConfigurationVersion | None:
        found = await it.api.list(MACHINE_CONFIGURATION_VERSIONS)
        return found.items[0] if found.items else None

    version = (await eventually(first_version, within_s=60.0)).metadata
    update = {
        "version": version.name,
        "uid": version.uid,
        "generation": version.generation,
        "phase": "Failed",
        "since": rfc3339(),
        "message": "its agent has not created the Node again",
    }
    await _patch_status(it, "not-ready", {"nodeUpdate": update})


async def _patch_status(it: Plane, machine: str, status: Mapping[str, Any]) -> None:
    patch = ("--subresource", "status", "--type", "merge", "-p", json.dumps({"status": status}))
    await it.running.kubectl("patch", "machines.unbounded-cloud.io", machine, *patch)


def _machine(name: str, *, wave: str = "", **spec: Any) -> dict[str, Any]:
    labels = {LABEL_SITE: SITE} | ({"wave": wave} if wave else {})
    return {"kind": "Machine", "metadata": {"name": name, "labels": labels}, "spec": spec}


def _operation(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": "MachineOperation",
        "metadata": {"name": name},
        "spec": {"operationKind": "HostReboot", **spec},
    }


def _pxe(url: str) -> dict[str, Any]:
    password = {"name": SECRET, "namespace": "unbounded-kube", "key": "password"}
    return {
        "image": "registry.example.com/none:1",
        "redfish": {"url": url, "username": "root", "passwordRef": password},
    }
