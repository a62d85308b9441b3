"""Two network namespaces with a link: servers in one, clients in the other."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

SERVER: Final = "10.55.0.1"
CLIENT: Final = "10.55.0.2"
CLIENTS: Final = "10.55.16.0/20"  # all addresses of the client side


@dataclass(frozen=True)
class Net:
    """The commands that run a process on each side."""

    server: tuple[str, ...]
    client: tuple[str, ...]


@contextmanager
def joined() -> Iterator[Net]:
    """Create the namespaces for the time of the block; this needs root and `ip`.

    Raises:
        subprocess.CalledProcessError: a command failed.
    """
    servers, clients = f"bs-{os.getpid()}", f"bc-{os.getpid()}"
    try:
        _ip(
            f"netns add {servers}",
            f"netns add {clients}",
            f"-n {servers} link add s0 type veth peer name c0 netns {clients}",
            f"-n {servers} addr add {SERVER}/16 dev s0",
            f"-n {clients} addr add {CLIENT}/16 dev c0",
            f"-n {servers} link set lo up",
            f"-n {servers} link set s0 up",
            f"-n {clients} link set lo up",
            f"-n {clients} link set c0 up",
            f"-n {clients} route add local {CLIENTS} dev lo",
        )
        yield Net(("ip", "netns", "exec", servers), ("ip", "netns", "exec", clients))
    finally:
        for name in (servers, clients):
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def _ip(*commands: str) -> None:
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True)
