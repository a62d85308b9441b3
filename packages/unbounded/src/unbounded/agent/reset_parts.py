"""Parts that a reset removes, in the order of PARTS.

Each part succeeds where there is nothing to remove, and can be interrupted anywhere and run again.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unbounded.agent.interfaces import Nodes
from unbounded.agent.model import Slot
from unbounded.agent.node.nspawn import unit_of
from unbounded.agent.node.slot_files import remove_build_record, remove_settings
from unbounded.agent.paths import DAEMON_UNIT, RECOVERY_TIMER, RECOVERY_UNIT, HostPaths
from unbounded.agent.steps import survey
from unbounded.agent.steps.start_steps import HOST_STEPS
from unbounded.agent.steps.step import Leftover, StepHost, remove_all
from unbounded.agent.steps.survey import BEFORE, NodeNetworkState, spared
from unbounded.agent.upgrade.units import remove_units
from unbounded.api.failures import Failure, Transient
from unbounded.kube.durable_files import remove_durably, sync_directory
from unbounded.kube.logs import Log

log = Log("agent")


@dataclass(frozen=True)
class ResetContext:
    """A host that is being reset.

    Args:
        by_daemon: the daemon runs the reset and its unit still has to stop properly. systemd forgets the unit and its
            watchdog only at the reload in `stop_after_reset`.
    """

    host: StepHost
    nodes: Nodes
    by_daemon: bool = False

    @property
    def paths(self) -> HostPaths:
        return self.host.paths


@dataclass(frozen=True)
class ResetPart:
    """One part of a reset.

    Args:
        remove: returns what remains, as (name, why); or raises.
    """

    name: str
    remove: Callable[[ResetContext], Awaitable[list[Leftover]]]


# The node


async def _stop_machines(resetting: ResetContext) -> list[Leftover]:
    return await _for_slots(resetting, _stop)


async def _stop(resetting: ResetContext, slot: Slot) -> None:
    """Stop the services gently where possible; `stop` kills what remains."""
    try:
        if (await resetting.nodes.observe(slot)).running:
            await resetting.nodes.stop_services(slot)
    except Failure as error:  # or the slot's state is unknown
        log.warning("cannot stop services", slot=slot, error=error)
    await resetting.nodes.stop(slot)


async def _remove_configuration(resetting: ResetContext) -> list[Leftover]:
    """Remove the records of complete slots first: a slot without its configuration is incomplete."""
    for slot in Slot:
        remove_build_record(resetting.paths, slot)
        remove_settings(resetting.paths, slot)
    return []


async def _remove_slots(resetting: ResetContext) -> list[Leftover]:
    return await _for_slots(resetting, lambda resetting, slot: resetting.nodes.remove(slot))


async def _for_slots(
    resetting: ResetContext, remove: Callable[[ResetContext, Slot], Awaitable[None]]
) -> list[Leftover]:
    done = await asyncio.gather(*(remove(resetting, slot) for slot in Slot), return_exceptions=True)
    left = []
    for slot, result in zip(Slot, done, strict=True):
        if isinstance(result, Failure | OSError):
            left.append(Leftover(slot.value, str(result)))
        elif isinstance(result, BaseException):
            raise result
    return left


# The network


async def _remove_interfaces(resetting: ResetContext) -> list[Leftover]:
    async def observe() -> NodeNetworkState:
        return (await _network(resetting, with_routes=False)).without(spared(resetting.paths))

    names = (await observe()).interfaces
    trouble = await _unremoved(survey.remove_interfaces(resetting.host.commands, names)) if names else ""
    return [Leftover(name, trouble) for name in (await observe()).interfaces]


async def _remove_keys(resetting: ResetContext) -> list[Leftover]:
    left = (await _network(resetting, with_routes=False)).without(spared(resetting.paths))
    for key in left.keys:
        remove_durably(resetting.paths.at(key))
    return []


async def _remove_routing(resetting: ResetContext) -> list[Leftover]:
    if not resetting.host.has("ip"):
        return []
    before, trouble = spared(resetting.paths), ""
    for _ in range(survey.ROUNDS):
        left = (await _network(resetting, with_routes=True)).without(before)
        if not left.rules and not left.tables:
            return []
        trouble = await _unremoved(survey.remove_rules(resetting.host.commands, left.rules))
        trouble = await _unremoved(survey.flush_tables(resetting.host.commands, left.tables)) or trouble
    rules = [f"{one.family} rule {one.priority} into table {one.table}" for one in left.rules]
    tables = [f"{one.family} routes of table {one.number}" for one in left.tables]
    return [Leftover(name, trouble or "they appear again") for name in (*rules, *tables)]


async def _network(resetting: ResetContext, *, with_routes: bool) -> NodeNetworkState:
    return await survey.observe_network(resetting.paths, resetting.host.commands, with_routes=with_routes)


async def _unremoved(call: Awaitable[None]) -> str:
    try:
        await call
    except Transient as error:
        return str(error)
    return ""


# The host


async def _revert_host(resetting: ResetContext) -> list[Leftover]:
    return await remove_all(HOST_STEPS, resetting.host)


# The agent


def own_files(paths: HostPaths) -> tuple[Path, ...]:
    """Return the agent's own links, files and folders in the order of removal.

    First come those that take long, and then all without which a daemon could not start again. Layout.etc is not among
    them: its marker shows until the end that a reset is under way.
    """
    return (
        paths.cache,
        paths.at("/etc/unbounded/kube"),
        paths.state,
        paths.command,
        paths.recovery_script,
        paths.last_good,
        paths.current,
        paths.releases,
    )


async def _remove_agent(resetting: ResetContext) -> list[Leftover]:
    paths, units = resetting.paths, resetting.host.units
    await units.stop(RECOVERY_TIMER)
    if any((paths.units / unit).exists() for unit in (DAEMON_UNIT, RECOVERY_TIMER)):
        await units.disable(DAEMON_UNIT, RECOVERY_TIMER)
    remove_units(paths)
    for path in own_files(paths):
        await asyncio.to_thread(remove_tree, path)
    kept = {paths.reset_state, paths.changes}
    for path in sorted(paths.etc.iterdir()) if paths.etc.is_dir() else ():
        if path not in kept:
            await asyncio.to_thread(remove_tree, path)
    return []


def remove_tree(path: Path) -> None:
    """Remove a file, link or folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
        sync_directory(path.parent)
    elif path.parent.is_dir():
        remove_durably(path)


async def _reload(resetting: ResetContext) -> list[Leftover]:
    if not resetting.by_daemon:
        await resetting.host.units.reload()
        await resetting.host.units.reset_failed(DAEMON_UNIT)
    for unit in (RECOVERY_UNIT, *map(unit_of, Slot)):
        await resetting.host.units.reset_failed(unit)
    await _stop_machined(resetting)
    return []


async def _stop_machined(resetting: ResetContext) -> None:
    """Stop systemd-machined, if it did not run before and no other machine needs it."""
    found = BEFORE.read(resetting.paths)
    if found is None or not found.idle:
        return
    machines = await resetting.host.commands.run("machinectl", "list", "--no-legend", "--no-pager", check=False)
    if machines.ok and not machines.stdout.strip():
        for unit in found.idle:
            await resetting.host.units.stop(unit)


NODE_AND_HOST: Final = (
    ResetPart("nspawn machines", _stop_machines),
    ResetPart("network interfaces", _remove_interfaces),
    ResetPart("WireGuard keys", _remove_keys),
    ResetPart("nspawn configuration", _remove_configuration),
    ResetPart("machine file systems", _remove_slots),
    ResetPart("policy routing", _remove_routing),
    ResetPart("host settings", _revert_host),
)
AGENT: Final = (
    ResetPart("agent", _remove_agent),
    ResetPart("systemd", _reload),
)
