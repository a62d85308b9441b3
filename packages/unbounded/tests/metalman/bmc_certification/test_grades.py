"""The table of uses and the rules of the grades."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from unbounded.metalman.bmc_certification.checks import CHECKS
from unbounded.metalman.bmc_certification.grades import (
    INSTALLS,
    NEEDS,
    OVERALL,
    CheckName,
    CheckResult,
    Grade,
    Use,
    Verdict,
    grade_bmc,
    uses_of,
)

WORKS = dict.fromkeys(CheckName, Verdict.WORKS)


def grades(changed: Mapping[CheckName, Verdict]) -> tuple[Grade, dict[Use, Grade]]:
    found = grade_bmc([CheckResult(name, verdict) for name, verdict in (WORKS | dict(changed)).items()])
    return found.overall, {each.use: each.grade for each in found.uses}


def test_each_check_is_run_and_serves_a_use() -> None:
    assert list(CHECKS) == list(CheckName)
    assert [name for name in CheckName if not uses_of(name)] == []
    assert set(NEEDS) == set(Use)
    assert set(OVERALL) == set(Grade)


def test_a_bmc_whose_checks_all_work_has_the_best_grades() -> None:
    assert grades({}) == (Grade.A, dict.fromkeys(Use, Grade.A))


@pytest.mark.parametrize("use", Use)
@pytest.mark.parametrize(
    ("verdict", "required", "helps"),
    [
        (Verdict.NOT_OFFERED, Grade.F, Grade.B),
        (Verdict.DEVIATES, Grade.C, Grade.B),
        (Verdict.NOT_TESTED, Grade.A, Grade.A),
    ],
)
def test_the_grade_of_a_use_follows_its_worst_check(use: Use, verdict: Verdict, required: Grade, helps: Grade) -> None:
    for name in CheckName:
        needs = NEEDS[use]
        expected = required if name in needs.required else helps if name in needs.helps else Grade.A
        if name is CheckName.SYSTEM and verdict is Verdict.DEVIATES and name in needs.required:
            expected = Grade.F
        found = grade_bmc([CheckResult(each, WORKS[each] if each != name else verdict) for each in CheckName])
        (own,) = [each for each in found.uses if each.use is use]
        assert (own.grade, own.because) == (expected, () if expected is Grade.A else (name,)), name


def test_one_way_to_install_is_enough_for_the_best_overall_grade() -> None:
    overall, uses = grades({CheckName.BOOT_PXE: Verdict.NOT_OFFERED, CheckName.VIRTUAL_MEDIA: Verdict.NOT_OFFERED})
    assert (overall, [uses[use] for use in INSTALLS]) == (Grade.A, [Grade.F, Grade.A, Grade.F])


def test_no_way_to_install_is_the_worst_overall_grade() -> None:
    overall, uses = grades({CheckName.BOOT_OVERRIDE: Verdict.NOT_OFFERED})
    assert (overall, uses[Use.REBOOT]) == (Grade.F, Grade.A)


@pytest.mark.parametrize("verdict", [Verdict.NOT_OFFERED, Verdict.DEVIATES])
def test_another_use_that_fails_costs_one_grade(verdict: Verdict) -> None:
    assert grades({CheckName.EVENT_STREAM: verdict})[0] is Grade.B
    assert grades({CheckName.EVENT_STREAM: verdict, CheckName.RESET: Verdict.DEVIATES})[0] is Grade.C


@pytest.mark.parametrize("verdict", [Verdict.NOT_OFFERED, Verdict.DEVIATES])
def test_a_missing_serial_console_costs_no_overall_grade(verdict: Verdict) -> None:
    overall, uses = grades({CheckName.SERIAL_CONSOLE: verdict})
    assert (overall, uses[Use.CONSOLE] in (Grade.C, Grade.F)) == (Grade.A, True)
