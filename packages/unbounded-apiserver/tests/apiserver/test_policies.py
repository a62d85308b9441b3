"""Admission policies in force: their targets, their messages, and their effects."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.apiserver.support import MADE_HERE, Answer, Client, client_identity, golden_definitions, running
from tests.support.waiting import eventually
from unbounded_apiserver.server import ApiServer

pytestmark = pytest.mark.slow

GROUP = "/apis/admissionregistration.k8s.io/v1"
POLICIES = f"{GROUP}/validatingadmissionpolicies"
BINDINGS = f"{GROUP}/validatingadmissionpolicybindings"
MAPS = "/api/v1/namespaces/default/configmaps"
NODES = "/api/v1/nodes"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
EVERYTHING = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
ON_MAPS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}
MERGE = {"Content-Type": "application/merge-patch+json"}
NEVER = [{"expression": "false", "message": "never"}]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    async with running(tmp_path) as (server, admin):
        yield server, admin


@pytest.fixture
async def admin(served: tuple[ApiServer, Client]) -> Client:
    return served[1]


async def enforce(
    admin: Client,
    validations: list[dict[str, Any]],
    *,
    match: dict[str, Any] | None = None,
    name: str = "p",
    bound: dict[str, Any] | None = None,
    **spec: Any,
) -> None:
    """Write a policy and a binding of the same name, in place of what was there."""
    for path in (POLICIES, BINDINGS):
        await admin.ask("DELETE", f"{path}/{name}")
    constraints = {"resourceRules": [ON_MAPS]} if match is None else match
    policy = {"matchConstraints": constraints, "validations": validations, **spec}
    await admin.create(POLICIES, {"metadata": {"name": name}, "spec": policy})
    binding = {"policyName": name, "validationActions": ["Deny"], **(bound or {})}
    await admin.create(BINDINGS, {"metadata": {"name": name}, "spec": binding})


def config_map(name: str = "a", **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


def said(answer: Answer) -> str:
    """Return a policy's message about a request, without its name and binding; '' for an accepted request."""
    if answer.status < 400:
        return ""
    message: str = answer.json()["message"]
    _, found, rest = message.partition("denied request: ")
    return rest if found else message


ANSWERS: list[tuple[str, dict[str, Any], str]] = [
    ("a condition that holds", {"expression": "object.data.a == '1'"}, ""),
    ("its expression", {"expression": "object.data.a == '2' "}, "failed expression: object.data.a == '2'"),
    ("a message", {"expression": "false", "message": " no "}, "no"),
    ("what was made", {"expression": "false", "messageExpression": "'it is ' + object.data.a"}, "it is 1"),
    (
        "the message where none could be made",
        {"expression": "false", "messageExpression": "string(object.data.b)", "message": "instead"},
        "instead",
    ),
    (
        "the message where several lines were made",
        {"expression": "false", "messageExpression": "'a\\nb'", "message": "instead"},
        "instead",
    ),
    (
        "what went wrong",
        {"expression": "object.data.b == '1'"},
        "expression 'object.data.b == '1'' resulted in error: no such key: b",
    ),
    (
        "that it costs too much",
        {"expression": "lists.range(2000).all(x, lists.range(2000).all(y, y >= 0 && x >= 0))"},
        "expression 'lists.range(2000).all(x, lists.range(2000).all(y, y >= 0 && x >= 0))' resulted in error: "
        "operation cancelled: actual cost limit exceeded",
    ),
]


async def test_a_refusal_tells_what_is_wrong(admin: Client) -> None:
    told = {}
    for case, validation, _ in ANSWERS:
        await enforce(admin, [validation])
        told[case] = said(await admin.ask("POST", f"{MAPS}?dryRun=All", config_map(a="1")))
    assert told == {case: expected for case, _, expected in ANSWERS}


async def test_a_refusal_is_a_status_with_the_words_as_its_cause(admin: Client) -> None:
    await enforce(admin, NEVER)
    answer = await admin.ask("POST", MAPS, config_map())
    told = "ValidatingAdmissionPolicy 'p' with binding 'p' denied request: never"
    assert answer.json() == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f'configmaps "a" is forbidden: {told}',
        "reason": "Invalid",
        "details": {"name": "a", "kind": "configmaps", "causes": [{"message": told}]},
        "code": 422,
    }


async def test_the_reason_of_a_validation_is_that_of_the_refusal(admin: Client) -> None:
    for reason, code in (("Forbidden", 403), ("Invalid", 422), ("RequestEntityTooLarge", 413)):
        await enforce(admin, [{"expression": "false", "reason": reason}])
        answer = await admin.ask("POST", MAPS, config_map())
        assert (answer.status, answer.json()["reason"], answer.json()["code"]) == (code, reason, code)


async def test_every_way_of_writing_and_deleting_is_held_to_it(admin: Client) -> None:
    for name in ("a", "b"):
        await admin.create(MAPS, config_map(name, a="1"))
    names = "request.operation + ' ' + request.name + ' ' + request.options.kind"
    await enforce(admin, [{"expression": "false", "messageExpression": names}])
    dry = "?dryRun=All"
    jsonpatch = json.dumps([{"op": "add", "path": "/data/a", "value": "2"}]).encode()
    assert said(await admin.ask("POST", MAPS, config_map("c"))) == "CREATE c CreateOptions"
    assert said(await admin.ask("POST", MAPS + dry, config_map("c"))) == "CREATE c CreateOptions"
    assert said(await admin.ask("PUT", f"{MAPS}/a", config_map("a", a="2"))) == "UPDATE a UpdateOptions"
    patched = await admin.ask("PATCH", f"{MAPS}/a", {"data": {"a": "2"}}, headers=MERGE)
    assert said(patched) == "UPDATE a UpdateOptions"
    media = {"Content-Type": "application/json-patch+json"}
    assert said(await admin.ask("PATCH", f"{MAPS}/a", data=jsonpatch, headers=media)) == "UPDATE a UpdateOptions"
    assert said(await admin.ask("DELETE", f"{MAPS}/a")) == "DELETE a DeleteOptions"
    assert said(await admin.ask("DELETE", MAPS)) in {"DELETE a DeleteOptions", "DELETE b DeleteOptions"}
    assert [one["data"] for one in (await admin.get(f"{MAPS}?{MADE_HERE}"))["items"]] == [{"a": "1"}, {"a": "1"}]


async def test_policy_finds_a_generated_name_in_the_object_only(admin: Client) -> None:
    await enforce(admin, [{"expression": "has(request.name) || !object.metadata.name.startsWith('g-')"}])
    answer = await admin.ask("POST", MAPS, {"metadata": {"generateName": "g-"}})
    assert said(answer) == "failed expression: has(request.name) || !object.metadata.name.startsWith('g-')"
    assert (await admin.ask("POST", MAPS, {"metadata": {"name": "g-a"}})).status == 201


async def test_status_is_matched_by_its_own_name(admin: Client) -> None:
    await admin.create(NODES, {"metadata": {"name": "n"}})
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"]}
    await enforce(admin, NEVER, match={"resourceRules": [{**rule, "resources": ["nodes/status"]}]})
    assert said(await admin.ask("PATCH", f"{NODES}/n", {"metadata": {"labels": {"a": "b"}}}, headers=MERGE)) == ""
    phase = {"status": {"phase": "Running"}}
    assert said(await admin.ask("PATCH", f"{NODES}/n/status", phase, headers=MERGE)) == "never"
    await enforce(admin, NEVER, match={"resourceRules": [{**rule, "resources": ["nodes"]}]})
    assert said(await admin.ask("PATCH", f"{NODES}/n", {"metadata": {"labels": {"a": "c"}}}, headers=MERGE)) == "never"
    assert said(await admin.ask("PATCH", f"{NODES}/n/status", phase, headers=MERGE)) == ""


MATCHES: list[tuple[str, dict[str, Any], bool]] = [
    ("everything", {"resourceRules": [EVERYTHING]}, True),
    ("all resources", {"resourceRules": [{**EVERYTHING, "resources": ["*"]}]}, True),
    ("subresources of all", {"resourceRules": [{**EVERYTHING, "resources": ["*/status"]}]}, False),
    ("another operation", {"resourceRules": [{**ON_MAPS, "operations": ["DELETE"]}]}, False),
    ("another group", {"resourceRules": [{**ON_MAPS, "apiGroups": ["apps"]}]}, False),
    ("another version", {"resourceRules": [{**ON_MAPS, "apiVersions": ["v2"]}]}, False),
    ("the name", {"resourceRules": [{**ON_MAPS, "resourceNames": ["b", "a"]}]}, True),
    ("another name", {"resourceRules": [{**ON_MAPS, "resourceNames": ["b"]}]}, False),
    ("namespaces", {"resourceRules": [{**ON_MAPS, "scope": "Namespaced"}]}, True),
    ("what is cluster-wide", {"resourceRules": [{**ON_MAPS, "scope": "Cluster"}]}, False),
    ("all but this", {"resourceRules": [EVERYTHING], "excludeResourceRules": [ON_MAPS]}, False),
    ("its label", {"resourceRules": [ON_MAPS], "objectSelector": {"matchLabels": {"app": "x"}}}, True),
    ("another label", {"resourceRules": [ON_MAPS], "objectSelector": {"matchLabels": {"app": "y"}}}, False),
    (
        "the namespace",
        {
            "resourceRules": [ON_MAPS],
            "namespaceSelector": {
                "matchExpressions": [
                    {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["default"]},
                    {"key": "old", "operator": "DoesNotExist"},
                ]
            },
        },
        True,
    ),
    (
        "another namespace",
        {"resourceRules": [ON_MAPS], "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "b"}}},
        False,
    ),
]


async def test_a_policy_and_a_binding_concern_what_they_say(admin: Client) -> None:
    labelled = {"metadata": {"name": "a", "labels": {"app": "x"}}}
    told = {}
    for case, match, _ in MATCHES:
        await enforce(admin, NEVER, match=match)
        by_policy = said(await admin.ask("POST", f"{MAPS}?dryRun=All", labelled))
        await enforce(admin, NEVER, bound={"matchResources": match})
        told[case] = (by_policy, said(await admin.ask("POST", f"{MAPS}?dryRun=All", labelled)))
    assert told == {case: ("never", "never") if refused else ("", "") for case, _, refused in MATCHES}


async def test_a_label_that_is_taken_away_does_not_escape(admin: Client) -> None:
    await admin.create(MAPS, {"metadata": {"name": "a", "labels": {"app": "x"}}})
    only = {"resourceRules": [ON_MAPS], "objectSelector": {"matchLabels": {"app": "x"}}}
    await enforce(admin, NEVER, match=only)
    taken = {"metadata": {"labels": {"app": None}}}
    assert said(await admin.ask("PATCH", f"{MAPS}/a", taken, headers=MERGE)) == "never"
    assert said(await admin.ask("DELETE", f"{MAPS}/a")) == "never"


async def test_other_versions_of_a_resource_match_unless_the_policy_is_exact(admin: Client) -> None:
    definition = golden_definitions()[0]
    (version,) = definition["spec"]["versions"]
    older = {**version, "name": "v1beta1", "storage": False}
    await admin.create(DEFINITIONS, {**definition, "spec": {**definition["spec"], "versions": [version, older]}})
    old = WIDGETS.replace("/v1/", "/v1beta1/")
    await eventually(lambda: _answers(admin, old))
    rule = {"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["widgets"]}
    told = [
        {
            "expression": "false",
            "messageExpression": "object.apiVersion + ' ' + request.kind.version + ' ' + request.requestKind.version",
        }
    ]
    widget = {"apiVersion": "example.com/v1beta1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}}
    await enforce(admin, told, match={"resourceRules": [rule]})
    assert said(await admin.ask("POST", f"{old}?dryRun=All", widget)) == "example.com/v1 v1 v1beta1"
    await enforce(admin, told, match={"resourceRules": [rule], "matchPolicy": "Exact"})
    assert said(await admin.ask("POST", f"{old}?dryRun=All", widget)) == ""


async def _answers(admin: Client, path: str) -> bool:
    return (await admin.ask("GET", path)).status == 200


async def test_false_match_condition_admits_and_failing_one_rejects(admin: Client) -> None:
    false, broken = (
        {"name": "f", "expression": "object.data.a == '2'"},
        {"name": "b", "expression": "object.data.x == ''"},
    )
    await enforce(admin, NEVER, matchConditions=[broken, false])
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", config_map(a="1"))) == ""
    await enforce(admin, NEVER, matchConditions=[broken])
    wrong = "expression 'object.data.x == ''' resulted in error: no such key: x"
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", config_map(a="1"))) == wrong
    await enforce(admin, NEVER, matchConditions=[broken], failurePolicy="Ignore")
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", config_map(a="1"))) == ""


async def test_failure_policy_ignore_admits_evaluation_errors_but_not_false_results(admin: Client) -> None:
    await enforce(admin, [{"expression": "object.data.x == ''"}], failurePolicy="Ignore")
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", config_map())) == ""
    await enforce(admin, NEVER, failurePolicy="Ignore")
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", config_map())) == "never"


async def test_variables_are_computed_when_they_are_read(admin: Client) -> None:
    variables = [
        {"name": "broken", "expression": "object.data.x"},
        {"name": "good", "expression": "object.data.a + '!'"},
        {"name": "better", "expression": "variables.good + '!'"},
    ]
    await enforce(admin, [{"expression": "variables.better == '1!!'"}], variables=variables)
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", config_map(a="1"))) == ""
    await enforce(admin, [{"expression": "variables.broken == '1'"}], variables=variables)
    wrong = 'composited variable "broken" fails to evaluate: no such key: x'
    refused = f"expression 'variables.broken == '1'' resulted in error: {wrong}"
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", config_map(a="1"))) == refused


async def test_all_expressions_of_a_policy_together_cost_no_more_than_a_budget(admin: Client) -> None:
    check = "authorizer.requestResource.check('get').allowed()"  # which counts as dear
    await enforce(admin, [{"expression": f"{check} && {check}"}] * 10)
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", config_map())) == ""
    await enforce(admin, [{"expression": f"{check} && {check}"}] * 20)
    spent = "validation failed due to running out of cost budget, no further validation rules will be run"
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", config_map())) == spent


@asynccontextmanager
async def acting(server: ApiServer, user: str, *groups: str) -> AsyncIterator[Client]:
    connector = aiohttp.TCPConnector(ssl=client_identity(server.data_dir, user, *groups))
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Client(session, server.url)


async def test_who_asks_is_known_and_what_they_may_do(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "get"]}
    await admin.create(f"{rbac}/clusterroles", {"metadata": {"name": "maps"}, "rules": [rule]})
    subjects = [{"kind": "User", "name": "alice"}]
    await admin.create(
        f"{rbac}/clusterrolebindings",
        {"metadata": {"name": "maps"}, "roleRef": {"kind": "ClusterRole", "name": "maps"}, "subjects": subjects},
    )
    facts = [
        "request.userInfo.username == 'alice' && 'dev' in request.userInfo.groups",
        "authorizer.requestResource.check('get').allowed() && !authorizer.requestResource.check('delete').allowed()",
        "authorizer.group('').resource('configmaps').namespace('other').check('get').allowed()",
        "!authorizer.serviceAccount('default', 'default').group('').resource('configmaps').check('get').allowed()",
        "authorizer.path('/api').check('get').allowed() && !authorizer.path('/none').check('get').allowed()",
        "variables.maps.check('get').allowed()",
    ]
    variables = [{"name": "maps", "expression": "authorizer.group('').resource('configmaps')"}]
    await enforce(admin, [{"expression": fact} for fact in facts], variables=variables)
    async with acting(server, "alice", "dev") as alice:
        assert said(await alice.ask("POST", MAPS, config_map())) == ""
    assert said(await admin.ask("POST", MAPS, config_map("b"))) == f"failed expression: {facts[0]}"


async def test_what_is_not_denied_is_warned_of_or_noted(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    noted = [
        {"key": "size", "valueExpression": "string(object.data.size())"},
        {"key": "nothing", "valueExpression": "null"},
    ]
    await enforce(admin, NEVER, auditAnnotations=noted, bound={"validationActions": ["Warn", "Audit"]})
    answer = await admin.ask("POST", MAPS, config_map(a="1"))
    assert answer.status == 201
    assert answer.warnings == ["299 - \"Validation failed for ValidatingAdmissionPolicy 'p' with binding 'p': never\""]
    lines = (server.data_dir / "audit.log").read_text().splitlines()
    (event,) = [e for e in map(json.loads, lines) if e["requestURI"] == MAPS]
    assert event["annotations"] == {
        "p/size": "1",
        "validation.policy.admission.k8s.io/validation_failure": (
            '[{"message":"never","policy":"p","binding":"p","expressionIndex":0,"validationActions":["Warn","Audit"]}]'
        ),
    }


async def test_an_annotation_that_cannot_be_made_refuses_unless_failures_are_ignored(admin: Client) -> None:
    noted = [{"key": "a", "valueExpression": "string(object.data.x)"}]
    await enforce(admin, [], auditAnnotations=noted)
    wrong = "expression 'string(object.data.x)' resulted in error: no such key: x"
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", config_map(a="1"))) == wrong
    await enforce(admin, [], auditAnnotations=noted, failurePolicy="Ignore")
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", config_map(a="1"))) == ""


KIND = {"apiVersion": "v1", "kind": "ConfigMap"}
LIMIT = [{"expression": "object.data.size() <= int(params.data.limit)"}]
NO_PARAMS = "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"


async def test_parameters_come_from_where_the_binding_says(admin: Client) -> None:
    names = {"resourceRules": [{**ON_MAPS, "resourceNames": ["a"]}]}
    two = config_map(a="1", b="2")
    deny, allow = {"parameterNotFoundAction": "Deny"}, {"parameterNotFoundAction": "Allow"}
    by_name: dict[str, Any] = {"paramRef": {"name": "limits", "namespace": "kube-public", **deny}}
    await enforce(admin, LIMIT, match=names, paramKind=KIND, bound=by_name)
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", two)) == NO_PARAMS
    there = "/api/v1/namespaces/kube-public/configmaps"
    await admin.create(there, config_map("limits", limit="1"))
    refused = "failed expression: object.data.size() <= int(params.data.limit)"
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", two)) == refused
    await admin.merge(f"{there}/limits", {"data": {"limit": "2"}})
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", two)) == ""
    await enforce(admin, LIMIT, match=names, paramKind=KIND, bound={"paramRef": {"name": "limits", **allow}})
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", two)) == ""  # none of that name in its own namespace
    selector = {"selector": {"matchLabels": {"limits": "yes"}}, "namespace": "kube-public", **deny}
    await enforce(admin, LIMIT, match=names, paramKind=KIND, bound={"paramRef": selector})
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", two)) == NO_PARAMS
    strict = {"metadata": {"name": "strict", "labels": {"limits": "yes"}}, "data": {"limit": "1"}}
    await admin.create(there, strict)
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", two)) == refused


async def test_parameters_that_cannot_be_had_refuse(admin: Client) -> None:
    deny = {"parameterNotFoundAction": "Deny"}
    nodes = {"resourceRules": [{**ON_MAPS, "resources": ["nodes"]}]}
    await enforce(admin, NEVER, match=nodes, paramKind=KIND, bound={"paramRef": {"name": "limits", **deny}})
    why = "failed to configure binding: cannot use namespaced paramRef in policy binding that matches cluster-scoped "
    assert said(await admin.ask("POST", NODES, {"metadata": {"name": "n"}})) == f"{why}resources"
    on_nodes = {"apiVersion": "v1", "kind": "Node"}
    placed = {"paramRef": {"name": "n", "namespace": "default", **deny}}
    await enforce(admin, NEVER, paramKind=on_nodes, bound=placed)
    why = "failed to configure binding: paramRef.namespace must not be provided for a cluster-scoped `paramKind`"
    assert said(await admin.ask("POST", MAPS, config_map())) == why
    unknown = {"apiVersion": "example.com/v9", "kind": "Limit"}
    await enforce(admin, NEVER, paramKind=unknown, bound={"paramRef": {"name": "n", **deny}})
    why = "failed to configure policy: failed to find resource referenced by paramKind: 'example.com/v9, Kind=Limit'"
    answer = await admin.ask("POST", MAPS, config_map())
    assert answer.json()["message"] == (
        f"configmaps \"a\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: {why}"
    )


async def test_who_cannot_read_the_parameters_cannot_name_them(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    rule = {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["*"]}
    await admin.create(f"{rbac}/clusterroles", {"metadata": {"name": "policies"}, "rules": [rule]})
    reference = {"kind": "ClusterRole", "name": "policies"}
    subjects = [{"kind": "User", "name": "alice"}]
    bound = {"metadata": {"name": "policies"}, "roleRef": reference, "subjects": subjects}
    await admin.create(f"{rbac}/clusterrolebindings", bound)
    spec: dict[str, Any] = {"matchConstraints": {"resourceRules": [ON_MAPS]}, "validations": NEVER}
    secrets = {**spec, "paramKind": {"apiVersion": "v1", "kind": "Secret"}}
    names = {"policyName": "p", "validationActions": ["Deny"]}
    ref = {"name": "s", "namespace": "default", "parameterNotFoundAction": "Deny"}
    async with acting(server, "alice") as alice:
        assert said(await alice.ask("POST", POLICIES, {"metadata": {"name": "free"}, "spec": spec})) == ""
        refused = said(await alice.ask("POST", POLICIES, {"metadata": {"name": "p"}, "spec": secrets}))
        assert "is invalid: spec.paramKind: Forbidden: user &{alice  [system:authenticated] map[" in refused
        why = 'must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)'
        assert refused.endswith(why)
        await admin.create(POLICIES, {"metadata": {"name": "p"}, "spec": secrets})
        binding = {"metadata": {"name": "p"}, "spec": {**names, "paramRef": ref}}
        refused = said(await alice.ask("POST", BINDINGS, binding))
        assert refused.endswith('does not have "get" permission on the object referenced by paramRef')
        binding["spec"]["policyName"] = "none"  # type: ignore[index]
        refused = said(await alice.ask("POST", BINDINGS, binding))
        assert refused.endswith('does not have "get" permission for all groups, versions and resources')
        updated = await alice.ask("PATCH", f"{POLICIES}/p", {"spec": {"failurePolicy": "Ignore"}}, headers=MERGE)
        assert said(updated) == ""  # what it reads stays the same


async def test_custom_resources_are_parameters_too(admin: Client) -> None:
    for definition in golden_definitions():
        await admin.create(DEFINITIONS, definition)
    await eventually(lambda: _answers(admin, WIDGETS))
    widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}}
    await admin.create(WIDGETS, widget)
    kind = {"apiVersion": "example.com/v1", "kind": "Widget"}
    bound = {"paramRef": {"name": "w", "parameterNotFoundAction": "Deny"}}
    await enforce(admin, [{"expression": "object.data.size() <= params.spec.size"}], paramKind=kind, bound=bound)
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", config_map(a="1"))) == ""
    refused = "failed expression: object.data.size() <= params.spec.size"
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", config_map(a="1", b="2"))) == refused


async def test_a_policy_holds_from_its_binding_on_and_until_either_is_gone(admin: Client) -> None:
    asked = ("POST", f"{MAPS}?dryRun=All", config_map())
    policy = {
        "metadata": {"name": "p"},
        "spec": {"matchConstraints": {"resourceRules": [ON_MAPS]}, "validations": NEVER},
    }
    await admin.create(POLICIES, policy)
    assert said(await admin.ask(*asked)) == ""
    bound = {"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}}
    await admin.create(BINDINGS, bound)
    assert said(await admin.ask(*asked)) == "never"
    await admin.merge(f"{POLICIES}/p", {"spec": {"validations": [{"expression": "true"}]}})
    assert said(await admin.ask(*asked)) == ""
    await admin.merge(f"{POLICIES}/p", {"spec": {"validations": NEVER}})
    assert said(await admin.ask(*asked)) == "never"
    assert (await admin.ask("DELETE", f"{POLICIES}/p")).status == 200
    assert said(await admin.ask(*asked)) == ""
    await admin.create(POLICIES, policy)
    assert said(await admin.ask(*asked)) == "never"
    assert (await admin.ask("DELETE", f"{BINDINGS}/b")).status == 200
    assert said(await admin.ask(*asked)) == ""


async def test_policies_hold_after_a_restart_and_cannot_lock_themselves_in(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, admin):
        await enforce(admin, NEVER, match={"resourceRules": [EVERYTHING]})
    async with running(tmp_path) as (_, admin):
        assert said(await admin.ask("POST", MAPS, config_map())) == "never"
        token = "/api/v1/namespaces/default/serviceaccounts/default/token"
        assert said(await admin.ask("POST", token, {"spec": {}})) == "never"
        review = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        assert (await admin.ask("POST", review, {})).status == 201
        assert (await admin.ask("DELETE", f"{POLICIES}/p")).status == 200
        assert (await admin.ask("POST", MAPS, config_map())).status == 201


async def test_the_status_says_what_does_not_fit_the_schemas(admin: Client) -> None:
    for definition in golden_definitions():
        await admin.create(DEFINITIONS, definition)
    await eventually(lambda: _answers(admin, WIDGETS))
    rules = [
        {**ON_MAPS, "operations": ["CREATE"]},
        {"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["widgets"]},
    ]
    validations = [
        {"expression": "object.metadata.labels['a'] == 'b' && object.kind != ''"},
        {"expression": "object.spec.size > 1", "messageExpression": "string(object.spec.siez)"},
        {"expression": "variables.size == 'large'"},  # of a ConfigMap it has any type
    ]
    variables = [{"name": "size", "expression": "object.spec.size"}]
    spec = {"matchConstraints": {"resourceRules": rules}, "validations": validations, "variables": variables}
    await admin.create(POLICIES, {"metadata": {"name": "p"}, "spec": spec})

    async def checked() -> Any:
        status = (await admin.get(f"{POLICIES}/p"))["status"]
        return status if status.get("observedGeneration") == 1 else None

    maps, widgets = "/v1, Kind=ConfigMap", "example.com/v1, Kind=Widget"
    assert await eventually(checked) == {
        "observedGeneration": 1,
        "typeChecking": {
            "expressionWarnings": [
                {
                    "fieldRef": "spec.validations[1].expression",
                    "warning": f"{maps}: ERROR: <input>:1:7: undefined field 'spec'\n"
                    " | object.spec.size > 1\n | ......^\n",
                },
                {
                    "fieldRef": "spec.validations[1].messageExpression",
                    "warning": f"{maps}: ERROR: <input>:1:14: undefined field 'spec'\n"
                    " | string(object.spec.siez)\n | .............^\n\n"
                    f"{widgets}: ERROR: <input>:1:19: undefined field 'siez'\n"
                    " | string(object.spec.siez)\n | ..................^\n",
                },
                {
                    "fieldRef": "spec.validations[2].expression",
                    "warning": f"{widgets}: ERROR: <input>:1:16: found no matching overload for '_==_' applied to"
                    " '(int, string)'\n | variables.size == 'large'\n | ...............^\n",
                },
            ]
        },
    }
    await admin.merge(f"{POLICIES}/p", {"spec": {"validations": validations[:1]}})

    async def clean() -> Any:
        status = (await admin.get(f"{POLICIES}/p"))["status"]
        return status if status.get("observedGeneration") == 2 else None

    assert await eventually(clean) == {"observedGeneration": 2, "typeChecking": {}}


async def test_table_of_policies_has_validation_counts_and_parameters(admin: Client) -> None:
    by_name = {"name": "limits", "namespace": "kube-public", "parameterNotFoundAction": "Deny"}
    labels = {"matchLabels": {"b": "1"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["y", "x"]}]}
    by_label = {"selector": labels, "parameterNotFoundAction": "Deny"}
    await enforce(admin, NEVER, name="a")
    await enforce(admin, NEVER, name="b", paramKind=KIND, bound={"paramRef": by_name})
    await enforce(admin, NEVER * 2, name="c", paramKind=KIND, bound={"paramRef": by_label})
    table = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    shown = [(await admin.ask("GET", path, headers=table)).json() for path in (POLICIES, BINDINGS)]
    heads = [[column["name"] for column in one["columnDefinitions"]] for one in shown]
    assert heads == [["Name", "Validations", "ParamKind", "Age"], ["Name", "PolicyName", "ParamRef", "Age"]]
    cells = [[row["cells"][:3] for row in one["rows"]] for one in shown]
    assert cells == [
        [["a", 1, "<unset>"], ["b", 1, "v1/ConfigMap"], ["c", 2, "v1/ConfigMap"]],
        [["a", "a", "<unset>"], ["b", "b", "kube-public/limits"], ["c", "c", "a in (x,y),b=1"]],
    ]
