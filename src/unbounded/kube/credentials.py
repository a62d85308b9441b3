"""Who we are to the API server: fixed logins, token files that are rotated, exec plugins; and as whom we act."""

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

from unbounded.kube.clock import WallClock, utc_now
from unbounded.kube.errors import ApiError, Unreachable
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
class Login:
    """What one request shows: a bearer token, a client certificate, both, or nothing; and as whom it is made."""

    token: str | None = field(default=None, repr=False)
    certificate: ClientCertificate | None = None
    acting_as: Impersonation | None = None

    def headers(self) -> list[tuple[str, str]]:
        """Names and values; a name may be there several times."""
        shown = [("Authorization", f"Bearer {self.token}")] if self.token else []
        return shown + (self.acting_as.headers() if self.acting_as else [])


class Credentials(Protocol):
    """Where logins come from."""

    async def login(self) -> Login:
        """The login to use now. Raises Unreachable when there is none to be had."""
        ...

    def refused(self, login: Login) -> bool:
        """The server refused this login: whether another one can be had."""
        ...


@dataclass(frozen=True)
class Fixed:
    """The same login for ever."""

    value: Login

    async def login(self) -> Login:
        return self.value

    def refused(self, login: Login) -> bool:  # noqa: ARG002  # as the Protocol has it
        return False


@dataclass(frozen=True)
class ActingAs:
    """The logins of somebody who acts as another user."""

    own: Credentials
    other: Impersonation

    async def login(self) -> Login:
        return replace(await self.own.login(), acting_as=self.other)

    def refused(self, login: Login) -> bool:
        return self.own.refused(replace(login, acting_as=None))


@dataclass
class TokenFile:
    """A bearer token in a file, which others replace from time to time."""

    path: Path
    certificate: ClientCertificate | None = None
    _current: Login | None = None
    _read_at: float = 0.0

    async def login(self) -> Login:
        now = asyncio.get_running_loop().time()
        if self._current is None or now - self._read_at > REREAD_S:
            try:
                token = self.path.read_text().strip()
            except OSError as error:
                raise Unreachable(f"token file {self.path}: {error.strerror}") from error
            self._current, self._read_at = Login(token, self.certificate), now
        return self._current

    def refused(self, login: Login) -> bool:
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
    """Tokens of a service account, each asked for when a fifth of the life of the one before is left.

    Args:
        account: how failures name it.
        issue: asks for a new token; raises ApiError.
    """

    account: str
    issue: Callable[[], Awaitable[IssuedToken]]
    now: WallClock = utc_now
    _current: Login | None = None
    _renew_at: float = 0.0  # on the monotonic clock, as is the next
    _good_until: float = 0.0
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def login(self) -> Login:
        async with self._asking:
            now = asyncio.get_running_loop().time()
            if self._current is not None and now < self._renew_at:
                return self._current
            try:
                issued = await self.issue()
            except ApiError as error:
                if self._current is not None and now < self._good_until:
                    return self._current
                # Another failure than this one would be taken for the answer to what the login was for.
                raise Unreachable(f"token of {self.account}: {error}") from error
            left_s = (datetime.fromisoformat(issued.expires) - self.now()).total_seconds()
            self._renew_at, self._good_until = now + left_s * RENEW_AFTER, now + left_s
            self._current = Login(issued.token)
            return self._current

    def refused(self, login: Login) -> bool:
        if self._current == login:
            self._current = None
        return True


class _Status(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: str | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _Status | None = None


@dataclass
class ExecPlugin:
    """A program that prints an ExecCredential (client.authentication.k8s.io); its answer is kept until it expires."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    api_version: str
    hint: str = ""
    now: WallClock = utc_now
    _current: Login | None = None
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

    async def login(self) -> Login:
        async with self._running:
            expired = self._good_until is not None and asyncio.get_running_loop().time() > self._good_until
            if self._current is None or expired:
                status = await self._ask()
                self._current = _login_of(status, self.command[0])
                self._good_until = self._monotonic(status.expiration_timestamp)
            return self._current

    def refused(self, login: Login) -> bool:
        if self._current == login:
            self._current = None
        return True

    def _monotonic(self, expires: str | None) -> float | None:
        """When to ask again. The plugin's time can only be compared with our wall clock, which is done once, here."""
        if expires is None:
            return None
        left_s = (datetime.fromisoformat(expires) - self.now()).total_seconds()
        return asyncio.get_running_loop().time() + max(0.0, left_s - EARLY_S)

    async def _ask(self) -> _Status:
        name = self.command[0]
        try:
            async with asyncio.timeout(PLUGIN_S):
                output = await self._run()
        except FileNotFoundError as error:
            raise Unreachable(f"credential plugin {name}: not found. {self.hint}".rstrip(". ")) from error
        except OSError as error:  # TimeoutError is one too
            raise Unreachable(f"credential plugin {name}: {error.strerror or 'no answer'}") from error
        try:
            answer = msgspec.json.decode(output, type=_ExecCredential)
        except msgspec.DecodeError as error:
            raise Unreachable(f"credential plugin {name}: its output is no ExecCredential") from error
        if answer.status is None or answer.api_version != self.api_version:
            wanted = f"wanted {self.api_version} with a status"
            raise Unreachable(f"credential plugin {name}: {wanted}, got {answer.api_version or 'no version'}")
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
            raise Unreachable(f"credential plugin {self.command[0]}: exit code {process.returncode}")
        return output


def _login_of(status: _Status, plugin: str) -> Login:
    certificate = None
    if status.client_certificate_data and status.client_key_data:
        certificate = ClientCertificate(status.client_certificate_data.encode(), status.client_key_data.encode())
    if not status.token and certificate is None:
        raise Unreachable(f"credential plugin {plugin}: it gave neither a token nor a certificate")
    return Login(status.token, certificate)
