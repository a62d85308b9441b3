"""One host: a real systemd on a disk of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.hosts.cgroup import Cgroup
from tests.support.hosts.tools import AgentTools
from tests.support.qemu import Segment

BOOT_S: Final = 240.0  # a host that goes off meanwhile is noticed at once
REBOOTS: Final = 133  # the exit status of nspawn after a reboot of its payload
_POLL_S: Final = 0.03
_AWAKE_S: Final = 0.5
_ENVIRONMENT: Final = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_LAUNCH: Final = Path(__file__).with_name("launch.sh")
_NETWORK: Final = """[Unit]
Description=The address of this test host
DefaultDependencies=no
Before=network.target network-online.target
Wants=network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=ip link set host0 up
ExecStart=ip addr replace {address}/{length} dev host0
[Install]
WantedBy=multi-user.target
"""
PARAMETERS: Final = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
_PARAMETERS: Final = f"""[Unit]
Description=Kernel parameters of this test host alone, in the place of those of the kernel that all share
DefaultDependencies=no
Before=systemd-sysctl.service sysinit.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -ec 'for one in {" ".join(PARAMETERS)}; do own=/run/lab-parameters/$one; mkdir -p $(dirname $own); \
  cat /proc/sys/$one >$own; mount --bind $own /proc/sys/$one; done'
[Install]
WantedBy=sysinit.target
"""


class HostFailed(AssertionError):
    """The host did not do what a test required; with the end of its console or journal."""


@dataclass(frozen=True)
class Ended:
    """A command that ended in a host."""

    status: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.status == 0


@dataclass
class Host:
    """Args:
    folder: for its disk: what it changes of the root file system, and /var/lib/machines.
    address: on the segment that the test lives in.
    """

    tools: AgentTools
    net: Segment
    folder: Path
    name: str
    address: str
    cgroup: Cgroup = field(init=False)
    _launcher: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.cgroup = Cgroup(f"host-{os.getpid()}-{secrets.token_hex(2)}-{self.name}")

    # Power

    async def up(self) -> None:
        """Switch on, and wait until systemd has started everything. On the same disk after `cut` or `off`."""
        self._lay_out()
        self.cgroup.make()
        self._launch()
        await self.wait_up()

    def _launch(self) -> None:
        told = [str(self.tools.rootfs), str(self.folder), self.net.bridge, *map(str, self.cgroup.folders)]
        with self.console.open("ab") as console:
            self._launcher = subprocess.Popen(
                ["bash", str(_LAUNCH), self.name, *told],
                stdin=subprocess.PIPE,  # its other end is ours: the host goes with us
                stdout=console,
                stderr=console,
                start_new_session=True,
            )

    async def wait_up(self, *, but: str = "") -> None:
        """Wait until it has booted. Args: but: the boot id that it has to have left."""
        limit = time.monotonic() + BOOT_S
        while time.monotonic() < limit:
            if self._launcher is None or self._launcher.poll() is not None:
                raise HostFailed(f"{self.name} is off:\n{self._console_end()}")
            if self.cgroup.leader() is not None and await self._booted(but):
                return
            await asyncio.sleep(_POLL_S)
        raise HostFailed(f"{self.name} has not booted in {BOOT_S:g} s:\n{self._console_end()}")

    async def _booted(self, but: str) -> bool:
        if but and await self.boot_id() == but:
            return False
        said = await self._within("systemctl", "is-system-running", "--wait")
        return said.stdout.strip() in ("running", "degraded")

    async def reboot(self) -> None:
        """`systemctl reboot` inside; returns when it has booted again."""
        before = await self.boot_id()
        await self._within("systemctl", "reboot")
        await self.wait_up(but=before)

    def cut(self) -> None:
        """Take the power away: everything on the host is killed at once."""
        self.cgroup.kill()
        self._gone()

    async def off(self) -> None:
        """An orderly power off."""
        leader = self.cgroup.leader()
        if leader is not None and self._launcher is not None:
            os.kill(leader, signal.SIGRTMIN + 4)  # systemd(1): start poweroff.target
            await asyncio.to_thread(self._launcher.wait, BOOT_S)
        self.cut()

    def down(self) -> None:
        """Off, and nothing is left of it."""
        self.cut()
        self.cgroup.remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _gone(self) -> None:
        if self._launcher is not None:
            self._launcher.wait(BOOT_S)
            if self._launcher.stdin is not None:
                self._launcher.stdin.close()
            self._launcher = None

    # Inside

    async def run(
        self,
        *argv: str,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout_s: float = 120.0,
    ) -> Ended:
        """Run a command as a service of the host's systemd, with a service's environment."""
        variables = [f"--setenv={name}={value}" for name, value in (env or {}).items()]
        told = ("systemd-run", "--quiet", "--wait", "--pipe", "--collect", *variables, "--", *argv)
        ended = await self._within(*told, stdin=stdin, timeout_s=timeout_s)
        if check and not ended.ok:
            raise HostFailed(f"{self.name}: {' '.join(argv)}: status {ended.status}\n{ended.stdout}\n{ended.stderr}")
        return ended

    async def spawn(self, unit: str, *argv: str) -> asyncio.subprocess.Process:
        """Start a command as a service of this name; its output, both kinds in one, is read as it comes. The process
        here ends with it; `kill` ends both."""
        leader = self.cgroup.leader()
        assert leader is not None, f"{self.name} is off"
        told = ("systemd-run", "--quiet", "--wait", "--pipe", "--collect", f"--unit={unit}", "--", *argv)
        return await asyncio.create_subprocess_exec(
            *("nsenter", "-t", str(leader), "-a", *told),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=_ENVIRONMENT,
        )

    def kill(self, unit: str) -> None:
        """SIGKILL to all of a service's processes, at once; nothing happens where it does not run."""
        with contextlib.suppress(OSError):
            (self.cgroup.folder / "payload" / "system.slice" / unit / "cgroup.kill").write_text("1")

    async def _within(self, *argv: str, stdin: bytes | None = None, timeout_s: float = BOOT_S) -> Ended:
        leader = self.cgroup.leader()
        if leader is None:
            return Ended(255, "", f"{self.name} is off")
        process = await asyncio.create_subprocess_exec(
            *("nsenter", "-t", str(leader), "-a", *argv),
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_ENVIRONMENT,
        )
        woken = asyncio.create_task(keep_awake(process))
        try:
            async with asyncio.timeout(timeout_s):
                out, err = await process.communicate(stdin)
        except TimeoutError:
            raise HostFailed(f"{self.name}: {' '.join(argv)}: no end in {timeout_s:g} s") from None
        finally:
            woken.cancel()
            if process.returncode is None:
                process.kill()
                await process.wait()
        return Ended(process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))

    async def boot_id(self) -> str:
        """Empty while it is off."""
        return (await self._within("cat", "/proc/sys/kernel/random/boot_id")).stdout.strip()

    async def journal(self, *arguments: str) -> str:
        """Return the journal of this boot; arguments are those of journalctl."""
        return (await self._within("journalctl", "--boot", "--no-pager", "--output=short-precise", *arguments)).stdout

    def put(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Write a file; also while it is off, for its next boot."""
        target = self.outside(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(mode)

    async def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Write a file, as `put`."""
        self.put(path, content, mode=mode)

    async def unpack(self, archive: Path, folder: str) -> None:
        """Unpack a tar.gz into a folder."""
        target = self.outside(folder)
        target.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(
            subprocess.run, ["tar", "-xzf", str(archive), "-C", str(target)], check=True, timeout=60
        )

    def get(self, path: str) -> bytes:
        """A file of the host that it has changed, or of one that runs any file. Links are not followed out of it."""
        return self.outside(path).read_bytes()

    def exists(self, path: str) -> bool:
        return self.outside(path).exists() or self.outside(path).is_symlink()

    def outside(self, path: str) -> Path:
        """Return our path of a host's path. Absolute links in it lead into our system: run a command inside then."""
        if path.startswith("/var/lib/machines/"):
            return self.folder / "machines" / path.removeprefix("/var/lib/machines/")
        leader = self.cgroup.leader()
        root = self.folder / "upper" if leader is None else Path(f"/proc/{leader}/root")
        return root / path.lstrip("/")

    @property
    def console(self) -> Path:
        return self.folder / "console"

    def _console_end(self) -> str:
        return self.console.read_text(errors="replace")[-3000:] if self.console.exists() else ""

    def _lay_out(self) -> None:
        if (self.folder / "upper").exists():
            return
        for part in ("upper", "work", "root", "machines"):
            (self.folder / part).mkdir(parents=True)
        network = _NETWORK.format(address=self.address, length=self.net.length)
        self._enabled("lab-network.service", "multi-user.target", network)
        self._enabled("lab-parameters.service", "sysinit.target", _PARAMETERS)
        self.put("/etc/hostname", f"{self.name}\n".encode())

    def _enabled(self, unit: str, target: str, content: str) -> None:
        self.put(f"/etc/systemd/system/{unit}", content.encode())
        wants = self.outside(f"/etc/systemd/system/{target}.wants")
        wants.mkdir(parents=True, exist_ok=True)
        (wants / unit).symlink_to(f"../{unit}")


async def keep_awake(nsenter: asyncio.subprocess.Process, *, every_s: float = _AWAKE_S) -> None:
    """Wake nsenter, which waits for a signal, from outside, where the host's systemd does not reach.

    A systemd that shuts down stops all of its host's processes before it kills them. nsenter stops itself when its
    command is stopped.
    """
    while nsenter.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(nsenter.pid, signal.SIGCONT)  # its own send_signal would take the exit status away from its waiter
        await asyncio.sleep(every_s)


@asynccontextmanager
async def booted(tools: AgentTools, net: Segment, folder: Path, name: str, address: str) -> AsyncIterator[Host]:
    """A host that runs while entered."""
    host = Host(tools, net, folder / name, name, address)
    try:
        await host.up()
        yield host
    finally:
        host.down()


async def until(true: Callable[[], Awaitable[bool]], *, within_s: float, every_s: float = 0.3) -> None:
    """Wait until a condition holds; an observation that runs a command on a host takes a tenth of a second of a
    processor.
    """
    limit = time.monotonic() + within_s
    while not await true():
        assert time.monotonic() < limit, f"not so within {within_s:g} s"
        await asyncio.sleep(every_s)
