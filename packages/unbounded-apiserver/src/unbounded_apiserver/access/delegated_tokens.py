"""Tokens with which an extension acts as the user of the request that it answers, and as no other one."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from unbounded_apiserver.access.tokens import bearer
from unbounded_apiserver.auth import RequestCredentials, User

TOKEN_BYTES: Final = 32


class DelegatedTokens:
    """The tokens of running requests (an Authenticator). They are in memory alone."""

    def __init__(self) -> None:
        self._users: dict[str, User] = {}

    @contextmanager
    def lend(self, user: User) -> Iterator[str]:
        """Return a token that is good for the user while inside."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._users[token] = user
        try:
            yield token
        finally:
            del self._users[token]

    def authenticate(self, credentials: RequestCredentials) -> User | None:
        return self._users.get(bearer(credentials.headers)) if self._users else None
