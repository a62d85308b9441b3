"""The kernel's table of IPv4 neighbours (ARP): the MAC behind an address."""

from __future__ import annotations

import fcntl
import socket
import struct
from typing import Final, Self

SIOCGARP: Final = 0x8954
COMPLETE: Final = 0x2  # ATF_COM
ETHERNET: Final = 1
ARP_REQUEST: Final = struct.Struct("HH4s8sH14sI16s16s")  # struct arpreq: two sockaddr, flags, netmask, device


class NeighbourTable:
    """Lookup in the kernel's table: one address a call, without a cache that could be outdated.

    Args:
        interface: interface whose neighbours count.
    """

    def __init__(self, interface: str) -> None:
        self._device = interface.encode()[:15]
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def __call__(self, address: str) -> str | None:
        """Return the MAC behind an address, in lower case; None if the kernel has no entry."""
        request = ARP_REQUEST.pack(
            socket.AF_INET, 0, socket.inet_aton(address), bytes(8), 0, bytes(14), 0, bytes(16), self._device
        )
        try:
            answer = fcntl.ioctl(self._socket, SIOCGARP, request)
        except OSError:  # ENXIO: no entry; ENODEV: the interface is gone
            return None
        _, _, _, _, kind, hardware, flags, _, _ = ARP_REQUEST.unpack(answer)
        return hardware[:6].hex(":") if kind == ETHERNET and flags & COMPLETE else None
