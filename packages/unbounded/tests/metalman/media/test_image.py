"""Layout of an ISO image: its parts, its ranges, its limits. Tools of others read whole images in `test_tools`."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metalman.media.support import CONFIG, content, stored, taken, whole
from unbounded.metalman.media import fat
from unbounded.metalman.media.image import FilePart, MediaContent, MediaImage, media_image


def test_files_of_the_image_are_parts_and_are_not_copied(tmp_path: Path) -> None:
    image = media_image(content(tmp_path))
    assert [part.path.name for part in image.parts if isinstance(part, FilePart)] == [
        "shim",
        "grub",
        "vmlinuz",
        "initrd",
    ]
    assert image.size == len(whole(image))
    assert image.size % 2048 == 0


def test_equal_content_makes_an_equal_image_and_another_secret_another_one(tmp_path: Path) -> None:
    first = content(tmp_path)
    other = MediaContent(first.loader, first.second_loader, {**first.files, "grub/grub.cfg": CONFIG + b"# b"})
    assert whole(media_image(first)) == whole(media_image(content(tmp_path)))
    assert whole(media_image(first)) != whole(media_image(other))


def test_descriptor_names_the_size_of_the_whole_image(tmp_path: Path) -> None:
    image = media_image(content(tmp_path))
    descriptor = whole(image)[16 * 2048 : 17 * 2048]
    assert descriptor[:6] == b"\1CD001"
    assert struct.unpack_from("<I", descriptor, 80) == struct.unpack_from(">I", descriptor, 84) == (image.size // 2048,)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[MediaImage, bytes]:
    """An image and all its bytes."""
    image = media_image(content(tmp_path_factory.mktemp("files")))
    return image, whole(image)


@pytest.mark.slow
@given(data=st.data())
def test_every_range_has_the_bytes_of_the_whole_image(data: st.DataObject, known: tuple[MediaImage, bytes]) -> None:
    image, every = known
    start = data.draw(st.integers(0, image.size))
    stop = data.draw(st.integers(start, image.size))
    assert b"".join(taken(*each) for each in image.slices(start, stop)) == every[start:stop]


def test_a_range_touches_only_the_files_that_it_covers(tmp_path: Path) -> None:
    image = media_image(content(tmp_path))
    assert [part for part, _, _ in image.slices(0, 2048)] == [image.parts[0]]


def test_an_empty_file_and_a_missing_second_loader_are_allowed(tmp_path: Path) -> None:
    image = media_image(MediaContent(stored(tmp_path, "shim", b"x"), None, {"empty": b""}))
    assert image.size == len(whole(image))


@pytest.mark.parametrize(
    ("path", "part", "message"),
    [
        ("a/b/c", b"", "more than one folder"),
        ("a/", b"", "more than one folder"),
        ("big", FilePart(Path("/dev/null"), 1 << 32), "too large"),
        ("n" * 129, b"", "more than 128 bytes"),
    ],
)
def test_what_the_format_cannot_have_is_refused_by_name(tmp_path: Path, path: str, part: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        media_image(MediaContent(stored(tmp_path, "shim", b"x"), None, {path: part}))
    assert path in str(refused.value)


def test_loaders_that_fat16_cannot_hold_are_refused() -> None:
    with pytest.raises(fat.LoadersTooLarge, match="do not fit"):
        fat.fat_layout({"BOOTX64.EFI": 2 << 30})


@pytest.mark.parametrize("name", ["a b.efi", "n" * 251, "é.efi"])
def test_a_name_that_is_not_stored_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        fat.fat_layout({name: 1})


@pytest.mark.slow
@given(st.lists(st.integers(0, 60 << 20), min_size=1, max_size=4))
def test_a_file_system_has_as_many_clusters_as_fat16_demands(sizes: list[int]) -> None:
    layout = fat.fat_layout({f"FILE{number}.EFI": size for number, size in enumerate(sizes)})
    in_cluster, reserved, tables, entries, table_sectors = struct.unpack_from("<BHBHxxxH", layout.head, 13)
    sectors = layout.size // fat.SECTOR - reserved - tables * table_sectors - entries * 32 // fat.SECTOR
    assert in_cluster * fat.SECTOR == layout.cluster
    clusters = sectors // in_cluster
    assert 4085 <= clusters < 65525
    assert (clusters + 2) * 2 <= table_sectors * fat.SECTOR
    needed = sum(-(-size // layout.cluster) for size in sizes)
    assert len(layout.head) + needed * layout.cluster <= layout.size
