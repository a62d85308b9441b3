"""Sessions with a test that fails once, in a test runner of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.reruns import LISTED, Listed, parse_listed

TOP: Final = Path(__file__).parents[1]
TESTS: Final = """
import pathlib
import pytest

def first(name):
    mark = pathlib.Path(__file__).with_name(name)
    known = mark.exists()
    mark.touch()
    return not known

def test_passes(): pass

@pytest.mark.parametrize("kind", ["a"])
def test_unreliable(kind): assert not first("unreliable")

@pytest.fixture
def host(): assert not first("host")

def test_fixture(host): pass
"""
ALWAYS: Final = "\ndef test_always(): assert False\n"
ENTRIES: Final = (
    "test_some.py::test_unreliable[a] | a busy host | 2026-11-28",
    "test_*.py::test_fixture | a slow disk | 2026-11-28",
)


def run(folder: Path, *options: str, entries: tuple[str, ...] = (), tests: str = TESTS) -> tuple[int, list[str]]:
    """Run the sample with one rerun: the exit code, and the tests that the summary complains of."""
    (folder / "test_some.py").write_text(tests)
    (folder / LISTED).parent.mkdir()
    (folder / LISTED).write_text("# none\n" + "\n".join(entries))
    plugins = ("-p", "tests.support.reruns", "-p", "pytest_rerunfailures", "-p", "no:cacheprovider")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *options, f"--rootdir={folder}", "-c", os.devnull, str(folder)],
        cwd=TOP,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ran.returncode, re.findall(r"^passed only on its rerun.*::(\S+)$", ran.stdout, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [(), ("-p", "xdist.plugin", "-n", "1")], ids=["one process", "xdist"])
def test_rescued_test_fails_the_session(tmp_path: Path, processes: tuple[str, ...]) -> None:
    code, complaints = run(tmp_path, "--reruns", "1", *processes)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert complaints == ["test_fixture", "test_unreliable[a]"]


@pytest.mark.slow
def test_listed_test_may_be_rescued_and_others_may_not(tmp_path: Path) -> None:
    code, complaints = run(tmp_path, "--reruns", "1", entries=ENTRIES[:1])
    assert code == pytest.ExitCode.TESTS_FAILED
    assert complaints == ["test_fixture"]


@pytest.mark.slow
def test_session_whose_rescued_tests_are_listed_passes(tmp_path: Path) -> None:
    assert run(tmp_path, "--reruns", "1", entries=ENTRIES) == (pytest.ExitCode.OK, [])


@pytest.mark.slow
def test_entry_does_not_excuse_a_test_that_fails_twice(tmp_path: Path) -> None:
    entries = (*ENTRIES, "test_some.py::test_always | never passes | 2026-11-28")
    code, complaints = run(tmp_path, "--reruns", "1", entries=entries, tests=TESTS + ALWAYS)
    assert (code, complaints) == (pytest.ExitCode.TESTS_FAILED, [])


def test_entry_needs_a_reason_and_a_date() -> None:
    for line in ("test_a.py::* | 2026-11-28", "test_a.py::* |  | 2026-11-28", "test_a.py::* | slow | some day"):
        with pytest.raises(ValueError, match=r"."):
            parse_listed(line)


def test_brackets_of_parameters_match_themselves() -> None:
    (entry,) = parse_listed("tests/test_a.py::test_b[a-*] | a busy host | 2026-11-28")
    assert isinstance(entry, Listed)
    assert entry.covers("tests/test_a.py::test_b[a-1]")
    assert not entry.covers("tests/test_a.py::test_ba")


def test_list_of_this_project_can_be_read() -> None:
    assert all(entry.reason for entry in parse_listed((TOP / LISTED).read_text()))
