"""The sample provider: installed as a package of its own, found by its entry point, and held to the contract."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/provider-plugin"

pytestmark = pytest.mark.slow


def run(*command: str, env: Mapping[str, str], cwd: Path = ROOT) -> str:
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def installed(place: Path) -> dict[str, str]:
    """The environment of a process that has the sample installed, and our sources."""
    tree = place / "tree"
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")
    env = dict(os.environ) | {"PYTHONDONTWRITEBYTECODE": "1"}
    run(sys.executable, *pip, "--no-build-isolation", "--target", str(tree), str(EXAMPLE), env=env)
    return env | {"PYTHONPATH": f"{tree}{os.pathsep}{ROOT / 'src'}"}


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return installed(tmp_path_factory.mktemp("example"))


def test_it_is_found_by_its_entry_point(example: dict[str, str]) -> None:
    found = run(sys.executable, "-m", "unbounded.machineops.main", "providers", env=example)
    assert "LocalProcess (unbounded_process_provider:PROVIDER)\n" in found


def test_it_keeps_the_contract(example: dict[str, str], tmp_path: Path) -> None:
    pytest_ = ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={EXAMPLE}", f"--basetemp={tmp_path / 't'}")
    found = run(sys.executable, *pytest_, str(EXAMPLE / "tests"), env=example, cwd=tmp_path)
    assert "11 passed" in found, found
