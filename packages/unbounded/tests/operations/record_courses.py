"""Writes down the courses of all stories:
`PYTHONPATH=packages/unbounded .venv/bin/python -m tests.operations.record_courses`"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.operations import course_stories, course_works
from tests.operations.courses import COURSES, told

FILE: Final = Path(__file__).with_name("courses.txt")
STORIES: Final = (course_stories, course_works)  # they add themselves


def recorded() -> dict[str, str]:
    """Return the courses that are written down, by their names."""
    parts = FILE.read_text().split("## ")[1:]
    return {name: text.strip("\n") for name, _, text in (part.partition("\n") for part in parts)}


if __name__ == "__main__":
    FILE.write_text("\n\n".join(f"## {name}\n{told(name)}" for name in COURSES) + "\n")
