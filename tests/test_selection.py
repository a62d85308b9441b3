"""The parts of `make quick` together are all modules, and what is left out is slow in whole."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.support.selection import ALL_SLOW, modules_of

TOP: Final = Path(__file__).parents[1]


def test_each_module_is_in_one_part() -> None:
    parts = [modules_of(TOP, f"{number}/3") for number in (1, 2, 3)]
    assert sum(map(len, parts)) == len(frozenset().union(*parts))
    assert frozenset().union(*parts) == modules_of(TOP, "1/1")
    assert Path(__file__) in modules_of(TOP, "1/1")


def test_module_is_left_out_by_its_pytestmark_alone() -> None:
    slow = (
        "pytestmark = pytest.mark.slow",
        "pytestmark = [pytest.mark.slow, pytest.mark.root]",
        "pytestmark = [\n    pytest.mark.soak,\n    pytest.mark.root,\n]",
    )
    assert all(ALL_SLOW.search(f"import pytest\n\n{text}\n") for text in slow)
    others = (
        "pytestmark = pytest.mark.root",
        "@pytest.mark.slow\ndef test_a() -> None: ...",
        "pytestmark = needs_kubectl",
    )
    assert not any(ALL_SLOW.search(f"import pytest\n\n{text}\n") for text in others)
