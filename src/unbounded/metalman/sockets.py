"""Sockets of the servers for network boot."""

from __future__ import annotations

import socket


def udp_socket(address: str, port: int, interface: str | None) -> socket.socket:
    """A UDP socket that does not block; with an interface, what comes over others does not reach it.

    Raises:
        OSError: the port is taken, or the interface is not there.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        if interface is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
        sock.bind((address, port))
    except BaseException:
        sock.close()
        raise
    return sock
