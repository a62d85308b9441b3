"""Firmware starts from an image of virtual media: its loader, its kernel and its RAM disk."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import trustme

from tests.boot.bench import MAC, bench
from tests.support.qemu import Firmware, Hardware, Segment
from tests.support.qemu.payload import grub_config, kernel, ram_disk
from tests.support.qemu.tools import needed
from unbounded.metalman.media.image import FilePart, MediaContent, MediaImage, media_image
from unbounded.metalman.media.server import MediaServerSettings, VirtualMediaServer
from unbounded.metalman.media.tickets import MediaTicket, PresentedTicket, TicketKey
from unbounded.metalman.redfish.ports import BootTarget

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.root, pytest.mark.timeout(900)]

BOOTS_S = 300.0
READS = """
echo "guest: reads $(argument secret)"
poweroff -f
"""


def media() -> MediaImage:
    """Return an image whose configuration has a secret."""

    def signed(path: str) -> FilePart:
        file = needed(path)
        return FilePart(file, file.stat().st_size)

    return media_image(
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


async def test_secure_boot_starts_the_signed_loader_and_kernel_of_the_image(net: Segment, tmp_path: Path) -> None:
    drive = tmp_path / "boot.iso"
    drive.write_bytes(b"".join(part if isinstance(part, bytes) else part.path.read_bytes() for part in media().parts))
    hardware = Hardware(mac=MAC, firmware=Firmware.SECURE, drive=drive)
    async with bench(hardware, net, tmp_path / "machine") as it:
        await it.power_on(BootTarget.CD)
        await it.machine.shows("guest: reads k7", within_s=BOOTS_S)
        await it.machine.off(within_s=60.0)
    assert it.machine.boots == ["Cd"]


class OneBoot:
    """The image of one boot, for one BMC."""

    def __init__(self) -> None:
        self.key = TicketKey(b"k" * 32)
        self.made = media()

    def path(self) -> str:
        return self.key.path(MediaTicket("host-1", "uid", "boot", "127.0.0.1", round(time.time()) + 600))

    async def image(self, client: str, ticket: PresentedTicket) -> MediaImage | None:
        is_permitted = self.key.permits(ticket, uid="uid", boot="boot", client=client, now=time.time())
        return self.made if is_permitted else None


async def test_firmware_starts_from_the_image_that_its_bmc_has_inserted(net: Segment, tmp_path: Path) -> None:
    """The BMC fetches the image by HTTPS with the site's CA, over a URL that is for its address alone."""
    authority, pem, drive = trustme.CA(), tmp_path / "site.pem", tmp_path / "boot.iso"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    source = OneBoot()
    async with (
        VirtualMediaServer(MediaServerSettings(pem, pem, "127.0.0.1", 0), source).serving() as server,
        bench(Hardware(mac=MAC, drive=drive), net, tmp_path / "machine") as it,
    ):
        it.machine.bmc.media_ca = authority.cert_pem.bytes().decode()
        assert (await it.bmc.insert_media(f"https://127.0.0.1:{server.port}{source.path()}")).inserted
        drive.write_bytes(it.machine.bmc.media_content)
        await it.power_on(BootTarget.CD)
        await it.machine.shows("guest: reads k7", within_s=BOOTS_S)
        await it.machine.off(within_s=60.0)
        assert (await it.bmc.eject_media()).is_empty
    assert it.machine.boots == ["Cd"]
