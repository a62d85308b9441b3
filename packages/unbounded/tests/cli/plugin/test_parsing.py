"""Parsing of words to a command: places of flags, lists, refusals."""

from __future__ import annotations

import argparse
import importlib

import pytest

from unbounded.cli.plugin import flags, parsing
from unbounded.cli.plugin.command import CliCommand
from unbounded.cli.plugin.parsing import CommandMatch, GroupMatch, UnknownCommand, commands, find, loaded, overview


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    flags.add_wait(parser, default=True)
    flags.add_force(parser, "it")


ONE = CliCommand(("machine", "look"), "look at it", (("machine look m1", "why"),), _arguments, "json:dumps")
TWO = CliCommand(("machine", "operation", "list"), "list them", (), lambda _: None, "json:dumps")
ROWS = (ONE, TWO)


def _parse(*words: str) -> argparse.Namespace:
    return parsing.parse(ROWS, words, program="kubectl unbounded", others={})[1]


@pytest.mark.parametrize(
    "words",
    [
        ["machine", "look", "m1", "--context", "c"],
        ["--context", "c", "machine", "look", "m1"],
        ["machine", "--context=c", "look", "m1"],
        ["machine", "look", "--context", "c", "m1"],
    ],
)
def test_common_flags_may_stand_anywhere(words: list[str]) -> None:
    args = _parse(*words)
    assert (args.path, args.name, args.context) == (ONE.path, "m1", "c")


@pytest.mark.parametrize(
    ("words", "wait", "name"),
    [
        (["--wait", "m1"], True, "m1"),
        (["m1", "--wait"], True, "m1"),
        (["--wait=false", "m1"], False, "m1"),
        (["m1", "--wait=true"], True, "m1"),
        (["m1"], True, "m1"),
        (["--", "--wait"], True, "--wait"),
    ],
)
def test_a_boolean_takes_its_value_with_an_equals_sign_only(words: list[str], wait: bool, name: str) -> None:
    args = _parse("machine", "look", *words)
    assert (args.wait, args.name) == (wait, name)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (
            ["machine", "lok", "m1"],
            "unknown command 'lok'; did you mean look?\n  `kubectl unbounded machine --help`",
        ),
        (["machin"], "did you mean machine?"),
        (["machine", "look"], "the following arguments are required: NAME"),
        (["machine", "look", "m1", "--wait=perhaps"], "--wait: 'perhaps' is neither true nor false"),
        (["machine", "look", "m1", "--timeout", "soon"], "--timeout: 'soon' is not a duration: write 15s, 1m30s"),
        (["machine", "look", "m1", "--time", "1s"], "unrecognized arguments: --time"),
        (["machine", "look", "m1", "-o", "xml"], "-o/--output: invalid choice: 'xml'"),
        (["machine"], "usage: kubectl unbounded machine COMMAND"),
        ([], "usage: kubectl unbounded COMMAND"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_2_and_words(
    words: list[str], refusal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _parse(*words)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert refusal in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--help"], "machine operation list"),
        (["help", "machine"], "operation list"),
        (["machine", "operation", "-h"], "list  list them"),
        (["help", "machine", "look"], "# why\n  kubectl unbounded machine look m1"),
        (["machine", "look", "--help"], "usage: kubectl unbounded machine look NAME [flags]"),
    ],
)
def test_help_goes_to_stdout(words: list[str], shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        _parse(*words)
    assert ended.value.code == 0
    assert shown in capsys.readouterr().out


def test_finding_says_what_it_found() -> None:
    assert find(ROWS, ["machine", "look", "-o", "name", "x"]) == CommandMatch(ONE, ("-o", "name", "x"))
    assert find(ROWS, ["machine", "operation"]) == GroupMatch(("machine", "operation"))
    assert find(ROWS, ["machine", "x"]) == UnknownCommand(("machine",), "x", ())


def test_the_overview_has_every_command_and_those_of_the_caller() -> None:
    text = overview(commands(), (), program="unbounded", others={"up": "start one"})
    for command in commands():
        assert f"  {' '.join(command.path)} " in text
    assert "up " in text


@pytest.mark.parametrize(("text", "wanted"), [("0", None), ("0s", None), ("90s", 90.0), ("1m30s", 90.0)])
def test_a_limit_of_nothing_is_none(text: str, wanted: float | None) -> None:
    assert flags.limit(text) == wanted


@pytest.mark.parametrize(("text", "wanted"), [("0", 0), ("300", 300), ("5m", 300)])
def test_seconds_are_a_number_or_a_duration(text: str, wanted: int) -> None:
    assert flags.seconds(text) == wanted


@pytest.mark.parametrize("text", ["-1", "1.5s", "soon", "", "--1"])
def test_seconds_are_whole_and_not_below_0(text: str) -> None:
    with pytest.raises(ValueError, match="'"):
        flags.seconds(text)


@pytest.mark.parametrize("command", commands(), ids=lambda command: "-".join(command.path))
def test_every_row_can_be_run_and_planned_and_helps(command: CliCommand) -> None:
    assert callable(loaded(command.run))
    assert not command.intend or callable(loaded(command.intend))
    assert command.examples, "an example is worth more than a description"
    text = parsing.parser_of(command, program="kubectl unbounded").format_help()
    assert "flags of all commands" in text
    assert not command.help.endswith(".")
    assert command.help[:1].isupper(), "help is a sentence that begins with a verb"


@pytest.mark.parametrize("command", commands(), ids=lambda command: "-".join(command.path))
def test_every_example_is_a_command_line_that_is_taken(command: CliCommand) -> None:
    import shlex

    for line, why in command.examples:
        typed, args = parsing.parse(commands(), shlex.split(line), program="kubectl unbounded", others={})
        assert typed is command
        assert args.path == command.path
        assert why


def test_rows_import_nothing_but_the_shape_of_rows() -> None:
    for name in {command.arguments.__module__ for command in commands()}:
        source = importlib.import_module(name).__file__
        assert source is not None
        with open(source) as file:
            imported = {line.split()[1] for line in file if line.startswith(("from unbounded", "import unbounded"))}
        others = {
            one for one in imported if one.startswith("unbounded.cli.command_tables.")
        }  # files of rows, like this one
        shape = {"unbounded.cli.plugin", "unbounded.cli.plugin.command", "unbounded.cli.plugin.flags"}
        assert imported - others <= shape, name
