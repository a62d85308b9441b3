"""Answers to reviews of access and identity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from unbounded_apiserver import field_errors, metadata, status
from unbounded_apiserver.access import resource_types as kinds
from unbounded_apiserver.access.node_authorizer import node_of
from unbounded_apiserver.access.rbac_authorizer import EVERYTHING, RbacAuthorizer
from unbounded_apiserver.access.tokens import ISSUER, AccountTokens
from unbounded_apiserver.auth import AuthAttributes, AuthChain, User
from unbounded_apiserver.pki import MASTERS
from unbounded_apiserver.resource_model import Object, ResourcePath
from unbounded_apiserver.schema import FieldError

Answer = Callable[[User, ResourcePath, Object], None]  # the user, the path, and the review, which gets its status
_ONE_OF: Final = "exactly one of nonResourceAttributes or resourceAttributes must be specified"


class Reviews:
    """Answers by the resource's name."""

    def __init__(
        self, book: RbacAuthorizer, guard: AuthChain, tokens: AccountTokens, now: Callable[[], datetime]
    ) -> None:
        self._book = book
        self._guard = guard
        self._tokens = tokens
        self._now = now
        self.answers: Mapping[str, Answer] = {
            kinds.SELF_ACCESS.name: self._self_access,
            kinds.ACCESS.name: self._access,
            kinds.LOCAL_ACCESS.name: self._access,
            kinds.SELF_RULES.name: self._rules,
            kinds.WHOAMI.name: self._whoami,
            kinds.TOKEN_REVIEWS.name: self._token,
            kinds.TOKEN_REQUESTS.name: tokens.issue,
        }

    def _self_access(self, user: User, _place: ResourcePath, review: Object) -> None:
        _raise_if(_check_attributes(review["spec"]))
        self._answer(user, review)

    def _access(self, _user: User, place: ResourcePath, review: Object) -> None:
        spec = review["spec"]
        errors = _check_attributes(spec)
        if not spec.get("user") and not spec.get("groups"):
            errors.append(field_errors.invalid("spec.user", "", "at least one of user or group must be specified"))
        _raise_if(errors)
        if place.namespace:
            _check_local(spec, place.namespace)
            review["metadata"]["namespace"] = place.namespace
        asked_about = User(
            spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""), spec.get("extra") or {}
        )
        self._answer(asked_about, review)

    def _answer(self, user: User, review: Object) -> None:
        decision = self._guard.decide(user, _attributes(review["spec"]))
        review["status"] = {"allowed": decision.allowed} | ({"reason": decision.reason} if decision.reason else {})

    def _rules(self, user: User, _place: ResourcePath, review: Object) -> None:
        namespace = review["spec"].get("namespace", "")
        if not namespace:
            raise status.bad_request("no namespace on request")
        rules = dict.fromkeys(self._book.user_rules(user, namespace))
        if MASTERS in user.groups:
            rules = dict.fromkeys((*EVERYTHING, *rules))
        review["spec"] = {}
        review["status"] = {
            "resourceRules": [rule.write() for rule in rules if not rule.urls],
            "nonResourceRules": [rule.write() for rule in rules if rule.urls],
            "incomplete": False,
        }
        if node_of(user) is not None:  # the rights of a node depend on the objects
            review["status"] |= {
                "incomplete": True,
                "evaluationError": "node authorizer does not support user rule resolution",
            }

    def _whoami(self, user: User, _place: ResourcePath, review: Object) -> None:
        review["metadata"]["creationTimestamp"] = metadata.format_time(self._now())
        review["status"] = {"userInfo": user.info()}

    def _token(self, _user: User, _place: ResourcePath, review: Object) -> None:
        token, audiences = review["spec"].get("token", ""), review["spec"].get("audiences") or [ISSUER]
        found = self._tokens.identify(token, audiences)
        if found is None:
            review["status"] = {"user": {}, "error": "invalid bearer token"}
            return
        accepted = [audience for audience in self._tokens.audiences(token) if audience in audiences]
        review["status"] = {"authenticated": True, "user": found.info(), "audiences": accepted}


def _attributes(spec: Object) -> AuthAttributes:
    path = spec.get("nonResourceAttributes")
    if path is not None:
        return AuthAttributes(path.get("verb", ""), path=path.get("path") or "/")
    attributes: Mapping[str, Any] = spec["resourceAttributes"]
    parts = ("verb", "group", "resource", "subresource", "namespace", "name")
    return AuthAttributes(*(attributes.get(part, "") for part in parts))


def _check_attributes(spec: Object) -> list[FieldError]:
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and path is not None:
        why = "cannot be specified in combination with resourceAttributes"
        return [field_errors.invalid("spec.nonResourceAttributes", path, why)]
    return [field_errors.invalid("spec.resourceAttributes", None, _ONE_OF)] if resource is None and path is None else []


def _check_local(spec: Object, namespace: str) -> None:
    resource = spec.get("resourceAttributes")
    if resource is None:
        why = "disallowed on this kind of request"
        _raise_if([field_errors.invalid("spec.nonResourceAttributes", spec["nonResourceAttributes"], why)])
    elif resource.get("namespace", "") != namespace:
        raise status.bad_request(f"spec.resourceAttributes.namespace must match namespace: {namespace}")


def _raise_if(errors: list[FieldError]) -> None:
    if errors:
        raise status.invalid(kinds.AUTHORIZATION, "", "", errors)
