"""Bootstrap tokens: Secrets of kube-system with which a new machine authenticates."""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from unbounded_apiserver.access.tokens import bearer
from unbounded_apiserver.auth import AUTHENTICATED, RequestCredentials, User
from unbounded_apiserver.builtin import SECRETS
from unbounded_apiserver.store import Store

NAMESPACE: Final = "kube-system"
PREFIX: Final = "bootstrap-token-"
TYPE: Final = "bootstrap.kubernetes.io/token"
GROUP: Final = "system:bootstrappers"
_TOKEN: Final = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")
_EXTRA_GROUP: Final = re.compile(r"system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]")


class BootstrapTokens:
    """Authenticator by bootstrap tokens that permit authentication and have not expired."""

    def __init__(self, store: Store, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now

    def authenticate(self, credentials: RequestCredentials) -> User | None:
        found = _TOKEN.fullmatch(bearer(credentials.headers))
        if found is None:
            return None
        identity, secret = found.groups()
        record = self._store.get(SECRETS.name, SECRETS.key(NAMESPACE, f"{PREFIX}{identity}"))
        token = token_of(record.decode(), "usage-bootstrap-authentication", self._now()) if record is not None else None
        if token is None or not hmac.compare_digest(token.secret.encode(), secret.encode()):
            return None
        if not all(map(_EXTRA_GROUP.fullmatch, token.groups)):
            return None
        return User(f"system:bootstrap:{identity}", (GROUP, *token.groups, AUTHENTICATED))


class StoredBootstrapToken(NamedTuple):
    """A bootstrap token from its Secret."""

    id: str
    secret: str
    groups: tuple[str, ...]

    def __repr__(self) -> str:
        return f"BootstrapToken({self.id})"


def token_of(secret: Mapping[str, Any], usage: str, now: datetime) -> StoredBootstrapToken | None:
    """Return the token of a Secret that is valid for a usage now, None if there is none.

    Args:
        usage: the key of the Secret that allows it.
    """
    if secret.get("type") != TYPE or "deletionTimestamp" in secret["metadata"]:
        return None
    data = {key: base64.b64decode(value).decode(errors="replace") for key, value in (secret.get("data") or {}).items()}
    identity, text = data.get("token-id", ""), data.get("token-secret", "")
    if secret["metadata"]["name"] != f"{PREFIX}{identity}" or not identity or not text or data.get(usage) != "true":
        return None
    ends = expiration(secret)
    if ends is not None and now >= ends:
        return None
    return StoredBootstrapToken(
        identity, text, tuple(group for group in data.get("auth-extra-groups", "").split(",") if group)
    )


def expiration(secret: Mapping[str, Any]) -> datetime | None:
    """Return the expiration of a token, None for a token without one; an unreadable expiration is in the past."""
    encoded = (secret.get("data") or {}).get("expiration", "")
    text = base64.b64decode(encoded).decode(errors="replace")
    if not text:
        return None
    try:
        end = datetime.fromisoformat(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return end if end.tzinfo is not None else end.replace(tzinfo=UTC)
