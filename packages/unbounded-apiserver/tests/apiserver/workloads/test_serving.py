"""Pods as they are served: how they are deleted, evicted and shown."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.support import Client, running

pytestmark = pytest.mark.slow

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with running(tmp_path) as (_, client):
        yield client


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "i"}], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def eviction(name: str = "p", **options: Any) -> dict[str, Any]:
    given = {"deleteOptions": options} if options else {}
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, **given}


async def test_a_pod_without_a_node_goes_at_once(client: Client) -> None:
    await client.create(PODS, pod())
    answer = await client.ask("DELETE", f"{PODS}/p")
    assert answer.status == 200
    assert answer.json()["kind"] == "Pod"
    assert (await client.ask("GET", f"{PODS}/p")).status == 404


async def test_a_pod_on_a_node_waits_for_its_kubelet(client: Client) -> None:
    await client.create(PODS, pod(nodeName="n"))
    deleted = (await client.ask("DELETE", f"{PODS}/p")).json()["metadata"]
    assert deleted["deletionGracePeriodSeconds"] == 30
    shorter = (await client.ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 10})).json()["metadata"]
    assert shorter["deletionGracePeriodSeconds"] == 10
    moved = datetime.fromisoformat(deleted["deletionTimestamp"]) - datetime.fromisoformat(shorter["deletionTimestamp"])
    assert moved.total_seconds() == 20
    longer = (await client.ask("DELETE", f"{PODS}/p?gracePeriodSeconds=60")).json()["metadata"]
    assert longer["deletionGracePeriodSeconds"] == 10
    assert (await client.ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0})).status == 200
    assert (await client.ask("GET", f"{PODS}/p")).status == 404


async def test_a_pod_that_is_left_time_goes_not_with_its_last_finalizer(client: Client) -> None:
    held = pod(nodeName="n")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await client.create(PODS, held)
    await client.ask("DELETE", f"{PODS}/p")
    await client.merge(f"{PODS}/p", {"metadata": {"finalizers": None}})
    assert (await client.get(f"{PODS}/p"))["metadata"]["deletionGracePeriodSeconds"] == 30


async def test_what_kubelet_reports_stays_when_the_specification_changes(client: Client) -> None:
    made = await client.create(PODS, pod(nodeName="n") | {"status": {"phase": "Running"}})
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert made["metadata"]["generation"] == 1
    await client.merge(f"{PODS}/p/status", {"status": {"phase": "Running", "podIP": "10.0.0.9"}})
    changed = await client.merge(f"{PODS}/p", {"spec": {"activeDeadlineSeconds": 9}, "status": None})
    assert changed["status"]["podIP"] == "10.0.0.9"
    assert changed["metadata"]["generation"] == 2
    listed = await client.get(f"{PODS}?fieldSelector=spec.nodeName=n,status.phase=Running,spec.hostNetwork=false")
    assert [item["metadata"]["name"] for item in listed["items"]] == ["p"]
    assert (await client.get(f"{PODS}?fieldSelector=spec.host=n"))["items"] == listed["items"]
    for selector, types in (("spec.nodeName=n", ["ADDED", "MODIFIED", "MODIFIED"]), ("spec.nodeName=other", [])):
        query = f"watch=1&fieldSelector={selector}&resourceVersion={int(made['metadata']['resourceVersion']) - 1}"
        watch = await client.ask("GET", f"{PODS}?{query}&timeoutSeconds=1")
        assert [json.loads(line)["type"] for line in watch.text.splitlines()] == types


async def test_an_eviction_deletes_the_pod(client: Client) -> None:
    await client.create(PODS, pod())
    refused = await client.ask("POST", f"{PODS}/p/eviction", eviction("other"))
    assert (refused.status, refused.json()["message"]) == (400, "name in URL does not match name in Eviction object")
    elsewhere = {**eviction(), "metadata": {"name": "p", "namespace": "kube-system"}}
    refused = await client.ask("POST", f"{PODS}/p/eviction", elsewhere)
    message = "the namespace of the provided object does not match the namespace sent on the request"
    assert (refused.status, refused.json()["message"]) == (400, message)
    stale = await client.ask("POST", f"{PODS}/p/eviction", eviction(preconditions={"uid": "no"}))
    assert (stale.status, stale.json()["reason"]) == (409, "Conflict")
    for tried in (f"{PODS}/p/eviction?dryRun=All", f"{PODS}/p/eviction"):
        body = eviction() if "?" in tried else eviction(dryRun=["All"])
        assert (await client.ask("POST", tried, body)).status == 201
        assert (await client.ask("GET", f"{PODS}/p")).status == 200
    done = await client.ask("POST", f"{PODS}/p/eviction", eviction())
    assert (done.status, done.json()["status"]) == (201, "Success")
    assert (await client.ask("GET", f"{PODS}/p")).status == 404
    gone = await client.ask("POST", f"{PODS}/p/eviction", eviction())
    assert gone.json()["message"] == 'pods "p" not found'


async def test_an_eviction_leaves_the_pod_its_time(client: Client) -> None:
    await client.create(PODS, pod(nodeName="n"))
    await client.ask("POST", f"{PODS}/p/eviction", eviction(gracePeriodSeconds=7))
    assert (await client.get(f"{PODS}/p"))["metadata"]["deletionGracePeriodSeconds"] == 7


@pytest.mark.parametrize("subresource", ["binding", "proxy"])
async def test_what_is_left_out_is_not_served(client: Client, subresource: str) -> None:
    await client.create(PODS, pod())
    refused = await client.ask("GET", f"{PODS}/p/{subresource}")
    assert refused.status == 404
    assert refused.json()["message"] == "the server could not find the requested resource"


async def test_evictions_are_named_beside_pods_and_not_in_their_own_group(client: Client) -> None:
    resources = (await client.get("/api/v1"))["resources"]
    found = next(r for r in resources if r["name"] == "pods/eviction")
    assert (found["group"], found["version"], found["kind"], found["verbs"]) == ("policy", "v1", "Eviction", ["create"])
    own = (await client.get("/apis/policy/v1"))["resources"]
    assert [r["name"] for r in own] == ["poddisruptionbudgets", "poddisruptionbudgets/status"]


async def test_a_quantity_is_written_in_its_canonical_form(client: Client) -> None:
    limits = {"cpu": "1000m", "memory": "1024Mi"}
    made = await client.create(PODS, pod(containers=[{"name": "c", "image": "i", "resources": {"limits": limits}}]))
    assert made["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "1", "memory": "1Gi"}
    limits["cpu"] = "much"
    wrong = pod("q", containers=[{"name": "c", "image": "i", "resources": {"limits": limits}}])
    refused = await client.ask("POST", PODS, wrong)
    assert refused.status == 400
    assert "quantities must match the regular expression" in refused.json()["message"]
