"""Host operations on many BMCs: cost of the control plane beside the BMCs' own time, and the effect of stalled BMCs.

The lab's BMCs and hosts (shutdown 1 s, boot 2 s), the API server and the controllers run in separate processes. The
benchmark requests all reboots at once; a concurrency limit applies. Each of the three rounds starts new BMCs:

1. a bare client (`bare_client`) reboots the hosts;
2. MachineOperations reboot the hosts;
3. the same with further BMCs, one in ten of all, that take 30 s to answer any request. Their TCP and TLS answer at
   once: this is the worst kind, as only a time limit detects it. The number of healthy hosts stays the same.

The certificates are pinned beforehand: a Machine needs that once, and not for each operation.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks import bare_client, children
from benchmarks.frame import Limit, Measured, percentile, print_progress, run_benchmark
from benchmarks.progress import Progress, create_operation, phases_written, watched
from unbounded.api.core import SECRETS
from unbounded.api.machine import MACHINES
from unbounded.kube.api import Api
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded_lab import machines as lab
from unbounded_lab.bmc.fleet import Fleet, FleetBmc, start_fleet

STALLING: Final = "stalls"
ONE_IN: Final = 10
PROCESSES: Final = 2  # of the fleet
SETTLED_S: Final = 60.0  # until all sessions are released
WRITES: Final = ("create", "patch", "delete")
NOT_COUNTED: Final = ("events", "leases")

AMOUNT: Final = "{reboots:g} reboots, {concurrent:g} at a time"
LIMITS: Final[Mapping[str, Limit]] = {
    "wall_vs_bare_client": Limit("time for all reboots, over that of a bare Redfish client", most=1.6, aim=1.25),
    "controller_cpu_vs_bare_client": Limit("CPU of the controllers for a reboot, over that of a bare Redfish client"),
    "p99_with_stalled_bmcs": Limit(
        "healthy hosts' p99 while one BMC in ten stalls for 30 s, over that without", most=1.2
    ),
    "controller_cpu_ms_per_reboot": Limit("CPU of the controllers for a reboot, ms", aim=8.0),
    "api_writes_per_operation": Limit("API writes of the controllers for a reboot, Events and Leases apart", most=10.0),
    "bmc_requests_per_reboot": Limit("requests to the BMC for a reboot, log-in and log-out included", most=12.0),
}


@dataclass(frozen=True)
class Size:
    """Amounts of one round."""

    reboots: int
    concurrent: int
    within_s: float


FULL: Final = Size(reboots=1000, concurrent=200, within_s=300.0)
QUICK: Final = Size(reboots=9, concurrent=9, within_s=60.0)


@dataclass(frozen=True)
class Bare:
    """Time and CPU of the bare client's reboots. It runs in this process, and the BMCs in others."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Round:
    """Times and resource use of one round of MachineOperations; times in seconds, of the healthy hosts."""

    wall_s: float
    whole_s: Sequence[float]  # from creation to Complete
    work_s: Sequence[float]  # from the claim to Complete
    controllers: children.Usage
    server: children.Usage
    bmc_requests: Sequence[int]  # log-outs included only of a round that was `settled`

    @property
    def api_writes(self) -> int:
        """Count the writes of the controllers, without the user's creation."""
        counted = ((what.split(), count) for what, count in self.controllers.requests.items())
        return sum(count for (verb, kind), count in counted if verb in WRITES and kind not in NOT_COUNTED)


async def run(quick: bool) -> Measured:
    size = QUICK if quick else FULL
    bare = await bare_round(size)
    plain = await operations_round(size, profile="ideal", count=size.reboots, settled=True)
    mixed = f"ideal*{ONE_IN - 1},{STALLING}"
    count = size.reboots + size.reboots // (ONE_IN - 1)
    stalled = await operations_round(size, profile=mixed, count=count, settled=False)
    return measured(size, bare, plain, stalled)


def measured(size: Size, bare: Bare, plain: Round, stalled: Round) -> Measured:
    p99_s, stalled_p99_s = percentile(plain.whole_s, 0.99), percentile(stalled.whole_s, 0.99)
    return Measured(
        figures={
            "reboots": size.reboots,
            "concurrent": size.concurrent,
            "wall_s": plain.wall_s,
            "bare_client_wall_s": bare.wall_s,
            "bare_client_cpu_ms_per_reboot": 1000 * bare.cpu_s / size.reboots,
            "reboots_per_s": size.reboots / plain.wall_s,
            "p50_s": percentile(plain.whole_s, 0.5),
            "p99_s": p99_s,
            "p99_with_stalled_bmcs_s": stalled_p99_s,
            "work_p50_s": percentile(plain.work_s, 0.5),
            "work_p99_s": percentile(plain.work_s, 0.99),
            "work_p99_with_stalled_bmcs_s": percentile(stalled.work_s, 0.99),
            "controller_cpu_ms_per_reboot": 1000 * plain.controllers.cpu_s / size.reboots,
            "server_cpu_ms_per_reboot": 1000 * plain.server.cpu_s / size.reboots,
            "api_writes_per_operation": plain.api_writes / size.reboots,
            "bmc_requests_per_reboot": sum(plain.bmc_requests) / size.reboots,
            "bmc_requests_at_most": max(plain.bmc_requests),
        },
        ratios={
            "wall_vs_bare_client": plain.wall_s / bare.wall_s,
            "controller_cpu_vs_bare_client": plain.controllers.cpu_s / bare.cpu_s,
            "p99_with_stalled_bmcs": stalled_p99_s / p99_s,
        },
    )


async def bare_round(size: Size) -> Bare:
    async with start_fleet(size.reboots, processes=PROCESSES) as fleet:
        began, used_s = time.monotonic(), time.process_time()
        await bare_client.reboot_all(fleet, concurrent=size.concurrent)
        wall_s = time.monotonic() - began
        print_progress(f"bare client: {size.reboots} reboots in {wall_s:.1f} s")
        return Bare(wall_s, time.process_time() - used_s)


async def operations_round(size: Size, *, profile: str, count: int, settled: bool) -> Round:
    """Reboot every host by an operation, and wait for the healthy ones.

    Args:
        settled: also count the requests after the last reboot, which release idle sessions.
    """
    async with (
        start_fleet(count, profile=profile, processes=PROCESSES) as fleet,
        _control_plane(fleet, size) as (api, server, controllers),
    ):
        healthy = [bmc for bmc in fleet if bmc.profile != STALLING]
        progress = Progress()
        await phases_written(api)
        used, served = await controllers.usage(), await server.usage()
        began = time.monotonic()
        async with asyncio.timeout(size.within_s), watched(api, progress):
            await asyncio.gather(
                *(create_operation(api, progress, _name(bmc), "HostReboot", bmc.name) for bmc in fleet)
            )
            await progress.all_complete(_name(bmc) for bmc in healthy)
        wall_s = max(progress.complete.values()) - began
        print_progress(f"operations on {profile}: {len(healthy)} reboots in {wall_s:.1f} s")
        requests = await _requests(healthy, settled=settled)
        used, served = (await controllers.usage()).since(used), (await server.usage()).since(served)
        print_progress(f"requests of the controllers: {used.requests}")
    names = [_name(bmc) for bmc in healthy]
    return Round(
        wall_s=wall_s,
        whole_s=[progress.complete[name] - progress.created[name] for name in names],
        work_s=[progress.complete[name] - progress.claimed[name] for name in names],
        controllers=used,
        server=served,
        bmc_requests=requests,
    )


def _name(bmc: FleetBmc) -> str:
    return f"reboot-{bmc.name}"


@asynccontextmanager
async def _control_plane(fleet: Fleet, size: Size) -> AsyncIterator[tuple[Api, children.Child, children.Child]]:
    """Run an API server with the fleet's Machines, and controllers in sync with it."""
    with TemporaryDirectory(prefix="unbounded-benchmark-") as folder:
        async with children.start("benchmarks.server", str(Path(folder) / "data")) as server:
            kubeconfig = server.ready["kubeconfig"]
            async with HttpApi(from_kubeconfig(Path(kubeconfig))) as api:
                await asyncio.gather(*(register(api, bmc) for bmc in fleet))
                options = ("--kubeconfig", kubeconfig, "--site", lab.SITE, "--concurrent", str(size.concurrent))
                async with children.start("benchmarks.controllers", *options) as controllers:
                    yield api, server, controllers


async def register(api: Api, bmc: FleetBmc) -> None:
    secret = lab.secret(bmc)
    await api.create(SECRETS, secret)
    for manifest in lab.machines(bmc):
        machine = await api.create(MACHINES, manifest)
        pinned = {"status": {"redfish": {"certFingerprint": bmc.fingerprint}}}
        await api.patch(MACHINES, machine.name, pinned, subresource="status")


async def _requests(bmcs: Sequence[FleetBmc], *, settled: bool) -> list[int]:
    """Return the number of requests of each BMC; if `settled`, after its last session is released."""
    requests: dict[str, int] = {}
    async with asyncio.timeout(SETTLED_S):
        while missing := [bmc for bmc in bmcs if bmc.name not in requests]:
            for bmc in missing:
                truth: dict[str, Any] = await bmc.truth()
                if truth["sessions"] == 0 or not settled:
                    requests[bmc.name] = truth["requests"]
            await asyncio.sleep(0.5)
    return [requests[bmc.name] for bmc in bmcs]


if __name__ == "__main__":
    run_benchmark("operations", run)
