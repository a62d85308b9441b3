"""What `machina controller` is told: flags, then environment, then file; read once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from unbounded.kube.settings import Address, ProcessSettings, add_process_arguments, address, truth

METRICS: Final = ":8080"
PROBES: Final = ":8081"

T = TypeVar("T")


class SettingsError(Exception):
    """A file or a variable says what cannot be meant; the message names it."""


@dataclass(frozen=True)
class Option:
    """One setting in its three places, and what it is when none of them says anything."""

    flag: str
    key: str  # in the file
    default: str
    help: str

    @property
    def variable(self) -> str:
        return "MACHINA_" + self.flag.removeprefix("--").replace("-", "_").upper()


METRICS_ADDRESS: Final = Option("--metrics-addr", "metricsAddr", METRICS, "where /metrics is served; 0 for nowhere")
PROBE_ADDRESS: Final = Option("--probe-addr", "probeAddr", PROBES, "where /healthz and /readyz are served")
ELECTION: Final = Option(
    "--enable-leader-election", "enableLeaderElection", "true", "work only while holding the Lease"
)
OPTIONS: Final = (METRICS_ADDRESS, PROBE_ADDRESS, ELECTION)


def add_arguments(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML with the keys of the options below")
    for option in OPTIONS:
        parser.add_argument(
            option.flag,
            metavar="BOOL" if option is ELECTION else "ADDRESS",
            help=f"{option.help} (file: {option.key}, environment: {option.variable}, default {option.default})",
        )
    add_process_arguments(parser, environ)


def process_settings_of(args: argparse.Namespace, environ: Mapping[str, str]) -> tuple[ProcessSettings, list[str]]:
    """The settings, and the keys of the file that mean nothing to this version.

    Raises:
        SettingsError: the file cannot be read, or something in it or in the environment cannot be meant.
    """
    file = _file(args.config) if args.config is not None else {}
    metrics = _value(METRICS_ADDRESS, args, environ, file, address)
    probes = _value(PROBE_ADDRESS, args, environ, file, address)
    settings = ProcessSettings(
        component="machina",
        kubeconfig=args.kubeconfig,
        context=args.context,
        log_format=args.log_format,
        log_level=args.log_level,
        health=_addresses(metrics, probes),
        leader_election=_value(ELECTION, args, environ, file, truth),
    )
    return settings, sorted(file.keys() - {option.key for option in OPTIONS})


def _addresses(*given: Address | None) -> tuple[Address, ...]:
    return tuple(one for one in given if one is not None)


def _value(
    option: Option,
    args: argparse.Namespace,
    environ: Mapping[str, str],
    file: Mapping[str, Any],
    parse: Callable[[str], T],
) -> T:
    """What the flag says, else the variable, else the file, else the default."""
    given = getattr(args, option.flag.removeprefix("--").replace("-", "_"))
    if given is not None:
        place, text = option.flag, given
    elif environ.get(option.variable):
        place, text = f"${option.variable}", environ[option.variable]
    else:
        place, text = f"{option.key} in {args.config}", str(file.get(option.key, option.default))
    try:
        return parse(text)
    except ValueError as error:
        raise SettingsError(f"{place}: {error}") from error


def _file(path: Path) -> Mapping[str, Any]:
    import yaml  # noqa: PLC0415  # a file is rare, and --help is not to wait for it

    try:
        body = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)  # the safe loader, in C
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: not YAML: {error}") from error
    if not isinstance(body or {}, dict):
        raise SettingsError(f"{path}: wanted keys and values")
    return body or {}
