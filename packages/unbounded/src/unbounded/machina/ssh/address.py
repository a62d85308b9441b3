"""Connect to an SSH server: name resolution, TCP and the limits of both."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import aiohappyeyeballs

from unbounded.machina.ssh.model import HostPort
from unbounded.machina.ssh.threads import DaemonThreads

# start on a name's next address if the previous one has not answered for this long (RFC 8305)
NEXT_ADDRESS_S: Final = 0.25
RESOLVERS: Final = 16  # a resolver that hangs blocks its thread, so resolving has threads of its own

AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]


class NoSuchName(OSError):
    """The name has no address."""


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
