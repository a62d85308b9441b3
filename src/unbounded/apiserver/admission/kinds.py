"""ValidatingAdmissionPolicy and ValidatingAdmissionPolicyBinding: their shapes, defaults and columns."""

from __future__ import annotations

from typing import Any, Final

from unbounded.apiserver.admission import rules
from unbounded.apiserver.admission.labels import shown
from unbounded.apiserver.admission.names import GROUP, PACKAGE
from unbounded.apiserver.builtin import BuiltIn
from unbounded.apiserver.columns import AGE, NAME
from unbounded.apiserver.kinds import CONDITION, LABEL_SELECTOR, kind_shape
from unbounded.apiserver.shapes import INT64, STRING, STRINGS, Field, ListOf, Struct
from unbounded.apiserver.types import STATUS, Column, Object, Resource

UNSET: Final = "<unset>"

_RULE: Final = Struct(
    "NamedRuleWithOperations",
    {
        "resourceNames": Field(STRINGS, "The objects that are meant; all when this is empty."),
        "operations": Field(STRINGS, "CREATE, UPDATE, DELETE, CONNECT; * is all."),
        "apiGroups": Field(STRINGS, 'The groups of the resources; "" is the core group, * is all.'),
        "apiVersions": Field(STRINGS, "The versions of the resources; * is all."),
        "resources": Field(STRINGS, "Such as machines, machines/status, machines/*, */status; */* is everything."),
        "scope": Field(STRING, "Cluster, Namespaced, or * for both.", keep=True),
    },
    "Operations and resources, and names of objects.",
    PACKAGE,
    atomic=True,
)
_MATCH_RESOURCES: Final = Struct(
    "MatchResources",
    {
        "namespaceSelector": Field(LABEL_SELECTOR, "Labels of the namespace that an object stands in.", keep=True),
        "objectSelector": Field(LABEL_SELECTOR, "Labels of the object, before or after the change.", keep=True),
        "resourceRules": Field(ListOf(_RULE), "What is meant, if any of these matches."),
        "excludeResourceRules": Field(ListOf(_RULE), "What is left out, whatever resourceRules say."),
        "matchPolicy": Field(
            STRING, "Equivalent: other versions of a resource match too. Exact: they do not.", keep=True
        ),
    },
    "Which requests are meant.",
    PACKAGE,
    atomic=True,
)
_PARAM_KIND: Final = Struct(
    "ParamKind",
    {
        "apiVersion": Field(STRING, "The group and version of the parameters."),
        "kind": Field(STRING, "The kind of the parameters."),
    },
    "The kind of the objects that parameterize a policy.",
    PACKAGE,
    atomic=True,
)
_PARAM_REF: Final = Struct(
    "ParamRef",
    {
        "name": Field(STRING, "The name of the parameter object; this or selector."),
        "namespace": Field(STRING, "Where it stands; left out, in the namespace of the request."),
        "selector": Field(LABEL_SELECTOR, "Labels of the parameter objects; each of them is held against.", keep=True),
        "parameterNotFoundAction": Field(
            STRING, "Allow or Deny what would need a parameter that is missing.", keep=True
        ),
    },
    "Which parameters a binding uses.",
    PACKAGE,
    atomic=True,
)
_VALIDATION: Final = Struct(
    "Validation",
    {
        "expression": Field(STRING, "A CEL expression that has to be true.", always=True),
        "message": Field(STRING, "What is said when it is not."),
        "reason": Field(STRING, "The machine-readable reason; Invalid by default.", keep=True),
        "messageExpression": Field(STRING, "A CEL expression that makes the message."),
    },
    "A condition that requests have to meet.",
    PACKAGE,
)
_AUDIT_ANNOTATION: Final = Struct(
    "AuditAnnotation",
    {
        "key": Field(STRING, "The key; in the audit log it follows the name of the policy.", always=True),
        "valueExpression": Field(STRING, "A CEL expression: a string, or null for no annotation.", always=True),
    },
    "What is noted in the audit log.",
    PACKAGE,
)
_MATCH_CONDITION: Final = Struct(
    "MatchCondition",
    {
        "name": Field(STRING, "A name for it, unique in the policy.", always=True),
        "expression": Field(STRING, "A CEL expression; where it is false the policy does not apply.", always=True),
    },
    "A further condition for the policy to apply.",
    PACKAGE,
)
_VARIABLE: Final = Struct(
    "Variable",
    {
        "name": Field(STRING, "Expressions read it as variables.NAME.", always=True),
        "expression": Field(STRING, "A CEL expression, which may use variables before it.", always=True),
    },
    "A value that is computed once, when it is first read.",
    PACKAGE,
)
_EXPRESSION_WARNING: Final = Struct(
    "ExpressionWarning",
    {
        "fieldRef": Field(STRING, "The expression, such as spec.validations[0].expression.", always=True),
        "warning": Field(STRING, "What does not fit the schemas of what the policy matches.", always=True),
    },
    "Something that is suspicious about an expression.",
    PACKAGE,
)
_TYPE_CHECKING: Final = Struct(
    "TypeChecking",
    {"expressionWarnings": Field(ListOf(_EXPRESSION_WARNING), "What does not fit.")},
    "How expressions agree with schemas.",
    PACKAGE,
)
_POLICY_SPEC: Final = Struct(
    "ValidatingAdmissionPolicySpec",
    {
        "paramKind": Field(_PARAM_KIND, "The kind of the parameters; left out, there are none.", keep=True),
        "matchConstraints": Field(_MATCH_RESOURCES, "Which requests are held to the policy.", keep=True),
        "validations": Field(ListOf(_VALIDATION), "What requests have to meet."),
        "failurePolicy": Field(STRING, "Fail or Ignore: what becomes of a request when the policy fails.", keep=True),
        "auditAnnotations": Field(ListOf(_AUDIT_ANNOTATION), "What is noted in the audit log."),
        "matchConditions": Field(ListOf(_MATCH_CONDITION, "name"), "Further conditions for the policy to apply."),
        "variables": Field(ListOf(_VARIABLE, "name"), "Values that several expressions use."),
    },
    "What the policy holds requests to.",
    PACKAGE,
)
_POLICY_STATUS: Final = Struct(
    "ValidatingAdmissionPolicyStatus",
    {
        "observedGeneration": Field(INT64, "The generation that was checked."),
        "typeChecking": Field(_TYPE_CHECKING, "How expressions agree with schemas.", keep=True),
        "conditions": Field(ListOf(CONDITION, map_keys=("type",)), "What is known of the policy."),
    },
    "What was found out about the policy.",
    PACKAGE,
)
_BINDING_SPEC: Final = Struct(
    "ValidatingAdmissionPolicyBindingSpec",
    {
        "policyName": Field(STRING, "The policy."),
        "paramRef": Field(_PARAM_REF, "Its parameters, where it has some.", keep=True),
        "matchResources": Field(
            _MATCH_RESOURCES, "Which of the requests that the policy matches are meant.", keep=True
        ),
        "validationActions": Field(
            ListOf(STRING, as_set=True), "Deny, Warn, Audit: what is done about what does not meet it."
        ),
    },
    "Puts a policy in force.",
    PACKAGE,
)


def _default_match(match: Object | None) -> None:
    if match is None:
        return
    match.setdefault("namespaceSelector", {})
    match.setdefault("objectSelector", {})
    match.setdefault("matchPolicy", "Equivalent")
    for rule in (*(match.get("resourceRules") or ()), *(match.get("excludeResourceRules") or ())):
        rule.setdefault("scope", "*")


def _default_policy(obj: Object) -> None:
    obj["spec"].setdefault("failurePolicy", "Fail")
    _default_match(obj["spec"].get("matchConstraints"))


def _default_binding(obj: Object) -> None:
    _default_match(obj["spec"].get("matchResources"))


def _decide(obj: Object, old: Object | None) -> None:
    """Keep the status, which has its own subresource; the generation counts changes of spec."""
    obj.pop("status", None)
    if old is not None and obj["spec"] != old["spec"]:
        obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def _decide_policy(obj: Object, old: Object | None) -> None:
    _decide(obj, old)
    obj["status"] = (old or {}).get("status") or {}


def _param_kind(obj: Any) -> str:
    kind = obj["spec"].get("paramKind")
    return UNSET if kind is None else f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}"


def _param_ref(obj: Any) -> str:
    reference = obj["spec"].get("paramRef")
    if reference is None:
        return UNSET
    if not reference.get("name"):
        return shown(reference.get("selector"))
    return f"{reference['namespace']}/{reference['name']}" if reference.get("namespace") else str(reference["name"])


POLICIES: Final = Resource(
    GROUP,
    "v1",
    "ValidatingAdmissionPolicy",
    "validatingadmissionpolicies",
    "validatingadmissionpolicy",
    False,
    BuiltIn(
        kind_shape(
            "ValidatingAdmissionPolicy",
            "What requests are held to, in CEL; a binding puts it in force.",
            PACKAGE,
            {
                "spec": Field(_POLICY_SPEC, "What the policy holds requests to.", always=True),
                "status": Field(_POLICY_STATUS, "What was found out about the policy.", always=True),
            },
        ),
        generation=True,
        unconditional_update=False,
        defaults=_default_policy,
        decide=_decide_policy,
        rules=rules.rules_of_policy,
    ),
    categories=("api-extensions",),
    parts=STATUS,
    columns=(
        NAME,
        Column(
            "Validations",
            "integer",
            description="How many validations.",
            cell=lambda o: len(o["spec"].get("validations") or ()),
        ),
        Column("ParamKind", description="The kind of the parameters.", cell=_param_kind),
        AGE,
    ),
)
BINDINGS: Final = Resource(
    GROUP,
    "v1",
    "ValidatingAdmissionPolicyBinding",
    "validatingadmissionpolicybindings",
    "validatingadmissionpolicybinding",
    False,
    BuiltIn(
        kind_shape(
            "ValidatingAdmissionPolicyBinding",
            "Puts a ValidatingAdmissionPolicy in force, for all that it matches or a part of that.",
            PACKAGE,
            {"spec": Field(_BINDING_SPEC, "Which policy, for what, and what is done.", always=True)},
        ),
        generation=True,
        unconditional_update=False,
        defaults=_default_binding,
        decide=_decide,
        rules=rules.rules_of_binding,
    ),
    categories=("api-extensions",),
    columns=(
        NAME,
        Column("PolicyName", description="The policy.", cell=lambda o: o["spec"].get("policyName", "")),
        Column("ParamRef", description="The parameters.", cell=_param_ref),
        AGE,
    ),
)
POLICY_RESOURCES: Final = (POLICIES, BINDINGS)
