"""Firmware starts from an image of virtual media: its own loader, kernel and RAM disk, and no server at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.boot.bench import MAC, bench
from tests.support.qemu import Firmware, Hardware, Segment
from tests.support.qemu.payload import grub_config, kernel, ram_disk
from tests.support.qemu.tools import needed
from unbounded.metalman.media.image import FilePart, MediaContent, media_image
from unbounded.metalman.redfish.ports import BootTarget

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.root, pytest.mark.timeout(900)]

BOOTS_S = 300.0
READS = """
echo "guest: reads $(argument secret)"
poweroff -f
"""


def media(folder: Path) -> Path:
    """Write an image whose configuration has a secret."""

    def signed(path: str) -> FilePart:
        file = needed(path)
        return FilePart(file, file.stat().st_size)

    image = media_image(
        MediaContent(
            loader=signed("usr/lib/shim/shimx64.efi.signed"),
            second_loader=signed("usr/lib/grub/x86_64-efi-signed/grubnetx64.efi.signed"),
            files={
                "grub/grub.cfg": grub_config("console=ttyS0 quiet panic=1 secret=k7"),
                "vmlinuz": kernel(),
                "initrd.gz": ram_disk(READS),
            },
        )
    )
    path = folder / "boot.iso"
    path.write_bytes(b"".join(part if isinstance(part, bytes) else part.path.read_bytes() for part in image.parts))
    return path


@pytest.mark.parametrize("firmware", [Firmware.UEFI, Firmware.SECURE])
async def test_firmware_starts_the_signed_loader_kernel_and_installer_of_the_image(
    net: Segment, tmp_path: Path, firmware: Firmware
) -> None:
    hardware = Hardware(mac=MAC, firmware=firmware, drive=media(tmp_path))
    async with bench(hardware, net, tmp_path / "machine") as it:
        await it.power_on(BootTarget.CD)
        await it.machine.shows("guest: reads k7", within_s=BOOTS_S)
        await it.machine.off(within_s=60.0)
    assert it.machine.boots == ["Cd"]
