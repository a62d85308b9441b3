"""Places in the repository, and the import path of processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
GOLDENS: Final = ROOT / "tests" / "goldens"
PACKAGES: Final = tuple(sorted((ROOT / "packages").iterdir()))
SOURCES: Final = tuple(package / "src" for package in PACKAGES)

# With `tests` and `scripts`: each package has a part of `tests`
PYTHONPATH: Final = os.pathsep.join(map(str, (*SOURCES, ROOT, *PACKAGES)))


def environment() -> dict[str, str]:
    """Return the environment for a process that imports the packages and `tests`."""
    return {**os.environ, "PYTHONPATH": PYTHONPATH}
