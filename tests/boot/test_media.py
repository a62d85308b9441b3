"""Firmware starts from an image of virtual media: its loader, its kernel and its RAM disk."""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trustme

from tests.boot.bench import MAC, bench
from tests.boot.rack import ADDRESS, MACHINE, MEDIA, SEEN, blank_disk, media_rack, seen, static_network
from tests.fetch.layers import from_layout
from tests.fetch.registries import push
from tests.support.libvirt import libvirt_driver
from tests.support.qemu import Firmware, Hardware, Segment
from tests.support.qemu.payload import grub_config, kernel, ram_disk
from tests.support.qemu.tools import built, needed
from tests.support.sushy import PASSWORD, USERNAME, sushy, system_ids
from tests.support.waiting import eventually
from unbounded.api.failures import Transient
from unbounded.kube.serving_certificate import ServingCertificate
from unbounded.metalman.media.image import FilePart, MediaContent, MediaImage, media_image
from unbounded.metalman.media.server import MediaServerSettings, VirtualMediaServer
from unbounded.metalman.media.tickets import MediaTicket, PresentedTicket, TicketKey
from unbounded.metalman.redfish.bmc_interface import (
    BmcAccount,
    BmcPowerState,
    BootEnabled,
    BootOverride,
    BootTarget,
    ResetType,
)
from unbounded.metalman.redfish.pool import BmcPool

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(3000)]

BOOTS_S = 300.0
INSTALLS_S = 1500.0
DHCP_PORTS = ("0043", "0044")  # in hexadecimal, as /proc has them
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


@pytest.mark.soak
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


def serving(pem: Path, source: OneBoot) -> AbstractAsyncContextManager[VirtualMediaServer]:
    settings, certificate = MediaServerSettings("127.0.0.1", 0), ServingCertificate(pem, pem, "virtual media")
    return VirtualMediaServer(settings, certificate, source).serving()


@pytest.mark.soak
async def test_firmware_starts_from_the_image_that_its_bmc_has_inserted(net: Segment, tmp_path: Path) -> None:
    """The BMC fetches the image by HTTPS with the site's CA, over a URL that is for its address alone."""
    authority, pem, drive = trustme.CA(), tmp_path / "site.pem", tmp_path / "boot.iso"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    source = OneBoot()
    async with (
        serving(pem, source) as server,
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


async def test_libvirt_behind_sushy_tools_starts_from_the_inserted_image(tmp_path: Path) -> None:
    """Between our client and QEMU are two programs of others; the image is ejected at the end."""
    authority, pem, ca = trustme.CA(), tmp_path / "site.pem", tmp_path / "ca.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    authority.cert_pem.write_to_path(str(ca))
    (system,) = system_ids()
    driver, source = libvirt_driver(tmp_path, system), OneBoot()
    async with (
        sushy(tmp_path, libvirt=driver, environment={"REQUESTS_CA_BUNDLE": str(ca)}) as emulator,
        serving(pem, source) as server,
        BmcPool() as pool,
    ):

        async def is_off() -> bool:
            try:
                return (await bmc.system()).power is BmcPowerState.OFF
            except Transient:  # the emulator answers 500 while libvirt takes the machine down
                return False

        pin = await pool.fingerprint(emulator.url)
        bmc = pool.bmc(BmcAccount(emulator.url, USERNAME, PASSWORD, system, pin))
        assert (await bmc.insert_media(f"https://127.0.0.1:{server.port}{source.path()}")).inserted
        await bmc.set_boot_override(BootOverride(BootEnabled.ONCE, BootTarget.CD, "UEFI"))
        await bmc.reset(ResetType.ON)
        await eventually(lambda: "guest: reads k7" in driver.shown(), driver.shown, within_s=BOOTS_S)
        await eventually(is_off, within_s=60.0, every_s=0.5)
        assert (await bmc.eject_media()).is_empty


@pytest.mark.soak
async def test_a_host_is_installed_from_virtual_media_with_a_static_address_and_no_dhcp(
    net: Segment, tmp_path: Path
) -> None:
    """The installer and the installed system use the address of spec.network; nobody listens on the ports of DHCP."""
    layout = built("host-debian12/oci")
    if layout is None:
        pytest.skip("the image of Debian is not built; scripts/host-image does")
    hardware = Hardware(mac=MAC, disk=blank_disk(tmp_path, 8 << 30), has_bmc_drive=True, memory_mib=1536, cpus=2)
    async with media_rack(hardware, net, tmp_path) as it:
        await push(it.registry, "images/host-debian12", "v1", from_layout(layout))
        await it.add_machine("images/host-debian12:v1", pxe=MEDIA, network=static_network(net, MAC))
        await it.ask("HostReplace")
        await it.machine.shows(f"has {ADDRESS}", within_s=INSTALLS_S)
        assert not [
            line for line in Path("/proc/net/udp").read_text().splitlines() if line.split()[1][-4:] in DHCP_PORTS
        ]
        status = await it.ended("HostReplace", within_s=INSTALLS_S)
        assert status["phase"] == "Complete", status
        assert seen(status) >= SEEN
        assert it.machine.boots == ["Cd", "Hdd"]
        machine = await it.up.get("machine", MACHINE)
        assert "mediaBoot" not in machine["status"]["redfish"]
        assert it.bmc.bmc.systems[0].image is None
        assert machine["status"]["netboot"]["imageDigest"].startswith("sha256:")
