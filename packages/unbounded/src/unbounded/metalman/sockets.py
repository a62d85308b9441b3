"""Sockets of the servers for network boot."""

from __future__ import annotations

import socket


def udp_socket(address: str, port: int, interface: str | None) -> socket.socket:
    """Return a non-blocking UDP socket; with an interface, it receives nothing from others.

    Raises:
        OSError: the port is taken, or the interface does not exist.
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
