"""State of one rendering: its output, its variables, its remaining limits, and the format of its errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias

from unbounded.gotemplate.literals import quote
from unbounded.gotemplate.nodes import Node
from unbounded.gotemplate.types import GoType, RenderError, Value

_STEP_LETTERS: Final = 64  # a function's result of this length costs as much as a step


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """Limits of one rendering, so that no template can keep a server busy or fill its memory."""

    steps: int = 200_000  # actions, commands and turns of loops
    letters: int = 4 << 20  # of the output, and of any one generated string
    depth: int = 100  # templates within templates


class RenderState:
    """State of one rendering."""

    __slots__ = ("depth", "letters", "limits", "missing_key", "name", "node", "out", "source", "steps", "trees", "vars")

    def __init__(self, name: str, source: TemplateSource, trees: Mapping[str, Walk], data: Value | None) -> None:
        self.name = name  # of the running template
        self.source = source
        self.trees = trees
        self.limits = source.limits
        self.missing_key = source.missing_key
        self.steps = source.limits.steps
        self.letters = source.limits.letters
        self.depth = 0
        self.node: Node | None = None  # subject of an error
        self.out: list[str] = []
        self.vars: list[tuple[str, Value | None]] = [("$", data)]

    def error(self, message: str) -> RenderError:
        """Return an error about the current node."""
        if self.node is None:
            return RenderError(f"template: {self.source.name}: {message}")
        where = self.source.position(self.node.place)
        return RenderError(f"template: {where}: executing {quote(self.name)} at <{self.node}>: {message}")

    def fail(self, message: str) -> NoReturn:
        """Raise an error about the current node."""
        raise self.error(message)

    def write(self, text: str) -> None:
        self.letters -= len(text)
        if self.letters < 0:
            raise self.error(f"output is longer than {self.limits.letters} characters")
        self.out.append(text)

    def step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise self.error(f"more than {self.limits.steps} steps")

    def made(self, text: str) -> None:
        """Count a string that a function made against the limit."""
        self.steps -= len(text) // _STEP_LETTERS
        if len(text) > self.limits.letters:
            raise self.error(f"string is longer than {self.limits.letters} characters")

    def variable(self, name: str) -> Value | None:
        for known, value in reversed(self.vars):
            if known == name:
                return value
        raise self.error(f"undefined variable: {name}")

    def assign(self, name: str, value: Value | None) -> None:
        for place in range(len(self.vars) - 1, -1, -1):
            if self.vars[place][0] == name:
                self.vars[place] = (name, value)
                return
        raise self.error(f"undefined variable: {name}")


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """Text of a template, and the options of its rendering."""

    name: str
    text: str
    missing_key: str
    limits: TemplateLimits

    def position(self, place: int) -> str:
        """Return `file:line:column`; the column counts bytes from 0, as Go's does."""
        start = self.text.rfind("\n", 0, place) + 1
        column = len(self.text[start:place].encode("utf-8", "surrogateescape"))
        return f"{self.name}:{self.text.count(chr(10), 0, place) + 1}:{column}"


Eval: TypeAlias = Callable[[RenderState, Value | None], Value | None]
Stage: TypeAlias = Callable[
    [RenderState, Value | None, Value | None], Value | None
]  # run, dot, value of the stage before
Walk: TypeAlias = Callable[[RenderState, Value | None], None]
Argument: TypeAlias = Callable[[RenderState, Value | None, GoType], object]
