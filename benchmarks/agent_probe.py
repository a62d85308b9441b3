"""Probe of a service inside a host: memory, CPU, sent bytes, and gaps in its connections."""

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
    """agent_probe_inside.py in a host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def seconds_of(self, *argv: str) -> float:
        """Time a command inside the host."""
        return float((await self._host.run("python3", INSIDE, "time", *argv)).stdout)

    async def usage(self, unit: str) -> dict[str, float]:
        """Return `pss_kib`, `cpu_s` and `sent` (bytes on all present connections) of a unit's processes."""
        output = (await self._host.run("python3", INSIDE, "usage", unit)).stdout
        return msgspec.json.decode(output, type=dict[str, float])

    @asynccontextmanager
    async def watching(self, unit: str) -> AsyncIterator[Callable[[], Awaitable[list[float]]]]:
        """Watch the connections of a unit in the block; after it the callable returns the length of each gap."""
        process = await self._host.spawn(UNIT, "python3", INSIDE, "gaps", unit)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"watching\n"
        lengths: list[float] = []

        async def gaps() -> list[float]:
            return lengths

        yield gaps
        await self._host.run("systemctl", "kill", "--signal=SIGTERM", UNIT)
        async with asyncio.timeout(10):
            lengths.extend(msgspec.json.decode(await process.stdout.read(), type=list[float]))
            await process.wait()
