"""A host for the installer, made of files: sysfs, /dev, a kernel command line; and the metalman that it talks to."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from aiohttp import web

from tests.fetch.registries import served
from tests.images.content import MIB
from unbounded.api.hardware import DiskFacts
from unbounded.api.machine_status import DiskErasureRecord, merge_erasures
from unbounded.api.operation import MachineOperation, MachineOperationSpec, OperationKind
from unbounded.metalman import disk_choice, disks_to_erase
from unbounded.metalman.disk_choice import AwaitedDisk, ChosenDisk, DiskRefused, DiskSelection
from unbounded.metalman.disks_to_erase import ErasurePlan
from unbounded.metalman.http.boot_service import HardwareReport, RescueReport
from unbounded.metalman.http.requests import erasure_report, hardware_report, rescue_report
from unbounded.metalman.netboot.erase_and_rescue import rescue_answer

TOP: Final = Path(__file__).parents[2]
INSTALLER: Final = TOP / "images" / "installer" / "lib"
UID: Final = "0b5e5a10-1111-4222-8333-944495559666"
LIMIT_S: Final = 200.0  # below the time limit of a test, which names no script


def busybox() -> str:
    """Return the busybox of an initrd, whatever the system has: busybox-static prefers its own applets to PATH."""
    found = TOP / ".venv/tools/bin/busybox"
    if not found.exists():
        pytest.skip("busybox is not there; scripts/net-tools gets it")
    return str(found)


def needed(tool: str, how: str = "install it") -> str:
    found = shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"{tool} is not there; {how}")
    return found


@dataclass
class Site:
    """The files of a boot below `/boot/token`, with dials for faults.

    Args:
        refusals: how often a path is still answered with that status.
        cuts: how many of the next answers with a piece of the image end half way.
        reports: the bodies of posts to `/progress`.
        hardware: the bodies of posts to `/hardware`.
        selection: what the Machine says of its disk, from which metalman's own rule chooses.
        answers: status and body of the next answers to `/hardware`, before the rule is followed.
        erases: the disks of a HostErase; none for an install.
        erasures: the state of each of them, by the posts to `/erasure`.
        begun: the serial numbers of those that the installer asked for.
        keeps: serial numbers of disks that may not be begun.
        keys: the parameter authorizedKeys of the HostRescue.
        rescues: the posts to `/rescue`.
        rescue_answers: status of the next answers to `/rescue`, before the keys are sent.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    refusals: dict[str, list[int]] = field(default_factory=dict)
    cuts: int = 0
    tag: str = '"one"'
    on_range: Any = None
    reports: list[dict[str, Any]] = field(default_factory=list)
    hardware: list[dict[str, Any]] = field(default_factory=list)
    selection: DiskSelection = field(default_factory=DiskSelection)
    answers: list[tuple[int, Any]] = field(default_factory=list)
    erases: tuple[str, ...] = ()
    erasures: tuple[DiskErasureRecord, ...] = ()
    begun: list[str] = field(default_factory=list)
    keeps: tuple[str, ...] = ()
    keys: str = ""
    rescues: list[RescueReport] = field(default_factory=list)
    rescue_answers: list[int] = field(default_factory=list)
    disabled: int = 0
    asked: list[str] = field(default_factory=list)
    host: str = ""

    @property
    def url(self) -> str:
        return f"http://{self.host}/boot/token"

    def image(self, data: bytes, name: str = "disk.img.gz") -> None:
        self.files[name] = data
        self.files[f"{name}.sha256"] = f"{hashlib.sha256(data).hexdigest()}  {name}\n".encode()

    @property
    def failure(self) -> str:
        """The reason that was reported; exactly one is expected."""
        (failed,) = [f"{report['stage']}: {report['message']}" for report in self.reports if report["failed"]]
        return failed

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.removeprefix("/boot/token/")
        self.asked.append(f"{request.method} {path}")
        refusals = self.refusals.get(path, [])
        if refusals:
            return web.Response(status=refusals.pop(0), text="refused by the test")
        if request.method == "POST":
            return await self._take(request, path)
        if path not in self.files:
            return web.Response(status=404, text="not here")
        return await self._send(request, path)

    async def _take(self, request: web.BaseRequest, path: str) -> web.Response:
        if path == "progress":
            assert request.content_type == "application/json"
            self.reports.append(json.loads(await request.text()))
            return web.json_response({})
        if path == "hardware":
            assert request.content_type == "application/json"
            report = await request.read()
            self.hardware.append(json.loads(report))
            code, body = self.answers.pop(0) if self.answers else self._chosen(hardware_report(report))
            return web.Response(status=code, body=msgspec.json.encode(body), content_type="application/json")
        if path == "erasure":
            return self._erased(erasure_report(await request.read()))
        if path == "rescue":
            self.rescues.append(rescue_report(await request.read()))
            if self.rescue_answers:
                return web.json_response({}, status=self.rescue_answers.pop(0))
            parameters = {"authorizedKeys": self.keys}
            operation = MachineOperation(
                spec=MachineOperationSpec(operation_kind=OperationKind.HOST_RESCUE, parameters=parameters)
            )
            return web.Response(body=msgspec.json.encode(rescue_answer(operation).body))
        assert path == "pxe/disable"
        self.disabled += 1
        return web.json_response({})

    def _chosen(self, report: HardwareReport) -> tuple[int, dict[str, str]]:
        disks, image_bytes = report.hardware.disks, report.image_bytes
        if self.erases:
            return self._to_erase(disks, final=report.final)
        sectors = disk_choice.SECTORS if "disk.img.4k.zst" in self.files else (disk_choice.SECTOR_BYTES,)
        match disk_choice.choose_disk(
            disks, self.selection, image_bytes=image_bytes, sectors=sectors, final=report.final
        ):
            case ChosenDisk(path=chosen):
                return 200, {"status": "ok", "action": "Write", "disk": chosen}
            case AwaitedDisk(message=message):
                return 200, {"status": "ok", "action": "Wait", "message": message}
            case DiskRefused(message=message):
                return 409, {"error": message}

    def _to_erase(self, disks: Sequence[DiskFacts], *, final: bool) -> tuple[int, dict[str, str]]:
        match disks_to_erase.choose_erasures(disks, self.erases, self.erasures, final=final):
            case ErasurePlan(records=records, names=names):
                self.erasures = records
                assert disks_to_erase.not_blank(disks, records) == ""
                erase = {"status": "ok", "action": "Erase", "disks": " ".join(names)}
                return 200, erase if names else {"status": "ok", "action": "PowerOff"}
            case AwaitedDisk(message=message):
                return 200, {"status": "ok", "action": "Wait", "message": message}
            case DiskRefused(message=message):
                return 409, {"error": message}

    def _erased(self, report: DiskErasureRecord) -> web.Response:
        known = {one.serial_number: one.state for one in self.erasures}
        if report.serial_number in self.keeps or report.serial_number not in known:
            return web.json_response({"error": f"disk {report.serial_number} is kept"}, status=409)
        if report.is_permission:
            self.begun.append(report.serial_number)
        self.erasures = merge_erasures(self.erasures, (report,))
        return web.json_response({"status": "ok"})

    async def _send(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        data = self.files[path]
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        if wanted is None:
            return web.Response(body=data)
        first, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
        if self.on_range is not None:
            self.on_range(first)
        headers = {"Content-Range": f"bytes {first}-{last}/{len(data)}", "ETag": self.tag}
        piece = data[first : last + 1]
        if self.cuts and len(piece) > 1:
            self.cuts -= 1
            half = web.StreamResponse(status=206, headers={**headers, "Content-Length": str(len(piece))})
            await half.prepare(request)
            await half.write(piece[: len(piece) // 2])
            assert request.transport is not None
            request.transport.abort()
            return half
        return web.Response(status=206, body=piece, headers=headers)


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    """A Site that is served on loopback, with the cloud-init files of a Machine."""
    made = Site()
    for name in ("meta-data", "user-data", "vendor-data"):
        made.files[f"cloud-init/{name}"] = f"{name}\n".encode()
    async with served(made.answer) as host:
        made.host = host
        yield made


# A new namespace copies all mounts, and so would keep the loop devices of other tests in use.
_RELEASE: Final = """while read -r device place _; do
    case $device in /dev/loop*) umount -l "$place" ;; esac
done </proc/mounts
exec "$@"
"""
OWN_MOUNTS: Final = ("unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", _RELEASE, "sh")


@dataclass
class Host:
    """The machine to install. Disks are files below `dev`; sysfs has their sizes.

    Args:
        within: a command that runs others, such as `ip netns exec NAME`.
    """

    root: Path
    arguments: dict[str, str] = field(default_factory=dict)
    within: Sequence[str] = ()

    def __post_init__(self) -> None:
        for folder in ("sys/block", "dev/disk/by-id", "proc", "tmp", "udev"):
            (self.root / folder).mkdir(parents=True)

    def disk(
        self, name: str, mib: int = 16, *, serial: str = "", device: Path | None = None, sector: int = 512, **facts: str
    ) -> Path:
        """Return a new disk of zeros; `device` replaces it with a real one. Facts are files of sysfs."""
        told = self.root / "sys/block" / name
        (told / "holders").mkdir(parents=True)
        sectors = {"size": str(mib * MIB // 512), "queue/logical_block_size": str(sector)}
        for fact, value in {**sectors, "removable": "0", "ro": "0", **facts}.items():
            (told / fact).parent.mkdir(exist_ok=True)
            (told / fact).write_text(f"{value}\n")
        file = name.replace("!", "/")  # as the kernel has them in sysfs and below /dev
        path = self.root / "dev" / file
        path.parent.mkdir(exist_ok=True)
        if device is not None:
            path.symlink_to(device)
        else:
            with path.open("wb") as content:
                content.truncate(mib * MIB)
        if serial:
            (self.root / "dev/disk/by-id" / f"ata-DISK_{serial}").symlink_to(f"../../{file}")
        return path

    def expects(self, digests: Mapping[str, str]) -> None:
        """Give the installer the list of a signed one: the SHA-256 of each file that it was built with."""
        lines = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
        (self.root / "files.sha256").write_text(lines)

    def partition(self, disk: str, name: str) -> None:
        (self.root / "sys/block" / disk / name).mkdir()

    async def started(self, script: str, **environment: str) -> asyncio.subprocess.Process:
        """Start a script of busybox's own shell with the installer's parts, in a process group of its own."""
        line = " ".join(f"unbounded.{name}={value}" for name, value in self.arguments.items())
        env = {
            "PATH": f"{self._applets()}:{os.environ['PATH']}:/usr/sbin:/sbin",
            "INSTALLER": str(INSTALLER),
            "SYS": str(self.root / "sys"),
            "DEV": str(self.root / "dev"),
            "T": str(self.root / "tmp"),
            "ROOT": str(self.root / "initrd"),
            "PROC": str(self.root / "proc"),
            "UDEV": str(self.root / "udev"),
            "KMSG": str(self.root / "said"),
            "RESOLV": str(self.root / "resolv.conf"),
            "FILES_EXPECTED": str(self.root / "files.sha256"),
            "CMDLINE": f"BOOT_IMAGE=/vmlinuz console=ttyS0 {line}",
            "PAUSE_S": "0.01",
            "REPORT_EVERY_S": "0",
            "CHUNK_BYTES": "1000000",
            "BLOCK_MIB": "2",
            **environment,
        }
        (self.root / "said").touch()
        return await asyncio.create_subprocess_exec(
            *self.within,
            busybox(),
            "sh",
            "-c",
            script,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )

    async def sh(self, script: str, **environment: str) -> tuple[int, str]:
        """Run a script to its end; return its exit code and output."""
        process = await self.started(script, **environment)
        try:
            async with asyncio.timeout(LIMIT_S):
                out, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        return process.returncode or 0, out.decode()

    def _applets(self) -> Path:
        """A folder with busybox under all its names, as in the initrd; blkid and zstd alone are the system's."""
        folder = self.root / "bin"
        if not folder.exists():
            folder.mkdir()
            subprocess.run([busybox(), "--install", "-s", str(folder)], check=True, timeout=LIMIT_S)
            for name in ("blkid", "nc", "udevadm", "zstd"):
                (folder / name).unlink(missing_ok=True)
        return folder

    def command(self, name: str) -> Path:
        """Return the installer's path of a busybox command; a test may put another one there."""
        return self._applets() / name

    async def parts(self, script: str, **environment: str) -> tuple[int, str]:
        """A script that calls functions of the installer."""
        names = (
            "base",
            "http",
            "report",
            "mark",
            "disks",
            "tpm",
            "lldp",
            "hardware",
            "waiting",
            "choose_disk",
            "write",
            "erase",
            "agent",
            "seed",
            "layout",
            "layout_disks",
            "layout_root",
        )
        load = "".join(f". {INSTALLER}/{name}.sh; " for name in names)
        return await self.sh(load + script, **environment)

    async def install(self, where: Site, **environment: str) -> tuple[int, str]:
        self.arguments = {"machine_uid": UID, "machine": "rack1-01", **self.arguments, "serve_url": where.url}
        late = {"DISKS_SINCE": "-1000"}  # all disks have had their time
        return await self.sh(f". {INSTALLER}/install", **late, **environment)

    def said(self) -> str:
        return (self.root / "said").read_text()
