"""Tools of others read images: xorriso the ISO 9660 with Rock Ridge and El Torito, mtools the EFI partition."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.metalman.media.support import content, taken, whole
from unbounded.metalman.media.image import MediaContent, media_image, part_size

pytestmark = pytest.mark.slow


def run(name: str, *line: str) -> str:
    """Run a tool, and return its output and its remarks; skip without it."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed; scripts/media-tools gets it")
    ran = subprocess.run([path, *line], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


def many_files(folder: Path) -> MediaContent:
    """Content with names that only Rock Ridge has, and so many that a folder takes several sectors."""
    first = content(folder)
    more = {f"boot/initrd.img-6.1.0-{number}-cloud-amd64": b"%d" % number for number in range(40)}
    return MediaContent(first.loader, first.second_loader, {**first.files, **more, "empty": b""})


@pytest.mark.parametrize("made", [content, many_files])
def test_xorriso_extracts_every_file(tmp_path: Path, made: Callable[[Path], MediaContent]) -> None:
    given = made(tmp_path)
    iso = tmp_path / "boot.iso"
    iso.write_bytes(whole(media_image(given)))
    said = run("xorriso", "-osirrox", "on", "-indev", str(iso), "-extract", "/", str(tmp_path / "out"))
    assert not re.findall(r"(?:WARNING|SORRY|FAILURE|FATAL).*", said)
    out = tmp_path / "out"
    found = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert found == {path: taken(part, 0, part_size(part)) for path, part in given.files.items()}


def partition(iso: Path, folder: Path) -> Path:
    """Return the EFI partition of an image, as xorriso reads its boot catalog."""
    said = run("xorriso", "-indev", str(iso), "-report_el_torito", "plain")
    ((count, at),) = re.findall(r"El Torito boot img :\s+1\s+UEFI\s+y\s+none\s+0x0000\s+0x00\s+(\d+)\s+(\d+)", said)
    start, size = int(at) * 2048, int(count) * 512
    whole_rest = size == 0  # UEFI 2.10, 13.3.2.1
    (folder / "esp").write_bytes(iso.read_bytes()[start:] if whole_rest else iso.read_bytes()[start : start + size])
    return folder / "esp"


def copied(esp: Path, path: str, folder: Path) -> bytes:
    run("mcopy", "-i", str(esp), f"::EFI/BOOT/{path}", str(folder / "copied"))
    content = (folder / "copied").read_bytes()
    (folder / "copied").unlink()
    return content


@pytest.mark.parametrize("machine_type", ["X64", "AA64"])
def test_firmware_finds_one_efi_partition_with_both_loaders(tmp_path: Path, machine_type: str) -> None:
    given = replace(content(tmp_path), machine_type=machine_type)
    iso = tmp_path / "boot.iso"
    iso.write_bytes(whole(media_image(given)))
    esp = partition(iso, tmp_path)
    for name, part in (("BOOT", given.loader), ("GRUB", given.second_loader)):
        assert part is not None
        assert copied(esp, f"{name}{machine_type}.EFI", tmp_path) == taken(part, 0, part_size(part))


@pytest.mark.parametrize("mib", [1, 33, 70])
def test_firmware_finds_a_program_with_the_words_of_its_boot(tmp_path: Path, mib: int) -> None:
    program = b"".join(number.to_bytes(4, "big") * 256 for number in range(mib << 10)) + b"end"
    iso = tmp_path / "boot.iso"
    iso.write_bytes(whole(media_image(MediaContent(program, None, {}, words=b"words of a boot"))))
    esp = partition(iso, tmp_path)
    assert copied(esp, "BOOTX64.EFI", tmp_path) == program
    assert copied(esp, "BOOTX64.EFI.extra.d/boot.cred", tmp_path) == b"words of a boot"
