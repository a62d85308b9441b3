"""A disk that holds other data: HostReplace refuses it, with what is on it, until its erasure is permitted."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.boot.rack import MACHINE, SEEN, blank_disk, rack, seen
from tests.cli.running import KUBECTL
from tests.fetch.layers import from_layout
from tests.fetch.registries import push
from tests.images.support import needed
from tests.support.qemu import Hardware, Segment
from tests.support.qemu.tools import built

pytestmark = [
    pytest.mark.soak,
    pytest.mark.root,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]

MAC: Final = "52:54:00:00:00:0c"
REFUSES_S: Final = 900.0
REPLACES_S: Final = 1500.0


def accounts(folder: Path) -> Path:
    """Return a disk with somebody's file system."""
    disk = blank_disk(folder, 5 << 30)
    subprocess.run([needed("mke2fs"), "-q", "-t", "ext4", "-L", "accounts", str(disk)], check=True)
    return disk


async def test_foreign_disk_is_refused_until_its_erasure_is_permitted(net: Segment, tmp_path: Path) -> None:
    layout = built("host-debian12/oci")
    if layout is None:
        pytest.skip("the image of Debian is not built; scripts/host-image does")
    disk = accounts(tmp_path)
    hardware = Hardware(mac=MAC, disk=disk, disk_serial="ledger", memory_mib=1024)
    before = disk.stat().st_mtime_ns
    async with rack(hardware, net, tmp_path) as it:
        await push(it.registry, "images/host-debian12", "v1", from_layout(layout))
        await it.add_machine("images/host-debian12:v1")
        await it.ask("HostReplace")
        refused = await it.ended("HostReplace", within_s=REFUSES_S)
        assert refused["phase"] == "Failed", refused
        assert all(words in refused["message"] for words in ("ext4", "accounts")), refused
        assert disk.stat().st_mtime_ns == before

        permitting = re.search(r"kubectl unbounded (machine replace \S+ --erase-disk [^\s;]+)", refused["message"])
        assert permitting is not None, refused
        name = await it.replace(*permitting[1].split())
        status = await it.ended("HostReplace", name=name, within_s=REPLACES_S)
        assert status["phase"] == "Complete", status
        assert seen(status) >= SEEN
        assert it.machine.boots == ["Pxe", "Pxe", "Hdd"]
        assert (await it.up.get("machine", MACHINE))["status"]["targetDisk"] == "/dev/disk/by-id/virtio-ledger"
