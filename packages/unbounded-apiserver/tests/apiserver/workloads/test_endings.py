"""Ends of Pods: evicted, deleted with and without grace, and by their kubelet; as a real server answered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver import recorded
from tests.apiserver.support import Answer, Client, client_of, running
from unbounded_apiserver.server import ApiServer

pytestmark = pytest.mark.slow

PODS = "/api/v1/namespaces/demo/pods"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client, Client]]:
    """A server with the recorded namespace, as the administrator and as the node see it."""
    async with running(tmp_path) as (server, client):
        for number in (56, 57):
            await client.create(recorded.exchanges()[number]["path"], recorded.request(number))
        async with client_of(server, "system:node:node-1", "system:nodes") as node:
            yield server, client, node


async def replay(client: Client, number: int) -> Answer:
    """Send a recorded request; its uid becomes that of the Pod here."""
    exchange = recorded.exchanges()[number]
    body = exchange.get("request")
    path = exchange["path"]
    if exchange["method"] in {"PATCH", "DELETE"}:
        uid = (await client.get(path.split("?")[0].removesuffix("/status")))["metadata"]["uid"]
        body = json.loads(json.dumps(body).replace(exchange["response"]["metadata"]["uid"], uid))
        body.pop("apiVersion", None)
    headers = {"Content-Type": "application/strategic-merge-patch+json"} if exchange["method"] == "PATCH" else {}
    answer = await client.ask(exchange["method"], path, body, headers=headers)
    assert answer.status == exchange["code"], answer.text
    return answer


async def events(client: Client, since: str) -> list[dict[str, Any]]:
    found = await client.ask("GET", f"{PODS}?watch=1&resourceVersion={since}&timeoutSeconds=1")
    return [json.loads(line) for line in found.text.splitlines()]


async def test_an_eviction_marks_the_pod_and_its_kubelet_ends_it(served: tuple[ApiServer, Client, Client]) -> None:
    _, client, node = served
    await client.create(PODS, recorded.request(220))
    for number in (223, 226, 230):
        answer = await replay(node, number)
        assert recorded.comparable(answer.json()) == recorded.response(number), number
    assert (await replay(client, 238)).json() == recorded.exchanges()[238]["response"]
    for number in (239, 241, 243, 246):
        answer = await replay(node, number)
        assert recorded.comparable(answer.json()) == recorded.response(number), number
    assert (await client.ask("GET", f"{PODS}/guarded")).status == 404


@pytest.mark.parametrize(("create", "patches", "delete"), [(131, (134,), 189), (133, (138,), 187), (140, (), 193)])
async def test_watchers_see_a_pod_without_time_before_it_is_gone(
    served: tuple[ApiServer, Client, Client], create: int, patches: tuple[int, ...], delete: int
) -> None:
    _, client, node = served
    pod = await client.create(PODS, recorded.request(create))
    for number in patches:
        await replay(node, number)
    phase = recorded.exchanges()[delete]["response"]["status"]["phase"]
    await node.merge(f"{PODS}/{pod['metadata']['name']}/status", {"status": {"phase": phase}})
    before = await client.get(f"{PODS}/{pod['metadata']['name']}")
    answer = (await replay(client, delete)).json()
    real = recorded.exchanges()[delete]["response"]
    for key in ("generation", "deletionGracePeriodSeconds"):
        assert answer["metadata"][key] == real["metadata"][key]
    seen = await events(client, before["metadata"]["resourceVersion"])
    assert [(one["type"], one["object"]["metadata"].get("deletionGracePeriodSeconds")) for one in seen] == [
        ("MODIFIED", 0),
        ("DELETED", 0),
    ]
    assert answer["metadata"]["resourceVersion"] == seen[-1]["object"]["metadata"]["resourceVersion"]


async def test_shorter_grace_period_counts_from_the_first_deletion(
    served: tuple[ApiServer, Client, Client],
) -> None:
    _, client, _ = served
    await client.create(PODS, recorded.request(61) | {"metadata": {"name": "p"}})
    first = (await client.ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 600})).json()["metadata"]
    longer = (await client.ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 700})).json()["metadata"]
    assert longer["deletionTimestamp"] == first["deletionTimestamp"]
    shorter = (await client.ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": -3})).json()["metadata"]
    assert shorter["deletionGracePeriodSeconds"] == 1
    assert shorter["deletionTimestamp"] < first["deletionTimestamp"]
    now = (await client.ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0})).json()["metadata"]
    assert now["deletionGracePeriodSeconds"] == 0
    assert now["deletionTimestamp"] >= now["creationTimestamp"]


async def test_dry_run_and_failed_precondition_leave_the_pod_unchanged(
    served: tuple[ApiServer, Client, Client],
) -> None:
    _, client, _ = served
    made = await client.create(PODS, recorded.request(220))
    conditions = {"resourceVersion": "1"}
    eviction = {"metadata": {"name": "guarded"}, "deleteOptions": {"preconditions": conditions}}
    refused = await client.ask("POST", f"{PODS}/guarded/eviction", eviction)
    assert (refused.status, refused.json()["reason"]) == (409, "Conflict")
    dry = await client.ask("POST", f"{PODS}/guarded/eviction?dryRun=All", {"metadata": {"name": "guarded"}})
    assert dry.status == 201
    assert (await client.ask("DELETE", f"{PODS}/guarded?dryRun=All", {"gracePeriodSeconds": 0})).status == 200
    assert await client.get(f"{PODS}/guarded") == made
    conditions["resourceVersion"] = made["metadata"]["resourceVersion"]
    assert (await client.ask("POST", f"{PODS}/guarded/eviction", eviction)).status == 201
    marked = await client.get(f"{PODS}/guarded")
    assert marked["status"]["conditions"][0]["type"] == "DisruptionTarget"
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 1
