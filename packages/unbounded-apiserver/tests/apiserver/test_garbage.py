"""Dependents of a deleted object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.support import Client, golden_definitions, running
from tests.support.waiting import eventually

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
GADGETS = "/apis/example.com/v1/gadgets"
NOBODY = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with running(tmp_path) as (_, client):
        yield client


def config_map(name: str, *owners: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    meta = {"name": name, "ownerReferences": list(owners), **metadata}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}


def reference(owner: dict[str, Any], **changed: Any) -> dict[str, Any]:
    meta = owner["metadata"]
    pointed = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}
    return {**pointed, "blockOwnerDeletion": True, **changed}


async def create(client: Client, name: str, *owners: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    made: dict[str, Any] = await client.create(CONFIG_MAPS, config_map(name, *owners, **metadata))
    return made


async def found(client: Client, path: str) -> bool:
    return (await client.ask("GET", path)).status == 200


async def gone(client: Client, *paths: str) -> bool:
    return not any([await found(client, path) for path in paths])


async def delete(client: Client, path: str, policy: str) -> None:
    answer = await client.ask("DELETE", f"{path}?propagationPolicy={policy}")
    assert answer.status == 200, answer.text


async def collected(client: Client) -> None:
    """Wait until what was left to collect before this call has been: a witness that came after it is gone."""
    await create(client, "witness", {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": NOBODY})
    await eventually(lambda: gone(client, f"{CONFIG_MAPS}/witness"))


@pytest.mark.slow
async def test_foreground_deletion_spares_what_has_another_owner(client: Client) -> None:
    going, staying = await create(client, "going"), await create(client, "staying")
    await create(client, "shared", reference(going), reference(staying))
    await delete(client, f"{CONFIG_MAPS}/going", "Foreground")
    await eventually(lambda: gone(client, f"{CONFIG_MAPS}/going"))
    shared = await client.get(f"{CONFIG_MAPS}/shared")
    assert [owner["name"] for owner in shared["metadata"]["ownerReferences"]] == ["staying"]


@pytest.mark.slow
async def test_a_circle_of_owners_can_be_deleted_in_the_foreground(client: Client) -> None:
    first = await create(client, "first")
    second = await create(client, "second", reference(first))
    await client.merge(f"{CONFIG_MAPS}/first", {"metadata": {"ownerReferences": [reference(second)]}})
    await delete(client, f"{CONFIG_MAPS}/first", "Foreground")
    await eventually(lambda: gone(client, f"{CONFIG_MAPS}/first", f"{CONFIG_MAPS}/second"))


@pytest.mark.slow
async def test_dependents_of_dependents_go_first_in_the_foreground(client: Client) -> None:
    top = await create(client, "top")
    middle = await create(client, "middle", reference(top))
    await create(client, "leaf", reference(middle), finalizers=["example.com/hold"])
    await delete(client, f"{CONFIG_MAPS}/top", "Foreground")

    async def leaf_is_going() -> bool:
        return "deletionTimestamp" in (await client.get(f"{CONFIG_MAPS}/leaf"))["metadata"]

    await eventually(leaf_is_going)
    await collected(client)
    assert await found(client, f"{CONFIG_MAPS}/top")
    assert await found(client, f"{CONFIG_MAPS}/middle")
    await client.merge(f"{CONFIG_MAPS}/leaf", {"metadata": {"finalizers": None}})
    await eventually(lambda: gone(client, *(f"{CONFIG_MAPS}/{name}" for name in ("leaf", "middle", "top"))))


@pytest.mark.slow
async def test_what_comes_to_an_owner_on_its_way_out_goes_too(client: Client) -> None:
    owner = await create(client, "owner")
    await create(client, "slow", reference(owner), finalizers=["example.com/hold"])
    await delete(client, f"{CONFIG_MAPS}/owner", "Foreground")
    await create(client, "late", reference(owner))
    await eventually(lambda: gone(client, f"{CONFIG_MAPS}/late"))
    assert await found(client, f"{CONFIG_MAPS}/owner")
    await client.merge(f"{CONFIG_MAPS}/slow", {"metadata": {"finalizers": None}})
    await eventually(lambda: gone(client, f"{CONFIG_MAPS}/owner"))


@pytest.mark.slow
async def test_a_dependent_that_lets_go_no_longer_holds_its_owner(client: Client) -> None:
    owner = await create(client, "owner")
    await create(client, "slow", reference(owner), finalizers=["example.com/hold"])
    await delete(client, f"{CONFIG_MAPS}/owner", "Foreground")
    await client.merge(
        f"{CONFIG_MAPS}/slow", {"metadata": {"ownerReferences": [reference(owner, blockOwnerDeletion=False)]}}
    )
    await eventually(lambda: gone(client, f"{CONFIG_MAPS}/owner"))
    assert await found(client, f"{CONFIG_MAPS}/slow")


@pytest.mark.slow
async def test_an_owner_that_was_made_again_is_another_one(client: Client) -> None:
    owner = await create(client, "owner")
    await client.ask("DELETE", f"{CONFIG_MAPS}/owner")
    await create(client, "owner")
    await create(client, "child", reference(owner))
    await eventually(lambda: gone(client, f"{CONFIG_MAPS}/child"))
    assert await found(client, f"{CONFIG_MAPS}/owner")


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{"name": "other"}, {"kind": "Secret"}], ids=["name", "kind"])
async def test_an_owner_counts_only_where_the_reference_says_that_it_is(
    client: Client, changed: dict[str, str]
) -> None:
    owner = await create(client, "owner")
    await create(client, "child", reference(owner, **changed))
    await eventually(lambda: gone(client, f"{CONFIG_MAPS}/child"))


@pytest.mark.slow
async def test_an_owner_of_another_namespace_is_none(client: Client) -> None:
    owner = await client.create("/api/v1/namespaces/kube-public/configmaps", config_map("owner"))
    await create(client, "child", reference(owner))
    await eventually(lambda: gone(client, f"{CONFIG_MAPS}/child"))


@pytest.mark.slow
async def test_a_cluster_wide_owner_owns_in_all_namespaces(client: Client) -> None:
    namespace = await client.create("/api/v1/namespaces", {"metadata": {"name": "holder"}})
    await create(client, "child", reference(namespace))
    await collected(client)
    assert await found(client, f"{CONFIG_MAPS}/child")


@pytest.mark.slow
async def test_cluster_scoped_object_is_never_collected_for_a_namespaced_owner(client: Client) -> None:
    owner = await create(client, "owner")
    child = {"metadata": {"name": "wide", "ownerReferences": [reference(owner)]}}
    await client.create("/api/v1/namespaces", child)
    await client.ask("DELETE", f"{CONFIG_MAPS}/owner")
    await collected(client)
    wide = await client.ask("GET", "/api/v1/namespaces/wide")
    assert wide.status == 200
    assert "deletionTimestamp" not in wide.json()["metadata"]


@pytest.mark.slow
async def test_objects_with_an_owner_of_an_unserved_kind_are_not_collected(client: Client) -> None:
    owner = {"apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": NOBODY}
    await create(client, "child", owner)
    await collected(client)
    assert await found(client, f"{CONFIG_MAPS}/child")
    for definition in golden_definitions():
        await client.create(DEFINITIONS, definition)
    await eventually(lambda: gone(client, f"{CONFIG_MAPS}/child"))


@pytest.mark.slow
async def test_dependents_go_with_the_definition_of_their_owners(client: Client) -> None:
    definition = next(d for d in golden_definitions() if d["metadata"]["name"].startswith("widgets"))
    await client.create(DEFINITIONS, definition)
    widgets = "/apis/example.com/v1/namespaces/default/widgets"
    widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}}
    await create(client, "child", reference(await client.create(widgets, widget)))
    await client.ask("DELETE", f"{DEFINITIONS}/{definition['metadata']['name']}")
    await eventually(lambda: gone(client, f"{CONFIG_MAPS}/child"))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
async def test_a_thousand_dependents_are_dealt_with_in_seconds(client: Client, policy: str) -> None:
    owner = await create(client, "owner")
    names = [f"child-{number}" for number in range(1000)]
    for start in range(0, len(names), 100):
        await asyncio.gather(*(create(client, name, reference(owner)) for name in names[start : start + 100]))
    await delete(client, f"{CONFIG_MAPS}/owner", policy)

    async def settled() -> bool:
        items = (await client.get(CONFIG_MAPS))["items"]
        children = [item for item in items if item["metadata"]["name"] != "kube-root-ca.crt"]
        if policy != "Orphan":
            return not children
        return len(children) == len(names) and not any("ownerReferences" in c["metadata"] for c in children)

    await eventually(settled, within_s=20.0)
