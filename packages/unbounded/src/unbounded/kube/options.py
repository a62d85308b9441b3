"""Settings from three sources: flags, then environment variables, then a YAML file, then defaults."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from unbounded.kube.settings import Election, flag_parser, parse_bool

T = TypeVar("T")

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class SettingsError(ValueError):
    """A flag, a variable or a file with an invalid value; the message names the place and the valid values."""


@dataclass(frozen=True)
class Option(Generic[T]):
    """One setting.

    Args:
        name: as in the flag, without the dashes in front; the file has it in camelCase.
        parse: raises ValueError with the words for who wrote the text.
        default: as text, parsed like any other.
        many: may be given several times, or with commas; a list in the file.
    """

    name: str
    parse: Callable[[str], T]
    default: str
    help: str
    metavar: str = "TEXT"
    many: bool = False

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def key(self) -> str:
        first, *others = self.name.split("-")
        return first + "".join(word.capitalize() for word in others)

    @property
    def dest(self) -> str:
        return self.name.replace("-", "_")

    def variable(self, prefix: str) -> str:
        return f"{prefix}_{self.name.replace('-', '_').upper()}"


def add_options(parser: argparse.ArgumentParser, prefix: str, options: Sequence[Option[Any]]) -> None:
    """Add `--config` and a flag for each option; flags are checked while they are parsed."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"Read the options below from this YAML file, with keys such as {options[-1].key} (environment: "
        f"{prefix}_CONFIG)",
    )
    for option in options:
        default = f", default {option.default}" if option.default else ""
        more: dict[str, Any] = {"nargs": "?", "const": "true"} if option.parse is parse_bool else {}
        parser.add_argument(
            option.flag,
            dest=option.dest,
            type=flag_parser(_checked(option)),
            action="append" if option.many else "store",
            metavar="BOOL" if option.parse is parse_bool else option.metavar,
            help=f"{option.help} (environment: {option.variable(prefix)}{default})",
            **more,
        )


def _checked(option: Option[Any]) -> Callable[[str], str]:
    def checked(text: str) -> str:
        option.parse(text)
        return text

    return checked


class OptionValues:
    """The values of options from all sources, which are read once; `value` returns that of one option.

    Args:
        lenient: keep the keys of the file that are no options in `without_meaning`, instead of refusing them.
    Raises:
        SettingsError: the file cannot be read, is no YAML, or has a key that is no option.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        prefix: str,
        environ: Mapping[str, str],
        options: Sequence[Option[Any]],
        *,
        lenient: bool = False,
    ) -> None:
        self._args = args
        self._prefix = prefix
        self._environ = environ
        named = environ.get(f"{prefix}_CONFIG")
        self._path: Path | None = args.config or (Path(named) if named else None)
        self._file = {} if self._path is None else read_file(self._path)
        known = {option.key for option in options}
        self.without_meaning = sorted(str(key) for key in self._file if key not in known)
        if self.without_meaning and not lenient:
            key = self.without_meaning[0]
            raise SettingsError(f"--config {self._path}: unknown option {key!r}; {_suggestion(key, known)}")

    def value(self, option: Option[T]) -> T:
        """Return the value of the flag, else of the variable, else of the file, else the default.

        Raises:
            SettingsError: the value is invalid; the message names its place.
        """
        place, text = self._place(option)
        try:
            return option.parse(text)
        except ValueError as error:
            raise SettingsError(f"{place}: {error}") from error

    def given(self, option: Option[Any]) -> str:
        """Return the name of the place in which an option was given; the flag where it was given nowhere."""
        return self._place(option)[0]

    def _place(self, option: Option[Any]) -> tuple[str, str]:
        given = getattr(self._args, option.dest)
        if given is not None:
            return option.flag, ",".join(given) if option.many else given
        variable = option.variable(self._prefix)
        if self._environ.get(variable):
            return f"${variable}", self._environ[variable]
        if self._file.get(option.key) is not None:
            return f"{option.key} in {self._path}", _text(self._file[option.key], option)
        return option.flag, option.default


def _text(value: Any, option: Option[Any]) -> str:
    """A value of the file as the flag would have it."""
    match value:
        case bool():
            return str(value).lower()
        case list() if option.many and all(isinstance(one, str | int | float) for one in value):
            return ",".join(map(str, value))
        case str() | int() | float():
            return str(value)
        case _:
            desired = "a string or a list of strings" if option.many else "a string, a number, true or false"
            raise SettingsError(f"{option.key}: must be {desired}, not {_describe_flag(value)}")


def _describe_flag(value: Any) -> str:
    names: Mapping[type, str] = {dict: "keys and values", list: "a list"}
    return names.get(type(value), f"a {type(value).__name__}")


def read_file(path: Path) -> Mapping[str, Any]:
    """The keys and values of a YAML file.

    Raises:
        SettingsError: it cannot be read, or is no YAML.
    """
    import yaml  # noqa: PLC0415  # a file is rare, and --help is not to wait for it

    try:
        body = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)  # the safe loader, in C
    except OSError as error:
        raise SettingsError(f"--config {path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"--config {path}: not YAML: {error}") from error
    if not isinstance(body or {}, dict):
        raise SettingsError(f"--config {path}: must be a mapping, not {_describe_flag(body)}")
    return body or {}


def _suggestion(key: str, known: set[str]) -> str:
    """Return a known key that resembles an unknown one; `cache-dir` and `CACHE_DIR` resemble `cacheDir`."""
    plain = {one.lower(): one for one in known}
    near = difflib.get_close_matches(key.lower().replace("-", "").replace("_", ""), plain, n=1, cutoff=0.7)
    return f"did you mean {plain[near[0]]}?" if near else f"known options: {', '.join(sorted(known))}"


def duration(text: str) -> float:
    """Seconds from what Go and Kubernetes write: 15s, 1m30s, 500ms.

    Raises:
        ValueError: it is none, or not above 0.
    """
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or seconds <= 0:
        raise ValueError(f"{text!r} is not a duration: write 15s, 1m30s or 500ms")
    return seconds


def positive_int(text: str) -> int:
    """A number from 1 on."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{text!r} is not a number from 1")
    return int(text)


def sha256_or_none(text: str) -> str:
    """A SHA-256 digest; empty for none. Raises ValueError."""
    if text and not re.fullmatch("[0-9A-Fa-f]{64}", text):
        raise ValueError(f"{text!r} is not a SHA-256 digest: write its 64 hexadecimal digits")
    return text.lower()


_LEASE_DURATION: Final = Option(
    "leader-elect-lease-duration", duration, "15s", "Respect a silent leader for this long", "DURATION"
)
_RENEW: Final = Option(
    "leader-elect-renew-deadline",
    duration,
    "10s",
    "Give up leadership after failing to renew the Lease for this long",
    "DURATION",
)
_RETRY: Final = Option(
    "leader-elect-retry-period",
    duration,
    "2s",
    "Set the pause between attempts to acquire or renew the Lease",
    "DURATION",
)
ELECTION: Final = (_LEASE_DURATION, _RENEW, _RETRY)
"""Options of leader election, for processes whose users set them."""


def election_settings(values: OptionValues) -> Election:
    """Return the settings of the leader election.

    Raises:
        SettingsError: the times contradict each other.
    """
    found = Election(
        duration_s=values.value(_LEASE_DURATION), renew_s=values.value(_RENEW), retry_s=values.value(_RETRY)
    )
    if not found.retry_s < found.renew_s < found.duration_s:
        raise SettingsError(
            f"{_RETRY.flag} must be below {_RENEW.flag}, and {_RENEW.flag} below {_LEASE_DURATION.flag}; they "
            f"are {found.retry_s:g}s, {found.renew_s:g}s and {found.duration_s:g}s"
        )
    return found
