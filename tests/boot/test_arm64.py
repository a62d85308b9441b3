"""A machine with Arm processors: installed from the network or from virtual media, and started from its disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.boot.rack import MACHINE, MEDIA, SEEN, Rack, blank_disk, media_rack, rack, seen, static_network
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
ARM64: Final = {"architecture": "arm64"}
REPLACES_S: Final = 3000.0


def arm64(folder: Path, *, has_bmc_drive: bool = False) -> Hardware:
    disk = blank_disk(folder, 5 << 30)
    return Hardware(mac=MAC, firmware=Firmware.ARM64, disk=disk, has_bmc_drive=has_bmc_drive, memory_mib=1024, cpus=2)


async def assert_installed(it: Rack, source: str, **spec: Any) -> None:
    """Replace the machine with the image for arm64; `spec` is that of the Machine."""
    layout = built("host-debian12-arm64/oci")
    if layout is None:
        pytest.skip("the image of Debian for arm64 is not built; scripts/host-image arm64 does")
    await push(it.registry, "images/host-debian12", "arm64", from_layout(layout))
    await it.add_machine("images/host-debian12:arm64", **spec)
    await it.ask("HostReplace")
    status = await it.ended("HostReplace", within_s=REPLACES_S)
    assert status["phase"] == "Complete", status
    assert seen(status) >= SEEN
    assert it.machine.boots == [source, "Hdd"]
    machine = await it.up.get("machine", MACHINE)
    assert machine["status"]["targetDisk"] == f"/dev/disk/by-id/virtio-{it.machine.hardware.disk_serial}"
    assert machine["status"]["hardware"]["processor"]["architecture"] == "aarch64"


async def test_an_arm64_machine_is_installed_by_pxe_and_starts_from_its_disk(net: Segment, tmp_path: Path) -> None:
    async with rack(arm64(tmp_path), net, tmp_path) as it:
        await assert_installed(it, "Pxe", pxe=ARM64)


async def test_an_arm64_machine_is_installed_from_virtual_media_without_dhcp(net: Segment, tmp_path: Path) -> None:
    async with media_rack(arm64(tmp_path, has_bmc_drive=True), net, tmp_path) as it:
        await assert_installed(it, "Cd", pxe={**ARM64, **MEDIA}, network=static_network(net, MAC))
        assert it.bmc.bmc.systems[0].image is None
