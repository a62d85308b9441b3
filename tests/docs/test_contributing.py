"""CONTRIBUTING.md and the hooks of pre-commit name targets of the Makefile."""

from __future__ import annotations

import re
from typing import Final

import yaml

from tests.support.paths import ROOT

MAKEFILE: Final = (ROOT / "Makefile").read_text()
TARGETS: Final = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))


def test_its_make_targets_are_there() -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    assert named >= {"check", "quick", "test", "generate"}
    assert named - TARGETS == set()


def test_hooks_are_local_and_run_parts_of_make_check() -> None:
    (parts,) = re.findall(r"^check: (.*)$", MAKEFILE, re.MULTILINE)
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repo["repo"] == "local"
    hooks = repo["hooks"]
    assert {hook["entry"].split()[-1] for hook in hooks} == {"format", "lint", "generated"} <= set(parts.split())
    assert {(hook["language"], hook["entry"].split()[0], hook["pass_filenames"]) for hook in hooks} == {
        ("system", "make", False)
    }
