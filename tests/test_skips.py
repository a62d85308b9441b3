"""Skipped tests in a run where everything has to pass, in a test runner of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

TOP: Final = Path(__file__).parents[1]
TESTS: Final = """
import pytest

@pytest.fixture
def tool():
    pytest.skip("a tool is not there")

@pytest.mark.skipif(True, reason="needs root")
def test_mark(): pass

def test_fixture(tool): pass

def test_body(): pytest.skip("no loop device")

@pytest.mark.xfail(reason="not yet")
def test_expected(): assert False

@pytest.mark.skip(reason="DMTF's schemas are not beside the checkout (or so)")
def test_allowed(): pass

def test_passes(): pass
"""
MODULE: Final = 'import pytest\npytest.skip("all of it lacks something", allow_module_level=True)\n'


def outcomes(folder: Path, ci: str) -> tuple[int, dict[str, str]]:
    """Run both modules: return the exit code, and the summary of each test, or module, by its name."""
    (folder / "test_some.py").write_text(TESTS)
    (folder / "test_module.py").write_text(MODULE)
    options = ("-p", "tests.support.skips", "-p", "no:cacheprovider", "-rA", "--continue-on-collection-errors")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--rootdir={folder}", "-c", os.devnull, str(folder)],
        cwd=TOP,
        env={**os.environ, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = re.findall(r"^([A-Z]+) \S*test_(?:some\.py::test_)?(\w+)", ran.stdout, re.MULTILINE)
    return ran.returncode, {name: word for word, name in said} | reasons(ran.stdout)


def reasons(said: str) -> dict[str, str]:
    return dict.fromkeys(re.findall(r"^skipped in CI: (.*)$", said, re.MULTILINE), "said")


@pytest.mark.slow
def test_with_ci_what_is_skipped_has_failed_and_says_why(tmp_path: Path) -> None:
    code, found = outcomes(tmp_path, "true")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert found == {
        "mark": "ERROR",
        "needs root": "said",
        "fixture": "ERROR",
        "a tool is not there": "said",
        "body": "FAILED",
        "no loop device": "said",
        "module": "ERROR",
        "all of it lacks something": "said",
        "expected": "XFAIL",
        "passes": "PASSED",
    }


@pytest.mark.slow
def test_else_it_is_skipped(tmp_path: Path) -> None:
    code, found = outcomes(tmp_path, "")
    assert code == pytest.ExitCode.OK
    assert found == {"expected": "XFAIL", "passes": "PASSED"}
