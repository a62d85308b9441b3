"""The size of a packed image: as the packers of others count it."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path

import pytest
import zstandard

from unbounded.metalman.http.ports import OnDisk
from unbounded.metalman.netboot import content
from unbounded.metalman.netboot.content import UnpackedSizes, unpacked_bytes

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

    monkeypatch.setattr(content, "unpacked_bytes", count)
    sizes, image = UnpackedSizes(), OnDisk(path, path.stat().st_size, "tag", 0.0)
    assert [await sizes.of(image) for _ in range(3)] == [len(DATA)] * 3
    assert counted == [path]
