"""AgentReset: removes the agent from its host. The operation is Complete before the daemon stops.

Release and certificate are gone from the disk at the last write: its code is loaded before, and the certificate is in
memory. A daemon that is killed before its own files are removed resumes at its next start. A loss of power between
their removal and the last write leaves an open operation, which the supervisor ends with ExecutorLost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Final

from unbounded.agent.interfaces import Commands
from unbounded.agent.lock import host_lock
from unbounded.agent.paths import DAEMON_UNIT
from unbounded.agent.recreation.report import after_reset
from unbounded.agent.recreation.status import RecreationStatusWriter
from unbounded.agent.reset import ResetResult, remove_all_parts
from unbounded.agent.reset_parts import ResetContext
from unbounded.api.failures import Failure, Transient
from unbounded.api.operation import MachineOperation
from unbounded.kube.logs import Log
from unbounded.operations.executor_protocol import Target
from unbounded.workflow.procedure import COMPLETE, Observation, Procedure, Repeat, Stage, Step

log = Log("agent")

RESETTING: Final = "Resetting"
REMOVE: Final = "Remove"
REMOVED: Final = "the agent and all it made were removed from the host"
RESOURCES_LEFT: Final = "ResourcesLeft"
MEANING: Final[Mapping[str, str]] = {
    RESOURCES_LEFT: "A reset could not remove everything. The message names the rest, and the agent stays.",
}
STOP_WITHIN_S: Final = 600.0
# In a transient unit of its own, as it outlives the daemon.
_STOP_SCRIPT: Final = (
    f"systemctl stop {DAEMON_UNIT}; systemctl daemon-reload; systemctl reset-failed {DAEMON_UNIT}; exit 0"
)
_POLL_S: Final = 0.2


class ResetState(StrEnum):
    THERE = "the agent's resources are on the host"
    GONE = "none of the agent's resources is left"
    LEFT = "some resources could not be removed"


PROCEDURE: Final = Procedure(
    start=RESETTING,
    facts=ResetState,
    stages={
        RESETTING: Stage("the host to be as before start", limit_s=900.0, attempts=5, retry_after_s=5.0),
    },
    table={
        (RESETTING, ResetState.THERE): Step(RESETTING, action=REMOVE),
        (RESETTING, ResetState.GONE): Step(COMPLETE, evidence=REMOVED),
        (RESETTING, ResetState.LEFT): Step(
            RESETTING, fail=RESOURCES_LEFT, message="the agent stays, as these resources are left"
        ),
    },
    actions={REMOVE: Repeat.SETS_STATE},
    proof=frozenset({REMOVED}),
)


class AgentReset:
    """The executor's work for AgentReset; `status` writes the Machine's status.

    `gone` is set once nothing is left. The daemon then stops (`stop_after_reset`) and changes nothing on the host any
    more.
    """

    def __init__(self, resetting: ResetContext, status: RecreationStatusWriter) -> None:
        self._resetting = replace(resetting, by_daemon=True)
        self._status = status
        self._done: dict[str, ResetResult] = {}
        self.gone = asyncio.Event()

    def procedure(self, _operation: MachineOperation) -> Procedure:
        return PROCEDURE

    async def observe(self, target: Target) -> Observation:
        done = self._done.get(target.operation.metadata.uid)
        where = f"host of {target.machine.name}"
        if done is None:
            return Observation(ResetState.THERE, "nothing has been removed yet", where)
        if not done.whole:
            return Observation(ResetState.LEFT, "; ".join(str(one) for one in done.left), where)
        stay = f"; packages that start installed stay: {', '.join(done.packages)}" if done.packages else ""
        return Observation(ResetState.GONE, f"{REMOVED}{stay}", where)

    async def perform(self, target: Target, action: str, *, before: float) -> str | None:
        async with host_lock(self._resetting.paths, f"{action} of {target.operation.name}"):
            if asyncio.get_running_loop().time() >= before:
                raise Transient("another process held the lock of the host for too long")
            done = await remove_all_parts(self._resetting, _progress(target))
        self._done[target.operation.metadata.uid] = done
        if done.whole:
            await self._report()
            self.gone.set()
        return None

    async def _report(self) -> None:
        """Report in the Machine's status that the host has no node. An error is ignored, as the operation's status
        suffices.
        """
        try:
            await self._status.report((after_reset(),), None, None, agent={"stage": None})
        except Failure as error:
            log.warning("cannot report the reset in the Machine's status", error=error)


def _progress(target: Target) -> Callable[[str], None]:
    operation_log = log.bind(operation=target.operation.name, machine=target.machine.name)
    return lambda words: operation_log.info("removing", part=words)


async def stop_after_reset(work: AgentReset, settled: Callable[[], bool], commands: Commands) -> None:
    """Stop the daemon's own unit once a reset is complete and its operation has ended, which ends this process.

    systemd is reloaded, as the unit's file is gone by then. This runs concurrently with the daemon's work.

    Args:
        settled: returns whether the operation has ended in the API and the Machine's claim is released.
    """
    await work.gone.wait()
    for _ in range(round(STOP_WITHIN_S / _POLL_S)):
        if settled():
            break
        await asyncio.sleep(_POLL_S)
    else:
        log.warning("cannot write the end of the reset", limit_s=STOP_WITHIN_S)
    log.info("the agent is removed; its daemon ends")
    await commands.run("systemd-run", "--quiet", "--collect", "--no-block", "--", "/bin/sh", "-c", _STOP_SCRIPT)
