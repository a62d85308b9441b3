"""A machine in QEMU whose power is a simulated BMC's: requests to the BMC act on a real process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.support.qemu.enrolled import with_keys_of
from tests.support.qemu.hardware import Hardware, Wires, qemu
from tests.support.qemu.segment import Segment
from tests.support.qemu.tools import command, needed
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostBootOverride

ESCAPES: Final = re.compile(r"\x1b\[[0-9;=?]*[A-Za-z]|\x1b[()][A-Z0-9]|\r|\0")
LOOK_EVERY_S: Final = 0.1
KILLED_WITHIN_S: Final = 10


@dataclass(slots=True)
class Run:
    """One time that the machine runs, from power on to its end."""

    process: subprocess.Popen[bytes]
    tpm: subprocess.Popen[bytes] | None
    monitor: socket.socket
    follower: asyncio.Task[None] | None = None
    commands: asyncio.StreamWriter | None = None  # None until QEMU has reported that it listens


class QemuMachine:
    """A machine on a segment, off until its BMC switches it on; every run ends with the block.

    Args:
        bmc: the BMC, serving and with its host off; it belongs to this machine from now on.
        folder: keeps the console, the firmware's variables and the TPM's state.
    """

    def __init__(self, hardware: Hardware, bmc: LabBmc, segment: Segment, folder: Path, *, number: int = 0) -> None:
        self.hardware = hardware
        self.bmc = bmc
        self.boots: list[str] = []  # where it was to boot from, each time
        self._segment = segment
        self._folder = folder
        self._tap = f"tap{number}"
        self._console = folder / "console"
        self._variables = folder / "variables.fd"
        self._tpm_state = folder / "tpm"
        self._run: Run | None = None
        self._death = ""  # the cause of a run's end that neither the guest nor a test requested
        self._ended: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._console.touch()
        if self.hardware.site_keys is not None:
            with_keys_of(self.hardware.site_keys, needed(self.hardware.firmware.store), self._variables)
        elif (variables := self.hardware.firmware.variables) is not None:
            shutil.copy(needed(variables), self._variables)
        self._tpm_state.mkdir(exist_ok=True)
        for tap in self._taps:
            self._segment.plug(tap)
        self.bmc.host().board = self
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bmc.host().board = None
        self.halt()
        await asyncio.gather(*self._ended, return_exceptions=True)
        for tap in self._taps:
            self._segment.unplug(tap)

    @property
    def _taps(self) -> tuple[str, ...]:
        return (self._tap, f"{self._tap}b") if self.hardware.second_mac else (self._tap,)

    # Calls of its BMC

    def start(self, boot: HostBootOverride) -> None:
        self.halt()
        self.boots.append(boot.source)
        with self._console.open("a") as console:
            console.write(f"\n--- boot {len(self.boots)}, from {boot.source} ---\n")
        tpm, tpm_line = self._start_tpm() if self.hardware.tpm else (None, None)
        ours, theirs = socket.socketpair()
        lines = [line for line in (theirs, tpm_line) if line is not None]
        wires = Wires(
            self._tap, self._console, self._variables, theirs.fileno(), None if tpm_line is None else tpm_line.fileno()
        )
        with (self._folder / "qemu.log").open("ab") as log:
            process = subprocess.Popen(
                qemu(self._with_drive(), boot, wires),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[line.fileno() for line in lines],
            )
        for line in lines:
            line.close()
        self._run = run = Run(process, tpm, ours)
        run.follower = asyncio.create_task(self._follow(run), name="qemu")
        self._ended.add(run.follower)

    def _with_drive(self) -> Hardware:
        """The hardware with what the BMC has inserted, as it fetched it."""
        if not self.hardware.has_bmc_drive or self.bmc.bmc.systems[0].image is None:
            return self.hardware
        drive = self._folder / "drive.iso"
        drive.write_bytes(self.bmc.media_content)
        return replace(self.hardware, drive=drive)

    def halt(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            _end(run.process)
            if run.tpm is not None:
                _end(run.tpm)

    def press_button(self) -> None:
        if self._run is not None and self._run.commands is not None:
            self._run.commands.write(b'{"execute": "system_powerdown"}\n')

    # Calls of a test

    def pull(self, card: int, *, plugged: bool = False) -> None:
        """Pull the cable of a network card, or plug it in again."""
        assert self._run is not None
        assert self._run.commands is not None
        command = {"execute": "set_link", "arguments": {"name": f"net{card}", "up": plugged}}
        self._run.commands.write(json.dumps(command).encode() + b"\n")

    @property
    def running(self) -> bool:
        return self._run is not None and self._run.process.poll() is None

    def console(self) -> str:
        """Everything that was shown on the serial console, over all boots, without control sequences."""
        return ESCAPES.sub("", self._console.read_text(errors="replace"))

    async def shows(self, text: str, *, within_s: float, since: int = 0) -> int:
        """Wait for a text on the console behind position `since`; gives the position behind it.

        Raises:
            AssertionError: it was not there in time, or the machine died; holds the end of the console.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while (at := self.console().find(text, since)) < 0:
                    self.check()
                    await asyncio.sleep(LOOK_EVERY_S)
                return at + len(text)
        raise AssertionError(f"not within {within_s:g} s on the console: {text!r}\n{self.story()}")

    async def off(self, *, within_s: float) -> None:
        """Wait until nothing runs.

        Raises:
            AssertionError: it still ran, or it died; holds the end of the console.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self.running:  # noqa: ASYNC110 - another process ends
                    await asyncio.sleep(LOOK_EVERY_S)
                self.check()
                return
        raise AssertionError(f"not off within {within_s:g} s\n{self.story()}")

    def check(self) -> None:
        """Raise AssertionError with the last words of a run that died: its guest will not answer any more."""
        if self._death:
            raise AssertionError(f"{self._death}\n{self.story()}")

    def story(self) -> str:
        """The end of the console, and what QEMU and the TPM themselves complained of, for people."""
        lines = [line for line in self.console().splitlines() if line.strip()]
        logs = ((name, self._folder / f"{name}.log") for name in ("qemu", "tpm"))
        said = [f"--- {name}\n{log.read_text(errors='replace')}" for name, log in logs if log.exists()]
        return "\n".join(["--- console", *lines[-60:], *said])

    # Inside

    def _start_tpm(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """A TPM that has just been given power; what it keeps lies in the folder."""
        ours, theirs = socket.socketpair()
        arguments = ("socket", "--tpm2", "--tpmstate", f"dir={self._tpm_state}", "--flags", "not-need-init")
        with theirs, (self._folder / "tpm.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    *(command("setpriv"), "--pdeathsig", "KILL", command("swtpm"), *arguments),
                    *("--ctrl", f"type=unixio,clientfd={theirs.fileno()}", "--terminate"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
            )
        return process, ours

    async def _follow(self, run: Run) -> None:
        """Follow one run until it ends, and update its host if it ended by itself."""
        reader, writer = await asyncio.open_connection(sock=run.monitor)
        resets = False
        try:
            async for line in reader:
                said: dict[str, Any] = json.loads(line)
                if "QMP" in said:
                    writer.write(b'{"execute": "qmp_capabilities"}\n')
                    run.commands = writer
                elif said.get("event") == "SHUTDOWN":
                    resets = said["data"]["reason"] == "guest-reset"
        except ConnectionError:  # it was killed
            pass
        finally:
            writer.close()
        await asyncio.to_thread(run.process.wait, KILLED_WITHIN_S)
        if self._run is run:
            if run.process.returncode != 0:
                self._death = f"QEMU ended by itself with {run.process.returncode}"
            self.bmc.host().board_ended(self.bmc.clock.now(), restarts=resets)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(KILLED_WITHIN_S)
