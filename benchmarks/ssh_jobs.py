"""Messages between the benchmark of SSH and its child process with machina's client."""

from __future__ import annotations

import msgspec


class Target(msgspec.Struct, frozen=True, array_like=True):
    """An SSH server; `key` is its host key."""

    name: str
    address: str
    port: int
    key: str


class Job(msgspec.Struct, frozen=True, tag=True):
    """Provision all hosts, `at_once` at a time."""

    at_once: int


class Open(msgspec.Struct, frozen=True, tag=True):
    """Open `logins` connections to each host."""

    logins: int


class JobResult(msgspec.Struct, frozen=True):
    wall_s: float
    cpu_s: float
    more_kib: float = 0.0
