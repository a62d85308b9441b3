"""Reset: restores a host to its state before `start`, for the command and for AgentReset.

A marker excludes other commands while the parts of `reset_parts` are removed. The final report names what is left.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from unbounded.agent.build import load_everything, this_release
from unbounded.agent.console import FAILED, ProgressOutput, run_to_end
from unbounded.agent.host import HostCommands, Systemctl
from unbounded.agent.interfaces import OnProgress
from unbounded.agent.lock import holder_pid, host_lock
from unbounded.agent.model import Slot
from unbounded.agent.node.nodes import HostNodes
from unbounded.agent.paths import DAEMON_UNIT, RECOVERY_TIMER, RECOVERY_UNIT, HostPaths
from unbounded.agent.reset_parts import AGENT, NODE_AND_HOST, ResetContext, ResetPart, remove_tree
from unbounded.agent.steps.original_state import make_folders, remove_empty
from unbounded.agent.steps.packages import installed_by_us
from unbounded.agent.steps.step import Leftover, StepHost
from unbounded.agent.steps.survey import BEFORE, SURVEY, NodeNetworkState, folders, spared
from unbounded.api.failures import Failure, Rejected
from unbounded.kube.durable_files import write_durably
from unbounded.kube.logs import Log


def reset_context(paths: HostPaths) -> ResetContext:
    """Return the reset of this host."""
    commands = HostCommands()
    units = Systemctl(commands)
    return ResetContext(StepHost(paths, commands, units), HostNodes(paths, commands, units))


def run(paths: HostPaths | None = None) -> int:
    """Reset this host and print what remains; return the exit status."""

    async def main() -> int:
        done = await reset(reset_context(paths or HostPaths()), ProgressOutput())
        print("\n".join(done.lines()))
        return 0 if done.whole else FAILED

    return run_to_end(main)


log = Log("agent")

COMMAND: Final = "unbounded-agent reset"
_NONE: Final = NodeNetworkState()
_RUNS: Final = ("active", "activating", "reloading", "deactivating")


class _Marker(msgspec.Struct):
    format: int = 1


@dataclass(frozen=True)
class ResetResult:
    """Result of a reset.

    Args:
        left: what could not be removed; the agent, its records and the marker then remain for the next attempt.
        packages: that a start installed, which remain.
        spared: node-like items that existed before a start.
    """

    left: tuple[Leftover, ...] = ()
    packages: tuple[str, ...] = ()
    spared: NodeNetworkState = _NONE

    @property
    def whole(self) -> bool:
        return not self.left

    def lines(self) -> Iterator[str]:
        """Yield lines of the report for users."""
        for one in self.left:
            yield f"could not be removed: {one}"
        if self.packages:
            yield f"installed by start, and not removed: {', '.join(self.packages)}"
        for name in (*self.spared.interfaces, *self.spared.keys):
            yield f"existed before start, and stays: {name}"
        if self.whole:
            yield "logs of the agent and its machines stay in the journal"
            yield "delete the Node from the cluster; a reboot clears the remaining state of the kernel"


def is_under_way(paths: HostPaths) -> bool:
    """Return whether a reset has begun and not ended."""
    return paths.reset_state.exists()


def refuse_if_under_way(paths: HostPaths) -> None:
    """Raise Rejected while a reset is under way, for all commands that would change what it removes."""
    if is_under_way(paths):
        raise Rejected(f"a reset of this host has started and not finished: run `{COMMAND}` first")


def has_traces(paths: HostPaths) -> bool:
    """Return whether an agent, this one or the public one, was started here and not fully reset."""
    slots = [path for slot in Slot for path in (paths.rootfs(slot), paths.nspawn(slot), paths.applied(slot))]
    own = (paths.config, paths.state, paths.current, paths.units / DAEMON_UNIT, paths.reset_state)
    records = paths.changes.is_dir() and any(paths.changes.iterdir())
    return records or any(os.path.lexists(path) for path in (*slots, *own))


async def reset(resetting: ResetContext, report: OnProgress) -> ResetResult:
    """Run the command `reset`: stop the daemon, so that it does not rebuild what is removed, and then remove all parts.

    Raises:
        Transient: another process holds the host's lock, or the daemon does not stop; nothing was removed, and stopped
            units run again.
    """
    async with AsyncExitStack() as stack:
        stopped: list[str] = []
        try:
            if await _daemon_holds(resetting):  # its end frees the lock; another holder would not justify the stop
                await _stop_daemon(resetting, stopped)
            await stack.enter_async_context(host_lock(resetting.paths, COMMAND))
            await _stop_daemon(resetting, stopped)
        except BaseException:
            await _start_again(resetting, stopped)
            raise
        return await remove_all_parts(resetting, report)


async def _daemon_holds(resetting: ResetContext) -> bool:
    pid = holder_pid(resetting.paths)
    return pid != 0 and pid == (await resetting.host.units.observe(DAEMON_UNIT)).main_pid


async def _stop_daemon(resetting: ResetContext, stopped: list[str]) -> None:
    """Stop the daemon, and the units that would start it again.

    Args:
        stopped: receives each unit before its stop, as an interrupted stop may have taken effect.
    """
    units = resetting.host.units
    for unit in (RECOVERY_TIMER, RECOVERY_UNIT, DAEMON_UNIT):
        if (await units.observe(unit)).active in _RUNS:
            stopped.append(unit)
        await units.stop(unit)  # also ends a unit that waits for its restart


async def _start_again(resetting: ResetContext, stopped: Sequence[str]) -> None:
    """Start the units again after a failed reset: a host must not remain without its daemon."""
    for unit in reversed(stopped):
        try:
            await resetting.host.units.start(unit)
        except Failure as error:
            log.warning("the reset did not start, and the stopped services do not start again", unit=unit, error=error)
        else:
            log.info("the reset did not start; the stopped services run again", unit=unit)


async def remove_all_parts(resetting: ResetContext, report: OnProgress) -> ResetResult:
    """Remove all parts in order; the caller holds the host's lock. The next call completes an interrupted one.

    A part that cannot be removed does not stop the others. Only the agent itself then remains, for the next attempt.
    """
    paths = resetting.paths
    if this_release() is not None:
        await asyncio.to_thread(load_everything)  # modules that are not loaded by then cannot be imported any more
    if not has_traces(paths):
        await SURVEY.add(resetting.host, report)  # there was no node here: node-like items belong to others
    make_folders(paths.etc, mode=0o700)
    write_durably(paths.reset_state, msgspec.json.encode(_Marker()))
    known = ResetResult(packages=installed_by_us(paths), spared=spared(paths))
    left = await _walk(NODE_AND_HOST, resetting, report)
    if not left:
        left = await _walk((*AGENT, ResetPart("records", _remove_records)), resetting, report)
    log.info("reset done" if not left else "reset incomplete", left=[str(one) for one in left])
    return ResetResult(tuple(left), known.packages, known.spared)


async def _walk(parts: Sequence[ResetPart], resetting: ResetContext, report: OnProgress) -> list[Leftover]:
    left: list[Leftover] = []
    for part in parts:
        report(part.name)
        began = time.monotonic()
        try:
            found = await part.remove(resetting)
        except (Failure, OSError) as error:
            found = [Leftover(part.name, str(error))]
        log.info(
            "removed", part=part.name, left=[str(one) for one in found], seconds=round(time.monotonic() - began, 2)
        )
        left += found
    return left


async def _remove_records(resetting: ResetContext) -> list[Leftover]:
    """Remove the folders that did not exist before, the marker and the records. Without records, remove those that are
    certainly the agent's.
    """
    paths = resetting.paths
    found = BEFORE.read(paths)
    made = tuple(Path(folder) for folder in found.folders) if found else _surely_ours(paths)
    remove_empty(made)
    # the survey is removed after all that it spares
    for path in (paths.reset_state, paths.changes, paths.etc, paths.run):
        remove_tree(path)
    remove_empty(made)
    return []


def _surely_ours(paths: HostPaths) -> tuple[Path, ...]:
    return tuple(folder for folder in folders(paths) if "unbounded" in str(folder.relative_to(paths.root)))
