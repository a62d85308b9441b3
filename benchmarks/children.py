"""Measured child processes.

A child writes lines of JSON to its standard output: first that it is ready, then an answer to each line of its standard
input, by default its usage so far. It ends with that input, so that it never outlives the benchmark.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from unbounded.kube.metrics import ControllerMetrics

T = TypeVar("T")

READY_S: Final = 60.0
ANSWER_S: Final = 30.0
STOP_S: Final = 15.0
LONGEST_LINE: Final = 4 << 20


class ChildFailed(Exception):
    """A child ended early, or did not answer in time."""


@dataclass(frozen=True)
class Usage:
    """Seconds of CPU in user space and kernel, and requests to the Kubernetes API as `{"patch machines": 12}`."""

    cpu_s: float
    requests: dict[str, int] = field(default_factory=dict)

    def since(self, before: Usage) -> Usage:
        more = {what: count - before.requests.get(what, 0) for what, count in self.requests.items()}
        return Usage(self.cpu_s - before.cpu_s, {what: count for what, count in more.items() if count})


@dataclass
class Child:
    """One process. `ready` is its first line."""

    module: str
    process: Process
    ready: dict[str, Any] = field(default_factory=dict)

    async def usage(self) -> Usage:
        """Return the usage since the start."""
        return await self.request(b"usage?", Usage)

    async def request(self, words: bytes, answer: type[T], *, within_s: float = ANSWER_S) -> T:
        """Send a line, and return the answer."""
        if self.process.stdin is None:
            raise ChildFailed(f"{self.module} has no input")
        self.process.stdin.write(words + b"\n")
        return msgspec.convert(await self.line(within_s), answer, str_keys=True)

    @property
    def memory_mib(self) -> float:
        return memory_mib(self.process.pid)

    def cpu_s(self) -> float:
        """Return its seconds of CPU without a request to it."""
        return cpu_s(self.process.pid)

    async def line(self, within_s: float) -> dict[str, Any]:
        if self.process.stdout is None:
            raise ChildFailed(f"{self.module} has no output")
        try:
            async with asyncio.timeout(within_s):
                line = await self.process.stdout.readline()
        except TimeoutError as error:
            raise ChildFailed(f"{self.module} did not answer for {within_s:.0f} s") from error
        if not line:
            raise ChildFailed(f"{self.module} ended with status {await self.process.wait()}")
        return msgspec.json.decode(line, type=dict[str, Any])


def memory_mib(pid: int) -> float:
    """Return the proportional set size of a process: shared pages count by its share."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024


def cpu_s(pid: int) -> float:
    """Return the seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def start(module: str, *arguments: str, under: tuple[str, ...] = ()) -> AsyncIterator[Child]:
    """Run `python -m MODULE` during the block, which starts when the process is ready.

    Args:
        under: a command that runs the process, such as a profiler.
    """
    command = (*under, sys.executable, "-m", module, *arguments)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, start_new_session=True, limit=LONGEST_LINE
    )
    child = Child(module, process)
    try:
        child.ready = await child.line(READY_S)
        yield child
    finally:
        await asyncio.shield(stop(process))


async def stop(process: Process) -> None:
    """End a process: close its input, then send stronger and stronger signals."""
    if process.stdin is not None:
        process.stdin.close()
    for nudge in (None, process.terminate, process.kill):
        with suppress(TimeoutError, ProcessLookupError):
            if nudge is not None:
                nudge()
            async with asyncio.timeout(STOP_S):
                await process.wait()
                return


# In the child


async def serve(
    ready: object, metrics: ControllerMetrics | None = None, *, answer: Callable[[], object] | None = None
) -> None:
    """Report ready, answer each line of the parent, and return when the input ends.

    Args:
        metrics: those of the process's client of the Kubernetes API, if it has one.
        answer: returns the answer to each line; by default the usage.
    """
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    _write_line(ready)
    while await reader.readline():
        _write_line(answer() if answer else {"cpu_s": _cpu_s(), "requests": _requests(metrics) if metrics else {}})


def _write_line(words: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(words) + b"\n")
    sys.stdout.buffer.flush()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _requests(metrics: ControllerMetrics) -> dict[str, int]:
    counted: dict[str, int] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "unbounded_api_requests_total":
                what = f"{sample.labels['verb']} {sample.labels['kind']}"
                counted[what] = counted.get(what, 0) + int(sample.value)
    return counted
