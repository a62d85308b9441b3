"""Disks that the installer takes, and disks that it does not change. It never guesses."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.images.content import FOREIGN, MIB, SECTOR, TABLE, gpt, put
from tests.images.support import UID, Host, needed

pytestmark = pytest.mark.slow

OTHER = "99999999-1111-4222-8333-944495559666"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    needed("blkid")
    return Host(tmp_path / "host")


async def choose(host: Host, target: str = "", recorded: str = "", **environment: str) -> str:
    """The disk, or the reason why there is none."""
    chosen = f'rm -f "$T/trouble"; choose_disk {UID} "{target}" "{recorded}" || cat "$T/trouble"'
    _, out = await host.parts(chosen, **environment)
    return out.strip()


async def mark(host: Host, disk: str, uid: str = UID, state: str = "installed", table: str = str(TABLE)) -> None:
    """Leave a mark on a disk, where an install does."""
    text = f'mark_text {uid} rack1-01 {state} "{table}" >"$T/mark" && truncate -s 4096 "$T/mark"'
    put = f'dd if="$T/mark" of="$DEV/{disk}" bs=4096 seek=$MARK_AT conv=notrunc,fsync 2>/dev/null'
    code, out = await host.parts(f"{text} && {put}")
    assert code == 0, out


async def test_the_only_blank_disk_is_taken(host: Host) -> None:
    host.disk("sda")
    assert await choose(host) == "sda"


async def test_an_erased_disk_of_ones_is_blank(host: Host) -> None:
    put(host.disk("nvme0n1", 4), (0, b"\xff" * 4 * MIB))
    assert await choose(host) == "nvme0n1"


async def test_two_blank_disks_are_a_question_for_a_person(host: Host) -> None:
    host.disk("sda", serial="A1")
    host.disk("sdb", 32)
    said = await choose(host)
    assert said.startswith("several disks could be meant; name one in spec.pxe.targetDisk: ")
    assert "sda (16 MB, ata-DISK_A1): blank" in said
    assert "sdb (33 MB): blank" in said


async def test_no_disk_at_all(host: Host) -> None:
    assert (await choose(host)).endswith("there is no disk")


@pytest.mark.parametrize("what", FOREIGN)
async def test_a_disk_with_data_of_others_is_refused_and_named(host: Host, what: str) -> None:
    pieces, words = FOREIGN[what]
    disk = host.disk("sda", 64)
    put(disk, *pieces(64 * MIB))
    before = disk.read_bytes()
    said = await choose(host)
    assert said.startswith("no disk is blank; erase one"), said
    assert words in said
    assert (await choose(host, "/dev/sda")).startswith("targetDisk /dev/sda holds data of others")
    assert disk.read_bytes() == before


@pytest.mark.parametrize("order", [("sda", "sdb"), ("sdb", "sda")])
async def test_the_order_of_disks_does_not_matter(host: Host, order: tuple[str, str]) -> None:
    for name in order:
        host.disk(name, 64)
    put(host.root / "dev" / order[0], *FOREIGN["LVM"][0](64 * MIB))
    assert await choose(host) == order[1]


async def test_partitions_that_the_kernel_knows_are_data(host: Host) -> None:
    host.disk("sda")
    host.partition("sda", "sda1")
    assert "sda (16 MB): partitions" in await choose(host)


async def test_a_disk_in_use_is_not_blank(host: Host) -> None:
    host.disk("sda")
    (host.root / "sys/block/sda/holders/dm-0").mkdir()
    assert "sda (16 MB): in use by dm-0" in await choose(host)


async def test_what_is_no_disk_to_install_on_is_not_looked_at(host: Host) -> None:
    host.disk("sda", removable="1")
    host.disk("sdb", ro="1")
    host.disk("sdc", size="0")
    host.disk("nvme0c0n1", hidden="1")
    for name in ("loop0", "ram0", "sr0", "dm-0", "md127", "mmcblk0boot0", "zram0", "nbd0"):
        host.disk(name)
    host.disk("vda")
    assert await choose(host) == "vda"


async def test_the_named_disk_is_taken_among_several(host: Host) -> None:
    host.disk("sda", serial="A1")
    host.disk("sdb", serial="B2")
    assert await choose(host, "/dev/disk/by-id/ata-DISK_B2") == "sdb"
    assert await choose(host, "/dev/sda") == "sda"


@pytest.mark.parametrize("target", ["/dev/disk/by-id/ata-GONE", "/dev/sdz", "/etc/passwd", "/dev/disk", "sda1"])
async def test_missing_target_disk_is_not_substituted(host: Host, target: str) -> None:
    host.disk("sda", serial="A1")
    said = await choose(host, target)
    assert said.startswith(f"targetDisk {target} is no disk here: sda (16 MB, ata-DISK_A1): blank")


async def test_an_own_earlier_install_is_taken_before_a_blank_disk(host: Host) -> None:
    host.disk("sda")
    put(host.disk("sdb", 64), (0, gpt(64 * MIB // SECTOR, (2048, 4095))))
    host.partition("sdb", "sdb1")
    await mark(host, "sdb")
    assert await choose(host) == "sdb"


async def test_an_own_install_that_was_cut_off_is_taken_again(host: Host) -> None:
    disk = host.disk("sda")
    put(disk, (2 * MIB, b"half an image"), (16 * MIB - 8192, b"still there"))
    await mark(host, "sda", state="writing", table="")
    assert await choose(host) == "sda"


async def test_two_disks_with_the_own_mark_are_a_question(host: Host) -> None:
    for name in ("sda", "sdb"):
        put(host.disk(name, 64), (0, gpt(64 * MIB // SECTOR, (2048, 4095))))
        await mark(host, name)
    assert (await choose(host)).startswith("several disks could be meant")


async def test_the_install_of_another_machine_is_foreign_and_says_whose(host: Host) -> None:
    put(host.disk("sda", 64), (0, gpt(64 * MIB // SECTOR, (2048, 4095))))
    await mark(host, "sda", OTHER)
    said = await choose(host, "/dev/sda")
    assert f"installed for Machine rack1-01 with UID {OTHER}" in said


async def test_an_own_disk_that_somebody_partitioned_anew_is_foreign(host: Host) -> None:
    disk = host.disk("sda", 64)
    await mark(host, "sda")
    put(disk, (0, gpt(64 * MIB // SECTOR, (2048, 4095), table=uuid.UUID(int=5))))
    assert "an earlier install of this Machine, changed since" in await choose(host)


@pytest.mark.parametrize("what", ["LVM", "RAID 1.0", "XFS", "a DOS partition table"])
@pytest.mark.parametrize("state", ["installed", "writing"])
async def test_an_own_disk_that_was_given_to_something_else_is_foreign(host: Host, what: str, state: str) -> None:
    disk = host.disk("sda", 64)
    await mark(host, "sda", state=state, table=str(TABLE) if state == "installed" else "")
    put(disk, *FOREIGN[what][0](64 * MIB))
    assert "changed since" in await choose(host)


@pytest.mark.parametrize("at", range(0, 200, 13))
async def test_a_damaged_mark_is_no_mark(host: Host, at: int) -> None:
    disk = host.disk("sda", 64)
    put(disk, (0, gpt(64 * MIB // SECTOR, (2048, 4095))))
    await mark(host, "sda")
    written = disk.read_bytes()[MIB // 2 : MIB // 2 + 4096].rstrip(b"\0")
    assert len(written) > 200
    put(disk, (MIB // 2 + at, bytes([written[at] ^ 1])))
    assert (await choose(host)).startswith("no disk is blank")


async def test_a_disk_with_sectors_of_4_kib_is_refused_named_or_not(host: Host) -> None:
    disk = host.disk("sda", 64, sector=4096)
    before = disk.read_bytes()
    words = "sda (67 MB): sectors of 4096 bytes, and images are made for 512"
    assert words in await choose(host)
    said = await choose(host, "/dev/sda")
    assert said.startswith("targetDisk /dev/sda cannot be written: ")
    assert words in said
    assert disk.read_bytes() == before


async def test_a_small_blank_disk_is_taken_only_when_it_is_named(host: Host) -> None:
    """Flash of boards and BMCs is a blank disk, too, and often the only one that is there at once."""
    host.disk("sda", 64)
    said = await choose(host, LEAST_BYTES="")
    assert "sda (67 MB): blank, but smaller than 4000 MB" in said
    assert await choose(host, "/dev/sda", LEAST_BYTES="") == "sda"
    host.disk("sdb", 4096)
    assert await choose(host, LEAST_BYTES="") == "sdb"


async def test_disk_too_small_for_the_image_is_rejected_before_erasure(host: Host) -> None:
    host.disk("sda", 16)
    words = "sda (16 MB): too small for the image, which has 65 MB"
    assert words in await choose(host, IMAGE_BYTES="65000000")
    assert words in await choose(host, "/dev/sda", IMAGE_BYTES="65000000")
    host.disk("sdb", 64)
    assert await choose(host, IMAGE_BYTES="65000000") == "sdb"


async def test_the_disk_of_the_last_install_is_expected(host: Host) -> None:
    host.disk("sda", serial="A1")
    recorded = "/dev/disk/by-id/ata-DISK_B2"
    said = await choose(host, recorded=recorded)
    assert said.startswith(
        f"{recorded}, the disk of this Machine's last install, is not here; name another in spec.pxe.targetDisk: sda"
    )
    assert await choose(host, "/dev/sda", recorded) == "sda"  # a person has consented
    host.disk("sdb", serial="B2")
    assert await choose(host, recorded=recorded) == "sdb"
    put(host.root / "dev/sdb", *FOREIGN["LVM"][0](16 * MIB))
    said = await choose(host, recorded=recorded)
    assert said.startswith(f"{recorded}, the disk of this Machine's last install, holds data of others; erase it, or")


@pytest.mark.parametrize(
    ("links", "best"),
    [
        (["ata-DISK_A1", "wwn-0x5000c500a1b2c3d4"], "wwn-0x5000c500a1b2c3d4"),
        (["nvme-MAKER_MODEL_S1", "nvme-eui.0025385b71b0c1d2"], "nvme-eui.0025385b71b0c1d2"),
        (["scsi-0QEMU_QEMU_HARDDISK_B2", "scsi-SQEMU_QEMU_HARDDISK_B2"], "scsi-SQEMU_QEMU_HARDDISK_B2"),
        (["virtio-disk0"], "virtio-disk0"),
        ([], ""),
    ],
)
async def test_a_disk_is_recorded_by_the_name_that_stays(host: Host, links: list[str], best: str) -> None:
    host.disk("sda")
    for link in links:
        (host.root / "dev/disk/by-id" / link).symlink_to("../../sda")
    _, out = await host.parts("stable_name sda")
    assert out == (f"/dev/disk/by-id/{best}" if best else "")
