"""Download of Debian's packages by scripts: real apt with archives of its own, and the error of a missing one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.images.support import TOP, needed

SCRIPTS: Final = TOP / "scripts"
DEBIAN: Final = TOP / "images" / "common" / "debian.sh"
NOBODY: Final = "http://127.0.0.1:1/debian"  # without a server
LIMIT_S: Final = 30.0


def run(script: str, **environment: str) -> tuple[int, str]:
    """A script of bash: its exit code, and what it printed."""
    ran = subprocess.run(
        [needed("bash"), "-c", f"set -euo pipefail\n{script}"],
        env={"PATH": os.environ["PATH"], **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        check=False,
        text=True,
    )
    return ran.returncode, ran.stdout


def apt(folder: Path, *sources: str) -> dict[str, str]:
    """An environment in which apt knows these archives, has no lists yet, and reads nothing of this system's own."""
    needed("apt-get")
    (folder / "lists" / "partial").mkdir(parents=True)
    (folder / "none").mkdir()
    (folder / "sources.list").write_text("".join(f"{one}\n" for one in sources))
    settings = {
        "Dir::Etc::Main": folder / "none" / "apt.conf",
        "Dir::Etc::Parts": folder / "none",
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": folder / "none",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "Acquire::http::Proxy": "DIRECT",
        "Acquire::Retries": 0,
        "APT::Sandbox::User": "",
    }
    config = folder / "apt.conf"
    config.write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
    return {"APT_CONFIG": str(config)}


def archive(folder: Path, *, origin: str = "Debian") -> str:
    """An archive without packages: its line in a sources.list."""
    packages = folder / "dists" / "stable" / "main" / "binary-amd64" / "Packages"
    packages.parent.mkdir(parents=True)
    packages.write_text("Package: nothing\nVersion: 1\nArchitecture: amd64\nFilename: pool/nothing.deb\nSize: 1\n\n")
    listed = "dists/stable/main/binary-amd64/Packages"
    digest = subprocess.run([needed("sha256sum"), folder / listed], capture_output=True, text=True, check=True)
    (folder / "dists" / "stable" / "Release").write_text(
        f"Origin: {origin}\nSuite: stable\nCodename: stable\nArchitectures: amd64\nComponents: main\n"
        "Date: Thu, 01 Jan 2026 00:00:00 UTC\n"
        f"SHA256:\n {digest.stdout.split()[0]} {packages.stat().st_size} main/binary-amd64/Packages\n"
    )
    return f"deb [trusted=yes arch=amd64] file:{folder} stable main"


def scripts(folder: Path) -> Path:
    """A checkout with nothing but the scripts that get tools."""
    shutil.copytree(SCRIPTS, folder / "scripts", ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    return folder / "scripts"


STARTS: Final = 'losing="tests are skipped"; . {scripts}/debs.sh; debs_start; echo started'


@pytest.mark.slow
def test_an_archive_that_cannot_be_reached_is_said_and_asked_again(tmp_path: Path) -> None:
    script = STARTS.format(scripts=scripts(tmp_path))
    code, said = run(script, **apt(tmp_path / "apt", f"deb {NOBODY} bookworm main"))
    assert (code, said.splitlines()[-1]) == (0, "bash: apt-get update failed; tests are skipped")
    assert not (tmp_path / ".venv/tools/apt/asked").exists()


@pytest.mark.slow
def test_what_one_archive_has_is_used_where_another_cannot_be_reached(tmp_path: Path) -> None:
    script = STARTS.format(scripts=scripts(tmp_path))
    sources = (archive(tmp_path / "archive"), f"deb {NOBODY} bookworm main")
    code, said = run(script, **apt(tmp_path / "apt", *sources))
    assert (code, said.splitlines()[-1]) == (0, "started")
    assert not (tmp_path / ".venv/tools/apt/asked").exists()


@pytest.mark.slow
def test_an_archive_is_asked_once(tmp_path: Path) -> None:
    script = STARTS.format(scripts=scripts(tmp_path))
    reached = apt(tmp_path / "apt", archive(tmp_path / "archive"))
    assert run(script, **reached) == (0, "started\n")
    shutil.rmtree(tmp_path / "archive")
    assert run(script, **reached) == (0, "started\n")


DEBIAN_STARTS: Final = f"""
give_up() {{ echo "gave up: $1"; exit 1; }}
. {DEBIAN}
keyring=/dev/null
"""


@pytest.mark.slow
def test_a_build_ends_where_the_archive_cannot_be_reached(tmp_path: Path) -> None:
    script = f"{DEBIAN_STARTS} debian_start {tmp_path}/build bookworm"
    named = {"DEBIAN_ARCHIVE": NOBODY, "DEBIAN_SECURITY_ARCHIVE": NOBODY}
    code, said = run(script, **named, **apt(tmp_path / "apt"))
    assert (code, said.splitlines()[-1]) == (1, "gave up: apt-get update failed")


@pytest.mark.slow
@pytest.mark.parametrize("lists", [False, True], ids=["no lists yet", "lists"])
def test_the_archive_of_this_system_is_found(tmp_path: Path, lists: bool) -> None:
    reached = apt(tmp_path / "apt", archive(tmp_path / "archive"))
    script = f"{DEBIAN_STARTS} {'apt-get -qq update;' if lists else ''} debian_sources trixie {tmp_path}/asked"
    code, said = run(script, **reached)
    assert (code, said) == (0, f"deb [signed-by=/dev/null] file:{tmp_path}/archive/ trixie main\n")
    assert (tmp_path / "asked").exists() != lists


@pytest.mark.slow
def test_a_system_of_others_says_which_archive_is_wanted(tmp_path: Path) -> None:
    reached = apt(tmp_path / "apt", archive(tmp_path / "archive", origin="Ubuntu"))
    code, said = run(f"{DEBIAN_STARTS} debian_sources trixie {tmp_path}/asked", **reached)
    assert (code, said) == (1, "gave up: this system has no Debian archive; name one in DEBIAN_ARCHIVE\n")


MIB: Final = 1 << 20


@pytest.mark.parametrize(
    ("group", "free"),
    [
        ({}, 4000),
        ({"max": "max"}, 4000),
        ({"max": 8000 * MIB, "current": 1000 * MIB, "stat": 0}, 4000),
        ({"max": 2000 * MIB, "current": 1500 * MIB, "stat": 0}, 500),
        ({"max": 2000 * MIB, "current": 1500 * MIB, "stat": 1000 * MIB}, 1500),
    ],
    ids=["no group", "no limit", "a limit above the system's", "a limit", "a limit, and a cache of files"],
)
def test_a_container_has_no_more_memory_than_its_limit_leaves(
    tmp_path: Path, group: dict[str, str | int], free: int
) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 9999999 kB\nMemAvailable: {4000 * 1024} kB\n")
    for name, value in group.items():
        words = f"anon 7\ninactive_file {value}\nactive_file 5\n" if name == "stat" else f"{value}\n"
        (tmp_path / f"memory.{name}").write_text(words)
    assert run(f". {DEBIAN}; free_mb", PROC=str(tmp_path), CGROUP=str(tmp_path)) == (0, f"{free}\n")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts of one's own need root")
def test_script_run_by_bash_restarts_in_its_own_mount_namespace(tmp_path: Path) -> None:
    script = tmp_path / "build"  # which is not executable
    script.write_text(f'. {DEBIAN}; own_mounts "$@"; [ "$OWN_MOUNTS" = $$ ] && echo "$1"\n')
    assert run(f"cd {tmp_path}; bash build 'one word'") == (0, "one word\n")


APT_GET: Final = """#!/bin/sh
for package; do :; done
case " $* " in
  *" download atftp ") echo "E: there is no atftp" >&2; exit 100 ;;
  *" download "*) touch "${package}_1_amd64.deb" ;;
  *" indextargets ") echo one ;;
esac
"""
DPKG: Final = """#!/bin/sh
mkdir -p "$3/usr/bin"
for name in busybox tftp atftp nc.openbsd; do echo of "$2" >"$3/usr/bin/$name"; done
"""
USED: Final = ("bash", "sh", "basename", "cat", "dirname", "find", "flock", "install", "mkdir", "mktemp", "rm", "touch")


@pytest.mark.slow
def test_a_tool_that_cannot_be_had_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "bin"
    path.mkdir()
    for name in USED:
        (path / name).symlink_to(needed(name))
    for name, text in {"apt-get": APT_GET, "apt-cache": "#!/bin/sh\n", "dpkg": DPKG}.items():
        (path / name).write_text(text)
        (path / name).chmod(0o755)
    code, said = run(f"{scripts(tmp_path)}/net-tools", PATH=str(path))
    assert code == 0, said
    assert "net-tools: no atftp in package atftp here; its tests are skipped" in said
    got = {tool.name for tool in (tmp_path / ".venv/tools/bin").iterdir()}
    assert {"busybox", "tftp", "nc.openbsd"} <= got
    assert "atftp" not in got
