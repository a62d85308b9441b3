"""What is seen of a service inside a host: its memory, its CPU, what it sends, and when it has its connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from tests.support.hosts import Host

PROBE: Final = Path(__file__).with_name("agent_probe_inside.py")
INSIDE: Final = "/usr/local/lib/probe.py"
UNIT: Final = "probe"


class Probe:
    """Runs agent_probe_inside.py in a host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def seconds_of(self, *argv: str) -> float:
        """How long a command takes, timed inside."""
        return float((await self._host.run("python3", INSIDE, "time", *argv)).stdout)

    async def look(self, unit: str) -> dict[str, float]:
        """`pss_kib`, `cpu_s` and `sent` (bytes on all connections that it has now) of a unit's processes."""
        told = (await self._host.run("python3", INSIDE, "look", unit)).stdout
        return msgspec.json.decode(told, type=dict[str, float])

    @asynccontextmanager
    async def watching(self, unit: str) -> AsyncIterator[Callable[[], Awaitable[list[float]]]]:
        """Look at the connections of a unit while entered; then the callable tells how long each gap was."""
        process = await self._host.spawn(UNIT, "python3", INSIDE, "gaps", unit)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"watching\n"
        told: list[float] = []

        async def gaps() -> list[float]:
            return told

        yield gaps
        await self._host.run("systemctl", "kill", "--signal=SIGTERM", UNIT)
        async with asyncio.timeout(10):
            told.extend(msgspec.json.decode(await process.stdout.read(), type=list[float]))
            await process.wait()
