"""A network segment of a test's own: a namespace with a bridge, in which the test itself lives while it lasts."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

CLONE_NEWNET: Final = 0x40000000
OWN: Final = "/proc/thread-self/ns/net"


@dataclass(frozen=True, slots=True)
class Segment:
    """The bridge that machines are plugged into, and this side's address on it."""

    bridge: str = "sw0"
    address: str = "10.88.0.1"
    length: int = 24

    def plug(self, tap: str) -> None:
        """Make a port for a machine."""
        ip(f"tuntap add {tap} mode tap")
        ip(f"link set {tap} master {self.bridge} up")

    def unplug(self, tap: str) -> None:
        ip(f"link del {tap}")


@contextmanager
def segment() -> Iterator[Segment]:
    """Move this thread, and its children, into a new namespace with loopback and the bridge. Needs root.

    The namespace has no name: it is gone when its last process has ended, however the test ends.
    """
    made = Segment()
    before = os.open(OWN, os.O_RDONLY)
    try:
        _checked(_libc().unshare(CLONE_NEWNET))
        try:
            ip("link set lo up")
            ip(f"link add {made.bridge} type bridge")
            ip(f"addr add {made.address}/{made.length} dev {made.bridge}")
            ip(f"link set {made.bridge} up")
            yield made
        finally:
            _checked(_libc().setns(before, CLONE_NEWNET))
    finally:
        os.close(before)


def ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True, timeout=20)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
