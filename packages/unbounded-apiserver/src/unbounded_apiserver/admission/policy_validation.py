"""Validation of policies and bindings; every message is Kubernetes'."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from unbounded_apiserver import field_errors, name_validation, selectors
from unbounded_apiserver.admission.environment import ANY, Environment, ExpressionRejected
from unbounded_apiserver.cel.lexer import KEYWORDS, RESERVED
from unbounded_apiserver.cel.types import BOOL, NULL, STRING, CelType
from unbounded_apiserver.resource_model import Object
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.schema.errors import too_many

FAILURE_POLICIES: Final = ["Fail", "Ignore"]
MATCH_POLICIES: Final = ["Equivalent", "Exact"]
OPERATIONS: Final = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"]
SCOPES: Final = ["*", "Cluster", "Namespaced"]
REASONS: Final = ["Forbidden", "Invalid", "RequestEntityTooLarge"]
ACTIONS: Final = ["Audit", "Deny", "Warn"]
NOT_FOUND_ACTIONS: Final = ["Deny", "Allow"]
MAX_ANNOTATIONS: Final = 20
MAX_CONDITIONS: Final = 64
MAX_VALUE_EXPRESSION_BYTES: Final = 5 * 1024
_IDENTIFIER: Final = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*", re.ASCII)

Errors = Iterator[FieldError]
Part = Mapping[str, Any]


def rules_of_policy(obj: Object, old: Object | None) -> list[FieldError]:
    if old is not None and obj["spec"] == old["spec"]:
        return []
    return list(_policy(obj["metadata"].get("name", ""), obj["spec"]))


def _policy(name: str, spec: Part) -> Errors:
    if spec["failurePolicy"] not in FAILURE_POLICIES:
        yield field_errors.unsupported("spec.failurePolicy", spec["failurePolicy"], FAILURE_POLICIES)
    param_kind = spec.get("paramKind")
    if param_kind is not None:
        yield from _param_kind(param_kind, "spec.paramKind")
    match = spec.get("matchConstraints")
    if match is None:
        yield field_errors.required("spec.matchConstraints")
    else:
        yield from _match_resources(match, "spec.matchConstraints")
        if not match.get("resourceRules"):
            yield field_errors.required("spec.matchConstraints.resourceRules")
    params = None if param_kind is None else ANY
    yield from _match_conditions(spec.get("matchConditions") or (), Environment(params=params))
    environment = Environment(params=params, composed=bool(spec.get("variables")))
    for index, variable in enumerate(spec.get("variables") or ()):
        yield from _variable(variable, environment, f"spec.variables[{index}]")
    if not spec.get("validations") and not spec.get("auditAnnotations"):
        why = "validations or auditAnnotations must contain at least one item"
        yield from (field_errors.required("spec.validations", why), field_errors.required("spec.auditAnnotations", why))
        return
    for index, validation in enumerate(spec.get("validations") or ()):
        yield from _validation(validation, environment, f"spec.validations[{index}]")
    yield from _audit_annotations(name, spec.get("auditAnnotations") or (), environment)


def _param_kind(kind: Part, at: str) -> Errors:
    api_version, name = kind.get("apiVersion", ""), kind.get("kind", "")
    if not api_version:
        yield field_errors.required(f"{at}.apiVersion")
    elif api_version.count("/") > 1:
        why = f"unexpected GroupVersion string: {api_version}"
        yield field_errors.invalid(f"{at}.apiVersion", api_version, why)
    else:
        group, _, version = api_version.rpartition("/")
        if group and (wrong := name_validation.subdomain(group)):
            yield field_errors.invalid(f"{at}.apiVersion", group, ",".join(wrong))
        if not version:
            yield field_errors.invalid(f"{at}.apiVersion", api_version, "version must be specified")
        elif wrong := name_validation.label_1035(version):
            yield field_errors.invalid(f"{at}.apiVersion", version, ",".join(wrong))
    if not name:
        yield field_errors.required(f"{at}.kind")
    elif wrong := name_validation.label_1035(name.lower()):
        why = "may have mixed case, but should otherwise match: " + ",".join(wrong)
        yield field_errors.invalid(f"{at}.kind", name, why)


def _match_resources(match: Part, at: str) -> Errors:
    if match["matchPolicy"] not in MATCH_POLICIES:
        yield field_errors.unsupported(f"{at}.matchPolicy", match["matchPolicy"], MATCH_POLICIES)
    for name in ("namespaceSelector", "objectSelector"):
        yield from selectors.check_object(match[name], f"{at}.{name}")
    for name in ("resourceRules", "excludeResourceRules"):
        for index, rule in enumerate(match.get(name) or ()):
            yield from _rule(rule, f"{at}.{name}[{index}]")


def _rule(rule: Part, at: str) -> Errors:
    seen: set[str] = set()
    for index, name in enumerate(rule.get("resourceNames") or ()):
        where = f"{at}.resourceNames[{index}]"
        yield from (field_errors.invalid(where, name, why) for why in name_validation.path_segment(name))
        if name in seen:
            yield field_errors.duplicate(where, name)
        seen.add(name)
    operations = rule.get("operations") or []
    if not operations:
        yield field_errors.required(f"{at}.operations")
    yield from _alone(operations, f"{at}.operations", "operations")
    for index, operation in enumerate(operations):
        if operation not in OPERATIONS:
            yield field_errors.unsupported(f"{at}.operations[{index}]", operation, OPERATIONS)
    for name, what in (("apiGroups", "API groups"), ("apiVersions", "API versions")):
        values = rule.get(name) or []
        if not values:
            yield field_errors.required(f"{at}.{name}")
        yield from _alone(values, f"{at}.{name}", what)
    for index, version in enumerate(rule.get("apiVersions") or ()):
        if not version:
            yield field_errors.required(f"{at}.apiVersions[{index}]")
    yield from _resources(rule.get("resources") or [], f"{at}.resources")
    if rule["scope"] not in SCOPES:
        yield field_errors.unsupported(f"{at}.scope", rule["scope"], SCOPES)


def _alone(values: Sequence[str], at: str, what: str) -> Errors:
    if len(values) > 1 and "*" in values:
        yield field_errors.invalid(at, values, f"if '*' is present, must not specify other {what}")


def _resources(resources: list[str], at: str) -> Errors:
    if not resources:
        yield field_errors.required(at)
    whole: set[str] = set()  # x of x/*
    everywhere: set[str] = set()  # y of */y
    for index, resource in enumerate(resources):
        where = f"{at}[{index}]"
        name, slash, subresource = resource.partition("/")
        if not resource:
            yield field_errors.required(where)
        if not slash:
            continue
        if name in whole:
            yield field_errors.invalid(where, resource, f"if '{name}/*' is present, must not specify {resource}")
        if subresource in everywhere:
            yield field_errors.invalid(where, resource, f"if '*/{subresource}' is present, must not specify {resource}")
        if subresource == "*":
            whole.add(name)
        if name == "*":
            everywhere.add(subresource)
    if len(resources) > 1 and "*/*" in resources:
        yield field_errors.invalid(at, resources, "if '*/*' is present, must not specify other resources")
    if "*" in resources and any("/" not in one and one not in {"*", ""} for one in resources):
        why = "if '*' is present, must not specify other resources without subresources"
        yield field_errors.invalid(at, resources, why)


def _expression(source: str, at: str, environment: Environment, *wanted: CelType, authorizer: bool = True) -> Errors:
    try:
        environment.compile(source, *wanted, authorizer=authorizer)
    except ExpressionRejected as error:
        yield field_errors.invalid(at, source, str(error))


def _match_conditions(conditions: Sequence[Part], environment: Environment) -> Errors:
    at = "spec.matchConditions"
    if len(conditions) > MAX_CONDITIONS:
        yield too_many(at, len(conditions), MAX_CONDITIONS)
    seen: set[str] = set()
    for index, condition in enumerate(conditions):
        source, name = condition["expression"].strip(), condition["name"]
        if not source:
            yield field_errors.required(f"{at}[{index}].expression")
        else:
            yield from _expression(source, f"{at}[{index}].expression", environment, BOOL)
        if not name:
            yield field_errors.required(f"{at}[{index}].name")
            continue
        yield from (
            field_errors.invalid(f"{at}[{index}].name", name, why) for why in name_validation.qualified_name(name)
        )
        if name in seen:
            yield field_errors.duplicate(f"{at}[{index}].name", name)
        seen.add(name)


def _variable(variable: Part, environment: Environment, at: str) -> Errors:
    name, source = variable["name"], variable["expression"]
    if not name.strip():
        yield field_errors.required(f"{at}.name", "name is not specified")
    elif not _IDENTIFIER.fullmatch(name) or name in KEYWORDS | RESERVED:
        yield field_errors.invalid(f"{at}.name", name, "name is not a valid CEL identifier")
    if not source.strip():
        yield field_errors.required(f"{at}.expression", "expression is not specified")
        return
    try:
        environment.define(name, source)
    except ExpressionRejected as error:
        yield field_errors.invalid(f"{at}.expression", source, str(error))


def _validation(validation: Part, environment: Environment, at: str) -> Errors:
    source, message = validation["expression"], validation.get("message", "")
    if not source.strip():
        yield field_errors.required(f"{at}.expression", "expression is not specified")
    else:
        yield from _expression(source, f"{at}.expression", environment, BOOL)
    expression = validation.get("messageExpression", "")
    if expression and not expression.strip():
        yield field_errors.invalid(f"{at}.messageExpression", expression, "must be non-empty if specified")
    elif expression:
        yield from _expression(expression, f"{at}.messageExpression", environment, STRING, authorizer=False)
    if message and not message.strip():
        yield field_errors.invalid(f"{at}.message", message, "message must be non-empty if specified")
    elif re.search(r"[\n\r]", message.strip()):
        yield field_errors.invalid(f"{at}.message", message, "message must not contain line breaks")
    reason = validation.get("reason")
    if reason is not None and reason not in REASONS:
        yield field_errors.unsupported(f"{at}.reason", reason, REASONS)


def _audit_annotations(name: str, annotations: Sequence[Part], environment: Environment) -> Errors:
    at = "spec.auditAnnotations"
    if len(annotations) > MAX_ANNOTATIONS:
        yield field_errors.invalid(at, annotations, f"must not have more than {MAX_ANNOTATIONS} auditAnnotations")
    seen: set[str] = set()
    for index, annotation in enumerate(annotations):
        key, where = annotation["key"], f"{at}[{index}]"
        if not name:
            yield field_errors.invalid(f"{where}.key", key, "requires metadata.name be non-empty")
        else:
            full_key = f"{name}/{key}"
            yield from (
                field_errors.invalid(f"{where}.key", full_key, why) for why in name_validation.qualified_name(full_key)
            )
        yield from _value_expression(annotation["valueExpression"], environment, f"{where}.valueExpression")
        if key in seen:
            yield field_errors.duplicate(f"{where}.key", key)
        seen.add(key)


def _value_expression(source: str, environment: Environment, at: str) -> Errors:
    if not source.strip():
        yield field_errors.required(at, "valueExpression is not specified")
    elif len(source.strip().encode()) > MAX_VALUE_EXPRESSION_BYTES:
        yield field_errors.required(at, f"must not exceed {MAX_VALUE_EXPRESSION_BYTES} bytes in length")
    else:
        yield from _expression(source, at, environment, STRING, NULL)


def rules_of_binding(obj: Object, _old: Object | None) -> list[FieldError]:
    return list(_binding(obj["spec"]))


def _binding(spec: Part) -> Errors:
    policy = spec.get("policyName", "")
    if not policy:
        yield field_errors.required("spec.policyName")
    else:
        yield from (field_errors.invalid("spec.policyName", policy, why) for why in name_validation.subdomain(policy))
    if spec.get("paramRef") is not None:
        yield from _param_ref(spec["paramRef"], "spec.paramRef")
    if spec.get("matchResources") is not None:
        yield from _match_resources(spec["matchResources"], "spec.matchResouces")  # kube-apiserver's spelling
    yield from _actions(spec.get("validationActions") or [], "spec.validationActions")


def _param_ref(reference: Part, at: str) -> Errors:
    name, selector = reference.get("name", ""), reference.get("selector")
    exclusive = "name and selector are mutually exclusive"
    if name:
        yield from (field_errors.invalid(f"{at}.name", name, why) for why in name_validation.path_segment(name))
        if selector is not None:
            yield field_errors.forbidden(f"{at}.name", exclusive)
    if selector is not None:
        yield from selectors.check_object(selector, f"{at}.selector")
        if name:
            yield field_errors.forbidden(f"{at}.selector", exclusive)
    if not name and selector is None:
        yield field_errors.required(at, "one of name or selector must be specified")
    action = reference.get("parameterNotFoundAction")
    if not action:
        yield field_errors.required(f"{at}.parameterNotFoundAction")
    elif action not in NOT_FOUND_ACTIONS:
        yield field_errors.unsupported(f"{at}.parameterNotFoundAction", action, NOT_FOUND_ACTIONS)


def _actions(actions: list[str], at: str) -> Errors:
    seen: set[str] = set()
    for index, action in enumerate(actions):
        if action not in ACTIONS:
            yield field_errors.unsupported(f"{at}[{index}]", action, ACTIONS)
        if action in seen:
            yield field_errors.duplicate(f"{at}[{index}]", action)
        seen.add(action)
    if "Deny" in actions and "Warn" in actions:
        why = (
            "must not contain both Deny and Warn (repeating the same validation failure information "
            "in the API response and headers serves no purpose)"
        )
        yield field_errors.invalid(at, actions, why)
    if not actions:
        yield field_errors.required(at, "at least one validation action is required")
