"""Devices that come and go while a machine runs: what is planned, and what is done to a real /dev of a machine."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from unbounded.agent.node.devices import (
    POLL_S,
    DeviceChanges,
    DeviceEntry,
    DeviceWatch,
    concerns_devices,
    plan,
    shared,
    sync_devices,
)

SDA = DeviceEntry(stat.S_IFBLK, (8, 0), 0o660, 6)
SDB = DeviceEntry(stat.S_IFBLK, (8, 16), 0o660, 6)
VFIO = DeviceEntry(stat.S_IFCHR, (511, 0), 0o600)
BY_PATH = DeviceEntry(stat.S_IFLNK, target="../../sdb")
NULL = DeviceEntry(stat.S_IFCHR, (1, 3), 0o666)
ALIVE = frozenset({(8, 0), (8, 16)})


def test_disks_devices_for_workloads_and_links_to_them_are_shared() -> None:
    host = {
        "null": NULL, "mem": DeviceEntry(stat.S_IFCHR, (1, 1)), "tty0": DeviceEntry(stat.S_IFCHR, (4, 0)),
        "sda": SDA, "sdb": SDB, "ram0": DeviceEntry(stat.S_IFBLK, (1, 0)),
        "sr0": DeviceEntry(stat.S_IFBLK, (11, 0)), "rbd0": DeviceEntry(stat.S_IFBLK, (251, 0)),
        "loop3": DeviceEntry(stat.S_IFBLK, (7, 3)), "vfio/12": VFIO, "vfio/vfio": VFIO, "vfio/devices/vfio0": VFIO,
        "loop-control": VFIO, "mapper/control": VFIO, "iommu": VFIO, "nvidia0": VFIO,
        "disk/by-path/ip-1": BY_PATH, "rbd/pool/image": DeviceEntry(stat.S_IFLNK, target="../../rbd0"),
        "cdrom": DeviceEntry(stat.S_IFLNK, target="sr0"),
        "log": DeviceEntry(stat.S_IFLNK, target="/run/systemd/journal/dev-log"),
    }  # fmt: skip
    left_out = {"null", "mem", "tty0", "ram0", "sr0", "cdrom", "log"}
    assert shared(host).keys() == host.keys() - left_out


@pytest.mark.parametrize(
    ("host", "machine", "expected"),
    [
        ({"sdb": SDB}, {"null": NULL}, DeviceChanges((), (("sdb", SDB),))),
        ({"sdb": SDB}, {"sdb": SDB, "null": NULL}, DeviceChanges()),
        ({"sdb": SDB}, {"sdb": DeviceEntry(stat.S_IFBLK, (8, 16), 0o600)}, DeviceChanges()),
        ({"sdb": SDB}, {"sdb": DeviceEntry(stat.S_IFBLK, (8, 32))}, DeviceChanges(("sdb",), (("sdb", SDB),))),
        ({}, {"sdc": DeviceEntry(stat.S_IFBLK, (8, 32)), "sda": SDA}, DeviceChanges(("sdc",), ())),
        ({}, {"longhorn/volume": SDA}, DeviceChanges()),
        (
            {},
            {"sdb": DeviceEntry(stat.S_IFBLK, (8, 32)), "disk/by-path/x": BY_PATH},
            DeviceChanges(("disk/by-path/x", "sdb"), ()),
        ),
        ({}, {"log": DeviceEntry(stat.S_IFLNK, target="/run/x")}, DeviceChanges()),
        ({"disk/by-path/x": BY_PATH, "sdb": SDB}, {"sdb": SDB}, DeviceChanges((), (("disk/by-path/x", BY_PATH),))),
    ],
    ids=["new", "there", "mode", "another disk", "gone", "made inside", "link to it", "own link", "new link"],
)
def test_the_machine_follows_its_host(
    host: dict[str, DeviceEntry], machine: dict[str, DeviceEntry], expected: DeviceChanges
) -> None:
    assert plan(host, machine, ALIVE) == expected


@pytest.mark.parametrize(
    ("event", "concerns"),
    [
        (b"add@/devices/virtual/block/loop3\0ACTION=add\0SUBSYSTEM=block\0DEVNAME=loop3\0SEQNUM=1\0", True),
        (b"add@/devices/virtual/vfio/12\0ACTION=add\0SUBSYSTEM=vfio\0", True),
        (b"add@/devices/virtual/net/veth1\0ACTION=add\0SUBSYSTEM=net\0", False),
    ],
)
def test_device_events_are_recognized(event: bytes, concerns: bool) -> None:
    assert concerns_devices(event) is concerns


def make(path: Path, kind: int, major: int, minor: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, kind | 0o640, os.makedev(major, minor))


@pytest.mark.root
def test_nodes_and_links_are_made_and_taken_away(tmp_path: Path) -> None:
    host, machine, block = tmp_path / "host", tmp_path / "machine", tmp_path / "block"
    (machine / "dev").mkdir(parents=True)
    block.mkdir()
    make(host / "sdb", stat.S_IFBLK, 8, 16)
    make(host / "vfio/12", stat.S_IFCHR, 511, 0)
    make(host / "pts/ptmx", stat.S_IFCHR, 5, 2)
    (host / "disk/by-path").mkdir(parents=True)
    (host / "disk/by-path/x").symlink_to("../../sdb")
    (block / "8:16").touch()
    sync_devices(host, machine, block)
    found = (machine / "dev/sdb").stat()
    assert (stat.S_ISBLK(found.st_mode), stat.S_IMODE(found.st_mode), found.st_rdev) == (True, 0o640, os.makedev(8, 16))
    assert (machine / "dev/disk/by-path/x").readlink() == Path("../../sdb")
    assert (machine / "dev/vfio/12").is_char_device()
    assert not (machine / "dev/pts").exists()
    assert sync_devices(host, machine, block) == DeviceChanges()

    for path in (host / "sdb", host / "disk/by-path/x", block / "8:16"):
        path.unlink()
    assert sync_devices(host, machine, block).remove == ("disk/by-path/x", "sdb")
    assert not (machine / "dev/sdb").exists()


@pytest.mark.root
def test_a_machine_cannot_lead_the_agent_out_of_its_dev(tmp_path: Path) -> None:
    host, machine, block = tmp_path / "host", tmp_path / "machine", tmp_path / "block"
    outside = tmp_path / "outside"
    for folder in (machine / "dev", block, outside):
        folder.mkdir(parents=True)
    make(host / "vfio/12", stat.S_IFCHR, 511, 0)
    (machine / "dev/vfio").symlink_to(outside)
    sync_devices(host, machine, block)
    assert list(outside.iterdir()) == []
    (machine / "dev").rename(machine / "real")
    (machine / "dev").symlink_to(outside)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        sync_devices(host, machine, block)


@pytest.mark.root
async def test_kernel_event_synchronizes_devices_at_once() -> None:
    synced: asyncio.Queue[None] = asyncio.Queue()

    async def sync() -> None:
        synced.put_nowait(None)

    watching = asyncio.create_task(DeviceWatch(sync).run())
    try:
        async with asyncio.timeout(POLL_S / 3):
            await synced.get()
            disk = next(Path("/sys/class/block").iterdir())
            await asyncio.to_thread((disk / "uevent").write_text, "change")
            await synced.get()
    finally:
        watching.cancel()
