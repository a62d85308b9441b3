"""Translation of a server's first bytes, and of errors of asyncssh and the operating system, into SSH failures."""

from __future__ import annotations

import errno
from enum import Enum
from typing import Final

import asyncssh

from unbounded.api.machine import SSHHop
from unbounded.machina.ssh.model import Hop, HostPort, SshReason, SshRejected, SshTransient

# A greeting is lines of the server's choice, then "SSH-2.0-…" (RFC 4253, section 4.2).
GREETING_BYTES: Final = 4096  # upper limit of what is parsed; some servers send a page of text before their version
_VERSIONS: Final = (b"SSH-2.0-", b"SSH-1.99-")
_TOO_MANY: Final = (b"Exceeded MaxStartups", b"Not allowed at this time")  # OpenSSH sends these instead of a version
_MAX_CHARACTERS: Final = 80


class Greeting(Enum):
    SSH = "it is an SSH server"
    TOO_MANY = "an SSH server that has too much to do"
    OTHER = "something else has answered"
    UNFINISHED = "more may come"


def greeting(received: bytes) -> Greeting:
    """Classify the first bytes of a server, at most GREETING_BYTES."""
    *lines, rest = received.split(b"\n")
    if any(line.startswith(_VERSIONS) for line in lines):
        return Greeting.SSH
    if any(line.startswith(_TOO_MANY) for line in (*lines, rest)):
        return Greeting.TOO_MANY
    if any(line.startswith((b"SSH-", b"HTTP/")) for line in lines) or len(received) >= GREETING_BYTES:
        return Greeting.OTHER
    return Greeting.UNFINISHED


def first_line(received: bytes) -> str:
    """Return the first line for a message: short and without control characters."""
    return printable(received.split(b"\n")[0])


def printable(text: bytes | str) -> str:
    """Sanitize text of another machine for a message: one short line of printable ASCII."""
    if isinstance(text, str):
        text = text.encode(errors="replace")
    shown = "".join(
        chr(byte) if 32 <= byte < 127 else " " if byte in b"\t\r\n" else "?" for byte in text[: 4 * _MAX_CHARACTERS]
    )
    shown = " ".join(shown.split())
    return shown if len(shown) <= _MAX_CHARACTERS else shown[: _MAX_CHARACTERS - 1] + "…"


SshFailure = SshTransient | SshRejected

LASTING: Final = frozenset(
    {SshReason.HOST_KEY, SshReason.LOGIN, SshReason.KEY_UNUSABLE, SshReason.PASSPHRASE, SshReason.NO_FORWARDING}
)
"""Causes that persist until the user changes something."""

PROHIBITED: Final = 1  # reason codes of a channel that was not opened (RFC 4254, section 5.1)
UNKNOWN_TYPE: Final = 3
SHORTAGE: Final = 4
SESSION_REFUSED: Final = 0xFFFFFFFF  # asyncssh's code where the server opened the channel but does not run the command

_NO_ROUTE: Final = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN})
# the server's only text where its own kernel sends no packet: no route, or a local firewall
_OPEN_FAILED: Final = "open failed"
_FORWARDING_ERRORS: Final = (  # error texts of OpenSSH's server for a forwarded connection
    ("refused", SshReason.REFUSED),
    ("timed out", SshReason.TIMED_OUT),
    (_OPEN_FAILED, SshReason.NO_ROUTE),
    ("no route", SshReason.NO_ROUTE),
    ("network is unreachable", SshReason.NO_ROUTE),
    ("network is down", SshReason.NO_ROUTE),
    ("host is down", SshReason.NO_ROUTE),
    ("not known", SshReason.NO_NAME),
    ("name resolution", SshReason.NO_NAME),
    ("no address", SshReason.NO_NAME),
)


class NoSuchName(OSError):
    """The name has no address."""


def failure(reason: SshReason, hop: SSHHop, words: str) -> SshFailure:
    return (SshRejected if reason in LASTING else SshTransient)(reason, hop, words)


def copied(failure: SshFailure) -> SshFailure:
    """Copy a failure for another caller that waited for the same connection."""
    if isinstance(failure, SshRejected):
        return SshRejected(failure.reason, failure.hop, str(failure), fingerprint=failure.fingerprint)
    return SshTransient(failure.reason, failure.hop, str(failure))


def hop_text(name: SSHHop, at: HostPort) -> str:
    return f"{name} {at}"


def not_dialled(hop: Hop, error: OSError, *, limit_s: float) -> SshFailure:
    """Return the failure of a TCP connection."""
    place = hop_text(hop.name, hop.at)
    match error:
        case NoSuchName():
            return failure(SshReason.NO_NAME, hop.name, f"{place}: {error}")
        case TimeoutError():
            return failure(SshReason.TIMED_OUT, hop.name, f"{place}: no answer within {limit_s:g} s")
        case ConnectionRefusedError():
            return failure(SshReason.REFUSED, hop.name, f"{place}: connection refused")
        case _:
            reason = SshReason.NO_ROUTE if error.errno in _NO_ROUTE else SshReason.UNREACHABLE
            return failure(reason, hop.name, f"{place}: {(error.strerror or str(error)).lower()}")


def not_forwarded(host: Hop, bastion: Hop, error: asyncssh.ChannelOpenError, *, bastion_lost: bool) -> SshFailure:
    """Return the failure of a connection from the bastion to the host."""
    if bastion_lost:
        return broken(bastion)
    received = printable(error.reason)
    if error.code in (PROHIBITED, UNKNOWN_TYPE):
        place = hop_text(bastion.name, bastion.at)
        words = f"{place}: does not forward to {host.at} ({received}); see AllowTcpForwarding there"
        return failure(SshReason.NO_FORWARDING, bastion.name, words)
    if error.code == SHORTAGE:
        return failure(SshReason.TOO_MANY, bastion.name, f"{hop_text(bastion.name, bastion.at)}: {received}")
    reason = next((found for words, found in _FORWARDING_ERRORS if words in received.lower()), SshReason.UNREACHABLE)
    met = "no route" if received.lower() == _OPEN_FAILED else received.lower()
    return failure(reason, host.name, f"{hop_text(host.name, host.at)}: {met} from the bastion")


def no_greeting(hop: Hop, received: bytes, *, closed: bool) -> SshFailure:
    """Return the failure of a server that did not identify itself as SSH.

    Args:
        closed: the server closed the connection; otherwise it sent nothing until the limit.
    """
    place = hop_text(hop.name, hop.at)
    match greeting(received):
        case Greeting.TOO_MANY:
            return failure(
                SshReason.TOO_MANY, hop.name, f"{place}: has too many logins at once ({first_line(received)})"
            )
        case Greeting.OTHER:
            return failure(SshReason.NOT_SSH, hop.name, f"{place}: sends {first_line(received)!r}, which is not SSH")
        case _ if received:
            return failure(SshReason.NOT_SSH, hop.name, f"{place}: sends {first_line(received)!r} and no SSH version")
        case _ if closed:
            return failure(SshReason.LOST, hop.name, f"{place}: closes the connection without sending anything")
        case _:
            return failure(SshReason.TIMED_OUT, hop.name, f"{place}: accepts the connection, but sends nothing")


def broken(hop: Hop) -> SshFailure:
    """Return the failure of an established connection that broke."""
    return failure(SshReason.LOST, hop.name, f"{hop_text(hop.name, hop.at)}: the connection broke")


def too_slow(hop: Hop, *, agreed: bool, pinning: bool, limit_s: float) -> SshFailure:
    """Return the failure of a login to an SSH server that exceeded the limit."""
    what = "storing its fingerprint" if pinning else "the login" if agreed else "the key exchange"
    words = f"{hop_text(hop.name, hop.at)}: {what} did not end within {limit_s:g} s"
    return failure(SshReason.TIMED_OUT, hop.name, words)


def not_agreed(hop: Hop, error: BaseException) -> SshFailure:
    """Return the failure of a key exchange, before the server proved its identity."""
    place = hop_text(hop.name, hop.at)
    if isinstance(error, asyncssh.KeyExchangeFailed):
        return failure(SshReason.NOT_SSH, hop.name, f"{place}: no common algorithm: {printable(error.reason)}")
    if isinstance(error, asyncssh.DisconnectError) and not isinstance(error, asyncssh.ConnectionLost):
        return failure(SshReason.NOT_SSH, hop.name, f"{place}: the key exchange failed: {printable(error.reason)}")
    return failure(SshReason.LOST, hop.name, f"{place}: the connection broke during the key exchange")


def not_admitted(hop: Hop, error: BaseException, *, offered: bool, fingerprint: str, hint: str) -> SshFailure:
    """Return the failure of a login to a server whose host key is trusted.

    Args:
        offered: the key was shown to the server.
        fingerprint: of its public part.
        hint: a possible fault of the key.
    """
    place = hop_text(hop.name, hop.at)
    refused = isinstance(error, asyncssh.PermissionDenied | asyncssh.IllegalUserName)
    # OpenSSH ends a login for good with a protocol error
    too_often = isinstance(error, asyncssh.ProtocolError) and offered
    if refused and not offered:
        words = f"{place}: does not accept logins of {hop.user} with a key"
        return failure(SshReason.LOGIN, hop.name, words)
    if refused or too_often:
        secret = hop.identity.version.partition("@")[0]
        words = f"{place}: rejects the key {fingerprint} of Secret {secret} for user {hop.user}{hint}"
        return SshRejected(SshReason.LOGIN, hop.name, words, fingerprint=fingerprint)
    return failure(SshReason.LOST, hop.name, f"{place}: the connection broke during the login")


def host_key_changed(hop: Hop, *, shown: str, desired: str) -> SshRejected:
    """Return the failure of a host key that differs from the pinned one: another server may answer at this address."""
    words = (
        f"{hop_text(hop.name, hop.at)}: presents the host key {shown}, but {desired} is pinned; nothing was sent to it"
    )
    return SshRejected(SshReason.HOST_KEY, hop.name, words, fingerprint=shown)
