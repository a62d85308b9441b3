"""Credentials of a client: fixed logins, token files that are rotated, exec plugins; and impersonation."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

import msgspec

from unbounded.kube.api import ApiError, ServerUnreachable
from unbounded.kube.clock import WallClock, utc_now
from unbounded.kube.tls import ClientCertificate

REREAD_S: Final = 60.0  # a rotated token file is read again at least this often
PLUGIN_S: Final = 60.0  # limit of one run of an exec plugin
EARLY_S: Final = 30.0  # a login is renewed this long before it expires
RENEW_AFTER: Final = 0.8  # of the life of a service account's token
KEY_CHARACTERS: Final = "!#$&'*+-.^_`|~"  # of the name of a header, beside letters and digits (RFC 9110, 5.6.2)


@dataclass(frozen=True)
class Impersonation:
    """Another user that requests are made as: the server refuses what that one may not do.

    Args:
        extra: (key, value), a key as often as it has values.
    """

    user: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()

    def headers(self) -> list[tuple[str, str]]:
        """As client-go has them: keys of extras are escaped, and values are not."""
        given = [("Impersonate-User", self.user), *([("Impersonate-Uid", self.uid)] if self.uid else [])]
        given += [("Impersonate-Group", group) for group in self.groups]
        return given + [(f"Impersonate-Extra-{quote(key, safe=KEY_CHARACTERS)}", value) for key, value in self.extra]


@dataclass(frozen=True)
class AuthInfo:
    """The authentication of a request: a bearer token, a client certificate, both or none; and an impersonated user."""

    token: str | None = field(default=None, repr=False)
    certificate: ClientCertificate | None = None
    impersonation: Impersonation | None = None

    def headers(self) -> list[tuple[str, str]]:
        """Names and values; a name may be there several times."""
        shown = [("Authorization", f"Bearer {self.token}")] if self.token else []
        return shown + (self.impersonation.headers() if self.impersonation else [])


class ClientCredentials(Protocol):
    """A source of `AuthInfo`."""

    async def login(self) -> AuthInfo:
        """Return the current authentication. Raises ServerUnreachable if there is none."""
        ...

    def refused(self, login: AuthInfo) -> bool:
        """Handle a rejection by the server; return whether another login can be had."""
        ...


@dataclass(frozen=True)
class StaticCredentials:
    """Credentials that never change."""

    value: AuthInfo

    async def login(self) -> AuthInfo:
        return self.value

    def refused(self, login: AuthInfo) -> bool:  # noqa: ARG002  # as the Protocol has it
        return False


@dataclass(frozen=True)
class ImpersonatingCredentials:
    """Credentials that impersonate another user."""

    own: ClientCredentials
    impersonation: Impersonation

    async def login(self) -> AuthInfo:
        return replace(await self.own.login(), impersonation=self.impersonation)

    def refused(self, login: AuthInfo) -> bool:
        return self.own.refused(replace(login, impersonation=None))


@dataclass
class TokenFile:
    """A bearer token in a file, which others replace from time to time."""

    path: Path
    certificate: ClientCertificate | None = None
    _current: AuthInfo | None = None
    _read_at: float = 0.0

    async def login(self) -> AuthInfo:
        now = asyncio.get_running_loop().time()
        if self._current is None or now - self._read_at > REREAD_S:
            try:
                token = self.path.read_text().strip()
            except OSError as error:
                raise ServerUnreachable(f"token file {self.path}: {error.strerror}") from error
            self._current, self._read_at = AuthInfo(token, self.certificate), now
        return self._current

    def refused(self, login: AuthInfo) -> bool:
        if self._current == login:
            self._current = None
        return True


@dataclass(frozen=True)
class IssuedToken:
    """A bearer token, and when it expires (RFC 3339, by the issuer's clock)."""

    token: str = field(repr=False)
    expires: str


@dataclass
class AccountToken:
    """Tokens of a service account; the next one is requested when a fifth of the current one's life is left.

    Args:
        account: the name of the account in errors.
        issue: requests a new token; raises ApiError.
    """

    account: str
    issue: Callable[[], Awaitable[IssuedToken]]
    now: WallClock = utc_now
    _current: AuthInfo | None = None
    _renew_at: float = 0.0  # on the monotonic clock, as is the next
    _good_until: float = 0.0
    _requesting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def login(self) -> AuthInfo:
        if (current := self._fresh()) is not None:
            return current
        async with self._requesting:
            if (current := self._fresh()) is not None:
                return current
            now = asyncio.get_running_loop().time()
            try:
                issued = await self.issue()
            except ApiError as error:
                if self._current is not None and now < self._good_until:
                    return self._current
                # Another failure than this one would be taken for the answer to what the login was for.
                raise ServerUnreachable(f"token of {self.account}: {error}") from error
            left_s = (datetime.fromisoformat(issued.expires) - self.now()).total_seconds()
            self._renew_at, self._good_until = now + left_s * RENEW_AFTER, now + left_s
            self._current = AuthInfo(issued.token)
            return self._current

    def _fresh(self) -> AuthInfo | None:
        """Return the current token until its renewal is due."""
        return self._current if asyncio.get_running_loop().time() < self._renew_at else None

    def refused(self, login: AuthInfo) -> bool:
        if self._current == login:
            self._current = None
        return True


class _ExecCredentialStatus(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: str | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _ExecCredentialStatus | None = None


@dataclass
class ExecPlugin:
    """A program that prints an ExecCredential (client.authentication.k8s.io); its answer is kept until it expires."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    api_version: str
    hint: str = ""
    now: WallClock = utc_now
    _current: AuthInfo | None = None
    _good_until: float | None = None  # on the monotonic clock
    _running: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    def from_config(cls, body: Mapping[str, Any], *, folder: Path, server: str) -> ExecPlugin:
        """The plugin that a kubeconfig names; a command with a slash is relative to the kubeconfig's folder."""
        command = str(body["command"])
        spec: dict[str, Any] = {"interactive": False}
        if body.get("provideClusterInfo"):
            spec["cluster"] = {"server": server}
        version = str(body.get("apiVersion", "client.authentication.k8s.io/v1"))
        info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
        environment = {entry["name"]: str(entry["value"]) for entry in body.get("env") or ()}
        return cls(
            command=(str(folder / command) if "/" in command else command, *map(str, body.get("args") or ())),
            environment=environment | {"KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()},
            api_version=version,
            hint=str(body.get("installHint") or ""),
        )

    async def login(self) -> AuthInfo:
        async with self._running:
            expired = self._good_until is not None and asyncio.get_running_loop().time() > self._good_until
            if self._current is None or expired:
                status = await self._request()
                self._current = _auth_info(status, self.command[0])
                self._good_until = self._monotonic(status.expiration_timestamp)
            return self._current

    def refused(self, login: AuthInfo) -> bool:
        if self._current == login:
            self._current = None
        return True

    def _monotonic(self, expires: str | None) -> float | None:
        """Return the loop time at which to request the next token.

        The plugin's timestamp is only comparable with this host's wall clock. The comparison happens once, here.
        """
        if expires is None:
            return None
        left_s = (datetime.fromisoformat(expires) - self.now()).total_seconds()
        return asyncio.get_running_loop().time() + max(0.0, left_s - EARLY_S)

    async def _request(self) -> _ExecCredentialStatus:
        name = self.command[0]
        try:
            async with asyncio.timeout(PLUGIN_S):
                output = await self._run()
        except FileNotFoundError as error:
            raise ServerUnreachable(f"credential plugin {name}: not found. {self.hint}".rstrip(". ")) from error
        except OSError as error:  # TimeoutError is one too
            raise ServerUnreachable(f"credential plugin {name}: {error.strerror or 'no answer'}") from error
        try:
            answer = msgspec.json.decode(output, type=_ExecCredential)
        except msgspec.DecodeError as error:
            raise ServerUnreachable(f"credential plugin {name}: its output is not an ExecCredential") from error
        if answer.status is None or answer.api_version != self.api_version:
            desired = f"expected {self.api_version} with a status"
            raise ServerUnreachable(f"credential plugin {name}: {desired}, got {answer.api_version or 'no version'}")
        return answer.status

    async def _run(self) -> bytes:
        process = await asyncio.create_subprocess_exec(
            *self.command,
            env={**os.environ, **self.environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise ServerUnreachable(f"credential plugin {self.command[0]}: exit code {process.returncode}")
        return output


def _auth_info(status: _ExecCredentialStatus, plugin: str) -> AuthInfo:
    certificate = None
    if status.client_certificate_data and status.client_key_data:
        certificate = ClientCertificate(status.client_certificate_data.encode(), status.client_key_data.encode())
    if not status.token and certificate is None:
        raise ServerUnreachable(f"credential plugin {plugin}: it returned neither a token nor a certificate")
    return AuthInfo(status.token, certificate)
