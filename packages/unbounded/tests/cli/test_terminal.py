"""`unbounded up` on a terminal: the table that moves."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.cli.running import PATH
from tests.support.paths import ROOT

LIMIT_S = 60.0
ENVIRON = {**os.environ, "PATH": PATH}
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

pytestmark = pytest.mark.slow


class Terminal:
    """The output of a process on its terminal."""

    def __init__(self, process: asyncio.subprocess.Process, descriptor: int) -> None:
        self.process = process
        self.written = ""
        self._descriptor = descriptor
        self._more = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            self.written += os.read(self._descriptor, 65536).decode(errors="replace")
        except OSError:  # EIO: no process has the other side open any more
            asyncio.get_running_loop().remove_reader(self._descriptor)
        self._more.set()

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    async def shows(self, pattern: str) -> re.Match[str]:
        """Wait until something like this was written, colours and movements apart."""
        try:
            async with asyncio.timeout(LIMIT_S):
                while True:
                    found = re.search(pattern, CONTROL.sub("", self.written))
                    if found is not None:
                        return found
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(f"{pattern!r} was not shown:\n{CONTROL.sub('', self.written)}") from None


@asynccontextmanager
async def terminal(
    *arguments: str, columns: int = 150, lines: int = 40, environ: Mapping[str, str] = ENVIRON
) -> AsyncIterator[Terminal]:
    """Run a command on a terminal of its own while inside."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environ = {name: value for name, value in environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that ^C reaches the process as a signal
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which tests that run in the background of a shell ignore

    process = await asyncio.create_subprocess_exec(
        *arguments,
        cwd=ROOT,
        env={**environ, "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)


async def test_machines_and_operations_move_in_a_table_until_ctrl_c(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "unbounded.cli.main", "up", "--lab", "2", "--data", str(tmp_path / "data"))
    async with terminal(*command) as screen:
        await screen.shows(r"NAME\s+PHASE\s+POWER\s+OPERATION\s+MESSAGE\s+AGE")
        await screen.shows(r"lab-01\s+Rebooting\s+PoweringOff\s+HostReboot")
        await screen.shows(r"lab-01-host-reboot-\S+\s+HostReboot\s+lab-01\s+InProgress\s+\w+")
        await screen.shows(r"lab-01-host-reboot-\S+\s+HostReboot\s+lab-01\s+Complete")
        await screen.shows(r"Try next:")
        assert "\x1b[32mComplete" in screen.written
        assert re.search(r"\x1b\[\d*A", screen.written), "the table was never drawn over"
        screen.type("\x03")
        async with asyncio.timeout(LIMIT_S):
            assert await screen.process.wait() == 0
        await screen.shows("Stopped.")
        assert "Traceback" not in screen.written


async def test_logs_redirected_to_a_file_do_not_appear_in_the_table(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    script = 'exec "$0" -m unbounded.cli.main up --lab 1 --data "$1" --log-level info 2>"$2"'
    async with terminal("sh", "-c", script, sys.executable, str(tmp_path / "data"), str(logs)) as screen:
        await screen.shows(r"Try next:")
        screen.type("\x03")
        async with asyncio.timeout(LIMIT_S):
            assert await screen.process.wait() == 0
        assert "operation ended" in logs.read_text()
        assert "operation ended" not in screen.written
