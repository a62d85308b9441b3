"""Answers to IPv6 router solicitations: without one, the iPXE of Debian waits 16 s in each boot."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

SOLICITATION: Final = 133
ADVERTISEMENT: Final = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 0, 0, 0)
"""RFC 4861, section 4.2: nobody's default router, no prefix, no DHCPv6. The kernel fills the checksum in."""
ALL_ROUTERS: Final = "ff02::2"
ALL_NODES: Final = "ff02::1"


@asynccontextmanager
async def router(interface: str) -> AsyncIterator[None]:
    """Answer while inside. Needs root."""
    index = socket.if_nametoindex(interface)
    with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as sock:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        group = socket.inet_pton(socket.AF_INET6, ALL_ROUTERS) + struct.pack("@I", index)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)

        def answer() -> None:
            if sock.recv(2048)[:1] == bytes((SOLICITATION,)):
                sock.sendto(ADVERTISEMENT, (ALL_NODES, 0, 0, index))

        loop = asyncio.get_running_loop()
        loop.add_reader(sock, answer)
        try:
            yield
        finally:
            loop.remove_reader(sock)
