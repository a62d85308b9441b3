"""Files of paths, and their readers; no path leads out of its image."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.metalman.support.netboot_objects import machine
from tests.metalman.support.netboot_site import LOADERS, FixedFacts, put
from unbounded.gotemplate import TemplateError
from unbounded.metalman.http.boot_service import OnDisk
from unbounded.metalman.netboot import image_paths
from unbounded.metalman.netboot.image_paths import (
    FIRST_STAGES,
    FileRole,
    ImageFiles,
    TemplateFile,
    UnpackedSizes,
    file_role,
    image_of,
    normalized_path,
    unpacked_bytes,
)
from unbounded.metalman.netboot.model import BootImages, NetbootImage


def test_image_file_is_found_after_its_folder_returns(tmp_path: Path) -> None:
    library, image = ImageFiles(), NetbootImage(tmp_path / "disk", "sha256:1")
    assert library.find(image, "vmlinuz") is None
    image.root.mkdir()
    (image.root / "vmlinuz").write_bytes(b"the kernel")
    assert isinstance(library.find(image, "vmlinuz"), OnDisk)


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("vmlinuz", "vmlinuz"),
        ("grub//grub.cfg", "grub/grub.cfg"),
        ("cloud-init/", "cloud-init"),
        *[
            (path, None)
            for path in (
                *("", "/", "/etc/passwd", "//etc/passwd", "..", "../x", "a/../b", "a/./b", "a/..", "a\\b", "..\\x"),
                *("a\0b", "a\nb", "x" * 2000, "a/\u202e"),
            )
        ],
    ],
)
def test_only_plain_paths_are_looked_up(path: str, plain: str | None) -> None:
    assert normalized_path(path) == plain


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("shimx64.efi", FileRole.LOADER),
        ("boot.ipxe", FileRole.LOADER),
        ("grubx64.efi", FileRole.CONFIG),
        ("revocations.efi", FileRole.CONFIG),
        ("grub/grub.cfg", FileRole.CONFIG),
        ("grub/x86_64-efi/command.lst", FileRole.CONFIG),
        ("EFI/BOOT/BOOTX64.EFI", FileRole.CONFIG),
        ("vmlinuz", FileRole.KERNEL),
        ("boot/vmlinuz-6.1", FileRole.KERNEL),
        ("initrd", FileRole.KERNEL),
        ("init.cpio", FileRole.KERNEL),
        ("disk.img.gz", FileRole.DISK),
        ("disk.img.zst.sha256", FileRole.DISK),
        ("metadata.yaml", FileRole.OTHER),
        ("unbounded-agent", FileRole.OTHER),
        ("cloud-init/user-data", FileRole.OTHER),
        ("cloud-init/vmlinuz", FileRole.OTHER),
        ("cloud-init/x.efi", FileRole.OTHER),
        ("attest", FileRole.OTHER),
    ],
)
def test_what_a_path_is_for(path: str, kind: FileRole) -> None:
    assert file_role(path, LOADERS) is kind


def served(folder: Path) -> BootImages:
    netboot = put(
        folder / "a", {"x": "netboot", "disk.img.gz": "wrong", "t.tmpl": "{{.Machine.Name}}", "t": "verbatim"}
    )
    return BootImages(
        NetbootImage(netboot, "sha256:1"),
        NetbootImage(put(folder / "b", {"disk.img.gz": "right", "x": "no"}), "sha256:2"),
        {},
    )


def test_disk_comes_from_the_disk_image_and_other_files_from_netboot(tmp_path: Path) -> None:
    there = served(tmp_path)
    library = ImageFiles()
    for path, text in (("disk.img.gz", "right"), ("x", "netboot")):
        found = library.find(image_of(path, there), path)
        assert isinstance(found, OnDisk)
        assert found.path.read_text() == text
        assert found.size == len(text)


def test_a_template_comes_before_the_file_itself_and_is_never_served_raw(tmp_path: Path) -> None:
    there, library = served(tmp_path), ImageFiles()
    found = library.find(there.netboot, "t")
    assert isinstance(found, TemplateFile)
    around = FixedFacts.now("http://x/boot/p")
    assert found.content(machine(), around) == b"m1"
    assert library.find(there.netboot, "t.tmpl") is None
    assert library.find(there.netboot, "nothing") is None


def test_the_tag_follows_from_digest_and_path(tmp_path: Path) -> None:
    there = served(tmp_path)
    first, again = (ImageFiles().find(there.netboot, "x") for _ in range(2))
    other = ImageFiles().find(NetbootImage(there.netboot.root, "sha256:3"), "x")
    assert isinstance(first, OnDisk)
    assert isinstance(other, OnDisk)
    assert first == again
    assert first.etag != other.etag


def test_no_link_leads_out_of_an_image_and_links_within_are_followed(tmp_path: Path) -> None:
    root = put(tmp_path / "image" / "disk", {"boot/vmlinuz-6.1": "kernel"})
    (tmp_path / "image" / "secret").write_text("of somebody else")
    links = {"vmlinuz": "boot/vmlinuz-6.1", "out": "../secret", "far": "/etc/passwd", "loop": "loop", "dir": "boot"}
    for name, target in links.items():
        (root / name).symlink_to(target)
    (root / "t.tmpl").symlink_to("../secret")
    image, library = NetbootImage(root, "sha256:1"), ImageFiles()
    assert isinstance(library.find(image, "vmlinuz"), OnDisk)
    for name in ("out", "far", "loop", "dir", "boot", "t", "boot/vmlinuz-6.1/x"):
        assert library.find(image, name) is None, name


@pytest.mark.slow
@given(st.text(alphabet=st.sampled_from("./\\ab\0"), max_size=12))
def test_whatever_is_asked_for_stays_within_the_image(path: str) -> None:
    plain = normalized_path(path)
    assert plain is None or (not plain.startswith("/") and ".." not in plain.split("/"))


def test_a_template_that_cannot_be_rendered_says_where_it_is_wrong(tmp_path: Path) -> None:
    root = put(tmp_path, {"a.tmpl": "one\n{{.Machine.Nonsense}}", "b.tmpl": "{{if}}", "c.tmpl": "x" * (2 << 20)})
    around = FixedFacts.now("http://x")
    for name, words in (("a", ("a.tmpl:2", "Nonsense")), ("b", ("b.tmpl:1",))):
        found = ImageFiles().find(NetbootImage(root, "sha256:1"), name)
        assert isinstance(found, TemplateFile)
        with pytest.raises(TemplateError) as error:
            found.content(machine(), around)
        assert all(word in str(error.value) for word in words)
    found = ImageFiles().find(NetbootImage(root, "sha256:1"), "c")
    assert isinstance(found, TemplateFile)
    with pytest.raises(OSError, match=r"c\.tmpl exceeds"):
        found.content(machine(), around)


def test_what_is_had_by_address_alone_is_what_loaders_ask_for() -> None:
    assert {FileRole.LOADER, FileRole.CONFIG, FileRole.KERNEL} == FIRST_STAGES


DATA = b"an image " * 100_001
GZIP = gzip.compress(DATA, mtime=0)  # without a time: each process of the runner names the cases alike


@pytest.mark.parametrize("command", [["gzip", "-c"], ["zstd", "-qc"], ["zstd", "-qc", "--no-content-size"]])
def test_what_tools_have_packed_is_counted(tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "image"
    path.write_bytes(subprocess.run(command, input=DATA, capture_output=True, check=True).stdout)
    assert unpacked_bytes(path) == len(DATA)


@pytest.mark.parametrize(
    ("content", "size"),
    [
        (GZIP * 3, 3 * len(DATA)),
        (GZIP + bytes(512), len(DATA)),
        (zstandard.compress(DATA) * 2, 2 * len(DATA)),
        (gzip.compress(b"", mtime=0), 0),
        (GZIP[:-9], None),
        (b"\x1f\x8bjunk", None),
        (b"plain", None),
        (b"", 0),
    ],
)
def test_all_of_a_file_counts_and_half_a_file_has_no_size(tmp_path: Path, content: bytes, size: int | None) -> None:
    path = tmp_path / "image"
    path.write_bytes(content)
    assert unpacked_bytes(path) == size


def test_a_file_that_is_not_there_has_no_size(tmp_path: Path) -> None:
    assert unpacked_bytes(tmp_path / "none") is None


async def test_an_image_is_unpacked_once_for_all_who_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, counted = tmp_path / "image", []
    path.write_bytes(GZIP)

    def count(given: Path) -> int | None:
        counted.append(given)
        return unpacked_bytes(given)

    monkeypatch.setattr(image_paths, "unpacked_bytes", count)
    sizes, image = UnpackedSizes(), OnDisk(path, path.stat().st_size, "tag", 0.0)
    assert [await sizes.of(image) for _ in range(3)] == [len(DATA)] * 3
    assert counted == [path]
