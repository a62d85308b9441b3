"""Authentication and authorization of requests: a chain of authenticators, then a chain of authorizers."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any, Final, Literal, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import msgspec

from unbounded.kube import cluster_info
from unbounded_apiserver import status
from unbounded_apiserver.pki import MASTERS
from unbounded_apiserver.status import StatusError

AUTHENTICATED: Final = "system:authenticated"
UNAUTHENTICATED: Final = "system:unauthenticated"
ANONYMOUS: Final = "system:anonymous"
CREDENTIAL: Final = "authentication.kubernetes.io/credential-id"
OPEN_PATHS: Final = frozenset({"/healthz", "/livez", "/readyz", "/version"})
CLUSTER_INFO: Final = f"/api/v1/namespaces/{cluster_info.NAMESPACE}/configmaps/{cluster_info.NAME}"


@dataclass(frozen=True)
class User:
    """The user that sent a request."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict, hash=False)

    @cached_property
    def info_json(self) -> msgspec.Raw:
        """The JSON of `info`, made once."""
        return msgspec.Raw(msgspec.json.encode(self.info()))

    def info(self) -> dict[str, Any]:
        """Return the user as a UserInfo without empty fields."""
        extra = {key: list(values) for key, values in self.extra.items()}
        info_fields = {"username": self.name, "uid": self.uid, "groups": list(self.groups), "extra": extra}
        return {key: value for key, value in info_fields.items() if value}


class TlsConnection(Protocol):
    """The TLS of a connection, as `ssl.SSLObject` is one."""

    def getpeercert(self, binary_form: Literal[True]) -> bytes | None:
        """The verified client certificate as DER."""
        ...


class RequestCredentials(msgspec.Struct, frozen=True):
    """Credentials of a request: the verified client certificate in the form of `SSLSocket.getpeercert`, and headers.

    `connection` is the one that presented the certificate: all its requests are from the same client.
    """

    certificate: Mapping[str, Any] | None
    headers: Mapping[str, str]
    connection: TlsConnection | None = None


class Authenticator(Protocol):
    def authenticate(self, credentials: RequestCredentials) -> User | None:
        """Return the user, or None if these are not credentials of this kind. Raises StatusError (401) for bad ones."""
        ...


class AuthAttributes(msgspec.Struct, frozen=True):
    """Authorization attributes of a request.

    `path` is set where the request is not for a resource. `selector` is the field selector of a list.
    """

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    selector: str = ""


class AuthDecision(NamedTuple):
    """An authorizer's decision, with its reason where there is one."""

    allowed: bool
    reason: str = ""


class Authorizer(Protocol):
    def decide(self, user: User, attributes: AuthAttributes) -> AuthDecision: ...


class ClientCertificates:
    """Authenticator by certificates of our authority: the common name is the user, organisations are its groups.

    TLS verifies a certificate when the connection begins. Each request checks again that it has not expired.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._known: WeakKeyDictionary[TlsConnection, User] = WeakKeyDictionary()

    def authenticate(self, credentials: RequestCredentials) -> User | None:
        if not credentials.certificate:
            return None
        if self._now() >= _end(credentials.certificate["notAfter"]):
            raise status.unauthorized()
        connection = credentials.connection
        user = self._known.get(connection) if connection is not None else None
        if user is None:
            user = self._read(credentials.certificate, connection)
            if user is not None and connection is not None:
                self._known[connection] = user
        return user

    @staticmethod
    def _read(certificate: Mapping[str, Any], connection: TlsConnection | None) -> User | None:
        subject = [pair for part in certificate.get("subject", ()) for pair in part]
        name = next((value for key, value in reversed(subject) if key == "commonName"), "")  # the last one, as in Go
        groups = [value for key, value in subject if key == "organizationName"]
        if not name:
            return None
        encoded = connection.getpeercert(True) if connection is not None else None
        extra = {CREDENTIAL: (f"X509SHA256={hashlib.sha256(encoded).hexdigest()}",)} if encoded else {}
        return User(name, (*groups, AUTHENTICATED), extra=extra)


@lru_cache(maxsize=1024)
def _end(text: str) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC)


_ALLOWED: Final = AuthDecision(True)
_NO_OPINION: Final = AuthDecision(False)


class MastersAuthorizer:
    """Authorizer that allows the group system:masters everything and has no opinion of other users."""

    def decide(self, user: User, attributes: AuthAttributes) -> AuthDecision:  # noqa: ARG002 - the protocol's
        return _ALLOWED if MASTERS in user.groups else _NO_OPINION


class AuthChain:
    """Authenticate and authorize requests."""

    def __init__(self, authenticators: Sequence[Authenticator], authorizers: Sequence[Authorizer]) -> None:
        self._authenticators = authenticators
        self._authorizers = authorizers

    def authenticate(self, credentials: RequestCredentials) -> User:
        """Return the user of a request. Raises StatusError (401)."""
        for authenticator in self._authenticators:
            user = authenticator.authenticate(credentials)
            if user is not None:
                return user
        raise status.unauthorized()

    def decide(self, user: User, attributes: AuthAttributes) -> AuthDecision:
        """Return the first decision that allows the request, else a denial with the reasons of all authorizers."""
        reasons = []
        for authorizer in self._authorizers:
            decision = authorizer.decide(user, attributes)
            if decision.allowed:
                return decision
            if decision.reason:
                reasons.append(decision.reason)
        return AuthDecision(False, "\n".join(reasons))

    def authorize(self, user: User, attributes: AuthAttributes) -> None:
        """Authorize a request. Raises StatusError (403)."""
        decision = self.decide(user, attributes)
        if not decision.allowed:
            raise denied(user, attributes, decision.reason)


def denied(user: User, attributes: AuthAttributes, reason: str = "") -> StatusError:
    """Return the error of a denied request (403), worded as by kube-apiserver."""
    more = f": {reason}" if reason else ""
    if attributes.path:
        why = f'User "{user.name}" cannot {attributes.verb} path "{attributes.path}"{more}'
        return StatusError(403, "Forbidden", f"forbidden: {why}", details={})
    resource = f"{attributes.resource}/{attributes.subresource}" if attributes.subresource else attributes.resource
    where = f'in the namespace "{attributes.namespace}"' if attributes.namespace else "at the cluster scope"
    what = f'{attributes.verb} resource "{resource}" in API group "{attributes.group}" {where}'
    why = f'User "{user.name}" cannot {what}{more}'
    return status.forbidden(attributes.group, attributes.resource, attributes.name, why)
