"""The small image of Debian 12 as it was built: what metalman and the installer find in it. tests/boot boots it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import uuid
from pathlib import Path

import pytest
import zstandard

from tests.images.content import MIB
from tests.images.support import needed
from tests.support.qemu.tools import built
from unbounded.metalman.dhcp.model import Loader
from unbounded.metalman.images.metadata import read_netboot

EFI_SYSTEM = uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
LINUX_ROOT = uuid.UUID("4f68bce3-e8cd-4db1-96e7-fbcaf984b709")
DISK = built("host-debian12/disk")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(DISK is None, reason="the image is not built; scripts/host-image builds it, as root"),
]


@pytest.fixture(scope="module")
def files() -> Path:
    assert DISK is not None
    return DISK


@pytest.fixture(scope="module")
def plain(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The disk image, unpacked."""
    path = tmp_path_factory.mktemp("disk") / "disk.img"
    with (files / "disk.img.zst").open("rb") as packed, path.open("wb") as unpacked:
        zstandard.ZstdDecompressor().copy_stream(packed, unpacked)
    return path


def blkid(*arguments: str) -> str:
    command = [needed("blkid"), "-p", "-o", "export", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def test_metalman_takes_it_and_knows_the_digest_of_its_disk(files: Path) -> None:
    metadata = read_netboot(files)
    assert set(metadata.loaders) == {Loader.X64, Loader.BIOS, Loader.HTTP, Loader.IPXE}
    digest = hashlib.sha256((files / "disk.img.zst").read_bytes()).hexdigest()
    assert metadata.disk_sha256 == digest
    assert (files / "disk.img.zst.sha256").read_text() == f"{digest}  disk.img.zst\n"


def test_the_kernel_can_unpack_the_initrd_and_it_has_all_programs(files: Path) -> None:
    archive = zstandard.ZstdDecompressor().decompressobj().decompress((files / "initrd").read_bytes())
    listed = subprocess.run([needed("busybox"), "cpio", "-t"], input=archive, capture_output=True, check=True)
    names = set(listed.stdout.decode().splitlines())
    wanted = {"init", "lib/unbounded/install", "bin/sh", "bin/nc.openbsd", "sbin/blkid", "usr/bin/zstd", "bin/udevadm"}
    assert wanted <= names
    assert {
        f"lib/unbounded/{part}.sh"
        for part in ("base", "choosing", "disks", "hardware", "http", "mark", "network", "seed", "tpm", "write")
    } <= names
    for module in ("virtio_net.ko", "efivarfs.ko"):
        assert any(name.endswith(module) for name in names)
    assert any("libblkid" in name for name in names)


def test_disk_has_a_standard_partition_table_and_room_for_the_mark(plain: Path) -> None:
    assert "PTTYPE=gpt" in blkid(str(plain))
    with plain.open("rb") as file:
        first = file.read(MIB)
    assert first[MIB // 2 : MIB // 2 + 4096] == bytes(4096)
    assert first[510:512] == b"\x55\xaa"
    kinds = [uuid.UUID(bytes_le=first[1024 + 128 * number :][:16]) for number in range(3)]
    assert kinds == [EFI_SYSTEM, LINUX_ROOT, uuid.UUID(int=0)]
    with plain.open("rb") as file:
        file.seek(-512, os.SEEK_END)
        assert file.read(8) == b"EFI PART"


def test_its_file_systems_are_whole(plain: Path) -> None:
    esp, root = 1 * MIB, (1 + 36) * MIB
    assert "TYPE=vfat" in blkid("--offset", str(esp), str(plain))
    there = blkid("--offset", str(root), str(plain))
    assert "TYPE=ext4" in there
    assert "LABEL=root" in there
    ran = subprocess.run(
        [needed("e2fsck"), "-fn", f"{plain}?offset={root}"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize(
    "path",
    ["vmlinuz", "initrd.img", "etc/cloud/cloud.cfg.d/10-unbounded.cfg", "usr/bin/cloud-init", "usr/bin/machinectl",
     "usr/bin/systemd-nspawn", "usr/sbin/nft"],
)  # fmt: skip
def test_the_root_has_what_starts_and_joins(plain: Path, path: str) -> None:
    there = debugfs(plain, f"stat /{path}")
    assert "Inode:" in there, there
    assert "User:     0" in there


def test_the_root_has_nothing_that_every_machine_would_share(plain: Path) -> None:
    assert "Size: 0" in debugfs(plain, "stat /etc/machine-id")
    assert "ssh_host" not in debugfs(plain, "ls -p /etc/ssh")


def debugfs(plain: Path, command: str) -> str:
    image = f"{plain}?offset={(1 + 36) * MIB}"
    ran = subprocess.run([needed("debugfs"), "-R", command, image], capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr
