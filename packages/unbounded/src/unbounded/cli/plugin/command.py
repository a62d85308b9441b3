"""Rows of the tables of commands, and the context of a running command. No large module is imported here."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

from unbounded.cli.terminal_text import Style
from unbounded.plan.intent import Intent, Raw

if TYPE_CHECKING:
    from unbounded.api.meta import Kind
    from unbounded.kube.client import HttpApi

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
TIMED_OUT: Final = 3  # of the waiting; the operation continues
INTERRUPTED: Final = 130

MANAGER: Final = "kubectl-unbounded"  # field manager (server-side apply) and User-Agent


@dataclass(frozen=True)
class CliCommand:
    """A command.

    Args:
        path: its words, such as ("machine", "operation", "create").
        help: one line.
        examples: (words after `kubectl unbounded`, effect).
        arguments: adds flags and arguments to a parser.
        run: "module:function" of type Run, imported when the command runs.
        intend: "module:function" of type Intend, of commands that request operations; empty for others.
        needs_api: whether a kubeconfig is read and a client opened.
        text: replaces `help` in --help and the docs, where one line is not enough.
    """

    path: tuple[str, ...]
    help: str
    examples: tuple[tuple[str, str], ...]
    arguments: Callable[[ArgumentParser], None]
    run: str
    intend: str = ""
    needs_api: bool = True
    text: str = ""


@dataclass(frozen=True)
class CliInvocation:
    """Arguments and streams of a running command.

    Attributes:
        terminal: whether `out` is a terminal.
        program: name of this program, for commands in hints.
        columns: of the terminal; 0 where `out` is none.
    """

    args: Namespace
    environ: Mapping[str, str]
    out: TextIO
    err: TextIO
    stdin: TextIO
    colour: bool
    terminal: bool
    program: str = "kubectl unbounded"
    columns: int = 0

    @property
    def style(self) -> Style:
        """Style of text on `out`."""
        return Style(self.columns, self.colour)


class Printer(Protocol):
    """Output in the format of -o; with json and yaml, stdout has nothing but the objects."""

    @property
    def whole(self) -> bool:
        """True if objects are printed whole (json, yaml); `name` prints nothing then."""
        ...

    def objects(self, kind: Kind[Any], items: Sequence[Raw], *, alone: bool = False) -> None:
        """Print objects as a table, names, JSON or YAML; `alone`: the one object of its name, not a list."""
        ...

    def name(self, kind: Kind[Any], name: str, verb: str) -> None:
        """Print a change of an object as kubectl does: machine.unbounded-cloud.io/m1 created."""
        ...

    def info(self, text: str) -> None:
        """Print text for the user: on stdout, or on stderr where stdout is for a program (-o name, json, yaml)."""
        ...

    def warn(self, text: str) -> None:
        """Print text for the user on stderr."""
        ...


@dataclass(frozen=True)
class CommandSession:
    """Context of a running command, with an open API."""

    invocation: CliInvocation
    api: HttpApi
    printer: Printer


Run = Callable[[CommandSession], Coroutine[Any, Any, int]]
Intend = Callable[[CommandSession], Coroutine[Any, Any, Intent]]


def refuse_output(invocation: CliInvocation, *forms: str, what: str) -> None:
    """Raise CliError where -o names a format that the command lacks: an empty output would be misleading."""
    output = getattr(invocation.args, "output", "")
    if output in forms:
        raise CliError(f"-o {output}: {what}", status=USAGE)


class CliError(Exception):
    """A failed command, shown as `error: …` with the next step below."""

    def __init__(self, text: str, *, next_step: str = "", status: int = FAILED) -> None:
        super().__init__(text)
        self.next_step = next_step
        self.status = status
