"""Failure of skipped tests with `CI` in the environment, so that a green run proves everything.

Without `CI` a missing tool skips a test. Where everything has to pass, a lost tool would silently remove its proofs.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Final

import pytest

ALLOWED: Final = (
    "DMTF's schemas are not beside the checkout",
    "a control plane may be at work on the cluster",  # only with UNBOUNDED_TEST_KUBECONFIG
    "the proxy stands on loopback, for which the certificate of that server is not good",  # the same
)
"""How reasons begin that are no loss: it is not for the project to bring what these want."""

Report = pytest.TestReport | pytest.CollectReport


def must_not_be_skipped(report: Report) -> str | None:
    """Return why a report of a skip is a failure; None when it is allowed."""
    if report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return None
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    return None if reason.startswith(ALLOWED) else f"skipped in CI: {reason}"


def _judged(report: Report) -> None:
    wrong = must_not_be_skipped(report) if os.environ.get("CI") else None
    if wrong is not None:
        report.outcome = "failed"
        report.longrepr = wrong


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A mark, a fixture or the test itself has skipped it."""
    report = yield
    _judged(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module has skipped all that is in it."""
    report = yield
    _judged(report)
    return report
