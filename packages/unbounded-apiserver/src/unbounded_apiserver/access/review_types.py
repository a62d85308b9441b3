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
LocalSubjectAccessReview: Asks what a user may do in one namespace.
  spec SubjectAccessReviewSpec!  What is asked.
  status SubjectAccessReviewStatus  The answer.
SubjectAccessReviewSpec: What is asked.
  resourceAttributes ResourceAttributes*  A request for a resource.
  nonResourceAttributes NonResourceAttributes*  A request for another path.
  user string  The user that is asked about.
  groups [string]  The groups of that user.
  extra {[string]}  What else is known of the user.
  uid string  The UID of the user.
ResourceAttributes: A request for a resource.
  namespace string  The namespace; empty for all, and for cluster-wide resources.
  verb string  What is to be done; * for everything.
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
  allowed bool!  Whether the request would be allowed.
  denied bool  Whether it is denied for good.
  reason string  Why.
  evaluationError string  What went wrong on the way to the answer.
SelfSubjectAccessReview: Asks whether the asker may do something.
  spec SelfSubjectAccessReviewSpec!  What is asked.
  status SubjectAccessReviewStatus  The answer.
SelfSubjectAccessReviewSpec: What is asked.
  resourceAttributes ResourceAttributes*  A request for a resource.
  nonResourceAttributes NonResourceAttributes*  A request for another path.
SelfSubjectRulesReview: Asks for all that the asker may do in a namespace.
  spec SelfSubjectRulesReviewSpec!  What is asked.
  status SubjectRulesReviewStatus  The answer.
SelfSubjectRulesReviewSpec: What is asked.
  namespace string  The namespace.
SubjectRulesReviewStatus: The rules.
  resourceRules [any]!  Rules about resources.
  nonResourceRules [any]!  Rules about other paths.
  incomplete bool!  Whether there may be more.
  evaluationError string  What went wrong on the way to the answer.
SubjectAccessReview: Asks whether a user may do something.
  spec SubjectAccessReviewSpec!  What is asked.
  status SubjectAccessReviewStatus  The answer.
""",
        package="io.k8s.api.authorization.v1",
    ),
    AUTHENTICATION: notation.read(
        """
SelfSubjectReview: Asks who the asker is.
  status SelfSubjectReviewStatus  The answer.
SelfSubjectReviewStatus: Who the asker is.
  userInfo UserInfo  The asker.
UserInfo: A user.
  username string  The name.
  uid string  The UID.
  groups [string]  The groups.
  extra {[string]}  What else is known.
TokenReview: Asks whose a token is.
  spec TokenReviewSpec!  What is asked.
  status TokenReviewStatus  The answer.
TokenReviewSpec: What is asked.
  token string  The token.
  audiences [string]  Whom the token has to be for.
TokenReviewStatus: Whose it is.
  authenticated bool  Whether the token is good.
  user UserInfo!  Whose it is.
  audiences [string]  For whom it is.
  error string  Why it is not good.
TokenRequest: Asks for a token of a service account.
  spec TokenRequestSpec!  What is asked.
  status TokenRequestStatus  The answer.
TokenRequestSpec: What is asked.
  audiences [string]!  For whom the token is; this server when empty.
  expirationSeconds int64*  How long it is good; an hour when left out.
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
