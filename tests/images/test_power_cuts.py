"""A loss of power during an install: the next start ends right, or says what is left.

No other disk is written, and no half image starts.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.images.content import MIB, TABLE
from tests.images.disk_set_host import content, netbooted
from tests.images.disk_sets import GB, DiskSet, SetDisk
from tests.images.loops import PART_MIB, system
from tests.images.power_cuts import Cut, CutCase, PoweredHost, files
from tests.images.support import needed
from tests.support.seeds import first_seed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="loop devices and mounts need root"),
]

CUTS: Final = 1  # of each case; more in a soak
SOAK_CUTS: Final = 17
SEED_FILES: Final = tuple(f"/var/lib/cloud/seed/nocloud/{name}" for name in ("meta-data", "user-data", "vendor-data"))
DATA: Final = "/srv/data"
SMALL: Final = {"CHUNK_BYTES": "1000000", "BLOCK_MIB": "2"}
MARK: Final = slice(MIB // 2, MIB // 2 + 4096)
SIZE: Final = 5 * GB // MIB * MIB

BLANK: Final = SetDisk("sda", SIZE, "nothing", "S1", ("wwn-0x1",), "pci-1")
OWN: Final = SetDisk("sda", SIZE, "own", "S1", ("wwn-0x1",), "pci-1")
FOREIGN: Final = SetDisk("sda", SIZE, "a GUID partition table", "S1", ("wwn-0x1",), "pci-1")
BESIDE: Final = SetDisk("sdb", SIZE, "LVM", "S2", ("wwn-0x2",), "pci-2")
INSTALLS: Final = {
    "a blank disk": DiskSet(0, (BLANK, BESIDE), target="/dev/disk/by-id/wwn-0x1"),
    "an own disk": DiskSet(0, (OWN, BESIDE)),
    "a disk that may be erased": DiskSet(0, (FOREIGN, BESIDE), erase=("S1",)),
}


class Image:
    """The image of the install, and what a disk may have of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        data = folder / "root" / DATA.strip("/")
        data.parent.mkdir(parents=True)
        self.data = random.Random(19).randbytes(6 * MIB)  # packs to no less, so that it comes in several pieces
        data.write_bytes(self.data)
        self.plain = system(folder)

    def is_whole(self, device: Path) -> None:
        """Check all of the image but cloud-init's seed."""
        with device.open("rb") as disk:
            there = disk.read(len(self.plain))
        assert (
            there[: MARK.start] + there[MARK.stop : 2 * MIB]
            == self.plain[: MARK.start] + self.plain[MARK.stop : 2 * MIB]
        )
        assert there[(2 + PART_MIB) * MIB :] == self.plain[(2 + PART_MIB) * MIB :]
        assert files(device, self._folder, DATA) == {DATA: self.data}

    def does_not_start_by_half(self, device: Path) -> None:
        with device.open("rb") as disk:
            start = disk.read(MIB)
        if start[: MARK.start] == self.plain[: MARK.start]:
            self.is_whole(device)
            self.has_seed(device)

    def is_installed(self, device: Path) -> None:
        self.is_whole(device)
        with device.open("rb") as disk:
            mark = disk.read(MIB)[MARK]
        assert f"\nstate=installed\ntable={TABLE}\n".encode() in mark
        self.has_seed(device)

    def has_seed(self, device: Path) -> None:
        assert set(files(device, self._folder, *SEED_FILES)) == set(SEED_FILES)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    for tool in ("blkid", "zstd", "mke2fs", "e2fsck", "debugfs"):
        needed(tool)
    needed("nc.openbsd", "scripts/net-tools gets it")
    return Image(tmp_path_factory.mktemp("image"))


Cases = Callable[[str], CutCase]


@pytest.fixture
def install(image: Image) -> Cases:
    def case(name: str) -> CutCase:
        done, safe, remains = image.is_installed, image.does_not_start_by_half, ("changed since", "holds other data")
        return CutCase(INSTALLS[name], "sda", done, safe, remains, SMALL)

    return case


@pytest.mark.parametrize("name", INSTALLS)
async def test_an_install_ends_right_after_a_power_cut(name: str, install: Cases, image: Image, tmp_path: Path) -> None:
    await cut(install(name), image.plain, tmp_path, CUTS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", INSTALLS)
async def test_an_install_ends_right_after_each_of_fifty_power_cuts(
    name: str, install: Cases, image: Image, tmp_path: Path
) -> None:
    await cut(install(name), image.plain, tmp_path, SOAK_CUTS)


async def cut(case: CutCase, plain: bytes, folder: Path, cuts: int) -> None:
    """Cut an operation at random, each time on new disks. A run without a cut gives its writes and its duration."""
    chance = random.Random(first_seed())  # when a test loses power
    async with netbooted(case.of, plain, folder / "whole") as at:
        powered = PoweredHost(at, case)
        await at.world.replace(erase=",".join(case.of.erase))
        began = time.monotonic()
        assert (await powered.run(), at.recorder.failures) == (0, [])
        lasts_s = time.monotonic() - began
        case.is_done(powered.device)
        writes = powered.writes
    for number in range(cuts):
        drawn = Cut.drawn(chance, writes, lasts_s)
        async with netbooted(case.of, plain, folder / str(number)) as at:
            try:
                await after(PoweredHost(at, case), drawn, chance)
            except AssertionError as error:
                error.add_note(f"cut {number} of {first_seed()}: {drawn}, of {writes} writes in {lasts_s:.2f} s")
                raise


async def after(powered: PoweredHost, drawn: Cut, chance: random.Random) -> None:
    """Lose power, and start again until the operation ends."""
    at, case = powered.at, powered.case
    await at.world.replace(erase=",".join(case.of.erase))
    others = {disk.name: content(device, at.host.file(device)) for device, disk in at.disks.items()}
    del others[case.written]
    await powered.lose_power(drawn, chance)
    case.is_safe(powered.device)
    milestone = _milestone((await at.world.status()).status.netboot)
    if milestone == "ImageWritten" or await powered.run() == 0:  # the machine starts from its disk
        case.is_done(powered.device)
    else:
        (failure,) = at.recorder.failures
        assert failure.startswith(f"ChoosingDisk: disk {case.written}, "), failure
        assert any(words in failure for words in case.remains), failure
        case.is_safe(powered.device)
    left = {disk.name: content(device, at.host.file(device)) for device, disk in at.disks.items()}
    assert {name: left[name] for name in others} == others


def _milestone(netboot: object) -> str:
    return str(getattr(netboot, "milestone", "") or "")
