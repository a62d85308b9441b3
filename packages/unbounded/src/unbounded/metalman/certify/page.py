"""The page of a certification: Markdown, readable as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from unbounded.metalman.certify.uses import OVERALL, CheckResult, Grades, Verdict, uses_of


@dataclass(frozen=True, slots=True)
class PageHead:
    """Facts of the head of a page.

    Args:
        bmc: maker, model and firmware.
        version: of the program that ran the checks.
    """

    bmc: str
    version: str
    day: date
    requests: int
    slowest_s: float
    slowest: str
    allow_writes: bool
    is_redacted: bool


def render(head: PageHead, results: Sequence[CheckResult], grades: Grades) -> str:
    """Return the page."""
    uses = [(each.use, each.grade, ", ".join(each.because) or "-") for each in grades.uses]
    checks = [
        (one.name, one.verdict, one.words or "-", f"{one.seconds:.2f} s", ", ".join(uses_of(one.name)))
        for one in results
    ]
    parts = (
        f"# BMC: {_escaped(head.bmc)}",
        f"Grade **{grades.overall}**: {OVERALL[grades.overall]}.",
        _circumstances(head, results),
        "## Uses",
        _table(("Use", "Grade", "Because of"), uses),
        "## Checks",
        _table(("Check", "Result", "The BMC's words", "Time", "Needed for"), checks),
    )
    return "\n\n".join(parts) + "\n"


def summary(results: Sequence[CheckResult], grades: Grades) -> str:
    """Return the grade of each use as lines, for a terminal."""
    lines = [f"{each.grade}  {each.use}" + _because(each.because) for each in grades.uses]
    untested = sum(1 for result in results if result.verdict is Verdict.NOT_TESTED)
    return "\n".join((f"Grade {grades.overall}; {len(results) - untested} of {len(results)} checks ran", *lines)) + "\n"


def _because(names: Sequence[str]) -> str:
    return f": {', '.join(names)}" if names else ""


def _circumstances(head: PageHead, results: Sequence[CheckResult]) -> str:
    access = "Reads, and one write of the boot override that was restored" if head.allow_writes else "Reads only"
    untested = [result.name for result in results if result.verdict is Verdict.NOT_TESTED]
    sentences = [
        f"{access}; the power was not changed",
        f"{head.requests} requests; the slowest took {head.slowest_s:.2f} s: `{head.slowest}`",
        f"Made by unbounded {head.version} on {head.day.isoformat()}",
    ]
    if untested:
        sentences.append(f"Not tested, and without influence on the grades: {', '.join(untested)}")
    if head.is_redacted:
        sentences.append("Serial numbers, UUIDs, addresses, and names of hosts and users are replaced")
    return "\n".join(f"- {sentence}." for sentence in sentences)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table whose columns are aligned in plain text, too."""
    cells = [[_escaped(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in (list(heads), *cells)) for at in range(len(heads))]
    lines = [list(heads), ["-" * width for width in widths], *cells]
    return "\n".join(
        "| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def _escaped(text: str) -> str:
    """Return a BMC's text so that it stays in its cell and is no markup."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
