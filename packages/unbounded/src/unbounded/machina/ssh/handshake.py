"""One SSH handshake: verify the host key, pin it on first use, and only then offer a user key."""

from __future__ import annotations

import asyncio
import copy
import getpass
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Final

import asyncssh

from unbounded.api.failures import Failure
from unbounded.machina.ssh import failures, keys
from unbounded.machina.ssh.failures import GREETING_BYTES, Greeting, greeting
from unbounded.machina.ssh.keys import HostKey, UserKey
from unbounded.machina.ssh.model import FirstUse, Hop, HostPort, SshLimits, SshReason

SIGNATURES: Final = tuple(name for names in keys.KINDS.values() for name in names)
CIPHERS: Final = (
    "aes128-gcm@openssh.com",  # one OpenSSL call per packet; ChaCha20 takes five
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes128-ctr",
    "aes192-ctr",
    "aes256-ctr",
)
CLOSE_S: Final = 2.0
_IGNORE: Final = 2  # SSH_MSG_IGNORE

_NO_KNOWN_HOSTS: Final[tuple[list[str], list[str], list[str]]] = ([], [], [])
"""Empty known hosts. With an empty list asyncssh would read ~/.ssh/known_hosts; with None it would trust every server.
"""

Connect = Callable[[Callable[[], "GreetedConnection"]], Awaitable[object]]
"""Makes the transport of the connection that the factory returns; raises SshTransient or SshRejected."""


_Opening = asyncio.Task[tuple[asyncssh.SSHTCPChannel[bytes], asyncssh.SSHTCPSession[bytes]]]


class UntrustedHostKey(Exception):
    """The server showed a host key that is not trusted."""

    def __init__(self, shown: HostKey, has: frozenset[str] | None) -> None:
        super().__init__(shown.fingerprint)
        self.shown = shown
        self.has = has


class GreetedConnection(asyncssh.SSHClientConnection):
    """asyncssh's connection with the server's first bytes, which an error message quotes if the server does not speak
    SSH.
    """

    greeting_bytes = b""
    greeted = False

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        if not self.greeted:
            self.greeting_bytes = (self.greeting_bytes + data)[:GREETING_BYTES]
            self.greeted = greeting(self.greeting_bytes) is Greeting.SSH
        super().data_received(data, datatype)

    def send_packet(self, pkttype: int, *args: bytes, handler: Any = None) -> None:
        """Send all packets but SSH_MSG_IGNORE.

        asyncssh sends one before each packet, to protect ciphers that are not offered here.
        """
        if pkttype != _IGNORE:
            super().send_packet(pkttype, *args, handler=handler)

    @property
    def server_algorithms(self) -> frozenset[str] | None:
        """Algorithms of the server's host keys (the second list of its KEXINIT, RFC 4253, section 7.1)."""
        kexinit = getattr(self, "_server_kexinit", b"")
        try:
            start = 17 + 4 + int.from_bytes(kexinit[17:21], "big")
            end = start + 4 + int.from_bytes(kexinit[start : start + 4], "big")
            return frozenset(kexinit[start + 4 : end].decode("ascii").split(",")) if len(kexinit) >= end > 25 else None
        except UnicodeDecodeError:
            return None


class HandshakeClient(asyncssh.SSHClient):
    """Callbacks of asyncssh in a handshake. `logged_in` completes with the login."""

    def __init__(self, hop: Hop, key: UserKey, on_first_use: FirstUse) -> None:
        self._hop = hop
        self._key = key
        self._on_first_use = on_first_use
        self._pinned = not keys.is_first_use(hop.pins)
        self.logged_in: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.shown: HostKey | None = None
        self.is_trusted = False
        self.offered = False
        self.pinning = False
        self.not_pinned: Exception | None = None

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:  # noqa: ARG002
        """Verify the host key in each key exchange, also in that of a connection that has been open for an hour."""
        shown = HostKey(key.get_algorithm(), key.public_data)
        if self.shown is None:
            self.shown = shown
            self.is_trusted = keys.is_trusted(self._hop.pins, shown)
        return self.is_trusted and shown == self.shown

    async def public_key_auth_requested(self) -> list[asyncssh.SSHKeyPair] | None:
        """Pin the host key, then offer our key. By now the server has proven that it owns the host key."""
        if self.offered:
            return None
        try:
            await self.pin()
        except Exception as error:  # the caller of the handshake raises it unchanged
            self._complete(error)
            return None
        self.offered = True
        return self._key.pairs()

    async def pin(self) -> None:
        """Pin the host key on first use."""
        if not self._pinned and self.shown is not None:
            self.pinning = True
            try:
                await self._on_first_use(self._hop.name, self.shown.fingerprint)
            except Exception as error:
                self.not_pinned = error
                raise
            self._pinned, self.pinning = True, False

    def give_up(self) -> None:
        """Release `logged_in` after the caller has stopped waiting, so that asyncio does not log its error."""
        if not self.logged_in.cancel() and not self.logged_in.cancelled():
            self.logged_in.exception()

    def auth_completed(self) -> None:
        self._complete(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._complete(exc or asyncssh.ConnectionLost("closed"))

    def _complete(self, error: Exception | None) -> None:
        if self.logged_in.done():
            return
        if error is None:
            self.logged_in.set_result(None)
        else:
            self.logged_in.set_exception(error)


@dataclass(frozen=True)
class SshConnection:
    """An established connection: the login was accepted.

    Args:
        through: the connection that carries this one.
        opening: requested forwarded connections that the server has not answered yet.
    """

    hop: Hop
    connection: GreetedConnection
    host_key: HostKey
    through: SshConnection | None = None
    opening: set[_Opening] = field(default_factory=set, repr=False, compare=False)

    @property
    def closed(self) -> bool:
        return self.connection.is_closed()

    @property
    def lost_at(self) -> Hop:
        """Hop whose connection broke, of a closed line."""
        return self.through.hop if self.through is not None and self.through.closed else self.hop

    async def forward(self, session: Callable[[], object], at: HostPort) -> None:
        """Connect a session of asyncssh's to another host through the server.

        A request cannot be withdrawn. So a cancelled call still waits for the answer and closes the new channel:
        asyncssh would keep an unused channel as long as the connection lasts.

        Raises:
            asyncssh.Error, OSError
        """
        desired = True

        def made() -> Any:
            return session() if desired else asyncssh.SSHTCPSession()

        opening = asyncio.create_task(self.connection.create_connection(made, at.host, at.port), name=f"reach {at}")
        self.opening.add(opening)
        opening.add_done_callback(self.opening.discard)
        try:
            await asyncio.wait({opening})
        except asyncio.CancelledError:
            desired = False
            opening.add_done_callback(_close_opened)
            raise
        opening.result()

    async def close(self) -> None:
        """Disconnect, and wait at most CLOSE_S."""
        await hang_up(self.connection)
        if self.opening:  # they fail with the connection
            await asyncio.wait(set(self.opening), timeout=CLOSE_S)


def _close_opened(opening: _Opening) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].abort()


async def hang_up(connection: GreetedConnection) -> None:
    connection.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await connection.wait_closed()
        return
    connection.abort()


async def handshake(
    hop: Hop,
    key: UserKey,
    connect: Connect,
    *,
    algorithms: Sequence[str],
    limits: SshLimits,
    on_first_use: FirstUse,
    through: SshConnection | None = None,
) -> SshConnection:
    """Log in over a transport that `connect` makes.

    Args:
        algorithms: accepted algorithms of host keys, in order of preference.
    Raises:
        UntrustedHostKey: the host key is not trusted, and no user key was offered.
        SshTransient, SshRejected
        Exception: what `on_first_use` raised, or `connect`.
    """
    client = HandshakeClient(hop, key, on_first_use)
    connection = GreetedConnection(asyncio.get_running_loop(), _options(hop, limits, algorithms, lambda: client))
    line: SshConnection | None = None
    try:
        async with asyncio.timeout(limits.login_s):
            await connect(lambda: connection)
            await client.logged_in
            await client.pin()  # the server may accept a login without a key
        if client.shown is None:
            raise asyncssh.KeyExchangeFailed("the server did not identify itself")  # noqa: TRY301
        line = SshConnection(hop, connection, client.shown, through)
    except Failure:
        raise
    except Exception as error:
        if error is client.not_pinned:
            raise
        raise _failure_of(hop, client, connection, key, error, limits, through) from error
    finally:
        if line is None:
            connection.abort()
            client.give_up()
    return line


def _failure_of(
    hop: Hop,
    client: HandshakeClient,
    connection: GreetedConnection,
    key: UserKey,
    error: Exception,
    limits: SshLimits,
    through: SshConnection | None,
) -> Exception:
    """Classify the error of a handshake by the progress of the handshake."""
    slow = isinstance(error, TimeoutError)
    if through is not None and through.closed:
        return failures.broken(through.hop)
    if not connection.greeted:
        return failures.no_greeting(hop, connection.greeting_bytes, closed=not slow)
    if client.shown is not None and not client.is_trusted:
        return UntrustedHostKey(client.shown, connection.server_algorithms)
    if slow:
        agreed, pinning = client.shown is not None, client.pinning
        return failures.too_slow(hop, agreed=agreed, pinning=pinning, limit_s=limits.login_s)
    unproven = not client.offered and isinstance(error, asyncssh.KeyExchangeFailed | asyncssh.ProtocolError)
    if client.shown is None or unproven:
        return failures.not_agreed(hop, error)
    if isinstance(error, asyncssh.Error | OSError):
        return failures.not_admitted(
            hop, error, offered=client.offered, fingerprint=key.fingerprint, hint=key.hint(time.time())
        )
    return error  # our bug


def _options(
    hop: Hop, limits: SshLimits, algorithms: Sequence[str], client: Callable[[], HandshakeClient]
) -> asyncssh.SSHClientConnectionOptions:
    """Build the options of a login.

    Raises:
        SshRejected: the user name is invalid.
    """
    try:
        options = copy.copy(_options_of(hop.user, tuple(algorithms), limits))
    except (asyncssh.Error, ValueError):
        words = f"{failures.hop_text(hop.name, hop.at)}: {hop.user!r} is not a valid user name"
        raise failures.failure(SshReason.LOGIN, hop.name, words) from None
    options.host, options.port, options.protocol_factory = hop.at.host, hop.at.port, client
    return options


@lru_cache(maxsize=256)
def _options_of(user: str, algorithms: Sequence[str], limits: SshLimits) -> asyncssh.SSHClientConnectionOptions:
    """Build options that take nothing from ~/.ssh, an SSH agent or the environment.

    Cached, as this takes longer than the cryptography of a login.
    """
    _ensure_user_name()
    return asyncssh.SSHClientConnectionOptions(
        config=[],
        host="unknown",
        username=user,
        known_hosts=_NO_KNOWN_HOSTS,
        x509_trusted_certs=None,
        x509_trusted_cert_paths=[],
        server_host_key_algs=list(algorithms),
        signature_algs=list(SIGNATURES),
        encryption_algs=list(CIPHERS),
        compression_algs=["none"],
        client_keys=None,
        client_host_keys=None,
        agent_path=None,
        agent_forwarding=False,
        x11_forwarding=False,
        gss_host=None,
        gss_kex=False,
        gss_auth=False,
        host_based_auth=False,
        password_auth=False,
        kbdint_auth=False,
        preferred_auth=("publickey",),
        login_timeout=0,
        keepalive_interval=limits.keepalive_s,
        keepalive_count_max=limits.keepalive_misses,
    )


@cache
def _ensure_user_name() -> None:
    """Provide a local user name: asyncssh requires one, though it is not sent; a container may have none."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = "unbounded"
