"""kubernetes_asyncio: the same API by another generator, on aiohttp."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes_asyncio.client.exceptions import ApiException

from tests.conformance.conftest import Cluster

pytestmark = pytest.mark.slow
LIMIT_S = 60

# Its types do not allow plain dicts, and most of it has none: so it is used without them.
client: Any = importlib.import_module("kubernetes_asyncio.client")
config: Any = importlib.import_module("kubernetes_asyncio.config")
dynamic: Any = importlib.import_module("kubernetes_asyncio.dynamic")
watch: Any = importlib.import_module("kubernetes_asyncio.watch")


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[Any]:
    settings = client.Configuration()
    await config.load_kube_config(str(cluster.kubeconfig), client_configuration=settings)
    async with client.ApiClient(settings) as connected:
        yield connected


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"ours": "yes"}}, "data": data}


async def test_objects_live_and_die(api: Any, namespace: str) -> None:
    core = client.CoreV1Api(api)
    made = await core.create_namespaced_config_map(namespace, config_map("a", key="1"))
    made.data["key"] = "2"
    await core.replace_namespaced_config_map("a", namespace, made)
    with pytest.raises(ApiException) as stale:
        await core.replace_namespaced_config_map("a", namespace, made)
    assert json.loads(stale.value.body or b"")["reason"] == "Conflict"
    options = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=made.metadata.uid))
    assert (await core.delete_namespaced_config_map("a", namespace, body=options)).status == "Success"
    with pytest.raises(ApiException) as gone:
        await core.read_namespaced_config_map("a", namespace)
    assert json.loads(gone.value.body or b"")["message"] == 'configmaps "a" not found'


async def test_lists_are_read_in_pages(api: Any, namespace: str) -> None:
    core = client.CoreV1Api(api)
    for number in range(5):
        await core.create_namespaced_config_map(namespace, config_map(f"m{number}"))
    first = await core.list_namespaced_config_map(namespace, label_selector="ours", limit=3)
    assert len(first.items) == 3
    token = first.metadata._continue
    rest = await core.list_namespaced_config_map(namespace, label_selector="ours", limit=3, _continue=token)
    assert [item.metadata.name for item in (*first.items, *rest.items)] == [f"m{number}" for number in range(5)]


async def test_patches_of_every_kind(api: Any, namespace: str) -> None:
    core = client.CoreV1Api(api)
    await core.create_namespaced_config_map(namespace, config_map("a", key="1"))

    async def patch(body: Any, kind: str) -> dict[str, str]:
        sent = await core.patch_namespaced_config_map("a", namespace, body, _content_type=f"application/{kind}")
        data: dict[str, str] = sent.data
        return data

    added = [{"op": "add", "path": "/data/json", "value": "x"}]
    assert await patch(added, "json-patch+json") == {"key": "1", "json": "x"}
    assert await patch({"data": {"json": None}}, "merge-patch+json") == {"key": "1"}
    assert await patch({"data": {"$patch": "replace", "z": "1"}}, "strategic-merge-patch+json") == {"z": "1"}


async def test_configurations_are_applied(api: Any, namespace: str) -> None:
    core = client.CoreV1Api(api)

    async def apply(manager: str, *, force: bool = False, **data: str) -> Any:
        head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
        how = {"field_manager": manager, "force": force, "_content_type": "application/apply-patch+yaml"}
        return await core.patch_namespaced_config_map("a", namespace, {**head, "data": data}, **how)

    assert (await apply("one", key="1")).data == {"key": "1"}
    with pytest.raises(ApiException) as conflict:
        await apply("two", key="2")
    causes = json.loads(conflict.value.body or b"")["details"]["causes"]
    assert [(cause["reason"], cause["field"]) for cause in causes] == [("FieldManagerConflict", ".data.key")]
    forced = await apply("two", force=True, key="2")
    assert [entry.manager for entry in forced.metadata.managed_fields] == ["two"]
    assert (await apply("two", other="3")).data == {"other": "3"}


async def test_a_watch_tells_what_happens(api: Any, namespace: str) -> None:
    core = client.CoreV1Api(api)
    start = (await core.list_namespaced_config_map(namespace)).metadata.resource_version
    seen: list[tuple[str, str]] = []

    async def look() -> None:
        async with watch.Watch() as watcher:
            async for event in watcher.stream(
                core.list_namespaced_config_map, namespace, label_selector="ours", resource_version=start
            ):
                seen.append((event["type"], event["object"].metadata.name))
                if event["type"] == "DELETED":
                    return

    async with asyncio.timeout(LIMIT_S):
        looking = asyncio.create_task(look())
        await core.create_namespaced_config_map(namespace, config_map("a"))
        await core.delete_namespaced_config_map("a", namespace)
        await looking
    assert seen == [("ADDED", "a"), ("DELETED", "a")]


async def test_leases_and_custom_objects(api: Any, cluster: Cluster, namespace: str) -> None:
    leases = client.CoordinationV1Api(api)
    spec = client.V1LeaseSpec(holder_identity="me", lease_duration_seconds=15)
    await leases.create_namespaced_lease(namespace, client.V1Lease(metadata={"name": "l"}, spec=spec))
    held = await leases.read_namespaced_lease("l", namespace)
    held.spec.holder_identity = "you"
    assert (await leases.replace_namespaced_lease("l", namespace, held)).spec.holder_identity == "you"
    custom = client.CustomObjectsApi(api)
    where = (cluster.group, "v1", namespace, "widgets")
    widget = {"apiVersion": f"{cluster.group}/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 3}}
    assert (await custom.create_namespaced_custom_object(*where, widget))["spec"]["color"] == "red"
    with pytest.raises(ApiException) as wrong:
        await custom.create_namespaced_custom_object(*where, {**widget, "spec": {"size": 0}})
    assert wrong.value.status == 422
    async with dynamic.DynamicClient(api) as found:
        widgets = await found.resources.get(api_version=f"{cluster.group}/v1", kind="Widget")
        assert (await widgets.get(name="w", namespace=namespace)).spec.size == 3
        await widgets.delete(name="w", namespace=namespace)
