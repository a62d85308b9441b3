"""lightkube: small, typed, on httpx; it reads lists in pages by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from lightkube import AsyncClient, KubeConfig
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import ConfigMap, Pod
from lightkube.types import CascadeType, PatchType

from tests.conformance.conftest import Cluster

pytestmark = pytest.mark.slow
LIMIT_S = 60


@pytest.fixture
async def api(cluster: Cluster, namespace: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(KubeConfig.from_file(cluster.kubeconfig), namespace=namespace) as connected:
        yield connected


def config_map(name: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, labels={"ours": "yes"}), data=data)


async def test_objects_live_and_die(api: AsyncClient) -> None:
    made = await api.create(config_map("a", key="1"))
    assert made.data is not None
    made.data["key"] = "2"
    assert (await api.replace(made)).data == {"key": "2"}
    with pytest.raises(ApiError) as stale:
        await api.replace(made)
    assert (stale.value.status.code, stale.value.status.reason) == (409, "Conflict")
    await api.delete(ConfigMap, "a", cascade=CascadeType.BACKGROUND)
    with pytest.raises(ApiError) as gone:
        await api.get(ConfigMap, "a")
    assert gone.value.status.message == 'configmaps "a" not found'


async def test_lists_are_read_in_pages(api: AsyncClient) -> None:
    for number in range(5):
        await api.create(config_map(f"m{number}"))
    names = [
        item.metadata.name async for item in api.list(ConfigMap, chunk_size=2, labels={"ours": "yes"}) if item.metadata
    ]
    assert names == [f"m{number}" for number in range(5)]
    await api.deletecollection(ConfigMap)
    assert [item async for item in api.list(ConfigMap, labels={"ours": "yes"})] == []


async def test_patches_of_every_kind(api: AsyncClient) -> None:
    await api.create(config_map("a", key="1"))
    added = [{"op": "add", "path": "/data/json", "value": "x"}]
    patched = await api.patch(ConfigMap, "a", added, patch_type=PatchType.JSON)
    assert patched.data == {"key": "1", "json": "x"}
    patched = await api.patch(ConfigMap, "a", {"data": {"json": None}}, patch_type=PatchType.MERGE)
    assert patched.data == {"key": "1"}
    replaced = {"data": {"$patch": "replace", "z": "1"}}
    assert (await api.patch(ConfigMap, "a", replaced, patch_type=PatchType.STRATEGIC)).data == {"z": "1"}


async def test_configurations_are_applied(api: AsyncClient, cluster: Cluster) -> None:
    assert (await api.apply(config_map("a", key="1"), field_manager="one")).data == {"key": "1"}
    with pytest.raises(ApiError) as conflict:
        await api.apply(config_map("a", key="2"), field_manager="two")
    assert (conflict.value.status.code, conflict.value.status.reason) == (409, "Conflict")
    assert 'conflict with "one": .data.key' in str(conflict.value.status.message)
    forced = await api.apply(config_map("a", key="2"), field_manager="two", force=True)
    assert forced.data == {"key": "2"}
    widgets = create_namespaced_resource(cluster.group, "v1", "Widget", "widgets")
    for size in (3, 4):
        widget = widgets(metadata=ObjectMeta(name="w"), spec={"size": size})
        assert (await api.apply(widget, field_manager="one"))["spec"]["size"] == size


async def test_a_watch_tells_what_happens(api: AsyncClient) -> None:
    await api.create(config_map("a"))
    seen: list[tuple[str, Any]] = []
    async with asyncio.timeout(LIMIT_S):
        async for kind, item in api.watch(ConfigMap, labels={"ours": "yes"}):
            seen.append((kind, item.metadata.name if item.metadata else None))
            if kind == "ADDED":
                await api.delete(ConfigMap, "a")
            else:
                break
    assert seen == [("ADDED", "a"), ("DELETED", "a")]


async def test_leases_pods_and_custom_objects(api: AsyncClient, cluster: Cluster) -> None:
    spec = LeaseSpec(holderIdentity="me", leaseDurationSeconds=15)
    held = await api.create(Lease(metadata=ObjectMeta(name="l"), spec=spec))
    assert held.spec is not None
    assert held.spec.holderIdentity == "me"
    gone = Pod(metadata=ObjectMeta(name="p"), spec=PodSpec(containers=[Container(name="c", image="i.invalid/none:1")]))
    made = await api.create(gone)
    assert made.status is not None
    assert made.status.phase == "Pending"
    await api.delete(Pod, "p", grace_period=0)
    widgets = create_namespaced_resource(cluster.group, "v1", "Widget", "widgets")
    widget = await api.create(widgets(metadata=ObjectMeta(name="w"), spec={"size": 3}))
    assert widget["spec"]["color"] == "red"
    with pytest.raises(ApiError) as wrong:
        await api.create(widgets(metadata=ObjectMeta(name="x"), spec={"size": 0}))
    assert "should be greater than or equal to 1" in str(wrong.value.status.message)
