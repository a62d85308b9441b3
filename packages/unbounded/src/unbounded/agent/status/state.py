"""The state of a host as data; its JSON has the same names in camelCase."""

from __future__ import annotations

import msgspec


class _StatusPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class ProgramVersion(_StatusPart, frozen=True, kw_only=True):
    """The running release."""

    version: str
    build: str = ""


class SlotState(_StatusPart, frozen=True, kw_only=True):
    """One slot.

    Args:
        exists: it has a root file system.
        whole: the record of its build is readable, and the slot usable.
        unchecked: artifacts in it without a published sha256.
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


class DaemonState(_StatusPart, frozen=True, kw_only=True):
    """The agent's daemon.

    Args:
        active, enabled: in systemd's words; `not-found` for a host without the unit.
    """

    active: str = ""
    enabled: str = ""
    pid: int = 0
    restarts: int = 0


class ReleasesState(_StatusPart, frozen=True, kw_only=True):
    """Installed releases of the agent.

    Args:
        current, last_good: blue or green; empty where a link is missing.
        blue, green: their versions; empty for an empty slot.
    """

    current: str = ""
    last_good: str = ""
    blue: str = ""
    green: str = ""


class UpgradeTrialState(_StatusPart, frozen=True, kw_only=True):
    """An AgentUpgrade that is not proven yet."""

    operation: str
    from_version: str
    to_version: str
    progress: str


class RecreationState(_StatusPart, frozen=True, kw_only=True):
    """A recreation under way, or the last one that failed.

    Args:
        phase: empty for one that failed.
    """

    why: str
    phase: str = ""
    kubernetes_version: str = ""
    attempt: int = 0
    failure: str = ""
    since: str = ""


class HostState(_StatusPart, frozen=True, kw_only=True):
    """State of a host.

    Args:
        machine: name of the Machine; empty on a host without a start.
        missing: remedy where the Machine was deleted; empty otherwise.
        certificate_ends: RFC 3339; empty without a certificate.
        holder: process that holds the host's lock.
        resetting: a reset has begun and not ended.
        unknown: unreadable values, with causes.
    """

    program: ProgramVersion
    machine: str = ""
    missing: str = ""
    certificate_ends: str = ""
    nodes: tuple[SlotState, ...] = ()
    daemon: DaemonState = DaemonState()
    releases: ReleasesState = ReleasesState()
    upgrade: UpgradeTrialState | None = None
    recreation: RecreationState | None = None
    failed_recreation: RecreationState | None = None
    holder: str = ""
    resetting: bool = False
    unknown: tuple[str, ...] = ()
