"""Inspections: what the report of its hardware costs a boot, with all machines at once.

Each host fetches its boot files and says that its installer runs, as in any boot: that is the bare boot. Then as many
other hosts do the same and report their hardware: metalman answers when the report is in the status. Each boot is the
first of its host, as a repeated one writes less to the status; a few hosts boot before, so that neither half is the
first. Simulated hosts, metalman and the embedded API server share this machine.

Beside it, the compilation of the layout of a profile with as many disks and partitions as one can have, the image of
virtual media for a boot (`media`), and reboots over BMCs with events and without (`bmc_events`).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks import children
from benchmarks.bmc_events import EVENTS, NO_EVENTS, reboot_figures
from benchmarks.frame import Limit, Measured, percentile, print_progress, run_benchmark
from benchmarks.media import media_figures
from unbounded.api.hardware import DiskFacts, HardwareFacts, NICFacts, ProcessorFacts, SystemFirmware, SystemIdentity
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.api.profile import MAX_DEVICES, MachineProfileSpec
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.metalman.http.boot_service import HardwareReport
from unbounded.metalman.layout.compiler import LayoutRequest, compile_layout
from unbounded.metalman.layout.model import DiskLayout
from unbounded.metalman.netboot.boot_requests import prefix_key

MIB: Final = 1 << 20
AT_ONCE: Final = 32  # requests that prepare the machines
FIRST_HOSTS: Final = 16  # that boot before anything is measured
PXE: Final[Mapping[str, Any]] = {
    "image": "registry.example/host:v1",
    "redfish": {
        "url": "https://bmc.example",
        "username": "admin",
        "passwordRef": {"name": "bmc", "namespace": "unbounded-kube", "key": "password"},
    },
}

AMOUNT: Final = (
    "{hosts:g} machines at once, {boot_mib:g} MiB for each boot, reports of {report_bytes:g} bytes, {bmcs:g} BMCs"
)
LIMITS: Final[Mapping[str, Limit]] = {
    "wall_vs_bare_boot": Limit("until all have booted and reported, over the boots alone", most=1.15),
    "report_to_status_p99_s": Limit("from a report to the status, p99, s", most=2.0),
    "report_to_status_p50_s": Limit("the same, median, s"),
    "metalman_cpu_ms_per_report": Limit("CPU of metalman for a report, ms"),
    "layout_p99_ms": Limit("to compile a layout of 24 disks with 8 partitions each, p99, ms", most=20.0),
    "media_made_p99_ms": Limit("to make the image of virtual media for a boot, p99, ms", most=100.0),
    "reboot_requests_with_events": Limit("requests to the BMC for a reboot, with events, p95", most=6.0),
    "reboot_requests_without_events": Limit("the same without events, mean"),
    "requests_with_events_vs_without": Limit("requests with events, over those without, mean"),
    "detection_with_events_p95_s": Limit("from a change of the power to its reading, with events, p95, s", most=2.0),
    "detection_without_events_p95_s": Limit("the same without events, p95, s"),
    "idle_requests_with_events_per_h": Limit("requests to an idle BMC with events, in an hour"),
    "media_vs_sendfile": Limit("rate of that image by HTTPS, over one sendfile", least=0.8),
}


@dataclass(frozen=True)
class Size:
    """Amounts of one run."""

    hosts: int
    boot_mib: int
    bmcs: int
    reboots: int  # of each BMC's host


FULL: Final = Size(hosts=500, boot_mib=48, bmcs=20, reboots=5)
QUICK: Final = Size(hosts=20, boot_mib=2, bmcs=2, reboots=2)


def facts(number: int) -> HardwareFacts:
    """Return the report of a server with 8 disks and 4 NICs."""
    disks = tuple(
        DiskFacts(
            name=f"sd{'abcdefgh'[disk]}",
            size_bytes=960_197_124_096,
            sector_bytes=512,
            rotational=False,
            bus="sas",
            vendor="KIOXIA",
            model="KPM5XRUG960G",
            serial_number=f"{number:08X}{disk}",
            wwn=f"0x58ce38ee{number:07x}{disk}",
            hctl=f"0:0:{disk}:0",
            by_id=(f"wwn-0x58ce38ee{number:07x}{disk}", f"scsi-358ce38ee{number:07x}{disk}"),
            by_path=(f"pci-0000:18:00.0-sas-phy{disk}-lun-0",),
            state="Blank",
        )
        for disk in range(8)
    )
    nics = tuple(
        NICFacts(name=f"eno{port}", mac=f"02:00:{port:02x}:00:{number >> 8:02x}:{number & 255:02x}", driver="ice",
                 link=True, speed_mbps=25_000)
        for port in range(4)
    )  # fmt: skip
    return HardwareFacts(
        system=SystemIdentity(manufacturer="Dell Inc.", product="PowerEdge R750", serial_number=f"{number:07X}"),
        firmware=SystemFirmware(vendor="Dell Inc.", version="1.12.1", mode="UEFI", secure_boot=True),
        cpus=128,
        processor=ProcessorFacts(architecture="x86_64", model="Xeon Gold 6338", sockets=2, cores=64),
        memory_bytes=549_755_813_888,
        numa_nodes=2,
        nics=nics,
        disks=disks,
    )


def report(number: int) -> HardwareReport:
    return HardwareReport(hardware=facts(number))


def _address(number: int) -> str:
    """Return the address from which a host sends its requests."""
    return f"127.1.{number >> 8}.{number & 255}"


async def _boot_request(api: HttpApi, number: int, turns: asyncio.Semaphore) -> str:
    """Create a Machine with a HostInspect that waits for its report; return the prefix of its boot."""
    async with turns:
        name = f"m{number}"
        mac = f"02:01:00:00:{number >> 8:02x}:{number & 255:02x}"
        lease = {"ipv4": _address(number), "mac": mac, "subnetMask": "255.0.0.0", "gateway": "127.0.0.1"}
        pxe = {**PXE, "dhcpLeases": [lease]}
        machine = await api.create(MACHINES, {"metadata": {"name": name}, "spec": {"pxe": pxe}})
        spec = {"operationKind": "HostInspect", "machineRef": name}
        operation = await api.create(MACHINE_OPERATIONS, {"metadata": {"name": name}, "spec": spec})
        execution = {
            "executor": "metalman",
            "incarnation": "one",
            "machineUID": machine.metadata.uid,
            "binding": "a-bmc",
        }
        target = {"machineRef": name, "phase": "InProgress", "stage": "WaitingReport"}
        status = {"phase": "InProgress", "targets": [target], "execution": execution}
        await api.patch(MACHINE_OPERATIONS, name, {"status": status}, subresource="status")
        return (await prefix_key(api)).prefix(machine.metadata.uid, operation.metadata.uid)


class Hosts:
    """The simulated hosts, and the address of metalman."""

    def __init__(self, port: int, prefixes: list[str]) -> None:
        self._urls = [f"http://127.0.0.1:{port}/boot/{prefix}" for prefix in prefixes]
        self.report_s: list[float] = []
        self._booted = 0

    async def boot(self, count: int, *, reporting: bool) -> float:
        """Boot so many further hosts at once; return the seconds until the last one is through."""
        began, first = time.perf_counter(), self._booted
        self._booted += count
        async with asyncio.TaskGroup() as tasks:
            for number in range(first, self._booted):
                tasks.create_task(self._boot(number, reporting=reporting))
        return time.perf_counter() - began

    async def _boot(self, number: int, *, reporting: bool) -> None:
        url = self._urls[number]
        connector = aiohttp.TCPConnector(local_addr=(_address(number), 0))
        async with aiohttp.ClientSession(connector=connector, raise_for_status=True) as session:
            async with session.get(f"{url}/initrd") as answer:
                async for _ in answer.content.iter_chunked(MIB):
                    pass
            await session.post(f"{url}/progress", json={"stage": "Starting", "message": "the installer runs"})
            if reporting:
                began = time.perf_counter()
                await session.post(f"{url}/hardware", json=msgspec.to_builtins(report(number)))
                self.report_s.append(time.perf_counter() - began)


def largest_profile() -> MachineProfileSpec:
    """Return a profile with as many disks, partitions and arrays as one can have."""
    devices = [
        {
            "device": {"minSize": "100Gi", "type": "ssd"},
            "partitions": [
                {"name": f"p{disk}-{number}", "size": "1Gi", "partflags": ["esp"] if number == 0 else []}
                for number in range(8)
            ],
        }
        for disk in range(MAX_DEVICES)
    ]
    arrays = [
        {"name": f"md{array}", "devices": [{"partition": f"p{disk}-{array}"} for disk in range(MAX_DEVICES)]}
        for array in range(1, 7)
    ]
    systems = [
        *({"fileSystem": "vfat", "partition": f"p{disk}-0"} for disk in range(MAX_DEVICES)),
        *(
            {"fileSystem": "ext4", "softRaidDevice": f"md{array}", "mountPoint": "/" if array == 1 else f"/d{array}"}
            for array in range(1, 7)
        ),
    ]
    return msgspec.convert({"devices": devices, "softRaidDevices": arrays, "fileSystems": systems}, MachineProfileSpec)


def layouts_ms(turns: int) -> list[float]:
    """Compile the largest layout some times; return the milliseconds of each."""
    (template, *_) = facts(0).disks
    disks = [
        msgspec.structs.replace(template, name=f"d{number}", serial_number=f"S{number}", by_id=(f"wwn-0x{number:x}",))
        for number in range(MAX_DEVICES)
    ]
    request, spent = LayoutRequest("largest", largest_profile(), "uid"), []
    for _ in range(turns):
        began = time.perf_counter()
        made = compile_layout(request, disks)
        spent.append((time.perf_counter() - began) * 1e3)
        assert isinstance(made, DiskLayout), made
    return spent


async def measure(quick: bool) -> Measured:
    size = QUICK if quick else FULL
    with TemporaryDirectory(prefix="hardware-") as name:
        folder = Path(name)
        (folder / "boot").mkdir()
        (folder / "boot/initrd").write_bytes(os.urandom(MIB) * size.boot_mib)
        async with children.start("benchmarks.server", str(folder / "data")) as server:
            async with HttpApi(from_kubeconfig(Path(server.ready["kubeconfig"]))) as api:
                print_progress(f"  {size.hosts} machines")
                await prefix_key(api)
                turns = asyncio.Semaphore(AT_ONCE)
                prefixes = await asyncio.gather(
                    *(_boot_request(api, each, turns) for each in range(FIRST_HOSTS + 2 * size.hosts))
                )
            site = ("benchmarks.hardware_site", server.ready["kubeconfig"], str(folder / "boot"))
            async with children.start(*site) as metalman:
                hosts = Hosts(metalman.ready["port"], list(prefixes))
                await hosts.boot(FIRST_HOSTS, reporting=True)
                hosts.report_s.clear()
                print_progress("  bare boots")
                before = metalman.cpu_s()
                bare_s = await hosts.boot(size.hosts, reporting=False)
                bare_cpu_s = metalman.cpu_s() - before
                print_progress("  boots with reports")
                wall_s = await hosts.boot(size.hosts, reporting=True)
                cpu_s = metalman.cpu_s() - before - bare_cpu_s
        (folder / "media").mkdir()
        print_progress("  virtual media")
        media = await media_figures(folder / "media", quick=quick)
    print_progress("  reboots over BMCs")
    reboots = partial(reboot_figures, bmcs=size.bmcs, reboots=size.reboots)
    told, asked = [await asyncio.to_thread(reboots, profile) for profile in (EVENTS, NO_EVENTS)]
    figures = {
        "bmcs": size.bmcs,
        "reboot_requests_with_events": percentile(told.requests, 0.95),
        "reboot_requests_without_events": mean(asked.requests),
        "detection_with_events_p95_s": percentile(told.lags_s, 0.95),
        "detection_without_events_p95_s": percentile(asked.lags_s, 0.95),
        "idle_requests_with_events_per_h": told.idle_per_h,
        "hosts": size.hosts,
        "boot_mib": size.boot_mib,
        "report_bytes": len(msgspec.json.encode(report(0))),
        "bare_boot_s": bare_s,
        "boot_with_report_s": wall_s,
        "report_to_status_p50_s": percentile(hosts.report_s, 0.5),
        "report_to_status_p99_s": percentile(hosts.report_s, 0.99),
        "layout_p99_ms": percentile(layouts_ms(20 if quick else 500), 0.99),
        "media_made_p99_ms": percentile(media.made_ms, 0.99),
        "media_mib": media.image_mib,
        "metalman_cpu_ms_per_report": max(cpu_s - bare_cpu_s, 0.0) / size.hosts * 1e3,
    }
    ratios = {
        "wall_vs_bare_boot": wall_s / bare_s,
        "media_vs_sendfile": media.stream_vs_sendfile,
        "requests_with_events_vs_without": mean(told.requests) / mean(asked.requests),
    }
    return Measured(figures, ratios)


if __name__ == "__main__":
    run_benchmark("hardware", measure)
