"""Ports of loopback for servers that get their port before they start."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from typing import Final

PORTS: Final = range(10_000, 20_000)  # below those of outgoing connections, and those of the lab's BMCs


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port that is free now; no outgoing connection takes it before it is used."""
    return next(_free_ports(address, 1))


def free_ports(count: int) -> list[int]:
    """Return so many different ones."""
    found = _free_ports("127.0.0.1", 1)
    return [next(found) for _ in range(count)]


def two_free_ports() -> int:
    """Return the first one of two neighbours."""
    return next(_free_ports("127.0.0.1", 2))


def _free_ports(address: str, width: int) -> Iterator[int]:
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if all(_is_free(address, port + offset) for offset in range(width)):
            yield port


def _is_free(address: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as one:
        try:
            one.bind((address, port))
        except OSError:
            return False
    return True
