"""Valid admission policies and bindings, and the errors of invalid ones."""

from __future__ import annotations

from typing import Any

import pytest

from unbounded_apiserver.admission.policy_types import BINDINGS, POLICIES
from unbounded_apiserver.decoding import normalize
from unbounded_apiserver.resource_model import Resource

RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
MATCH = {"resourceRules": [RULE]}
GOOD = {"matchConstraints": MATCH, "validations": [{"expression": "true"}]}
BOUND = {"policyName": "a.example.com", "validationActions": ["Deny"]}
COMPILES = {
    "the object": "object.data.size() < 3 && oldObject == null",
    "the request": "request.userInfo.groups.exists(g, g == 'a') && request.operation == 'CREATE' && !request.dryRun",
    "the options": "request.options.kind == 'CreateOptions'",
    "the namespace": "namespaceObject.metadata.labels['a'] == 'b' && namespaceObject.status.phase == 'Active'",
    "the asker": "authorizer.group('').resource('pods').namespace('a').check('get').allowed()",
    "the asker for the same resource": "authorizer.requestResource.check('delete').allowed()",
    "the asker for a path": "authorizer.path('/healthz').check('get').allowed()",
}


def complaints(resource: Resource, spec: dict[str, Any]) -> list[str]:
    obj = {"metadata": {"name": "a.example.com"}, "spec": spec}
    normalize(resource, obj)
    return [f"{error.field}: {error.message}" for error in resource.type.validate(obj, None)]


def rule(**changes: Any) -> dict[str, Any]:
    return {"matchConstraints": {"resourceRules": [{**RULE, **changes}]}}


@pytest.mark.parametrize("expression", COMPILES.values(), ids=COMPILES.keys())
def test_an_expression_reads(expression: str) -> None:
    assert complaints(POLICIES, {**GOOD, "validations": [{"expression": expression}]}) == []


def test_variables_are_typed_and_read_what_is_before_them() -> None:
    variables = [
        {"name": "sizes", "expression": "[1, 2]"},
        {"name": "sum", "expression": "variables.sizes.sum()"},
        {"name": "check", "expression": "authorizer.group('').resource('pods')"},
    ]
    good = [{"expression": "variables.sum > 2 && variables.check.check('get').allowed()"}]
    assert complaints(POLICIES, {**GOOD, "variables": variables, "validations": good}) == []
    bad = [{"expression": "variables.sum == 'a'"}, {"expression": "variables.other"}]
    first, second = complaints(POLICIES, {**GOOD, "variables": variables, "validations": bad})
    assert "found no matching overload for '_==_' applied to '(int, string)'" in first
    assert "undefined field 'other'" in second


WRONG_POLICIES: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"failurePolicy": "Perhaps"},
        ['spec.failurePolicy: Unsupported value: "Perhaps": supported values: "Fail", "Ignore"'],
    ),
    ({"matchConstraints": None}, ["spec.matchConstraints: Required value"]),
    ({"matchConstraints": {}}, ["spec.matchConstraints.resourceRules: Required value"]),
    (
        {"matchConstraints": {**MATCH, "matchPolicy": "Nearly"}},
        ['spec.matchConstraints.matchPolicy: Unsupported value: "Nearly": supported values: "Equivalent", "Exact"'],
    ),
    (
        {
            "matchConstraints": {
                **MATCH,
                "objectSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]},
                "namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Near", "values": ["b"]}]},
            }
        },
        [
            "spec.matchConstraints.namespaceSelector.matchExpressions[0].operator: "
            'Invalid value: "Near": not a valid selector operator',
            "spec.matchConstraints.objectSelector.matchExpressions[0].values: "
            "Required value: must be specified when `operator` is 'In' or 'NotIn'",
        ],
    ),
    (rule(operations=[]), ["spec.matchConstraints.resourceRules[0].operations: Required value"]),
    (
        rule(operations=["READ"]),
        [
            'spec.matchConstraints.resourceRules[0].operations[0]: Unsupported value: "READ": '
            'supported values: "*", "CONNECT", "CREATE", "DELETE", "UPDATE"'
        ],
    ),
    (
        rule(operations=["*", "CREATE"]),
        [
            'spec.matchConstraints.resourceRules[0].operations: Invalid value: ["*","CREATE"]: '
            "if '*' is present, must not specify other operations"
        ],
    ),
    (
        rule(apiGroups=[], apiVersions=["*", "v1"]),
        [
            "spec.matchConstraints.resourceRules[0].apiGroups: Required value",
            'spec.matchConstraints.resourceRules[0].apiVersions: Invalid value: ["*","v1"]: '
            "if '*' is present, must not specify other API versions",
        ],
    ),
    (
        rule(resources=["pods/*", "pods/log"]),
        [
            'spec.matchConstraints.resourceRules[0].resources[1]: Invalid value: "pods/log": '
            "if 'pods/*' is present, must not specify pods/log"
        ],
    ),
    (
        rule(resources=["*", "pods"]),
        [
            'spec.matchConstraints.resourceRules[0].resources: Invalid value: ["*","pods"]: '
            "if '*' is present, must not specify other resources without subresources"
        ],
    ),
    (
        rule(scope="World", resourceNames=["a", "a", "b/c"]),
        [
            'spec.matchConstraints.resourceRules[0].resourceNames[1]: Duplicate value: "a"',
            "spec.matchConstraints.resourceRules[0].resourceNames[2]: Invalid value: \"b/c\": may not contain '/'",
            'spec.matchConstraints.resourceRules[0].scope: Unsupported value: "World": '
            'supported values: "*", "Cluster", "Namespaced"',
        ],
    ),
    (
        {"validations": []},
        [
            "spec.validations: Required value: validations or auditAnnotations must contain at least one item",
            "spec.auditAnnotations: Required value: validations or auditAnnotations must contain at least one item",
        ],
    ),
    (
        {"validations": [{"expression": " "}]},
        ["spec.validations[0].expression: Required value: expression is not specified"],
    ),
    (
        {"validations": [{"expression": "object.name"}]},
        [
            'spec.validations[0].expression: Invalid value: "object.name": must evaluate to bool but got dyn',
        ],
    ),
    (
        {"validations": [{"expression": "params.x == 1"}]},
        [
            'spec.validations[0].expression: Invalid value: "params.x == 1": compilation failed: ERROR: <input>:1:1: '
            "undeclared reference to 'params' (in container '')\n | params.x == 1\n | ^"
        ],
    ),
    (
        {"validations": [{"expression": "true", "message": "a\nb", "reason": "NotFound"}]},
        [
            'spec.validations[0].message: Invalid value: "a\\nb": message must not contain line breaks',
            'spec.validations[0].reason: Unsupported value: "NotFound": '
            'supported values: "Forbidden", "Invalid", "RequestEntityTooLarge"',
        ],
    ),
    (
        {"validations": [{"expression": "true", "messageExpression": "1"}]},
        ['spec.validations[0].messageExpression: Invalid value: "1": must evaluate to string but got int'],
    ),
    (
        {"validations": [{"expression": "true", "messageExpression": "authorizer.path('/').check('get').reason()"}]},
        [
            "spec.validations[0].messageExpression: Invalid value: "
            "\"authorizer.path('/').check('get').reason()\": compilation failed: ERROR: <input>:1:1: "
            "undeclared reference to 'authorizer' (in container '')\n"
            " | authorizer.path('/').check('get').reason()\n | ^"
        ],
    ),
    (
        {"variables": [{"name": "a-b", "expression": "1"}, {"name": "in", "expression": ""}]},
        [
            'spec.variables[0].name: Invalid value: "a-b": name is not a valid CEL identifier',
            'spec.variables[1].name: Invalid value: "in": name is not a valid CEL identifier',
            "spec.variables[1].expression: Required value: expression is not specified",
        ],
    ),
    (
        {
            "matchConditions": [
                {"name": "a", "expression": "1"},
                {"name": "a", "expression": ""},
                {"expression": "true"},
            ]
        },
        [
            'spec.matchConditions[0].expression: Invalid value: "1": must evaluate to bool but got int',
            "spec.matchConditions[1].expression: Required value",
            'spec.matchConditions[1].name: Duplicate value: "a"',
            "spec.matchConditions[2].name: Required value",
        ],
    ),
    (
        {"auditAnnotations": [{"key": "a", "valueExpression": "1"}, {"key": "a", "valueExpression": ""}]},
        [
            'spec.auditAnnotations[0].valueExpression: Invalid value: "1": '
            "must evaluate to one of [string null_type] but got int",
            "spec.auditAnnotations[1].valueExpression: Required value: valueExpression is not specified",
            'spec.auditAnnotations[1].key: Duplicate value: "a"',
        ],
    ),
    (
        {"paramKind": {"apiVersion": "a/b/c", "kind": "-"}},
        [
            'spec.paramKind.apiVersion: Invalid value: "a/b/c": unexpected GroupVersion string: a/b/c',
            'spec.paramKind.kind: Invalid value: "-": may have mixed case, but should otherwise match: '
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
            "character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
            "regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')",
        ],
    ),
]


@pytest.mark.parametrize(("change", "expected"), WRONG_POLICIES)
def test_a_policy_is_refused_with(change: dict[str, Any], expected: list[str]) -> None:
    assert complaints(POLICIES, {**GOOD, **change}) == expected


WRONG_BINDINGS: list[tuple[dict[str, Any], list[str]]] = [
    ({"policyName": ""}, ["spec.policyName: Required value"]),
    ({"validationActions": []}, ["spec.validationActions: Required value: at least one validation action is required"]),
    (
        {"validationActions": ["Deny", "Warn"]},
        [
            'spec.validationActions: Invalid value: ["Deny","Warn"]: must not contain both Deny and Warn (repeating '
            "the same validation failure information in the API response and headers serves no purpose)"
        ],
    ),
    (
        {"validationActions": ["Audit", "Audit", "Sing"]},
        [
            'spec.validationActions[1]: Duplicate value: "Audit"',
            'spec.validationActions[2]: Unsupported value: "Sing": supported values: "Audit", "Deny", "Warn"',
        ],
    ),
    (
        {"paramRef": {}},
        [
            "spec.paramRef: Required value: one of name or selector must be specified",
            "spec.paramRef.parameterNotFoundAction: Required value",
        ],
    ),
    (
        {"paramRef": {"name": "a", "selector": {}, "parameterNotFoundAction": "Guess"}},
        [
            "spec.paramRef.name: Forbidden: name and selector are mutually exclusive",
            "spec.paramRef.selector: Forbidden: name and selector are mutually exclusive",
            'spec.paramRef.parameterNotFoundAction: Unsupported value: "Guess": supported values: "Deny", "Allow"',
        ],
    ),
]


@pytest.mark.parametrize(("change", "expected"), WRONG_BINDINGS)
def test_a_binding_is_refused_with(change: dict[str, Any], expected: list[str]) -> None:
    assert complaints(BINDINGS, {**BOUND, **change}) == expected
