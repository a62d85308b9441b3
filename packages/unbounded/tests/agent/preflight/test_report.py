"""Results of a preflight, and their output."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded.agent.preflight.report import (
    CHECKS,
    IgnoredChecks,
    PreflightFinding,
    Severity,
    as_json,
    as_text,
    error,
    fine,
    report,
    warning,
)

FINDINGS = (
    warning("swap-active", "swap", "will be switched off"),
    error("cgroups", "/sys/fs/cgroup", "version 1"),
    fine("agent-config", "configuration", "no errors"),
)


def test_error_fails_the_report_in_the_order_of_checks() -> None:
    told = report(FINDINGS, IgnoredChecks())
    assert told.failed
    assert [one.name for one in told.findings] == ["agent-config", "swap-active", "cgroups"]
    assert told.reasons() == "cgroups: version 1"


def test_an_ignored_error_is_a_warning_that_says_so() -> None:
    told = report(FINDINGS, IgnoredChecks.parse("cgroups"), fail_on_warnings=False)
    assert not told.failed
    assert [one.ignored for one in told.findings] == [False, False, True]
    assert told.findings[2].severity is Severity.WARNING


@pytest.mark.parametrize("text", ["all", "cgroups,all", " swap-active , cgroups "])
def test_names_of_checks_are_read(text: str) -> None:
    assert not report(FINDINGS, IgnoredChecks.parse(text)).failed


def test_an_unknown_check_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="unknown checks: cgroup; available: agent-config"):
        IgnoredChecks.parse("cgroups,cgroup")


def test_warnings_count_where_that_is_asked_for_but_ignored_ones_never() -> None:
    assert report(FINDINGS[:1], IgnoredChecks(), fail_on_warnings=True).failed
    assert (
        report(FINDINGS, IgnoredChecks.parse("all"), fail_on_warnings=True).reasons()
        == "swap-active: will be switched off"
    )
    assert not report(FINDINGS[1:], IgnoredChecks.parse("all"), fail_on_warnings=True).failed


def test_as_json_it_has_status_checks_and_a_summary() -> None:
    document = json.loads(as_json(report(FINDINGS, IgnoredChecks.parse("cgroups"))))
    assert document["status"] == "ok"
    assert document["summary"] == {"ok": 1, "warnings": 2, "errors": 0}
    assert document["checks"][2] == {
        "name": "cgroups",
        "target": "/sys/fs/cgroup",
        "severity": "warning",
        "message": "version 1",
        "ignored": True,
    }


def test_as_text_each_finding_has_a_line() -> None:
    lines = as_text(report(FINDINGS, IgnoredChecks())).splitlines()
    assert lines == [
        "[OK agent-config] configuration: no errors",
        "[WARNING swap-active] swap: will be switched off",
        "[ERROR cgroups] /sys/fs/cgroup: version 1",
        "1 errors, 1 warnings, 1 ok: this host cannot become a node yet",
    ]


findings = st.lists(
    st.builds(
        PreflightFinding, st.sampled_from(CHECKS), st.text(max_size=5), st.sampled_from(Severity), st.text(max_size=5)
    )
)


@pytest.mark.slow
@given(findings, st.sets(st.sampled_from(CHECKS)), st.booleans())
def test_what_is_counted_agrees_with_the_verdict(found: list[PreflightFinding], names: set[str], strict: bool) -> None:
    told = report(found, IgnoredChecks(frozenset(names)), fail_on_warnings=strict)
    document = json.loads(as_json(told))
    assert sum(document["summary"].values()) == len(found)
    assert told.failed is any(
        (one.severity is Severity.ERROR and one.name not in names) or (strict and one.severity is Severity.WARNING)
        for one in found
    )
    assert (document["status"] == "failed") is told.failed
