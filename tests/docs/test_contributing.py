"""CONTRIBUTING.md names targets of the Makefile."""

from __future__ import annotations

import re
from typing import Final

from tests.docs.runner import ROOT

MAKEFILE: Final = (ROOT / "Makefile").read_text()
TARGETS: Final = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))


def test_its_make_targets_are_there() -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    assert named >= {"check", "quick", "test", "generate"}
    assert named - TARGETS == set()
