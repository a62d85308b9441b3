"""This machine as a host: the commands are run by its own shells, in a folder of the test's."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Final

from tests.support.waiting import eventually
from unbounded.kube.logs import SecretStr
from unbounded.machina.provisioning.model import Install, RunInProgress
from unbounded.machina.provisioning.remote import HostInstaller
from unbounded.machina.ssh.model import SshCommandResult

UID: Final = "6f1c9a52-8a5e-4c44-9f5c-2d8a9f5e7b10"
ATTEMPT: Final = "0123456789abcdef"
TOKEN: Final = f"{token_hex(3)}.{token_hex(8)}"  # looked for in all processes of this machine, of other tests too
PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
WITHIN_S: Final = 60.0


@dataclass
class Local:
    """The Shell of a user.

    Args:
        folder: of the test; programs in `bin` of it come first.
        user: who logs in; None for who runs the test.
        shell: of that user.
        before: words that come before the shell's, such as nsenter's.
        upload: what becomes of what is sent.
        sent: commands.
    """

    folder: Path
    user: int | None = None
    shell: str = "sh"
    path: str = PATH
    before: tuple[str, ...] = ()
    upload: Callable[[bytes], bytes] = field(default=lambda sent: sent)
    sent: list[str] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)
    narrow: bool = False

    @property
    def place(self) -> Path:
        return self.folder / "install"

    @property
    def run_folder(self) -> Path:
        """Of the run that there is."""
        return next((self.place / UID).glob("run-*"))

    def program(self, name: str, text: str) -> None:
        """A program of this host."""
        file = self.folder / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)

    def only(self, *tools: str) -> None:
        """It has these programs alone: not even those of the folders that the scripts add where PATH is short."""
        self.narrow = True
        self.path = str(self.folder / "tools")
        Path(self.path).mkdir()
        for tool in tools:
            found = shutil.which(tool, path=PATH)
            assert found, tool
            (Path(self.path) / tool).symlink_to(found)

    async def start(self, command: str) -> asyncio.subprocess.Process:
        self.sent.append(command)
        if self.narrow:
            command = command.replace("PATH=$PATH:", "PATH=$PATH; NOT_THERE=")
        return await asyncio.create_subprocess_exec(
            *self.before,
            shutil.which(self.shell) or self.shell,
            "-c",
            command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            cwd="/",
            env={
                "PATH": f"{self.folder / 'bin'}:{self.path}",
                "UNBOUNDED_INSTALL_DIR": str(self.place),
                **self.environ,
            },
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
        )

    async def run(self, command: str, *, stdin: bytes = b"", limit_s: float, keep: int = 65536) -> SshCommandResult:
        process = await self.start(command)
        async with asyncio.timeout(limit_s):
            stdout, stderr = await process.communicate(self.upload(stdin))
        status = process.returncode
        return SshCommandResult(status if status is not None and status >= 0 else None, stdout[-keep:], stderr[-keep:])

    async def follow(self, command: str, *, limit_s: float, silence_s: float) -> AsyncIterator[bytes]:
        process = await self.start(command)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(limit_s):
                async for line in process.stdout:
                    yield line.rstrip(b"\n")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def install(script: str, *, attempt: str = ATTEMPT, **environment: str) -> Install:
    """A run of this script, with a token in its configuration."""
    config = SecretStr('{"Kubelet": {"Auth": {"BootstrapToken": "' + TOKEN + '"}}}')
    return Install(UID, attempt, config, script, environment, hidden=(SecretStr(TOKEN),))


def waits_for(file: Path, then: str = "") -> str:
    """Return shell that reports, and continues when the file exists."""
    return f"echo waiting; while [ ! -e '{file}' ]; do sleep 0.05; done; echo went on\n{then}\n"


def processes_with(text: str) -> list[str]:
    """Command lines and environments of all processes that hold this."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        for part in ("cmdline", "environ"):
            try:
                content = (process / part).read_bytes()
            except OSError:
                continue
            if text.encode() in content:
                found.append(f"{process.name} {part}")
    return found


async def at_work(host: Local, installer: HostInstaller, script: str) -> int:
    """Begin it, and wait until its shell has begun; the process that keeps it."""
    assert isinstance(await installer.begin(host, install(script)), RunInProgress)
    started, log = host.run_folder / "started", host.run_folder / "log"
    await eventually(lambda: started.exists() and log.exists() and log.read_text())
    return next(pid for pid in holders(host) if "/run.sh" in command_line(pid))


def holders(host: Local) -> list[int]:
    """Processes that hold the lock of a run, in the order in which they came."""
    found = []
    for descriptor in Path("/proc").glob("[0-9]*/fd/8"):
        with suppress(OSError):
            if descriptor.readlink().is_relative_to(host.place.resolve()):
                found.append(int(descriptor.parts[2]))
    return sorted(found)


def command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def signalled(pid: int, by: signal.Signals = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):  # such as a sleep that has ended since
        os.kill(pid, by)


def children(pid: int) -> list[int]:
    """All below a process, itself last."""
    found = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        below = [int(child) for child in found.read_text().split()]
    except FileNotFoundError:
        return []
    return [one for child in below for one in children(child)] + [pid]
