"""A process with simulated BMCs: `python -m unbounded_lab.bmc.worker`, started by `fleet.start_fleet`.

It reads a line of JSON from its standard input (Order), serves, and writes a line of JSON about that (Roll). It ends
when its standard input closes, so that it never outlives the process that started it.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from unbounded_lab.bmc.control import BmcControl, describe
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostPower
from unbounded_lab.listener import HOST


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """The BMCs to serve: those with these numbers, counted from 0."""

    indexes: tuple[int, ...]
    names: tuple[str, ...]
    profile: str
    seed: int
    shutdown_s: float
    boot_s: float
    port_base: int  # 0: any free ports
    power: HostPower


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The BMCs that are served, or the error."""

    control: str = ""
    bmcs: tuple[dict[str, Any], ...] = ()
    error: str = ""


def lab_bmcs(order: WorkerOrder) -> dict[str, LabBmc]:
    return {
        name: LabBmc(
            name,
            profile=order.profile,
            seed=order.seed,
            index=index,
            shutdown_s=order.shutdown_s,
            boot_s=order.boot_s,
            power=order.power,
            port=order.port_base + index if order.port_base else 0,
        )
        for index, name in zip(order.indexes, order.names, strict=True)
    }


async def serve(order: WorkerOrder, stdin: asyncio.StreamReader) -> None:
    bmcs = lab_bmcs(order)
    async with AsyncExitStack() as stack:
        try:
            for bmc in bmcs.values():
                await stack.enter_async_context(bmc)
        except OSError as error:
            return _write_report(WorkerReport(error=str(error)))
        runner = web.AppRunner(BmcControl(bmcs).application(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, HOST, 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        _write_report(WorkerReport(f"http://{host}:{port}", tuple(describe(bmc) for bmc in bmcs.values())))
        await stdin.read()
    return None


async def main() -> None:
    _allow_many_files()
    reader = asyncio.StreamReader(limit=1 << 24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    line = await reader.readline()
    if line:
        await serve(msgspec.json.decode(line, type=WorkerOrder), reader)


def _allow_many_files() -> None:
    """Raise the soft limit of open files to the hard limit: each BMC takes a port and its connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _write_report(roll: WorkerReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(roll) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(main())
