"""A machine whose disks are loop devices, which the installer's own shell installs from the real HTTP side of metalman.

The installer finds the disks by the kernel's usual names. Sizes, sectors and content are those of the devices. The
installer's clock runs only while it sleeps, so that it waits for late disks as long as on a machine, at no cost.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry

from tests.images.content import MIB, SECTOR, packed, put
from tests.images.disk_sets import CONTENTS, DiskSet, SetDisk
from tests.images.loops import PART_MIB, loop_devices
from tests.images.support import INSTALLER, Host, busybox, needed
from tests.metalman.support import netboot_site as sites
from tests.metalman.support.netboot_objects import lease, machine_body
from unbounded.metalman.http.boot_service import BootService, HardwareReport, ProgressReport, ReportAnswer
from unbounded.metalman.http.response_signing import StatementKeySource, no_statements
from unbounded.metalman.http.server import HttpServer, HttpServerSettings
from unbounded.metalman.netboot.model import BootImages, NetbootImage

BLOCK: Final = 4096
ENDS_S: Final = 300.0  # an install, where many tests run; alone it takes a hundredth of that
LATER: Final = """
sleep() {
    read -r slept_at _ <"$UPTIME"
    printf '%s 0\\n' $((slept_at + ${1%.*})) >"$UPTIME"
    arrive
}

arrive() {
    read -r arrive_now _ <"$UPTIME"
    while read -r arrive_s arrive_name; do
        [ "$arrive_s" -gt "$arrive_now" ] || [ -e "$SYS/block/$arrive_name" ] || cp -a "$LATER/$arrive_name/." "$ROOT/"
    done <"$LATER/times"
}

REPORT_AGAIN_S=60 # a report takes long where many tests run
"""
PARTITIONS: Final = """#!/bin/sh
{busybox} blockdev "$@"
[ "$1" = --rereadpt ] || exit 0
device=$(readlink -f "$2")
[ -b "${{device}}p2" ] || {addpart} "$device" 2 {start} {size}
mkdir -p "$SYS/block/${{2##*/}}/${{2##*/}}2"
ln -sfn "${{device}}p2" "${{2}}2"
"""
"""Shows the second partition of a written disk, as udev does."""


@dataclass
class Answered:
    """A report of the hardware: when it came, on the installer's clock, and what metalman answered."""

    at_s: int
    report: HardwareReport
    answer: ReportAnswer


@dataclass
class Recorder:
    """Metalman's own service, with a record of the reports; after an answer that names a disk a test may act."""

    boots: BootService
    clock: Path
    reports: list[Answered] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    on_choice: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.boots, name)

    async def progress(self, client: str, prefix: str, report: ProgressReport) -> ReportAnswer:
        failure = f"{report.stage}: {report.message}"
        if report.failed and failure not in self.failures:  # the installer repeats it where the answer comes late
            self.failures.append(failure)
        return await self.boots.progress(client, prefix, report)

    async def hardware(self, client: str, prefix: str, report: HardwareReport) -> ReportAnswer:
        answer = await self.boots.hardware(client, prefix, report)
        self.reports.append(Answered(uptime(self.clock), report, answer))
        if answer.body.get("action") == "Write" and self.on_choice is not None:
            self.on_choice(sum(one.answer.body.get("action") == "Write" for one in self.reports))
        return answer


def uptime(clock: Path) -> int:
    return int(clock.read_text().split()[0])


class LoopHost:
    """The machine, until `close`."""

    def __init__(self, folder: Path) -> None:
        self.host = Host(folder / "host")
        self.clock = folder / "uptime"
        self._later, self._files = folder / "later", folder / "files"
        self._stack = ExitStack()
        self._attach = self._stack.enter_context(loop_devices())
        self.devices: list[Path] = []  # all that were made
        self._of: list[Path] = []  # their files
        self._lib = folder / "lib"
        shutil.copytree(INSTALLER, self._lib)
        with (self._lib / "choose_disk.sh").open("a") as file:
            file.write(LATER)
        for made in (self._files, self._later):
            made.mkdir()

    def close(self) -> None:
        self._stack.close()

    def made(self, disk: SetDisk, uid: str) -> Path:
        """Return a new device with the size, the sectors and the content of a disk."""
        file = self._files / str(len(self.devices))
        with file.open("wb") as new:
            new.truncate(disk.size)
        put(file, *CONTENTS[disk.content].pieces(disk.size, uid))
        return self.adopted(file, disk.sector)

    def adopted(self, file: Path, sector: int) -> Path:
        """Return a new device for a file."""
        device = Path(self._attach(file, "--sector-size", str(sector)))
        self.devices.append(device)
        self._of.append(file)
        return device

    def file(self, device: Path) -> Path:
        """Return the file of a device."""
        return self._of[self.devices.index(device)]

    def start(self, disks: Mapping[Path, SetDisk]) -> None:
        """Show the disks to a machine that starts now; late ones when their time has come."""
        self.clock.write_text("0 0\n")
        for kind in ("sys/block", "dev"):
            shutil.rmtree(self.host.root / kind, ignore_errors=True)
        (self.host.root / "sys/block").mkdir(parents=True)
        (self.host.root / "dev/disk/by-id").mkdir(parents=True)
        shutil.rmtree(self._later)
        self._later.mkdir()
        times = []
        for device, disk in disks.items():
            late = disk.arrives_s > 0
            show(self._later / disk.name if late else self.host.root, disk, device)
            times += [f"{disk.arrives_s} {disk.name}\n"] if late else []
        (self._later / "times").write_text("".join(times))

    def replace(self, name: str, disk: SetDisk, device: Path) -> None:
        """Put another disk in place of one, with names of its own."""
        root = self.host.root
        shutil.rmtree(root / "sys/block" / name)
        links = [link for link in (root / "dev/disk").glob("*/*") if os.readlink(link) == f"../../{name}"]
        for link in (root / "dev" / name, *links):
            link.unlink()
        show(root, disk, device)

    async def install(self, prefix: str, uid: str, port: int) -> int:
        """Run the installer; return its exit code."""
        process = await self.started(prefix, uid, port)
        try:
            async with asyncio.timeout(ENDS_S):
                await process.communicate()
                return process.returncode or 0
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    async def started(self, prefix: str, uid: str, port: int, **environment: str) -> asyncio.subprocess.Process:
        """Start the installer in a process group of its own."""
        self._show_partitions()
        url = f"http://127.0.0.1:{port}/boot/{prefix}"
        self.host.arguments = {"machine_uid": uid, "machine": "m1", "serve_url": url}
        places = {"INSTALLER": self._lib, "UPTIME": self.clock, "LATER": self._later, "ROOT": self.host.root}
        sizes = {"BLOCK_MIB": "16", "CHUNK_BYTES": str(16 * MIB)}
        times = {"PAUSE_S": "", "REPORT_EVERY_S": "2"}
        told = {**{name: str(path) for name, path in places.items()}, **sizes, **times, **environment}
        return await self.host.started(f". {self._lib}/install", **told)

    def _show_partitions(self) -> None:
        blockdev = self.host.command("blockdev")
        if blockdev.is_symlink():
            blockdev.unlink()
            start, size = 2 * MIB // SECTOR, PART_MIB * MIB // SECTOR
            tools = {"busybox": busybox(), "addpart": needed("addpart")}
            blockdev.write_text(PARTITIONS.format(**tools, start=start, size=size))
            blockdev.chmod(0o755)


def show(root: Path, disk: SetDisk, device: Path) -> None:
    """Add a disk to the trees of sysfs and of /dev."""
    told, real = root / "sys/block" / disk.name, Path("/sys/block", device.name)
    (told / "device").mkdir(parents=True)
    for fact in ("size", "ro", "removable", "holders", "queue"):
        (told / fact).symlink_to(real / fact)
    for fact, value in {"serial": disk.serial, "model": disk.model}.items():
        (told / "device" / fact).write_text(f"{value}\n")
    for kind, links in {"by-id": disk.by_id, "by-path": [disk.by_path] if disk.by_path else []}.items():
        (root / "dev/disk" / kind).mkdir(parents=True, exist_ok=True)
        for link in links:
            (root / "dev/disk" / kind / link).symlink_to(f"../../{disk.name}")
    (root / "dev" / disk.name).symlink_to(device)


@dataclass
class NetbootedHost:
    """A machine with its disks, and the metalman that it boots from.

    Args:
        disks: those of its start, by device.
    """

    uid: str
    world: sites.World
    host: LoopHost
    server: HttpServer
    recorder: Recorder
    disks: dict[Path, SetDisk]


@asynccontextmanager
async def netbooted(
    of: DiskSet, plain: bytes, folder: Path, keys: StatementKeySource = no_statements
) -> AsyncIterator[NetbootedHost]:
    """Serve a disk image to a machine with a set of disks; an operation is still to be created.

    Args:
        keys: of metalman's signatures.
    """
    host = LoopHost(folder)
    try:
        async with sites.netboot_site(folder / "site") as world:
            image = packed(plain, "zst")
            disk = NetbootImage(sites.put(folder / "image", {"disk.img.zst": image}), "sha256:2")
            netboot = NetbootImage(folder / "site/netboot/disk", "sha256:1")
            digest = hashlib.sha256(image).hexdigest()
            world.images.said = BootImages(netboot, disk, sites.LOADERS, disk_sha256=digest)
            pxe: dict[str, Any] = {"targetDisk": of.target, "rootDeviceHints": of.hints}
            body = machine_body(leases=[lease("127.0.0.1")], pxe={key: value for key, value in pxe.items() if value})
            made = await world.machine(body | ({"status": {"targetDisk": of.recorded}} if of.recorded else {}))
            uid, recorder = made.metadata.uid, Recorder(world.site, host.clock)
            settings = HttpServerSettings("127.0.0.1", 0)
            async with HttpServer(settings, recorder, CollectorRegistry(), keys).serving() as server:
                disks = {host.made(one, uid): one for one in of.disks}
                yield NetbootedHost(uid, world, host, server, recorder, disks)
    finally:
        host.close()


def content(device: Path, file: Path) -> dict[int, bytes]:
    """Return the blocks of a device that have other bytes than zeros, as its file has them after a flush."""
    with device.open("rb") as flushed:
        os.fsync(flushed.fileno())
    found = {}
    with file.open("rb") as data:
        for start, end in _extents(data.fileno()):
            data.seek(start)
            held = data.read(end - start)
            for at in range(0, len(held), BLOCK):
                block = held[at : at + BLOCK]
                if block.count(0) != len(block):
                    found[start + at] = block
    return found


def _extents(file: int) -> Iterator[tuple[int, int]]:
    end = 0
    while True:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError:  # ENXIO: holes up to the end
            return
        end = os.lseek(file, start, os.SEEK_HOLE)
        yield start, end
