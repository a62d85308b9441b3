"""CSINodes, ResourceSlices, RuntimeClasses, budgets and both views of Events: their rules, and the rights of nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.support import Client, client_of, running
from tests.support.waiting import eventually
from unbounded_apiserver.server import ApiServer

STORAGE = "/apis/storage.k8s.io/v1"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
CORE_EVENTS = "/api/v1/namespaces/default/events"
PODS = "/api/v1/namespaces/default/pods"
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    async with running(tmp_path) as both:
        yield both


def csi_node(of: str, **driver: Any) -> dict[str, Any]:
    drivers = [{"name": "csi.example.com", "nodeID": "n1", "topologyKeys": None, **driver}] if driver else []
    return {"metadata": {"name": of}, "spec": {"drivers": drivers}}


def device_slice(name: str, **spec: Any) -> dict[str, Any]:
    pool = {"name": "pool", "generation": 1, "resourceSliceCount": 1}
    return {"metadata": {"name": name}, "spec": {"driver": "gpu.example.com", "pool": pool, **spec}}


@pytest.mark.slow
async def test_a_node_writes_its_own_csi_node_and_slices_alone(server: tuple[ApiServer, Client]) -> None:
    async with client_of(server[0], "system:node:n1", "system:nodes") as node:
        assert (await node.ask("POST", f"{STORAGE}/csinodes", csi_node("n1"))).status == 201
        other = await node.ask("POST", f"{STORAGE}/csinodes", csi_node("n2"))
        assert other.status == 403
        assert other.json()["message"].endswith("can only access CSINode with the same name as the requesting node")
        assert (await node.ask("GET", f"{STORAGE}/csinodes/n2")).status == 403
        assert (await node.ask("GET", f"{STORAGE}/csinodes")).status == 403
        assert (await node.ask("POST", SLICES, device_slice("own", nodeName="n1"))).status == 201
        assert (await node.ask("POST", SLICES, device_slice("other", nodeName="n2"))).status == 403
        await server[1].create(SLICES, device_slice("foreign", nodeName="n2"))
        assert (await node.ask("DELETE", f"{SLICES}/foreign")).status == 403
        assert (await node.ask("DELETE", SLICES)).status == 403
        gone = await node.ask("DELETE", f"{SLICES}?fieldSelector=spec.nodeName%3Dn1")
        assert [item["metadata"]["name"] for item in gone.json()["items"]] == ["own"]
    left = await server[1].get(SLICES)
    assert [item["metadata"]["name"] for item in left["items"]] == ["foreign"]


WRONG: list[tuple[str, dict[str, Any], str]] = [
    (f"{STORAGE}/csinodes", csi_node("n", name=""), "spec.drivers[0].name"),
    (f"{STORAGE}/csinodes", csi_node("n", nodeID=""), "spec.drivers[0].nodeID"),
    (f"{STORAGE}/csinodes", csi_node("n", allocatable={"count": -1}), "spec.drivers[0].allocatable.count"),
    (f"{STORAGE}/csidrivers", {"spec": {"fsGroupPolicy": "Odd"}}, "spec.fsGroupPolicy"),
    (f"{STORAGE}/csidrivers", {"spec": {"volumeLifecycleModes": ["Odd"]}}, "spec.volumeLifecycleModes"),
    (f"{STORAGE}/storageclasses", {}, "provisioner"),
    (f"{STORAGE}/storageclasses", {"provisioner": "a", "reclaimPolicy": "Recycle"}, "reclaimPolicy"),
    (f"{STORAGE}/volumeattachments", {"spec": {"attacher": "a", "nodeName": "n"}}, "spec.source"),
    ("/apis/node.k8s.io/v1/runtimeclasses", {"handler": "A"}, "handler"),
    (SLICES, device_slice("s"), "spec"),
    (SLICES, device_slice("s", nodeName="n", allNodes=True), "spec"),
    (SLICES, device_slice("s", nodeName="n", devices=[{"name": "A"}]), "spec.devices[0].name"),
    (BUDGETS, {"spec": {"minAvailable": 1, "maxUnavailable": 1}}, "spec"),
    (BUDGETS, {"spec": {"minAvailable": "101%"}}, "spec.minAvailable"),
    (BUDGETS, {"spec": {"maxUnavailable": "some"}}, "spec.maxUnavailable"),
]


@pytest.mark.slow
async def test_what_is_wrong_is_named(server: tuple[ApiServer, Client]) -> None:
    for path, body, field in WRONG:
        answer = await server[1].ask("POST", path, {"metadata": {"name": "n"}, **body})
        assert answer.status == 422, answer.text
        assert field in {cause["field"] for cause in answer.json()["details"]["causes"]}, answer.text


@pytest.mark.slow
async def test_defaults_and_what_cannot_change(server: tuple[ApiServer, Client]) -> None:
    client = server[1]
    driver = await client.create(f"{STORAGE}/csidrivers", {"metadata": {"name": "csi.example.com"}})
    assert driver["spec"]["attachRequired"] is True
    assert driver["spec"]["volumeLifecycleModes"] == ["Persistent"]
    node = await client.create(f"{STORAGE}/csinodes", csi_node("n", topologyKeys=["zone"]))
    node["spec"]["drivers"][0]["nodeID"] = "other"
    changed = await client.ask("PUT", f"{STORAGE}/csinodes/n", node)
    assert changed.status == 422
    assert "spec.drivers: Invalid value" in changed.text.replace("\\", "")
    runtime = await client.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "r"}, "handler": "a"})
    patched = await client.ask(
        "PATCH",
        f"/apis/node.k8s.io/v1/runtimeclasses/{runtime['metadata']['name']}",
        {"handler": "b"},
        headers=STRATEGIC,
    )
    assert patched.status == 422


async def ready_pod(client: Client, name: str) -> None:
    container = {"name": "c", "image": "i", "terminationMessagePolicy": "File"}
    meta = {"name": name, "labels": {"app": "a"}}
    await client.create(PODS, {"metadata": meta, "spec": {"nodeName": "n", "containers": [container]}})
    status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    answer = await client.ask("PATCH", f"{PODS}/{name}/status", status, headers=STRATEGIC)
    assert answer.status == 200, answer.text


async def evicted(client: Client, name: str, *, dry_run: bool = False) -> int:
    suffix = "?dryRun=All" if dry_run else ""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return (await client.ask("POST", f"{PODS}/{name}/eviction{suffix}", body)).status


@pytest.mark.slow
async def test_a_budget_permits_as_many_evictions_as_it_says(server: tuple[ApiServer, Client]) -> None:
    client = server[1]
    await ready_pod(client, "one")
    await ready_pod(client, "two")
    spec = {"minAvailable": "50%", "selector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}
    await client.create(BUDGETS, {"metadata": {"name": "b"}, "spec": spec})

    async def allowed(number: int) -> bool:
        status = (await client.get(f"{BUDGETS}/b"))["status"]
        return bool(status["disruptionsAllowed"] == number and status.get("observedGeneration") == 1)

    await eventually(lambda: allowed(1))
    assert await evicted(client, "one", dry_run=True) == 201
    assert await evicted(client, "one") == 201
    assert await evicted(client, "two") == 429
    assert await evicted(client, "two", dry_run=True) == 429
    await eventually(lambda: allowed(0))
    table = await client.ask("GET", BUDGETS, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    assert table.json()["rows"][0]["cells"][:4] == ["b", "50%", "N/A", 0]


@pytest.mark.slow
async def test_an_event_is_one_object_in_two_groups(server: tuple[ApiServer, Client]) -> None:
    client = server[1]
    about = {"kind": "Pod", "namespace": "default", "name": "p"}
    old = {"metadata": {"name": "old"}, "involvedObject": about, "message": "m", "count": 2, "source": {"host": "h"}}
    await client.create(CORE_EVENTS, old)
    shown = await client.get(f"{EVENTS}/old")
    assert shown["regarding"] == about
    assert (shown["note"], shown["deprecatedCount"], shown["deprecatedSource"]) == ("m", 2, {"host": "h"})
    names = {"reportingController": "c", "reportingInstance": "i", "action": "a", "reason": "r", "type": "Normal"}
    new = {"metadata": {"name": "new"}, "regarding": about, "eventTime": "2026-01-01T00:00:00.000000Z", **names}
    await client.create(EVENTS, new)
    stored = await client.get(f"{CORE_EVENTS}/new")
    assert (stored["involvedObject"], stored["reportingComponent"]) == (about, "c")
    found = await client.get(f"{EVENTS}?fieldSelector=regarding.name%3Dp,reportingController%3Dc")
    assert [item["metadata"]["name"] for item in found["items"]] == ["new"]
    changed = await client.ask("PATCH", f"{EVENTS}/new", {"note": "other"}, headers=STRATEGIC)
    assert changed.status == 422
    await client.ask("DELETE", EVENTS)
    assert (await client.get(CORE_EVENTS))["items"] == []
