"""What the benchmark of SSH and machina's client in a process of its own say to each other."""

from __future__ import annotations

import msgspec


class Target(msgspec.Struct, frozen=True, array_like=True):
    """An SSH server; `key` is that of the host."""

    name: str
    address: str
    port: int
    key: str


class Job(msgspec.Struct, frozen=True, tag=True):
    """Provision all."""

    at_once: int


class Open(msgspec.Struct, frozen=True, tag=True):
    """Hold so many connections to each host open."""

    logins: int


class Found(msgspec.Struct, frozen=True):
    wall_s: float
    cpu_s: float
    more_kib: float = 0.0
