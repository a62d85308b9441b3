"""The one file that unpacks itself: what it puts where, what it removes, and what it will not run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from scripts.agent_release import pack

RELEASE = '#!/bin/sh\necho "unbounded-agent $*"\nexit $#\n'


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release that prints its arguments, and exits with their number."""
    folder = tmp_path_factory.mktemp("release")
    executable = folder / "made" / "unbounded-agent"
    executable.parent.mkdir()
    executable.write_text(RELEASE)
    executable.chmod(0o755)
    return next(path for path in pack(executable.parent, folder) if path.name == "unbounded-agent")


def digest(file: Path) -> str:
    """Return the digest of its content, from its head."""
    return next(line for line in file.read_bytes().splitlines() if line.startswith(b"digest="))[7:].decode()


def run(file: Path, place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "UNBOUNDED_AGENT_UNPACK_DIR": str(place)}
    return subprocess.run([file, *arguments], env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_arguments_and_status_pass_through(file: Path, tmp_path: Path) -> None:
    ran = run(file, tmp_path, "two words", "more")
    assert (ran.stdout, ran.stderr, ran.returncode) == ("unbounded-agent two words more\n", "", 2)


def test_a_file_that_is_damaged_or_cut_off_is_not_run(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    for name, content in (("cut", whole[:-40]), ("changed", whole[:-9] + b"!" + whole[-8:])):
        bad = tmp_path / name
        bad.write_bytes(content)
        bad.chmod(0o755)
        ran = run(bad, tmp_path / "place")
        assert (ran.returncode, ran.stdout) == (1, "")
        assert f"{bad} is damaged" in ran.stderr
        assert list((tmp_path / "place" / "unbounded-agent").iterdir()) == []


@pytest.mark.slow
def test_several_at_once_all_run(file: Path, tmp_path: Path) -> None:
    environ = {**os.environ, "UNBOUNDED_AGENT_UNPACK_DIR": str(tmp_path)}
    ran = [subprocess.Popen([file, "x"], env=environ, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [one.communicate(timeout=60)[0] for one in ran] == ["unbounded-agent x\n"] * 4
    assert [path.name for path in (tmp_path / "unbounded-agent").iterdir()] == [digest(file)]


def test_earlier_releases_go_unless_something_runs_from_them(file: Path, tmp_path: Path) -> None:
    place = tmp_path / "unbounded-agent"
    unused, used, cut_off = place / ("0" * 64), place / ("1" * 64), place / ".unfinished-999999999"
    for folder in (unused, used, cut_off):
        (folder / "unbounded-agent").mkdir(parents=True)
    program = used / "unbounded-agent" / "sleep"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    with subprocess.Popen([program, "60"]) as running:
        assert run(file, tmp_path).returncode == 0
        running.kill()
    assert {path.name for path in place.iterdir()} == {used.name, digest(file)}


def test_what_lies_in_a_place_that_is_named_stays_as_it_is(file: Path, tmp_path: Path) -> None:
    """The place may well be a home directory, or /."""
    place = tmp_path / "place"
    foreign = [
        place / "data",
        place / ("0" * 64),
        place / ".unfinished-999999999",
        place / "unbounded-agent" / "notes",
        place / "unbounded-agent" / ("0" * 63),
        place / "unbounded-agent" / ("x" * 64),
        place / "unbounded-agent" / ".unfinished-work",
    ]
    for folder in foreign:
        folder.mkdir(parents=True)
        (folder / "kept").touch()
    place.chmod(0o755)
    assert run(file, place).returncode == 0
    assert [folder for folder in foreign if not (folder / "kept").exists()] == []
    assert place.stat().st_mode & 0o777 == 0o755
    assert (place / "unbounded-agent").stat().st_mode & 0o777 == 0o700


def test_a_place_that_cannot_be_made_is_named(file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = run(file, tmp_path / "file" / "below")
    assert ran.returncode == 1
    assert "UNBOUNDED_AGENT_UNPACK_DIR" in ran.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.root
@pytest.mark.parametrize("which", ["place", "release"])
def test_release_in_a_foreign_folder_is_not_run(file: Path, tmp_path: Path, which: str) -> None:
    assert run(file, tmp_path).returncode == 0
    place = tmp_path / "unbounded-agent"
    theirs = place if which == "place" else place / digest(file)
    os.chown(theirs, 12345, 12345)
    ran = run(file, tmp_path)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert f"{theirs} belongs to another user" in ran.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.root
def test_release_is_not_unpacked_into_a_foreign_folder(file: Path, tmp_path: Path) -> None:
    place = tmp_path / "unbounded-agent"
    place.mkdir()
    os.chown(place, 12345, 12345)
    ran = run(file, tmp_path)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert f"{place} belongs to another user" in ran.stderr
    assert list(place.iterdir()) == []
