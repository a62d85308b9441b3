"""Address of the API server and credentials of the client: kubeconfig files, and the service account of a Pod."""

from __future__ import annotations

import base64
import binascii
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from unbounded.kube.credentials import (
    AuthInfo,
    ClientCredentials,
    ExecPlugin,
    ImpersonatingCredentials,
    Impersonation,
    StaticCredentials,
    TokenFile,
)
from unbounded.kube.tls import ClientCertificate, client_context

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANONYMOUS: Final = Impersonation()


class ConfigError(Exception):
    """A configuration that cannot be used; the message names the file and the fault."""


@dataclass(frozen=True)
class ClientConfig:
    """One cluster and one user of it.

    Args:
        ca_file: where `ca` comes from; a client reads it again, as a cluster may renew its authority.
    """

    server: str
    credentials: ClientCredentials = field(default_factory=lambda: StaticCredentials(AuthInfo()))
    ca: bytes | None = None
    ca_file: Path | None = None
    verify: bool = True
    tls_server_name: str | None = None
    namespace: str = "default"

    def __post_init__(self) -> None:
        _check_server(self.server, "server")

    def ssl_context(self, certificate: ClientCertificate | None) -> ssl.SSLContext | None:
        """The TLS context for a login; None where the server speaks plain HTTP."""
        if not self.server.startswith("https://"):
            return None
        return client_context(ca=self.ca, certificate=certificate, verify=self.verify)


def find_config(
    environ: Mapping[str, str], *, kubeconfig: str = "", context: str = "", acting_as: Impersonation = ANONYMOUS
) -> ClientConfig:
    """The configuration that a process uses: the given file, else $KUBECONFIG, else its Pod's, else ~/.kube/config.

    Args:
        acting_as: as `from_kubeconfig` has it.
    Raises:
        ConfigError: there is none, or it cannot be used.
    """
    if paths := _paths(environ, kubeconfig):
        return from_kubeconfig(*paths, context=context, acting_as=acting_as)
    if environ.get("KUBERNETES_SERVICE_HOST"):
        host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
        config = in_cluster(host, port)
        return replace(config, credentials=_impersonating(config.credentials, acting_as, "the Pod's account"))
    home = _home(environ)
    if home.exists():
        return from_kubeconfig(home, context=context, acting_as=acting_as)
    raise ConfigError(f"no kubeconfig: neither --kubeconfig nor $KUBECONFIG is set, and {home} does not exist")


def context_names(environ: Mapping[str, str], *, kubeconfig: str = "") -> list[str]:
    """The names of the contexts that could be chosen. Raises ConfigError."""
    names: dict[str, None] = {}
    for path in _paths(environ, kubeconfig) or [_home(environ)]:
        for entry in _load(path).get("contexts") or ():
            if isinstance(entry, Mapping) and entry.get("name"):
                names[str(entry["name"])] = None
    return list(names)


def _paths(environ: Mapping[str, str], kubeconfig: str) -> list[Path]:
    """The kubeconfigs that were named: by a flag, else by $KUBECONFIG."""
    if kubeconfig:
        return [Path(kubeconfig)]
    paths = [Path(name) for name in environ.get("KUBECONFIG", "").split(":") if name]
    return [path for path in paths if path.exists()] or paths[:1]


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME", "/root")) / ".kube" / "config"


def in_cluster(host: str, port: str, *, account: Path = SERVICE_ACCOUNT) -> ClientConfig:
    """The configuration of a Pod: its service account, whose token is read again as it is rotated."""
    token, ca, namespace = account / "token", account / "ca.crt", account / "namespace"
    if not token.exists():
        raise ConfigError(f"{token} does not exist: the Pod has no service account token")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    _check_server(server, "KUBERNETES_SERVICE_HOST with KUBERNETES_SERVICE_PORT")
    return ClientConfig(
        server=server,
        credentials=TokenFile(token),
        ca=_bytes(ca),
        ca_file=ca,
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
    )


def from_kubeconfig(*paths: Path, context: str = "", acting_as: Impersonation = ANONYMOUS) -> ClientConfig:
    """Return the named context of kubeconfig files, else their current one; the first file that defines a name wins.

    Args:
        acting_as: each part that is not empty overrides that of the context's user (`as`, `as-uid`, `as-groups`,
            `as-user-extra`).

    Raises:
        ConfigError: a file cannot be read, or a part that the context names is missing or malformed.
    """
    files = [_Source(path, _load(path)) for path in paths]
    desired = context or next((name for file in files if (name := file.body.get("current-context"))), "")
    if not desired:
        raise ConfigError(f"{paths[0]}: no current-context is set")
    chosen = _named(files, "contexts", "context", desired)
    cluster = _named(files, "clusters", "cluster", str(chosen.body.get("cluster", "")))
    name = str(chosen.body.get("user") or "")
    user = _named(files, "users", "user", name) if name else _Source(paths[0], {})
    server = cluster.body.get("server")
    if not isinstance(server, str) or not server:
        raise ConfigError(f"{cluster.path}: cluster {chosen.body.get('cluster')!r} has no server URL")
    _check_server(server, f"{cluster.path}: server of cluster {chosen.body.get('cluster')!r}")
    return ClientConfig(
        server=server.rstrip("/"),
        credentials=_impersonating(_credentials(user, server), _merged(acting_as, _impersonation(user)), name),
        ca=cluster.material("certificate-authority"),
        ca_file=cluster.file("certificate-authority"),
        verify=not cluster.body.get("insecure-skip-tls-verify", False),
        tls_server_name=cluster.body.get("tls-server-name"),
        namespace=chosen.body.get("namespace") or "default",
    )


@dataclass(frozen=True)
class _Source:
    """A mapping of a kubeconfig, and its file: paths are relative to that file."""

    path: Path
    body: Mapping[str, Any]

    def material(self, name: str) -> bytes | None:
        """`NAME-data` (base64), else the content of the file that `NAME` names."""
        if data := self.body.get(f"{name}-data"):
            try:
                return base64.b64decode(data, validate=True)
            except (binascii.Error, TypeError) as error:
                raise ConfigError(f"{self.path}: {name}-data is not base64") from error
        return None if (file := self.file(name)) is None else _bytes(file)

    def file(self, name: str) -> Path | None:
        """The file of `material`; None where it comes from no file."""
        file = self.body.get(name)
        return self.path.parent / file if file and not self.body.get(f"{name}-data") else None


def _check_server(url: str, where: str) -> None:
    """Raise ConfigError unless `url` is that of a server.

    Args:
        where: the URL's source, in the message.
    """
    try:
        parts = urlsplit(url)
        is_server = parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number, or too large
        is_server = False
    if not is_server:
        raise ConfigError(f"{where} is {url!r}: expected https://HOST[:PORT] with a port from 1 to 65535")


def _load(path: Path) -> Mapping[str, Any]:
    try:
        body = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)  # the safe loader, in C
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML") from error  # the parser's message could quote a secret
    if not isinstance(body, Mapping):
        raise ConfigError(f"{path}: not a kubeconfig")
    return body


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


def _named(files: list[_Source], section: str, field_name: str, name: str) -> _Source:
    for file in files:
        for entry in file.body.get(section) or ():
            if isinstance(entry, Mapping) and entry.get("name") == name:
                return _Source(file.path, entry.get(field_name) or {})
    raise ConfigError(f"{files[0].path}: {section} has no entry {name!r}")


def _credentials(user: _Source, server: str) -> ClientCredentials:
    body = user.body
    chain, key = user.material("client-certificate"), user.material("client-key")
    if bool(chain) != bool(key):
        raise ConfigError(f"{user.path}: a client certificate needs both its chain and its key")
    certificate = ClientCertificate(chain, key) if chain and key else None
    if exec_plugin := body.get("exec"):
        if not isinstance(exec_plugin, Mapping) or not exec_plugin.get("command"):
            raise ConfigError(f"{user.path}: exec names no command")
        return ExecPlugin.from_config(exec_plugin, folder=user.path.parent, server=server)
    if body.get("tokenFile"):
        return TokenFile(user.path.parent / body["tokenFile"], certificate)
    if body.get("auth-provider"):
        raise ConfigError(f"{user.path}: auth-provider was removed from Kubernetes; use an exec plugin")
    return StaticCredentials(AuthInfo(token=body.get("token"), certificate=certificate))


def _impersonation(user: _Source) -> Impersonation:
    """Return the impersonation of a kubeconfig's user."""
    extra = user.body.get("as-user-extra") or {}
    if not isinstance(extra, Mapping):
        raise ConfigError(f"{user.path}: as-user-extra: must map keys to lists of strings")
    return Impersonation(
        _text(user, "as", user.body.get("as")),
        _text(user, "as-uid", user.body.get("as-uid")),
        _texts(user, "as-groups", user.body.get("as-groups")),
        tuple((str(key), value) for key, values in extra.items() for value in _texts(user, "as-user-extra", values)),
    )


def _texts(user: _Source, name: str, values: Any) -> tuple[str, ...]:
    if not isinstance(values or [], list):
        raise ConfigError(f"{user.path}: {name}: must be a list of strings")
    return tuple(_text(user, name, value) for value in values or ())


def _text(user: _Source, name: str, value: Any) -> str:
    if not isinstance(value or "", str):
        raise ConfigError(f"{user.path}: {name}: {value!r} is not a string; write it in quotes")
    return value or ""


def _merged(impersonation: Impersonation, there: Impersonation) -> Impersonation:
    return Impersonation(
        impersonation.user or there.user,
        impersonation.uid or there.uid,
        impersonation.groups or there.groups,
        impersonation.extra or there.extra,
    )


def _impersonating(own: ClientCredentials, other: Impersonation, name: str) -> ClientCredentials:
    """Return the credentials of a user with impersonation; raise with kubectl's message where the parts contradict."""
    if not other.user and other != ANONYMOUS:
        raise ConfigError(f"requesting uid, groups or user-extra for {name} without impersonating a user")
    if not all(value.isprintable() for _, value in other.headers()):
        raise ConfigError(f"user {name}: impersonation headers must not contain line breaks or control characters")
    return own if other == ANONYMOUS else ImpersonatingCredentials(own, other)
