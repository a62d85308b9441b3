"""ValidatingAdmissionPolicy and ValidatingAdmissionPolicyBinding: their shapes, defaults and columns."""

from __future__ import annotations

from typing import Any, Final

from unbounded_apiserver import type_descriptor_parser
from unbounded_apiserver.admission import policy_validation
from unbounded_apiserver.builtin_resources import BuiltInType
from unbounded_apiserver.columns import AGE, NAME
from unbounded_apiserver.resource_model import STATUS, Object, Resource, TableColumn
from unbounded_apiserver.selectors import format_object

GROUP: Final = "admissionregistration.k8s.io"
PACKAGE: Final = "io.k8s.api.admissionregistration.v1"


UNSET: Final = "<unset>"

_TYPES: Final = type_descriptor_parser.read(
    """
ValidatingAdmissionPolicy: Conditions of requests, in CEL; a binding enables it.
  spec ValidatingAdmissionPolicySpec!  The conditions of the policy.
  status ValidatingAdmissionPolicyStatus!  The result of checking the policy.
ValidatingAdmissionPolicySpec: The conditions of the policy.
  paramKind ParamKind*  The kind of the parameters; left out, there are none.
  matchConstraints MatchResources*  The requests that the policy checks.
  validations [Validation]  The conditions that requests have to meet.
  failurePolicy string*  Fail or Ignore: reject or admit a request when the policy fails.
  auditAnnotations [AuditAnnotation]  An annotation in the audit log.
  matchConditions [MatchCondition]name  Further conditions for the policy to apply.
  variables [Variable]name  Values that several expressions use.
ParamKind atomic: The kind of the objects that parameterize a policy.
  apiVersion string  The group and version of the parameters.
  kind string  The kind of the parameters.
MatchResources atomic: A selection of requests.
  namespaceSelector LabelSelector*  Labels of the object's namespace.
  objectSelector LabelSelector*  Labels of the object, before or after the change.
  resourceRules [NamedRuleWithOperations]  Selected requests: any of these matches.
  excludeResourceRules [NamedRuleWithOperations]  Excluded requests, which override resourceRules.
  matchPolicy string*  Equivalent: other versions of a resource match too. Exact: they do not.
NamedRuleWithOperations atomic: Operations and resources, and names of objects.
  resourceNames [string]  Names of the objects; empty for all.
  operations [string]  CREATE, UPDATE, DELETE, CONNECT; * is all.
  apiGroups [string]  The groups of the resources; "" is the core group, * is all.
  apiVersions [string]  The versions of the resources; * is all.
  resources [string]  Such as machines, machines/status, machines/*, */status; */* is everything.
  scope string*  Cluster, Namespaced, or * for both.
Validation: A condition that requests have to meet.
  expression string!  A CEL expression that has to be true.
  message string  The message if it is false.
  reason string*  The machine-readable reason; Invalid by default.
  messageExpression string  A CEL expression that makes the message.
AuditAnnotation: An annotation in the audit log.
  key string!  The key; in the audit log it follows the name of the policy.
  valueExpression string!  A CEL expression: a string, or null for no annotation.
MatchCondition: A further condition for the policy to apply.
  name string!  A name for it, unique in the policy.
  expression string!  A CEL expression; where it is false the policy does not apply.
Variable: A value that is computed once, when it is first read.
  name string!  Expressions read it as variables.NAME.
  expression string!  A CEL expression, which may use variables before it.
ValidatingAdmissionPolicyStatus: The result of checking the policy.
  observedGeneration int64  The generation that was checked.
  typeChecking TypeChecking*  Type checks of expressions.
  conditions [Condition]+type  The state of the policy.
TypeChecking: Type checks of expressions.
  expressionWarnings [ExpressionWarning]  The expressions with warnings.
ExpressionWarning: Something that is suspicious about an expression.
  fieldRef string!  The expression, such as spec.validations[0].expression.
  warning string!  The conflict with the schemas of the matched resources.
ValidatingAdmissionPolicyBinding: Puts a ValidatingAdmissionPolicy in force, for all that it matches or a part of that.
  spec ValidatingAdmissionPolicyBindingSpec!  The policy, its resources and its actions.
ValidatingAdmissionPolicyBindingSpec: Puts a policy in force.
  policyName string  The policy.
  paramRef ParamRef*  Its parameters, where it has some.
  matchResources MatchResources*  A further selection among the policy's requests.
  validationActions set  Deny, Warn, Audit: actions on a request that does not meet it.
ParamRef atomic: Which parameters a binding uses.
  name string  The name of the parameter object; this or selector.
  namespace string  Its namespace; by default that of the request.
  selector LabelSelector*  Labels of the parameter objects; the policy checks requests with each of them.
  parameterNotFoundAction string*  Allow or Deny requests when the parameter is missing.
""",
    package=PACKAGE,
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
        return format_object(reference.get("selector"))
    return f"{reference['namespace']}/{reference['name']}" if reference.get("namespace") else str(reference["name"])


POLICIES: Final = Resource(
    GROUP,
    "v1",
    "ValidatingAdmissionPolicy",
    "validatingadmissionpolicies",
    "validatingadmissionpolicy",
    False,
    BuiltInType(
        type_descriptor_parser.kind(_TYPES, "ValidatingAdmissionPolicy"),
        generation=True,
        unconditional_update=False,
        defaults=_default_policy,
        decide=_decide_policy,
        rules=policy_validation.rules_of_policy,
    ),
    categories=("api-extensions",),
    subresources=STATUS,
    columns=(
        NAME,
        TableColumn(
            "Validations",
            "integer",
            description="The number of validations.",
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
        type_descriptor_parser.kind(_TYPES, "ValidatingAdmissionPolicyBinding"),
        generation=True,
        unconditional_update=False,
        defaults=_default_binding,
        decide=_decide,
        rules=policy_validation.rules_of_binding,
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
