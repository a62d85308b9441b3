"""Resources that are created and not stored: reviews of access and identity, and requests for tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from unbounded_apiserver import builtin, notation
from unbounded_apiserver.builtin import BuiltInType
from unbounded_apiserver.types import Resource

AUTHORIZATION: Final = "authorization.k8s.io"
AUTHENTICATION: Final = "authentication.k8s.io"
_TYPES: Final = {
    AUTHORIZATION: notation.read(
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
  denied bool  True if it is denied for good.
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
    AUTHENTICATION: notation.read(
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
  audiences [string]  For whom it is.
  error string  Why it is not valid.
TokenRequest: Requests a token of a service account.
  spec TokenRequestSpec!  The request.
  status TokenRequestStatus  The answer.
TokenRequestSpec: The request.
  audiences [string]!  For whom the token is; this server when empty.
  expirationSeconds int64*  Its lifetime; by default an hour.
  boundObjectRef BoundObjectReference*  The object with which the token ends.
BoundObjectReference: The object with which a token ends.
  kind string  Secret.
  apiVersion string  v1.
  name string  The name of the object.
  uid string  The UID of the object.
TokenRequestStatus: The token.
  token string!  The token.
  expirationTimestamp time!  Until when it is good.
""",
        package="io.k8s.api.authentication.v1",
    ),
}


def _review(group: str, kind: str, *, namespaced: bool = False) -> Resource:
    shape = BuiltInType(notation.kind(_TYPES[group], kind))
    return Resource(group, "v1", kind, f"{kind.lower()}s", kind.lower(), namespaced, shape, verbs=("create",))


LOCAL_ACCESS: Final = _review(AUTHORIZATION, "LocalSubjectAccessReview", namespaced=True)
SELF_ACCESS: Final = _review(AUTHORIZATION, "SelfSubjectAccessReview")
SELF_RULES: Final = _review(AUTHORIZATION, "SelfSubjectRulesReview")
ACCESS: Final = _review(AUTHORIZATION, "SubjectAccessReview")
WHOAMI: Final = _review(AUTHENTICATION, "SelfSubjectReview")
TOKEN_REVIEWS: Final = _review(AUTHENTICATION, "TokenReview")
TOKEN_REQUESTS: Final = _review(AUTHENTICATION, "TokenRequest")
SERVICE_ACCOUNTS: Final = replace(builtin.SERVICE_ACCOUNTS, transient={"token": TOKEN_REQUESTS})
REVIEW_RESOURCES: Final = (LOCAL_ACCESS, SELF_ACCESS, SELF_RULES, ACCESS, WHOAMI, TOKEN_REVIEWS)
