"""Resources that are created and not stored: reviews of access and identity, and requests for tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from unbounded_apiserver import builtin
from unbounded_apiserver.builtin import BuiltInType
from unbounded_apiserver.core_types import kind_shape
from unbounded_apiserver.type_desc import (
    ANYTHING,
    BOOL,
    INT64,
    STRING,
    STRINGS,
    TIME,
    ListType,
    MapType,
    StructField,
    StructType,
)
from unbounded_apiserver.types import Resource

AUTHORIZATION: Final = "authorization.k8s.io"
AUTHENTICATION: Final = "authentication.k8s.io"
_AUTHORIZATION_PACKAGE: Final = "io.k8s.api.authorization.v1"
_AUTHENTICATION_PACKAGE: Final = "io.k8s.api.authentication.v1"


def _struct(name: str, about: str, package: str, fields: Mapping[str, StructField]) -> StructType:
    return StructType(name, fields, about, package)


_RESOURCE_ATTRIBUTES: Final = _struct(
    "ResourceAttributes",
    "A request for a resource.",
    _AUTHORIZATION_PACKAGE,
    {
        "namespace": StructField(STRING, "The namespace; empty for all, and for cluster-wide resources."),
        "verb": StructField(STRING, "What is to be done; * for everything."),
        "group": StructField(STRING, "The API group; * for all."),
        "version": StructField(STRING, "The version of the group."),
        "resource": StructField(STRING, "The resource; * for all."),
        "subresource": StructField(STRING, "The subresource."),
        "name": StructField(STRING, "The name of the object; empty for all."),
        "fieldSelector": StructField(ANYTHING, "Limits the request; decisions do not depend on it here."),
        "labelSelector": StructField(ANYTHING, "Limits the request; decisions do not depend on it here."),
    },
)
_PATH_ATTRIBUTES: Final = _struct(
    "NonResourceAttributes",
    "A request for a path that is no resource.",
    _AUTHORIZATION_PACKAGE,
    {"path": StructField(STRING, "The path."), "verb": StructField(STRING, "The HTTP method, in small letters.")},
)
_ASKED: Final = {
    "resourceAttributes": StructField(_RESOURCE_ATTRIBUTES, "A request for a resource.", keep=True),
    "nonResourceAttributes": StructField(_PATH_ATTRIBUTES, "A request for another path.", keep=True),
}
_SUBJECT: Final = {
    "user": StructField(STRING, "The user that is asked about."),
    "groups": StructField(STRINGS, "The groups of that user."),
    "extra": StructField(MapType(STRINGS), "What else is known of the user."),
    "uid": StructField(STRING, "The UID of the user."),
}
_ACCESS_STATUS: Final = _struct(
    "SubjectAccessReviewStatus",
    "The answer.",
    _AUTHORIZATION_PACKAGE,
    {
        "allowed": StructField(BOOL, "Whether the request would be allowed.", always=True),
        "denied": StructField(BOOL, "Whether it is denied for good."),
        "reason": StructField(STRING, "Why."),
        "evaluationError": StructField(STRING, "What went wrong on the way to the answer."),
    },
)
_USER_INFO: Final = _struct(
    "UserInfo",
    "A user.",
    _AUTHENTICATION_PACKAGE,
    {
        "username": StructField(STRING, "The name."),
        "uid": StructField(STRING, "The UID."),
        "groups": StructField(STRINGS, "The groups."),
        "extra": StructField(MapType(STRINGS), "What else is known."),
    },
)
_BOUND_OBJECT: Final = _struct(
    "BoundObjectReference",
    "The object with which a token ends.",
    _AUTHENTICATION_PACKAGE,
    {
        "kind": StructField(STRING, "Secret."),
        "apiVersion": StructField(STRING, "v1."),
        "name": StructField(STRING, "The name of the object."),
        "uid": StructField(STRING, "The UID of the object."),
    },
)


def _review(
    group: str,
    kind: str,
    about: str,
    spec: Mapping[str, StructField],
    status: StructType | None,
    *,
    namespaced: bool = False,
) -> Resource:
    package = _AUTHORIZATION_PACKAGE if group == AUTHORIZATION else _AUTHENTICATION_PACKAGE
    fields: dict[str, StructField] = {}
    if spec:
        fields["spec"] = StructField(
            _struct(f"{kind.removeprefix('Local')}Spec", "What is asked.", package, spec), "What is asked.", always=True
        )
    if status is not None:
        fields["status"] = StructField(status, "The answer.")
    plural = f"{kind.lower()}s"
    shape = kind_shape(kind, about, package, fields)
    return Resource(group, "v1", kind, plural, kind.lower(), namespaced, BuiltInType(shape), verbs=("create",))


_RULES_STATUS: Final = _struct(
    "SubjectRulesReviewStatus",
    "The rules.",
    _AUTHORIZATION_PACKAGE,
    {
        "resourceRules": StructField(ListType(ANYTHING), "Rules about resources.", always=True),
        "nonResourceRules": StructField(ListType(ANYTHING), "Rules about other paths.", always=True),
        "incomplete": StructField(BOOL, "Whether there may be more.", always=True),
        "evaluationError": StructField(STRING, "What went wrong on the way to the answer."),
    },
)
LOCAL_ACCESS: Final = _review(
    AUTHORIZATION,
    "LocalSubjectAccessReview",
    "Asks what a user may do in one namespace.",
    {**_ASKED, **_SUBJECT},
    _ACCESS_STATUS,
    namespaced=True,
)
SELF_ACCESS: Final = _review(
    AUTHORIZATION, "SelfSubjectAccessReview", "Asks whether the asker may do something.", _ASKED, _ACCESS_STATUS
)
SELF_RULES: Final = _review(
    AUTHORIZATION,
    "SelfSubjectRulesReview",
    "Asks for all that the asker may do in a namespace.",
    {"namespace": StructField(STRING, "The namespace.")},
    _RULES_STATUS,
)
ACCESS: Final = _review(
    AUTHORIZATION,
    "SubjectAccessReview",
    "Asks whether a user may do something.",
    {**_ASKED, **_SUBJECT},
    _ACCESS_STATUS,
)
WHOAMI: Final = _review(
    AUTHENTICATION,
    "SelfSubjectReview",
    "Asks who the asker is.",
    {},
    _struct(
        "SelfSubjectReviewStatus",
        "Who the asker is.",
        _AUTHENTICATION_PACKAGE,
        {"userInfo": StructField(_USER_INFO, "The asker.")},
    ),
)
TOKEN_REVIEWS: Final = _review(
    AUTHENTICATION,
    "TokenReview",
    "Asks whose a token is.",
    {"token": StructField(STRING, "The token."), "audiences": StructField(STRINGS, "Whom the token has to be for.")},
    _struct(
        "TokenReviewStatus",
        "Whose it is.",
        _AUTHENTICATION_PACKAGE,
        {
            "authenticated": StructField(BOOL, "Whether the token is good."),
            "user": StructField(_USER_INFO, "Whose it is.", always=True),
            "audiences": StructField(STRINGS, "For whom it is."),
            "error": StructField(STRING, "Why it is not good."),
        },
    ),
)
TOKEN_REQUESTS: Final = _review(
    AUTHENTICATION,
    "TokenRequest",
    "Asks for a token of a service account.",
    {
        "audiences": StructField(STRINGS, "For whom the token is; this server when empty.", always=True),
        "expirationSeconds": StructField(INT64, "How long it is good; an hour when left out.", keep=True),
        "boundObjectRef": StructField(_BOUND_OBJECT, "The object with which the token ends.", keep=True),
    },
    _struct(
        "TokenRequestStatus",
        "The token.",
        _AUTHENTICATION_PACKAGE,
        {
            "token": StructField(STRING, "The token.", always=True),
            "expirationTimestamp": StructField(TIME, "Until when it is good.", always=True),
        },
    ),
)
SERVICE_ACCOUNTS: Final = replace(builtin.SERVICE_ACCOUNTS, transient={"token": TOKEN_REQUESTS})
REVIEW_RESOURCES: Final = (LOCAL_ACCESS, SELF_ACCESS, SELF_RULES, ACCESS, WHOAMI, TOKEN_REVIEWS)
