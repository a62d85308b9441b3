"""SSH client of machina: routes, pins, keys, bastions and limits combined."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, cast
from weakref import WeakSet, WeakValueDictionary

import aiohappyeyeballs
import asyncssh

from unbounded.kube.tasks import DaemonThreads
from unbounded.machina.ssh import failures, keys
from unbounded.machina.ssh.failures import GREETING_BYTES, Greeting, NoSuchName, greeting
from unbounded.machina.ssh.handshake import GreetedConnection, SshConnection, UntrustedHostKey, handshake
from unbounded.machina.ssh.keys import KeyRing, UserKey
from unbounded.machina.ssh.model import FirstUse, Hop, HostPort, Shell, SshLimits, SshRoute
from unbounded.machina.ssh.pool import BastionPool
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
