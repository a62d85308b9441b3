"""Devices of the host in its machine: character devices from the start, and those that appear later.

systemd-nspawn gives a machine a /dev of its own, with the device nodes that existed at its start. `sync_devices`
updates that /dev: device nodes and the links to them. Entries that programs in the machine made stay. Later devices are
disks of CSI, iSCSI and RBD, VFIO groups, and GPUs. A watch reports them, so that the machine's /dev follows at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from unbounded.agent.paths import HostPaths
from unbounded.api.failures import Failure
from unbounded.kube.logs import Log

GLOBS: Final = ("nvidia*", "nvidia-caps/*", "kfd", "dri/*", "infiniband/*", "kvm", "fuse")  # nspawn provides tun itself


@dataclass(frozen=True)
class HostDevices:
    """Paths on the host, such as /dev/nvidia0; sorted.

    Args:
        character: GPUs with their control devices, InfiniBand, KVM, fuse.
    """

    character: tuple[str, ...] = ()

    @property
    def nvidia(self) -> bool:
        """True where there is a GPU itself, not only the driver's control device."""
        return any(path.removeprefix("/dev/nvidia").isdigit() for path in self.character)


def find_devices(paths: HostPaths) -> HostDevices:
    """Return the present devices. Directories, links and unreadable entries are omitted."""
    dev = paths.at("/dev")
    character = {path for glob in GLOBS for path in dev.glob(glob) if _is(path, stat.S_ISCHR)}
    return HostDevices(_named(character, paths))


def _named(devices: set[Path], paths: HostPaths) -> tuple[str, ...]:
    return tuple(sorted(f"/{path.relative_to(paths.root)}" for path in devices))


def _is(path: Path, kind: object) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return bool(callable(kind) and kind(mode))


log = Log("agent")

Number = tuple[int, int]

_LATER: Final = ("loop-control", "mapper/control", "vfio/*", "vfio/devices/*", "iommu")
_CHARACTER: Final = (*GLOBS, *_LATER)
_NO_DISK: Final = re.compile("(ram|zram|sr|fd)[0-9]")
_OTHERS: Final = frozenset({"pts", "shm", "mqueue", "hugepages", "fd", "char", "block", "bus", "input", "snd", "net"})
_DEPTH: Final = 4  # disk/by-path/NAME, rbd/POOL/NAMESPACE/IMAGE


@dataclass(frozen=True)
class DeviceEntry:
    """A device node or a symbolic link below /dev.

    Args:
        kind: stat.S_IFBLK, stat.S_IFCHR or stat.S_IFLNK.
        number: major and minor of a device.
        mode, group: of a device.
        target: of a link.
    """

    kind: int
    number: Number = (0, 0)
    mode: int = 0
    group: int = 0
    target: str = ""

    def same(self, other: DeviceEntry | None) -> bool:
        """Return whether both refer to the same device."""
        return other is not None and (self.kind, self.number, self.target) == (other.kind, other.number, other.target)


@dataclass(frozen=True)
class DeviceChanges:
    """Paths below /dev to remove, then entries to add."""

    remove: tuple[str, ...] = ()
    add: tuple[tuple[str, DeviceEntry], ...] = ()


def plan(
    host: Mapping[str, DeviceEntry], machine: Mapping[str, DeviceEntry], alive: frozenset[Number]
) -> DeviceChanges:
    """Return the changes after which the machine's /dev has the host's devices.

    Args:
        host: entries of the host that machines get, see `shared`.
        alive: numbers of the block devices that the kernel has.
    """
    gone = {path for path, entry in machine.items() if entry.kind == stat.S_IFBLK and entry.number not in alive}
    left = {**{path: entry for path, entry in machine.items() if path not in gone}, **host}
    gone |= {
        path
        for path, entry in machine.items()
        if entry.kind == stat.S_IFLNK and path not in host and _followed(path, entry) in gone - left.keys()
    }
    wrong = {path for path, entry in host.items() if path in machine and not entry.same(machine[path])}
    add = tuple((path, entry) for path, entry in sorted(host.items()) if not entry.same(machine.get(path)))
    return DeviceChanges(tuple(sorted(gone | wrong)), add)


def shared(entries: Mapping[str, DeviceEntry]) -> dict[str, DeviceEntry]:
    """Return the entries of the host's /dev that machines get: disks, devices for workloads, and links to either."""
    devices = {path: entry for path, entry in entries.items() if _is_shared(path, entry)}
    links = {path: entry for path, entry in entries.items() if entry.kind == stat.S_IFLNK}
    return devices | {path: entry for path, entry in links.items() if _followed(path, entry) in devices}


def _is_shared(path: str, entry: DeviceEntry) -> bool:
    if entry.kind == stat.S_IFBLK:
        return not _NO_DISK.match(path)
    return entry.kind == stat.S_IFCHR and any(fnmatch(path, glob) for glob in _CHARACTER)


def _followed(path: str, link: DeviceEntry) -> str:
    """Return the path below /dev that a link points to, from its text alone."""
    return os.path.relpath(os.path.normpath(PurePosixPath("/dev", path).parent / link.target), "/dev")


def sync_devices(host_dev: Path, machine_root: Path, block: Path) -> DeviceChanges:
    """Update a running machine's /dev; blocking.

    Args:
        machine_root: `/proc/PID/root` of a process in the machine.
        block: `/sys/dev/block`.
    Raises:
        OSError: the machine has ended.
    """
    dev = os.open(machine_root / "dev", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = shared(dict(_entries(host_dev, None)))
        changes = plan(found, dict(_entries(Path(), dev)), _alive(block))
        for path in changes.remove:
            with suppress(OSError):  # a device that nspawn has bind-mounted stays until the machine's next start
                _at(dev, path, _unlink)
        for path, entry in changes.add:
            try:
                _at(dev, path, partial(_make, entry))
            except OSError as error:
                log.warning("cannot pass a device to the machine", error=error, path=path)
    finally:
        os.close(dev)
    return changes


def _alive(block: Path) -> frozenset[Number]:
    numbers = (name.split(":") for name in os.listdir(block))
    return frozenset((int(major), int(minor)) for major, minor in numbers)


def _entries(top: Path, dir_fd: int | None) -> Iterator[tuple[str, DeviceEntry]]:
    """Yield device nodes and links below a /dev with their paths; links are not followed."""
    start = "." if dir_fd is not None else str(top)
    for folder, folders, files, here in os.fwalk(start, dir_fd=dir_fd, follow_symlinks=False):
        inside = os.path.relpath(folder, start)
        depth = 0 if inside == "." else len(Path(inside).parts)
        links = [name for name in folders if stat.S_ISLNK(os.lstat(name, dir_fd=here).st_mode)]
        folders[:] = [name for name in folders if depth < _DEPTH and (depth or name not in _OTHERS)]
        for name in (*files, *links):
            with suppress(OSError):  # removed in between
                entry = _entry(name, here)
                if entry is not None:
                    yield (name if inside == "." else f"{inside}/{name}"), entry


def _entry(name: str, folder: int) -> DeviceEntry | None:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    kind = stat.S_IFMT(found.st_mode)
    if kind == stat.S_IFLNK:
        return DeviceEntry(kind, target=os.readlink(name, dir_fd=folder))
    if kind in (stat.S_IFBLK, stat.S_IFCHR):
        number = (os.major(found.st_rdev), os.minor(found.st_rdev))
        return DeviceEntry(kind, number, stat.S_IMODE(found.st_mode), found.st_gid)
    return None


def _unlink(name: str, folder: int) -> None:
    os.unlink(name, dir_fd=folder)


def _make(entry: DeviceEntry, name: str, folder: int) -> None:
    if entry.kind == stat.S_IFLNK:
        os.symlink(entry.target, name, dir_fd=folder)
        return
    os.mknod(name, entry.kind | 0o600, os.makedev(*entry.number), dir_fd=folder)
    os.chown(name, 0, entry.group, dir_fd=folder, follow_symlinks=False)
    os.chmod(name, entry.mode, dir_fd=folder)


def _at(dev: int, path: str, act: Callable[[str, int], None]) -> None:
    """Apply an action to a name in its folder. Missing folders are created, and links on the way are rejected."""
    *folders, name = path.split("/")
    here = os.dup(dev)
    try:
        for folder in folders:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o755, dir_fd=here)
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = below
        act(name, here)
    finally:
        os.close(here)


SETTLE_S: Final = 0.2  # a disk appears together with its partitions, and udev then makes its links
POLL_S: Final = 60.0  # for device nodes without an event, such as those of nvidia-modprobe
_UEVENT: Final = 15  # NETLINK_KOBJECT_UEVENT
_GROUPS: Final = 1 | 2  # events of the kernel, and those of udev, sent after it has made the links
_LARGEST: Final = 1 << 16
_SUBSYSTEMS: Final = tuple(
    f"SUBSYSTEM={name}\0".encode() for name in ("block", "vfio", "vfio-dev", "misc", "drm", "infiniband", "nvidia")
)


def concerns_devices(event: bytes) -> bool:
    """Return whether a kernel event concerns a device that machines may get."""
    return any(one in event for one in _SUBSYSTEMS)


class DeviceWatch:
    """Runs `sync` whenever devices of the host change.

    Args:
        sync: updates the /dev of the running machine.
    """

    def __init__(self, sync: Callable[[], Awaitable[None]]) -> None:
        self._sync = sync

    async def run(self) -> None:
        """Run until cancelled."""
        with _events() as events:
            while True:
                try:
                    await self._sync()
                except (Failure, OSError) as error:
                    log.warning("cannot pass devices to the machine", error=error)
                await _change(events)


@contextlib.contextmanager
def _events() -> Iterator[socket.socket | None]:
    """Open the socket of kernel events; None where it is not available, so that only the poll remains."""
    try:
        events = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, _UEVENT)
        events.bind((0, _GROUPS))
    except OSError as error:
        log.warning("cannot watch for new devices; checking once a minute", error=error)
        yield None
        return
    with events:
        yield events


async def _change(events: socket.socket | None) -> None:
    """Return when devices may have changed."""
    if events is None:
        await asyncio.sleep(POLL_S)
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(POLL_S):
            while not concerns_devices(await _received(events)):
                pass
    await asyncio.sleep(SETTLE_S)
    with contextlib.suppress(BlockingIOError):
        while True:
            _drained(events)


async def _received(events: socket.socket) -> bytes:
    try:
        return await asyncio.get_running_loop().sock_recv(events, _LARGEST)
    except OSError as error:
        if error.errno != errno.ENOBUFS:
            raise
        return _SUBSYSTEMS[0]  # the buffer overflowed: any device may have changed


def _drained(events: socket.socket) -> None:
    try:
        events.recv(_LARGEST)
    except OSError as error:
        if error.errno != errno.ENOBUFS:
            raise
