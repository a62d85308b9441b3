"""A test that passed only on its rerun fails the session, unless `tests/reruns.txt` lists it with a reason and a date.

`--reruns` shows both tracebacks, which helps to find the cause. It does not make an unreliable test a passed one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import pytest

LISTED: Final = Path("tests/reruns.txt")
RESCUED: Final = pytest.StashKey[list[str]]()


@dataclass(frozen=True, slots=True)
class Listed:
    """Tests that may need a rerun: a pattern of node IDs, the reason, and the day of the entry."""

    pattern: str
    reason: str
    since: date

    def covers(self, nodeid: str) -> bool:
        """Return whether the pattern matches; brackets are those of parameters, and match themselves."""
        return fnmatchcase(nodeid, self.pattern.replace("[", "[[]"))


def parse_listed(text: str) -> tuple[Listed, ...]:
    """Parse lines of `PATTERN | REASON | YYYY-MM-DD`; comments start with #.

    Raises:
        ValueError: a line lacks its reason or its date.
    """
    lines = (line.strip() for line in text.splitlines())
    return tuple(_parse_line(line) for line in lines if line and not line.startswith("#"))


def _parse_line(line: str) -> Listed:
    pattern, reason, since = (part.strip() for part in line.split(" | "))
    if not (pattern and reason):
        raise ValueError(f"lacks a pattern or a reason: {line}")
    return Listed(pattern, reason, date.fromisoformat(since))


def rescued(reports: Iterable[pytest.TestReport]) -> list[str]:
    """Return the node IDs that failed at first and then passed."""
    tries = list(reports)
    again = {one.nodeid for one in tries if one.outcome == "rerun"}  # type: ignore[comparison-overlap]  # by the plugin
    return sorted(again - {one.nodeid for one in tries if one.outcome == "failed"})


class Reruns:
    """Collects the reports of a session; with pytest-xdist, those of all its processes."""

    def __init__(self, listed: tuple[Listed, ...]) -> None:
        self._listed = listed
        self._reports: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self._reports.append(report)

    def not_listed(self) -> list[str]:
        """Return the rescued tests that no entry covers."""
        return [nodeid for nodeid in rescued(self._reports) if not any(one.covers(nodeid) for one in self._listed)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.not_listed() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for nodeid in self.not_listed():
            terminalreporter.write_line(f"passed only on its rerun, and is not in {LISTED}: {nodeid}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # its reports go to the controller
        return
    path = config.rootpath / LISTED
    config.pluginmanager.register(Reruns(parse_listed(path.read_text()) if path.exists() else ()), "listed reruns")
