"""SSH as the rest of machina sees it: routes, identities, failures and the operations of a connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv6Address, ip_address
from typing import Final, Protocol

from unbounded.api.failures import Rejected, Transient, Uncertain
from unbounded.api.machine import SSHHop
from unbounded.kube.logs import SecretStr


@dataclass(frozen=True)
class HostPort:
    """Address of an SSH server; an IPv6 address without brackets in `host`."""

    host: str
    port: int = 22

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def host_port(text: str) -> HostPort:
    """Parse `ssh.host`: a name or an address, with or without a port.

    Raises:
        ValueError: with a message for the user.
    """
    if _is_ipv6(text):
        return HostPort(text)
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or not _is_ipv6(host) or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not [IPv6 address]:port")
        return HostPort(host, _port(text, rest[1:])) if rest else HostPort(host)
    host, colon, port = text.partition(":")
    if not host or ":" in port or "[" in host or "]" in host:
        raise ValueError(f"{text!r} is neither host nor host:port; an IPv6 address with a port is [address]:port")
    return HostPort(host, _port(text, port)) if colon else HostPort(host)


def _port(text: str, port: str) -> int:
    if not port.isascii() or not port.isdigit() or len(port) > 5 or not 1 <= int(port) <= 65535:
        raise ValueError(f"{text!r}: the port {port!r} is not a number from 1 to 65535")
    return int(port)


def _is_ipv6(text: str) -> bool:
    try:
        return isinstance(ip_address(text), IPv6Address)
    except ValueError:
        return False


LONGEST_KEY: Final = 64 * 1024
_PRIVATE: Final = "PRIVATE KEY-----"
_PUTTY: Final = "PuTTY-User-Key-File"
_PUBLIC: Final = ("ssh-", "ecdsa-", "sk-")


def check_private_key(text: str) -> None:
    """Check that the text has the form of a private key.

    Raises:
        ValueError: it has not. The message continues after the name of the field and quotes nothing of the text.
    """
    begin = text.lstrip()
    if not begin:
        raise ValueError("is empty")
    if len(text) > LONGEST_KEY:
        raise ValueError(f"exceeds {LONGEST_KEY} characters, the limit for private keys")
    if begin.startswith(_PUTTY):
        raise ValueError("is a PuTTY key; convert it with `puttygen KEY -O private-openssh`")
    if _PRIVATE not in text:
        what = "is a public key" if begin.startswith(_PUBLIC) else "contains no private key"
        raise ValueError(f"{what}; it must be a private key of OpenSSH, or in PEM")


@dataclass(frozen=True)
class SshIdentity:
    """Login data of a Secret.

    Args:
        version: namespace/name@resourceVersion of the Secret, the key under which a refusal is remembered.
        certificate: an OpenSSH certificate, one line.
    """

    private_key: SecretStr
    version: str
    passphrase: SecretStr | None = None
    certificate: SecretStr | None = None


@dataclass(frozen=True)
class HostKeyPins:
    """Trusted host keys of a server.

    With `keys` (spec, as "ssh-ed25519 AAAA…") only these are trusted; else `fingerprint` (status, SHA256:…); else the
    first key that the server shows.
    """

    keys: tuple[str, ...] = ()
    fingerprint: str | None = None


@dataclass(frozen=True)
class Hop:
    name: SSHHop
    at: HostPort
    user: str
    identity: SshIdentity
    pins: HostKeyPins = HostKeyPins()


@dataclass(frozen=True)
class SshRoute:
    host: Hop
    bastion: Hop | None = None


class SshReason(StrEnum):
    """Causes of SSH failures before a command is sent: reasons of the conditions SSHReachable and Provisioning."""

    NO_NAME = "NameNotResolved"
    UNREACHABLE = "Unreachable"
    NO_ROUTE = "NoRoute"
    REFUSED = "ConnectionRefused"
    TIMED_OUT = "TimedOut"
    NOT_SSH = "NotSSH"
    HOST_KEY = "HostKeyChanged"
    LOGIN = "CredentialsRefused"
    KEY_UNUSABLE = "SecretUnusable"
    PASSPHRASE = "PassphraseWrong"  # noqa: S105  # a word
    LOST = "ConnectionLost"
    NO_FORWARDING = "ForwardingProhibited"
    TOO_MANY = "TooManySessions"


class SshTransient(Transient):
    """A failure that may pass. The message names the address and nothing secret."""

    def __init__(self, reason: SshReason, hop: SSHHop, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.hop = hop


class SshRejected(Rejected):
    """A failure that persists until the user changes something. For a changed host key the message names both
    fingerprints.

    Args:
        fingerprint: of the refused public key, ours by the server or the server's by us; empty if no key was refused.
    """

    def __init__(self, reason: SshReason, hop: SSHHop, message: str, *, fingerprint: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.hop = hop
        self.fingerprint = fingerprint


class SshUncertain(Uncertain):
    """The connection broke after a command was sent: the host may have run it."""


@dataclass(frozen=True)
class SshCommandResult:
    """Result of a remote command.

    Args:
        status: None when a signal ended the command.
        stdout, stderr: the last bytes of each, at most `keep`.
        dropped: number of the bytes before those.
    """

    status: int | None
    stdout: bytes
    stderr: bytes
    dropped: int = 0


class Shell(Protocol):
    """An established connection to a host."""

    async def run(self, command: str, *, stdin: bytes = b"", limit_s: float, keep: int = 65536) -> SshCommandResult:
        """Run a command and return its result.

        Raises:
            SshTransient: the command was not sent.
            SshUncertain: the connection broke, or the limit passed, after it was sent.
        """
        ...

    def follow(self, command: str, *, limit_s: float, silence_s: float) -> AsyncIterator[bytes]:
        """Yield lines of the command's stdout, each at most 4 KiB, until the command ends.

        Raises:
            SshUncertain: the connection broke, or was silent for too long.
        """
        ...


FirstUse = Callable[[SSHHop, str], Awaitable[None]]
"""(hop, fingerprint): pin the key durably. Awaited before a user key is offered; an exception ends the login."""


class Ssh(Protocol):
    async def probe(self, route: SshRoute, *, on_first_use: FirstUse) -> None:
        """Check that the host's SSH port answers as SSH, through the bastion if there is one, without a login to the
        host.

        Raises:
            SshTransient, SshRejected
        """
        ...

    def login(self, route: SshRoute, *, on_first_use: FirstUse) -> AbstractAsyncContextManager[Shell]:
        """Log in; the connection is closed with the context. Raises SshTransient, SshRejected."""
        ...

    @property
    def connections(self) -> int:
        """Number of open logins to hosts and bastions."""
        ...

    async def close(self) -> None:
        """Close connections that stay open between logins, such as those to bastions."""
        ...


@dataclass(frozen=True)
class SshLimits:
    probe_s: float = 10
    connect_s: float = 30
    login_s: float = 30
    keepalive_s: float = 15
    keepalive_misses: int = 3
    bastion_idle_s: float = 60
    handshakes: int = 64
    handshakes_per_address: int = 8
