"""Parsing of a command line to a command and its arguments. Only the parser of the typed command is built.

Flags may come before, between and after the words of a command, as kubectl takes them.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final, NoReturn

from unbounded.cli.plugin.command import USAGE, CliCommand, CliError
from unbounded.cli.plugin.flags import BooleanFlag
from unbounded.kube.settings import add_version, installed_version

FILES: Final = ("install", "site", "config", "machine", "machine_verbs", "operation", "bmc", "host", "general")


@cache
def commands() -> tuple[CliCommand, ...]:
    """Return every row, in the order of help."""
    found: list[CliCommand] = []
    for name in FILES:
        found += import_module(f"unbounded.cli.command_tables.{name}").COMMANDS
    return tuple(found)


def loaded(where: str) -> Any:
    """Import the function that a row names as `module:function`."""
    module, _colon, function = where.partition(":")
    return getattr(import_module(module), function)


OUTPUTS: Final = ("name", "json", "yaml", "wide")
_HELP: Final = frozenset({"-h", "--help"})
_VERSION: Final = "--version"  # of the program; some commands have a flag of that name
AS: Final = ("--as", "--as-group", "--as-uid")
WITH_VALUE: Final = frozenset({"--kubeconfig", "--context", "-o", "--output", *AS})  # common flags with a value
SECTIONS: Final = (  # the first words of commands, by topic
    ("Setup", ("install", "site", "config")),
    ("Machines and their operations", ("machine", "register", "bmc", "host")),
    ("State and progress", ("why", "tree", "events", "logs", "ssh", "support", "plan")),
)
OTHERS: Final = "Other"


@dataclass(frozen=True)
class CommandMatch:
    """The words name a command; `words` are the others."""

    command: CliCommand
    words: tuple[str, ...]


@dataclass(frozen=True)
class GroupMatch:
    """The words are the common `path` of several commands; `help` and `version` tell whether the flags were given."""

    path: tuple[str, ...]
    help: bool = False
    version: bool = False


@dataclass(frozen=True)
class UnknownCommand:
    """No command has this word here."""

    path: tuple[str, ...]
    word: str
    near: tuple[str, ...]


def find(commands: Iterable[CliCommand], words: Sequence[str]) -> CommandMatch | GroupMatch | UnknownCommand:
    """Find the command that the words name."""
    if words and words[0] == "help":
        return find(commands, [*words[1:], "--help"])
    left = tuple(commands)
    path: tuple[str, ...] = ()
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("-"):
            others.append(word)
            if word in WITH_VALUE and rest:
                others.append(rest.pop(0))
            continue
        fitting = tuple(command for command in left if command.path[len(path)] == word)
        if not fitting:
            there = sorted({command.path[len(path)] for command in left})
            return UnknownCommand(path, word, tuple(difflib.get_close_matches(word, there, n=3)))
        left, path = fitting, (*path, word)
        if fitting[0].path == path:
            return CommandMatch(fitting[0], (*others, *rest))
    return GroupMatch(path, help=not _HELP.isdisjoint(others), version=_VERSION in others)


def parse(
    commands: Sequence[CliCommand], words: Sequence[str], *, program: str, others: Mapping[str, str]
) -> tuple[CliCommand, argparse.Namespace]:
    """Return the command and its arguments; exits for help and --version (0) and for invalid arguments (2).

    Args:
        others: further commands to be listed, each with its line of help.
    """
    found = find(commands, words)
    if isinstance(found, CommandMatch):
        return found.command, arguments_of(found.command, found.words, program=program)
    if isinstance(found, UnknownCommand):
        _refuse(" ".join((program, *found.path)), found.word, found.near)
    if found.version and not found.help:
        print(f"{program} {installed_version()}")
        raise SystemExit(0)
    text = overview(commands, found.path, program=program, others=others)
    print(text, file=sys.stdout if found.help else sys.stderr)
    raise SystemExit(0 if found.help else USAGE)


def _refuse(program: str, word: str, near: tuple[str, ...]) -> NoReturn:
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    print(f"error: unknown command {word!r}{hint}\n  `{program} --help` lists all commands", file=sys.stderr)
    raise SystemExit(USAGE)


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors have one line with the flag, and one with the command for help.

    Attributes:
        exits: whether an error ends the process, or is a CliError.
    """

    exits = True

    def error(self, message: str) -> NoReturn:
        if not self.exits:
            raise CliError(message, next_step=f"`{self.prog} --help` prints its usage", status=USAGE)
        self.exit(USAGE, f"error: {message}\n  `{self.prog} --help` prints its usage\n")


def parser_of(command: CliCommand, *, program: str) -> CommandParser:
    """Return the parser of one command, with the flags of all commands."""
    parser = CommandParser(
        prog=" ".join((program, *command.path)),
        description=command.text or sentence(command.help),
        epilog=_examples(command, program),
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    command.arguments(parser)
    if command.intend:
        parser.add_argument(
            "--plan-hash",
            default="",
            metavar="HASH",
            help="Do nothing if `plan` of this command prints another hash now",
        )
    common = parser.add_argument_group("flags of all commands")
    common.add_argument("--kubeconfig", default="", metavar="FILE", help="Use this kubeconfig (default: as kubectl)")
    common.add_argument(
        "--context",
        default="",
        metavar="NAME",
        help="Use this context of the kubeconfig (default: its current context)",
    )
    common.add_argument("--as", dest="as_user", default="", metavar="USER", help="Act as this user, as kubectl does")
    common.add_argument(
        "--as-group",
        dest="as_groups",
        action="append",
        default=[],
        metavar="GROUP",
        help="Act as a member of this group. Repeatable",
    )
    common.add_argument("--as-uid", default="", metavar="UID", help="Act with this UID")
    if parser.get_default("output") is None:  # some commands have their own, with other choices
        common.add_argument("-o", "--output", choices=OUTPUTS, default="", help="Set the output format")
    common.add_argument(
        "--no-color", action="store_true", help="Print plain text, also on a terminal, as NO_COLOR does"
    )
    if _VERSION not in parser._option_string_actions:  # some commands have their own
        add_version(common)
    parser.usage = " ".join((parser.prog, *_needed(parser), "[flags]"))
    return parser


def _needed(parser: CommandParser) -> Iterable[str]:
    """Yield the required arguments by their names in help."""
    for action in parser._actions:
        name = str(action.metavar or action.dest.upper())
        if not action.option_strings:
            many = {"?": f"[{name}]", "*": f"[{name}…]", "+": f"{name}…", argparse.REMAINDER: f"{name}…"}
            yield many.get(str(action.nargs), name)
        elif action.required:
            yield f"{action.option_strings[0]} {name}"


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """A formatter that keeps line ends, and wraps long lines without indentation."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, BooleanFlag):  # another value would be taken for a NAME
            return ", ".join(f"{flag}={action.metavar}" for flag in action.option_strings)
        return super()._format_action_invocation(action)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = (line if line.startswith(" ") else textwrap.fill(line, width) for line in text.splitlines())
        return "".join(f"{indent}{line}\n" for line in lines)


def arguments_of(command: CliCommand, words: Sequence[str], *, program: str, exits: bool = True) -> argparse.Namespace:
    """Return the arguments of a command, and its `path`; exits for --help, and with 2 for invalid arguments.

    Args:
        exits: False raises CliError instead; flags such as --help are invalid then.
    """
    parser = parser_of(command, program=program)
    parser.exits = exits
    if not exits and {"-h", "--help", _VERSION}.intersection(words):
        parser.error("--help and --version are for a terminal")
    alone = {flag for action in parser._actions if isinstance(action, BooleanFlag) for flag in action.option_strings}
    args = parser.parse_args(list(_with_values(words, alone)), argparse.Namespace(path=command.path))
    if getattr(args, "wait", True) is False and getattr(args, "timeout", None) != parser.get_default("timeout"):
        parser.error("argument --timeout: needs --wait")
    return args


def _with_values(words: Sequence[str], alone: set[str]) -> Iterable[str]:
    """Add `=true` to boolean flags without a value, as argparse would take the NAME in `--wait NAME` for one."""
    ended = False
    for word in words:
        ended = ended or word == "--"
        yield f"{word}=true" if word in alone and not ended else word


def _examples(command: CliCommand, program: str) -> str:
    if not command.examples:
        return ""
    return "examples:\n" + "\n".join(f"  # {why}\n  {program} {line}" for line, why in command.examples)


def overview(
    commands: Sequence[CliCommand], path: tuple[str, ...], *, program: str, others: Mapping[str, str] | None = None
) -> str:
    """Return the help of a group: its commands by topic, with a line for each."""
    below = [command for command in commands if command.path[: len(path)] == path]
    rows = {" ".join(command.path[len(path) :]): command.help for command in below}
    extra = dict(others or {}) if not path else {}
    width = max(map(len, (*rows, *extra)), default=0)

    def lines(these: Mapping[str, str]) -> str:
        return "".join(f"  {name:<{width}}  {help_}\n" for name, help_ in these.items())

    all_rows = "\n".join(f"{title}:\n{lines(part)}" for title, part in _sections(rows, extra))
    body = lines(rows) if path else all_rows
    called = " ".join((program, *path))
    return f"usage: {called} COMMAND [flags]\n\n{body}\n`{called} COMMAND --help` prints details and examples."


def _sections(rows: Mapping[str, str], extra: Mapping[str, str]) -> Iterable[tuple[str, dict[str, str]]]:
    """Yield the rows by topic, in the order in which a user needs them."""
    left = {**rows, **extra}
    for title, words in SECTIONS:
        part = {name: left.pop(name) for name in rows if name.split()[0] in words}
        if part:
            yield title, part
    if left:
        yield OTHERS, left
