"""The types of authorization and authentication: roles and bindings with their rules, reviews, and token requests.

Reviews and token requests are created and not stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from unbounded_apiserver import builtin_resources, columns, field_errors, name_validation, type_descriptor_parser
from unbounded_apiserver.builtin_resources import BuiltInType
from unbounded_apiserver.columns import AGE, DEFINITION, NAME
from unbounded_apiserver.resource_model import Object, Resource, TableColumn
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.selectors import check_object

AUTHORIZATION: Final = "authorization.k8s.io"
AUTHENTICATION: Final = "authentication.k8s.io"
_REVIEW_TYPES: Final = {
    AUTHORIZATION: type_descriptor_parser.read(
        """
LocalSubjectAccessReview: Checks a right of a user in one namespace.
  spec SubjectAccessReviewSpec!  The request.
  status SubjectAccessReviewStatus  The answer.
SubjectAccessReviewSpec: The request.
  resourceAttributes ResourceAttributes*  A request for a resource.
  nonResourceAttributes NonResourceAttributes*  A request for another path.
  user string  The user to check.
  groups [string]  The groups of that user.
  extra {[string]}  Further facts about the user.
  uid string  The UID of the user.
ResourceAttributes: A request for a resource.
  namespace string  The namespace; empty for all, and for cluster-wide resources.
  verb string  The verb; * for all.
  group string  The API group; * for all.
  version string  The version of the group.
  resource string  The resource; * for all.
  subresource string  The subresource.
  name string  The name of the object; empty for all.
  fieldSelector any  Limits the request; decisions do not depend on it here.
  labelSelector any  Limits the request; decisions do not depend on it here.
NonResourceAttributes: A request for a path that is no resource.
  path string  The path.
  verb string  The HTTP method, in small letters.
SubjectAccessReviewStatus: The answer.
  allowed bool!  True if the request would be allowed.
  denied bool  True if it is denied, and no other authorizer may allow it.
  reason string  The reason of the decision.
  evaluationError string  The error of an incomplete evaluation.
SelfSubjectAccessReview: Checks a right of the requester.
  spec SelfSubjectAccessReviewSpec!  The request.
  status SubjectAccessReviewStatus  The answer.
SelfSubjectAccessReviewSpec: The request.
  resourceAttributes ResourceAttributes*  A request for a resource.
  nonResourceAttributes NonResourceAttributes*  A request for another path.
SelfSubjectRulesReview: Lists the requester's rights in a namespace.
  spec SelfSubjectRulesReviewSpec!  The request.
  status SubjectRulesReviewStatus  The answer.
SelfSubjectRulesReviewSpec: The request.
  namespace string  The namespace.
SubjectRulesReviewStatus: The rules.
  resourceRules [any]!  Rules about resources.
  nonResourceRules [any]!  Rules about other paths.
  incomplete bool!  True if there may be more.
  evaluationError string  The error of an incomplete evaluation.
SubjectAccessReview: Checks a right of a user.
  spec SubjectAccessReviewSpec!  The request.
  status SubjectAccessReviewStatus  The answer.
""",
        package="io.k8s.api.authorization.v1",
    ),
    AUTHENTICATION: type_descriptor_parser.read(
        """
SelfSubjectReview: Returns the identity of the requester.
  status SelfSubjectReviewStatus  The answer.
SelfSubjectReviewStatus: The identity of the requester.
  userInfo UserInfo  The asker.
UserInfo: A user.
  username string  The name.
  uid string  The UID.
  groups [string]  The groups.
  extra {[string]}  Further facts.
TokenReview: Returns the owner of a token.
  spec TokenReviewSpec!  The request.
  status TokenReviewStatus  The answer.
TokenReviewSpec: The request.
  token string  The token.
  audiences [string]  The required audiences.
TokenReviewStatus: The owner of the token.
  authenticated bool  True if the token is valid.
  user UserInfo!  The owner.
  audiences [string]  Audiences of the token.
  error string  Reason for which it is not valid.
TokenRequest: Requests a token of a service account.
  spec TokenRequestSpec!  The request.
  status TokenRequestStatus  The answer.
TokenRequestSpec: The request.
  audiences [string]!  Audiences of the token; this server when empty.
  expirationSeconds int64*  Its lifetime; by default an hour.
  boundObjectRef BoundObjectReference*  The object with which the token ends.
BoundObjectReference: The object with which a token ends.
  kind string  Secret.
  apiVersion string  v1.
  name string  The name of the object.
  uid string  The UID of the object.
TokenRequestStatus: The token.
  token string!  The token.
  expirationTimestamp time!  Time of its expiry.
""",
        package="io.k8s.api.authentication.v1",
    ),
}
GROUP: Final = "rbac.authorization.k8s.io"
SUBJECT_KINDS: Final = ("ServiceAccount", "User", "Group")
_TYPES: Final = type_descriptor_parser.read(
    """
ClusterRoleBinding: Gives a role to users, groups and service accounts.
  subjects [Subject]  The users, groups and accounts with the role.
  roleRef RoleRef!  The role; it cannot change.
Subject atomic: A user, group or account with the role.
  kind string!  User, Group or ServiceAccount.
  apiGroup string  "" for ServiceAccount, rbac.authorization.k8s.io for User and Group.
  name string!  The name of the subject.
  namespace string  The namespace of a ServiceAccount.
RoleRef atomic: Points to a role.
  apiGroup string!  The group of the role.
  kind string!  Role or ClusterRole.
  name string!  The name of the role.
ClusterRole: Rights in the cluster, or in a namespace.
  rules [PolicyRule]!  The rules of the role.
  aggregationRule AggregationRule*  Gathers the rules of other cluster roles: `rules` is then kept by the server.
PolicyRule: Permitted verbs on resources.
  verbs [string]!  The permitted verbs: get, list, watch, create, …; * is all.
  apiGroups [string]  The groups of the resources; "" is the core group, * is all.
  resources [string]  Resources and subresources, such as machines/status; * is all.
  resourceNames [string]  Names of the objects; empty for all.
  nonResourceURLs [string]  Paths that are no resources; a * at the end matches the rest.
AggregationRule: The roles whose rules a role aggregates.
  clusterRoleSelectors [LabelSelector]  Select by labels; any of them is enough.
RoleBinding: Gives a role to users, groups and service accounts in one namespace.
  subjects [Subject]  The users, groups and accounts with the role.
  roleRef RoleRef!  The role; it cannot change.
Role: Rights in one namespace.
  rules [PolicyRule]!  The rules of the role.
""",
    package="io.k8s.api.rbac.v1",
)


def _review(group: str, kind: str, *, namespaced: bool = False) -> Resource:
    shape = BuiltInType(type_descriptor_parser.kind(_REVIEW_TYPES[group], kind))
    return Resource(group, "v1", kind, f"{kind.lower()}s", kind.lower(), namespaced, shape, verbs=("create",))


LOCAL_ACCESS: Final = _review(AUTHORIZATION, "LocalSubjectAccessReview", namespaced=True)
SELF_ACCESS: Final = _review(AUTHORIZATION, "SelfSubjectAccessReview")
SELF_RULES: Final = _review(AUTHORIZATION, "SelfSubjectRulesReview")
ACCESS: Final = _review(AUTHORIZATION, "SubjectAccessReview")
WHOAMI: Final = _review(AUTHENTICATION, "SelfSubjectReview")
TOKEN_REVIEWS: Final = _review(AUTHENTICATION, "TokenReview")
TOKEN_REQUESTS: Final = _review(AUTHENTICATION, "TokenRequest")
SERVICE_ACCOUNTS: Final = replace(builtin_resources.SERVICE_ACCOUNTS, transient={"token": TOKEN_REQUESTS})
REVIEW_RESOURCES: Final = (LOCAL_ACCESS, SELF_ACCESS, SELF_RULES, ACCESS, WHOAMI, TOKEN_REVIEWS)


def rules_of_role(obj: Object, *, namespaced: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, rule in enumerate(obj.get("rules") or ()):
        errors += _check_rule(f"rules[{index}]", rule, namespaced=namespaced)
    return errors + list(_check_aggregation(obj.get("aggregationRule")))


def _check_aggregation(aggregation: Object | None) -> Iterator[FieldError]:
    if aggregation is None:
        return
    at, selectors = "aggregationRule.clusterRoleSelectors", aggregation.get("clusterRoleSelectors") or ()
    if not selectors:
        yield field_errors.required(at, "at least one clusterRoleSelector required if aggregationRule is non-nil")
    for index, selector in enumerate(selectors):
        yield from check_object(selector, f"{at}[{index}]")


def _check_rule(at: str, rule: Object, *, namespaced: bool) -> list[FieldError]:
    errors = []
    if not rule["verbs"]:
        errors.append(field_errors.required(f"{at}.verbs", "verbs must contain at least one value"))
    if urls := rule.get("nonResourceURLs"):
        if namespaced:
            why = "namespaced rules cannot apply to non-resource URLs"
            errors.append(field_errors.invalid(f"{at}.nonResourceURLs", urls, why))
        if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
            why = "rules cannot apply to both regular resources and non-resource URLs"
            errors.append(field_errors.invalid(f"{at}.nonResourceURLs", urls, why))
        return errors
    if not rule.get("apiGroups"):
        errors.append(field_errors.required(f"{at}.apiGroups", "resource rules must supply at least one api group"))
    if not rule.get("resources"):
        errors.append(field_errors.required(f"{at}.resources", "resource rules must supply at least one resource"))
    return errors


def default_binding(obj: Object) -> None:
    obj["roleRef"]["apiGroup"] = obj["roleRef"]["apiGroup"] or GROUP
    for subject in obj.get("subjects", ()):
        if subject["kind"] in {"User", "Group"} and not subject.get("apiGroup"):
            subject["apiGroup"] = GROUP


def rules_of_binding(obj: Object, old: Object | None, *, namespaced: bool) -> list[FieldError]:
    errors = _check_reference(obj["roleRef"], ["Role", "ClusterRole"] if namespaced else ["ClusterRole"])
    for index, subject in enumerate(obj.get("subjects", ())):
        errors += _check_subject(f"subjects[{index}]", subject, namespaced=namespaced)
    if old is not None and obj["roleRef"] != old["roleRef"]:
        shown = {key[0].upper() + key[1:]: value for key, value in obj["roleRef"].items()}
        shown = {"APIGroup": shown.pop("ApiGroup"), **shown}
        errors.append(field_errors.invalid("roleRef", shown, "cannot change roleRef"))
    return errors


def _check_reference(reference: Object, kinds: list[str]) -> list[FieldError]:
    errors: list[FieldError] = []
    if reference["apiGroup"] != GROUP:
        errors.append(field_errors.unsupported("roleRef.apiGroup", reference["apiGroup"], [GROUP]))
    if reference["kind"] not in kinds:
        errors.append(field_errors.unsupported("roleRef.kind", reference["kind"], kinds))
    if not reference["name"]:
        return [*errors, field_errors.required("roleRef.name")]
    return errors + [
        field_errors.invalid("roleRef.name", reference["name"], why)
        for why in name_validation.path_segment(reference["name"])
    ]


def _check_subject(at: str, subject: Object, *, namespaced: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    name, group = subject["name"], subject.get("apiGroup", "")
    if not name:
        errors.append(field_errors.required(f"{at}.name"))
    match subject["kind"]:
        case "ServiceAccount":
            if name:
                errors += [field_errors.invalid(f"{at}.name", name, why) for why in name_validation.subdomain(name)]
            if group:
                errors.append(field_errors.unsupported(f"{at}.apiGroup", group, [""]))
            if not namespaced and not subject.get("namespace"):
                errors.append(field_errors.required(f"{at}.namespace"))
        case "User" | "Group":
            if group != GROUP:
                errors.append(field_errors.unsupported(f"{at}.apiGroup", group, [GROUP]))
        case other:
            errors.append(field_errors.unsupported(f"{at}.kind", other, list(SUBJECT_KINDS)))
    return errors


def _subjects(kind: str) -> Any:
    def show(obj: columns.Object) -> str:
        found = [s for s in obj.get("subjects", ()) if s["kind"] == kind]
        return ", ".join(f"{s['namespace']}/{s['name']}" if s.get("namespace") else s["name"] for s in found)

    return show


BINDING_COLUMNS: Final = (
    NAME,
    TableColumn("Role", description="The role.", cell=lambda o: f"{o['roleRef']['kind']}/{o['roleRef']['name']}"),
    AGE,
    TableColumn("Users", priority=1, description="The users.", cell=_subjects("User")),
    TableColumn("Groups", priority=1, description="The groups.", cell=_subjects("Group")),
    TableColumn("ServiceAccounts", priority=1, description="The service accounts.", cell=_subjects("ServiceAccount")),
)


def _role(kind: str, plural: str, *, namespaced: bool) -> Resource:
    rules = BuiltInType(
        type_descriptor_parser.kind(_TYPES, kind),
        name_check=name_validation.path_segment,
        create_on_update=True,
        rules=lambda obj, _old: rules_of_role(obj, namespaced=namespaced),
    )
    return Resource(GROUP, "v1", kind, plural, kind.lower(), namespaced, rules, columns=DEFINITION)


def _binding(kind: str, plural: str, *, namespaced: bool) -> Resource:
    rules = BuiltInType(
        type_descriptor_parser.kind(_TYPES, kind),
        name_check=name_validation.path_segment,
        create_on_update=True,
        defaults=default_binding,
        rules=lambda obj, old: rules_of_binding(obj, old, namespaced=namespaced),
    )
    return Resource(GROUP, "v1", kind, plural, kind.lower(), namespaced, rules, columns=BINDING_COLUMNS)


CLUSTER_ROLE_BINDINGS: Final = _binding("ClusterRoleBinding", "clusterrolebindings", namespaced=False)
CLUSTER_ROLES: Final = _role("ClusterRole", "clusterroles", namespaced=False)
ROLE_BINDINGS: Final = _binding("RoleBinding", "rolebindings", namespaced=True)
ROLES: Final = _role("Role", "roles", namespaced=True)
ROLE_RESOURCES: Final = (CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES)
