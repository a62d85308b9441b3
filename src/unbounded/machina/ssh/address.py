"""From a host and a port to a connected socket, within a limit."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import aiohappyeyeballs

from unbounded.machina.ssh.model import HostPort
from unbounded.machina.ssh.threads import Threads

NEXT_ADDRESS_S: Final = 0.25  # a name's next address is tried beside one that has not answered for so long (RFC 8305)
RESOLVERS: Final = 16  # a resolver that hangs keeps a thread; these are nobody else's

AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]


class NoSuchName(OSError):
    """The name means no address."""


class Dialer:
    """Connects sockets. Names that nobody waits for any more are left to their threads."""

    def __init__(self) -> None:
        self._threads = Threads(RESOLVERS, "ssh names")

    async def dial(self, at: HostPort) -> socket.socket:
        """A connected, non-blocking socket, which the caller closes. The caller sets the limit.

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
            raise NoSuchName(f"{at.host!r} cannot be a host name") from error
        except socket.gaierror as error:
            if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
                raise NoSuchName(f"the name {at.host} is not known") from error
            raise NoSuchName(f"the name {at.host} could not be looked up: {error.strerror}") from error


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
