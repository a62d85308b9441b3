"""Flags in the syntax of kubectl and Go, for command tables: `--wait=false`, `--timeout 1m30s`, `a=b`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from unbounded.kube.settings import parse_port

T = TypeVar("T")

LARGEST: Final = 2**31 - 1  # of numbers in a spec
MOST_LINES: Final = 100_000  # of a log
_TRUE: Final = frozenset({"true", "1", "t", "yes"})
_FALSE: Final = frozenset({"false", "0", "f", "no"})


class BooleanFlag(argparse.Action):
    """A flag that is true without a value; another value has to follow a `=`, as in `--wait=false`."""

    def __init__(self, option_strings: Sequence[str], dest: str, **others: Any) -> None:
        super().__init__(option_strings, dest, type=checked(truth), metavar="true|false", **others)

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002  # as argparse calls it
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        setattr(namespace, self.dest, values)


def add_boolean(parser: argparse.ArgumentParser, flag: str, *, default: bool, help: str) -> None:
    parser.add_argument(flag, action=BooleanFlag, default=default, help=f"{help} ({str(default).lower()})")


def add_wait(parser: argparse.ArgumentParser, *, default: bool, help: str = "Wait until it has ended") -> None:
    """Add --wait and --timeout."""
    add_boolean(parser, "--wait", default=default, help=help)
    add_timeout(parser)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=checked(limit),
        default=None,
        metavar="DURATION",
        help="Stop waiting after this time, such as 10m; 0 waits without a limit (default 0)",
    )


def add_force(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--force", action="store_true", help=f"Do not ask for {what}")


def port(text: str) -> int:
    """Parse the port of a listener; 0 takes a free one."""
    return parse_port(text)


def checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Wrap a parser: its ValueError becomes argparse's error, with the same message."""

    def check(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return check


def truth(text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() in _TRUE


def limit(text: str) -> float | None:
    """Parse a duration to seconds; None for 0, which means no limit."""
    from unbounded.kube.options import duration  # noqa: PLC0415  # --help does not wait for it

    return None if text in {"0", "0s"} else duration(text)


def seconds(text: str) -> int:
    """Parse whole seconds from 0 on, as a number or as a duration, within the range of an API field."""
    if text.isascii() and text.isdigit():
        return _in_range(int(text), text)
    if text.startswith("-"):
        raise ValueError(f"{text!r} is below 0")
    from unbounded.kube.options import duration  # noqa: PLC0415

    exact = duration(text)
    if exact == float("inf"):
        raise ValueError(f"{text!r} is more than {LARGEST}")
    if exact != int(exact):
        raise ValueError(f"{text!r} is not a number of whole seconds")
    return _in_range(int(exact), text)


def some_seconds(text: str) -> int:
    """Parse whole seconds from 1 on."""
    found = seconds(text)
    if not found:
        raise ValueError(f"{text!r} is not a duration: write 15s, 1m30s or 1h")
    return found


def some_lines(text: str) -> int:
    """Parse a number of lines."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST_LINES:
        raise ValueError(f"{text!r} is not a number of lines from 1 to {MOST_LINES}")
    return int(text)


def _in_range(value: int, text: str) -> int:
    if value > LARGEST:
        raise ValueError(f"{text!r} is more than {LARGEST}")
    return value


def integer(text: str) -> int:
    """Parse a whole number, also below 0, within the range of an API field."""
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or not -LARGEST - 1 <= int(text) <= LARGEST:
        raise ValueError(f"{text!r} is not a whole number from {-LARGEST - 1} to {LARGEST}")
    return int(text)


def pair(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE; the value may contain equals signs, and may be empty."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return key, value


def number(text: str) -> int:
    """Parse a whole number from 1 on."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{text!r} is not a number from 1")
    return _in_range(int(text), text)
