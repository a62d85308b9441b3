"""Losses of power of an emulated machine, at random moments of an install and of an erasure: each one ends right."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Final

import pytest

from tests.boot.installing import ScsiDisk, installing
from tests.images.content import MIB, packed
from tests.images.loops import system
from tests.images.power_cuts import files
from tests.images.support import UID, Site, needed, site
from tests.support.seeds import first_seed
from tests.support.waiting import eventually

pytestmark = [pytest.mark.soak, pytest.mark.root, pytest.mark.timeout(3600)]

CUTS: Final = 5
BOOTS_S: Final = 300.0
ENDS_S: Final = 600.0
SAMPLES: Final = "ERASE_SAMPLES=24"  # each costs an emulated processor a second
MARK: Final = slice(MIB // 2, MIB // 2 + 4096)
DATA: Final = random.Random(19).randbytes(6 * MIB)  # packs to no less, so that it comes in several pieces


async def lasts(where: Site, folder: Path, disk: ScsiDisk) -> float:
    """Run the installer on a disk to its end, without a cut; return the seconds from its first report."""
    async with installing(where, folder, (disk,), settings=SAMPLES) as machine:
        await eventually(lambda: bool(where.reports), within_s=BOOTS_S)
        began = time.monotonic()
        await machine.ended(within_s=ENDS_S)
    assert [each for each in where.reports if each["failed"]] == []
    return time.monotonic() - began


async def lose_power(where: Site, folder: Path, disk: ScsiDisk, after_s: float) -> None:
    """Run the installer until its machine loses power, so many seconds after its first report."""
    before = len(where.reports)
    async with installing(where, folder, (disk,), settings=SAMPLES) as machine:
        await eventually(lambda: len(where.reports) > before, within_s=BOOTS_S)
        await asyncio.sleep(after_s)
        machine.process.kill()


async def test_an_install_ends_right_after_five_power_cuts(tmp_path: Path) -> None:
    needed("mke2fs")
    (tmp_path / "root").mkdir()
    (tmp_path / "root/data").write_bytes(DATA)
    plain = system(tmp_path)
    chance = random.Random(first_seed())  # when it loses power
    async with site() as where:
        where.image(packed(plain, "zst"), "disk.img.zst")
        whole = await lasts(where, tmp_path, ScsiDisk.made(tmp_path, "whole"))
        disk = ScsiDisk.made(tmp_path, "cut")
        for _ in range(CUTS):
            await lose_power(where, tmp_path, disk, chance.uniform(0.0, whole))
            does_not_start_by_half(disk, plain)
        await lasts(where, tmp_path, disk)
    assert f"machine={UID}\nname=rack1-01\nstate=installed\n".encode() in start(disk)[MARK]
    assert starts(disk, plain)
    does_not_start_by_half(disk, plain)


async def test_an_erasure_ends_right_after_five_power_cuts(tmp_path: Path) -> None:
    size = 256 * MIB
    whole, disk = (ScsiDisk.made(tmp_path, name, size=size, discards=False) for name in ("whole", "cut"))
    chance = random.Random(first_seed())
    async with site() as where:
        for each in (whole, disk):
            each.file.write_bytes((DATA * (size // len(DATA) + 1))[:size])
        where.erases = (whole.name,)
        lasting = await lasts(where, tmp_path, whole)
        where.erases, where.erasures = (disk.name,), where.erasures[:0]
        for _ in range(CUTS):
            await lose_power(where, tmp_path, disk, chance.uniform(0.0, lasting))
        await lasts(where, tmp_path, disk)
        (record,) = where.erasures
        assert (record.serial_number, record.state, record.method) == (disk.name, "Erased", "Overwrite")
    assert disk.file.read_bytes() == bytes(size)


def start(disk: ScsiDisk) -> bytes:
    with disk.file.open("rb") as file:
        return file.read(MIB)


def starts(disk: ScsiDisk, plain: bytes) -> bool:
    """Return whether firmware finds the image's partition table."""
    return start(disk)[: MARK.start] == plain[: MARK.start]


def does_not_start_by_half(disk: ScsiDisk, plain: bytes) -> None:
    if not starts(disk, plain):
        return
    assert files(disk.file, disk.file.parent, "/data") == {"/data": DATA}
