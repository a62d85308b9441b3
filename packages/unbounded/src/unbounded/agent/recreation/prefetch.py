"""Downloads for the next node, before a rolling update drains the present one.

machina requests them in `status.nodeUpdate`; the result is in `status.agent.prepared`. They run beside all other work
of the agent, without the host's lock, and write only to the cache of downloads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from unbounded.agent.interfaces import Nodes
from unbounded.agent.model import NodeGoal
from unbounded.agent.node.pull_secrets import BringLogins
from unbounded.agent.recreation.recreation_decision import NodeObservation
from unbounded.agent.recreation.report import one_line
from unbounded.api.configuration import MachineConfigurationVersion
from unbounded.api.failures import Failure
from unbounded.api.machine import Machine, NodeUpdate, NodeUpdatePhase, PreparedVersion
from unbounded.kube.clock import Backoff
from unbounded.kube.logs import Log

AGAIN: Final = Backoff(base_s=15.0, max_s=600.0)

log = Log("agent")


def requested_version(machine: Machine) -> NodeUpdate | None:
    """Return the update that waits for the downloads; None where none does.

    One that replaces the host needs none: its disk is written, and metalman downloads the image.
    """
    update = machine.status.node_update
    is_of_node = update is not None and update.image is None and update.phase == NodeUpdatePhase.PREPARING
    return update if is_of_node else None


def is_rolled(machine: Machine) -> bool:
    """Return whether a rolling update decides when the node is recreated."""
    update = machine.status.node_update
    return update is not None and update.phase != NodeUpdatePhase.COMPLETE


class Prefetch:
    """The download in progress: at most one.

    Args:
        report: writes the result to the Machine's status.
    """

    def __init__(self, nodes: Nodes, logins: BringLogins, report: Callable[[PreparedVersion], Awaitable[None]]) -> None:
        self._nodes = nodes
        self._logins = logins
        self._report = report
        self._task: asyncio.Task[None] | None = None
        self._of: tuple[str, int, NodeGoal] | None = None

    def follow(self, machine: Machine, view: NodeObservation, version: MachineConfigurationVersion | None) -> None:
        """Start, keep or end the download, as the Machine requests it.

        Args:
            version: that the Machine is bound to; None where no download is requested.
        """
        update = requested_version(machine)
        is_its = update is not None and version is not None and version.metadata.name == update.version
        if not is_its or version is None or view.desired is None or view.desired.same:
            self._end()
            return
        of = (version.metadata.name, version.metadata.generation, view.desired.goal)
        if of != self._of:
            self._end()
            self._of = of
            self._task = asyncio.create_task(self._run(*of), name="prefetch")

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task, self._of = None, None

    async def stop(self) -> None:
        """End a download in progress, and wait for its end."""
        task = self._task
        self._end()
        if task is not None:
            await asyncio.wait({task})

    async def _run(self, name: str, generation: int, goal: NodeGoal) -> None:
        failures = 0
        done = PreparedVersion(version=name, generation=generation)
        while True:
            try:
                await self._logins(goal.settings)
                await self._nodes.fetch(goal, lambda _text: None)
                log.info("the next node is downloaded", version=name)
                await self._report(PreparedVersion(version=name, generation=generation, complete=True))
            except (Failure, OSError) as error:
                failures += 1
                log.warning("cannot download the next node", error=error, version=name)
                failed = PreparedVersion(version=name, generation=generation, message=one_line(str(error)))
                if failed != done:
                    with contextlib.suppress(Failure):
                        await self._report(failed)
                    done = failed
            else:
                return
            await asyncio.sleep(AGAIN.after(failures))
