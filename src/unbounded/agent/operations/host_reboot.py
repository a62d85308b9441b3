"""HostReboot from inside, where neither a provider nor a BMC could do it: done when the host has another boot id.

The boot id that was noted with the first intent says which boot is to end. An ask names it, and is refused by any other
boot; so it may be repeated, and the host is never rebooted twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from unbounded.agent.layout import Layout
from unbounded.agent.ports import Commands
from unbounded.api.failures import Transient, Uncertain
from unbounded.api.operation import MachineOperation
from unbounded.operations.ports import Target
from unbounded.operations.procedure import COMPLETE, Cancel, Procedure, Repeat, Sight, Stage, Step

LOOKING: Final = "Looking"
REBOOTING: Final = "Rebooting"

REBOOT: Final = "Reboot"

SEEN_BOOTED: Final = "the agent is back, and the host has another boot id"
_COMMAND_S: Final = 30.0


class Seen(StrEnum):
    SAME = "SameBoot"
    OTHER = "OtherBoot"


HOST_REBOOT: Final = Procedure(
    start=LOOKING,
    facts=Seen,
    stages={
        LOOKING: Stage("a look at the host", limit_s=60.0, cancel=Cancel.AT_ONCE),
        REBOOTING: Stage("the host to go down, and the agent to be back", limit_s=900.0, ask_again_s=120.0),
    },
    table={
        (LOOKING, Seen.SAME): Step(REBOOTING, ask=REBOOT),
        (LOOKING, Seen.OTHER): Step(COMPLETE, seen=SEEN_BOOTED),
        (REBOOTING, Seen.SAME): Step(REBOOTING, ask=REBOOT),
        (REBOOTING, Seen.OTHER): Step(COMPLETE, seen=SEEN_BOOTED),
    },
    actions={REBOOT: Repeat.SETS_STATE},  # the state is: not this boot
    proof=frozenset({SEEN_BOOTED}),
    polls_s=(1.0, 2.0, 5.0),
)


def host_boot_id(layout: Layout) -> str:
    """The boot id of the host that runs."""
    return layout.at("/proc/sys/kernel/random/boot_id").read_text().strip()


class HostReboot:
    """The work.

    Args:
        boot_id: of the host, read now.
    """

    def __init__(self, commands: Commands, boot_id: Callable[[], str]) -> None:
        self._commands = commands
        self._boot_id = boot_id

    def procedure(self, operation: MachineOperation) -> Procedure:  # noqa: ARG002  # as the Protocol has it
        return HOST_REBOOT

    async def observe(self, target: Target) -> Sight:
        now = self._boot_id()
        before = target.run.boot_id or now
        fact = Seen.SAME if now == before else Seen.OTHER
        return Sight(fact, detail=f"host boot id {now}", where=f"the host, boot id {now}", boot_id=before)

    async def perform(self, target: Target, action: str, *, before: float) -> str | None:  # noqa: ARG002  # there is one
        if asyncio.get_running_loop().time() > before:
            raise Transient("too late to reboot the host")
        if target.run.boot_id != (now := self._boot_id()):
            raise Transient(f"the boot that was to end has ended: this one is {now}")
        try:
            ran = await self._commands.run("systemctl", "reboot", timeout_s=_COMMAND_S, check=False)
        except Transient as error:  # it took too long, and may have been heard
            raise Uncertain(f"whether systemd reboots the host is not known: {error}") from error
        if not ran.ok:
            raise Transient(f"systemctl reboot: status {ran.status}: {' '.join(ran.stderr.split())[-300:]}")
        return None
