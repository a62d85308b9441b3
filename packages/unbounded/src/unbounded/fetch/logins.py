"""Credentials for registries: Docker's config file and pull secrets (`kubernetes.io/dockerconfigjson`)."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import msgspec

from unbounded.fetch.failures import Denied
from unbounded.fetch.reference import DOCKER_HUB, Reference
from unbounded.kube.logs import SecretStr

_HUB_KEYS: Final = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})
_NONE: Final = SecretStr("")


@dataclass(frozen=True)
class RegistryLogin:
    """One account: name and password, an identity token for a token server, or a bearer token."""

    user: str = ""
    password: SecretStr = _NONE
    identity_token: SecretStr = _NONE
    registry_token: SecretStr = _NONE

    def basic(self) -> str:
        """Value of an Authorization header; empty without a name and password."""
        if not self.user and not self.password:
            return ""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password.reveal()}".encode()).decode()


class _Entry(msgspec.Struct):
    auth: str = ""
    username: str = ""
    password: str = ""
    identitytoken: str = ""
    registrytoken: str = ""


class _Config(msgspec.Struct):
    auths: dict[str, _Entry] = {}


@dataclass(frozen=True)
class RegistryLogins:
    """Logins by their scope: a registry, `*.example.com`, or a registry and the start of a repository's path."""

    entries: tuple[tuple[str, RegistryLogin], ...] = ()

    @classmethod
    def from_secret(cls, data: bytes, what: str = "pull secret") -> RegistryLogins:
        """Return the logins of `.dockerconfigjson` (or of Docker's config.json).

        Raises:
            Denied: it is invalid; the message names the fault and nothing of the content.
        """
        try:
            config = msgspec.json.decode(data, type=_Config)
        except msgspec.DecodeError as error:
            raise Denied(f"{what}: not a Docker config with auths: {error}") from None
        return cls(tuple((_key(key), _login(entry, f"{what}, {key}")) for key, entry in config.auths.items()))

    @classmethod
    def from_file(cls, path: Path) -> RegistryLogins:
        """Return the logins of a Docker config file; none where there is no file."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise Denied(f"{path}: {error.strerror}") from error
        return cls.from_secret(data, str(path))

    def joined(self, *others: RegistryLogins) -> RegistryLogins:
        """Return these logins followed by the others."""
        return RegistryLogins(self.entries + tuple(entry for other in others for entry in other.entries))

    def find(self, reference: Reference) -> tuple[RegistryLogin, ...]:
        """Return the logins to try for a repository, the longest matching path first, as kubelet does."""
        fitting = [(key, login) for key, login in self.entries if _covers(key, reference)]
        return tuple(login for key, login in sorted(fitting, key=lambda entry: -len(_path(entry[0]))))


def _key(text: str) -> str:
    """Return a key without scheme, and without the API version that old versions of Docker appended."""
    bare = text.partition("://")[2] or text
    host, _, path = bare.strip("/").partition("/")
    host = DOCKER_HUB if host in _HUB_KEYS else host
    return host if path in ("", "v1", "v2") else f"{host}/{path}"


def _path(key: str) -> str:
    return key.partition("/")[2]


def _covers(key: str, reference: Reference) -> bool:
    host, _, path = key.partition("/")
    desired, labels = reference.registry.lower().split("."), host.lower().split(".")
    if len(desired) != len(labels) or not all(map(fnmatchcase, desired, labels)):
        return False
    return not path or reference.repository == path or reference.repository.startswith(path + "/")


def _login(entry: _Entry, what: str) -> RegistryLogin:
    user, password = entry.username, entry.password
    if entry.auth:
        try:
            text = base64.b64decode(entry.auth, validate=False).decode()
        except ValueError:  # of base64, of ASCII, of UTF-8
            raise Denied(f"{what}: auth is not base64 of user:password") from None
        user, colon, password = text.partition(":")
        if not colon:
            raise Denied(f"{what}: auth is not base64 of user:password")
        password = password.rstrip("\0")  # old versions of Docker padded it
    return RegistryLogin(user, SecretStr(password), SecretStr(entry.identitytoken), SecretStr(entry.registrytoken))
