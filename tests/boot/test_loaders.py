"""Third-party firmware and loaders get an address, a loader, a kernel and a RAM disk from our servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.boot.bench import MAC, bench
from tests.boot.served import ADDRESS, served, url
from tests.support.qemu import Firmware, Hardware, Segment
from tests.support.qemu.payload import boot_files, command_line
from unbounded.metalman.dhcp.model import Loader
from unbounded.metalman.redfish.bmc_interface import BmcPowerState, BootTarget, ResetType

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(900)]

BOOTS_S = 300.0  # alone it takes a tenth of that; where others work as well, the firmware gets little of a CPU
ENDS_S = 60.0
REPORTED = b"well received"


def files(net: Segment, *, then: str) -> dict[str, bytes]:
    at = url(net)
    return {**boot_files(at, command_line(report=f"{at}/report", then=then)), "report": REPORTED}


def blank_disk(folder: Path) -> Path:
    disk = folder / "disk.img"
    with disk.open("wb") as file:
        file.truncate(16 << 20)
    return disk


@pytest.mark.soak  # test_replace boots that way too, with all else that there is
async def test_uefi_pxe_loads_shim_grub_and_the_kernel_by_tftp(net: Segment, tmp_path: Path) -> None:
    hardware = Hardware(mac=MAC, disk=blank_disk(tmp_path), disk_serial="first", tpm=True)
    async with (
        served(net, MAC, files(net, then="wait"), tmp_path / "served") as it_has,
        bench(hardware, net, tmp_path / "machine") as it,
    ):
        await it.power_on(BootTarget.PXE)
        at = await it.machine.shows("guest: firmware=uefi tpm=2 disk=first", within_s=BOOTS_S)
        at = await it.machine.shows(f"guest: lease {ADDRESS}", since=at, within_s=ENDS_S)
        at = await it.machine.shows(f"guest: fetched {REPORTED.decode()}", since=at, within_s=ENDS_S)
        at = await it.machine.shows("guest: waits", since=at, within_s=ENDS_S)
        await it.bmc.reset(ResetType.GRACEFUL_SHUTDOWN)
        await it.machine.shows("guest: button", since=at, within_s=ENDS_S)
        await it.machine.off(within_s=ENDS_S)
        assert (await it.bmc.system()).power is BmcPowerState.OFF
    assert it_has.by_tftp == ["shimx64.efi", "grubx64.efi", "grub/grub.cfg", "vmlinuz", "initrd.gz"]
    assert it_has.by_http == ["report"]


@pytest.mark.soak  # test_replace boots that way too, with all else that there is
async def test_uefi_http_boot_loads_all_by_http_and_boots_disk_next(net: Segment, tmp_path: Path) -> None:
    hardware = Hardware(mac=MAC, disk=blank_disk(tmp_path))
    async with (
        served(net, MAC, files(net, then="reset"), tmp_path / "served") as it_has,
        bench(hardware, net, tmp_path / "machine") as it,
    ):
        await it.power_on(BootTarget.UEFI_HTTP)
        at = await it.machine.shows(f"guest: fetched {REPORTED.decode()}", within_s=BOOTS_S)
        await it.machine.shows("--- boot 2, from Hdd ---", since=at, within_s=ENDS_S)
        assert it.machine.running
        assert it.machine.boots == ["UefiHttp", "Hdd"]
    assert it_has.asked == []
    assert it_has.by_http == ["ipxe.efi", "boot.ipxe", "vmlinuz", "initrd.gz", "report"]


async def test_a_bios_with_ipxe_in_its_card_loads_all_by_http(net: Segment, tmp_path: Path) -> None:
    async with (
        served(net, MAC, files(net, then="off"), tmp_path / "served") as it_has,
        bench(Hardware(mac=MAC, firmware=Firmware.BIOS), net, tmp_path / "machine") as it,
    ):
        await it.power_on(BootTarget.PXE)
        await it.machine.shows("guest: firmware=bios", within_s=BOOTS_S)
        await it.machine.shows(f"guest: fetched {REPORTED.decode()}", within_s=ENDS_S)
        await it.machine.off(within_s=ENDS_S)
    assert it_has.asked == []
    assert it_has.by_http == ["boot.ipxe", "vmlinuz", "initrd.gz", "report"]


async def test_secure_boot_refuses_a_loader_that_nobody_has_signed(net: Segment, tmp_path: Path) -> None:
    unsigned = {Loader.X64: "ipxe.efi"}
    async with (
        served(net, MAC, files(net, then="off"), tmp_path / "served", unsigned) as it_has,
        bench(Hardware(mac=MAC, firmware=Firmware.SECURE), net, tmp_path / "machine") as it,
    ):
        await it.power_on(BootTarget.PXE)
        await it.machine.shows("Access Denied", within_s=BOOTS_S)
    assert it_has.by_tftp == ["ipxe.efi"]
    assert it_has.by_http == []


@pytest.mark.soak
async def test_secure_boot_loads_shim_grub_and_a_signed_kernel(net: Segment, tmp_path: Path) -> None:
    async with (
        served(net, MAC, files(net, then="off"), tmp_path / "served") as it_has,
        bench(Hardware(mac=MAC, firmware=Firmware.SECURE), net, tmp_path / "machine") as it,
    ):
        await it.power_on(BootTarget.PXE)
        await it.machine.shows(f"guest: fetched {REPORTED.decode()}", within_s=BOOTS_S)
        await it.machine.off(within_s=ENDS_S)
    assert it_has.by_tftp == ["shimx64.efi", "grubx64.efi", "grub/grub.cfg", "vmlinuz", "initrd.gz"]
