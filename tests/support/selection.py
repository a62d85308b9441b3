"""Selection of the test modules that a session imports: imports are a large part of the time of `make quick`.

A module whose `pytestmark` is `slow` is omitted from a session without slow tests. `--part N/M` takes one of M parts,
for processes that share nothing.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Final

import pytest

ALL_SLOW: Final = re.compile(r"^pytestmark = (?:\[\s*)?pytest\.mark\.(?:slow|soak)\b", re.MULTILINE)
MODULE: Final = "test_*.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="N/M", help="collect one of M parts of the modules: every Mth from the Nth on")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Return True for a module that this session leaves out."""
    if not collection_path.match(MODULE):
        return None
    if config.option.markexpr.startswith("not slow") and ALL_SLOW.search(collection_path.read_text()):
        return True
    part = config.getoption("part")
    return True if part and collection_path not in modules_of(config.rootpath, part) else None


@functools.cache
def modules_of(root: Path, part: str) -> frozenset[Path]:
    """Return the modules of one part; all parts have about as much source.

    Args:
        part: such as `1/2`.
    """
    number, parts = map(int, part.split("/"))
    found = [*root.glob(f"tests/**/{MODULE}"), *root.glob(f"packages/*/tests/**/{MODULE}")]
    modules = sorted(found, key=lambda path: (-path.stat().st_size, path))
    return frozenset(modules[number - 1 :: parts])
