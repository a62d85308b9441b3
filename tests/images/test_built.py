"""The small image of Debian 12 as it was built: what metalman and the installer find in it. tests/boot boots it."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tarfile
import uuid
from collections.abc import Mapping
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
    erasing = {"sbin/hdparm", "usr/sbin/nvme"}
    layouts = {"sfdisk", "mdadm", "lvm", "dmsetup", "mke2fs", "mkfs.xfs", "mkfs.vfat", "mkswap"}
    assert (
        wanted | erasing | {"bin/tar", "usr/bin/addpart", "etc/mke2fs.conf"} | {f"sbin/{name}" for name in layouts}
        <= names
    )
    assert {
        f"lib/unbounded/{part}.sh"
        for part in (
            "base",
            "choose_disk",
            "disks",
            "erase",
            "hardware",
            "http",
            "layout",
            "layout_disks",
            "layout_root",
            "mark",
            "network",
            "seed",
            "tpm",
            "write",
        )
    } <= names
    (told,) = (name for name in names if name.endswith("/modules.builtin"))
    extract = [needed("busybox"), "cpio", "-i", "--to-stdout", told]
    inside = subprocess.run(extract, input=archive, capture_output=True, check=True).stdout.decode().splitlines()
    assert inside  # the kernel of clouds has ext4 built in, others have it as a module
    layouts = {"raid0", "raid1", "raid10", "dm-mod", "dm-raid", "xfs", "vfat", "ext4"}
    for module in {"virtio_net", "bonding", "8021q", "efivarfs"} | layouts:
        assert any(name.endswith(f"/{module}.ko") for name in [*names, *inside]), module
    assert not [name for name in names if name.endswith(".rules") and ("md-raid" in name or "lvm" in name)]
    assert any("libblkid" in name for name in names)


@pytest.fixture(scope="module")
def members(files: Path) -> dict[str, tarfile.TarInfo]:
    """The archive of the root file system, by its names in their order."""
    with (files / "rootfs.tar.zst").open("rb") as packed:
        reader = zstandard.ZstdDecompressor().stream_reader(packed)
        with tarfile.open(fileobj=reader, mode="r|", encoding="utf-8", errors="surrogateescape") as tar:
            return {member.name: member for member in tar}


def test_archive_of_the_root_has_its_digest_beside_it(files: Path) -> None:
    digest = hashlib.sha256((files / "rootfs.tar.zst").read_bytes()).hexdigest()
    assert (files / "rootfs.tar.zst.sha256").read_text() == f"{digest}  rootfs.tar.zst\n"


def test_size_of_the_loader_is_that_of_its_files(files: Path, members: Mapping[str, tarfile.TarInfo]) -> None:
    loader = [one.size for name, one in members.items() if name.startswith("./usr/lib/unbounded/loader/esp/")]
    assert int((files / "rootfs.tar.zst.loader").read_text()) == sum(loader) > 1 << 20


def test_archive_of_the_root_has_what_starts_from_raid_and_lvm(members: Mapping[str, tarfile.TarInfo]) -> None:
    loader = "./usr/lib/unbounded/loader"
    for path in ("EFI/BOOT/BOOTX64.EFI", "EFI/BOOT/grubx64.efi", "EFI/debian/grub.cfg"):
        assert members[f"{loader}/esp/{path}"].size > 0
    assert members[f"{loader}/grub.cfg"].isfile()
    assert members["./boot/vmlinuz"].issym()
    assert f"./boot/{members['./boot/initrd.img'].linkname}" in members
    for path in ("./usr/sbin/mdadm", "./usr/sbin/lvm", "./etc/initramfs-tools/scripts/local-block/unbounded-lvm"):
        assert members[path].mode & 0o111, path


def test_archive_of_the_root_is_made_of_its_files_alone(members: Mapping[str, tarfile.TarInfo]) -> None:
    """Not of who built it, and when: one state of files makes one archive."""
    assert not any(name.startswith("./usr/share/python3/debpython/__pycache__") for name in members)  # differ each time
    names = [name.encode("utf-8", "surrogateescape") for name in members]
    folders = [name.split(b"/") for name in names]
    assert folders == sorted(folders)
    assert {member.uname + member.gname for member in members.values()} == {""}
    assert len({member.gid for member in members.values()}) > 1
    newest = max(member.mtime for member in members.values())
    assert (
        sum(member.mtime == newest for member in members.values()) > 100
    )  # SOURCE_DATE_EPOCH, of all that the build made
    assert all(
        key.startswith(("SCHILY.xattr.", "path", "linkpath", "mtime"))
        for each in members.values()
        for key in each.pax_headers
    )


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
    ["boot/vmlinuz", "boot/initrd.img", "etc/cloud/cloud.cfg.d/10-unbounded.cfg", "usr/bin/cloud-init",
     "usr/bin/machinectl", "usr/bin/systemd-nspawn", "usr/sbin/nft", "usr/sbin/mdadm", "usr/sbin/lvm"],
)  # fmt: skip
def test_the_root_has_what_starts_and_joins(plain: Path, path: str) -> None:
    there = debugfs(plain, f"stat /{path}")
    assert "Inode:" in there, there
    assert "User:     0" in there


def test_the_root_has_nothing_that_every_machine_would_share(plain: Path) -> None:
    assert "Size: 0" in debugfs(plain, "stat /etc/machine-id")
    assert "ssh_host" not in debugfs(plain, "ls -p /etc/ssh")


def test_the_root_has_no_time_of_its_build(plain: Path) -> None:
    """All of them are SOURCE_DATE_EPOCH: one state of files makes one disk."""
    for path in ("/", "/etc", "/etc/fstab", "/usr/bin/ls", "/boot/initrd.img"):
        times = re.findall(r"(?:ctime|atime|crtime): (\S+)", debugfs(plain, f"stat {path}"))
        assert len(times) == 3
        assert len(set(times)) == 1, path


def debugfs(plain: Path, command: str) -> str:
    image = f"{plain}?offset={(1 + 36) * MIB}"
    ran = subprocess.run([needed("debugfs"), "-R", command, image], capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr
