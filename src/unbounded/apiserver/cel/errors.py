"""What can go wrong with an expression: when it is compiled, when it is evaluated, and what it may cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SHOWN_ISSUES: Final = 100
SHOWN_CHARACTERS: Final = 64 * 1024  # each issue repeats its line, twice


class CelError(Exception):
    """Anything that this package raises about an expression or its values."""


@dataclass(frozen=True, slots=True)
class Issue:
    """One complaint about the source: the offset is counted in code points from its start."""

    offset: int
    message: str


class CompileError(CelError):
    """The expression does not parse or does not type-check; `str()` shows the places as cel-go prints them."""

    def __init__(self, source: str, issues: Sequence[Issue]) -> None:
        self.issues = sorted(issues, key=lambda issue: issue.offset)
        shown = min(SHOWN_ISSUES, max(1, SHOWN_CHARACTERS // (2 * len(source) + 1)))
        super().__init__("\n".join(render_issue(source, issue) for issue in self.issues[:shown]))


class ProgramError(CelError):
    """The expression is well-typed, but a constant part of it cannot be evaluated."""


class EvalError(CelError):
    """Evaluation ended without a value; `||`, `&&`, `all` and `exists` may still absorb it."""


class CostExceeded(CelError):
    """Evaluation was stopped because it cost more than it may; nothing absorbs it."""

    def __init__(self) -> None:
        super().__init__("operation cancelled: actual cost limit exceeded")


def no_such_overload() -> EvalError:
    """A value that is only known at run time does not fit the function it was given to."""
    return EvalError("no such overload")


def render_issue(source: str, issue: Issue) -> str:
    """Message, source line and a marker below the place, in the layout of cel-go's error listing."""
    start = source.rfind("\n", 0, issue.offset) + 1
    end = source.find("\n", issue.offset)
    line = source[start : end if end >= 0 else len(source)]
    column = issue.offset - start
    dots = "".join("." if char.isascii() else "．" for char in line[:column])  # wide characters get wide dots
    caret = "^" if column >= len(line) or line[column].isascii() else "＾"
    number = source.count("\n", 0, issue.offset) + 1
    snippet = line.replace("\t", " ")
    return f"ERROR: <input>:{number}:{column + 1}: {issue.message}\n | {snippet}\n | {dots}{caret}"
