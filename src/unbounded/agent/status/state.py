"""What `status` tells, as data; its JSON is this with names in camelCase."""

from __future__ import annotations

import msgspec


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class Program(_Part, frozen=True, kw_only=True):
    """The release that answers."""

    version: str
    build: str = ""


class Node(_Part, frozen=True, kw_only=True):
    """One slot.

    Args:
        exists: it has a root file system.
        whole: what it was made from is known, and it may be used.
        unchecked: artifacts in it that nobody published a sha256 of.
        machine: state of its nspawn machine's unit; kubelet, containerd: of theirs, empty where it does not run.
    """

    slot: str
    exists: bool = False
    whole: bool = False
    kubernetes_version: str = ""
    image: str = ""
    configuration: str = ""
    node_uid: str = ""
    unchecked: tuple[str, ...] = ()
    machine: str = ""
    kubelet: str = ""
    containerd: str = ""


class Daemon(_Part, frozen=True, kw_only=True):
    """Args:
    active, enabled: in systemd's words; `not-found` for a host without the unit.
    """

    active: str = ""
    enabled: str = ""
    pid: int = 0
    restarts: int = 0


class Releases(_Part, frozen=True, kw_only=True):
    """Args:
    current, last_good: blue or green; empty where a link is missing.
    blue, green: their versions; empty for an empty slot.
    """

    current: str = ""
    last_good: str = ""
    blue: str = ""
    green: str = ""


class Upgrade(_Part, frozen=True, kw_only=True):
    """An AgentUpgrade that is not proven yet."""

    operation: str
    from_version: str
    to_version: str
    progress: str


class Recreation(_Part, frozen=True, kw_only=True):
    """A node that is being made anew, or the last time that this failed.

    Args:
        phase: empty for one that failed.
    """

    why: str
    phase: str = ""
    kubernetes_version: str = ""
    attempt: int = 0
    failure: str = ""
    since: str = ""


class State(_Part, frozen=True, kw_only=True):
    """Args:
    machine: name of the Machine; empty on a host that was not started.
    missing: what to do about a Machine that was deleted; empty for one that is there.
    certificate_ends: RFC 3339; empty without a certificate.
    holder: who changes the host now.
    resetting: a reset has begun and not ended.
    unknown: what could not be read, and why.
    """

    program: Program
    machine: str = ""
    missing: str = ""
    certificate_ends: str = ""
    nodes: tuple[Node, ...] = ()
    daemon: Daemon = Daemon()
    releases: Releases = Releases()
    upgrade: Upgrade | None = None
    recreation: Recreation | None = None
    failed_recreation: Recreation | None = None
    holder: str = ""
    resetting: bool = False
    unknown: tuple[str, ...] = ()
