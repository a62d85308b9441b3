"""A host in QEMU: a kernel of its own, all controllers of cgroup version 2, sysctls that can be set.

It boots what hosts in systemd-nspawn boot, Debian 12 with a real systemd, from a disk. A host in systemd-nspawn is up
in two seconds and has the resource controllers and sysctls of the system below it; a test that needs its own uses this.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import asyncssh

from tests.support.hosts.host import Ended, HostFailed
from tests.support.hosts.ssh import Key, make_key
from tests.support.hosts.tools import AgentTools
from tests.support.qemu import Segment
from tests.support.qemu.monitor import Monitor
from tests.support.qemu.payload import ram_disk
from tests.support.qemu.tools import command, needed

BOOT_S: Final = 240.0
MEMORY_MIB: Final = 3072
DISK: Final = "16G"  # sparse
_HOT_PLUG: Final = "hot-plug"  # the port that takes a disk while the host runs
_POLL_S: Final = 0.5
_CONNECT_S: Final = 10.0
_KILLED_WITHIN_S: Final = 10.0
_SWITCH_ROOT: Final = """
mkdir -p /root && mount -t ext4 -o rw /dev/vda /root || { echo "guest: no root file system"; poweroff -f; }
mount --move /dev /root/dev; umount /sys /proc
exec switch_root /root /sbin/init
"""
_NETWORK: Final = """[Unit]
Description=Address of this test host
DefaultDependencies=no
Before=network.target network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=ip link set eth0 up
ExecStart=ip addr replace {address}/{length} dev eth0
ExecStart=ip route replace default via {gateway}
[Install]
WantedBy=multi-user.target
"""
_MAKE_DISK: Final = """
mount -t overlay disk -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
chroot "$2/root" depmod "$5"
mke2fs -q -F -t ext4 -m 0 -E lazy_itable_init=1,lazy_journal_init=1 -d "$2/root" "$3" "$4"
"""


@dataclass
class VirtualHost:
    """One machine in QEMU without acceleration.

    Args:
        folder: its disk, its console and the key that logs in.
        address: on the segment that the test lives in.
    """

    tools: AgentTools
    net: Segment
    folder: Path
    name: str
    address: str
    number: int = 0
    key: Key = field(init=False)
    _monitor: Monitor = field(default_factory=Monitor)
    _process: subprocess.Popen[bytes] | None = None
    _connection: asyncssh.SSHClientConnection | None = None

    async def up(self) -> None:
        """Switch on and wait until systemd has started everything."""
        if not self._disk.exists():
            await asyncio.to_thread(self._make_disk)
        self._launch()
        await self.wait_up()

    def _launch(self) -> None:
        self.net.plug(self._tap)
        with self.console.open("ab") as console:
            self._process = subprocess.Popen(
                self._qemu(),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
                pass_fds=[self._monitor.theirs.fileno()],
            )
        self._monitor.theirs.close()

    async def wait_up(self, *, but: str = "") -> None:
        """Wait for the end of a boot. Args: but: the boot id before it."""
        limit = time.monotonic() + BOOT_S
        while time.monotonic() < limit:
            if self._process is None or self._process.poll() is not None:
                raise HostFailed(f"{self.name} is off:\n{self._console_end()}")
            with contextlib.suppress(OSError, asyncssh.Error, TimeoutError, HostFailed):
                if not but or await self.boot_id() not in ("", but):
                    state = await self._within("systemctl is-system-running --wait")
                    if state.stdout.strip() in ("running", "degraded"):
                        return
            await asyncio.sleep(_POLL_S)
        raise HostFailed(f"{self.name} has not booted in {BOOT_S:g} s:\n{self._console_end()}")

    async def reboot(self) -> None:
        """Run `systemctl reboot` inside and wait for the next boot."""
        before = await self.boot_id()
        with contextlib.suppress(asyncssh.Error, OSError, HostFailed):
            await self._within("systemctl reboot")
        await self._disconnect()
        await self.wait_up(but=before)

    async def down(self) -> None:
        """Cut the power and remove the disk."""
        await self._disconnect()
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(_KILLED_WITHIN_S)
            self._process = None
            self.net.unplug(self._tap)
        self._monitor.close()
        shutil.rmtree(self.folder, ignore_errors=True)

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
        line = shlex.join(("systemd-run", "--quiet", "--wait", "--pipe", "--collect", *variables, "--", *argv))
        ended = await self._within(line, stdin=stdin, timeout_s=timeout_s)
        if check and not ended.ok:
            raise HostFailed(f"{self.name}: {' '.join(argv)}: status {ended.status}\n{ended.stdout}\n{ended.stderr}")
        return ended

    async def boot_id(self) -> str:
        return (await self._within("cat /proc/sys/kernel/random/boot_id")).stdout.strip()

    async def journal(self, *arguments: str) -> str:
        """Return the journal of this boot; arguments are those of journalctl."""
        line = shlex.join(("journalctl", "--boot", "--no-pager", "--output=short-precise", *arguments))
        return (await self._within(line)).stdout

    async def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Write a file; missing folders are made."""
        place = shlex.quote(path)
        line = f'mkdir -p "$(dirname {place})" && cat >{place} && chmod {mode:o} {place}'
        ended = await self._within(line, stdin=content)
        assert ended.ok, ended.stderr

    async def plug_disk(self, name: str, *, mib: int = 64) -> None:
        """Plug in an empty disk while the host runs; its serial number is its name."""
        place = self.folder / f"{name}.img"
        with place.open("wb") as file:
            file.truncate(mib << 20)
        await self._monitor.execute("blockdev-add", driver="raw", node_name=name, file=_file(place))
        where = {"id": name, "drive": name, "serial": name, "bus": _HOT_PLUG}
        await self._monitor.execute("device_add", driver="virtio-blk-pci", **where)

    async def unplug_disk(self, name: str) -> None:
        """Request the running host to release a plugged-in disk; it does so a few seconds later."""
        await self._monitor.execute("device_del", id=name)

    async def unpack(self, archive: Path, folder: str) -> None:
        """Unpack a tar.gz into a folder."""
        place, content = shlex.quote(folder), await asyncio.to_thread(archive.read_bytes)
        ended = await self._within(f"mkdir -p {place} && tar -xz -C {place}", stdin=content)
        assert ended.ok, ended.stderr

    @property
    def console(self) -> Path:
        return self.folder / "console"

    @property
    def _disk(self) -> Path:
        return self.folder / "disk.img"

    @property
    def _tap(self) -> str:
        return f"vm{self.number}"

    def _make_disk(self) -> None:
        upper = self.folder / "upper"
        for part in ("upper", "work", "root"):
            (self.folder / part).mkdir(parents=True)
        self.key = make_key(self.folder / "key")
        unit = _NETWORK.format(address=self.address, length=self.net.length, gateway=self.net.address)
        placed = {
            "etc/hostname": f"{self.name}\n",
            "etc/fstab": "",  # the RAM disk has mounted the root
            "etc/systemd/system/lab-network.service": unit,
            "root/.ssh/authorized_keys": f"{self.key.public}\n",
        }
        for path, text in placed.items():
            (upper / path).parent.mkdir(parents=True, exist_ok=True)
            (upper / path).write_text(text)
        for folder in ("root", "root/.ssh"):
            (upper / folder).chmod(0o700)
        wants = upper / "etc/systemd/system/multi-user.target.wants"
        wants.mkdir()
        (wants / "lab-network.service").symlink_to("../lab-network.service")
        (wants / "ssh.service").symlink_to("/lib/systemd/system/ssh.service")
        shutil.copytree(needed("lib/modules/*-cloud-*"), upper / "usr/lib/modules" / self._release)
        make_key(upper / "etc/ssh/ssh_host_ed25519_key")
        told = (str(self.tools.rootfs), str(self.folder), str(self._disk), DISK, self._release)
        script = ("unshare", "--mount", "--", "bash", "-euc", _MAKE_DISK, "bash", *told)
        subprocess.run(script, check=True, capture_output=True, timeout=120)
        subprocess.run(("rm", "-rf", *(str(self.folder / part) for part in ("upper", "work", "root"))), check=True)
        (self.folder / "ram-disk").write_bytes(ram_disk(_SWITCH_ROOT))

    @property
    def _release(self) -> str:
        return needed("boot/vmlinuz-*-cloud-*").name.removeprefix("vmlinuz-")

    def _qemu(self) -> list[str]:
        arguments = (
            "console=ttyS0 quiet net.ifnames=0 panic=1 systemd.log_target=journal systemd.show_status=no"
            " systemd.getty_auto=no"  # systemd waits for udev, which is not there, to show the terminal
        )
        return [
            *(command("setpriv"), "--pdeathsig", "KILL", command("qemu-system-x86_64")),
            *("-machine", "q35,graphics=off", "-accel", "tcg,thread=multi", "-cpu", "max"),
            *("-m", str(MEMORY_MIB), "-smp", "2", "-display", "none", "-vga", "none", "-nodefaults", "-no-user-config"),
            *("-kernel", str(needed("boot/vmlinuz-*-cloud-*")), "-initrd", str(self.folder / "ram-disk")),
            *("-append", arguments, "-serial", "stdio", "-device", "virtio-rng-pci"),
            *("-netdev", f"tap,id=net0,ifname={self._tap},script=no,downscript=no"),
            *("-device", f"virtio-net-pci,netdev=net0,romfile=,mac=52:54:00:00:01:{self.number:02x}"),
            *("-drive", f"if=none,id=disk0,format=raw,cache=unsafe,file={self._disk}"),
            *("-device", "virtio-blk-pci,drive=disk0,serial=disk0"),
            *("-device", f"pcie-root-port,id={_HOT_PLUG},chassis=1"),
            *("-chardev", f"socket,id=monitor,fd={self._monitor.theirs.fileno()}"),
            *("-mon", "chardev=monitor,mode=control"),
        ]

    async def _within(self, line: str, *, stdin: bytes | None = None, timeout_s: float = BOOT_S) -> Ended:
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connected()
                done = await connection.run(line, input=stdin or b"", encoding=None)
        except TimeoutError:
            await self._disconnect()
            raise HostFailed(f"{self.name}: {line}: no end in {timeout_s:g} s") from None
        status = 255 if done.exit_status is None else done.exit_status
        return Ended(status, _text(done.stdout), _text(done.stderr))

    async def _connected(self) -> asyncssh.SSHClientConnection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncssh.connect(
                self.address,
                username="root",
                client_keys=[str(self.key.file)],
                known_hosts=None,
                config=None,
                connect_timeout=_CONNECT_S,
                keepalive_interval=10,
            )
        return self._connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def _console_end(self) -> str:
        return self.console.read_text(errors="replace")[-3000:] if self.console.exists() else ""


def _file(path: Path) -> dict[str, str]:
    return {"driver": "file", "filename": str(path)}


def _text(output: object) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else str(output or "")


@asynccontextmanager
async def booted_vm(
    tools: AgentTools, net: Segment, folder: Path, name: str, address: str, *, number: int = 0
) -> AsyncIterator[VirtualHost]:
    """A host that runs while entered."""
    host = VirtualHost(tools, net, folder / name, name, address, number)
    try:
        await host.up()
        yield host
    finally:
        await host.down()
