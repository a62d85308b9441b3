"""Limits on clients' connections, so that no client keeps the others out.

A connection counts as authenticated once its client has presented a certificate that the server trusts, or has sent a
request with a valid token. Until then the server may drop it in favour of a new connection. Authenticated connections
are never dropped, and half of the limit is reserved for them.

The address with the most unauthenticated connections loses its oldest one first, so that a flood hits the host that it
comes from. The heads of requests have a time limit, with one timer for all connections.

This module only decides; the listener accepts and closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any, Final

SITE_PREFIX: Final = 64  # bits of an IPv6 address that a host cannot choose


class HeadDeadlines:
    """Close connections whose clients do not send a head in time. For one event loop."""

    def __init__(self, within_s: float) -> None:
        self.expired = 0
        self._within_s = within_s
        self._owed: dict[Any, tuple[float, Callable[[], object]]] = {}  # all have the same limit: the first is next
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, connection: object, expire: Callable[[], object]) -> None:
        """Call `expire` unless the head arrives in time; a running limit is not extended."""
        if connection in self._owed:
            return
        loop = asyncio.get_running_loop()
        self._owed[connection] = loop.time() + self._within_s, expire
        if self._timer is None:
            self._timer = loop.call_later(self._within_s, self._expire)

    def end(self, connection: object) -> None:
        """Stop the limit: the head has arrived, or the connection has ended."""
        self._owed.pop(connection, None)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._owed:
            connection, (ends_at, expire) = next(iter(self._owed.items()))
            if ends_at > loop.time():
                self._timer = loop.call_at(ends_at, self._expire)
                return
            del self._owed[connection]
            self.expired += 1
            expire()


@dataclass(eq=False, slots=True)
class TrackedConnection:
    """One connection, from its acceptance to its end.

    Args:
        drop: closes it at once; the owner sets it.
    """

    peer: _Peer
    limits: ConnectionLimits
    drop: Callable[[], object] = bool
    is_authenticated: bool = False
    is_open: bool = True

    def authenticate(self) -> None:
        """Mark the connection as authenticated."""
        if self.is_open and not self.is_authenticated:
            self.is_authenticated = True
            self.limits._leave_waiting(self)

    def release(self) -> None:
        """Release the connection's share of the limits; may be called again."""
        if self.is_open:
            self.is_open = False
            self.limits._remove(self)


@dataclass(eq=False, slots=True)
class _Peer:
    """The connections of one address; the unauthenticated ones by age."""

    address: str
    total: int = 0
    waiting: dict[TrackedConnection, None] = field(default_factory=dict)


class ConnectionLimits:
    """Count connections, and choose the one to drop.

    Args:
        total: connections at once.
        per_address: connections of one address, 0 for three quarters of `total`.
    """

    def __init__(self, total: int, per_address: int = 0) -> None:
        self.total = total
        self.per_address = min(per_address or max(1, total * 3 // 4), total)
        self.unauthenticated = max(1, total // 2)
        self.unauthenticated_per_address = max(1, min(self.unauthenticated // 2, self.per_address))
        self.count = 0
        self.dropped = 0  # in favour of new connections
        self.refused = 0
        self._waiting = 0
        self._peers: dict[str, _Peer] = {}

    def admit(self, host: str) -> TrackedConnection | None:
        """Admit a connection from `host`, if need be in place of an unauthenticated one.

        Returns:
            None if authenticated connections use the whole limit, or that of the address.
        """
        address = _address(host)
        peer = self._peers.get(address) or _Peer(address)
        if not (self._makes_room_at(peer) and self._makes_room()):
            self.refused += 1
            return None
        admitted = TrackedConnection(peer, self)
        self._peers[address] = peer
        peer.waiting[admitted] = None
        peer.total += 1
        self.count += 1
        self._waiting += 1
        return admitted

    def _makes_room_at(self, peer: _Peer) -> bool:
        is_full = peer.total >= self.per_address or len(peer.waiting) >= self.unauthenticated_per_address
        return not is_full or self._drop_oldest(peer)

    def _makes_room(self) -> bool:
        if self.count < self.total and self._waiting < self.unauthenticated:
            return True
        return self._drop_oldest(max(self._peers.values(), key=lambda peer: len(peer.waiting)))

    def _drop_oldest(self, peer: _Peer) -> bool:
        """Drop the oldest unauthenticated connection of an address, if there is one."""
        oldest = next(iter(peer.waiting), None)
        if oldest is None:
            return False
        self.dropped += 1
        oldest.release()
        oldest.drop()
        return True

    def _leave_waiting(self, one: TrackedConnection) -> None:
        del one.peer.waiting[one]
        self._waiting -= 1

    def _remove(self, one: TrackedConnection) -> None:
        if not one.is_authenticated:
            self._leave_waiting(one)
        one.peer.total -= 1
        self.count -= 1
        if not one.peer.total:
            self._peers.pop(one.peer.address, None)


def _address(host: str) -> str:
    """Return the part of an address that its host cannot choose."""
    parsed = ip_address(host.partition("%")[0])
    if not isinstance(parsed, IPv6Address):
        return host
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((parsed, SITE_PREFIX), strict=False))
