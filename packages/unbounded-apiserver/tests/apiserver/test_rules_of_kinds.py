"""Valid objects of the built-in kinds, and valid metadata, with the messages of Kubernetes."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.support import Answer, Client, golden_definitions, running
from unbounded_apiserver import type_descriptors
from unbounded_apiserver.core_types import NODE
from unbounded_apiserver.writes import OBJECT_BYTES

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CORE = "/api/v1/namespaces/default"
CONFIG_MAPS, SECRETS = f"{CORE}/configmaps", f"{CORE}/secrets"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
MIB = 1024 * 1024
SUBDOMAIN = "a lowercase RFC 1123 subdomain must consist of"
NOT_QUALIFIED = "name is neither a standard finalizer name nor is it fully qualified"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with running(tmp_path) as (_, client):
        yield client


def named(name: str = "x", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}}


def owner(uid: str = "u", **changed: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": uid, **changed}


def causes(answer: Answer) -> list[tuple[str, str]]:
    assert answer.status == 422, answer.text
    found = answer.json()["details"]["causes"]
    return list(dict.fromkeys((cause["field"], cause["message"]) for cause in found))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"ownerReferences": [owner(apiVersion="")]},
         [("metadata.ownerReferences.apiVersion", 'Invalid value: "": version must not be empty')]),
        ({"ownerReferences": [owner(apiVersion="a/b/c")]},
         [("metadata.ownerReferences.apiVersion", 'Invalid value: "a/b/c": version must not be empty')]),
        ({"ownerReferences": [owner(kind="Event")]},
         [("metadata.ownerReferences", 'Invalid value: {"apiVersion":"v1","kind":"Event","name":"o","uid":"u"}: '
           "/v1, Kind=Event is disallowed from being an owner")]),
        ({"finalizers": ["orphan", "foregroundDeletion"]},
         [("metadata.finalizers", 'Invalid value: ["orphan","foregroundDeletion"]: '
           "finalizer orphan and foregroundDeletion cannot be both set")]),
        ({"finalizers": ["example.com/a", "hold"]},
         [("metadata.finalizers[1]", f'Invalid value: "hold": {NOT_QUALIFIED}')]),
        ({"annotations": {"a": "ä" * (128 * 1024)}},
         [("metadata.annotations", "Too long: may not be more than 262144 bytes")]),
    ],
)  # fmt: skip
async def test_what_may_not_stand_in_metadata(
    client: Client, metadata: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert causes(await client.ask("POST", CONFIG_MAPS, named(**metadata))) == expected


@pytest.mark.slow
async def test_a_prefix_of_names_is_checked_as_a_name_that_goes_on(client: Client) -> None:
    refused = causes(await client.ask("POST", CONFIG_MAPS, {"metadata": {"generateName": "A_"}}))
    assert [field for field, _ in refused] == ["metadata.generateName", "metadata.name"]
    assert refused[0][1].startswith(f'Invalid value: "A_": {SUBDOMAIN}')
    made = await client.create(CONFIG_MAPS, {"metadata": {"generateName": "a-"}})
    assert len(made["metadata"]["name"]) == len("a-") + 5
    long = await client.create(CONFIG_MAPS, {"metadata": {"generateName": "a" * 100}})
    assert len(long["metadata"]["name"]) == 63


@pytest.mark.slow
async def test_owners_that_are_named_twice_are_kept_once(client: Client) -> None:
    words = (
        ".metadata.ownerReferences contains duplicate entries{}; API server dedups owner references in 1.20+, and may "
        "reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: u"
    )
    holder = await client.create(CONFIG_MAPS, named("o"))
    uid = holder["metadata"]["uid"]
    twice = [owner(uid), owner(uid), owner(uid, controller=True)]
    answer = await client.ask("POST", CONFIG_MAPS, named(ownerReferences=twice))
    assert answer.status == 201
    assert answer.warnings == [f'299 - "{words.format("").replace("observed: u", f"observed: {uid}")}"']
    assert answer.json()["metadata"]["ownerReferences"] == [owner(uid), owner(uid, controller=True)]
    answer = await client.ask(
        "PATCH",
        f"{CONFIG_MAPS}/x",
        {"metadata": {"ownerReferences": [owner(uid), owner(uid)]}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert answer.warnings[0].startswith('299 - ".metadata.ownerReferences contains duplicate entries after mutating')
    assert answer.json()["metadata"]["ownerReferences"] == [owner(uid)]


@pytest.mark.slow
async def test_an_update_does_not_move_the_time_of_deletion(client: Client) -> None:
    await client.create(CONFIG_MAPS, named(finalizers=["example.com/hold"]))
    await client.ask("DELETE", f"{CONFIG_MAPS}/x")
    going = await client.get(f"{CONFIG_MAPS}/x")
    for moment in ("2020-01-01T00:00:00Z", None):
        patched = await client.merge(f"{CONFIG_MAPS}/x", {"metadata": {"deletionTimestamp": moment}})
        assert patched == going


@pytest.mark.slow
async def test_unqualified_finalizer_is_rejected_on_core_kinds_and_warned_elsewhere(client: Client) -> None:
    for definition in golden_definitions():
        await client.create(DEFINITIONS, definition)
    widget = {"apiVersion": "example.com/v1", "kind": "Widget", **named(finalizers=["hold"]), "spec": {"size": 1}}
    accepted = await client.ask("POST", WIDGETS, widget)
    assert accepted.status == 201
    assert "prefer a domain-qualified finalizer name" in accepted.warnings[0]
    assert (await client.ask("POST", LEASES, named(finalizers=["hold"]))).status == 201
    assert (await client.ask("POST", CONFIG_MAPS, named(finalizers=["orphan"]))).status == 201
    patch = {"metadata": {"finalizers": ["hold"]}}
    merged = await client.ask(
        "PATCH", f"{CONFIG_MAPS}/x", patch, headers={"Content-Type": "application/merge-patch+json"}
    )
    assert causes(merged) == [("metadata.finalizers[0]", f'Invalid value: "hold": {NOT_QUALIFIED}')]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "status"), [(MIB, 201), (MIB + 1, 422)])
async def test_data_may_have_a_mebibyte(client: Client, size: int, status: int) -> None:
    encoded = base64.b64encode(b"x" * size).decode()
    secret = await client.ask("POST", SECRETS, {**named(), "data": {"k": encoded}})
    text = await client.ask("POST", SECRETS, {**named("text"), "stringData": {"k": "x" * size}})
    binary = await client.ask("POST", CONFIG_MAPS, {**named(), "binaryData": {"k": encoded}})
    umlauts = json.dumps({**named("plain"), "data": {"k": "ä" * (size // 2) + "x" * (size % 2)}}, ensure_ascii=False)
    plain = await client.ask("POST", CONFIG_MAPS, data=umlauts.encode())
    assert [answer.status for answer in (secret, text, binary, plain)] == [status] * 4
    if status == 422:
        words = "Too long: may not be more than 1048576 bytes"
        assert causes(secret) == causes(text) == [("data", words)]
        assert causes(binary) == causes(plain) == [("[]", words)]


@pytest.mark.slow
async def test_a_registry_secret_holds_an_object(client: Client) -> None:
    listed = base64.b64encode(b"[]").decode()
    secret = {**named(), "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": listed}}
    assert causes(await client.ask("POST", SECRETS, secret)) == [
        (
            "data[.dockerconfigjson]",
            'Invalid value: "<secret contents redacted>": json: cannot unmarshal array into Go value of type '
            "map[string]interface {}",
        )
    ]


@pytest.mark.slow
async def test_what_is_immutable_stays_so(client: Client) -> None:
    why = "Forbidden: field is immutable when `immutable` is set"
    await client.create(SECRETS, {**named(), "data": {"k": "eA=="}, "immutable": True})
    await client.create(CONFIG_MAPS, {**named(), "data": {"k": "x"}, "immutable": True})
    for path, patch, fields in (
        (SECRETS, {"data": {"k": "eQ=="}}, ["data"]),
        (SECRETS, {"stringData": {"l": "y"}}, ["data"]),
        (SECRETS, {"immutable": False}, ["immutable"]),
        (SECRETS, {"immutable": None, "data": None}, ["immutable", "data"]),
        (CONFIG_MAPS, {"data": {"k": "y"}}, ["data"]),
        (CONFIG_MAPS, {"binaryData": {"b": "eA=="}}, ["binaryData"]),
        (CONFIG_MAPS, {"immutable": None}, ["immutable"]),
    ):
        headers = {"Content-Type": "application/merge-patch+json"}
        assert causes(await client.ask("PATCH", f"{path}/x", patch, headers=headers)) == [(f, why) for f in fields]
    labelled = await client.merge(f"{SECRETS}/x", {"metadata": {"labels": {"a": "b"}}})
    assert labelled["data"] == {"k": "eA=="}


@pytest.mark.slow
async def test_an_event_may_have_any_name_that_a_path_can_hold(client: Client) -> None:
    event = {**named("system:node.17AB"), "involvedObject": {"kind": "Node", "name": "n"}}
    assert (await client.ask("POST", f"{CORE}/events", event)).status == 201


@pytest.mark.slow
async def test_who_lets_a_lease_go_may_leave_the_holder_empty(client: Client) -> None:
    lease = {**named(), "spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
    assert (await client.ask("POST", LEASES, lease)).status == 201
    lease = {**named("p"), "spec": {"preferredHolder": "a"}}
    assert causes(await client.ask("POST", LEASES, lease)) == [
        ("spec.preferredHolder", "Forbidden: may only be specified if `strategy` is defined")
    ]


@pytest.mark.slow
async def test_objects_do_not_grow_without_end(client: Client) -> None:
    """Data of a Secret is bounded by its kind; an object of any kind by what etcd would take."""
    for definition in golden_definitions():
        await client.create(DEFINITIONS, definition)
    gadgets = "/apis/example.com/v1/gadgets"
    await client.create(gadgets, {"apiVersion": "example.com/v1", "kind": "Gadget", **named()})
    before = await client.get(f"{gadgets}/x")
    value = {"spec": {"value": "x" * OBJECT_BYTES}}
    again = {"apiVersion": "example.com/v1", "kind": "Gadget", **named("y"), **value}
    headers = {"Content-Type": "application/merge-patch+json"}
    for answer in (
        await client.ask("PATCH", f"{gadgets}/x", value, headers=headers),
        await client.ask("PATCH", f"{gadgets}/x?dryRun=All", value, headers=headers),
        await client.ask("POST", gadgets, again),
    ):
        status = answer.json()
        assert (answer.status, status["reason"]) == (413, "RequestEntityTooLarge")
        assert status["message"] == f"Request entity too large: limit is {OBJECT_BYTES}"
    assert await client.get(f"{gadgets}/x") == before
    assert (await client.ask("GET", f"{gadgets}/y")).status == 404


@pytest.mark.slow
async def test_the_phase_of_a_namespace_is_what_its_deletion_says(client: Client) -> None:
    headers = {"Content-Type": "application/merge-patch+json"}
    patch = {"status": {"phase": "Terminating"}}
    assert causes(await client.ask("PATCH", "/api/v1/namespaces/default/status", patch, headers=headers)) == [
        ("status.phase", "Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty")
    ]
    await client.create("/api/v1/namespaces", named("lab"))
    held = {"metadata": {"name": "held", "finalizers": ["example.com/hold"]}}
    await client.create("/api/v1/namespaces/lab/configmaps", held)
    await client.ask("DELETE", "/api/v1/namespaces/lab")
    patch = {"status": {"phase": "Active"}}
    assert causes(await client.ask("PATCH", "/api/v1/namespaces/lab/status", patch, headers=headers)) == [
        ("status.phase", "Invalid value: \"Active\": may only be 'Terminating' if `deletionTimestamp` is not empty")
    ]


@pytest.mark.slow
async def test_the_finalizers_of_a_namespace_are_qualified(client: Client) -> None:
    namespace = {**named("lab"), "spec": {"finalizers": ["hold"]}}
    expected = [("spec.finalizers", f'Invalid value: "hold": {NOT_QUALIFIED}')]
    assert causes(await client.ask("POST", "/api/v1/namespaces", namespace)) == expected
    await client.create("/api/v1/namespaces", named("lab"))
    lab = await client.get("/api/v1/namespaces/lab")
    lab["spec"]["finalizers"].append("hold")
    assert causes(await client.ask("PUT", "/api/v1/namespaces/lab/finalize", lab)) == expected


@pytest.mark.slow
async def test_a_patch_cannot_take_the_version_off_where_updates_need_one(client: Client) -> None:
    await client.create(LEASES, named())
    for version in (None, "0"):
        patch = {"metadata": {"resourceVersion": version, "labels": {"a": "b"}}}
        answer = await client.ask(
            "PATCH", f"{LEASES}/x", patch, headers={"Content-Type": "application/merge-patch+json"}
        )
        assert causes(answer) == [("metadata.resourceVersion", "Invalid value: 0: must be specified for an update")]
    await client.create(CONFIG_MAPS, named())
    patched = await client.merge(f"{CONFIG_MAPS}/x", {"metadata": {"resourceVersion": None, "labels": {"a": "b"}}})
    assert patched["metadata"]["labels"] == {"a": "b"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"preconditions": {"uid": 1}}, "json: cannot unmarshal number into Go struct field"),
        ({"gracePeriodSeconds": "1"}, "json: cannot unmarshal string into Go struct field"),
        ({"propagationPolicy": []}, "json: cannot unmarshal array into Go struct field"),
    ],
)
async def test_options_of_a_deletion_have_their_types(client: Client, options: dict[str, Any], said: str) -> None:
    await client.create(CONFIG_MAPS, named())
    answer = await client.ask("DELETE", f"{CONFIG_MAPS}/x", options)
    assert (answer.status, answer.json()["reason"]) == (400, "BadRequest")
    assert answer.json()["message"].startswith(said)
    assert (await client.ask("GET", f"{CONFIG_MAPS}/x")).status == 200


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("4", "4"), (4, "4"), (0.5, "500m"), ("1000", "1k"), ("1500m", "1500m"), ("1000m", "1"), ("110", "110"),
        ("1024Ki", "1Mi"), ("1.5Gi", "1536Mi"), ("512", "512"), ("0.5Ki", "512"), ("1025Ki", "1025Ki"), ("1e3", "1e3"),
        ("1500e-3", "1500e-3"), ("12e-1", "1200e-3"), ("0", "0"), ("0Mi", "0"), ("-1.5", "-1500m"), ("1n", "1n"),
        ("0.1n", "1n"), ("+5", "5"), (" 7 ", "7"), ("1048576", "1048576"), ("1Mi", "1Mi"), ("16384256Ki", "16384256Ki"),
    ],
)  # fmt: skip
def test_amounts_are_shown_as_kubernetes_writes_them(given: Any, shown: str) -> None:
    node = type_descriptors.decode(NODE, {"status": {"capacity": {"cpu": given}}}, [])
    assert node["status"]["capacity"] == {"cpu": shown}
    assert type_descriptors.decode(NODE, node, []) == node


@pytest.mark.slow
async def test_what_is_no_amount_is_refused(client: Client) -> None:
    for amount in ("x y", "1KiB", "1,5", "--1", "0x10"):
        node = {**named(), "status": {"capacity": {"cpu": amount}}}
        answer = await client.ask("POST", "/api/v1/nodes", node)
        assert (answer.status, answer.json()["message"]) == (
            400,
            'Node in version "v1" cannot be handled as a Node: quantities must match the regular expression '
            "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        )


@pytest.mark.slow
async def test_a_taint_stands_once_for_its_effect(client: Client) -> None:
    taints = [{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoExecute"}]
    await client.create("/api/v1/nodes", {**named(), "spec": {"taints": taints}})
    again = [*taints, {"key": "a", "value": "2", "effect": "NoSchedule"}]
    answer = await client.ask("POST", "/api/v1/nodes", {**named("y"), "spec": {"taints": again}})
    assert causes(answer) == [
        (
            "metadata.taints[2]",
            'Duplicate value: {"Key":"a","Value":"2","Effect":"NoSchedule","TimeAdded":null}: '
            "taints must be unique by key and effect pair",
        )
    ]


@pytest.mark.slow
@pytest.mark.parametrize("encoded", ["eA=\n=", "e\r\nA==", "eB=="])
async def test_bytes_are_written_in_one_form(client: Client, encoded: str) -> None:
    made = await client.create(SECRETS, {**named(), "data": {"k": encoded}})
    assert made["data"] == {"k": "eA=="}


@pytest.mark.slow
async def test_update_of_a_deleted_object_with_uid_is_a_conflict(client: Client) -> None:
    for path, key in ((CONFIG_MAPS, "configmaps"), (LEASES, "leases")):
        answer = await client.ask("PUT", f"{path}/x", named(uid="u"))
        assert (answer.status, answer.json()["reason"]) == (409, "Conflict")
        assert answer.json()["message"].endswith(
            f"StorageError: invalid object, Code: 4, Key: /registry/{key}/default/x, ResourceVersion: 0, "
            "AdditionalErrorMsg: Precondition failed: UID in precondition: u, UID in object meta: "
        )
    assert (await client.ask("PUT", f"{CONFIG_MAPS}/x", named())).status == 404


@pytest.mark.slow
async def test_patch_may_null_kind_and_version_only_for_builtin_types(client: Client) -> None:
    await client.create(CONFIG_MAPS, named())
    headers = {"Content-Type": "application/merge-patch+json"}
    untyped = {"kind": None, "apiVersion": None, "data": {"a": "b"}}
    patched = await client.merge(f"{CONFIG_MAPS}/x", untyped)
    assert (patched["kind"], patched["apiVersion"], patched["data"]) == ("ConfigMap", "v1", {"a": "b"})
    for definition in golden_definitions():
        await client.create(DEFINITIONS, definition)
    await client.create(WIDGETS, {"apiVersion": "example.com/v1", "kind": "Widget", **named(), "spec": {"size": 1}})
    for key, name in (("kind", "Kind"), ("apiVersion", "apiVersion")):
        answer = await client.ask("PATCH", f"{WIDGETS}/x", {key: None}, headers=headers)
        assert answer.status == 422
        assert f": Object '{name}' is missing in '" in answer.json()["message"]
