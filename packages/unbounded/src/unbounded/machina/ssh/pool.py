"""Shared connections to bastions: one for all routes through the same bastion with the same key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from unbounded.api.failures import Transient
from unbounded.api.machine import SSHHop
from unbounded.machina.ssh import failures, keys
from unbounded.machina.ssh.keys import HostKey
from unbounded.machina.ssh.model import FirstUse, Hop, HostPort, SshIdentity, SshReason, SshRejected, SshTransient


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
                    if keys.first_use(hop.pins):
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
            (one for one in lines if not one.connection.closed and keys.trusted(hop.pins, one.connection.host_key)),
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
