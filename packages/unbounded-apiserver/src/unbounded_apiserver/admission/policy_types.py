"""ValidatingAdmissionPolicy and ValidatingAdmissionPolicyBinding: their shapes, defaults and columns."""

from __future__ import annotations

from typing import Any, Final

from unbounded_apiserver.admission import rules
from unbounded_apiserver.admission.labels import shown
from unbounded_apiserver.admission.names import GROUP, PACKAGE
from unbounded_apiserver.builtin import BuiltInType
from unbounded_apiserver.columns import AGE, NAME
from unbounded_apiserver.core_types import CONDITION, LABEL_SELECTOR, kind_shape
from unbounded_apiserver.type_desc import INT64, STRING, STRINGS, ListType, StructField, StructType
from unbounded_apiserver.types import STATUS, Object, Resource, TableColumn

UNSET: Final = "<unset>"

_RULE: Final = StructType(
    "NamedRuleWithOperations",
    {
        "resourceNames": StructField(STRINGS, "The objects that are meant; all when this is empty."),
        "operations": StructField(STRINGS, "CREATE, UPDATE, DELETE, CONNECT; * is all."),
        "apiGroups": StructField(STRINGS, 'The groups of the resources; "" is the core group, * is all.'),
        "apiVersions": StructField(STRINGS, "The versions of the resources; * is all."),
        "resources": StructField(
            STRINGS, "Such as machines, machines/status, machines/*, */status; */* is everything."
        ),
        "scope": StructField(STRING, "Cluster, Namespaced, or * for both.", keep=True),
    },
    "Operations and resources, and names of objects.",
    PACKAGE,
    atomic=True,
)
_MATCH_RESOURCES: Final = StructType(
    "MatchResources",
    {
        "namespaceSelector": StructField(
            LABEL_SELECTOR, "Labels of the namespace that an object stands in.", keep=True
        ),
        "objectSelector": StructField(LABEL_SELECTOR, "Labels of the object, before or after the change.", keep=True),
        "resourceRules": StructField(ListType(_RULE), "What is meant, if any of these matches."),
        "excludeResourceRules": StructField(ListType(_RULE), "What is left out, whatever resourceRules say."),
        "matchPolicy": StructField(
            STRING, "Equivalent: other versions of a resource match too. Exact: they do not.", keep=True
        ),
    },
    "Which requests are meant.",
    PACKAGE,
    atomic=True,
)
_PARAM_KIND: Final = StructType(
    "ParamKind",
    {
        "apiVersion": StructField(STRING, "The group and version of the parameters."),
        "kind": StructField(STRING, "The kind of the parameters."),
    },
    "The kind of the objects that parameterize a policy.",
    PACKAGE,
    atomic=True,
)
_PARAM_REF: Final = StructType(
    "ParamRef",
    {
        "name": StructField(STRING, "The name of the parameter object; this or selector."),
        "namespace": StructField(STRING, "Where it stands; left out, in the namespace of the request."),
        "selector": StructField(
            LABEL_SELECTOR, "Labels of the parameter objects; each of them is held against.", keep=True
        ),
        "parameterNotFoundAction": StructField(
            STRING, "Allow or Deny what would need a parameter that is missing.", keep=True
        ),
    },
    "Which parameters a binding uses.",
    PACKAGE,
    atomic=True,
)
_VALIDATION: Final = StructType(
    "Validation",
    {
        "expression": StructField(STRING, "A CEL expression that has to be true.", always=True),
        "message": StructField(STRING, "What is said when it is not."),
        "reason": StructField(STRING, "The machine-readable reason; Invalid by default.", keep=True),
        "messageExpression": StructField(STRING, "A CEL expression that makes the message."),
    },
    "A condition that requests have to meet.",
    PACKAGE,
)
_AUDIT_ANNOTATION: Final = StructType(
    "AuditAnnotation",
    {
        "key": StructField(STRING, "The key; in the audit log it follows the name of the policy.", always=True),
        "valueExpression": StructField(STRING, "A CEL expression: a string, or null for no annotation.", always=True),
    },
    "What is noted in the audit log.",
    PACKAGE,
)
_MATCH_CONDITION: Final = StructType(
    "MatchCondition",
    {
        "name": StructField(STRING, "A name for it, unique in the policy.", always=True),
        "expression": StructField(
            STRING, "A CEL expression; where it is false the policy does not apply.", always=True
        ),
    },
    "A further condition for the policy to apply.",
    PACKAGE,
)
_VARIABLE: Final = StructType(
    "Variable",
    {
        "name": StructField(STRING, "Expressions read it as variables.NAME.", always=True),
        "expression": StructField(STRING, "A CEL expression, which may use variables before it.", always=True),
    },
    "A value that is computed once, when it is first read.",
    PACKAGE,
)
_EXPRESSION_WARNING: Final = StructType(
    "ExpressionWarning",
    {
        "fieldRef": StructField(STRING, "The expression, such as spec.validations[0].expression.", always=True),
        "warning": StructField(STRING, "What does not fit the schemas of what the policy matches.", always=True),
    },
    "Something that is suspicious about an expression.",
    PACKAGE,
)
_TYPE_CHECKING: Final = StructType(
    "TypeChecking",
    {"expressionWarnings": StructField(ListType(_EXPRESSION_WARNING), "What does not fit.")},
    "How expressions agree with schemas.",
    PACKAGE,
)
_POLICY_SPEC: Final = StructType(
    "ValidatingAdmissionPolicySpec",
    {
        "paramKind": StructField(_PARAM_KIND, "The kind of the parameters; left out, there are none.", keep=True),
        "matchConstraints": StructField(_MATCH_RESOURCES, "Which requests are held to the policy.", keep=True),
        "validations": StructField(ListType(_VALIDATION), "What requests have to meet."),
        "failurePolicy": StructField(
            STRING, "Fail or Ignore: what becomes of a request when the policy fails.", keep=True
        ),
        "auditAnnotations": StructField(ListType(_AUDIT_ANNOTATION), "What is noted in the audit log."),
        "matchConditions": StructField(
            ListType(_MATCH_CONDITION, "name"), "Further conditions for the policy to apply."
        ),
        "variables": StructField(ListType(_VARIABLE, "name"), "Values that several expressions use."),
    },
    "What the policy holds requests to.",
    PACKAGE,
)
_POLICY_STATUS: Final = StructType(
    "ValidatingAdmissionPolicyStatus",
    {
        "observedGeneration": StructField(INT64, "The generation that was checked."),
        "typeChecking": StructField(_TYPE_CHECKING, "How expressions agree with schemas.", keep=True),
        "conditions": StructField(ListType(CONDITION, map_keys=("type",)), "What is known of the policy."),
    },
    "What was found out about the policy.",
    PACKAGE,
)
_BINDING_SPEC: Final = StructType(
    "ValidatingAdmissionPolicyBindingSpec",
    {
        "policyName": StructField(STRING, "The policy."),
        "paramRef": StructField(_PARAM_REF, "Its parameters, where it has some.", keep=True),
        "matchResources": StructField(
            _MATCH_RESOURCES, "Which of the requests that the policy matches are meant.", keep=True
        ),
        "validationActions": StructField(
            ListType(STRING, as_set=True), "Deny, Warn, Audit: what is done about what does not meet it."
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
    BuiltInType(
        kind_shape(
            "ValidatingAdmissionPolicy",
            "What requests are held to, in CEL; a binding puts it in force.",
            PACKAGE,
            {
                "spec": StructField(_POLICY_SPEC, "What the policy holds requests to.", always=True),
                "status": StructField(_POLICY_STATUS, "What was found out about the policy.", always=True),
            },
        ),
        generation=True,
        unconditional_update=False,
        defaults=_default_policy,
        decide=_decide_policy,
        rules=rules.rules_of_policy,
    ),
    categories=("api-extensions",),
    subresources=STATUS,
    columns=(
        NAME,
        TableColumn(
            "Validations",
            "integer",
            description="How many validations.",
            cell=lambda o: len(o["spec"].get("validations") or ()),
        ),
        TableColumn("ParamKind", description="The kind of the parameters.", cell=_param_kind),
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
    BuiltInType(
        kind_shape(
            "ValidatingAdmissionPolicyBinding",
            "Puts a ValidatingAdmissionPolicy in force, for all that it matches or a part of that.",
            PACKAGE,
            {"spec": StructField(_BINDING_SPEC, "Which policy, for what, and what is done.", always=True)},
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
        TableColumn("PolicyName", description="The policy.", cell=lambda o: o["spec"].get("policyName", "")),
        TableColumn("ParamRef", description="The parameters.", cell=_param_ref),
        AGE,
    ),
)
POLICY_RESOURCES: Final = (POLICIES, BINDINGS)
