"""One SSH handshake: the host key is judged, pinned if it is the first, and only then is a key of ours offered."""

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
from unbounded.machina.ssh import failures, trust
from unbounded.machina.ssh.greeting import GREETING_BYTES, Greeting, greeting
from unbounded.machina.ssh.keys import UserKey
from unbounded.machina.ssh.model import FirstUse, Hop, HostPort, SshLimits, Trouble
from unbounded.machina.ssh.trust import HostKey

SIGNATURES: Final = tuple(name for names in trust.KINDS.values() for name in names)
CIPHERS: Final = (
    "aes128-gcm@openssh.com",  # one call into OpenSSL for a packet, where ChaCha20 takes five
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes128-ctr",
    "aes192-ctr",
    "aes256-ctr",
)
CLOSE_S: Final = 2.0
_IGNORE: Final = 2  # SSH_MSG_IGNORE

_NO_KNOWN_HOSTS: Final[tuple[list[str], list[str], list[str]]] = ([], [], [])
"""An empty list of its own would make asyncssh read ~/.ssh/known_hosts, and None would make it trust everybody."""

Connect = Callable[[Callable[[], "Connection"]], Awaitable[object]]
"""Makes the transport of a connection that it gets from the factory; raises SshTransient or SshRejected."""


_Opening = asyncio.Task[tuple[asyncssh.SSHTCPChannel[bytes], asyncssh.SSHTCPSession[bytes]]]


class OtherKey(Exception):
    """The server has shown a key that does not count."""

    def __init__(self, shown: HostKey, has: frozenset[str] | None) -> None:
        super().__init__(shown.fingerprint)
        self.shown = shown
        self.has = has


class Connection(asyncssh.SSHClientConnection):
    """asyncssh's connection, which keeps what the server said first: for the words when that is not SSH."""

    said = b""
    greeted = False

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        if not self.greeted:
            self.said = (self.said + data)[:GREETING_BYTES]
            self.greeted = greeting(self.said) is Greeting.SSH
        super().data_received(data, datatype)

    def send_packet(self, pkttype: int, *args: bytes, handler: Any = None) -> None:
        """All packets but those that say nothing: asyncssh sends one before each, for ciphers that are not offered."""
        if pkttype != _IGNORE:
            super().send_packet(pkttype, *args, handler=handler)

    @property
    def server_algorithms(self) -> frozenset[str] | None:
        """How the server can prove who it is (the second list of its KEXINIT, RFC 4253, section 7.1)."""
        said = getattr(self, "_server_kexinit", b"")
        try:
            start = 17 + 4 + int.from_bytes(said[17:21], "big")
            end = start + 4 + int.from_bytes(said[start : start + 4], "big")
            return frozenset(said[start + 4 : end].decode("ascii").split(",")) if len(said) >= end > 25 else None
        except UnicodeDecodeError:
            return None


class Client(asyncssh.SSHClient):
    """What asyncssh asks in a handshake. `admitted` ends with it."""

    def __init__(self, hop: Hop, key: UserKey, on_first_use: FirstUse) -> None:
        self._hop = hop
        self._key = key
        self._on_first_use = on_first_use
        self._pinned = not trust.first_use(hop.pins)
        self.admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.shown: HostKey | None = None
        self.counts = False
        self.offered = False
        self.pinning = False
        self.not_pinned: Exception | None = None

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:  # noqa: ARG002
        """Called in each key exchange, so also in a connection that has been open for an hour."""
        shown = HostKey(key.get_algorithm(), key.public_data)
        if self.shown is None:
            self.shown = shown
            self.counts = trust.trusted(self._hop.pins, shown)
        return self.counts and shown == self.shown

    async def public_key_auth_requested(self) -> list[asyncssh.SSHKeyPair] | None:
        """The server has proven by now that the key it showed is its own."""
        if self.offered:
            return None
        try:
            await self.pin()
        except Exception as error:  # told to who wants to log in, as it is
            self._end(error)
            return None
        self.offered = True
        return self._key.pairs()

    async def pin(self) -> None:
        """Have the first key that is seen remembered."""
        if not self._pinned and self.shown is not None:
            self.pinning = True
            try:
                await self._on_first_use(self._hop.name, self.shown.fingerprint)
            except Exception as error:
                self.not_pinned = error
                raise
            self._pinned, self.pinning = True, False

    def give_up(self) -> None:
        """Nobody waits any more."""
        if not self.admitted.cancel() and not self.admitted.cancelled():
            self.admitted.exception()

    def auth_completed(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or asyncssh.ConnectionLost("closed"))

    def _end(self, error: Exception | None) -> None:
        if self.admitted.done():
            return
        if error is None:
            self.admitted.set_result(None)
        else:
            self.admitted.set_exception(error)


@dataclass(frozen=True)
class Line:
    """A connection that somebody is logged in to.

    Args:
        below: what it goes through.
        opening: connections that the server is to make and has not answered for.
    """

    hop: Hop
    connection: Connection
    host_key: HostKey
    below: Line | None = None
    opening: set[_Opening] = field(default_factory=set, repr=False, compare=False)

    @property
    def closed(self) -> bool:
        return self.connection.is_closed()

    @property
    def lost_at(self) -> Hop:
        """Whose connection broke, of a line that is closed."""
        return self.below.hop if self.below is not None and self.below.closed else self.hop

    async def forward(self, session: Callable[[], object], at: HostPort) -> None:
        """Have the server connect to another, for a session of asyncssh's.

        What was asked for cannot be taken back. So when this is cancelled the answer is waited for all the same, and
        what comes is closed: asyncssh would keep a channel that nobody knows for as long as the line lasts.

        Raises:
            asyncssh.Error, OSError
        """
        wanted = True

        def made() -> Any:
            return session() if wanted else asyncssh.SSHTCPSession()

        opening = asyncio.create_task(self.connection.create_connection(made, at.host, at.port), name=f"reach {at}")
        self.opening.add(opening)
        opening.add_done_callback(self.opening.discard)
        try:
            await asyncio.wait({opening})
        except asyncio.CancelledError:
            wanted = False
            opening.add_done_callback(_close_opened)
            raise
        opening.result()

    async def close(self) -> None:
        """Say goodbye, and do not wait for long."""
        await hang_up(self.connection)
        if self.opening:  # they fail with the connection
            await asyncio.wait(set(self.opening), timeout=CLOSE_S)


def _close_opened(opening: _Opening) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].abort()


async def hang_up(connection: Connection) -> None:
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
    below: Line | None = None,
) -> Line:
    """Log in over a transport that `connect` makes.

    Args:
        algorithms: how the server may prove who it is, the preferred one first.
    Raises:
        OtherKey: nothing was offered to it.
        SshTransient, SshRejected
        Exception: what `on_first_use` raised, or `connect`.
    """
    client = Client(hop, key, on_first_use)
    connection = Connection(asyncio.get_running_loop(), _options(hop, limits, algorithms, lambda: client))
    line: Line | None = None
    try:
        async with asyncio.timeout(limits.login_s):
            await connect(lambda: connection)
            await client.admitted
            await client.pin()  # where the server asked for no key at all
        if client.shown is None:
            raise asyncssh.KeyExchangeFailed("the server did not say who it is")  # noqa: TRY301
        line = Line(hop, connection, client.shown, below)
    except Failure:
        raise
    except Exception as error:
        if error is client.not_pinned:
            raise
        raise _why(hop, client, connection, key, error, limits, below) from error
    finally:
        if line is None:
            connection.abort()
            client.give_up()
    return line


def _why(
    hop: Hop,
    client: Client,
    connection: Connection,
    key: UserKey,
    error: Exception,
    limits: SshLimits,
    below: Line | None,
) -> Exception:
    """What a handshake that failed means, by how far it had come."""
    slow = isinstance(error, TimeoutError)
    if below is not None and below.closed:
        return failures.broken(below.hop)
    if not connection.greeted:
        return failures.no_greeting(hop, connection.said, closed=not slow)
    if client.shown is not None and not client.counts:
        return OtherKey(client.shown, connection.server_algorithms)
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
    hop: Hop, limits: SshLimits, algorithms: Sequence[str], client: Callable[[], Client]
) -> asyncssh.SSHClientConnectionOptions:
    """
    Raises:
        SshRejected: the user name cannot be one.
    """
    try:
        options = copy.copy(_options_of(hop.user, tuple(algorithms), limits))
    except (asyncssh.Error, ValueError):
        words = f"{failures.who(hop.name, hop.at)}: {hop.user!r} cannot be the name of a user"
        raise failures.failure(Trouble.LOGIN, hop.name, words) from None
    options.host, options.port, options.protocol_factory = hop.at.host, hop.at.port, client
    return options


@lru_cache(maxsize=256)
def _options_of(user: str, algorithms: Sequence[str], limits: SshLimits) -> asyncssh.SSHClientConnectionOptions:
    """Everything said, so that nothing comes from ~/.ssh, an agent or the environment. Made once, as that takes longer
    than the cryptography of a login."""
    _have_a_name()
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
def _have_a_name() -> None:
    """asyncssh asks who runs this process, though nobody is told; in a container the user may have no name."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = "unbounded"
