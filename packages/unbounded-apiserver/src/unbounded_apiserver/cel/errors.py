"""Errors of expressions: in compilation, in evaluation, and by cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SHOWN_ISSUES: Final = 100
SHOWN_CHARACTERS: Final = 64 * 1024  # each issue repeats its line, twice


class CelError(Exception):
    """Base class of this package's errors about an expression or its values."""


@dataclass(frozen=True, slots=True)
class Issue:
    """One error in the source; the offset counts code points from its start."""

    offset: int
    message: str


class CompileError(CelError):
    """The expression does not parse or does not type-check; `str()` shows the positions as cel-go prints them."""

    def __init__(self, source: str, issues: Sequence[Issue]) -> None:
        self.issues = sorted(issues, key=lambda issue: issue.offset)
        shown = min(SHOWN_ISSUES, max(1, SHOWN_CHARACTERS // (2 * len(source) + 1)))
        super().__init__("\n".join(render_issue(source, issue) for issue in self.issues[:shown]))


class ProgramError(CelError):
    """The expression is well-typed, but a constant part of it cannot be evaluated."""


class EvalError(CelError):
    """Evaluation ended without a value; `||`, `&&`, `all` and `exists` may still absorb the error."""


class CostExceeded(CelError):
    """Evaluation was stopped because its cost exceeded a limit; nothing absorbs the error."""

    def __init__(self) -> None:
        super().__init__("operation cancelled: actual cost limit exceeded")


def no_such_overload() -> EvalError:
    """Return the error for a value, known only at run time, that does not fit the function."""
    return EvalError("no such overload")


def render_issue(source: str, issue: Issue) -> str:
    """Return message, source line and a marker below the position, in the layout of cel-go's error listing."""
    start = source.rfind("\n", 0, issue.offset) + 1
    end = source.find("\n", issue.offset)
    line = source[start : end if end >= 0 else len(source)]
    column = issue.offset - start
    dots = "".join("." if char.isascii() else "．" for char in line[:column])  # wide characters get wide dots
    caret = "^" if column >= len(line) or line[column].isascii() else "＾"
    number = source.count("\n", 0, issue.offset) + 1
    snippet = line.replace("\t", " ")
    return f"ERROR: <input>:{number}:{column + 1}: {issue.message}\n | {snippet}\n | {dots}{caret}"
