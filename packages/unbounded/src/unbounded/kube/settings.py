"""Settings and flags that all processes share, and the form of a server's address in them.

This module imports nothing heavy, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

LOG_FORMATS: Final = ("json", "text")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
HIGHEST_PORT: Final = 65535
HEARTBEAT_S: Final = 3.0  # between heartbeats
HEARTBEAT_ALIVE: Final = b"."  # a heartbeat of a process that is starting
HEARTBEAT_SERVING: Final = b"+"  # and of one whose controllers work
OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

T = TypeVar("T")
_ENDPOINT: Final = re.compile(
    r"https://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9.])?)(:(?P<port>[0-9]{1,5}))?/?"
)


@dataclass(frozen=True)
class Address:
    """An address to listen on; an empty host means every address."""

    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Election:
    """Times of a leader election: how long others respect a Lease, how long a holder leads without renewal, the retry
    pause.
    """

    duration_s: float = 15.0
    renew_s: float = 10.0
    retry_s: float = 2.0


def lease_name(component: str, *scope: str) -> str:
    """Return the name of the Lease of the processes with the same scope, such as site and provider.

    A label may hold characters that a name may not. A digest separates scopes whose names would be equal.
    """
    if not any(scope):
        return component
    first, *rest = scope
    if OBJECT_NAME.fullmatch(first) and not any(rest):
        return f"{component}-{first}"
    plain = re.sub("[^a-z0-9]", "-", "-".join(part for part in scope if part).lower())
    return f"{component}-{plain}-{hashlib.sha256('/'.join(scope).encode()).hexdigest()[:8]}"


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """Settings that `main` has read once from flags, environment and file.

    Attributes:
        ends_within_s: limit of the shutdown after a signal, for code of others; None where all code is ours.
    """

    component: str
    ends_within_s: float | None = None
    kubeconfig: str = ""
    context: str = ""
    log_format: str = "json"
    log_level: str = "info"
    health: tuple[Address, ...] = ()
    leader_election: bool = True
    heartbeat_fd: int | None = None  # where the event loop reports to its parent process that it turns


def add_process_arguments(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Add what every controller process understands; the environment gives the defaults."""
    parser.add_argument(
        "--kubeconfig",
        default="",
        metavar="FILE",
        help="Use this kubeconfig (default: $KUBECONFIG, the Pod's account, ~/.kube/config)",
    )
    parser.add_argument(
        "--context",
        default="",
        metavar="NAME",
        help="Use this context of the kubeconfig (default: its current context)",
    )
    add_log_arguments(parser, environ, level="info", log_format="json")


def add_log_arguments(
    parser: argparse.ArgumentParser, environ: Mapping[str, str], *, level: str, log_format: str
) -> None:
    parser.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default=parse_choice(environ, "UNBOUNDED_LOG_FORMAT", LOG_FORMATS, log_format),
        help="Set the format of the logs on standard error (default: %(default)s)",
    )
    parser.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default=parse_choice(environ, "UNBOUNDED_LOG_LEVEL", LOG_LEVELS, level),
        help="Set the lowest level that is logged (default: %(default)s)",
    )


def parse_choice(environ: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    """A variable that has to be one of some words.

    Raises:
        ValueError: it is set to something else.
    """
    value = environ.get(name, "") or default
    if value not in choices:
        raise ValueError(f"${name} is {value!r}: choose from {', '.join(choices)}")
    return value


def parse_address(text: str) -> Address | None:
    """`:8080` is every address, `127.0.0.1:8080` or `[::1]:8080` one of them, `0` none.

    Raises:
        ValueError: it is none of these.
    """
    if text == "0":
        return None
    host, colon, digits = text.rpartition(":")
    if not colon:
        raise ValueError(f"{text!r} is not an address: write :PORT or HOST:PORT, or 0 for none")
    return Address(host.removeprefix("[").removesuffix("]"), parse_port(digits))


def parse_port(text: str) -> int:
    """A port number; 0 takes a free one."""
    if not text.isascii() or not text.isdigit() or int(text) > HIGHEST_PORT:
        raise ValueError(f"{text!r} is not a port: 0 to {HIGHEST_PORT}")
    return int(text)


def parse_bool(text: str) -> bool:
    """true or false, as flags and variables write it.

    Raises:
        ValueError: it is neither.
    """
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in words:
        raise ValueError(f"{text!r} is neither true nor false")
    return words[text.lower()]


def flag_parser(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A parser for argparse, which shows the words of what it raises."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def endpoint_url(text: str) -> str:
    """The address of an API server, `HOST`, `HOST:PORT` or `https://HOST:PORT`, as a URL without a slash at its end.

    Raises:
        ValueError: it is none, with the words for who wrote it.
    """
    url = text.strip()
    url = url if "://" in url else f"https://{url}"
    found = _ENDPOINT.fullmatch(url)
    if found is None or not 1 <= int(found["port"] or 443) <= HIGHEST_PORT:
        raise ValueError(f"{text!r} is not an address of an API server, such as https://10.0.0.1:6443")
    return url.rstrip("/")


def installed_version() -> str:
    """Return the version of the package that is installed here."""
    from importlib.metadata import version  # noqa: PLC0415

    return version("unbounded")


class _PrintVersion(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, lookup: Callable[[], str], **others: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **others)
        self._lookup = lookup

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002  # as argparse calls it
        values: str | Sequence[Any] | None,  # noqa: ARG002
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        print(f"{parser.prog} {self._lookup()}")
        parser.exit()


def add_version(
    parser: argparse._ActionsContainer,
    lookup: Callable[[], str] = installed_version,
    commands: Iterable[argparse._ActionsContainer] = (),
) -> None:
    """Add --version, which prints the name of the program and its version; to the parsers of its commands, too.

    Args:
        parser: or a group of its arguments.
        lookup: the version.
    """
    for one in (parser, *commands):
        one.add_argument("--version", action=_PrintVersion, lookup=lookup, help="Print the version")
