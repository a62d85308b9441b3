"""Report of a deleted Machine on its host: the agent changes nothing and informs the user.

The agent does not create the Machine again: the deletion may be intended.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from unbounded.agent.layout import Layout
from unbounded.agent.node_spec.for_build import deleted_machine_message
from unbounded.api.machine import Machine
from unbounded.kube.cache import Cache
from unbounded.kube.logs import Log

log = Log("agent")


class DeletedMachineReport:
    """Reports a deleted Machine in the log and in a file that `unbounded-agent status` reads, while it is missing."""

    def __init__(self, machines: Cache[Machine], machine: str, layout: Layout) -> None:
        self._machines = machines
        self._machine = machine
        self._file = layout.machine_missing
        self._is_reported = False

    async def run(self) -> None:
        """Run until cancelled; the cache has to be synced."""
        try:
            with self._machines.subscribed(lambda _old, _new: self._observe()):
                self._observe()
                await asyncio.get_running_loop().create_future()
        finally:
            self._withdraw()

    def _observe(self) -> None:
        if self._machines.get(self._machine) is not None:
            self._withdraw()
        elif not self._is_reported:
            self._is_reported = True
            words = deleted_machine_message(self._machine)
            log.error(words, machine=self._machine)
            with suppress(OSError):
                self._file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                self._file.write_text(f"{words}\n")

    def _withdraw(self) -> None:
        self._is_reported = False
        with suppress(OSError):
            self._file.unlink(missing_ok=True)
