"""Impersonation (`kubectl --as`): the requested user, and the rights that it needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from multidict import CIMultiDictProxy

from unbounded_apiserver import status
from unbounded_apiserver.access.rbac_authorizer import ACCOUNT_PREFIX, account_groups
from unbounded_apiserver.auth import ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, AuthAttributes, AuthChain, User
from unbounded_apiserver.status import StatusError

PREFIX: Final = "impersonate-"
_EXTRA: Final = "impersonate-extra-"
_AUTHENTICATION: Final = "authentication.k8s.io"


@dataclass(frozen=True)
class ImpersonationRequest:
    """The user that the impersonation headers request."""

    name: str
    uid: str
    groups: tuple[str, ...]
    extra: dict[str, list[str]]

    @classmethod
    def read(cls, headers: CIMultiDictProxy[str]) -> ImpersonationRequest:
        """Parse the headers. Raises StatusError (400)."""
        extra: dict[str, list[str]] = {}
        for key, value in headers.items():
            if key.lower().startswith(_EXTRA):
                extra.setdefault(unquote(key[len(_EXTRA) :].lower()), []).append(value)
        desired = cls(
            headers.get("Impersonate-User", ""),
            headers.get("Impersonate-Uid", ""),
            tuple(headers.getall("Impersonate-Group", ())),
            extra,
        )
        if not desired.name:
            raise desired.nameless()
        return desired

    def nameless(self) -> StatusError:
        def go(values: tuple[str, ...]) -> str:
            return "[]string{" + ", ".join(f'"{value}"' for value in values) + "}" if values else "[]string(nil)"

        extra = ", ".join(f'"{key}":{go(tuple(values))}' for key, values in self.extra.items())
        shown = f"map[string][]string{{{extra}}}" if extra else "map[string][]string(nil)"
        user = f'&user.DefaultInfo{{Name:"", UID:"{self.uid}", Groups:{go(self.groups)}, Extra:{shown}}}'
        return status.bad_request(f"requested {user} without impersonating a user name")

    def required_attributes(self) -> list[AuthAttributes]:
        """Return the attributes that the authenticated user must be allowed."""
        needed = [_user_attributes(self.name)]
        needed += [AuthAttributes("impersonate", "", "groups", name=group) for group in self.groups]
        for key, values in self.extra.items():
            needed += [
                AuthAttributes("impersonate", _AUTHENTICATION, "userextras", key, name=value) for value in values
            ]
        if self.uid:
            needed.append(AuthAttributes("impersonate", _AUTHENTICATION, "uids", name=self.uid))
        return needed

    def user(self) -> User:
        groups = self.groups
        account = _account(self.name)
        if account is not None and not groups:
            groups = account_groups(account[0])
        implied = UNAUTHENTICATED if self.name == ANONYMOUS else AUTHENTICATED
        if not {AUTHENTICATED, UNAUTHENTICATED} & set(groups):
            groups = (*groups, implied)
        return User(self.name, groups, self.uid, self.extra)


def has_impersonation(headers: Iterable[str]) -> bool:
    """Return whether any of these headers is for impersonation."""
    return f"\n{PREFIX}" in "\n".join(("", *headers)).lower()


def impersonate(user: User, headers: CIMultiDictProxy[str], guard: AuthChain) -> User:
    """Return the impersonated user, if `user` is allowed to act as it. Raises StatusError (400, 403)."""
    desired = ImpersonationRequest.read(headers)
    for needed in desired.required_attributes():
        guard.authorize(user, needed)
    return desired.user()


def _account(name: str) -> tuple[str, str] | None:
    namespace, colon, account = name.removeprefix(ACCOUNT_PREFIX).partition(":")
    return (namespace, account) if name.startswith(ACCOUNT_PREFIX) and colon and namespace and account else None


def _user_attributes(name: str) -> AuthAttributes:
    account = _account(name)
    if account is not None:
        return AuthAttributes("impersonate", "", "serviceaccounts", namespace=account[0], name=account[1])
    return AuthAttributes("impersonate", "", "users", name=name)
