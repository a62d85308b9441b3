"""Layouts on loop devices, with the tools of the initrd: partitions and file systems as other tools find them.

RAID, LVM and vfat are the kernel's, and that of tests may lack them: tests/boot proves them in QEMU. Here a folder
stands in for each EFI system partition.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
import zstandard

from tests.images.content import FOREIGN, MIB, put
from tests.images.initrd_tools import install_tools, unpacked_initrd
from tests.images.layout_text import (
    ESP_IDS,
    ESP_TYPE,
    LINUX_TYPE,
    encoded,
    file,
    identity,
    layout,
    partition,
)
from tests.images.loops import loop_devices, mounted, that_takes_loops
from tests.images.support import OWN_MOUNTS, UID, Host, Site, needed, site

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="loop devices and mounts need root"),
]

DISK_MIB = 128
XFS_MIB = 512  # the smallest that mkfs.xfs makes has 300
LOADER = "usr/lib/unbounded/loader"
GRUB = "root=ROOT_UUID boot=BOOT_UUID at=BOOT_PATH end PARAMETERS\n"


@pytest.fixture(scope="module")
def initrd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked_initrd(tmp_path_factory.mktemp("initrd") / "initrd")


BY_GRUB: Final = {
    f"{LOADER}/esp/EFI/BOOT/BOOTX64.EFI": b"shim",
    f"{LOADER}/esp/EFI/BOOT/grubx64.efi": b"grub",
    f"{LOADER}/esp/EFI/debian/grub.cfg": GRUB.encode(),
    f"{LOADER}/grub.cfg": GRUB.encode(),
}
SIGNED: Final = {
    f"{LOADER}/esp/EFI/BOOT/BOOTX64.EFI": b"program",
    f"{LOADER}/esp/EFI/BOOT/BOOTX64.EFI.extra.d/root.cred": b"UUID=ROOT_UUID\n",
}


def rootfs(loader: Mapping[str, bytes] = BY_GRUB) -> bytes:
    """The archive of a root file system as small as one can be."""
    content = {
        "etc/cloud/cloud.cfg": b"",
        "etc/fstab": b"of the image\n",
        **loader,
        "usr/bin/large": os.urandom(3 * MIB),
    }
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in content.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size, member.mode, member.uid, member.gid = len(data), 0o4755, 7, 42
            member.pax_headers = {"SCHILY.xattr.user.kept": "yes"}
            tar.addfile(member, io.BytesIO(data))
    return zstandard.compress(plain.getvalue(), 1)


@dataclass
class Laid:
    """Two disks of a host, the layout for them, and how an installation of it ended."""

    host: Host
    devices: Sequence[str]
    files: Sequence[Path]
    data: str
    archive: bytes = field(default_factory=rootfs)

    def text(self, *more: str, states: Sequence[str] = ("Blank", "Blank")) -> str:
        first, second = self.devices
        return layout(
            f"disk d1 {first} {states[0]}",
            f"disk d2 {second} {states[1]}",
            partition("d1", 1, 2, 40, ESP_TYPE),
            partition("d1", 2, 42, 64, LINUX_TYPE),
            partition("d1", 3, 106, 20 if self.data == "ext4" else 400, LINUX_TYPE),
            partition("d2", 7, 2, 40, ESP_TYPE),
            partition("d2", 1, 64, 32, LINUX_TYPE),
            f"filesystem vfat d1/1 {ESP_IDS[0]} -F,32,-s,1",
            f"filesystem vfat d2/7 {ESP_IDS[1]} -",
            f"filesystem ext4 d1/2 {identity('root')} -L,top",
            f"filesystem {self.data} d1/3 {identity('data')} -",
            f"filesystem swap d2/1 {identity('swap')} -",
            "mount d1/2 / errors=remount-ro",
            "mount d1/1 /boot/efi -",
            "mount d1/3 /var/lib/data -",
            "esp d1/1",
            "esp d2/7",
            file("/etc/fstab", "of the profile\n", "0600"),
            f"cmdline {encoded('quiet a=b/c')}",
            *more,
        )

    async def install(self, text: str, *, erase: str = "", kept: float = 1.0, archive: bool = True) -> str:
        """Install; return the reported failure, or nothing."""
        code, out, where = await self._run(text, erase, kept, archive=archive)
        failed = "".join(f"{one['stage']}: {one['message']}" for one in where.reports if one["failed"])
        assert (code == 0) == (failed == "") == (where.disabled == 1), out
        assert (self.host.root / "mounted").read_text() == ""
        return failed

    async def cut(self, text: str) -> None:
        """An installation that does not come to its end."""
        assert (await self._run(text, "", 1.0, archive=True))[0] != 0

    async def _run(self, text: str, erase: str, kept: float, *, archive: bool) -> tuple[int, str, Site]:
        answer = {"status": "ok", "action": "Layout", "layout": hashlib.sha256(text.encode()).hexdigest()}
        async with site() as where:
            where.files["layout"] = text.encode()
            where.image(self.archive, "rootfs.tar.zst")
            where.files["rootfs.tar.zst"] = self.archive[: int(len(self.archive) * kept)]
            if not archive:
                del where.files["rootfs.tar.zst.sha256"]
            where.answers = [(200, answer | ({"erase": erase} if erase else {}))] * 2
            parts = str(that_takes_loops(self.host))
            return *await self.host.install(where, INSTALLER=parts, SYS="/sys", DEV="/dev"), where

    async def states(self) -> list[str]:
        names = " ".join(Path(device).name for device in self.devices)
        _, out = await self.host.parts(f"for d in {names}; do judge $d {UID}; done", SYS="/sys", DEV="/dev")
        return out.splitlines()

    @property
    def blocks(self) -> list[int]:
        """How much of each disk has ever been written."""
        for device in self.devices:
            with Path(device).open("rb+") as each:
                os.fsync(each)
        return [image.stat().st_blocks for image in self.files]

    def esp(self, part: str) -> dict[str, str]:
        """The files on an EFI system partition."""
        folder = self.host.root / "esp" / Path(part).name
        return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def laid_on(folder: Path, initrd: Path, data: str, mib: int) -> Iterator[Laid]:
    for tool in ("blkid", "zstd"):
        needed(tool)
    needed("nc.openbsd", "scripts/net-tools gets it")
    host = Host(folder / "host", within=OWN_MOUNTS)
    install_tools(host, initrd)
    with loop_devices() as attach:
        files = [folder / "first.img", folder / "second.img"]
        for path in files:
            with path.open("wb") as made:
                made.truncate(mib * MIB)
        devices = [attach(path) for path in files]
        _stand_in(host, devices)
        yield Laid(host, devices, files, data)


@pytest.fixture
def laid(tmp_path: Path, initrd: Path) -> Iterator[Laid]:
    with laid_on(tmp_path, initrd, "ext4", DISK_MIB) as made:
        yield made


@pytest.fixture
def large(tmp_path: Path, initrd: Path) -> Iterator[Laid]:
    """Disks for XFS, for one test of the machine at a time: the kernel mounts no two XFS with one UUID."""
    with (Path(tempfile.gettempdir()) / "unbounded-tests-xfs").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with laid_on(tmp_path, initrd, "xfs", XFS_MIB) as made:
            yield made


REREAD = r"""[ "$1" = --rereadpt ] || exec BUSYBOX blockdev "$@"
fields='s/^.*p\([0-9]*\) : start= *\([0-9]*\) size= *\([0-9]*\) .*/\1 \2 \3/p'
sfdisk -d "$2" 2>/dev/null | tr -d , | sed -n "$fields" | while read -r number place; do
    [ -b "$2p$number" ] || addpart "$2" $number $place
done"""
MOUNT = """[ "$1 $2" = "-t vfat" ] || exec BUSYBOX mount "$@"
mkdir -p ROOT/esp/${3##*/} && BUSYBOX mount --bind ROOT/esp/${3##*/} "$4\""""


def _stand_in(host: Host, devices: Sequence[str]) -> None:
    """For what this kernel may lack: it reads no GUID partition tables, and mounts no vfat."""
    needed("addpart")
    names = " ".join(Path(device).name for device in devices)
    with (that_takes_loops(host) / "disks.sh").open("a") as parts:
        parts.write(f"disks() {{ printf '%s\\n' {names}; }}\n")
        parts.write(f"trap 'grep \" {host.root}/\" /proc/mounts >{host.root}/mounted' EXIT\n")
    for name, text in (("blockdev", REREAD), ("mount", MOUNT)):
        script = text.replace("BUSYBOX", needed("busybox")).replace("ROOT", str(host.root))
        host.command(name).unlink()
        host.command(name).write_text(f"#!/bin/sh\n{script}\n")
        host.command(name).chmod(0o755)


def blkid(path: str, *tags: str) -> list[str]:
    found = dict(
        line.split("=", 1)
        for line in subprocess.run(
            [needed("blkid"), "-p", "-o", "export", path], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    )
    return [found.get(tag, "") for tag in tags]


def table(host: Host, device: str) -> list[tuple[int, int, str, str, str]]:
    """Return the partitions of a disk."""
    told = subprocess.run([host.command("sfdisk"), "--json", device], capture_output=True, check=True).stdout
    parts = json.loads(told)["partitiontable"]["partitions"]
    return [(one["start"], one["size"], one["type"].lower(), one["uuid"].lower(), one["name"]) for one in parts]


async def test_layout_has_its_partitions_file_systems_and_files(large: Laid, tmp_path: Path) -> None:
    first, second = large.devices
    assert await large.install(large.text()) == ""
    assert table(large.host, first) == [
        (4096, 40 * 2048, ESP_TYPE, identity("d1/1"), "d1-1"),
        (42 * 2048, 64 * 2048, LINUX_TYPE, identity("d1/2"), "d1-2"),
        (106 * 2048, 400 * 2048, LINUX_TYPE, identity("d1/3"), "d1-3"),
    ]
    assert {part[3] for part in table(large.host, second)} == {identity("d2/7"), identity("d2/1")}
    assert blkid(f"{first}p1", "TYPE", "UUID", "VERSION") == ["vfat", ESP_IDS[0], "FAT32"]
    assert blkid(f"{second}p7", "TYPE", "UUID") == ["vfat", ESP_IDS[1]]
    assert blkid(f"{first}p2", "TYPE", "UUID", "LABEL") == ["ext4", identity("root"), "top"]
    assert blkid(f"{first}p3", "TYPE", "UUID") == ["xfs", identity("data")]
    assert blkid(f"{second}p1", "TYPE", "UUID") == ["swap", identity("swap")]
    assert await large.states() == ["Own", "Own"]

    menu = f"root={identity('root')} boot={identity('root')} at=/boot end quiet a=b/c\n"
    loader = {"EFI/BOOT/BOOTX64.EFI": "shim", "EFI/BOOT/grubx64.efi": "grub", "EFI/debian/grub.cfg": menu}
    assert [large.esp(part) for part in (f"{first}p1", f"{second}p7")] == [loader, loader]
    with mounted(f"{first}p2", tmp_path / "installed") as root:
        assert (root / "etc/fstab").read_text() == "of the profile\n"
        assert (root / "etc/fstab").stat().st_mode & 0o7777 == 0o600
        assert (root / "boot/grub/grub.cfg").read_text() == menu
        assert (root / "var/lib/cloud/seed/nocloud/user-data").read_text() == "user-data\n"
        assert (root / "etc/growroot-disabled").exists()
        program = root / "usr/bin/large"
        told = program.stat()
        kept = (told.st_mode & 0o7777, told.st_uid, told.st_gid, os.getxattr(program, "user.kept"))
        assert kept == (0o4755, 7, 42, b"yes")


async def test_signed_system_is_told_its_root_file_system_on_each_esp(laid: Laid) -> None:
    laid.archive = rootfs(SIGNED)
    assert await laid.install(laid.text()) == ""
    loader = {
        "EFI/BOOT/BOOTX64.EFI": "program",
        "EFI/BOOT/BOOTX64.EFI.extra.d/root.cred": f"UUID={identity('root')}\n",
    }
    assert [laid.esp(f"{laid.devices[0]}p1"), laid.esp(f"{laid.devices[1]}p7")] == [loader, loader]


async def test_archive_without_a_menu_or_a_signed_system_is_refused(laid: Laid) -> None:
    laid.archive = rootfs({path: content for path, content in SIGNED.items() if path.endswith(".EFI")})
    assert f"has no {LOADER}/grub.cfg" in await laid.install(laid.text())
    assert not laid.esp(f"{laid.devices[0]}p1")


async def test_root_is_on_xfs_where_the_layout_says_so(large: Laid, tmp_path: Path) -> None:
    moved = large.text().replace("mount d1/3 /var", "mount d1/2 /var").replace("mount d1/2 / ", "mount d1/3 / ")
    assert await large.install(moved) == ""
    first = large.devices[0]
    menu = large.esp(f"{first}p1")["EFI/debian/grub.cfg"]
    assert menu == f"root={identity('data')} boot={identity('data')} at=/boot end quiet a=b/c\n"
    assert blkid(f"{first}p3", "TYPE", "UUID") == ["xfs", identity("data")]
    with mounted(f"{first}p3", tmp_path / "installed") as root:
        assert (root / "etc/fstab").read_text() == "of the profile\n"
        assert os.getxattr(root / "usr/bin/large", "user.kept") == b"yes"


async def test_separate_boot_is_where_grub_looks(laid: Laid) -> None:
    moved = laid.text().replace("mount d1/3 /var/lib/data", "mount d1/3 /boot").replace(" /boot/efi ", " /efi ")
    assert await laid.install(moved) == ""
    menu = laid.esp(f"{laid.devices[0]}p1")["EFI/debian/grub.cfg"]
    assert menu == f"root={identity('root')} boot={identity('data')} at= end quiet a=b/c\n"


async def test_interrupted_layout_starts_nothing_says_what_is_left_and_is_repeated(laid: Laid) -> None:
    """Repeated onto disks with metadata of RAID and LVM where the new partitions begin and end."""
    first, second = laid.devices
    failed = await laid.install(laid.text(), kept=0.5)
    assert failed.startswith("Writing: the image could not be unpacked: ")
    assert failed.endswith(
        f"; the old content of these disks is lost, and nothing starts from them: {Path(first).name} "
        f"{Path(second).name}; they are this Machine's, and are written by the next installation"
    )
    assert not any("EFI/BOOT/BOOTX64.EFI" in laid.esp(part) for part in (f"{first}p1", f"{second}p7"))
    assert await laid.states() == ["Own", "Own"]

    for at, mib, what in ((42, 64, "RAID 1.0"), (106, 20, "LVM"), (106, 20, "RAID 1.0")):
        put(Path(first), *((at * MIB + offset, data) for offset, data in FOREIGN[what][0](mib * MIB)))
    assert await laid.install(laid.text(states=("Own", "Own"))) == ""
    assert all("EFI/BOOT/BOOTX64.EFI" in laid.esp(part) for part in (f"{first}p1", f"{second}p7"))
    assert blkid(f"{first}p2", "TYPE") == blkid(f"{first}p3", "TYPE") == ["ext4"]


async def test_failure_behind_the_first_loader_takes_it_away(laid: Laid) -> None:
    cp = laid.host.command("cp")
    busybox = cp.resolve()
    cp.unlink()
    cp.write_text(f'#!/bin/sh\n[ "$3" != "{laid.host.root}/tmp/esp/" ] || exit 1\nexec {busybox} cp "$@"\n')
    cp.chmod(0o755)
    failed = await laid.install(laid.text())
    assert failed.startswith("Writing: the loader could not be written to d2/7; the old content of these disks is lost")
    first = laid.esp(f"{laid.devices[0]}p1")
    assert set(first) == {"EFI/BOOT/grubx64.efi", "EFI/debian/grub.cfg"}  # written, and without what starts it


async def test_foreign_disk_of_a_layout_is_written_by_consent_alone(laid: Laid) -> None:
    second = Path(laid.devices[1])
    put(second, *FOREIGN["XFS"][0](DISK_MIB * MIB))
    before = laid.blocks
    refused = await laid.install(laid.text(states=("Blank", "Foreign")))
    assert refused.startswith("ChoosingDisk: ")
    assert "which was reported as Foreign and now is: Foreign TYPE=xfs" in refused
    assert refused.endswith("; nothing was written")
    assert laid.blocks == before
    with (that_takes_loops(laid.host) / "hardware.sh").open("a") as parts:
        parts.write('disk_identity() { text serialNumber "S-${1##*/loop}"; }\n')
    text, erase = laid.text(states=("Blank", "Foreign")), f"S-x,S-{second.name.removeprefix('loop')}"
    assert await laid.install(text, erase=erase) == ""
    assert await laid.states() == ["Own", "Own"]


async def test_layout_that_does_not_fit_is_refused_before_a_write(laid: Laid) -> None:
    text = laid.text()
    for old, new, why in (
        ("d1 3 217088 40960", "d1 3 217088 80960", "does not fit the disk"),
        ("d1 3 217088", "d1 3 100000", "the partitions do not fit"),
        ("d1 1 4096", "d1 1 1024", "is in its first MiB"),
        (" Blank", " Own", "the layout was made for"),
    ):
        assert old in text
        failed = await laid.install(text.replace(old, new, 1))
        assert failed.startswith("ChoosingDisk: ")
        assert why in failed
        assert failed.endswith("; nothing was written")
    assert laid.blocks == [0, 0]


async def test_image_without_the_archive_is_refused_before_a_write(laid: Laid) -> None:
    failed = await laid.install(laid.text(), archive=False)
    assert failed.startswith(
        "Preparing: the image has no rootfs.tar.zst, which a MachineProfile is installed from: HTTP 404"
    )
    assert failed.endswith("; nothing was written")
    assert laid.blocks == [0, 0]


async def test_a_signed_installer_unpacks_the_archive_alone_that_it_was_built_with(laid: Laid) -> None:
    digest = hashlib.sha256(laid.archive).hexdigest()
    laid.host.expects({"disk.img.zst": digest})
    failed = await laid.install(laid.text())
    assert failed.startswith(f"Preparing: rootfs.tar.zst has the SHA-256 {digest}, and the signed installer was ")
    assert failed.endswith("; nothing was written")
    assert laid.blocks == [0, 0]
    laid.host.expects({"rootfs.tar.zst": digest})
    assert await laid.install(laid.text()) == ""


async def test_scripts_of_a_profile_run_before_and_after(laid: Laid) -> None:
    """The one after it runs in the installed system, which has no shell here: its failure is the installation's."""
    left = laid.host.root / "ran"
    failed = await laid.install(laid.text(f"script pre {encoded(f'touch {left}')}", f"script post {encoded('true')}"))
    assert left.exists()
    assert failed.startswith("Writing: chroot ")
    assert await laid.states() == ["Own", "Own"]
