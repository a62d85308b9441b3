"""A host whose Machine is deleted: nothing is made or taken away because of it, and a person is told.

The agent does not make the Machine again by itself: whoever deleted it may have meant it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from unbounded.agent.layout import Layout
from unbounded.agent.wanted import missing_words
from unbounded.api.machine import Machine
from unbounded.kube.cache import Cache
from unbounded.kube.logs import Log

log = Log("agent")


class Missing:
    """Says it in the log, and in a file that `unbounded-agent status` reads, for as long as it is so."""

    def __init__(self, machines: Cache[Machine], machine: str, layout: Layout) -> None:
        self._machines = machines
        self._machine = machine
        self._file = layout.machine_missing
        self._told = False

    async def run(self) -> None:
        """Until cancelled; the cache has to be synced."""
        try:
            with self._machines.subscribed(lambda _old, _new: self._look()):
                self._look()
                await asyncio.get_running_loop().create_future()
        finally:
            self._take_back()

    def _look(self) -> None:
        if self._machines.get(self._machine) is not None:
            self._take_back()
        elif not self._told:
            self._told = True
            words = missing_words(self._machine)
            log.error(words, machine=self._machine)
            with suppress(OSError):
                self._file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                self._file.write_text(f"{words}\n")

    def _take_back(self) -> None:
        self._told = False
        with suppress(OSError):
            self._file.unlink(missing_ok=True)
