"""The tree of a parsed template. `str(node)` is the text that Go's errors quote."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from unbounded.gotemplate.literals import Number, quote


@dataclass(frozen=True, slots=True)
class Identifier:
    place: int
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Dot:
    place: int

    def __str__(self) -> str:
        return "."


@dataclass(frozen=True, slots=True)
class Nil:
    place: int

    def __str__(self) -> str:
        return "nil"


@dataclass(frozen=True, slots=True)
class Bool:
    place: int
    true: bool

    def __str__(self) -> str:
        return "true" if self.true else "false"


@dataclass(frozen=True, slots=True)
class Text:
    """A string literal."""

    place: int
    quoted: str
    text: str

    def __str__(self) -> str:
        return self.quoted


@dataclass(frozen=True, slots=True)
class NumberNode:
    place: int
    text: str
    number: Number

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class FieldNode:
    """`.A.B`: fields of dot."""

    place: int
    names: tuple[str, ...]

    def __str__(self) -> str:
        return "." + ".".join(self.names)


@dataclass(frozen=True, slots=True)
class Variable:
    """`$a.B`: a variable and fields of it."""

    place: int
    names: tuple[str, ...]  # the first is the variable, with its $

    def __str__(self) -> str:
        return ".".join(self.names)


@dataclass(frozen=True, slots=True)
class ChainNode:
    """`(pipeline).A.B`: fields of an operand's value."""

    place: int
    node: Operand
    names: tuple[str, ...]

    def __str__(self) -> str:
        first = f"({self.node})" if isinstance(self.node, Pipe) else str(self.node)
        return f"{first}.{'.'.join(self.names)}"


@dataclass(frozen=True, slots=True)
class CommandNode:
    """An operand and its arguments."""

    place: int
    args: tuple[Operand, ...]

    def __str__(self) -> str:
        return " ".join(f"({arg})" if isinstance(arg, Pipe) else str(arg) for arg in self.args)


@dataclass(frozen=True, slots=True)
class Pipe:
    """Commands, each of which gets the value of the one before, and variables that are set to the last value."""

    place: int
    commands: tuple[CommandNode, ...]
    variables: tuple[str, ...] = ()
    assigns: bool = False

    def __str__(self) -> str:
        sets = f"{', '.join(self.variables)} {'=' if self.assigns else ':='} " if self.variables else ""
        return sets + " | ".join(map(str, self.commands))


Operand: TypeAlias = Identifier | Dot | Nil | Bool | Text | NumberNode | FieldNode | Variable | ChainNode | Pipe


@dataclass(frozen=True, slots=True)
class TemplateLiteral:
    """Text outside of the delimiters."""

    text: str


@dataclass(frozen=True, slots=True)
class ActionNode:
    place: int
    pipe: Pipe

    def __str__(self) -> str:
        return f"{{{{{self.pipe}}}}}"


@dataclass(frozen=True, slots=True)
class Branch:
    """`if`, `with` or `range`."""

    place: int
    word: str
    pipe: Pipe
    body: List
    otherwise: List | None

    def __str__(self) -> str:
        return f"{{{{{self.word} {self.pipe}}}}}"


@dataclass(frozen=True, slots=True)
class Jump:
    """`break` or `continue`."""

    place: int
    word: str


@dataclass(frozen=True, slots=True)
class Include:
    """`template`."""

    place: int
    name: str
    pipe: Pipe | None

    def __str__(self) -> str:
        return f"{{{{template {quote(self.name)}{f' {self.pipe}' if self.pipe else ''}}}}}"


@dataclass(frozen=True, slots=True)
class Ending:
    """`end` or `else`; never part of a tree."""

    word: str

    def __str__(self) -> str:
        return f"{{{{{self.word}}}}}"


Item: TypeAlias = TemplateLiteral | ActionNode | Branch | Jump | Include


@dataclass(slots=True)
class List:
    items: list[Item] = field(default_factory=list)

    @property
    def is_blank(self) -> bool:
        """Return whether it prints only white space: such a definition does not count."""
        return all(isinstance(item, TemplateLiteral) and not item.text.strip() for item in self.items)


Node: TypeAlias = Operand | CommandNode | ActionNode | Branch | Include
