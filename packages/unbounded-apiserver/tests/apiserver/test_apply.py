"""Server-side apply over HTTP, where the recorded exchanges do not go: input that is wrong, and edited owners."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.apiserver.support import Answer, Client, client_identity, golden_definitions, running
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
HEAD = {"apiVersion": "example.com/v1", "kind": "Widget"}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with running(tmp_path) as (_, found):
        for definition in golden_definitions():
            await found.create(DEFINITIONS, definition)

        async def served() -> bool:
            return (await found.ask("GET", WIDGETS)).status == 200

        await eventually(served)
        yield found


async def apply(client: Client, body: Any, manager: str = "m", flags: str = "", name: str = "one") -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/apply-patch+yaml"}
    return await client.ask("PATCH", f"{WIDGETS}/{name}?fieldManager={manager}{flags}", headers=headers, data=data)


def widget(**spec: Any) -> dict[str, Any]:
    return {**HEAD, "metadata": {"name": "one"}, "spec": {"size": 3, **spec}}


def nested(depth: int) -> bytes:
    return json.dumps(widget(extra=0)).replace('"extra": 0', '"extra": ' + '{"a":' * depth + "1" + "}" * depth).encode()


WRONG: dict[str, Any] = {
    "no object": b"[]",
    "nothing": b"",
    "not utf-8": b"\xff\xfe\x00",
    "a string as metadata": {**HEAD, "metadata": "x"},
    "a list as labels": {**HEAD, "metadata": {"name": "one", "labels": []}, "spec": {"size": 3}},
    "a number as annotations": {**HEAD, "metadata": {"name": "one", "annotations": 1}, "spec": {"size": 3}},
    "a number as resourceVersion": {**HEAD, "metadata": {"name": "one", "resourceVersion": 1}, "spec": {"size": 3}},
    "a list as kind": {"apiVersion": "example.com/v1", "kind": ["Widget"]},
    "another version": {"apiVersion": "example.com/v9", "kind": "Widget"},
    "a string as spec": {**HEAD, "spec": "x"},
    "an object as list": widget(tags={"a": 1}),
    "deep": nested(700),
    "very deep": nested(5000),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("exists", [False, True])
async def test_wrong_configurations_are_refused_and_change_nothing(client: Client, what: str, exists: bool) -> None:
    if exists:
        await client.create(WIDGETS, widget(title="here"))
    before = (await client.get(WIDGETS))["items"]
    answer = await apply(client, WRONG[what], "kubectl")
    assert 400 <= answer.status < 500, answer.text
    assert answer.json()["kind"] == "Status"
    assert (await client.get(WIDGETS))["items"] == before


async def test_elements_of_a_keyed_list_have_to_be_objects(client: Client) -> None:
    answer = await apply(client, widget(ports=["web"]))
    assert "associative list with keys may not have non-map elements" in answer.text


async def test_status_and_spec_have_managers_of_their_own(client: Client) -> None:
    await apply(client, widget())
    headers = {"Content-Type": "application/merge-patch+json", "User-Agent": "operator/1.0 (linux)"}
    body = {"status": {"phase": "Ready"}}
    await client.ask("PATCH", f"{WIDGETS}/one/status", body, headers=headers)
    managed = (await client.get(f"{WIDGETS}/one"))["metadata"]["managedFields"]
    assert [(e["manager"], e["operation"], e.get("subresource")) for e in managed] == [
        ("m", "Apply", None),
        ("operator", "Update", "status"),
    ]


async def test_an_owner_can_be_edited_and_garbage_leaves_owners_as_they_are(client: Client) -> None:
    await apply(client, widget(title="hello"))
    stored = await client.get(f"{WIDGETS}/one")
    await client.merge(f"{WIDGETS}/one", {"metadata": {"managedFields": [{"operation": "Steal"}]}})
    assert await client.get(f"{WIDGETS}/one") == stored
    renamed = [{**stored["metadata"]["managedFields"][0], "manager": "other"}]
    await client.merge(f"{WIDGETS}/one", {"metadata": {"managedFields": renamed}})
    assert (await apply(client, widget(size=4), "m")).status == 409
    assert (await apply(client, widget(size=4), "other")).status == 200


async def test_an_update_that_changes_nothing_keeps_owners_and_version(client: Client) -> None:
    await apply(client, widget())
    before = await client.get(f"{WIDGETS}/one")
    without = {**before, "metadata": {k: v for k, v in before["metadata"].items() if k != "managedFields"}}
    answer = await client.ask("PUT", f"{WIDGETS}/one", without)
    assert answer.json() == before


async def test_deep_managed_fields_are_not_kept(client: Client) -> None:
    await apply(client, widget())
    before = await client.get(f"{WIDGETS}/one")
    fields: dict[str, Any] = {}
    for _ in range(150):
        fields = {"f:a": fields}
    entry = {"manager": "x", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": fields}
    await client.merge(f"{WIDGETS}/one", {"metadata": {"managedFields": [entry]}})
    assert await client.get(f"{WIDGETS}/one") == before


@pytest.mark.parametrize("depth", [60, 120, 240])
async def test_a_deep_object_is_written_or_refused_with_a_reason(client: Client, depth: int) -> None:
    answer = await client.ask("POST", WIDGETS, data=nested(depth))
    assert answer.status == 201 or "exceeded max depth" in answer.text
    patch = nested(depth).replace(b'{"a": 1}', b'{"a": 2}').replace(b'{"a":1}', b'{"a":2}')
    headers = {"Content-Type": "application/merge-patch+json"}
    assert (await client.ask("PATCH", f"{WIDGETS}/one", headers=headers, data=patch)).status < 500


def managers(obj: dict[str, Any]) -> list[tuple[str, str, str]]:
    entries = obj["metadata"].get("managedFields", ())
    return [(e["manager"], e["operation"], e.get("subresource", "")) for e in entries]


async def test_conflicts_name_their_managers_and_fields(client: Client) -> None:
    await apply(client, widget(title="hello"), "one")
    refused = await apply(client, widget(title="other", size=4), "two")
    assert refused.status == 409
    said = refused.json()
    assert said["reason"] == "Conflict"
    assert said["message"] == ('Apply failed with 2 conflicts: conflicts with "one":\n- .spec.size\n- .spec.title')
    assert said["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": f".spec.{name}"}
        for name in ("size", "title")
    ]


async def test_owners_survive_a_restart_and_are_seen_by_every_kind_of_read(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "a"}, "data": {"k": "v"}})
        before = await client.get("/api/v1/namespaces/default/configmaps/a")
    assert before["metadata"]["managedFields"]
    async with running(tmp_path) as (_, client):
        path = "/api/v1/namespaces/default/configmaps"
        assert await client.get(f"{path}/a") == before
        items = (await client.get(path))["items"]
        assert next(i for i in items if i["metadata"]["name"] == "a")["metadata"] == before["metadata"]
        watched = await client.ask("GET", f"{path}?watch=true&fieldSelector=metadata.name%3Da&timeoutSeconds=1")
        assert json.loads(watched.text.splitlines()[0])["object"]["metadata"] == before["metadata"]
        only = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}
        assert (await client.ask("GET", f"{path}/a", headers=only)).json()["metadata"] == before["metadata"]
        table = {"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}
        shown = (await client.ask("GET", f"{path}/a", headers=table)).json()
        assert shown["rows"][0]["object"]["metadata"] == before["metadata"]


async def test_an_empty_entry_forgets_all_owners_and_null_none(client: Client) -> None:
    await apply(client, widget())
    before = await client.get(f"{WIDGETS}/one")
    assert await client.merge(f"{WIDGETS}/one", {"metadata": {"managedFields": None}}) == before
    cleared = await client.merge(f"{WIDGETS}/one", {"metadata": {"managedFields": [{}]}})
    assert "managedFields" not in cleared["metadata"]
    await client.merge(f"{WIDGETS}/one", {"spec": {"title": "tt"}})
    assert managers(await client.get(f"{WIDGETS}/one")) == []
    await apply(client, widget(), "m")
    assert managers(await client.get(f"{WIDGETS}/one")) == [("m", "Apply", ""), ("before-first-apply", "Update", "")]


async def test_a_json_patch_sees_owners_and_can_edit_them(client: Client) -> None:
    await apply(client, widget(), "m")
    headers = {"Content-Type": "application/json-patch+json"}
    where = "/metadata/managedFields/0/manager"
    wrong = [{"op": "test", "path": where, "value": "x"}]
    assert (await client.ask("PATCH", f"{WIDGETS}/one", wrong, headers=headers)).status == 422
    edit = [{"op": "test", "path": where, "value": "m"}, {"op": "replace", "path": where, "value": "n"}]
    assert (await client.ask("PATCH", f"{WIDGETS}/one", edit, headers=headers)).status == 200
    assert managers(await client.get(f"{WIDGETS}/one")) == [("n", "Apply", "")]


async def test_owners_that_come_with_a_new_object_do_not_count(client: Client) -> None:
    await apply(client, widget(), "m")
    copied = (await client.get(f"{WIDGETS}/one"))["metadata"]["managedFields"]
    body = {**widget(), "metadata": {"name": "two", "managedFields": copied}}
    answer = await client.ask("POST", f"{WIDGETS}?fieldManager=maker", body)
    assert managers(answer.json()) == [("maker", "Update", "")]


async def test_apply_recreates_a_deleted_object_unless_it_names_the_old_uid(client: Client) -> None:
    first = (await apply(client, widget())).json()
    await client.ask("DELETE", f"{WIDGETS}/one")
    named = {**widget(), "metadata": {"name": "one", "uid": first["metadata"]["uid"]}}
    refused = await apply(client, named)
    assert (refused.status, refused.json()["reason"]) == (409, "Conflict")
    assert "uid mismatch" in refused.json()["message"]
    again = await apply(client, widget())
    assert again.status == 201
    assert again.json()["metadata"]["uid"] != first["metadata"]["uid"]
    stale = {**widget(size=5), "metadata": {"name": "one", "resourceVersion": first["metadata"]["resourceVersion"]}}
    assert (await apply(client, stale)).json()["reason"] == "Conflict"


async def test_a_dry_run_shows_owners_and_leaves_no_trace(client: Client) -> None:
    made = (await apply(client, widget(), "m", "&dryRun=All")).json()
    assert managers(made) == [("m", "Apply", "")]
    assert "resourceVersion" not in made["metadata"]
    assert (await client.ask("GET", f"{WIDGETS}/one")).status == 404
    await apply(client, widget(), "m")
    before = await client.get(f"{WIDGETS}/one")
    changed = (await apply(client, widget(size=9), "n", "&dryRun=All&force=true")).json()
    assert managers(changed) == [("n", "Apply", "")]
    assert await client.get(f"{WIDGETS}/one") == before


async def test_the_status_is_applied_at_its_own_place_alone(client: Client) -> None:
    await apply(client, {**widget(), "status": {"phase": "Lost"}}, "m")
    headers = {"Content-Type": "application/apply-patch+yaml"}
    body = {
        **HEAD,
        "metadata": {"name": "one", "labels": {"a": "b"}},
        "spec": {"size": 9},
        "status": {"phase": "Ready"},
    }
    answer = await client.ask("PATCH", f"{WIDGETS}/one/status?fieldManager=m", body, headers=headers)
    assert answer.status == 200, answer.text
    stored = await client.get(f"{WIDGETS}/one")
    assert (stored["spec"]["size"], stored["status"]) == (3, {"phase": "Ready"})
    assert "labels" not in stored["metadata"]
    assert managers(stored) == [("m", "Apply", ""), ("m", "Apply", "status")]


async def test_what_is_being_deleted_keeps_its_owners(client: Client) -> None:
    body = {**widget(), "metadata": {"name": "one", "finalizers": ["example.com/hold"]}}
    owners = (await apply(client, body, "m")).json()["metadata"]["managedFields"]
    marked = (await client.ask("DELETE", f"{WIDGETS}/one")).json()
    assert marked["metadata"]["managedFields"] == owners
    assert (await client.get(f"{WIDGETS}/one"))["metadata"]["managedFields"] == owners


async def test_apply_of_a_role_prevents_escalation_and_needs_create_for_new_roles(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, admin):
        roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles"
        rule = {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["get", "patch"]}
        await admin.create(roles, {"metadata": {"name": "keeper"}, "rules": [rule]})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "keeper"}
        subjects = [{"kind": "User", "name": "alice"}]
        bound = {"metadata": {"name": "keeper"}, "roleRef": reference, "subjects": subjects}
        await admin.create(roles.replace("roles", "rolebindings"), bound)
        await admin.create(roles, {"metadata": {"name": "mine"}, "rules": []})

        async def applied(client: Client, name: str, verb: str) -> Answer:
            rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": [verb]}] if verb else []
            head = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}}
            headers = {"Content-Type": "application/apply-patch+yaml"}
            path = f"{roles}/{name}?fieldManager=m&force=true"
            return await client.ask("PATCH", path, {**head, "rules": rules}, headers=headers)

        connector = aiohttp.TCPConnector(ssl=client_identity(server.data_dir, "alice"))
        async with aiohttp.ClientSession(connector=connector) as session:
            alice = Client(session, server.url)
            raised = await applied(alice, "mine", "get")
            assert raised.status == 403
            assert "attempting to grant RBAC permissions not currently held" in raised.text
            assert (await applied(alice, "mine", "")).status == 200
            made = await applied(alice, "new", "")
            assert made.status == 403
            assert 'User "alice" cannot create resource "roles"' in made.json()["message"]
        assert (await applied(admin, "mine", "get")).status == 200


async def test_duplicate_key_in_an_apply_is_warned_or_rejected(client: Client) -> None:
    twice = b"apiVersion: example.com/v1\nkind: Widget\nmetadata:\n  name: one\nspec:\n  size: 3\n  size: 4\n"
    refused = await apply(client, twice, flags="&fieldValidation=Strict")
    assert refused.status == 400
    assert refused.json()["message"].startswith("error strict decoding YAML: error converting YAML to JSON: yaml: ")
    told = await apply(client, twice)
    assert told.status == 201
    assert told.headers["Warning"] == '299 - "line 7: key \\"size\\" already set in map"'


async def test_a_port_without_a_protocol_is_the_one_of_tcp(client: Client) -> None:
    services = "/api/v1/namespaces/default/services"

    async def applied(*ports: int, manager: str) -> list[int]:
        spec = {"clusterIP": "None", "ports": [{"name": f"p{port}", "port": port} for port in ports]}
        body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": spec}
        headers = {"Content-Type": "application/apply-patch+yaml"}
        path = f"{services}/s?fieldManager={manager}"
        answer = await client.ask("PATCH", path, headers=headers, data=json.dumps(body).encode())
        assert answer.status in {200, 201}, answer.json()
        return sorted(port["port"] for port in answer.json()["spec"]["ports"])

    assert await applied(1, 2, manager="a") == [1, 2]
    assert await applied(3, manager="b") == [1, 2, 3]
    assert await applied(2, manager="a") == [2, 3]
