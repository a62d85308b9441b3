"""Paths of the parts of a machine: those of `scripts/boot-tools`, or those of the system."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


def found(pattern: str) -> Path | None:
    """The file of that name (a glob, below the root of a system); the last one where there are several."""
    for root in _roots():
        matches = sorted(root.glob(pattern))
        if matches:
            return matches[-1]
    return None


def needed(pattern: str) -> Path:
    """Return the path as `found` does; skip the test if there is none."""
    path = found(pattern)
    if path is None:
        pytest.skip(f"/{pattern} is not there; scripts/boot-tools gets it")
    return path


def built(path: str) -> Path | None:
    """A folder or file that a script of `scripts/` has built into `.venv/tools`; None when it has not."""
    tools = [Path(folder).parent for folder in os.environ["PATH"].split(":") if folder.endswith("tools/bin")]
    return next((folder / path for folder in tools if (folder / path).exists()), None)


def command(name: str) -> str:
    """Return a program in PATH; skip the test if there is none."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed; scripts/boot-tools gets it")
    return path


def _roots() -> Iterator[Path]:
    for folder in os.environ["PATH"].split(":"):
        unpacked = Path(folder).parent / "boot"
        if folder.endswith("tools/bin") and unpacked.is_dir():
            yield unpacked
    yield Path("/")
