"""Files of a netboot image that go onto virtual media, and those that stay away."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from unbounded.metalman.dhcp.model import Loader
from unbounded.metalman.media.image import FilePart, MediaContent
from unbounded.metalman.netboot.image_paths import ImageFiles
from unbounded.metalman.netboot.media_content import NoMediaContent, media_content
from unbounded.metalman.netboot.model import BootImages, NetbootImage

FILES = (
    *("shimx64.efi", "grubx64.efi", "vmlinuz", "initrd", "ipxe.efi", "undionly.kpxe", "boot.ipxe.tmpl"),
    *("disk.img.zst", "rootfs.tar.zst", "grub/grub.cfg.tmpl", "cloud-init/user-data.tmpl", "unbounded-agent"),
)
LOADERS = {Loader.X64: "shimx64.efi", Loader.HTTP: "ipxe.efi"}


def made(
    folder: Path,
    files: tuple[str, ...] = FILES,
    loaders: Mapping[Loader, str] = LOADERS,
    architecture: str = "amd64",
) -> MediaContent:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    image = NetbootImage(folder, f"sha256:{folder}")
    return media_content(ImageFiles(), BootImages(image, image, loaders), b"rendered", architecture)


def named(part: object) -> str:
    assert isinstance(part, FilePart)
    return part.path.name


def test_loader_kernel_and_installer_go_onto_the_media_and_no_image_data(tmp_path: Path) -> None:
    content = made(tmp_path)
    assert (named(content.loader), named(content.second_loader)) == ("shimx64.efi", "grubx64.efi")
    assert {path: part if isinstance(part, bytes) else named(part) for path, part in content.files.items()} == {
        "grub/grub.cfg": b"rendered",
        "initrd": "initrd",
        "vmlinuz": "vmlinuz",
    }


def test_a_loader_that_is_grub_itself_needs_no_second_one(tmp_path: Path) -> None:
    content = made(tmp_path, loaders={Loader.X64: "grubx64.efi"})
    assert (named(content.loader), content.second_loader) == ("grubx64.efi", None)


def test_the_second_loader_lies_beside_the_first(tmp_path: Path) -> None:
    content = made(tmp_path, ("efi/shimx64.efi", "efi/grubx64.efi", "vmlinuz"), {Loader.X64: "efi/shimx64.efi"})
    assert named(content.second_loader) == "grubx64.efi"


def test_arm64_machine_gets_the_loaders_of_arm64(tmp_path: Path) -> None:
    files = ("shimx64.efi", "grubx64.efi", "shimaa64.efi", "grubaa64.efi", "vmlinuz", "initrd")
    content = made(tmp_path, files, {**LOADERS, Loader.ARM64: "shimaa64.efi"}, "arm64")
    assert content.second_loader is not None
    assert [named(content.loader), named(content.second_loader)] == ["shimaa64.efi", "grubaa64.efi"]
    assert content.machine_type == "AA64"


def test_signed_image_has_its_program_and_the_words_of_the_boot_alone(tmp_path: Path) -> None:
    content = made(
        tmp_path,
        ("installer.efi", "statement.tmpl", "disk.img.zst", "grub/grub.cfg.tmpl"),
        {Loader.X64: "installer.efi"},
    )
    assert named(content.loader) == "installer.efi"
    assert (content.second_loader, content.files, content.words) == (None, {}, b"rendered")


@pytest.mark.parametrize(
    ("files", "loaders", "architecture", "message"),
    [
        (FILES, {Loader.HTTP: "ipxe.efi"}, "amd64", r"no loader for amd64 UEFI \(dhcpBootImageName in"),
        (FILES, LOADERS, "arm64", r"no loader for arm64 UEFI \(bootFiles.arm64 in"),
        (("vmlinuz",), LOADERS, "amd64", "no loader for amd64 UEFI"),
        (("shimx64.efi", "vmlinuz.tmpl"), LOADERS, "amd64", "no kernel"),
    ],
    ids=["not named", "of another architecture", "not there", "no kernel"],
)
def test_an_image_without_what_a_host_needs_is_refused(
    tmp_path: Path, files: tuple[str, ...], loaders: Mapping[Loader, str], architecture: str, message: str
) -> None:
    with pytest.raises(NoMediaContent, match=message):
        made(tmp_path, files, loaders, architecture)


def test_an_image_whose_folder_is_gone_is_refused(tmp_path: Path) -> None:
    image = NetbootImage(tmp_path / "gone", "sha256:gone")
    with pytest.raises(NoMediaContent):
        media_content(ImageFiles(), BootImages(image, image, LOADERS), b"", "amd64")
