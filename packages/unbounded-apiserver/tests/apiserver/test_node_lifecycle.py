"""Nodes that fall silent and come back, and what becomes of their Pods: as a real server's controllers did it."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver import recorded
from tests.apiserver.support import Client, running
from tests.support.waiting import eventually
from unbounded_apiserver.controllers.nodes import NodeTimes
from unbounded_apiserver.controllers.nodes.lifecycle import NodeReadiness, Zones, zone_of
from unbounded_apiserver.controllers.nodes.pods import tolerated_s

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/demo/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
SOON = NodeTimes(grace_s=3.0, startup_s=0.5, quarantine_s=0.3, taint_interval_s=0.05)
NEVER = NodeTimes()
STATIC = "/api/v1/namespaces/kube-system/pods"


async def register(client: Client, name: str = "node-1") -> None:
    """Register the recorded Node, with the conditions of one that is ready."""
    node = recorded.request(26)
    node["metadata"]["name"] = name
    ready = copy.deepcopy(recorded.exchanges()[338]["response"]["status"]["conditions"])
    node["status"]["conditions"] = ready
    await client.create(NODES, node)


async def get(client: Client, name: str = "node-1") -> Any:
    return await client.get(f"{NODES}/{name}")


async def beat(client: Client, *names: str) -> None:
    """Renew the Leases of Nodes until cancelled."""
    second = 0
    while True:
        second += 1
        for name in names:
            spec = {"holderIdentity": name, "renewTime": f"2026-11-23T21:{second // 60:02}:{second % 60:02}.000000Z"}
            lease = {"metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": spec}
            answer = await client.ask("POST", LEASES, lease)
            if answer.status == 409:
                await client.merge(f"{LEASES}/{name}", {"spec": spec})
        await asyncio.sleep(0.15)


@asynccontextmanager
async def beating(client: Client, *names: str) -> AsyncIterator[None]:
    task = asyncio.create_task(beat(client, *names))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def taints(node: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(one["key"].rpartition("/")[2], one["effect"]) for one in node["spec"].get("taints", ())]


async def tainted(client: Client, expected: list[tuple[str, str]], name: str = "node-1") -> Any:
    """Wait until a Node has these taints."""

    async def check() -> Any:
        node = await get(client, name)
        return node if taints(node) == expected else None

    return await eventually(check)


async def said(client: Client, namespace: str = "default") -> list[tuple[str, str, str]]:
    events = (await client.get(f"/api/v1/namespaces/{namespace}/events"))["items"]
    return [(e["involvedObject"]["name"], e["reason"], e["message"]) for e in events]


OWN = ("starting", "NoSchedule")
UNREACHABLE = ("unreachable", "NoSchedule")


def nameless(event: dict[str, Any]) -> dict[str, Any]:
    """Return an Event without its name, which holds a time, and without what a list leaves out."""
    found: dict[str, Any] = recorded.comparable(event)
    found["metadata"].pop("name")
    return {key: value for key, value in found.items() if key not in {"apiVersion", "kind"}}


async def event_as_recorded(client: Client, namespace: str, number: int) -> None:
    expected = nameless(recorded.exchanges()[number]["response"])

    async def check() -> bool:
        stored = (await client.get(f"/api/v1/namespaces/{namespace}/events"))["items"]
        found = [nameless(one) for one in stored]
        same = [one for one in found if one["reason"] == expected["reason"]]
        assert not same or expected in same, (expected, same)
        return bool(same)

    await eventually(check)


@pytest.mark.slow
async def test_a_new_node_is_tainted_until_its_kubelet_is_ready(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        answer = await client.create(NODES, recorded.request(26))
        for part in ("metadata", "spec"):
            assert recorded.comparable(answer)[part] == recorded.response(26)[part]
        await event_as_recorded(client, "default", 42)
        conditions = recorded.exchanges()[338]["response"]["status"]["conditions"]
        await client.merge(f"{NODES}/node-1/status", {"status": {"conditions": conditions}})
        await tainted(client, [OWN])
        await client.merge(f"{NODES}/node-1", {"spec": {"unschedulable": True}})
        await tainted(client, [OWN, ("unschedulable", "NoSchedule")])
        await client.merge(f"{NODES}/node-1", {"spec": {"unschedulable": None}})
        pressed = [{**one, "status": "True"} if one["type"] == "DiskPressure" else one for one in conditions]
        await client.merge(f"{NODES}/node-1/status", {"status": {"conditions": pressed}})
        await tainted(client, [OWN, ("disk-pressure", "NoSchedule")])
        await client.create(NODES, recorded.request(447))
        await tainted(client, [], "node-2")
        assert (await client.ask("DELETE", f"{NODES}/node-1")).status == 200
        await event_as_recorded(client, "default", 372)


async def writes_of(client: Client, since: str) -> list[str]:
    """Return what was written on Nodes and Pods, in order."""
    found: list[tuple[int, str]] = []
    for path in (NODES, "/api/v1/pods", "/api/v1/events"):
        answer = await client.ask("GET", f"{path}?watch=1&resourceVersion={since}&timeoutSeconds=1")
        for line in answer.text.splitlines():
            obj = json.loads(line)["object"]
            found.append((int(obj["metadata"]["resourceVersion"]), f"{obj['kind']} {_state(obj)}"))
    return [what for _, what in sorted(found)]


def _state(obj: Mapping[str, Any]) -> str:
    """Return the message of an Event, or the readiness of a Node or Pod and the reason of a Node's taints."""
    if obj["kind"] == "Event":
        return str(obj["reason"])
    ready = next(one["status"] for one in obj["status"]["conditions"] if one["type"] == "Ready")
    unreachable = [effect for key, effect in taints(obj) if key == "unreachable"]
    return f"{ready} {unreachable}" if obj["kind"] == "Node" else str(ready)


async def stay(client: Client) -> None:
    """Create the recorded Pod `stays` on the Node, as its kubelet reported it; it tolerates 6 s, here 1 s."""
    for number in (56, 57):
        await client.create(recorded.exchanges()[number]["path"], recorded.request(number))
    pod = recorded.request(250)
    for toleration in pod["spec"]["tolerations"]:
        if toleration["key"].endswith("unreachable"):
            toleration["tolerationSeconds"] = 1
    await client.create(PODS, pod)
    status = copy.deepcopy(recorded.exchanges()[305]["request"]["status"])
    for condition in status["conditions"]:
        condition["status"] = "True"
    await client.merge(f"{PODS}/stays/status", {"status": status})


@pytest.mark.slow
async def test_the_only_node_turns_unknown_is_tainted_and_comes_back(tmp_path: Path) -> None:
    async with running(tmp_path, SOON) as (_, client):
        await register(client)
        node = await tainted(client, [OWN])
        await stay(client)
        since = (await client.get(f"{PODS}/stays"))["metadata"]["resourceVersion"]
        node = await tainted(client, [OWN, UNREACHABLE])
        assert recorded.comparable(node["status"]["conditions"]) == recorded.response(303)["status"]["conditions"]
        assert node["spec"]["taints"][1]["timeAdded"]
        await event_as_recorded(client, "default", 302)
        await event_as_recorded(client, "demo", 307)
        pod = recorded.comparable(await client.get(f"{PODS}/stays"))
        assert pod["status"] == recorded.comparable(recorded.exchanges()[305]["request"]["status"])
        assert await writes_of(client, since) == [
            "Node Unknown []",
            "Event NodeNotReady",
            "Node Unknown ['NoSchedule']",
            "Pod False",
            "Event NodeNotReady",
        ]  # and no NoExecute: no Node is left that is ready
        async with beating(client, "node-1"):
            conditions = recorded.exchanges()[338]["response"]["status"]["conditions"]
            again = [{**one, "lastHeartbeatTime": "2026-11-23T22:00:00Z"} for one in conditions]
            await client.merge(f"{NODES}/node-1/status", {"status": {"conditions": again}})
            await tainted(client, [OWN])


@pytest.mark.slow
async def test_pods_leave_a_silent_node_among_others_when_their_time_is_over(tmp_path: Path) -> None:
    async with running(tmp_path, SOON) as (_, client):
        for name in ("node-1", "node-2", "node-3"):
            await register(client, name)
        async with beating(client, "node-2", "node-3"):
            await stay(client)
            before = await client.get(f"{PODS}/stays")
            node = await tainted(client, [OWN, UNREACHABLE, ("unreachable", "NoExecute")])

            async def leaving() -> Any:
                pod = await client.get(f"{PODS}/stays")
                return pod if "deletionTimestamp" in pod["metadata"] else None

            pod = await eventually(leaving)
            grace = timedelta(seconds=pod["metadata"]["deletionGracePeriodSeconds"])
            deleted = datetime.fromisoformat(pod["metadata"]["deletionTimestamp"]) - grace
            added = datetime.fromisoformat(node["spec"]["taints"][-1]["timeAdded"])
            assert deleted - added >= timedelta(seconds=1), "it tolerates the taint for so long"
            real = recorded.response(474)
            for tolerations in (pod["spec"]["tolerations"], real["spec"]["tolerations"]):
                tolerations[0]["tolerationSeconds"] = 0
            assert recorded.comparable(pod) == real
            await event_as_recorded(client, "demo", 472)
            watched = await client.ask(
                "GET", f"{PODS}?watch=1&resourceVersion={before['metadata']['resourceVersion']}&timeoutSeconds=1"
            )
            states = [json.loads(line)["object"] for line in watched.text.splitlines()]
            marked = [bool(s["status"]["conditions"][-1]["type"] == "DisruptionTarget") for s in states]
            assert [(m, "deletionTimestamp" in s["metadata"]) for m, s in zip(marked, states, strict=True)] == [
                (False, False),  # not ready
                (True, False),
                (True, True),
            ]
            async with beating(client, "node-1"):
                ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-23T22:00:00Z"}
                await client.merge(f"{NODES}/node-1/status", {"status": {"conditions": [ready]}})
                await tainted(client, [OWN])


@pytest.mark.slow
async def test_renewed_lease_keeps_a_node_ready_without_writes_to_it(tmp_path: Path) -> None:
    async with running(tmp_path, SOON) as (_, client):
        await register(client)
        before = await tainted(client, [OWN])
        async with beating(client, "node-1"):
            await asyncio.sleep(1.5 * SOON.grace_s)
            assert (await get(client))["metadata"] == before["metadata"]


@pytest.mark.slow
async def test_a_restarted_server_gives_each_node_its_grace_again(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await register(client)
        await tainted(client, [OWN])
    times = NodeTimes(grace_s=1.5)
    await asyncio.sleep(times.grace_s)
    async with running(tmp_path, times) as (_, client):
        async with beating(client, "node-1"):
            await asyncio.sleep(1.5 * times.grace_s)
            assert taints(await get(client)) == [OWN]
        assert ("node-1", "NodeNotReady", "Node node-1 status is now: NodeNotReady") not in await said(client)
        await tainted(client, [OWN, UNREACHABLE])


@pytest.mark.slow
async def test_a_kubelet_that_never_reported_leaves_its_node_unknown(tmp_path: Path) -> None:
    async with running(tmp_path, SOON) as (_, client):
        await client.create(NODES, {"metadata": {"name": "node-1"}})
        node = await tainted(client, [UNREACHABLE])
        for condition in node["status"]["conditions"]:
            assert (condition["status"], condition["reason"]) == ("Unknown", "NodeStatusNeverUpdated")
            assert condition["message"] == "Kubelet never posted node status."
            assert condition["lastHeartbeatTime"] == node["metadata"]["creationTimestamp"]


@pytest.mark.slow
async def test_pods_of_a_deleted_node_are_collected_unless_it_returns_in_time(tmp_path: Path) -> None:
    times = NodeTimes(quarantine_s=2.0)
    async with running(tmp_path, times) as (_, client):
        await register(client)
        await stay(client)
        await client.ask("DELETE", f"{NODES}/node-1")
        await asyncio.sleep(0.1 * times.quarantine_s)
        await register(client)
        await asyncio.sleep(1.2 * times.quarantine_s)
        pod = await client.get(f"{PODS}/stays")
        assert "deletionTimestamp" not in pod["metadata"]
        await client.ask("DELETE", f"{NODES}/node-1")

        async def gone() -> bool:
            return (await client.ask("GET", f"{PODS}/stays")).status == 404

        await eventually(gone)
        since = pod["metadata"]["resourceVersion"]
        watched = await client.ask("GET", f"{PODS}?watch=1&resourceVersion={since}&timeoutSeconds=1")
        last = json.loads(watched.text.splitlines()[-1])["object"]
        assert last["status"]["phase"] == "Failed"
        condition = last["status"]["conditions"][-1]
        assert (condition["type"], condition["reason"]) == ("DisruptionTarget", "DeletionByPodGC")
        assert condition["message"] == "PodGC: node no longer exists"


FOR_6 = {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 6}
TAINT = {"key": "a", "value": "b", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("tolerations", "taints", "expected"),
    [
        ([], [TAINT], 0.0),
        ([{"operator": "Exists"}], [TAINT], None),
        ([FOR_6], [TAINT], 6.0),
        ([{**FOR_6, "tolerationSeconds": -3}], [TAINT], 0.0),
        ([{"key": "a", "value": "b"}], [TAINT], None),
        ([{"key": "a", "value": "c"}], [TAINT], 0.0),
        ([{"key": "a", "value": "b", "effect": "NoSchedule"}], [TAINT], 0.0),
        ([FOR_6], [TAINT, {"key": "c", "effect": "NoExecute"}], 0.0),
        ([FOR_6, {"key": "c", "operator": "Exists", "tolerationSeconds": 2}], [TAINT, {**TAINT, "key": "c"}], 2.0),
    ],
)
def test_how_long_taints_are_tolerated(
    tolerations: list[dict[str, Any]], taints: list[dict[str, Any]], expected: float | None
) -> None:
    assert tolerated_s(tolerations, taints) == expected


def test_eviction_rate_depends_on_the_share_of_unready_nodes_in_the_zone() -> None:
    zones = Zones(NEVER)

    def wait(away: int, ready: int, zone: str = "a", other: int = 0) -> float | None:
        zones.update(
            [
                *[NodeReadiness(zone, False)] * away,
                *[NodeReadiness(zone, True)] * ready,
                *[NodeReadiness("b", True)] * other,
            ]
        )
        return zones.wait_s(zone, 0.0)

    assert wait(1, 9) == 0.0
    zones.tainted("a", 0.0)
    assert wait(1, 9) == 10.0
    assert wait(6, 4) is None  # most of a small zone
    assert wait(10, 0) is None  # all of all zones
    assert wait(10, 0, other=1) == 10.0  # all of one zone
    wait(60, 40)
    zones.tainted("a", 0.0)
    assert wait(60, 40) == 100.0  # most of a large zone
    assert zone_of({"topology.kubernetes.io/zone": "z", "failure-domain.beta.kubernetes.io/region": "r"}) == "r:z"


@pytest.mark.slow
async def test_pod_bound_to_a_tainted_node_is_evicted_without_toleration(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create(NODES, {"metadata": {"name": "node-1"}})
        taint = {"key": "example.com/off", "effect": "NoExecute"}
        await client.merge(f"{NODES}/node-1", {"spec": {"taints": [taint]}})
        lease = {"metadata": {"name": "node-1", "namespace": "kube-node-lease"}, "spec": {"renewTime": None}}
        await client.create(LEASES, lease)  # which is no sign of life
        for number in (56, 57):
            await client.create(recorded.exchanges()[number]["path"], recorded.request(number))
        for name, tolerations in (("goes", []), ("stays", [{"key": "example.com/off", "operator": "Exists"}])):
            pod = recorded.request(250)
            pod["metadata"]["name"], pod["spec"]["tolerations"] = name, tolerations
            await client.create(PODS, pod)

        async def leaves() -> bool:
            return "deletionTimestamp" in (await client.get(f"{PODS}/goes"))["metadata"]

        await eventually(leaves)
        assert "deletionTimestamp" not in (await client.get(f"{PODS}/stays"))["metadata"]
