"""The sample provider is found by its entry point, and keeps the contract."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.machineops.conftest import EXAMPLE, run

pytestmark = pytest.mark.slow


def test_it_is_found_by_its_entry_point(example: dict[str, str]) -> None:
    found = run(sys.executable, "-m", "unbounded.machineops.main", "providers", env=example)
    assert "LocalProcess (unbounded_process_provider:PROVIDER)\n" in found


def test_it_keeps_the_contract(example: dict[str, str], tmp_path: Path) -> None:
    pytest_ = ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={EXAMPLE}", f"--basetemp={tmp_path / 't'}")
    found = run(sys.executable, *pytest_, str(EXAMPLE / "tests"), env=example, cwd=tmp_path)
    assert "27 passed, 13 skipped" in found, found
