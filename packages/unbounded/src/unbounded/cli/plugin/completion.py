"""The executable `kubectl_complete-unbounded`: completion of the last word of a command line.

kubectl runs it with the words behind `kubectl unbounded`, the last one unfinished and perhaps empty. It prints a
candidate a line, each with a description after a tab, and at the end a directive of cobra. It never fails, and never
blocks the shell for long: names are looked up within a second, or not offered.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from argparse import Action
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from unbounded.cli.plugin import parsing
from unbounded.cli.plugin.command import CliCommand
from unbounded.cli.plugin.flags import BooleanFlag
from unbounded.cli.plugin.parsing import CommandMatch, GroupMatch, commands

LOOKUP_S: Final = 1.0
FILES: Final = 0  # a directive: the shell's own completion of files
NO_FILES: Final = 4

_RESOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    "MACHINE": ("machines",),
    "OPERATION": ("machineoperations",),
    "MACHINE|OPERATION": ("machines", "machineoperations"),
}
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {  # resources whose names NAME takes, by the first words of the command
    "machine operation create": (),
    "machine operation": ("machineoperations",),
    "machine allow-join": ("machines",),
    "machine trust-host-key": ("machines",),
    "machine": (),
    "config create": (),
    "config": ("machineconfigurations",),
}


@dataclass(frozen=True)
class Completions:
    """Candidates, each with a description, and the directive."""

    words: tuple[tuple[str, str], ...] = ()
    directive: int = NO_FILES


class NameLookup:
    """Lookup of the names of objects. May raise any exception, after which no names are offered."""

    def __init__(self, environ: Mapping[str, str], kubeconfig: str = "", context: str = "") -> None:
        self._environ, self._kubeconfig, self._context = environ, kubeconfig, context
        self._until = 0.0  # end of the time for all lookups; 0 before the first

    def of(self, plural: str) -> list[str]:
        """Return the names of a resource. Raises TimeoutError after LOOKUP_S; a blocked thread is abandoned."""
        import asyncio  # noqa: PLC0415  # most words are completed without a server

        from unbounded.cli.plugin.reader import ListReader  # noqa: PLC0415
        from unbounded.kube.config import find_config  # noqa: PLC0415

        config = find_config(self._environ, kubeconfig=self._kubeconfig, context=self._context)
        found: list[list[str]] = []
        self._until = self._until or time.monotonic() + LOOKUP_S

        def read() -> None:
            with suppress(Exception):
                login = asyncio.run(config.credentials.login())
                with ListReader(config, login, answer_s=LOOKUP_S) as reader:
                    found.append([str(row[0]) for row in reader.table(plural).rows])

        thread = threading.Thread(target=read, daemon=True)  # no signal interrupts a resolver of names
        thread.start()
        thread.join(max(0.0, self._until - time.monotonic()))
        if not found:
            raise TimeoutError
        return found[0]

    def contexts(self) -> list[str]:
        from unbounded.kube.config import context_names  # noqa: PLC0415

        return context_names(self._environ, kubeconfig=self._kubeconfig)


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments) or [""]
    found = offers(commands(), given, names=named_by(given, os.environ))
    for word, about in found.words:
        print(f"{word}\t{about}" if about else word)
    print(f":{found.directive}", flush=True)
    if threading.active_count() > 1:  # a regular exit of Python would wait for the thread of an abandoned lookup
        os._exit(0)
    return 0


def named_by(words: Sequence[str], environ: Mapping[str, str]) -> NameLookup:
    """Return the names of the cluster that the flags on the line select."""

    def value(flag: str) -> str:
        for at, word in enumerate(words[:-1]):
            if word == flag and at + 2 < len(words):
                return words[at + 1]
            if word.startswith(f"{flag}="):
                return word.partition("=")[2]
        return ""

    return NameLookup(environ, value("--kubeconfig"), value("--context"))


def offers(rows: Sequence[CliCommand], words: Sequence[str], *, names: NameLookup) -> Completions:
    """Return the candidates for the last of the words."""
    before, last = list(words[:-1]), words[-1]
    found = parsing.find(rows, before)
    if isinstance(found, GroupMatch):
        if before and before[-1] in parsing.WITH_VALUE:
            return _of_common(before[-1], last, names)
        if last.startswith("-"):
            return _fitting(last, [("--help", "existing objects"), ("--kubeconfig", ""), ("--context", "")])
        return _fitting(last, _below(rows, found.path))
    if not isinstance(found, CommandMatch):
        return Completions()
    if found.command.path == ("plan",):  # another command follows
        planned = [row for row in rows if row.intend]
        return offers(planned, [*_without_common(found.words), last], names=names)
    return _arguments(found.command, found.words, last, names)


def _of_common(flag: str, last: str, names: NameLookup) -> Completions:
    """Return the candidates for the value of a flag before the command."""
    match flag:
        case "--kubeconfig":
            return Completions(directive=FILES)
        case "--context":
            return _fitting(last, [(name, "") for name in _quietly(names.contexts)])
        case "-o" | "--output":
            return _fitting(last, [(output, "") for output in parsing.OUTPUTS])
        case _:
            return Completions()


def _without_common(words: Iterable[str]) -> list[str]:
    return [word for word in words if word != "--help"]


def _below(rows: Iterable[CliCommand], path: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the next words, with the help line of those that complete a command."""
    found: dict[str, str] = {}
    for row in rows:
        if row.path[: len(path)] == path:
            word = row.path[len(path)]
            found[word] = row.help if len(row.path) == len(path) + 1 else found.get(word, "")
    return list(found.items())


def _arguments(command: CliCommand, words: Sequence[str], last: str, names: NameLookup) -> Completions:
    """Return the candidates for a flag, its value, or an argument of a command."""
    actions = parsing.parser_of(command, program="")._actions
    flags = {flag: action for action in actions for flag in action.option_strings}
    pending = flags.get(words[-1]) if words else None
    if pending is not None and takes_value(pending):
        return _values(command, pending, words, last, names)
    if last.startswith("-") and "=" in last:
        flag, _equals, typed = last.partition("=")
        if flag not in flags:
            return Completions()
        offer = _values(command, flags[flag], words, typed, names)
        return Completions(tuple((f"{flag}={word}", about) for word, about in offer.words), offer.directive)
    if last.startswith("-"):
        used = {word.partition("=")[0] for word in words}
        free = [(flag, action.help or "") for flag, action in flags.items() if flag not in used and flag[:2] == "--"]
        return _fitting(last, free)
    places = [action for action in actions if not action.option_strings]
    at = _typed_places(words, flags)
    action = places[at] if at < len(places) else _endless(places)
    return Completions() if action is None else _values(command, action, words, last, names)


def takes_value(action: Action) -> bool:
    """Return whether the next word is this flag's value."""
    return action.nargs != 0 and not isinstance(action, BooleanFlag)


def _typed_places(words: Sequence[str], flags: Mapping[str, Action]) -> int:
    """Return the number of positional arguments among the words."""
    count, skip = 0, False
    for word in words:
        if skip:
            skip = False
        elif word.startswith("-"):
            skip = word in flags and takes_value(flags[word])
        else:
            count += 1
    return count


def _endless(places: Sequence[Action]) -> Action | None:
    return places[-1] if places and places[-1].nargs in ("*", "+") else None


def _values(command: CliCommand, action: Action, words: Sequence[str], last: str, names: NameLookup) -> Completions:
    """Return the candidates for an argument or the value of a flag."""
    metavar = str(action.metavar or action.dest.upper())
    if action.choices is not None:
        return _fitting(last, [(str(choice), "") for choice in action.choices])
    if metavar in {"FILE", "DIR"}:
        return Completions(directive=FILES)
    if isinstance(action, BooleanFlag):
        return _fitting(last, [("true", ""), ("false", "")])
    if metavar in _WORDS:
        return _fitting(last, _WORDS[metavar](command, words))
    if action.dest == "context":
        return _fitting(last, [(name, "") for name in _quietly(names.contexts)])
    plurals = _RESOURCES.get(metavar, ()) if metavar != "NAME" or action.option_strings else _named(command)
    return _fitting(last, [(name, "") for plural in plurals for name in _quietly(partial(names.of, plural))])


def _named(command: CliCommand) -> tuple[str, ...]:
    line = " ".join(command.path)
    return next((plurals for words, plurals in _NAMES.items() if line.startswith(words)), ())


def _kinds(_command: CliCommand, _words: Sequence[str]) -> list[tuple[str, str]]:
    from unbounded.api.operation import OperationKind  # noqa: PLC0415

    return [(kind.value, "") for kind in OperationKind]


def _phases(_command: CliCommand, _words: Sequence[str]) -> list[tuple[str, str]]:
    from unbounded.api.operation import OperationPhase  # noqa: PLC0415

    return [(phase.value, "") for phase in OperationPhase]


def _parameters(_command: CliCommand, words: Sequence[str]) -> list[tuple[str, str]]:
    """Return the parameters of the kind on the line, else of all kinds."""
    from unbounded.operations.parameters import TABLE  # noqa: PLC0415

    kind = next((words[at + 1] for at, word in enumerate(words[:-1]) if word == "--kind"), "")
    fitting = [parameter for parameter in TABLE if not kind or kind in parameter.kinds]
    return [(f"{parameter.name}=", "") for parameter in fitting]


_WORDS: Final[Mapping[str, Callable[[CliCommand, Sequence[str]], list[tuple[str, str]]]]] = {
    "KIND": _kinds,
    "PHASE": _phases,
    "KEY=VALUE": _parameters,
}


def _quietly(lookup: Callable[[], list[str]]) -> list[str]:
    try:
        return lookup()
    except Exception:  # an unreachable server must not disturb the user's typing
        return []


def _fitting(typed: str, words: Iterable[tuple[str, str]]) -> Completions:
    return Completions(tuple((word, about) for word, about in words if word.startswith(typed)))


if __name__ == "__main__":
    sys.exit(main())
