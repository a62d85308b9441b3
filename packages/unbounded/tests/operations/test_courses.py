"""The engine's behaviour in each story is the recorded one."""

from __future__ import annotations

import pytest

from tests.operations.courses import COURSES, told
from tests.operations.record_courses import recorded

RECORDED = recorded()


@pytest.mark.parametrize("name", COURSES)
def test_a_course_is_as_it_was_written_down(name: str) -> None:
    assert told(name).splitlines() == RECORDED.get(name, "").splitlines()


def test_nothing_is_written_down_that_is_not_told() -> None:
    assert list(RECORDED) == list(COURSES)
