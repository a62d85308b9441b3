"""Disks that come late or do not fit, of a third-party controller, as the installer's kernel finds them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509

from tests.boot.installing import MAC, ScsiDisk, installing, uefi
from tests.images.content import image, packed
from tests.images.lldp import FRAME, LEAF
from tests.images.loops import system
from tests.images.support import UID, needed, site
from tests.support.software_tpm import needs_tpm, tpm_of_a_machine
from unbounded.metalman.disk_choice import DiskSelection

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SWITCHED: Final = "02:00:00:00:00:77"
BOOTS_S = 300.0  # alone it takes a twentieth of that
ENDS_S = 240.0


@pytest.mark.soak  # CI has late disks on loop devices
async def test_late_second_disk_makes_the_choice_ambiguous_without_a_write(
    tmp_path: Path,
) -> None:
    """The installer took the first one, 2 s after it came, and wrote the image to it."""
    first, large = ScsiDisk.made(tmp_path, "first"), ScsiDisk.made(tmp_path, "large", sector_bytes=4096)
    second = ScsiDisk.made(tmp_path, "second")
    async with site() as where:
        where.image(packed(image(), "gz"))
        async with installing(where, tmp_path, (first, large), (second,)) as machine:
            await machine.reported(
                "ChoosingDisk", "waits for disks that may come yet, of virtio_scsi", within_s=BOOTS_S
            )
            await machine.add(second)
            failed = await machine.reported("ChoosingDisk", "several disks could be meant", within_s=ENDS_S)
    assert failed["failed"]
    told = failed["message"]
    for disk in (first, second):
        assert f"scsi-0QEMU_QEMU_HARDDISK_{disk.name}): blank" in told
    assert "_large): sectors of 4096 bytes, and the image has no disk.img.4k.zst" in told
    assert all(disk.untouched for disk in (first, second, large))


@pytest.mark.soak  # CI has it on a loop device
async def test_host_without_required_tpm_fails_before_the_disk_is_written(tmp_path: Path) -> None:
    only = ScsiDisk.made(tmp_path, "only")
    async with site() as where:
        where.image(packed(image(), "gz"))
        async with installing(where, tmp_path, (only,), tpm="required") as machine:
            failed = await machine.reported("Preparing", "this host has no TPM 2.0", within_s=BOOTS_S)
    assert failed["failed"]
    assert only.untouched


@asynccontextmanager
async def announcing_switch() -> AsyncIterator[tuple[str, ...]]:
    """Run a switch port that announces itself each second: arguments of QEMU for the NIC behind it."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free,
    ):
        ours.bind(("127.0.0.1", 0))
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()

        async def announce() -> None:
            while True:
                ours.sendto(FRAME, ("127.0.0.1", port))
                await asyncio.sleep(1)

        local = f"local.type=inet,local.host=127.0.0.1,local.port={port}"
        remote = f"remote.type=inet,remote.host=127.0.0.1,remote.port={ours.getsockname()[1]}"
        device = f"virtio-net-pci,netdev=port,mac={SWITCHED},romfile="
        task = asyncio.create_task(announce())
        try:
            yield ("-netdev", f"dgram,id=port,{local},{remote}", "-device", device)
        finally:
            task.cancel()


@needs_tpm
async def test_inspected_machine_is_reported_and_switched_off_without_a_write(tmp_path: Path) -> None:
    disks = [ScsiDisk.made(tmp_path, "first"), ScsiDisk.made(tmp_path, "large", size=6 << 30, sector_bytes=4096)]
    async with site() as where:
        where.answers = [(200, {"status": "ok", "action": "PowerOff"})]
        with tpm_of_a_machine(tmp_path / "tpm") as tpm:
            devices = (*uefi(tmp_path), *tpm)
            async with (
                announcing_switch() as port,
                installing(where, tmp_path, disks, devices=(*devices, *port)) as machine,
            ):
                await machine.ended(within_s=BOOTS_S)
    assert not any(each["failed"] for each in where.reports)
    assert all(disk.untouched for disk in disks)
    (report,) = where.hardware
    facts = report["hardware"]
    assert (facts["firmware"]["mode"], facts["firmware"]["secureBoot"]) == ("UEFI", False)
    assert (facts["system"]["manufacturer"], facts["cpus"]) == ("QEMU", 1)
    assert 400 << 20 < facts["memoryBytes"] < 512 << 20
    assert facts["tpm"]["version"] == "2.0"
    certificate = x509.load_pem_x509_certificate(facts["tpm"]["ekCertificate"].encode())
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate((tmp_path / "tpm/ca/cert.pem").read_bytes()))
    nic, switched = sorted(facts["nics"], key=lambda each: each["mac"] != MAC)
    assert (switched["mac"], switched["lldp"]) == (SWITCHED, LEAF)
    assert "lldp" not in nic
    assert (nic["mac"], nic["driver"], nic["link"]) == (MAC, "virtio_net", True)
    assert [disk["hctl"].rpartition(":")[2] for disk in facts["disks"]] == ["0", "0"]
    found = {disk["serialNumber"]: disk for disk in facts["disks"]}
    for disk in disks:
        told = found[disk.name]
        assert (told["sizeBytes"], told["sectorBytes"]) == (disk.file.stat().st_size, disk.sector_bytes)
        assert (told["bus"], told["vendor"], told["model"], told["state"]) == ("scsi", "QEMU", "QEMU HARDDISK", "Blank")
        assert f"scsi-0QEMU_QEMU_HARDDISK_{disk.name}" in told["byID"]
        assert told["byPath"]


@pytest.mark.soak  # CI has it on loop devices (test_disk_sets), and the installer's own kernel in the inspection above
@pytest.mark.skipif(os.geteuid() != 0, reason="file systems of images are made by root")
async def test_late_recorded_disk_is_written_instead_of_a_blank_one(tmp_path: Path) -> None:
    needed("mke2fs")
    first, own = ScsiDisk.made(tmp_path, "first"), ScsiDisk.made(tmp_path, "own")
    path = "/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_own"
    async with site() as where:
        where.image(packed(system(tmp_path), "zst"), "disk.img.zst")
        where.selection = DiskSelection(recorded=path)
        async with installing(where, tmp_path, (first,), (own,)) as machine:
            await machine.reported("ChoosingDisk", f"waits: {path}", within_s=BOOTS_S)
            await machine.add(own)
            written = await machine.reported("Written", "has the image", within_s=ENDS_S)
    assert written["disk"] == path
    assert first.untouched
    with own.file.open("rb") as file:
        file.seek(1 << 19)
        assert f"machine={UID}\nname=rack1-01\nstate=installed\n".encode() in file.read(4096)
