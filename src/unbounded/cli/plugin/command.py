"""Rows of the tables of commands, and what a running command is given. Nothing heavy is imported here."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

from unbounded.cli.plugin.style import Style

if TYPE_CHECKING:
    from unbounded.api.kinds import Kind
    from unbounded.kube.client import HttpApi

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
TIMED_OUT: Final = 3  # of the waiting: what was asked for goes on
INTERRUPTED: Final = 130

MANAGER: Final = "kubectl-unbounded"  # who our fields belong to (server-side apply), and our User-Agent

Raw = dict[str, Any]


@dataclass(frozen=True)
class Command:
    """A row.

    Args:
        path: as it is typed, such as ("machine", "operation", "create").
        help: one line.
        examples: (what stands after `kubectl unbounded`, what it does).
        arguments: adds flags and arguments to a parser.
        run: "module:function" of type Run, imported when the command is known to run.
        intend: "module:function" of type Intend, of commands that ask for operations; empty for others.
        needs_api: whether a kubeconfig is read and a client opened.
        text: what --help and the docs say in place of `help`, where that is not enough.
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
class Told:
    """What the command was told, and where it speaks.

    Attributes:
        terminal: whether `out` is a terminal, that a person looks at.
        program: how the command is called, for hints that can be typed.
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
        """Return how text on `out` is shown."""
        return Style(self.columns, self.colour)


class Printer(Protocol):
    """Output as -o says; with json and yaml nothing else is on stdout."""

    @property
    def whole(self) -> bool:
        """Whether objects are printed whole (json, yaml); `name` is silent then."""
        ...

    def objects(self, kind: Kind[Any], items: Sequence[Raw], *, alone: bool = False) -> None:
        """Objects as a table, names, JSON or YAML; `alone`: one that was asked for by its name, and no list."""
        ...

    def name(self, kind: Kind[Any], name: str, verb: str) -> None:
        """That something was done to an object, as kubectl has it: machine.unbounded-cloud.io/m1 created."""
        ...

    def say(self, text: str) -> None:
        """For people: on stdout, or on stderr where stdout is for a program (-o name, json, yaml)."""
        ...

    def warn(self, text: str) -> None:
        """For people, on stderr."""
        ...


@dataclass(frozen=True)
class Session:
    """An open API, and who asked."""

    told: Told
    api: HttpApi
    printer: Printer


@dataclass(frozen=True)
class Patch:
    """A merge patch, for an Intent. With `metadata.resourceVersion` in its body, of that version only.

    Args:
        verb: what is said to be done to the object by it.
    """

    kind: Kind[Any]
    name: str
    body: Raw
    status: bool = False
    namespace: str = ""
    verb: str = "patched"


@dataclass(frozen=True)
class Intent:
    """What a command is going to ask for: `plan` shows it, the command does it.

    Args:
        creates: whole objects.
        patches: changes of objects that are there.
        destroys: Machines that lose something by it, whose names have to be typed.
        loses: what is lost there.
        dry_run: none, client or server.
        notes: what a person should know before.
        made: what is said to be done to objects that are created.
    """

    creates: tuple[Raw, ...] = ()
    patches: tuple[Patch, ...] = ()
    destroys: tuple[str, ...] = ()
    dry_run: str = "none"
    notes: tuple[str, ...] = field(default=())
    loses: str = ""
    made: str = "created"


Run = Callable[[Session], Coroutine[Any, Any, int]]
Intend = Callable[[Session], Coroutine[Any, Any, Intent]]


def refuse_output(told: Told, *forms: str, what: str) -> None:
    """Raises CliError where -o asks for a form that the command does not have: silence would be taken for an answer."""
    output = getattr(told.args, "output", "")
    if output in forms:
        raise CliError(f"-o {output}: {what}", status=USAGE)


class CliError(Exception):
    """Shown as `error: …`, and below it what to do next."""

    def __init__(self, text: str, *, next_step: str = "", status: int = FAILED) -> None:
        super().__init__(text)
        self.next_step = next_step
        self.status = status
