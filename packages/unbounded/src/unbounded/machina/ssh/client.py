"""SSH client of machina: routes, pins, keys and limits combined, and connections to bastions, which routes share."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar, cast
from weakref import WeakSet, WeakValueDictionary

import aiohappyeyeballs
import asyncssh

from unbounded.api.failures import Transient
from unbounded.api.machine import SSHHop
from unbounded.kube.tasks import DaemonThreads
from unbounded.kube.tracing import SpanKind, span
from unbounded.machina.ssh import failures, keys
from unbounded.machina.ssh.failures import GREETING_BYTES, Greeting, NoSuchName, greeting
from unbounded.machina.ssh.handshake import GreetedConnection, SshConnection, UntrustedHostKey, handshake
from unbounded.machina.ssh.keys import HostKey, KeyRing, UserKey
from unbounded.machina.ssh.model import (
    FirstUse,
    Hop,
    HostPort,
    Shell,
    SshIdentity,
    SshLimits,
    SshReason,
    SshRejected,
    SshRoute,
    SshTransient,
)
from unbounded.machina.ssh.shell import RemoteShell

# start on a name's next address if the previous one has not answered for this long (RFC 8305)
NEXT_ADDRESS_S: Final = 0.25
RESOLVERS: Final = 16  # a resolver that hangs blocks its thread, so resolving has threads of its own

AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]


class Dialer:
    """Connector of TCP sockets. A cancelled name lookup runs on in its thread."""

    def __init__(self) -> None:
        self._threads = DaemonThreads(RESOLVERS, "ssh names")

    async def dial(self, at: HostPort) -> socket.socket:
        """Return a connected, non-blocking socket. The caller closes the socket and sets the time limit.

        Raises:
            NoSuchName
            OSError: of the last address that was tried.
        """
        found = await self._addresses(at)
        connected = await aiohappyeyeballs.start_connection(
            found, happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1, loop=asyncio.get_running_loop()
        )
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    async def _addresses(self, at: HostPort) -> Sequence[AddressInfo]:
        flags = socket.AI_NUMERICHOST if _is_address(at.host) else 0
        look_up = partial(socket.getaddrinfo, at.host, at.port, type=socket.SOCK_STREAM, flags=flags)
        try:
            if flags:
                return look_up()
            return await self._threads.run(look_up)
        except UnicodeError as error:
            raise NoSuchName(f"{at.host!r} is not a valid host name") from error
        except socket.gaierror as error:
            if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
                raise NoSuchName(f"host name {at.host} does not exist") from error
            raise NoSuchName(f"cannot resolve host name {at.host}: {error.strerror}") from error


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class GreetingReceiver(asyncio.Protocol, asyncssh.SSHTCPSession[bytes]):
    """Receiver of a server's greeting over a connection of its own or of a bastion.

    Attributes:
        completed: completes when the server has sent enough or closed the connection.
    """

    def __init__(self) -> None:
        self.received = b""
        self.closed = False
        self.completed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    @property
    def is_ssh(self) -> bool:
        return greeting(self.received) is Greeting.SSH

    def connection_made(self, transport: object) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes, datatype: int | None = None) -> None:  # noqa: ARG002
        self.received = (self.received + data)[:GREETING_BYTES]
        if greeting(self.received) is not Greeting.UNFINISHED:
            self._complete()

    def eof_received(self) -> bool:
        self.closed = True
        self._complete()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.closed = True
        self._complete()

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _complete(self) -> None:
        if not self.completed.done():
            self.completed.set_result(None)


class HandshakeLimit:
    """Limit in total and per address. Handshakes that wait for a busy address do not block others."""

    def __init__(self, in_all: int, at_one: int) -> None:
        self._all = asyncio.Semaphore(in_all)
        self._at_one = at_one
        self._at: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def acquire(self, address: Hashable) -> AsyncIterator[None]:
        """Acquire a turn for the duration of the block."""
        at = self._at.get(address)
        if at is None:
            at = self._at[address] = asyncio.Semaphore(self._at_one)
        async with at, self._all:
            yield


CACHED_KEY_TYPES: Final = 8192  # pinned keys, by fingerprint

asyncssh.set_log_level(logging.WARNING)  # at lower levels asyncssh logs user names and whole commands


class SshClient:
    """SSH client of a process. The caller closes it."""

    def __init__(self, limits: SshLimits | None = None) -> None:
        self.limits = limits or SshLimits()
        self._dialer = Dialer()
        self._keys = KeyRing()
        self._handshake_limit = HandshakeLimit(self.limits.handshakes, self.limits.handshakes_per_address)
        self._bastions = BastionPool(self._log_in_directly, idle_s=self.limits.bastion_idle_s)
        self._key_types: OrderedDict[str, str] = OrderedDict()
        self._open: WeakSet[GreetedConnection] = WeakSet()

    @property
    def connections(self) -> int:
        return sum(not connection.is_closed() for connection in self._open)

    async def close(self) -> None:
        await self._bastions.close()
        self._keys.forget()

    async def probe(self, route: SshRoute, *, on_first_use: FirstUse) -> None:
        if route.bastion is None:
            await self._listen(route.host, None)
            return
        async with self._bastions.acquire(route.bastion, on_first_use) as line:
            await self._listen(route.host, line)

    @asynccontextmanager
    async def login(self, route: SshRoute, *, on_first_use: FirstUse) -> AsyncIterator[Shell]:
        if route.bastion is None:
            line = await self._log_in_directly(route.host, on_first_use)
            try:
                yield RemoteShell(line)
            finally:
                await line.close()
            return
        async with self._bastions.acquire(route.bastion, on_first_use) as bastion:
            line = await self._log_in(route.host, on_first_use, bastion)
            try:
                yield RemoteShell(line)
            finally:
                await line.close()

    async def _log_in_directly(self, hop: Hop, on_first_use: FirstUse) -> SshConnection:
        return await self._log_in(hop, on_first_use, None)

    async def _log_in(self, hop: Hop, on_first_use: FirstUse, through: SshConnection | None) -> SshConnection:
        with span("SSH login", kind=SpanKind.CLIENT, server_address=hop.at.host, server_port=hop.at.port):
            return await self._authenticate(hop, on_first_use, through)

    async def _authenticate(self, hop: Hop, on_first_use: FirstUse, through: SshConnection | None) -> SshConnection:
        """Log in to a server, which may show several host keys before a trusted one."""
        key = await self._keys.read(hop.identity, hop.name)
        async with self._handshake_limit.acquire((through.hop.at if through else None, hop.at)):
            algorithms = keys.algorithms(hop.pins, known_kind=self._key_types.get(hop.pins.fingerprint or ""))
            untrusted: list[UntrustedHostKey] = []
            while True:
                try:
                    line = await self._handshake(hop, key, on_first_use, through, algorithms)
                except UntrustedHostKey as other:
                    untrusted.append(other)
                    shown = [one.shown.kind for one in untrusted]
                    algorithms = keys.other_algorithms(hop.pins, shown=shown, has=other.has)
                    if not algorithms:
                        raise failures.host_key_changed(
                            hop, shown=untrusted[0].shown.fingerprint, desired=keys.pinned_text(hop.pins)
                        ) from None
                else:
                    self._cache_key_type(line)
                    self._open.add(line.connection)
                    return line

    async def _handshake(
        self, hop: Hop, key: UserKey, on_first_use: FirstUse, through: SshConnection | None, algorithms: Sequence[str]
    ) -> SshConnection:
        async def connect(connection: Callable[[], GreetedConnection]) -> None:
            if through is None:
                await asyncio.get_running_loop().create_connection(connection, sock=taken.pop())
            else:
                await self._forward(hop, through, connection, self.limits.connect_s)

        taken = [await self._dial(hop, self.limits.connect_s)] if through is None else []
        try:
            return await handshake(
                hop, key, connect, algorithms=algorithms, limits=self.limits, on_first_use=on_first_use, through=through
            )
        finally:
            for left in taken:
                left.close()

    async def _dial(self, hop: Hop, limit_s: float) -> socket.socket:
        try:
            async with asyncio.timeout(limit_s):
                return await self._dialer.dial(hop.at)
        except OSError as error:  # TimeoutError is an OSError
            raise failures.not_dialled(hop, error, limit_s=limit_s) from error

    async def _forward(self, hop: Hop, through: SshConnection, session: Callable[[], object], limit_s: float) -> None:
        """Connect to the host through the bastion."""
        try:
            async with asyncio.timeout(limit_s):
                await through.forward(session, hop.at)
        except asyncssh.ChannelOpenError as error:
            raise failures.not_forwarded(hop, through.hop, error, bastion_lost=through.closed) from error
        except TimeoutError as error:
            raise failures.not_dialled(hop, error, limit_s=limit_s) from error
        except (asyncssh.Error, OSError) as error:
            raise failures.broken(through.hop) from error

    async def _listen(self, hop: Hop, through: SshConnection | None) -> None:
        """Connect and wait for the greeting of an SSH server.

        Raises:
            SshTransient, SshRejected: no connection within `probe_s`, or no SSH greeting within a second `probe_s`.
        """
        listener, limit_s = GreetingReceiver(), self.limits.probe_s
        if through is None:
            connected = await self._dial(hop, limit_s)
            await asyncio.get_running_loop().create_connection(lambda: listener, sock=connected)
        else:
            await self._forward(hop, through, lambda: listener, limit_s)
        try:
            async with asyncio.timeout(limit_s):
                await listener.completed
        except TimeoutError:
            pass
        finally:
            listener.hang_up()
        if through is not None and through.closed:
            raise failures.broken(through.hop)
        if not listener.is_ssh:
            raise failures.no_greeting(hop, listener.received, closed=listener.closed)

    def _cache_key_type(self, line: SshConnection) -> None:
        """Remember the type of a host key by its fingerprint, so that the next login requests this type first."""
        self._key_types[line.host_key.fingerprint] = line.host_key.kind
        self._key_types.move_to_end(line.host_key.fingerprint)
        while len(self._key_types) > CACHED_KEY_TYPES:
            self._key_types.popitem(last=False)


class BastionConnection(Protocol):
    """Interface of a connection to a bastion."""

    @property
    def hop(self) -> Hop: ...

    @property
    def host_key(self) -> HostKey: ...

    @property
    def closed(self) -> bool: ...

    async def close(self) -> None: ...


L = TypeVar("L", bound=BastionConnection)

Key = tuple[HostPort, str, SshIdentity]


@dataclass(eq=False)
class _Shared(Generic[L]):
    key: Key
    connection: L
    users: int = 0
    idle: asyncio.TimerHandle | None = None


@dataclass(eq=False)
class _Opening:
    """A login that other callers wait for.

    They share `failed` if they have the same pins or if the pins do not matter to the failure.
    """

    pins: object
    over: asyncio.Event = field(default_factory=asyncio.Event)
    failed: SshTransient | SshRejected | None = None

    def failed_for(self, hop: Hop) -> SshTransient | SshRejected | None:
        if self.failed is None or (self.failed.reason is SshReason.HOST_KEY and self.pins != hop.pins):
            return None
        return failures.copied(self.failed)


class BastionPool(Generic[L]):
    """Pool of connections to bastions. The caller closes it. An unused connection is closed after `idle_s`.

    Args:
        open_line: logs in to a bastion; raises SshTransient, SshRejected, or what the first use raised.
    """

    def __init__(self, open_line: Callable[[Hop, FirstUse], Awaitable[L]], *, idle_s: float) -> None:
        self._open = open_line
        self._idle_s = idle_s
        self._connections: dict[Key, list[_Shared[L]]] = {}
        self._openings: dict[Key, _Opening] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    @asynccontextmanager
    async def acquire(self, hop: Hop, on_first_use: FirstUse) -> AsyncIterator[L]:
        """Share a connection to the bastion with all callers that have the same address, user and key.

        The host key of the shared connection satisfies the pins of `hop`.

        Raises:
            SshTransient, SshRejected
            Exception: what `on_first_use` raised.
        """
        shared = await self._shared(hop, on_first_use)
        try:
            yield shared.connection
        finally:
            self._release(shared)

    async def _shared(self, hop: Hop, on_first_use: FirstUse) -> _Shared[L]:
        key = (hop.at, hop.user, hop.identity)
        while True:
            if self._closed:
                raise Transient("SSH is shutting down")
            if (shared := self._usable(key, hop)) is not None:
                self._retain(shared)
                try:
                    if keys.is_first_use(hop.pins):
                        await on_first_use(hop.name, shared.connection.host_key.fingerprint)
                except BaseException:
                    self._release(shared)
                    raise
                return shared
            opening = self._openings.get(key)
            if opening is None:
                return await self._log_in(key, hop, on_first_use)
            await opening.over.wait()
            if (failed := opening.failed_for(hop)) is not None:
                raise failed

    def _usable(self, key: Key, hop: Hop) -> _Shared[L] | None:
        lines = self._connections.get(key, ())
        return next(
            (one for one in lines if not one.connection.closed and keys.is_trusted(hop.pins, one.connection.host_key)),
            None,
        )

    async def _log_in(self, key: Key, hop: Hop, on_first_use: FirstUse) -> _Shared[L]:
        """Log in while other callers wait, so that not all log in at once to a bastion that is down."""
        opening = self._openings[key] = _Opening(hop.pins)
        own: list[Exception] = []

        async def pin(name: SSHHop, fingerprint: str) -> None:
            try:
                await on_first_use(name, fingerprint)
            except Exception as error:
                own.append(error)
                raise

        try:
            line = await self._open(hop, pin)
        except (SshTransient, SshRejected) as failed:
            if failed not in own:  # an error of one caller's pinning does not concern the others
                opening.failed = failed
            raise
        finally:
            del self._openings[key]
            opening.over.set()
        if self._closed:
            await line.close()
            raise Transient("SSH is shutting down")
        shared = _Shared(key, line)
        self._connections.setdefault(key, []).append(shared)
        self._retain(shared)
        return shared

    def _retain(self, shared: _Shared[L]) -> None:
        shared.users += 1
        if shared.idle is not None:
            shared.idle.cancel()
            shared.idle = None

    def _release(self, shared: _Shared[L]) -> None:
        shared.users -= 1
        if shared.users:
            return
        if self._closed or shared.connection.closed:
            self._evict(shared)
        else:
            shared.idle = asyncio.get_running_loop().call_later(self._idle_s, self._evict, shared)

    def _evict(self, shared: _Shared[L]) -> None:
        """Remove a connection from the pool and close it."""
        if shared.idle is not None:
            shared.idle.cancel()
        lines = self._connections.get(shared.key, [])
        if shared not in lines:
            return
        lines.remove(shared)
        if not lines:
            del self._connections[shared.key]
        task = asyncio.get_running_loop().create_task(shared.connection.close(), name="close a bastion's connection")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all connections, also those in use."""
        self._closed = True
        for lines in list(self._connections.values()):
            for shared in list(lines):
                self._evict(shared)
        if self._closing:
            await asyncio.wait(set(self._closing))
