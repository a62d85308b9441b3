"""Contract of every implementation of `unbounded.kube.api.Api`; it bounds the trust in the in-memory one."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

import pytest

from unbounded.api.core import CONFIG_MAPS, LEASES, NAMESPACES, NODES
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind, Object
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.api import (
    AlreadyExists,
    Api,
    Conflict,
    EventType,
    InvalidObject,
    NotFound,
    StrategicMerge,
    WatchEvent,
)

T = TypeVar("T", bound=Object)
WAIT_S = 20.0

_names = (f"contract-{os.getpid()}-{number}" for number in itertools.count(1))


@pytest.fixture
async def namespace(api: Api) -> AsyncIterator[str]:
    name = next(_names)
    await api.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    await api.delete(NAMESPACES, name)


@pytest.fixture
async def prefix(api: Api) -> AsyncIterator[str]:
    """A beginning for the names of cluster-scoped objects, which are removed after the test."""
    name = next(_names)
    yield name
    kinds: tuple[Kind[Any], ...] = (MACHINES, MACHINE_OPERATIONS)
    for kind in kinds:
        for item in (await api.list(kind)).items:
            if item.metadata.name.startswith(f"{name}-"):
                if item.metadata.finalizers:
                    await api.patch(kind, item.metadata.name, {"metadata": {"finalizers": None}})
                if not item.metadata.finalizers or item.metadata.deletion_timestamp is None:
                    await api.delete(kind, item.metadata.name)


def machine(name: str, **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **meta}, "spec": {}}


def operation(name: str, machine_ref: str = "m", **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **meta}, "spec": {"operationKind": "HostReboot", "machineRef": machine_ref}}


async def after_list(api: Api, kind: Kind[T], **selection: str) -> AsyncIterator[WatchEvent[T]]:
    """A watch that begins at the present state of the collection."""
    listing = await api.list(kind, **selection)
    return api.watch(kind, resource_version=listing.resource_version, **selection)


async def take(stream: AsyncIterator[WatchEvent[T]], count: int) -> list[WatchEvent[T]]:
    """The next events of a watch, without bookmarks."""
    events: list[WatchEvent[T]] = []
    async with asyncio.timeout(WAIT_S):
        while len(events) < count:
            event = await anext(stream)
            if event.type is not EventType.BOOKMARK:
                events.append(event)
    return events


def seen(events: list[WatchEvent[T]]) -> list[tuple[str, str]]:
    return [(event.type.value, event.object.metadata.name) for event in events if event.object]


async def wait_gone(api: Api, kind: Kind[Any], name: str, *, namespace: str = "") -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await api.get(kind, name, namespace=namespace)
            except NotFound:
                return
            await asyncio.sleep(0.02)


# ---- create and get


@pytest.mark.slow
async def test_a_created_object_is_answered_with_what_the_server_adds(api: Api, namespace: str) -> None:
    made = await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"k": "v"}}, namespace=namespace)
    assert (made.api_version, made.kind) == ("v1", "ConfigMap")
    assert (made.metadata.name, made.metadata.namespace, made.data) == ("a", namespace, {"k": "v"})
    assert made.metadata.uid
    assert int(made.metadata.resource_version) > 0
    assert made.metadata.creation_timestamp
    assert made.metadata.generation == 0  # built-in kinds without a status have none
    assert await api.get(CONFIG_MAPS, "a", namespace=namespace) == made


@pytest.mark.slow
async def test_a_name_is_taken_once(api: Api, namespace: str) -> None:
    await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace=namespace)
    with pytest.raises(AlreadyExists, match='configmaps "a" already exists') as caught:
        await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace=namespace)
    assert (caught.value.code, caught.value.reason) == (409, "AlreadyExists")


async def test_a_generated_name_begins_as_asked(api: Api, namespace: str) -> None:
    made = [
        await api.create(CONFIG_MAPS, {"metadata": {"generateName": "gen-"}}, namespace=namespace) for _ in range(2)
    ]
    assert all(one.metadata.name.startswith("gen-") for one in made)
    assert made[0].metadata.name != made[1].metadata.name


async def test_what_is_missing_is_not_found(api: Api, namespace: str) -> None:
    for call in (
        api.get(CONFIG_MAPS, "none", namespace=namespace),
        api.patch(CONFIG_MAPS, "none", {"data": {"a": "b"}}, namespace=namespace),
        api.delete(CONFIG_MAPS, "none", namespace=namespace),
    ):
        with pytest.raises(NotFound, match='configmaps "none" not found') as caught:
            await call
        assert caught.value.code == 404
    with pytest.raises(NotFound, match=r'machines\.(\S+\.)?unbounded-cloud.io "none" not found'):
        await api.get(MACHINES, "none")


async def test_nothing_is_created_in_a_namespace_that_does_not_exist(api: Api) -> None:
    with pytest.raises(NotFound, match='namespaces "nowhere" not found'):
        await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace="nowhere")


async def test_status_is_left_out_of_a_create(api: Api, prefix: str) -> None:
    made = await api.create(MACHINES, {**machine(f"{prefix}-a"), "status": {"message": "x"}})
    assert made.status.message is None
    assert made.metadata.generation == 1


async def test_plain_json_is_read_whole(api: Api, namespace: str) -> None:
    await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"k": "v"}}, namespace=namespace)
    body = await api.get(CONFIG_MAPS.raw(), "a", namespace=namespace)
    assert body["data"] == {"k": "v"}
    assert body["kind"] == "ConfigMap"
    body["data"]["k"] = "changed by the reader"
    assert (await api.get(CONFIG_MAPS.raw(), "a", namespace=namespace))["data"] == {"k": "v"}


# ---- patch


async def test_a_merge_patch_sets_removes_and_keeps(api: Api, namespace: str) -> None:
    body = {"metadata": {"name": "a", "labels": {"x": "1", "y": "2"}}, "data": {"keep": "1", "drop": "2"}}
    made = await api.create(CONFIG_MAPS, body, namespace=namespace)
    patch = {"metadata": {"labels": {"x": None}}, "data": {"drop": None, "add": "3"}}
    changed = await api.patch(CONFIG_MAPS, "a", patch, namespace=namespace)
    assert changed.data == {"keep": "1", "add": "3"}
    assert changed.metadata.labels == {"y": "2"}
    assert int(changed.metadata.resource_version) > int(made.metadata.resource_version)
    assert await api.get(CONFIG_MAPS, "a", namespace=namespace) == changed


async def test_a_strategic_merge_keeps_the_conditions_of_others(api: Api) -> None:
    name = next(_names)
    made = await api.create(NODES, {"metadata": {"name": name}})
    try:
        kubelet = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-02T03:04:05Z"}
        ours = {"type": "Drained", "status": "True", "reason": "First", "lastTransitionTime": "2026-01-02T03:04:05Z"}
        await api.patch(NODES, name, {"status": {"conditions": [kubelet, ours]}}, subresource="status")
        change = {"conditions": [{"type": "Added", "status": "True"}, {"type": "Drained", "reason": "Second"}]}
        await api.patch(NODES, name, StrategicMerge(status=change), subresource="status")
        found = (await api.get(NODES.raw(), name))["status"]["conditions"]
        fields = ("type", "status", "reason", "lastHeartbeatTime", "lastTransitionTime")
        seen = {one["type"]: {field: one[field] for field in fields if one.get(field)} for one in found}
        assert seen == {
            "Ready": kubelet,
            "Drained": ours | {"reason": "Second"},
            "Added": {"type": "Added", "status": "True"},
        }
        change = {"conditions": [{"type": "Drained", "reason": "Third"}]}
        version = {"resourceVersion": made.metadata.resource_version}
        with pytest.raises(Conflict):
            await api.patch(NODES, name, StrategicMerge(metadata=version, status=change), subresource="status")
    finally:
        await api.delete(NODES, name, uid=made.metadata.uid)


async def test_a_patch_that_changes_nothing_writes_nothing(api: Api, namespace: str) -> None:
    made = await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"k": "v"}}, namespace=namespace)
    same = await api.patch(CONFIG_MAPS, "a", {"data": {"k": "v", "absent": None}}, namespace=namespace)
    assert same == made


async def test_a_patch_of_an_object_that_has_changed_conflicts(api: Api, namespace: str) -> None:
    made = await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace=namespace)
    version = {"resourceVersion": made.metadata.resource_version}
    await api.patch(CONFIG_MAPS, "a", {"metadata": version, "data": {"k": "1"}}, namespace=namespace)
    with pytest.raises(Conflict, match="the object has been modified") as caught:
        await api.patch(CONFIG_MAPS, "a", {"metadata": version, "data": {"k": "2"}}, namespace=namespace)
    assert caught.value.code == 409
    assert (await api.get(CONFIG_MAPS, "a", namespace=namespace)).data == {"k": "1"}


async def test_status_and_the_rest_are_written_apart(api: Api, prefix: str) -> None:
    name = f"{prefix}-a"
    await api.create(MACHINES, machine(name))
    main = await api.patch(
        MACHINES, name, {"metadata": {"labels": {"a": "1"}}, "spec": {"provider": "x"}, "status": {"message": "no"}}
    )
    assert (main.spec.provider, main.status.message, main.metadata.generation) == ("x", None, 2)
    status = await api.patch(
        MACHINES,
        name,
        {"metadata": {"labels": {"a": "2"}}, "spec": {"provider": "y"}, "status": {"message": "yes"}},
        subresource="status",
    )
    assert (status.spec.provider, status.status.message) == ("x", "yes")
    assert (status.metadata.labels, status.metadata.generation) == ({"a": "1"}, 2)


async def test_generations_count_changes_of_the_spec_alone(api: Api, prefix: str) -> None:
    name = f"{prefix}-a"
    await api.create(MACHINE_OPERATIONS, operation(name))
    labelled = await api.patch(MACHINE_OPERATIONS, name, {"metadata": {"labels": {"a": "b"}}})
    assert labelled.metadata.generation == 1
    cancelled = await api.patch(MACHINE_OPERATIONS, name, {"spec": {"cancel": True}})
    assert cancelled.metadata.generation == 2


async def test_a_conflicting_status_write_is_refused(api: Api, prefix: str) -> None:
    name = f"{prefix}-a"
    made = await api.create(MACHINES, machine(name))
    await api.patch(MACHINES, name, {"metadata": {"labels": {"a": "1"}}})
    patch = {"metadata": {"resourceVersion": made.metadata.resource_version}, "status": {"message": "late"}}
    with pytest.raises(Conflict):
        await api.patch(MACHINES, name, patch, subresource="status")


async def test_what_never_changes_is_refused(api: Api, prefix: str) -> None:
    name = f"{prefix}-a"
    await api.create(MACHINES, machine(name))
    with pytest.raises(InvalidObject, match=r"metadata.uid.*immutable") as caught:
        await api.patch(MACHINES, name, {"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}})
    assert caught.value.code == 422


async def test_a_kind_without_a_status_has_no_such_subresource(api: Api, namespace: str) -> None:
    await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace=namespace)
    with pytest.raises(NotFound):
        await api.patch(CONFIG_MAPS, "a", {"data": {"a": "b"}}, namespace=namespace, subresource="status")


async def test_a_lease_is_taken_over_only_from_the_version_that_was_read(api: Api, namespace: str) -> None:
    lease = await api.create(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}}, namespace=namespace)

    def take_over(holder: str) -> Mapping[str, Any]:
        version = lease.metadata.resource_version
        return {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": holder}}

    taken = await api.patch(LEASES, "l", take_over("b"), namespace=namespace)
    assert taken.spec.holder_identity == "b"
    with pytest.raises(Conflict):
        await api.patch(LEASES, "l", take_over("c"), namespace=namespace)


async def test_lease_is_released_with_an_empty_or_absent_holder(api: Api, namespace: str) -> None:
    await api.create(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}}, namespace=namespace)
    empty = await api.patch(LEASES, "l", {"spec": {"holderIdentity": ""}}, namespace=namespace)
    assert empty.spec.holder_identity == ""
    free = await api.patch(LEASES, "l", {"spec": {"holderIdentity": None}}, namespace=namespace)
    assert free.spec.holder_identity is None


# ---- delete


async def test_a_deleted_object_is_gone(api: Api, namespace: str) -> None:
    await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace=namespace)
    await api.delete(CONFIG_MAPS, "a", namespace=namespace)
    with pytest.raises(NotFound):
        await api.get(CONFIG_MAPS, "a", namespace=namespace)


@pytest.mark.parametrize("precondition", ["uid", "resource_version"])
async def test_a_precondition_that_does_not_hold_keeps_the_object(api: Api, namespace: str, precondition: str) -> None:
    old = await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace=namespace)
    await api.delete(CONFIG_MAPS, "a", namespace=namespace)
    new = await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace=namespace)
    with pytest.raises(Conflict, match="in the precondition"):
        await api.delete(CONFIG_MAPS, "a", namespace=namespace, **{precondition: getattr(old.metadata, precondition)})
    await api.delete(
        CONFIG_MAPS,
        "a",
        namespace=namespace,
        uid=new.metadata.uid,
        resource_version=new.metadata.resource_version,
    )


async def test_a_finalizer_holds_an_object_until_it_is_removed(api: Api, prefix: str) -> None:
    name = f"{prefix}-a"
    await api.create(MACHINE_OPERATIONS, operation(name, finalizers=["unbounded-cloud.io/operation"]))
    await api.delete(MACHINE_OPERATIONS, name)
    held = await api.get(MACHINE_OPERATIONS, name)
    assert held.metadata.deletion_timestamp
    assert held.metadata.generation == 2
    await api.delete(MACHINE_OPERATIONS, name)
    assert await api.get(MACHINE_OPERATIONS, name) == held
    with pytest.raises(AlreadyExists, match="object is being deleted"):
        await api.create(MACHINE_OPERATIONS, operation(name))
    with pytest.raises(InvalidObject, match="no new finalizers can be added"):
        await api.patch(
            MACHINE_OPERATIONS, name, {"metadata": {"finalizers": [*held.metadata.finalizers, "example.com/late"]}}
        )
    last = await api.patch(MACHINE_OPERATIONS, name, {"metadata": {"finalizers": None}})
    assert last.metadata.finalizers == ()
    with pytest.raises(NotFound):
        await api.get(MACHINE_OPERATIONS, name)


async def test_dependents_go_when_their_last_owner_is_gone(api: Api, prefix: str) -> None:
    owners = [await api.create(MACHINE_OPERATIONS, operation(f"{prefix}-owner-{n}")) for n in range(2)]
    references = [
        {
            "apiVersion": owner.api_version,
            "kind": owner.kind,
            "name": owner.metadata.name,
            "uid": owner.metadata.uid,
        }
        for owner in owners
    ]
    await api.create(MACHINE_OPERATIONS, operation(f"{prefix}-one", ownerReferences=references[:1]))
    await api.create(MACHINE_OPERATIONS, operation(f"{prefix}-both", ownerReferences=references))
    await api.delete(MACHINE_OPERATIONS, f"{prefix}-owner-0")
    await wait_gone(api, MACHINE_OPERATIONS, f"{prefix}-one")
    assert (await api.get(MACHINE_OPERATIONS, f"{prefix}-both")).metadata.name
    await api.delete(MACHINE_OPERATIONS, f"{prefix}-owner-1")
    await wait_gone(api, MACHINE_OPERATIONS, f"{prefix}-both")


async def test_a_namespace_takes_what_is_in_it_along(api: Api) -> None:
    name = next(_names)
    await api.create(NAMESPACES, {"metadata": {"name": name}})
    await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace=name)
    await api.delete(NAMESPACES, name)
    await wait_gone(api, CONFIG_MAPS, "a", namespace=name)
    await wait_gone(api, NAMESPACES, name)


# ---- list


async def test_a_list_is_sorted_and_of_one_revision(api: Api, namespace: str) -> None:
    for name in ("b", "a", "c"):
        made = await api.create(CONFIG_MAPS, {"metadata": {"name": name}}, namespace=namespace)
    listing = await api.list(CONFIG_MAPS, namespace=namespace)
    names = [item.metadata.name for item in listing.items]
    assert names == sorted(names)
    assert {"a", "b", "c"} <= set(names)
    assert int(listing.resource_version) >= int(made.metadata.resource_version)


async def test_a_list_without_a_namespace_spans_all(api: Api, namespace: str) -> None:
    await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace=namespace)
    places = {(item.metadata.namespace, item.metadata.name) for item in (await api.list(CONFIG_MAPS)).items}
    assert (namespace, "a") in places


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("site=lab", ["a", "b"]),
        ("site=lab,rack!=r1", ["b"]),
        ("rack in (r1,r2)", ["a", "b"]),
        ("site,!rack", ["c"]),
        ("site notin (lab,other)", []),
    ],
)
async def test_labels_select(api: Api, namespace: str, labels: str, expected: list[str]) -> None:
    for name, own in (
        ("a", {"site": "lab", "rack": "r1"}),
        ("b", {"site": "lab", "rack": "r2"}),
        ("c", {"site": "other"}),
    ):
        await api.create(CONFIG_MAPS, {"metadata": {"name": name, "labels": own}}, namespace=namespace)
    scope = f"{labels},site in (lab,other)" if labels.startswith("site notin") else labels
    found = await api.list(CONFIG_MAPS, namespace=namespace, labels=scope)
    assert [item.metadata.name for item in found.items] == expected


async def test_fields_select(api: Api, prefix: str) -> None:
    for number in range(3):
        await api.create(MACHINE_OPERATIONS, operation(f"{prefix}-{number}", f"{prefix}-m{number % 2}"))
    patch = {"status": {"phase": "Pending"}}
    await api.patch(MACHINE_OPERATIONS, f"{prefix}-2", patch, subresource="status")

    async def names(fields: str) -> list[str]:
        return [item.metadata.name for item in (await api.list(MACHINE_OPERATIONS, fields=fields)).items]

    assert await names(f"spec.machineRef={prefix}-m0") == [f"{prefix}-0", f"{prefix}-2"]
    assert await names(f"spec.machineRef={prefix}-m0,status.phase=Pending") == [f"{prefix}-2"]
    assert await names(f"spec.machineRef={prefix}-m0,status.phase!=Pending") == [f"{prefix}-0"]
    assert await names(f"metadata.name={prefix}-1") == [f"{prefix}-1"]


async def test_a_selector_that_means_nothing_is_refused(api: Api, namespace: str) -> None:
    with pytest.raises(InvalidObject):
        await api.list(CONFIG_MAPS, namespace=namespace, labels="a=b=c")
    with pytest.raises(InvalidObject, match=r"field (label|selector)"):
        await api.list(CONFIG_MAPS, namespace=namespace, fields="data.k=v")


# ---- watch


async def test_a_watch_tells_every_change_in_order(api: Api, namespace: str) -> None:
    # A cluster publishes ConfigMap kube-root-ca.crt in each namespace, at a moment of its own.
    stream = await after_list(api, CONFIG_MAPS, namespace=namespace, labels="of=test")
    await api.create(CONFIG_MAPS, {"metadata": {"name": "a", "labels": {"of": "test"}}}, namespace=namespace)
    changed = await api.patch(CONFIG_MAPS, "a", {"data": {"k": "v"}}, namespace=namespace)
    await api.patch(CONFIG_MAPS, "a", {"data": {"k": "v"}}, namespace=namespace)  # changes nothing
    await api.delete(CONFIG_MAPS, "a", namespace=namespace)
    events = await take(stream, 3)
    assert [event.type for event in events] == [EventType.ADDED, EventType.MODIFIED, EventType.DELETED]
    assert events[1].object == changed
    revisions = [int(event.resource_version) for event in events]
    assert revisions == sorted(set(revisions))
    last = events[2].object
    assert last is not None
    assert (last.data, last.metadata.resource_version) == ({"k": "v"}, events[2].resource_version)


async def test_a_watch_goes_on_from_any_version_that_was_seen(api: Api, prefix: str) -> None:
    made = [await api.create(MACHINES, machine(f"{prefix}-{n}", labels={"run": prefix})) for n in range(3)]
    stream = api.watch(MACHINES, resource_version=made[0].metadata.resource_version, labels=f"run={prefix}")
    assert seen(await take(stream, 2)) == [("ADDED", f"{prefix}-1"), ("ADDED", f"{prefix}-2")]


async def test_a_watch_waits_for_what_is_to_come(api: Api, prefix: str) -> None:
    stream = await after_list(api, MACHINES, labels=f"run={prefix}")
    waiting = asyncio.create_task(take(stream, 1))
    await asyncio.sleep(0.01)
    await api.create(MACHINES, machine(f"{prefix}-a", labels={"run": prefix}))
    assert seen(await waiting) == [("ADDED", f"{prefix}-a")]


async def test_a_selecting_watch_sees_objects_come_and_go(api: Api, prefix: str) -> None:
    stream = await after_list(api, MACHINES, labels=f"run={prefix}")
    await api.create(MACHINES, machine(f"{prefix}-a"))
    await api.patch(MACHINES, f"{prefix}-a", {"metadata": {"labels": {"run": prefix}}})
    await api.patch(MACHINES, f"{prefix}-a", {"spec": {"provider": "x"}})
    left = await api.patch(MACHINES, f"{prefix}-a", {"metadata": {"labels": {"run": None}}})
    await api.delete(MACHINES, f"{prefix}-a")
    await api.create(MACHINES, machine(f"{prefix}-end", labels={"run": prefix}))
    events = await take(stream, 4)
    assert [event.type.value for event in events] == ["ADDED", "MODIFIED", "DELETED", "ADDED"]
    assert events[2].object is not None
    assert events[2].object.metadata.labels == {"run": prefix}  # as it last was in the selection
    assert events[2].resource_version == left.metadata.resource_version


async def test_a_watch_selects_by_fields(api: Api, prefix: str) -> None:
    fields = f"spec.machineRef={prefix}-m"
    stream = await after_list(api, MACHINE_OPERATIONS, fields=fields)
    await api.create(MACHINE_OPERATIONS, operation(f"{prefix}-other", f"{prefix}-n"))
    await api.create(MACHINE_OPERATIONS, operation(f"{prefix}-mine", f"{prefix}-m"))
    assert seen(await take(stream, 1)) == [("ADDED", f"{prefix}-mine")]


async def test_a_watch_sees_a_deletion_that_a_finalizer_holds(api: Api, prefix: str) -> None:
    stream = await after_list(api, MACHINES, labels=f"run={prefix}")
    await api.create(MACHINES, machine(f"{prefix}-a", labels={"run": prefix}, finalizers=["example.com/f"]))
    await api.delete(MACHINES, f"{prefix}-a")
    await api.patch(MACHINES, f"{prefix}-a", {"metadata": {"finalizers": None}})
    events = await take(stream, 3)
    assert [event.type.value for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    assert events[1].object is not None
    assert events[1].object.metadata.deletion_timestamp


async def test_a_watch_without_a_version_begins_with_what_there_is(api: Api, namespace: str) -> None:
    for name in ("a", "b"):
        await api.create(CONFIG_MAPS, {"metadata": {"name": name}}, namespace=namespace)
    stream = api.watch(CONFIG_MAPS, resource_version="", namespace=namespace)
    begun: list[WatchEvent[Any]] = []
    async with asyncio.timeout(WAIT_S):
        while not (begun and begun[-1].synced):
            begun.append(await anext(stream))
    assert {("ADDED", "a"), ("ADDED", "b")} <= set(seen(begun[:-1]))
    assert begun[-1].type is EventType.BOOKMARK
    assert begun[-1].object is None
    await api.patch(CONFIG_MAPS, "a", {"data": {"k": "v"}}, namespace=namespace)
    assert ("MODIFIED", "a") in seen(await take(stream, 1))
    listed = (await api.list(CONFIG_MAPS, namespace=namespace)).resource_version
    assert int(begun[-1].resource_version) < int(listed)


async def test_one_sequence_of_versions_spans_all_kinds(api: Api, namespace: str, prefix: str) -> None:
    a_namespace = await api.get(NAMESPACES, namespace)
    config_map = await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace=namespace)
    a_machine = await api.create(MACHINES, machine(f"{prefix}-a"))
    changed = await api.patch(CONFIG_MAPS, "a", {"data": {"k": "v"}}, namespace=namespace)
    objects: list[Object] = [a_namespace, config_map, a_machine, changed]
    versions = [int(one.metadata.resource_version) for one in objects]
    assert versions == sorted(set(versions))
