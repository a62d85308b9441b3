"""The command `status`: the state of this host for a local user, its reader, and its text. JSON has the same names.

The reader sends no request to the API server, mostly needs no root, and an unreadable value is not an error. The JSON
writes the names in camelCase.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from unbounded.agent.build import this_build
from unbounded.agent.host import HostCommands, Systemctl
from unbounded.agent.interfaces import Units
from unbounded.agent.lock import holder
from unbounded.agent.model import Slot
from unbounded.agent.node import containerd, kubelet
from unbounded.agent.node.nspawn import unit_of
from unbounded.agent.node.slot_files import read_build_record
from unbounded.agent.paths import DAEMON_UNIT, HostPaths
from unbounded.agent.recreation.state_store import DiskStore
from unbounded.agent.settings import read_stored_config
from unbounded.agent.upgrade.releases import Colour
from unbounded.agent.upgrade.releases import ReleaseSlots as Slots
from unbounded.agent.upgrade.trial import TrialStore
from unbounded.api.failures import Failure
from unbounded.join.csr import IdentityFiles, agent_identity
from unbounded.kube.clock import rfc3339


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


SYSTEMD: Final = "/run/systemd/system"
NAME_WIDTH: Final = 13  # of the longest name of a fact, with its colon and a space
T = TypeVar("T")


class StateReader:
    """Reader of this host's state.

    Args:
        inside: returns the service manager of a running nspawn machine, by the name of its slot.
    """

    def __init__(self, paths: HostPaths, units: Units, inside: Callable[[str], Units]) -> None:
        self._paths = paths
        self._units = units
        self._inside = inside
        self._unknown: list[str] = []

    async def state(self) -> HostState:
        """Return the whole present state."""
        paths, build = self._paths, this_build()
        config = self._try("configuration", lambda: read_stored_config(paths), None)
        machine = config.machine_name if config else ""
        store = DiskStore(paths)
        nodes = await asyncio.gather(*(self._node(slot) for slot in Slot))
        return HostState(
            program=ProgramVersion(version=build.version, build=build.build),
            machine=machine,
            missing=self._try("machine", self._missing, ""),
            certificate_ends=self._try("certificate", lambda: self._ends(machine), "") if machine else "",
            nodes=tuple(nodes),
            daemon=await self._query("daemon", self._daemon, DaemonState()),
            releases=self._releases(),
            upgrade=self._try("upgrade", self._upgrade, None),
            recreation=self._try("recreation", lambda: _recreation(store), None),
            failed_recreation=self._try("recreation", lambda: _failed(store), None),
            holder=self._try("lock", lambda: holder(paths), ""),
            resetting=self._try("reset", lambda: _there(paths.reset_state), False),
            unknown=tuple(dict.fromkeys(self._unknown)),
        )

    def _try(self, what: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except (Failure, OSError) as error:
            unseen = any(isinstance(one, PermissionError) for one in (error, error.__cause__))
            self._unknown.append(f"{what}: {'only root can read it' if unseen else error}")
        return otherwise

    async def _query(self, what: str, ask: Callable[[], Awaitable[T]], otherwise: T) -> T:
        """Query systemd, where it runs."""
        try:
            if not _there(self._paths.at(SYSTEMD)):
                self._unknown.append("units: systemd is not running on this host")
                return otherwise
            return await ask()
        except (Failure, OSError) as error:
            self._unknown.append(f"{what}: {error}")
        return otherwise

    def _missing(self) -> str:
        path = self._paths.machine_missing
        return path.read_text().strip() if _there(path) else ""

    def _ends(self, machine: str) -> str:
        stored = IdentityFiles(self._paths.identity, agent_identity(machine)).stored()
        return rfc3339(stored.ends) if stored else ""

    async def _node(self, slot: Slot) -> SlotState:
        paths = self._paths
        applied = self._try(slot, lambda: read_build_record(paths, slot), None)
        exists = self._try(slot, lambda: _there(paths.rootfs(slot)), False)
        spec = applied.goal if applied else None
        found = SlotState(slot=slot, exists=exists, whole=applied is not None)
        if applied is not None and spec is not None:
            named = spec.configuration
            found = SlotState(
                slot=slot,
                exists=exists,
                whole=True,
                kubernetes_version=spec.kubernetes_version,
                image=spec.image,
                configuration=named.version_name if named else "",
                node_uid=applied.node_uid,
                unchecked=applied.unchecked,
            )
        return await self._running(found)

    async def _running(self, node: SlotState) -> SlotState:
        async def unit(units: Units, name: str) -> str:
            return (await units.observe(name)).active

        machine = await self._query(node.slot, lambda: unit(self._units, unit_of(node.slot)), "")
        if machine != "active" or os.geteuid() != 0:
            return msgspec.structs.replace(node, machine=machine)
        inside = self._inside(node.slot)
        states = {
            name: await self._query(f"{name} in {node.slot}", partial(unit, inside, asked), "")
            for name, asked in (("kubelet", kubelet.UNIT), ("containerd", containerd.UNIT))
        }
        return msgspec.structs.replace(node, machine=machine, **states)

    async def _daemon(self) -> DaemonState:
        unit = await self._units.observe(DAEMON_UNIT)
        active = "not-found" if unit.load == "not-found" else unit.active
        return DaemonState(active=active, enabled=unit.enabled, pid=unit.main_pid, restarts=unit.restarts)

    def _releases(self) -> ReleasesState:
        slots = Slots(self._paths)
        chosen = slots.selection()
        versions = {one: slots.about(one).version or "?" for one in Colour if slots.works(one)}
        return ReleasesState(
            current=chosen.current or "",
            last_good=chosen.last_good or "",
            blue=versions.get(Colour.BLUE, ""),
            green=versions.get(Colour.GREEN, ""),
        )

    def _upgrade(self) -> UpgradeTrialState | None:
        """Return the open trial; its file remains after it has ended."""
        trial = TrialStore(self._paths).read()
        chosen = Slots(self._paths).selection()
        if trial is None or (chosen.last_good == trial.release and chosen.current == trial.release):
            return None
        if TrialStore(self._paths).rollback_note() is not None:
            return None
        return UpgradeTrialState(
            operation=trial.operation,
            from_version=trial.former_version,
            to_version=trial.version,
            progress="OnTrial" if chosen.on_trial else trial.progress,
        )


def _there(path: Path) -> bool:
    """Return whether a path exists. Unlike Path.exists, raise where that cannot be determined."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _recreation(store: DiskStore) -> RecreationState | None:
    found = store.current()
    if found is None:
        return None
    return RecreationState(
        why=found.why,
        phase=found.phase,
        kubernetes_version=found.goal.kubernetes_version,
        attempt=found.attempt,
        failure=found.failure,
        since=found.since,
    )


def _failed(store: DiskStore) -> RecreationState | None:
    found = store.failed()
    if found is None:
        return None
    return RecreationState(
        why=found.why, kubernetes_version=found.goal.kubernetes_version, attempt=found.attempts, since=found.at
    )


def as_json(state: HostState) -> str:
    return msgspec.json.format(msgspec.json.encode(state), indent=2).decode()


def as_text(state: HostState) -> str:
    """Return a line for each fact, which begins with its name."""
    return "\n".join(f"{name + ':':<{NAME_WIDTH}}{fact}".rstrip() for name, fact in _lines(state))


def _lines(state: HostState) -> Iterator[tuple[str, str]]:
    build = f" (build {state.program.build})" if state.program.build else ""
    yield "Agent", f"{state.program.version}{build}"
    yield "Machine", state.machine or "none: this host was not started"
    if state.missing:
        yield "Missing", state.missing
    if state.certificate_ends:
        yield "Certificate", f"valid until {state.certificate_ends}"
    yield "Daemon", _daemon(state.daemon)
    for node in state.nodes:
        yield node.slot, _node(node)
    yield "Releases", _releases(state.releases)
    if state.upgrade is not None:
        yield "Upgrade", _upgrade(state.upgrade)
    if state.recreation is not None:
        yield "Recreation", _recreation_text(state.recreation)
    if state.failed_recreation is not None:
        failed = state.failed_recreation
        yield "Failed", f"node with {failed.kubernetes_version}, attempt {failed.attempt}, {failed.since}: {failed.why}"
    if state.resetting:
        yield "Reset", "started and not finished: run `unbounded-agent reset`"
    if state.holder:
        yield "Busy", f"{state.holder} is changing this host"
    for one in state.unknown:
        yield "Unknown", one


def _daemon(daemon: DaemonState) -> str:
    if daemon.active in ("", "not-found"):
        return "not installed" if daemon.active else "unknown"
    more = [daemon.enabled or "no unit file"]
    more += [f"pid {daemon.pid}"] if daemon.pid else []
    more += [f"restarted {daemon.restarts} times"] if daemon.restarts else []
    return f"{daemon.active} ({', '.join(more)})"


def _node(node: SlotState) -> str:
    if not node.exists and not node.whole:
        return "free"
    if not node.whole:
        return "incomplete: it will be built again"
    parts = [f"Kubernetes {node.kubernetes_version}", f"machine {node.machine or 'unknown'}"]
    parts += [
        f"{name} {state}" for name, state in (("kubelet", node.kubelet), ("containerd", node.containerd)) if state
    ]
    parts += [f"configuration {node.configuration}"] if node.configuration else []
    parts.append(f"Node {node.node_uid}" if node.node_uid else "no Node registered yet")
    parts += [f"without a verified sha256: {' '.join(node.unchecked)}"] if node.unchecked else []
    return ", ".join(parts)


def _releases(releases: ReleasesState) -> str:
    slots = {"blue": releases.blue, "green": releases.green}
    if not any(slots.values()):
        return "none installed"
    marks = {"in use": releases.current, "last good": releases.last_good}
    lines = []
    for colour, version in slots.items():
        roles = [role for role, chosen in marks.items() if chosen == colour]
        lines.append(f"{colour} {version or 'empty'}" + (f" ({', '.join(roles)})" if roles else ""))
    return ", ".join(lines)


def _upgrade(upgrade: UpgradeTrialState) -> str:
    versions = f"{upgrade.from_version or '?'} → {upgrade.to_version or '?'}"
    by = f" by {upgrade.operation}" if upgrade.operation else ""
    return f"{versions}{by}: {upgrade.progress}"


def _recreation_text(one: RecreationState) -> str:
    failure = f"; it rolls back: {one.failure}" if one.failure else ""
    return f"{one.phase}, Kubernetes {one.kubernetes_version}, attempt {one.attempt}: {one.why}{failure}"


def run(*, json: bool, paths: HostPaths | None = None) -> int:
    """Print the state of this host; return the exit status."""
    commands = HostCommands()
    looking = StateReader(paths or HostPaths(), Systemctl(commands), lambda slot: Systemctl(commands, machine=slot))
    state = asyncio.run(looking.state())
    print(as_json(state) if json else as_text(state))
    return 0
