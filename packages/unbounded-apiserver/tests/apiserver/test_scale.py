"""The scale subresource, beyond the exchanges that a kube-apiserver recorded."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.support import MADE_HERE, Client, client_of, running
from tests.support.waiting import eventually
from unbounded_apiserver import scale
from unbounded_apiserver.resource_model import ScalePaths
from unbounded_apiserver.server import ApiServer

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POOLS = "/apis/x.example.com/v1/namespaces/default/pools"
ONE = f"{POOLS}/one/scale"
RIGHTS = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
POLICIES = "/apis/admissionregistration.k8s.io/v1"
MERGE = {"Content-Type": "application/merge-patch+json"}
PATHS = ScalePaths(".spec.size.replicas", ".status.replicas", ".status.selector")
INTEGER: dict[str, Any] = {"type": "integer"}


def definition() -> dict[str, Any]:
    size = {"type": "object", "properties": {"replicas": INTEGER}}
    status = {"type": "object", "properties": {"replicas": INTEGER, "selector": {"type": "string"}}}
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {"size": size}}, "status": status},
    }
    paths = {"specReplicasPath": PATHS.spec, "statusReplicasPath": PATHS.status, "labelSelectorPath": PATHS.selector}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    version["subresources"] = {"status": {}, "scale": paths}
    names = {"plural": "pools", "kind": "Pool"}
    spec = {"group": "x.example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": "pools.x.example.com"}, "spec": spec}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    async with running(tmp_path) as (server, admin):
        await admin.create(DEFINITIONS, definition())

        async def found() -> bool:
            return (await admin.ask("GET", POOLS)).status == 200

        await eventually(found)
        yield server, admin


@pytest.fixture
def admin(served: tuple[ApiServer, Client]) -> Client:
    return served[1]


async def pool(admin: Client, **spec: Any) -> dict[str, Any]:
    body = {"apiVersion": "x.example.com/v1", "kind": "Pool", "metadata": {"name": "one"}, "spec": spec}
    made: dict[str, Any] = await admin.create(POOLS, body)
    return made


@pytest.mark.slow
async def test_an_object_without_replicas_cannot_be_shown_and_is_scaled_by_a_number(admin: Client) -> None:
    await pool(admin)
    shown = await admin.ask("GET", ONE)
    message = 'Internal error occurred: the spec replicas field ".spec.size.replicas" does not exist'
    assert (shown.status, shown.json()["message"]) == (500, message)
    empty = await admin.ask("PATCH", ONE, {"spec": {}}, headers=MERGE)
    message = 'the spec replicas field ".spec.size.replicas" cannot be empty'
    assert (empty.status, empty.json()["message"]) == (400, message)
    scaled = await admin.merge(ONE, {"spec": {"replicas": 3}})
    assert scaled["spec"] == {"replicas": 3}
    assert scaled["status"] == {"replicas": 0}
    assert (await admin.get(f"{POOLS}/one"))["spec"] == {"size": {"replicas": 3}}


@pytest.mark.slow
async def test_a_write_of_the_scale_changes_the_replicas_alone(admin: Client) -> None:
    made = await pool(admin, size={"replicas": 1})
    scaled = await admin.merge(
        ONE, {"metadata": {"labels": {"a": "b"}}, "spec": {"replicas": 1}, "status": {"replicas": 9}}
    )
    assert scaled["status"] == {"replicas": 0}
    assert set(scaled["metadata"]) == {"name", "namespace", "uid", "resourceVersion", "creationTimestamp"}
    after = await admin.get(f"{POOLS}/one")
    assert "labels" not in after["metadata"]
    assert after["metadata"]["generation"] == made["metadata"]["generation"]
    dry = await admin.ask("PATCH", f"{ONE}?dryRun=All", {"spec": {"replicas": 5}}, headers=MERGE)
    assert dry.json()["spec"] == {"replicas": 5}
    assert (await admin.get(ONE))["spec"] == {"replicas": 1}


@pytest.mark.slow
async def test_the_last_to_change_the_replicas_owns_them(admin: Client) -> None:
    """The owners are those of kube-apiserver 1.36.4."""

    async def owners() -> list[tuple[str, str]]:
        entries = (await admin.get(f"{POOLS}/one"))["metadata"]["managedFields"]
        owning = [one for one in entries if "f:replicas" in json.dumps(one["fieldsV1"])]
        return [(one["manager"], one.get("subresource", "")) for one in owning]

    async def scaled(replicas: int, manager: str) -> None:
        await admin.merge(f"{ONE}?fieldManager={manager}", {"spec": {"replicas": replicas}})

    body = {"apiVersion": "x.example.com/v1", "kind": "Pool", "metadata": {"name": "one"}}
    await admin.create(f"{POOLS}?fieldManager=maker", body | {"spec": {"size": {"replicas": 1}}})
    assert await owners() == [("maker", "")]
    for replicas, manager, owner in ((1, "a", ("maker", "")), (2, "a", ("a", "scale")), (2, "b", ("a", "scale"))):
        await scaled(replicas, manager)
        assert await owners() == [owner]
    for replicas, owned in ((3, [("b", "scale")]), (0, []), (4, [])):
        await scaled(replicas, "b")
        assert await owners() == owned


@pytest.mark.slow
async def test_a_scale_of_another_object_or_kind_is_refused(admin: Client) -> None:
    await pool(admin, size={"replicas": 1})
    body = {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "one"}, "spec": {"replicas": 2}}
    other = await admin.ask("PUT", ONE, body | {"metadata": {"name": "one", "uid": "another"}})
    assert other.status == 409
    assert "Precondition failed: UID in precondition: another" in other.json()["message"]
    assert (await admin.ask("PUT", ONE, body | {"metadata": {"name": "two"}})).status == 400
    assert (await admin.ask("PUT", ONE, body | {"kind": "Pool", "apiVersion": "x.example.com/v1"})).status == 400
    assert (await admin.ask("PUT", ONE, body)).json()["spec"] == {"replicas": 2}
    assert (await admin.ask("POST", ONE, body)).status == 405
    for kind in ("strategic-merge-patch+json", "apply-patch+yaml"):
        answer = await admin.ask(
            "PATCH", f"{ONE}?fieldManager=m", body, headers={"Content-Type": f"application/{kind}"}
        )
        assert answer.status == 415


@pytest.mark.slow
async def test_a_table_of_the_scale_has_both_numbers(admin: Client) -> None:
    await pool(admin, size={"replicas": 4})
    table = await admin.ask("GET", ONE, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    assert [one["name"] for one in table.json()["columnDefinitions"]] == ["Name", "Desired", "Available", "Age"]
    assert table.json()["rows"][0]["cells"][:3] == ["one", 4, 0]


@pytest.mark.slow
async def test_the_right_to_scale_is_one_of_its_own(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    await pool(admin, size={"replicas": 1})
    rules = [{"apiGroups": ["x.example.com"], "resources": ["pools/scale"], "verbs": ["get", "patch"]}]
    await admin.create(f"{RIGHTS}/roles", {"metadata": {"name": "scaler"}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "scaler"}
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "sam"}]
    await admin.create(f"{RIGHTS}/rolebindings", {"metadata": {"name": "s"}, "roleRef": role, "subjects": subjects})
    async with client_of(server, "sam", MADE_HERE) as sam:
        assert (await sam.merge(ONE, {"spec": {"replicas": 2}}))["spec"] == {"replicas": 2}
        assert (await sam.ask("PATCH", f"{POOLS}/one", {"spec": {}}, headers=MERGE)).status == 403


@pytest.mark.slow
async def test_a_policy_sees_the_scale(admin: Client) -> None:
    await pool(admin, size={"replicas": 1})
    rule = {
        "apiGroups": ["x.example.com"],
        "apiVersions": ["v1"],
        "operations": ["UPDATE"],
        "resources": ["pools/scale"],
    }
    limit = {
        "expression": "object.spec.replicas <= oldObject.spec.replicas + 1",
        "messageExpression": "'one more at most than ' + string(oldObject.spec.replicas)",
    }
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [limit]}
    await admin.create(f"{POLICIES}/validatingadmissionpolicies", {"metadata": {"name": "p"}, "spec": spec})
    binding = {"policyName": "p", "validationActions": ["Deny"]}
    await admin.create(f"{POLICIES}/validatingadmissionpolicybindings", {"metadata": {"name": "p"}, "spec": binding})
    refused = await admin.ask("PATCH", ONE, {"spec": {"replicas": 3}}, headers=MERGE)
    assert refused.json()["message"].endswith("one more at most than 1")
    await admin.merge(ONE, {"spec": {"replicas": 2}})


@pytest.mark.parametrize(
    ("obj", "field", "message"),
    [
        ({"spec": {"size": {"replicas": -1}}}, PATHS.spec, "Invalid value: -1: should be a non-negative integer"),
        (
            {"spec": {"size": {"replicas": 2**31}}},
            PATHS.spec,
            "Invalid value: 2147483648: should be less than or equal to 2147483647",
        ),
        (
            {"status": {"replicas": "x"}},
            PATHS.status,
            "Invalid value: 0: .status.replicas accessor error: x is of the type string, expected int64",
        ),
        (
            {"status": {"selector": 1.5}},
            PATHS.selector,
            'Invalid value: "": .status.selector accessor error: 1.5 is of the type float64, expected string',
        ),
    ],
)
def test_the_fields_of_a_scale_are_checked_at_each_write(obj: dict[str, Any], field: str, message: str) -> None:
    assert [(one.field, one.message) for one in scale.errors(PATHS, obj)] == [(field, message)]


def test_an_object_without_the_fields_of_a_scale_is_valid() -> None:
    assert scale.errors(PATHS, {"spec": {}}) == []
