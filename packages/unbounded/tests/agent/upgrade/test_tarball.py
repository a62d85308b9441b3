"""Content that is unpacked as a release, and content that is refused before it is written."""

from __future__ import annotations

import gzip
import os
import tarfile
from pathlib import Path

import pytest

from tests.agent.upgrade.making import program, release_tarball, tarball
from unbounded.agent.upgrade.staging import TarballLimits, unpack_release
from unbounded.fetch.failures import TooLarge, UnusableContent

EXECUTABLE = ("unbounded-agent/unbounded-agent", program("exit 0"), 0o755)
FOLDER = ("unbounded-agent", None, 0o755)


def _unpacked(tmp_path: Path, packed: Path, **limits: int) -> Path:
    target = tmp_path / "target"
    target.mkdir()
    unpack_release(packed, target, limits=TarballLimits(**limits))
    return target


def test_a_directory_is_unpacked_with_its_libraries_and_links(tmp_path: Path) -> None:
    target = _unpacked(tmp_path, release_tarball(tmp_path / "a.tar.gz", "2"))
    assert os.access(target / "unbounded-agent", os.X_OK)
    assert (target / "_internal" / "library.so").read_text() == "library of 2"


@pytest.mark.parametrize("name", ["unbounded-agent", "./unbounded-agent"])
def test_a_single_executable_is_a_release(tmp_path: Path, name: str) -> None:
    target = _unpacked(tmp_path, tarball(tmp_path / "a.tar.gz", (name, program("exit 0"), 0o755)))
    assert [path.name for path in target.iterdir()] == ["unbounded-agent"]


def test_a_directory_that_is_not_listed_itself_is_a_release(tmp_path: Path) -> None:
    target = _unpacked(tmp_path, tarball(tmp_path / "a.tar.gz", EXECUTABLE))
    assert (target / "unbounded-agent").is_file()


BAD = {
    "leads out of the tree": (FOLDER, EXECUTABLE, ("unbounded-agent/../../escaped", b"x", 0o644)),
    "beside unbounded-agent, where nothing else is allowed": (EXECUTABLE, ("README", b"x", 0o644)),
    "it must contain only": (("unbounded-agent", program("exit 0"), 0o755), ("unbounded-agent", None, 0o755)),
    "unbounded-agent/unbounded-agent' twice": (FOLDER, EXECUTABLE, EXECUTABLE),
    "not executable": (FOLDER, ("unbounded-agent/unbounded-agent", b"x", 0o644)),
    "is empty": (FOLDER, ("unbounded-agent/unbounded-agent", b"", 0o755)),
    "contains neither unbounded-agent/unbounded-agent nor": (FOLDER, ("unbounded-agent/other", b"x", 0o755)),
    "out of the tree": (FOLDER, EXECUTABLE, ("unbounded-agent/link", "../../../etc/passwd", 0o777)),
    "is not a file": (FOLDER, ("unbounded-agent/unbounded-agent", "/bin/sh", 0o777)),
    "neither a file": (("unbounded-agent", "/bin/sh", 0o777),),
    "is not a directory": (
        FOLDER,
        EXECUTABLE,
        ("unbounded-agent/link", "_internal", 0o777),
        ("unbounded-agent/link/below", b"x", 0o644),
    ),
}


@pytest.mark.parametrize("words", list(BAD))
def test_what_is_no_release_is_refused(tmp_path: Path, words: str) -> None:
    archive = tarball(tmp_path / "a.tar.gz", *BAD[words])
    with pytest.raises(UnusableContent, match=words):
        _unpacked(tmp_path, archive)
    assert not (tmp_path / "escaped").exists()


def test_a_hard_link_is_refused(tmp_path: Path) -> None:
    link = ("unbounded-agent/link", "unbounded-agent/unbounded-agent", 0o755)
    archive = tarball(tmp_path / "a.tar.gz", FOLDER, EXECUTABLE, link, kind=tarfile.LNKTYPE)
    with pytest.raises(UnusableContent, match="hard link"):
        _unpacked(tmp_path, archive)


def test_a_device_is_refused(tmp_path: Path) -> None:
    archive = tarball(
        tmp_path / "a.tar.gz", FOLDER, EXECUTABLE, ("unbounded-agent/null", "", 0o666), kind=tarfile.CHRTYPE
    )
    with pytest.raises(UnusableContent, match="devices"):
        _unpacked(tmp_path, archive)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        pytest.param({"executable": 64}, "the limit is 64", id="executable"),
        pytest.param({"archive": 4096}, "more than 8192 bytes", id="unpacked"),
        pytest.param({"members": 1}, "more than 1 files", id="members"),
    ],
)
def test_what_is_too_large_is_refused(tmp_path: Path, limits: dict[str, int], words: str) -> None:
    big = ("unbounded-agent/unbounded-agent", program("exit 0") + b"#" * 20000, 0o755)
    archive = tarball(tmp_path / "a.tar.gz", FOLDER, big)
    with pytest.raises(TooLarge, match=words):
        _unpacked(tmp_path, archive, **limits)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"hello", id="text"),
        pytest.param(gzip.compress(b"hello"), id="not-tar"),
        pytest.param(gzip.compress(b"x" * 2048)[:-9], id="cut-off"),
    ],
)
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(content)
    with pytest.raises(UnusableContent):
        _unpacked(tmp_path, archive)
