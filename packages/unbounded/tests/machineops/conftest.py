"""The sample provider, installed as a package of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.paths import PYTHONPATH, ROOT

EXAMPLE = ROOT / "examples/provider-plugin"


def run(*command: str, env: Mapping[str, str], cwd: Path = ROOT) -> str:
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that has the sample installed, and our sources."""
    tree = tmp_path_factory.mktemp("example")
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")
    env = dict(os.environ) | {"PYTHONDONTWRITEBYTECODE": "1"}
    run(sys.executable, *pip, "--no-build-isolation", "--target", str(tree), str(EXAMPLE), env=env)
    return env | {"PYTHONPATH": f"{tree}{os.pathsep}{PYTHONPATH}"}
