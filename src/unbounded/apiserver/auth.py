"""Who asks, and whether they may: a chain of authenticators, then an authorizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from unbounded.apiserver import status
from unbounded.apiserver.pki import MASTERS
from unbounded.apiserver.status import StatusError

AUTHENTICATED: Final = "system:authenticated"
OPEN_PATHS: Final = frozenset({"/healthz", "/livez", "/readyz", "/version"})


@dataclass(frozen=True)
class User:
    """Who sent a request."""

    name: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Credentials:
    """What a request carries: the verified client certificate as `SSLSocket.getpeercert` tells it, and headers."""

    certificate: Mapping[str, Any] | None
    headers: Mapping[str, str]


class Authenticator(Protocol):
    def authenticate(self, credentials: Credentials) -> User | None:
        """The user, or None when these are not credentials of this kind. Raises StatusError (401) for bad ones."""
        ...


@dataclass(frozen=True)
class Attributes:
    """What is asked for. `path` is set for what is not a resource."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


class Authorizer(Protocol):
    def allows(self, user: User, attributes: Attributes) -> bool: ...


class ClientCertificates:
    """Certificates signed by our authority: the common name is the user, organisations are its groups."""

    def authenticate(self, credentials: Credentials) -> User | None:
        if not credentials.certificate:
            return None
        subject = [pair for part in credentials.certificate.get("subject", ()) for pair in part]
        name = next((value for key, value in subject if key == "commonName"), "")
        groups = [value for key, value in subject if key == "organizationName"]
        return User(name, (*groups, AUTHENTICATED)) if name else None


class Masters:
    """Lets the group system:masters do everything, and nobody else anything."""

    def allows(self, user: User, attributes: Attributes) -> bool:  # noqa: ARG002 - the protocol's
        return MASTERS in user.groups


class Guard:
    """Authenticates and authorizes requests."""

    def __init__(self, authenticators: Sequence[Authenticator], authorizers: Sequence[Authorizer]) -> None:
        self._authenticators = authenticators
        self._authorizers = authorizers

    def identify(self, credentials: Credentials) -> User:
        """Raises StatusError (401)."""
        for authenticator in self._authenticators:
            user = authenticator.authenticate(credentials)
            if user is not None:
                return user
        raise status.unauthorized()

    def check(self, user: User, attributes: Attributes) -> None:
        """Raises StatusError (403)."""
        if not any(authorizer.allows(user, attributes) for authorizer in self._authorizers):
            raise refusal(user, attributes)


def refusal(user: User, asked: Attributes) -> StatusError:
    """403 in the words of kube-apiserver."""
    if asked.path:
        why = f'User "{user.name}" cannot {asked.verb} path "{asked.path}"'
        return StatusError(403, "Forbidden", f"forbidden: {why}", details={})
    resource = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
    where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
    why = f'User "{user.name}" cannot {asked.verb} resource "{resource}" in API group "{asked.group}" {where}'
    return status.forbidden(asked.group, asked.resource, asked.name, why)
