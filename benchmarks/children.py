"""Processes that are measured: each says when it is ready and what it used, as lines of JSON on its standard output.

A child ends when its standard input does, so it never outlives the benchmark.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

READY_S: Final = 60.0
STOP_S: Final = 30.0


class ChildFailed(Exception):
    """A child ended, or said nothing, when it should have."""


@dataclass
class Child:
    """One process. `ready` is what it said when it was."""

    module: str
    process: Process
    ready: dict[str, Any] = field(default_factory=dict)

    async def end(self) -> dict[str, Any]:
        """Let it stop; what it says at its end."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        return await self.line(STOP_S)

    async def line(self, within_s: float) -> dict[str, Any]:
        if self.process.stdout is None:
            raise ChildFailed(f"{self.module} has no output")
        try:
            async with asyncio.timeout(within_s):
                line = await self.process.stdout.readline()
        except TimeoutError as error:
            raise ChildFailed(f"{self.module} said nothing for {within_s:.0f} s") from error
        if not line:
            raise ChildFailed(f"{self.module} ended with status {await self.process.wait()}")
        return msgspec.json.decode(line, type=dict[str, Any])


@asynccontextmanager
async def start(module: str, *arguments: str, under: tuple[str, ...] = ()) -> AsyncIterator[Child]:
    """Run `python -m MODULE`; it is ready when the block is entered, and gone when it is left.

    Args:
        under: a command that runs the process, such as a profiler.
    """
    command = (*under, sys.executable, "-m", module, *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, start_new_session=True)
    child = Child(module, process)
    try:
        child.ready = await child.line(READY_S)
        yield child
    finally:
        await asyncio.shield(_stop(process))


async def _stop(process: Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    for nudge in (None, process.terminate, process.kill):
        with suppress(TimeoutError, ProcessLookupError):
            if nudge is not None:
                nudge()
            async with asyncio.timeout(STOP_S / 2):
                await process.wait()
                return


# In the child


def say(words: Mapping[str, Any]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(words) + b"\n")
    sys.stdout.buffer.flush()


async def told_to_stop() -> None:
    """Wait for the end of the standard input."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    await reader.read()


def cpu_s() -> float:
    """Seconds of CPU that this process has used, in user space and in the kernel."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
