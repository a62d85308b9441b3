"""Bootstrap tokens: Secrets of kube-system with which a new machine introduces itself."""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from unbounded.apiserver.access.tokens import bearer
from unbounded.apiserver.auth import AUTHENTICATED, Credentials, User
from unbounded.apiserver.builtin import SECRETS
from unbounded.apiserver.store import Store

NAMESPACE: Final = "kube-system"
TYPE: Final = "bootstrap.kubernetes.io/token"
GROUP: Final = "system:bootstrappers"
_TOKEN: Final = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")
_EXTRA_GROUP: Final = re.compile(r"system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]")


class BootstrapTokens:
    """Recognises bootstrap tokens that may be used to authenticate and have not expired (an Authenticator)."""

    def __init__(self, store: Store, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now

    def authenticate(self, credentials: Credentials) -> User | None:
        found = _TOKEN.fullmatch(bearer(credentials.headers))
        if found is None:
            return None
        identity, secret = found.groups()
        record = self._store.get(SECRETS.name, SECRETS.key(NAMESPACE, f"bootstrap-token-{identity}"))
        obj = record.decode() if record is not None else {}
        if obj.get("type") != TYPE or "deletionTimestamp" in obj["metadata"]:
            return None
        data = {key: base64.b64decode(value).decode(errors="replace") for key, value in (obj.get("data") or {}).items()}
        good = hmac.compare_digest(data.get("token-secret", "").encode(), secret.encode())
        if not good or data.get("token-id") != identity or data.get("usage-bootstrap-authentication") != "true":
            return None
        extra = [group for group in data.get("auth-extra-groups", "").split(",") if group]
        ends = expiration(obj)
        if (ends is not None and self._now() >= ends) or not all(map(_EXTRA_GROUP.fullmatch, extra)):
            return None
        return User(f"system:bootstrap:{identity}", (GROUP, *extra, AUTHENTICATED))


def expiration(secret: Mapping[str, Any]) -> datetime | None:
    """When a token ends, or None for one that does not; what cannot be read has ended long ago."""
    encoded = (secret.get("data") or {}).get("expiration", "")
    text = base64.b64decode(encoded).decode(errors="replace")
    if not text:
        return None
    try:
        end = datetime.fromisoformat(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return end if end.tzinfo is not None else end.replace(tzinfo=UTC)
