"""Network boots of many hosts at the same time: `python -m benchmarks.boot_storm [--quick]`.

Servers and clients run in two network namespaces with a link between them. The same run measures nginx, Kea and
tftpd-hpa in place of metalman's servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from benchmarks import children, netboot_peers
from benchmarks.children import Child
from benchmarks.frame import Limit, Measured, print_progress, run_benchmark
from benchmarks.netboot_clients import BootJob, BootTimes
from benchmarks.netboot_net import Net, joined
from benchmarks.netboot_peers import exchanges_per_second, missing, tftp_seconds

AMOUNT: Final = "{hosts:g} hosts, a loader of {loader_mib:g} MiB and an image of {image_mib:g} MiB for each"
LIMITS: Final[Mapping[str, Limit]] = {
    "goodput_vs_one_sendfile": Limit("downloads, over sendfile to a single client", least=0.8),
    "slowest_vs_median": Limit("slowest download, over the median", most=2.0),
    "memory_growth": Limit("memory of the servers after all downloads, over that after the first", most=1.1),
    "http_cpu_vs_nginx": Limit("CPU of the HTTP server for a download, over nginx's", aim=1.0),
    "http_total_cpu_vs_nginx": Limit("the same of server and simulated hosts together"),
    "dhcp_vs_kea": Limit("leases in a second, over Kea's; 1 where both keep pace with perfdhcp", aim=1.0),
    "dhcp_cpu_vs_kea": Limit("CPU of the server for a lease meanwhile, over Kea's"),
    "tftp_vs_tftpd_hpa": Limit("TFTP in blocks of 512 bytes, over tftpd-hpa"),
    "tftp_window_vs_tftpd_hpa": Limit("TFTP to a client that asks for a window of 16, over tftpd-hpa", aim=1.0),
    "dhcp_during_downloads": Limit("DHCP answers in a second while all hosts download", least=3000),
    "leases_during_downloads": Limit("leases in a second meanwhile", aim=3000),
    "storm_s": Limit("from power on until the last host has lease, loader and image, s"),
    "memory_mib": Limit("memory of the servers, MiB"),
}
MIB: Final = 1 << 20
WINDOW: Final = 16
PREFIX: Final = "/boot/" + "a" * 26


@dataclass(frozen=True)
class Size:
    hosts: int
    image_mib: int
    rounds: int  # of downloads, ours and each peer's in turn
    dhcp_s: int
    dhcp_offered: int = 6000  # exchanges in a second: more than any server here completes
    loader_mib: int = 1


FULL: Final = Size(hosts=200, image_mib=50, rounds=3, dhcp_s=5)
QUICK: Final = Size(hosts=20, image_mib=8, rounds=1, dhcp_s=1)


@dataclass(frozen=True)
class Round:
    """Downloads by all hosts: bytes in a second, the slowest over the median, and CPU seconds of server and hosts.

    The kernel charges the work of the link to either end, and more to the one that waits less.
    """

    goodput: float
    slowest_vs_median: float
    server_cpu_s: float
    hosts_cpu_s: float

    @property
    def cpu_s(self) -> float:
        return self.server_cpu_s + self.hosts_cpu_s


class Storm:
    """One run, with its files and its network."""

    def __init__(self, size: Size, net: Net, folder: Path) -> None:
        self.size = size
        self.net = net
        self.folder = folder
        self.image = folder / "image"
        self.loader = folder / "loader.efi"
        folder.chmod(0o755)  # tftpd-hpa serves only world-readable files
        self.loader.write_bytes(os.urandom(size.loader_mib * MIB))
        self.image.write_bytes(os.urandom(MIB) * size.image_mib)

    def servers(self) -> contextlib.AbstractAsyncContextManager[Child]:
        """Run metalman's servers in one process."""
        return children.start("benchmarks.netboot_server", str(self.loader), str(self.image), under=self.net.server)

    async def hosts(self, job: BootJob) -> BootTimes:
        """Switch hosts on, and wait for them."""
        command = (sys.executable, "-m", "benchmarks.netboot_clients", msgspec.json.encode(job).decode())
        process = await asyncio.create_subprocess_exec(*self.net.client, *command, stdout=PIPE)
        output, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError("the hosts failed")
        return msgspec.json.decode(output, type=BootTimes)

    def downloads(self, port: int, **more: float) -> BootJob:
        prefix = "" if port == 80 else PREFIX
        job = BootJob(hosts=self.size.hosts, port=port, path=f"{prefix}/image", bytes=self.size.image_mib * MIB)
        return msgspec.structs.replace(job, **more)

    async def round(self, port: int, pid: int) -> Round:
        before = _ran_s(pid)
        done = await self.hosts(self.downloads(port))
        took, used = done.images_s, _ran_s(pid) - before
        moved = self.size.hosts * self.size.image_mib * MIB
        return Round(moved / max(took), max(took) / statistics.median(took), used, done.cpu_s)

    async def one_sendfile(self) -> float:
        """Return the bytes in a second to the only client."""
        times = max(2000 // self.size.image_mib, 1) if self.size is FULL else 40
        moved = times * self.size.image_mib * MIB
        module = "benchmarks.one_sendfile"
        async with children.start(module, str(self.image), str(times), under=self.net.server) as child:
            took = (await self.hosts(BootJob(hosts=1, port=child.ready["port"], path="/", bytes=moved))).images_s
        return moved / took[0]


def _ran_s(pid: int) -> float:
    """Return the CPU seconds of a process's threads, finer than the ticks of /proc/PID/stat: nginx needs few ticks."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


async def measure(quick: bool) -> Measured:
    """Run all parts. Raises RuntimeError if a requirement is missing."""
    if absent := missing():
        raise RuntimeError(f"the boot storm needs {absent}")
    size = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="boot-storm-") as name, joined() as net:
        storm = Storm(size, net, Path(name))
        figures: dict[str, float] = {
            "hosts": size.hosts,
            "image_mib": size.image_mib,
            "loader_mib": size.loader_mib,
        }
        ratios: dict[str, float] = {}
        for part in (_downloads, _whole_boots, _leases, _loaders):
            print_progress(f"  {part.__name__[1:].replace('_', ' ')}")
            more_figures, more_ratios = await part(storm)
            figures |= more_figures
            ratios |= more_ratios
    return Measured(figures, ratios)


PartResult = tuple[dict[str, float], dict[str, float]]


async def _downloads(storm: Storm) -> PartResult:
    """Send the image alone to all hosts at once; the servers take turns, so that other load affects all alike."""
    ours: list[Round] = []
    theirs: list[Round] = []
    single: list[float] = []
    async with storm.servers() as servers, netboot_peers.nginx(storm.net, storm.folder) as nginx:
        for number in range(storm.size.rounds):
            ours.append(await storm.round(servers.ready["http"], servers.process.pid))
            if number == 0:
                first = servers.memory_mib
            theirs.append(await storm.round(80, nginx.pid))
            single.append(await storm.one_sendfile())
        if storm.size.rounds == 1:
            await storm.round(servers.ready["http"], servers.process.pid)
        memory = servers.memory_mib
    middle = statistics.median
    figures = {
        "download_mb_per_second": middle(one.goodput for one in ours) / 1e6,
        "nginx_mb_per_second": middle(one.goodput for one in theirs) / 1e6,
        "one_sendfile_mb_per_second": middle(single) / 1e6,
        "memory_mib": memory,
    }
    ratios = {
        "goodput_vs_one_sendfile": middle(one.goodput for one in ours) / middle(single),
        "slowest_vs_median": max(one.slowest_vs_median for one in ours),
        "http_cpu_vs_nginx": middle(one.server_cpu_s for one in ours) / middle(one.server_cpu_s for one in theirs),
        "http_total_cpu_vs_nginx": middle(one.cpu_s for one in ours) / middle(one.cpu_s for one in theirs),
        "memory_growth": memory / first,
    }
    return figures, ratios


async def _whole_boots(storm: Storm) -> PartResult:
    """Boot hosts that are switched on together: lease, loader and image."""
    size = storm.size
    async with storm.servers() as servers:
        job = storm.downloads(servers.ready["http"])
        loading = msgspec.structs.replace(job, loader=storm.loader.name, loader_bytes=size.loader_mib * MIB)
        done = await storm.hosts(loading)
    figures = {
        "storm_s": max(done.leases_s) + max(done.loaders_s) + max(done.images_s),
        "last_lease_s": max(done.leases_s),
        "last_loader_s": max(done.loaders_s),
        "last_image_s": max(done.images_s),
    }
    return figures, {"slowest_loader_vs_median": max(done.loaders_s) / statistics.median(done.loaders_s)}


async def _leases(storm: Storm) -> PartResult:
    """Measure the rate of leases of a server, alone and while all hosts download."""
    offered, seconds = storm.size.dhcp_offered, storm.size.dhcp_s
    async with storm.servers() as servers:
        ours, our_cpu_s = await _exchanges(storm, servers.process.pid)
        job = storm.downloads(servers.ready["http"], again_s=seconds + 2.0)
        async with _meanwhile(storm, job):
            during = await exchanges_per_second(storm.net, offered=offered, seconds=seconds)
    async with netboot_peers.kea(storm.net, storm.folder) as kea:
        theirs, their_cpu_s = await _exchanges(storm, kea.pid)
    figures = {
        "leases_per_second": ours,
        "kea_leases_per_second": theirs,
        "leases_during_downloads": during,
        "dhcp_during_downloads": 2 * during,  # a lease takes two answers
    }
    return figures, {"dhcp_vs_kea": ours / theirs, "dhcp_cpu_vs_kea": our_cpu_s / their_cpu_s}


async def _exchanges(storm: Storm, pid: int) -> tuple[float, float]:
    """Return the leases of a server in a second, and its CPU seconds for each."""
    before, seconds = _ran_s(pid), storm.size.dhcp_s
    rate = await exchanges_per_second(storm.net, offered=storm.size.dhcp_offered, seconds=seconds)
    return rate, (_ran_s(pid) - before) / (rate * seconds)


@contextlib.asynccontextmanager
async def _meanwhile(storm: Storm, job: BootJob) -> AsyncIterator[None]:
    """Run downloads beside the block; they end by themselves."""
    async with asyncio.TaskGroup() as group:
        downloads = group.create_task(storm.hosts(job))
        await asyncio.sleep(0.5)  # until they are under way
        yield
        if downloads.done():
            raise RuntimeError("the downloads ended too early")


async def _loaders(storm: Storm) -> PartResult:
    """Fetch the loader in one transfer at a time, by third-party clients."""
    target = storm.folder / "fetched"

    async def fetched() -> tuple[float, float]:
        plain = [await tftp_seconds(storm.net, storm.loader.name, target, window=None) for _ in range(5)]
        windowed = [await tftp_seconds(storm.net, storm.loader.name, target, window=WINDOW) for _ in range(5)]
        if target.read_bytes() != storm.loader.read_bytes():
            raise RuntimeError("the received file is not the loader")
        return statistics.median(plain), statistics.median(windowed)

    async with storm.servers():
        ours = await fetched()
    async with netboot_peers.tftpd(storm.net, storm.folder):
        theirs = await fetched()
    moved = storm.size.loader_mib * MIB / 1e6
    figures = {"tftp_mb_per_second": moved / ours[0], "tftp_window_mb_per_second": moved / ours[1]}
    return figures, {
        "tftp_vs_tftpd_hpa": theirs[0] / ours[0],
        "tftp_window_vs_tftpd_hpa": theirs[1] / ours[1],
    }


if __name__ == "__main__":
    run_benchmark("boot_storm", measure)
