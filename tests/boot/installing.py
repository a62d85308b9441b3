"""A machine in QEMU that runs the installer of host-debian12: its kernel and initrd, without firmware or a segment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from tests.images.support import UID, Site
from tests.support.qemu.tools import built, command, needed

OVMF: Final = "usr/share/OVMF/OVMF_{}_4M.fd"
MAC: Final = "52:54:00:00:00:0d"
NIC: Final = ("-device", f"virtio-net-pci,netdev=net0,mac={MAC},romfile=")
HOST_SEEN_BY_GUEST: Final = "10.0.2.2"  # of QEMU's user network: this host's loopback
LOOK_EVERY_S: Final = 0.2
CALL_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ScsiDisk:
    """A blank disk on the machine's SCSI controller; raw, and a hole in its file system until it is written."""

    name: str
    file: Path
    sector_bytes: int = 512
    discards: bool = True  # whether it offers to; the file keeps its content nonetheless

    @classmethod
    def made(
        cls, folder: Path, name: str, *, size: int = 5 << 30, sector_bytes: int = 512, discards: bool = True
    ) -> ScsiDisk:
        file = folder / f"{name}.img"
        with file.open("wb") as made:
            made.truncate(size)
        return cls(name, file, sector_bytes, discards)

    @property
    def untouched(self) -> bool:
        return self.file.stat().st_blocks == 0

    @property
    def drive(self) -> tuple[str, str]:
        return ("-drive", f"if=none,id={self.name},format=raw,cache=unsafe,discard=ignore,file={self.file}")

    @property
    def device(self) -> dict[str, Any]:
        sectors = {"logical_block_size": self.sector_bytes, "physical_block_size": 4096}
        discards = {} if self.discards else {"discard_granularity": 0}
        return {"driver": "scsi-hd", "bus": "scsi0.0", "drive": self.name, "serial": self.name, **sectors, **discards}


@dataclass
class Installing:
    """The machine while it runs, and the site that serves it."""

    site: Site
    process: subprocess.Popen[bytes]
    console: Path
    log: Path
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def add(self, disk: ScsiDisk) -> None:
        """Plug in a disk that the machine was started with the file of."""
        await self._execute("device_add", disk.device)

    async def pull(self, card: str) -> None:
        """Pull the cable of a network card."""
        await self._execute("set_link", {"name": card, "up": False})

    async def reported(self, stage: str, words: str, *, within_s: float) -> dict[str, Any]:
        """Wait for a report of the installer.

        Raises:
            AssertionError: it did not come in time, or the installer gave up, or QEMU ended; holds the console's end.
        """
        why = f"not reported within {within_s:g} s: {stage}: {words}"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    for each in self.site.reports:
                        if each["stage"] == stage and words in each["message"]:
                            return each
                    if any(each["failed"] for each in self.site.reports):
                        why = f"the installer gave up before {stage}: {words}"
                        break
                    if self.process.poll() is not None:
                        why = f"QEMU ended with {self.process.returncode}"
                        break
                    await asyncio.sleep(LOOK_EVERY_S)
        raise AssertionError(self._story(why))

    async def ended(self, *, within_s: float) -> None:
        """Wait until the machine is switched off.

        Raises:
            AssertionError: it was not in time, or QEMU failed; holds the console's end.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self.process.wait, within_s)
        if self.process.returncode != 0:
            raise AssertionError(self._story(f"not off within {within_s:g} s: {self.process.returncode}"))

    def _story(self, why: str) -> str:
        texts = (path.read_text(errors="replace")[-4000:] for path in (self.console, self.log) if path.exists())
        return "\n".join((why, str(self.site.reports), *texts))

    async def _execute(self, name: str, arguments: dict[str, Any]) -> None:
        self.writer.write(json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n")
        async with asyncio.timeout(CALL_S):
            async for line in self.reader:
                answer = json.loads(line)
                assert "error" not in answer, answer
                if "return" in answer:
                    return


def uefi(folder: Path) -> tuple[str, ...]:
    """UEFI for one machine, with variables of its own: arguments of QEMU."""
    variables = folder / "variables.fd"
    shutil.copyfile(needed(OVMF.format("VARS")), variables)
    code = needed(OVMF.format("CODE"))
    return (
        *("-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={code}"),
        *("-drive", f"if=pflash,format=raw,unit=1,file={variables}"),
    )


@asynccontextmanager
async def installing(
    site: Site,
    folder: Path,
    there: Sequence[ScsiDisk],
    late: Sequence[ScsiDisk] = (),
    devices: Sequence[str] = (),
    ssh_port: int | None = None,
    settings: str = "",
    **arguments: str,
) -> AsyncIterator[Installing]:
    """Run the installer while inside.

    Args:
        there: disks that the controller finds at once; late: those that `add` plugs in.
        devices: further arguments of QEMU.
        ssh_port: of 127.0.0.1, which leads to the machine's port 22.
        settings: variables of the installer's scripts, such as `TRIES=2`; the kernel hands these to its first process.
        arguments: of the kernel's command line, without their `unbounded.`.
    """
    image = built("host-debian12/disk")
    if image is None:
        pytest.skip("the image of Debian is not built; scripts/host-image does")
    ours, theirs = socket.socketpair()
    disks = [part for disk in (*there, *late) for part in disk.drive]
    disks += [part for disk in there for part in ("-device", json.dumps(disk.device))]
    forwarded = "" if ssh_port is None else f",hostfwd=tcp:127.0.0.1:{ssh_port}-:22"
    network = ("-netdev", f"user,id=net0{forwarded}")
    with theirs:
        more = [*network, *NIC, *disks, *devices, "-append", f"{_command_line(site, arguments)} {settings}"]
        process = _started(image, folder, theirs, more)
    reader, writer = await asyncio.open_connection(sock=ours)
    machine = Installing(site, process, folder / "console", folder / "qemu.log", reader, writer)
    try:
        await machine._execute("qmp_capabilities", {})
        yield machine
    finally:
        process.kill()
        process.wait(CALL_S)
        writer.close()


def _started(image: Path, folder: Path, monitor: socket.socket, more: Sequence[str]) -> subprocess.Popen[bytes]:
    with (folder / "qemu.log").open("wb") as log:
        return subprocess.Popen(
            [
                *(command("setpriv"), "--pdeathsig", "KILL", command("qemu-system-x86_64")),
                *("-machine", "q35", "-accel", "tcg", "-m", "512", "-display", "none", "-vga", "none", "-nodefaults"),
                *("-no-reboot", "-serial", f"file:{folder / 'console'}", "-device", "virtio-rng-pci"),
                *("-chardev", f"socket,id=monitor,fd={monitor.fileno()}", "-mon", "chardev=monitor,mode=control"),
                *("-device", "virtio-scsi-pci,id=scsi0"),
                *("-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initrd")),
                *more,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[monitor.fileno()],
        )


def _command_line(site: Site, arguments: dict[str, str]) -> str:
    port = urlsplit(site.url).port
    told = {
        "serve_url": f"http://{HOST_SEEN_BY_GUEST}:{port}/boot/token",
        "machine_uid": UID,
        "machine": "rack1-01",
        "lease": f"{MAC},10.0.2.15,255.255.255.0,{HOST_SEEN_BY_GUEST}",
        **arguments,
    }
    words = " ".join(f"unbounded.{name}={value}" for name, value in told.items())
    # the kernel's compaction of memory has been seen to keep an emulated processor for minutes
    return f"panic=1 printk.devkmsg=on console=ttyS0 sysctl.vm.compaction_proactiveness=0 {words}"
