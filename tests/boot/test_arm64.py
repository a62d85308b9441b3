"""A machine with Arm processors: installed by network boot, and started from its disk."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.boot.rack import MACHINE, SEEN, blank_disk, rack, seen
from tests.cli.running import KUBECTL
from tests.fetch.layers import from_layout
from tests.fetch.registries import push
from tests.support.qemu import Firmware, Hardware, Segment
from tests.support.qemu.tools import built

pytestmark = [
    pytest.mark.soak,
    pytest.mark.root,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]

MAC: Final = "52:54:00:00:00:0b"
REPLACES_S: Final = 3000.0


async def test_an_arm64_machine_is_installed_by_pxe_and_starts_from_its_disk(net: Segment, tmp_path: Path) -> None:
    layout = built("host-debian12-arm64/oci")
    if layout is None:
        pytest.skip("the image of Debian for arm64 is not built; scripts/host-image arm64 does")
    disk = blank_disk(tmp_path, 5 << 30)
    hardware = Hardware(mac=MAC, firmware=Firmware.ARM64, disk=disk, memory_mib=1024, cpus=2)
    async with rack(hardware, net, tmp_path) as it:
        await push(it.registry, "images/host-debian12", "arm64", from_layout(layout))
        await it.add_machine("images/host-debian12:arm64", pxe={"architecture": "arm64"})
        await it.ask("HostReplace")
        status = await it.ended("HostReplace", within_s=REPLACES_S)
        assert status["phase"] == "Complete", status
        assert seen(status) >= SEEN
        assert it.machine.boots == ["Pxe", "Hdd"]
        machine = await it.up.get("machine", MACHINE)
        assert machine["status"]["targetDisk"] == f"/dev/disk/by-id/virtio-{hardware.disk_serial}"
        assert machine["status"]["hardware"]["processor"]["architecture"] == "aarch64"
