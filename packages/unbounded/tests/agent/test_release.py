"""The release as a host gets it: what is in it, that it answers, and the file that unpacks itself."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from scripts.agent_release import TOP, imported_names, runtime, sort_archive
from scripts.packages import version

from tests.support.agent_release import BUILDS, CRASHES, AgentRelease, agent_release, release_like

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def release() -> AgentRelease:
    return agent_release()


def run(*argv: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    plain = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    return subprocess.run(
        [str(each) for each in argv], env=plain | environ, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_archive_holds_one_directory_and_belongs_to_root(release: AgentRelease) -> None:
    with tarfile.open(release.archive) as tar:
        members = tar.getmembers()
    assert {each.name.partition("/")[0] for each in members} == {"unbounded-agent"}
    assert {(each.uid, each.gid, each.mtime) for each in members} == {(0, 0, 0)}
    assert all(each.isdir() or each.isreg() or each.issym() for each in members)
    modes = {each.name.removeprefix("unbounded-agent/"): each.mode for each in members}
    assert (modes["unbounded-agent"], modes["LICENSE"]) == (0o755, 0o644)
    packages = {
        each.name.split("/")[3] for each in members if each.name.startswith("unbounded-agent/_internal/unbounded/")
    }
    assert not packages & {"cli", "machina", "metalman"}


def test_its_digest_stands_beside_it(release: AgentRelease) -> None:
    for path in (release.archive, release.file):
        digest, _, name = path.with_name(f"{path.name}.sha256").read_text().strip().partition("  ")
        assert (digest, name) == (hashlib.sha256(path.read_bytes()).hexdigest(), path.name)


def test_it_answers_with_its_version_and_needs_no_python(release: AgentRelease) -> None:
    ran = run(release.folder / "unbounded-agent", "version", PATH="/nonexistent")
    assert (ran.stdout, ran.stderr, ran.returncode) == (f"unbounded-agent {version()}\n", "", 0)


def test_it_holds_neither_the_api_server_nor_the_lab(release: AgentRelease) -> None:
    content = b"".join(path.read_bytes() for path in release.folder.rglob("*") if path.is_file())
    assert b"aiohttp.web_request" in content, "names of frozen modules can be read"
    assert [name for name in (b"unbounded_apiserver", b"unbounded_lab") if name in content] == []
    paths = {path.relative_to(release.folder).as_posix() for path in release.folder.rglob("*")}
    assert not [path for path in paths if "unbounded_" in path or "/unbounded/cli" in path]


def test_all_that_its_modules_import_is_in_it(release: AgentRelease) -> None:
    """A module of the agent that is imported late, and needs something that was left out, would fail on a host."""
    tried = release.folder / "_internal" / "unbounded"
    modules = sorted(
        ".".join(["unbounded", *path.relative_to(tried).with_suffix("").parts]).removesuffix(".__init__")
        for path in tried.rglob("*.pyc")
    )
    ran = run(release.folder / "unbounded-agent", "self-check")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == modules


def test_equal_sources_make_equal_files(release: AgentRelease, tmp_path: Path) -> None:
    """In a process of its own each time: how Python writes a compiled module depends on what else is loaded."""
    command = [sys.executable, "-m", "scripts.agent_release", "--runtimes", str(BUILDS / "runtimes"), str(tmp_path)]
    subprocess.run(command, cwd=TOP, check=True, timeout=300)
    again = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.iterdir() if path.is_file()}
    assert len(again) == 4
    folder = release.archive.parent
    assert again == {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in again}


def test_an_archive_is_the_same_whatever_order_it_was_written_in(tmp_path: Path) -> None:
    paths = tmp_path / "one.zip", tmp_path / "two.zip"
    for path, names in zip(paths, ("abc", "bca"), strict=True):
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(zipfile.ZipInfo(name), name * 100)
    assert paths[0].read_bytes() != paths[1].read_bytes()
    for path in paths:
        sort_archive(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with zipfile.ZipFile(paths[1]) as archive:
        assert {info.filename: archive.read(info) for info in archive.infolist()} == {
            name: name.encode() * 100 for name in "abc"
        }


@pytest.mark.soak
def test_a_runtime_that_is_built_again_is_the_same(tmp_path: Path) -> None:
    once, again = runtime(tmp_path / "once"), runtime(tmp_path / "again")
    files = sorted(path.relative_to(once) for path in once.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(again) for path in again.rglob("*") if path.is_file())
    assert [path for path in files if (once / path).read_bytes() != (again / path).read_bytes()] == []


def test_what_it_imports_is_found_in_the_sources() -> None:
    assert {"aiohttp", "msgspec", "cryptography.hazmat.primitives.ciphers.aead"} <= set(imported_names())


def test_a_release_that_was_broken_fails_in_that_way_alone(release: AgentRelease, tmp_path: Path) -> None:
    broken = release_like(release, tmp_path / "broken", version="9.9.9", on_daemon=CRASHES)
    command = broken.folder / "unbounded-agent"
    assert run(command, "version").stdout == "unbounded-agent 9.9.9\n", "it is the same program under another version"
    daemon = run(command, "daemon")
    assert (daemon.returncode, daemon.stderr) == (1, "this release crashes\n")


# The file that unpacks itself; test_agent_file has the rest of it


def test_the_file_unpacks_itself_once(release: AgentRelease, tmp_path: Path) -> None:
    first = run(release.file, "version", UNBOUNDED_AGENT_UNPACK_DIR=str(tmp_path))
    assert first.stdout == f"unbounded-agent {version()}\n", first.stderr
    (folder,) = (tmp_path / "unbounded-agent").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    before = (folder / "unbounded-agent" / "unbounded-agent").stat()
    again = run(release.file, "version", UNBOUNDED_AGENT_UNPACK_DIR=str(tmp_path))
    assert again.stdout == first.stdout
    assert (folder / "unbounded-agent" / "unbounded-agent").stat().st_ino == before.st_ino
    assert list((tmp_path / "unbounded-agent").iterdir()) == [folder]


def test_an_unpacking_that_was_cut_off_is_done_again(release: AgentRelease, tmp_path: Path) -> None:
    place = tmp_path / "unbounded-agent"
    environ = {**os.environ, "UNBOUNDED_AGENT_UNPACK_DIR": str(tmp_path)}
    for _ in range(20):  # the unpacking may be over before the kill comes
        with subprocess.Popen([release.file, "version"], env=environ, stdout=subprocess.DEVNULL) as cut:
            while not list(place.glob(".unfinished-*/*")) and cut.poll() is None:
                time.sleep(0.001)
            cut.kill()
        if list(place.glob(".unfinished-*")):
            break
        shutil.rmtree(place)
    else:
        pytest.fail("no unpacking was cut off")
    ran = run(release.file, "version", UNBOUNDED_AGENT_UNPACK_DIR=str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    assert len(list(place.iterdir())) == 1


def test_sources_know_their_version_too() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "unbounded.agent.main", "version"], capture_output=True, text=True, check=True
    )
    assert ran.stdout == f"unbounded-agent {version()}\n"
