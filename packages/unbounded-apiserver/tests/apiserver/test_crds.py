"""Life of definitions: names, versions, and the objects of their kinds."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.support import Client, running
from tests.support.paths import ROOT
from tests.support.waiting import eventually
from unbounded_apiserver import crd_types, crd_validation, crd_version_validation
from unbounded_apiserver.writes import WriteTarget

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "/apis/x.example.com"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with running(tmp_path) as (_, client):
        yield client


def version(name: str = "v1", *, served: bool = True, storage: bool = True, **schema: Any) -> dict[str, Any]:
    root = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, **schema}
    return {"name": name, "served": served, "storage": storage, "schema": {"openAPIV3Schema": root}}


def definition(plural: str, kind: str, *versions: dict[str, Any], **names: Any) -> dict[str, Any]:
    spec = {
        "group": "x.example.com",
        "scope": "Namespaced",
        "names": {"plural": plural, "kind": kind, **names},
        "versions": list(versions) or [version()],
    }
    meta = {"name": f"{plural}.x.example.com"}
    return {"metadata": meta, "spec": spec}


def of(plural: str) -> str:
    return f"{DEFINITIONS}/{plural}.x.example.com"


def objects(plural: str, version: str = "v1") -> str:
    return f"{GROUP}/{version}/namespaces/default/{plural}"


def thing(kind: str, name: str = "one", version: str = "v1", **more: Any) -> dict[str, Any]:
    return {"apiVersion": f"x.example.com/{version}", "kind": kind, "metadata": {"name": name}, **more}


async def named(client: Client, plural: str) -> tuple[str, str, str, dict[str, Any]]:
    """Return whether names are accepted, why, whether the definition is established, and its names, once they are
    checked.
    """

    async def judged() -> Any:
        status = (await client.get(of(plural)))["status"]
        return status if status["conditions"] else None

    status = await eventually(judged)
    conditions = {condition["type"]: condition for condition in status["conditions"]}
    names = conditions["NamesAccepted"]
    return names["status"], names["reason"], conditions["Established"]["status"], status["acceptedNames"]


async def gone(client: Client, path: str) -> bool:
    return (await client.ask("GET", path)).status == 404


@pytest.mark.slow
async def test_a_definition_of_a_group_of_kubernetes_shows_its_approval(client: Client) -> None:
    """The conditions are those of kube-apiserver 1.36.4."""
    body = definition("things", "Thing")
    body["spec"]["group"], approval = "x.k8s.io", "api-approved.kubernetes.io"
    body["metadata"] = {"name": "things.x.k8s.io", "annotations": {approval: "https://example.com/pull/1"}}
    await client.create(DEFINITIONS, body)
    where = f"{DEFINITIONS}/things.x.k8s.io"

    async def conformant(reason: str) -> Any:
        conditions = (await client.get(where))["status"]["conditions"] or ()
        return next((one for one in conditions if one["reason"] == reason), None)

    approved = await eventually(lambda: conformant("ApprovedAnnotation"))
    assert (approved["type"], approved["status"]) == ("KubernetesAPIApprovalPolicyConformant", "True")
    assert approved["message"] == "approved in https://example.com/pull/1"
    await client.merge(where, {"metadata": {"annotations": {approval: 'unapproved, "x" <y> é'}}})
    bypassed = await eventually(lambda: conformant("UnapprovedAnnotation"))
    assert bypassed["status"] == "False"
    assert bypassed["message"] == 'not approved: "unapproved, \\"x\\" <y> é"'


@pytest.mark.slow
async def test_definition_with_taken_names_is_served_once_they_are_free(client: Client) -> None:
    await client.create(DEFINITIONS, definition("firsts", "First", shortNames=["f"]))
    await named(client, "firsts")
    await client.create(DEFINITIONS, definition("seconds", "Second", shortNames=["s", "f"]))
    accepted, reason, established, names = await named(client, "seconds")
    assert (accepted, reason, established) == ("False", "ShortNamesConflict", "False")
    assert "shortNames" not in names
    assert await gone(client, objects("seconds"))
    await client.ask("DELETE", of("firsts"))

    async def served() -> bool:
        return (await client.ask("GET", objects("seconds"))).status == 200

    await eventually(served)
    assert (await named(client, "seconds"))[:3] == ("True", "NoConflicts", "True")


def built_in(plural: str, kind: str) -> dict[str, Any]:
    """A definition in the place of a role of the server's own."""
    body = definition(plural, kind, version())
    body["spec"] |= {"group": "rbac.authorization.k8s.io", "scope": "Cluster"}
    annotations = {"api-approved.kubernetes.io": "unapproved, of a test"}
    body["metadata"] = {"name": f"{plural}.rbac.authorization.k8s.io", "annotations": annotations}
    return body


ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"


async def deleted_beside_roles(client: Client, where: str) -> None:
    """Delete a definition of the built-in ClusterRoles; these stay, and are validated as before."""
    roles = len((await client.get(ROLES))["items"])
    assert (await client.ask("POST", ROLES, {"metadata": {"name": "x"}, "rules": "none"})).status == 400
    assert (await client.ask("DELETE", where)).status == 200

    async def gone() -> bool:
        return (await client.ask("GET", where)).status == 404

    await eventually(gone)
    assert len((await client.get(ROLES))["items"]) == roles > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plural", "kind", "reason", "message"),
    [
        ("clusterroles", "ClusterRole", "ListKindConflict", '"ClusterRoleList" is already in use'),
        ("clusterroles", "Other", "PluralConflict", '"clusterroles" is already in use'),
        ("others", "ClusterRole", "ListKindConflict", '"ClusterRoleList" is already in use'),
    ],
)
async def test_a_definition_never_takes_the_place_of_a_built_in_kind(
    client: Client, plural: str, kind: str, reason: str, message: str
) -> None:
    body = built_in(plural, kind)
    where = f"{DEFINITIONS}/{body['metadata']['name']}"
    await client.create(DEFINITIONS, body)

    async def judged() -> Any:
        return (await client.get(where))["status"]["conditions"]

    conditions = {one["type"]: one for one in await eventually(judged)}
    assert conditions["Established"]["status"] == "False"
    assert (conditions["NamesAccepted"]["reason"], conditions["NamesAccepted"]["message"]) == (reason, message)
    await deleted_beside_roles(client, where)


@pytest.mark.slow
async def test_stored_definition_yields_to_a_kind_that_is_now_built_in(tmp_path: Path) -> None:
    """An earlier server had no such kind, and established the definition."""
    async with running(tmp_path) as (server, client):
        body = built_in("clusterroles", "ClusterRole")
        where = f"{DEFINITIONS}/{body['metadata']['name']}"
        await client.create(DEFINITIONS, body)
        names = {"plural": "clusterroles", "singular": "clusterrole", "kind": "ClusterRole"}
        established = [
            {"type": kind, "status": "True", "reason": "R", "lastTransitionTime": "2030-01-01T00:00:00Z"}
            for kind in ("NamesAccepted", "Established")
        ]
        status = {"acceptedNames": {**names, "listKind": "ClusterRoleList"}, "conditions": established}
        await client.merge(f"{where}/status", {"status": status})
        target = WriteTarget(crd_types.DEFINITIONS, "", body["metadata"]["name"])

        def settle(obj: dict[str, Any]) -> None:
            obj["status"] |= status

        await server.core.writes.edit(target, settle)
        await deleted_beside_roles(client, where)


@pytest.mark.slow
async def test_a_name_that_another_gives_up_can_be_had(client: Client) -> None:
    await client.create(DEFINITIONS, definition("firsts", "First", shortNames=["f"]))
    await named(client, "firsts")
    await client.create(DEFINITIONS, definition("seconds", "Second", shortNames=["f"]))
    await named(client, "seconds")
    await client.merge(of("firsts"), {"spec": {"names": {"shortNames": None}}})

    async def accepted() -> bool:
        return (await named(client, "seconds"))[0] == "True"

    await eventually(accepted)


@pytest.mark.slow
async def test_established_definition_keeps_its_accepted_names_on_conflict(client: Client) -> None:
    await client.create(DEFINITIONS, definition("firsts", "First", shortNames=["f"]))
    await named(client, "firsts")
    await client.create(DEFINITIONS, definition("seconds", "Second", shortNames=["s"]))
    await named(client, "seconds")
    await client.create(objects("seconds"), thing("Second"))
    wanted = {"listKind": "FirstList", "singular": "first", "shortNames": ["s", "f"]}
    await client.merge(of("seconds"), {"spec": {"names": {**wanted, "categories": ["all"]}}})

    async def refused() -> bool:
        return (await named(client, "seconds"))[:3] == ("False", "ListKindConflict", "True")

    await eventually(refused)
    names = (await named(client, "seconds"))[3]
    assert names == {
        "plural": "seconds",
        "singular": "second",
        "kind": "Second",
        "listKind": "SecondList",
        "shortNames": ["s"],
        "categories": ["all"],
    }
    listed = await client.get(objects("seconds"))
    assert (listed["kind"], [item["kind"] for item in listed["items"]]) == ("SecondList", ["Second"])


@pytest.mark.slow
async def test_objects_that_no_version_serves_go_with_their_definition(client: Client) -> None:
    await client.create(DEFINITIONS, definition("things", "Thing"))
    await named(client, "things")  # its status is written later, which changes its version
    await client.create(objects("things"), thing("Thing"))
    hidden = await client.get(of("things"))
    hidden["spec"]["versions"][0]["served"] = False
    assert (await client.ask("PUT", of("things"), hidden)).status == 200
    await eventually(lambda: gone(client, objects("things")))
    await client.ask("DELETE", of("things"))
    await eventually(lambda: gone(client, of("things")))


@pytest.mark.slow
async def test_objects_that_no_version_serves_go_with_their_namespace(client: Client) -> None:
    await client.create(DEFINITIONS, definition("things", "Thing"))
    await named(client, "things")
    await client.create("/api/v1/namespaces", {"metadata": {"name": "lab"}})
    await client.create(f"{GROUP}/v1/namespaces/lab/things", thing("Thing"))
    hidden = await client.get(of("things"))
    hidden["spec"]["versions"][0]["served"] = False
    await client.ask("PUT", of("things"), hidden)
    await client.ask("DELETE", "/api/v1/namespaces/lab")
    await eventually(lambda: gone(client, "/api/v1/namespaces/lab"))
    hidden = await client.get(of("things"))
    hidden["spec"]["versions"][0]["served"] = True
    await client.ask("PUT", of("things"), hidden)

    async def empty() -> bool:
        answer = await client.ask("GET", f"{GROUP}/v1/things")
        return answer.status == 200 and answer.json()["items"] == []

    await eventually(empty)


def two_versions(storage: str) -> list[dict[str, Any]]:
    """v1 knows a and b, v2 knows a and c, which is 'new' by default."""
    text = {"type": "string"}
    return [
        {
            "name": name,
            "served": True,
            "storage": name == storage,
            "schema": {
                "openAPIV3Schema": {
                    "type": "object",
                    "properties": {"spec": {"type": "object", "properties": {"a": text, **more}}},
                }
            },
        }
        for name, more in (("v1", {"b": text}), ("v2", {"c": {**text, "default": "new"}}))
    ]


async def store_as(client: Client, name: str) -> None:
    await named(client, "things")
    current = await client.get(of("things"))
    current["spec"]["versions"] = two_versions(name)
    answer = await client.ask("PUT", of("things"), current)
    assert answer.status == 200, answer.text


@pytest.mark.slow
async def test_what_the_stored_version_does_not_know_is_not_kept(client: Client) -> None:
    await client.create(DEFINITIONS, definition("things", "Thing", *two_versions("v1")))
    one = f"{objects('things', 'v2')}/one"
    made = await client.create(objects("things", "v2"), thing("Thing", version="v2", spec={"a": "1", "c": "2"}))
    assert made["spec"] == {"a": "1", "c": "new"}
    assert (await client.merge(one, {"spec": {"c": "3"}}))["spec"] == {"a": "1", "c": "new"}
    assert (await client.get(f"{objects('things')}/one"))["spec"] == {"a": "1"}


@pytest.mark.slow
async def test_another_stored_version_changes_nothing_of_what_is_stored(client: Client) -> None:
    await client.create(DEFINITIONS, definition("things", "Thing", *two_versions("v1")))
    await client.create(objects("things"), thing("Thing", spec={"a": "1", "b": "2"}))
    await store_as(client, "v2")
    old, new = f"{objects('things')}/one", f"{objects('things', 'v2')}/one"
    assert (await client.get(old))["spec"] == {"a": "1", "b": "2"}
    assert (await client.get(new))["spec"] == {"a": "1", "c": "new"}


@pytest.mark.slow
async def test_unchanged_update_migrates_an_object_to_the_storage_version(client: Client) -> None:
    await client.create(DEFINITIONS, definition("things", "Thing", *two_versions("v1")))
    await client.create(objects("things"), thing("Thing", spec={"a": "1", "b": "2"}))
    await store_as(client, "v2")
    one = f"{objects('things', 'v2')}/one"
    before = await client.get(one)
    migrated = (await client.ask("PUT", one, before)).json()
    assert migrated["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
    assert (await client.ask("PUT", one, migrated)).json() == migrated
    assert (await client.get(f"{objects('things')}/one"))["spec"] == {"a": "1"}
    status = await client.get(of("things"))
    assert status["status"]["storedVersions"] == ["v1", "v2"]
    status["status"]["storedVersions"] = ["v2"]
    assert (await client.ask("PUT", f"{of('things')}/status", status)).status == 200
    only = await client.get(of("things"))
    only["spec"]["versions"] = two_versions("v2")[1:]
    assert (await client.ask("PUT", of("things"), only)).status == 200
    assert (await client.get(one))["spec"] == {"a": "1", "c": "new"}
    assert await gone(client, f"{objects('things')}/one")


async def refusals(client: Client, method: str, path: str, body: Any) -> list[tuple[str, str]]:
    headers = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else None
    answer = await client.ask(method, path, body, headers=headers)
    assert answer.status == 422, answer.text
    found = answer.json()["details"]["causes"]
    return list(dict.fromkeys((cause["field"], cause["message"]) for cause in found))


@pytest.mark.slow
async def test_kind_and_scope_of_an_established_definition_stay(client: Client) -> None:
    await client.create(DEFINITIONS, definition("things", "Thing"))
    assert (await named(client, "things"))[2] == "True"
    patch = {"spec": {"scope": "Cluster", "names": {"kind": "Thingy"}}}
    assert await refusals(client, "PATCH", of("things"), patch) == [
        ("spec.scope", 'Invalid value: "Cluster": field is immutable'),
        ("spec.names.kind", 'Invalid value: "Thingy": field is immutable'),
    ]


@pytest.mark.slow
async def test_a_kind_that_is_taken_can_be_changed_for_another(client: Client) -> None:
    await client.create(DEFINITIONS, definition("firsts", "First"))
    await named(client, "firsts")
    await client.create(DEFINITIONS, definition("seconds", "First", singular="second", listKind="SecondList"))
    assert (await named(client, "seconds"))[:3] == ("False", "KindConflict", "False")
    await client.merge(of("seconds"), {"spec": {"names": {"kind": "Second"}}})

    async def served() -> bool:
        return (await client.ask("GET", objects("seconds"))).status == 200

    await eventually(served)


@pytest.mark.slow
async def test_what_a_definition_may_not_say(client: Client) -> None:
    strings = {f"s{number}": {"type": "string"} for number in range(9)}
    spec = {"type": "object", "properties": strings}
    odd = version(properties={"spec": spec})
    odd["selectableFields"] = [{"jsonPath": f".spec.s{number}"} for number in (*range(9), 0)]
    odd["additionalPrinterColumns"] = [{"name": "A", "type": "string", "format": "uuid", "jsonPath": ".spec.s0"}]
    odd |= {"deprecated": True, "deprecationWarning": "x\x07" * 200}
    body = definition("things", "Thing", odd)
    body["spec"]["scope"] = ""
    assert await refusals(client, "POST", DEFINITIONS, body) == [
        ("spec.scope", "Required value"),
        (
            "spec.versions[0].deprecationWarning",
            f"Invalid value: {json.dumps(odd['deprecationWarning'])}: must be <= 256 characters long",
        ),
        (
            "spec.versions[0].deprecationWarning",
            f"Invalid value: {json.dumps(odd['deprecationWarning'])}: "
            "must only contain printable UTF-8 characters; non-printable character found at index 1",
        ),
        (
            "spec.additionalPrinterColumns[0].format",
            'Invalid value: "uuid": must be one of byte,date,date-time,double,float,int32,int64,password',
        ),
        ("spec.selectableFields[9].jsonPath", 'Duplicate value: ".spec.s0"'),
        ("spec.selectableFields", "Too many: 9: must have at most 8 items"),
    ]


def test_stored_definition_with_invalid_default_is_served_but_new_one_rejected() -> None:
    inner = {
        "type": "object",
        "default": {},
        "properties": {"type": {"type": "string", "default": "OnDelete"}},
        "x-kubernetes-validations": [{"rule": "self.type != 'x'"}],
    }
    schema = {"type": "object", "properties": {"spec": inner}}
    written = definition("olds", "Old", {**version(), "schema": {"openAPIV3Schema": schema}}, listKind="OldList")
    crd_validation.default(written)
    crd_validation.decide(written, None)
    (resource,) = crd_types.served_resources(written)
    obj: dict[str, Any] = {"metadata": {"name": "one"}}
    resource.type.default(obj)
    assert obj["spec"] == {"type": "OnDelete"}
    (error,) = crd_validation.rules(written, None)
    assert error.field == "spec.validation.openAPIV3Schema.properties[spec].default"
    assert "no such key: type" in error.message


def causes(written: dict[str, Any]) -> list[tuple[str, str]]:
    crd_validation.default(written)
    crd_validation.decide(written, None)
    return [(error.field, error.message) for error in crd_validation.rules(written, None)]


def of_fields(**fields: Any) -> dict[str, Any]:
    inner = {"type": "object", "properties": fields}
    return version() | {"schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": inner}}}}


BELOW = "spec.validation.openAPIV3Schema.properties[spec].properties"
UNIQUE = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
QUADRATIC = "Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic"


def test_schema_errors_have_the_order_of_kube_apiserver() -> None:
    of_b = (f"{BELOW}[b].uniqueItems", QUADRATIC)
    assert causes(definition("xs", "X", of_fields(a={}, b=UNIQUE))) == [
        (f"{BELOW}[a].type", "Required value: must not be empty for specified object fields"),
        of_b,
    ]
    rule = {"type": "string", "x-kubernetes-validations": [{"rule": "self.("}]}
    assert causes(definition("xs", "X", of_fields(a={"type": "integer", "default": "x"}, b=UNIQUE, c=rule))) == [
        (f"{BELOW}[a].default", 'Invalid value: "string":  in body must be of type integer: "string"'),
        of_b,
    ]
    found = causes(definition("xs", "X", of_fields(a=rule, b=UNIQUE)))
    assert [field for field, _ in found] == [of_b[0], f"{BELOW}[a].x-kubernetes-validations[0].rule"]


def test_keys_of_a_list_map_are_judged_one_by_one() -> None:
    items = {"type": "object", "nullable": True, "properties": {"k": {"type": "array", "items": {"type": "string"}}}}
    keyed = {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["x", "k", "x"]}
    keys = f"{BELOW}[a].x-kubernetes-list-map-keys"
    unknown = (keys, 'Invalid value: ["x","k","x"]: entries must all be names of item properties')
    assert causes(definition("xs", "X", of_fields(a={**keyed, "items": items}))) == [
        unknown,
        (
            f"{BELOW}[a].items.properties[k].type",
            'Invalid value: "object": must be a scalar type if parent array\'s x-kubernetes-list-type is map',
        ),
        unknown,
        (keys, 'Invalid value: ["x","k","x"]: must not contain duplicate entries'),
        (f"{BELOW}[a].items.nullable", "Forbidden: cannot be nullable when x-kubernetes-list-type is map"),
        (
            f"{BELOW}[a].items.properties[k].default",
            "Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required"
            " property",
        ),
    ]


def test_versions_that_share_a_part_are_judged_once() -> None:
    same = [of_fields(a={}) | {"name": name, "storage": name == "v1"} for name in ("v1", "v2")]
    assert [field for field, _ in causes(definition("xs", "X", *same))] == [f"{BELOW}[a].type"]
    same[1]["schema"] = of_fields(b={})["schema"]
    found = [field for field, _ in causes(definition("xs", "X", *same))]
    assert [field.partition(".schema")[0] for field in found] == ["spec.versions[0]", "spec.versions[1]"]


def test_the_root_of_a_schema_allows_less_with_the_status_subresource() -> None:
    negated = version() | {"schema": {"openAPIV3Schema": {"type": "object", "not": {"required": ["x"]}}}}
    assert causes(definition("xs", "X", negated)) == []
    ((field, message),) = causes(definition("xs", "X", negated | {"subresources": {"status": {}}}))
    assert field == "spec.validation.openAPIV3Schema"
    assert message.endswith("fields are allowed at the root of the schema if the status subresource is enabled")
    nullable = version() | {"schema": {"openAPIV3Schema": {"type": "object", "nullable": True}}}
    assert causes(definition("xs", "X", nullable)) == [
        ("spec.validation.openAPIV3Schema.nullable", "Forbidden: nullable cannot be true at the root")
    ]


def test_paths_of_the_scale_subresource_stand_below_spec_and_status() -> None:
    paths = {"specReplicasPath": "spec.x", "statusReplicasPath": ".spec.y", "labelSelectorPath": ".metadata.z"}
    where = "spec.subresources.scale"
    assert causes(definition("xs", "X", version() | {"subresources": {"scale": paths}})) == [
        (f"{where}.specReplicasPath", 'Invalid value: "spec.x": must be a simple json path starting with .'),
        (f"{where}.statusReplicasPath", 'Invalid value: ".spec.y": should be a json path under .status'),
        (
            f"{where}.labelSelectorPath",
            'Invalid value: ".metadata.z": should be a json path under either .spec or .status',
        ),
    ]


@pytest.mark.slow
async def test_a_webhook_that_kubernetes_would_call_is_rejected_as_none_is_called(client: Client) -> None:
    webhook = {"conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://192.0.2.1/convert"}}
    written = definition("hooks", "Hook")
    written["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
    answer = await client.ask("POST", DEFINITIONS, written)
    assert answer.status == 422
    (cause,) = answer.json()["details"]["causes"]
    assert cause["field"] == "spec.conversion.strategy"
    assert cause["message"].startswith('Invalid value: "Webhook": this server calls no conversion webhooks: use None')


@pytest.mark.parametrize(
    ("config", "field", "message"),
    [
        ({}, "webhookClientConfig", "Required value: exactly one of url or service is required"),
        (
            {"url": "https://u:p@h/"},
            "webhookClientConfig.url",
            'Invalid value: "u:p": user information is not permitted in the URL',
        ),
        (
            {"url": "https:///x"},
            "webhookClientConfig.url",
            'Invalid value: "": host must be specified; desired format: https://host[/path]',
        ),
        (
            {"url": "https://h/x?a=b"},
            "webhookClientConfig.url",
            'Invalid value: "a=b": query parameters are not permitted in the URL',
        ),
        ({"service": {"name": "n", "namespace": ""}}, "webhookClientConfig.service.namespace", "Required value"),
        (
            {"service": {"name": "n", "namespace": "x", "path": "/a//b"}},
            "webhookClientConfig.service.path",
            'Invalid value: "/a//b": segment[1] may not be empty',
        ),
        (
            {"service": {"name": "n", "namespace": "x", "port": 0}},
            "webhookClientConfig.service.port",
            "Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive",
        ),
    ],
)
def test_a_webhooks_address_is_judged(config: dict[str, Any], field: str, message: str) -> None:
    conversion = {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": config}}
    crd_version_validation.default_conversion(conversion)
    (error,) = crd_version_validation.conversion_errors(conversion, None)
    assert (error.field, error.message) == (f"spec.conversion.{field}", message)


@pytest.mark.slow
async def test_invalid_column_path_leaves_the_default_columns(client: Client) -> None:
    column = {"name": "A", "type": "string", "jsonPath": ".spec[a"}
    await client.create(DEFINITIONS, definition("cols", "Col", {**version(), "additionalPrinterColumns": [column]}))
    await named(client, "cols")
    await client.create(objects("cols"), thing("Col"))
    answer = await client.ask(
        "GET", objects("cols"), headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    )
    assert [column["name"] for column in answer.json()["columnDefinitions"]] == ["Name", "Age"]


OURS = sorted((ROOT / "deploy" / "crd").glob("*.yaml"))


@pytest.mark.slow
async def test_definitions_of_this_project_are_valid_by_the_same_rules(client: Client) -> None:
    for path in OURS:
        answer = await client.ask(
            "POST",
            f"{DEFINITIONS}?fieldValidation=Strict",
            data=path.read_bytes(),
            headers={"Content-Type": "application/yaml"},
        )
        assert (answer.status, answer.warnings) == (201, []), answer.text
    assert len(OURS) == 7
