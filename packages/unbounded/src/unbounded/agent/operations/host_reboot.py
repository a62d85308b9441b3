"""HostReboot from inside, for a host without provider and BMC: complete when the host has another boot id.

The boot id stored with the first intent is that of the boot to end. A request names it, and a host with another boot id
rejects the request. So requests may be repeated, and the host never reboots twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from unbounded.agent.interfaces import Commands
from unbounded.agent.paths import HostPaths
from unbounded.api.failures import Transient, Uncertain
from unbounded.api.operation import MachineOperation
from unbounded.operations.executor_protocol import Target
from unbounded.workflow.procedure import COMPLETE, Cancel, Observation, Procedure, Repeat, Stage, Step

LOOKING: Final = "Looking"
REBOOTING: Final = "Rebooting"

REBOOT: Final = "Reboot"

EVIDENCE_BOOTED: Final = "the agent is back, and the host has another boot id"
_COMMAND_S: Final = 30.0


class HostBoot(StrEnum):
    SAME = "SameBoot"
    OTHER = "OtherBoot"


HOST_REBOOT: Final = Procedure(
    start=LOOKING,
    facts=HostBoot,
    stages={
        LOOKING: Stage("an observation of the host", limit_s=60.0, cancel=Cancel.AT_ONCE),
        REBOOTING: Stage("the host to go down, and the agent to be back", limit_s=900.0, retry_after_s=120.0),
    },
    table={
        (LOOKING, HostBoot.SAME): Step(REBOOTING, action=REBOOT),
        (LOOKING, HostBoot.OTHER): Step(COMPLETE, evidence=EVIDENCE_BOOTED),
        (REBOOTING, HostBoot.SAME): Step(REBOOTING, action=REBOOT),
        (REBOOTING, HostBoot.OTHER): Step(COMPLETE, evidence=EVIDENCE_BOOTED),
    },
    actions={REBOOT: Repeat.SETS_STATE},  # the desired state is: another boot
    proof=frozenset({EVIDENCE_BOOTED}),
    polls_s=(1.0, 2.0, 5.0),
)


def host_boot_id(paths: HostPaths) -> str:
    """Return the boot id of the running host."""
    return paths.at("/proc/sys/kernel/random/boot_id").read_text().strip()


class HostReboot:
    """The executor's work for HostReboot.

    Args:
        boot_id: reads that of the host.
    """

    def __init__(self, commands: Commands, boot_id: Callable[[], str]) -> None:
        self._commands = commands
        self._boot_id = boot_id

    def procedure(self, operation: MachineOperation) -> Procedure:  # noqa: ARG002  # as the Protocol has it
        return HOST_REBOOT

    async def observe(self, target: Target) -> Observation:
        now = self._boot_id()
        before = target.run.boot_id or now
        fact = HostBoot.SAME if now == before else HostBoot.OTHER
        return Observation(fact, detail=f"host boot id {now}", where=f"the host, boot id {now}", boot_id=before)

    async def perform(self, target: Target, action: str, *, before: float) -> str | None:  # noqa: ARG002  # there is one
        if asyncio.get_running_loop().time() > before:
            raise Transient("the time limit for the reboot has passed")
        if target.run.boot_id != (now := self._boot_id()):
            raise Transient(f"the boot to end has already ended; the current one is {now}")
        try:
            ran = await self._commands.run("systemctl", "reboot", timeout_s=_COMMAND_S, check=False)
        except Transient as error:  # it timed out, and systemd may have received it
            raise Uncertain(f"the outcome of systemctl reboot is unknown: {error}") from error
        if not ran.ok:
            raise Transient(f"systemctl reboot: status {ran.status}: {' '.join(ran.stderr.split())[-300:]}")
        return None
