"""Service account tokens: issued on request, with a lifetime and audiences, and valid while the account exists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from unbounded_apiserver import field_errors, metadata, status
from unbounded_apiserver.access import bindings
from unbounded_apiserver.access import review_types as kinds
from unbounded_apiserver.access.bindings import TokenBindings
from unbounded_apiserver.access.jwt import BadToken, TokenKey
from unbounded_apiserver.access.rbac_authorizer import account_groups, account_name
from unbounded_apiserver.auth import AUTHENTICATED, CREDENTIAL, RequestCredentials, User
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.store import Store
from unbounded_apiserver.types import Object, ResourcePath

ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
DEFAULT_S: Final = 3600
SHORTEST_S: Final = 600
LONGEST_S: Final = 1 << 32
VERIFIED: Final = 1024  # cached tokens whose signature is verified
_CLAIM: Final = "kubernetes.io"


class AccountTokens:
    """Issue and verify tokens of service accounts (an Authenticator)."""

    def __init__(self, store: Store, key: TokenKey, now: Callable[[], datetime]) -> None:
        self._bindings = TokenBindings(store, now)
        self._key = key
        self._now = now
        self._verified = lru_cache(VERIFIED)(key.verify)

    def authenticate(self, credentials: RequestCredentials) -> User | None:
        token = bearer(credentials.headers)
        return self.identify(token, (ISSUER,)) if token else None

    def identify(self, token: str, audiences: Sequence[str]) -> User | None:
        """Return the user of a token, if the token is valid now for one of the audiences."""
        try:
            claims = self._verified(token)
        except BadToken:
            return None
        moment = self._now().timestamp()
        if claims["iss"] != ISSUER or not claims["nbf"] <= moment < claims["exp"]:
            return None
        if not set(audiences) & set(claims["aud"]):
            return None
        about: Mapping[str, Any] = claims[_CLAIM]
        if not self._bindings.are_valid(about):
            return None
        namespace, account = about["namespace"], about["serviceaccount"]
        groups = (*account_groups(namespace), AUTHENTICATED)
        extra = {CREDENTIAL: (f"JTI={claims['jti']}",), **bindings.user_extra(about)}
        return User(account_name(namespace, account["name"]), groups, account["uid"], extra)

    def audiences(self, token: str) -> list[str]:
        """Return the audiences of a valid token."""
        return list(self._verified(token)["aud"])

    def issue(self, _user: User, place: ResourcePath, request: Object) -> None:
        """Answer a TokenRequest: its status gets a token. Raises StatusError (400, 404, 409, 422)."""
        _check_account(place, request["metadata"])
        spec = request["spec"]
        spec["audiences"] = spec.get("audiences") or [ISSUER]
        spec["expirationSeconds"] = seconds = spec.get("expirationSeconds", DEFAULT_S)
        spec.setdefault("boundObjectRef", None)
        if errors := _check_duration(seconds):
            raise status.invalid(kinds.AUTHENTICATION, kinds.TOKEN_REQUESTS.kind, "", errors)
        about = self._bindings.bind(place.namespace, place.name, spec["boundObjectRef"])
        now = self._now()
        begin = int(now.timestamp())
        claims = {
            "aud": spec["audiences"],
            "exp": begin + seconds,
            "iat": begin,
            "iss": ISSUER,
            "jti": metadata.new_uid(),
            _CLAIM: about,
            "nbf": begin,
            "sub": account_name(place.namespace, place.name),
        }
        request["metadata"] |= {
            "name": place.name,
            "namespace": place.namespace,
            "uid": about["serviceaccount"]["uid"],
            "creationTimestamp": metadata.format_time(now),
        }
        expires = metadata.format_time(datetime.fromtimestamp(begin, UTC) + timedelta(seconds=seconds))
        request["status"] = {"token": self._key.sign(claims), "expirationTimestamp": expires}


def bearer(headers: Mapping[str, str]) -> str:
    """Return the token of an Authorization header, '' without one."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _check_account(place: ResourcePath, meta: Object) -> None:
    """Check that a request names the account of its URL, if it names one. Raises StatusError (422)."""
    for key, expected in (("name", place.name), ("namespace", place.namespace)):
        if meta.get(key) and meta[key] != expected:
            why = f"must match the service account {key} if specified"
            errors = [field_errors.invalid(f"metadata.{key}", meta[key], why)]
            raise status.invalid(kinds.AUTHENTICATION, kinds.TOKEN_REQUESTS.kind, place.name, errors)


def _check_duration(seconds: int) -> list[FieldError]:
    where = "spec.expirationSeconds"
    if seconds < SHORTEST_S:
        return [field_errors.invalid(where, seconds, "may not specify a duration less than 10 minutes")]
    if seconds > LONGEST_S:
        return [field_errors.invalid(where, seconds, "may not specify a duration larger than 2^32 seconds")]
    return []
