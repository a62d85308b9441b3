"""MachineDisruptionBudgets, drains and overrides that the API refuses and accepts."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import product
from typing import Any, Final

import pytest

from tests.api.checking import causes, made, refusals
from unbounded.operations.disruption.budgets import parse_schedule

KIND = "MachineDisruptionBudget"
SPEC = """
machineSelector: {matchLabels: {role: control-plane}}
maxUnavailable: 1
"""
CALENDAR: Final = [datetime(2028, 1, 1) + timedelta(days=number) for number in range(12 * 366)]
OPERATION = "{operationKind: HostReboot, machineRef: m1}"


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"maxUnavailable": 0},
        {"maxUnavailable": "0%"},
        {"maxUnavailable": "100%", "groupBy": ["example.com/rack", "site"]},
        {"machineSelector": {"matchExpressions": [{"key": "role", "operator": "Exists"}]}},
        {"schedule": "*/15 8-17 * * 1-5", "durationSeconds": 600, "timeZone": "Europe/Berlin"},
        {"schedule": "0 0 29 2 *", "durationSeconds": 600},
        {"schedule": "0 0 31 2 1", "durationSeconds": 600},  # each Monday of February
        {"schedule": "0 0 30 2,4 *", "durationSeconds": 600},
        {"drain": {"enabled": False}, "minReadySeconds": 0},
    ],
)
def test_a_budget_is_accepted(spec: dict[str, Any]) -> None:
    assert refusals(KIND, made(KIND, SPEC, **spec)) == []


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("spec.maxUnavailable", {"maxUnavailable": "101%"}),
        ("spec.maxUnavailable", {"maxUnavailable": "1000%"}),
        ("spec.maxUnavailable", {"maxUnavailable": -1}),
        ("spec.maxUnavailable", {"maxUnavailable": "1"}),
        ("spec.machineSelector", {"machineSelector": {}}),
        ("spec.machineSelector", {"machineSelector": {"matchLabels": {}}}),
        ("spec.groupBy", {"groupBy": ["a", "b", "c"]}),
        ("spec.groupBy", {"groupBy": ["a", "a"]}),
        ("spec.schedule", {"schedule": "0 8 * * 1-5"}),
        ("spec.schedule", {"durationSeconds": 600}),
        ("spec.schedule", {"schedule": "0 0 31 2 *", "durationSeconds": 600}),
        ("spec.schedule", {"schedule": "0 0 30,31 2 *", "durationSeconds": 600}),
        ("spec.schedule", {"schedule": "0 0 31 4,6 *", "durationSeconds": 600}),
        ("spec.schedule", {"schedule": "0 0 31 4-4 *", "durationSeconds": 600}),
        ("spec.schedule", {"schedule": "0 0 30 2 *", "durationSeconds": 600}),
        ("spec.schedule", {"schedule": "60 0 * * *", "durationSeconds": 600}),
        ("spec.schedule", {"schedule": "0 24 * * *", "durationSeconds": 600}),
        ("spec.schedule", {"schedule": "0 0 * * 8", "durationSeconds": 600}),
        ("spec.schedule", {"schedule": "@daily", "durationSeconds": 600}),
        ("spec.schedule", {"schedule": "0 22-6 * * *", "durationSeconds": 600}),
        ("spec.schedule", {"schedule": "0 8 * * 1,6-2/2", "durationSeconds": 600}),
        ("spec.schedule", {"schedule": "0 *-8 * * *", "durationSeconds": 600}),
        ("spec.durationSeconds", {"schedule": "0 0 * * *", "durationSeconds": 1}),
        ("spec.timeZone", {"timeZone": "Europe/Berlin"}),
        ("spec.timeZone", {"timeZone": "Local", "schedule": "0 0 * * *", "durationSeconds": 600}),
        ("spec.drain.timeoutSeconds", {"drain": {"timeoutSeconds": 0}}),
        ("spec.drain.onTimeout", {"drain": {"onTimeout": "Hope"}}),
    ],
)
def test_a_wrong_budget_is_refused_by_field(field: str, spec: dict[str, Any]) -> None:
    assert {cause.field for cause in causes(KIND, made(KIND, SPEC, **spec))} == {field}


DAYS: Final = ("*", "*/31", "1", "29", "30", "31", "30-31", "31-31", "30/5", "31/2", "30,31", "31,29-31/2", "31,31")
MONTHS: Final = ("*", "*/2", "2", "2-2", "4", "4-4/3", "4/2", "4-6", "2,4", "4,6-6,11", "9-11", "2-3", "12", "6,1")
STEPS: Final = ("*/11", "2/11", "2/7", "4/5", "4-6/2", "9-11/2", "11/2", "2,2-3/2")  # some leave out the long months


@pytest.mark.parametrize("days", DAYS)
def test_a_schedule_is_refused_if_the_calendar_has_no_such_day(days: str) -> None:
    for months, weekday in product((*MONTHS, *STEPS), ("*", "*/2", "1", "1-5")):
        text = f"0 0 {days} {months} {weekday}"
        comes = any(map(parse_schedule(text).has_day, CALENDAR))
        found = refusals(KIND, made(KIND, SPEC, schedule=text, durationSeconds=600))
        assert not (comes and found), text
        assert comes or months in STEPS or "schedule never comes" in found[0], text


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("spec.override", {"override": ""}),
        ("spec.override", {"override": "  "}),
        ("spec.override", {"override": "x" * 257}),
        ("spec.drain.mode", {"drain": {"mode": "Sometimes"}}),
        ("spec.drain.timeoutSeconds", {"drain": {"mode": "Always", "timeoutSeconds": 0}}),
    ],
)
def test_a_wrong_drain_or_override_is_refused_by_field(field: str, spec: dict[str, Any]) -> None:
    kind = "MachineOperation"
    assert {cause.field for cause in causes(kind, made(kind, OPERATION, **spec))} == {field}


def test_an_unknown_time_zone_is_refused_by_name() -> None:
    spec = made(KIND, SPEC, schedule="0 0 * * *", durationSeconds=600, timeZone="Europe/Nowhere")
    (refusal,) = refusals(KIND, spec)
    assert "Europe/Nowhere" in refusal
