"""The command `status`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec

from unbounded.agent.host import HostCommands, Systemctl
from unbounded.agent.host_status import (
    DaemonState,
    HostState,
    RecreationState,
    ReleasesState,
    SlotState,
    StateReader,
    UpgradeTrialState,
)
from unbounded.agent.layout import Layout


def as_json(state: HostState) -> str:
    return msgspec.json.format(msgspec.json.encode(state), indent=2).decode()


def as_text(state: HostState) -> str:
    """Return a line for each fact, which begins with its name."""
    return "\n".join(f"{name + ':':<12}{fact}".rstrip() for name, fact in _lines(state))


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
        yield "Recreation", _recreation(state.recreation)
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
    held = {"blue": releases.blue, "green": releases.green}
    if not any(held.values()):
        return "none installed"
    marks = {"in use": releases.current, "last good": releases.last_good}
    lines = []
    for colour, version in held.items():
        roles = [role for role, chosen in marks.items() if chosen == colour]
        lines.append(f"{colour} {version or 'empty'}" + (f" ({', '.join(roles)})" if roles else ""))
    return ", ".join(lines)


def _upgrade(upgrade: UpgradeTrialState) -> str:
    versions = f"{upgrade.from_version or '?'} → {upgrade.to_version or '?'}"
    by = f" by {upgrade.operation}" if upgrade.operation else ""
    return f"{versions}{by}: {upgrade.progress}"


def _recreation(one: RecreationState) -> str:
    failure = f"; it rolls back: {one.failure}" if one.failure else ""
    return f"{one.phase}, Kubernetes {one.kubernetes_version}, attempt {one.attempt}: {one.why}{failure}"


def run(*, json: bool, layout: Layout | None = None) -> int:
    """Print the state of this host; return the exit status."""
    commands = HostCommands()
    looking = StateReader(layout or Layout(), Systemctl(commands), lambda slot: Systemctl(commands, machine=slot))
    state = asyncio.run(looking.state())
    print(as_json(state) if json else as_text(state))
    return 0
