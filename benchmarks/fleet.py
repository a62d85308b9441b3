"""A large fleet on one machine: time to start, memory and idle cost of `unbounded up`.

One process with all controllers serves 10,000 Machines and as many finished operations. Each of 500 watches follows the
operations of one Machine, as an agent does. A tenth of the fleet and an empty one show the growth of the cost.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp
import msgspec

from benchmarks import children
from benchmarks.frame import Limit, Measured, print_progress, run_benchmark
from benchmarks.load import Holding, Job, Report
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS

WATCH: Final = f"{MACHINE_OPERATIONS.path()}?watch=true&resourceVersion=0&fieldSelector=spec.machineRef=machine-#"
READY_S: Final = 180.0
SETTLED_S: Final = 2.0  # without a call to the API: the work of the start is done
HEALTH: Final = re.compile(r"http://[^ ]+/readyz")
CALLS: Final = re.compile(r"^unbounded_api_requests_total\{.*\} ([0-9.e+]+)$", re.MULTILINE)

AMOUNT: Final = "{machines:g} Machines of 3.6 kB, as many finished operations of 2.5 kB, {watches:g} watches"
LIMITS: Final[Mapping[str, Limit]] = {
    "memory_10k_vs_1k": Limit("memory for each Machine with its operation, over that at a tenth", most=1.0),
    "list_10k_vs_1k": Limit("list of all Machines, time for each, over that at a tenth", most=1.0),
    "synced_s": Limit("from the start until API server and controllers are in sync, s"),
    "memory_mib": Limit("memory of API server and controllers, MiB", most=400),
    "idle_calls_per_s": Limit("idle: calls to the API in a second", most=1.0),
    "idle_cpu_percent": Limit("idle: share of a core, %", most=2.0),
}


@dataclass(frozen=True)
class Size:
    """Size of the fleet, and duration of the idle measurement."""

    machines: int
    watches: int
    first_s: float  # after the start, for the first look at each BMC: what follows is idle
    idle_s: float
    lists: int


FULL: Final = Size(machines=10_000, watches=500, first_s=200.0, idle_s=60.0, lists=5)
QUICK: Final = Size(machines=50, watches=10, first_s=0.0, idle_s=8.0, lists=2)


@dataclass(frozen=True)
class FleetFigures:
    """Figures of one `unbounded up`."""

    synced_s: float
    memory_mib: float  # with the watches
    list_ms: float
    watching_s: float
    calls_per_s: float
    cpu_percent: float


async def run(quick: bool) -> Measured:
    size = QUICK if quick else FULL
    found: dict[int, FleetFigures] = {}
    for machines in (0, size.machines // 10, size.machines):
        idle_s = size.idle_s if machines == size.machines else 0.0
        found[machines] = await measured(machines, size, idle_s)
        print_progress(f"{machines} machines: {found[machines]}")
    none, tenth, whole = found.values()
    per_machine_kib = 1024 * (whole.memory_mib - none.memory_mib) / size.machines
    tenth_kib = 1024 * (tenth.memory_mib - none.memory_mib) / (size.machines // 10)
    return Measured(
        figures={
            "machines": size.machines,
            "watches": size.watches,
            "synced_s": whole.synced_s,
            "synced_empty_s": none.synced_s,
            "memory_mib": whole.memory_mib,
            "memory_empty_mib": none.memory_mib,
            "memory_per_machine_kib": per_machine_kib,
            "list_ms": whole.list_ms,
            "watching_s": whole.watching_s,
            "idle_calls_per_s": whole.calls_per_s,
            "idle_cpu_percent": whole.cpu_percent,
        },
        ratios={
            "memory_10k_vs_1k": per_machine_kib / tenth_kib,
            "list_10k_vs_1k": whole.list_ms / size.machines / (tenth.list_ms / (size.machines // 10)),
        },
    )


async def measured(machines: int, size: Size, idle_s: float) -> FleetFigures:
    with TemporaryDirectory(prefix="unbounded-benchmark-") as folder:
        data = Path(folder) / "data"
        await _fill(data, machines)
        async with running_up(data) as (up, synced_s), children.start("benchmarks.load") as generator:
            kubeconfig = str(data / "kubeconfig")
            await up.settled()
            holding = Holding(kubeconfig=kubeconfig, watches=size.watches, hold=WATCH, objects=max(machines, 1))
            held = await generator.request(msgspec.json.encode(holding), Report, within_s=READY_S)
            job = Job(kubeconfig=kubeconfig, clients=1, requests=size.lists, path=MACHINES.path())
            listed = await generator.request(msgspec.json.encode(job), Report, within_s=READY_S)
            if idle_s:
                await asyncio.sleep(size.first_s)
            await up.settled()
            calls_per_s, cpu_percent = await _idle(up, idle_s) if idle_s else (0.0, 0.0)
            return FleetFigures(
                synced_s=synced_s,
                memory_mib=up.memory_mib,
                list_ms=listed.p50_ms,
                watching_s=held.seconds,
                calls_per_s=calls_per_s,
                cpu_percent=cpu_percent,
            )


@dataclass(frozen=True)
class Up:
    """A running `unbounded up`."""

    process: Process
    health: str
    http: aiohttp.ClientSession

    @property
    def memory_mib(self) -> float:
        return children.memory_mib(self.process.pid)

    def cpu_s(self) -> float:
        return children.cpu_s(self.process.pid)

    async def calls(self) -> float:
        """Return the number of requests that its controllers have sent."""
        async with self.http.get(self.health.replace("/readyz", "/metrics")) as answer:
            return sum(map(float, CALLS.findall(await answer.text())))

    async def synced(self) -> None:
        """Wait until it reports ready; the caller sets the limit."""
        while True:
            async with self.http.get(self.health) as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.02)

    async def settled(self) -> None:
        """Wait until the controllers have been idle for SETTLED_S."""
        async with asyncio.timeout(READY_S):
            before = -1.0
            while (calls := await self.calls()) != before:
                before = calls
                await asyncio.sleep(SETTLED_S)


@asynccontextmanager
async def running_up(data: Path, *flags: str) -> AsyncIterator[tuple[Up, float]]:
    """Run `unbounded up`; yield it when all is in sync, with the seconds until then."""
    began = time.monotonic()
    output = data.with_name("output")
    command = (sys.executable, "-m", "unbounded.cli.main", "up", "--data", str(data), "--port", "0", *flags)
    with output.open("wb") as out:
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=out, start_new_session=True)
    try:
        async with asyncio.timeout(READY_S), aiohttp.ClientSession() as http:
            while (found := HEALTH.search(output.read_text())) is None:
                if process.returncode is not None:
                    raise RuntimeError(f"unbounded up ended with status {process.returncode}")
                await asyncio.sleep(0.02)
            await Up(process, found[0], http).synced()
            synced_s = time.monotonic() - began
        async with aiohttp.ClientSession() as http:
            yield Up(process, found[0], http), synced_s
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await asyncio.shield(children.stop(process))


async def _fill(data: Path, machines: int) -> None:
    command = (sys.executable, "-m", "benchmarks.fleet_data", str(data), str(machines))
    process = await asyncio.create_subprocess_exec(*command)
    if await process.wait():
        raise RuntimeError("cannot create the fleet")


async def _idle(up: Up, seconds: float) -> tuple[float, float]:
    """Return the calls to the API in a second and the percent of a core of an idle fleet."""
    calls, cpu_s, began = await up.calls(), up.cpu_s(), time.monotonic()
    await asyncio.sleep(seconds)
    cpu_s, took_s = up.cpu_s() - cpu_s, time.monotonic() - began
    return (await up.calls() - calls) / took_s, 100 * cpu_s / took_s


if __name__ == "__main__":
    run_benchmark("fleet", run)
