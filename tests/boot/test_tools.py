"""The parts of scripts/boot-tools are complete, or the system's own; it runs in a copy of the tree."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.images.support import TOP
from tests.support.qemu.tools import built, command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="apt-get is not installed"),
]
LIMIT_S = 120
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree without tools, which knows what the archive has."""
    known = built("apt/lists")
    if known is None:
        pytest.skip("the archive was not asked for; scripts/boot-tools does")
    made = tmp_path / "tree"
    shutil.copytree(TOP / "scripts", made / "scripts")
    shutil.copytree(known.parent, made / ".venv/tools/apt")
    return made


def run(tree: Path, *line: str, **environ: str) -> str:
    """Run a command in the tree and return its output."""
    env = {"PATH": SYSTEM_PATH, "HOME": str(tree), **environ}
    ran = subprocess.run(
        line,
        cwd=tree,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


def test_what_is_unpacked_does_not_depend_on_what_apt_holds_for_installed(tree: Path) -> None:
    """QEMU came without the firmware or the modules that were in packages of the system, and again at each call."""
    closure = (
        "losing=; . scripts/debs.sh; mkdir -p $known; touch $known/asked; debs_start; debs_closure qemu-system-x86"
    )
    held = tree / "status"
    packages = ("qemu-system-common", "qemu-system-data", "seabios", "ipxe-qemu", "libglib2.0-0")
    held.write_text(
        "\n".join(
            f"Package: {name}\nStatus: install ok installed\nArchitecture: amd64\nMulti-Arch: foreign\n"
            "Maintainer: x <x@x.example>\nVersion: 99:1\nDescription: x\n"
            for name in packages
        )
    )
    config = tree / "apt.conf"
    config.write_text(f'Dir::State::status "{held}";\n')
    plain = run(tree, "bash", "-euo", "pipefail", "-c", closure).split()
    with_them = run(tree, "bash", "-euo", "pipefail", "-c", closure, APT_CONFIG=str(config)).split()
    assert set(packages) <= set(plain)
    assert with_them == plain
    assert not [name for name in plain if name.startswith("libc6")]


def own_system(tree: Path, *names: str) -> Path:
    """A folder with commands as the system's own, which run those that were unpacked for tests."""
    folder = tree / "system"
    folder.mkdir()
    for name in names:
        (folder / name).symlink_to(command(name))
    return folder


def test_the_systems_own_qemu_is_used_where_it_starts_a_machine(tree: Path) -> None:
    boot = built("boot")
    if boot is None:
        pytest.skip("nothing is unpacked here; scripts/boot-tools does")
    (tree / ".venv/tools/boot").symlink_to(boot)
    system = own_system(tree, "qemu-system-x86_64", "qemu-img", "swtpm", "swtpm_setup")
    said = run(tree, "scripts/boot-tools", PATH=f"{system}:{SYSTEM_PATH}")
    assert said == "boot-tools: all are there\n"
    assert not (tree / ".venv/tools/bin").exists()


def test_a_qemu_that_starts_no_machine_counts_as_none(tree: Path) -> None:
    boot = built("boot")
    if boot is None:
        pytest.skip("nothing is unpacked here; scripts/boot-tools does")
    (tree / ".venv/tools/boot").symlink_to(boot)
    system = own_system(tree, "qemu-img", "swtpm", "swtpm_setup")
    broken = system / "qemu-system-x86_64"
    broken.write_text("#!/bin/sh\necho \"could not load module for type 'tcg-accel-ops'\" >&2\nexit 1\n")
    broken.chmod(0o755)
    for name in ("bash", "dirname", "mkdir", "cat", "tr", "grep", "paste", "timeout", "basename", "rm"):
        found = shutil.which(name, path=SYSTEM_PATH)
        assert found
        (system / name).symlink_to(found)
    said = run(tree, "scripts/boot-tools", PATH=str(system))  # there is no apt in it
    assert said == ("boot-tools: there is no apt here; without qemu-system-x86_64 tests of network boot are skipped\n")
