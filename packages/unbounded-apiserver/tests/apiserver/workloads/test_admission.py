"""The server's additions to Pods and Services, compared with the recording of a kubelet's life."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver import recorded
from tests.apiserver.support import Client, client_of, running
from tests.support.waiting import eventually
from unbounded_apiserver.server import ApiServer

pytestmark = pytest.mark.slow

PODS = "/api/v1/namespaces/demo/pods"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
MERGE = {"Content-Type": "application/merge-patch+json"}
SETUP = (56, 57, 58, 59)  # namespace, service account, config map, secret


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    """A server with what the recorded Pods refer to."""
    async with running(tmp_path) as (server, client):
        for number in SETUP:
            await client.create(recorded.exchanges()[number]["path"], recorded.request(number))
        yield server, client


async def refused(client: Client, pod: dict[str, Any]) -> str:
    answer = await client.ask("POST", PODS, pod)
    assert answer.status == 403, answer.text
    return str(answer.json()["message"])


def bare(name: str = "p", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i:1"}], **spec}}


async def test_pods_and_services_get_what_a_real_server_adds(served: tuple[ApiServer, Client]) -> None:
    _, client = served
    for number in (60, 61, 131, 220):
        exchange = recorded.exchanges()[number]
        answer = await client.create(exchange["path"], recorded.request(number))
        assert recorded.comparable(answer) == recorded.response(number), number
    app = await client.get(f"{PODS}/app")
    volume = app["spec"]["volumes"][-1]["name"]
    for container in (*app["spec"]["initContainers"], *app["spec"]["containers"]):
        assert container["volumeMounts"][-1]["name"] == volume


async def test_a_mirror_pod_gets_a_priority_and_no_account(served: tuple[ApiServer, Client]) -> None:
    server, client = served
    await client.create("/api/v1/nodes", {"metadata": {"name": "node-1"}})
    uid = (await client.get("/api/v1/nodes/node-1"))["metadata"]["uid"]
    pod = recorded.request(278)
    pod["metadata"]["ownerReferences"][0]["uid"] = uid
    async with client_of(server, "system:node:node-1", "system:nodes") as node:
        answer = await node.create("/api/v1/namespaces/kube-system/pods", pod)
    assert recorded.comparable(answer) == recorded.response(278)
    for spec, why in (
        ({"serviceAccountName": "app"}, "a mirror pod may not reference service accounts"),
        ({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}, "a mirror pod may not reference secrets"),
        (
            {"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]},
            "a mirror pod may not use ServiceAccountToken volume projections",
        ),
    ):
        wrong = bare(**spec)
        wrong["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
        assert await refused(client, wrong) == f'pods "p" is forbidden: {why}'


async def test_an_account_that_does_not_exist_refuses_the_pod(served: tuple[ApiServer, Client]) -> None:
    _, client = served
    why = 'error looking up service account demo/nobody: serviceaccount "nobody" not found'
    assert await refused(client, bare(serviceAccountName="nobody")) == f'pods "p" is forbidden: {why}'


async def test_service_account_sets_token_mount_and_image_pull_secrets(
    served: tuple[ApiServer, Client],
) -> None:
    _, client = served
    secrets = [{"name": "pull"}]
    account = {"automountServiceAccountToken": False, "imagePullSecrets": secrets}
    await client.merge("/api/v1/namespaces/demo/serviceaccounts/app", account)
    spec = (await client.create(PODS, bare("without", serviceAccountName="app")))["spec"]
    assert "volumes" not in spec
    assert spec["imagePullSecrets"] == secrets
    asks = bare("with", serviceAccountName="app", automountServiceAccountToken=True)
    spec = (await client.create(PODS, asks))["spec"]
    assert [volume["name"][:16] for volume in spec["volumes"]] == ["kube-api-access-"]
    own = [{"name": "mine", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]
    mounted = bare("mounted", volumes=[{"name": "mine", "emptyDir": {}}])
    mounted["spec"]["containers"][0]["volumeMounts"] = own
    spec = (await client.create(PODS, mounted))["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["mine"]


async def test_priority_comes_from_a_class(served: tuple[ApiServer, Client]) -> None:
    _, client = served
    spec = (await client.create(PODS, bare("critical", priorityClassName="system-node-critical")))["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (2_000_001_000, "PreemptLowerPriority")
    assert await refused(client, bare(priorityClassName="no")) == (
        'pods "p" is forbidden: no PriorityClass with name no was found'
    )
    assert await refused(client, bare(priority=7)) == (
        'pods "p" is forbidden: the integer value of priority (7) must not be provided in pod spec; '
        "priority admission controller computed 0 from the given PriorityClass name"
    )
    assert "the string value of PreemptionPolicy (Never)" in await refused(client, bare(preemptionPolicy="Never"))
    await client.create(CLASSES, {"metadata": {"name": "usual"}, "value": 5, "globalDefault": True})
    spec = (await client.create(PODS, bare("usual")))["spec"]
    assert (spec["priority"], spec["priorityClassName"]) == (5, "usual")
    kept = await client.ask(
        "PUT", f"{PODS}/usual", {**await client.get(f"{PODS}/usual"), "metadata": {"name": "usual"}}
    )
    assert kept.status == 200, kept.text


async def test_priority_classes_have_rules(served: tuple[ApiServer, Client]) -> None:
    _, client = served
    await client.create(CLASSES, {"metadata": {"name": "one"}, "value": 1, "globalDefault": True})
    for name, value, more, code, words in (
        ("two", 2, {"globalDefault": True}, 403, "PriorityClass one is already marked as default. Only one default"),
        ("system-mine", 2, {}, 422, "reserved for system use only. error: system-mine is not a known system priority"),
        ("high", 1_000_000_001, {}, 422, "maximum allowed value of a user defined priority is 1000000000"),
        ("odd", 1, {"preemptionPolicy": "Ever"}, 422, 'supported values: "Never", "PreemptLowerPriority"'),
    ):
        answer = await client.ask("POST", CLASSES, {"metadata": {"name": name}, "value": value, **more})
        assert answer.status == code, answer.text
        assert words in answer.json()["message"]
    changed = await client.ask("PATCH", f"{CLASSES}/one", {"value": 3, "preemptionPolicy": "Never"}, headers=MERGE)
    assert changed.json()["message"].count("may not be changed in an update.") == 1
    assert "field is immutable" in changed.json()["message"]


async def test_tolerations_of_the_pods_own_stand(served: tuple[ApiServer, Client]) -> None:
    _, client = served
    mine = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    spec = (await client.create(PODS, bare(tolerations=[{**mine, "tolerationSeconds": 6}])))["spec"]
    assert [t["tolerationSeconds"] for t in spec["tolerations"]] == [6, 300]
    spec = (await client.create(PODS, bare("all", tolerations=[{"operator": "Exists"}])))["spec"]
    assert spec["tolerations"] == [{"operator": "Exists"}]


async def test_each_namespace_has_the_root_ca_readable_by_nodes_of_pods(served: tuple[ApiServer, Client]) -> None:
    server, client = served
    path = "/api/v1/namespaces/demo/configmaps/kube-root-ca.crt"

    async def there() -> Any:
        answer = await client.ask("GET", path)
        return answer.json() if answer.status == 200 else None

    found = await eventually(there)
    real = next(e["object"] for e in recorded.exchanges()[66]["events"] if e["type"] == "ADDED")
    assert found["data"] == {"ca.crt": (server.data_dir / "pki" / "ca.crt").read_text()}
    assert {**recorded.comparable(found), "data": real["data"]} == recorded.comparable(real)
    async with client_of(server, "system:node:node-1", "system:nodes") as node:
        assert (await node.ask("GET", path)).status == 403
        await client.create(PODS, recorded.request(61))
        assert (await node.ask("GET", path)).status == 200
    await client.merge(path, {"data": {"ca.crt": "another"}})

    async def corrected() -> bool:
        return bool((await client.get(path))["data"] == found["data"])

    await eventually(corrected)
    await client.ask("DELETE", path)
    await eventually(there)
