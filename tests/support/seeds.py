"""The first seed of random schedules."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

ALWAYS: Final = 20261123


@cache
def first_seed() -> int:
    """The same for everybody, so that what fails is the change that is tested; in a soak each commit has its own."""
    if "UNBOUNDED_SOAK" not in os.environ:
        return ALWAYS
    root = Path(__file__).parent
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return int(found.stdout[:8], 16) if found.returncode == 0 else ALWAYS
