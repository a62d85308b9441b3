"""Settings of `container-cloud controller`: flags, then environment, then file; read once."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from unbounded.api.container_cloud.machine import DeletionPolicy
from unbounded.kube.options import ELECTION, Option, OptionValues, add_options, election_settings
from unbounded.kube.settings import (
    Election,
    ProcessSettings,
    add_process_arguments,
    flag_parser,
    parse_address,
    parse_bool,
)

PREFIX: Final = "CONTAINER_CLOUD"
COMPONENT: Final = "container-cloud"
LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
NAMESPACE_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
MOST_MANAGERS: Final = 100


@dataclass(frozen=True, kw_only=True)
class ContainerCloudSettings:
    """Settings of the controllers.

    Args:
        site: of hosts without a site label, in namespaces without one; empty for no site.
        shared_host_namespaces: namespaces whose hosts Machines of other namespaces may pin.
        default_deletion_policy: of Machines that name none.
        strict_distribution: whether a Machine has to name its distribution.
        min_other_managers: Ready managers that must remain when a manager is deleted.
        election: times of the Lease.
    """

    site: str = ""
    shared_host_namespaces: tuple[str, ...] = ("default",)
    default_deletion_policy: DeletionPolicy = DeletionPolicy.UNSAFE
    strict_distribution: bool = False
    min_other_managers: int = 2
    election: Election = Election()  # noqa: RUF009 - frozen


def site_name(text: str) -> str:
    if not LABEL_VALUE.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a valid label value: at most 63 letters, digits, '-', '_' and '.', beginning "
            "and ending with a letter or a digit"
        )
    return text


def namespace_names(text: str) -> tuple[str, ...]:
    names = tuple(one.strip() for one in text.split(",") if one.strip())
    for name in names:
        if not NAMESPACE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid namespace name")
    return names


def deletion_policy(text: str) -> DeletionPolicy:
    try:
        return DeletionPolicy(text)
    except ValueError:
        raise ValueError(f"{text!r} is none of {', '.join(DeletionPolicy)}") from None


def manager_count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > MOST_MANAGERS:
        raise ValueError(f"{text!r} is not a number from 0 to {MOST_MANAGERS}")
    return int(text)


_SITE: Final = Option(
    "site", site_name, "", "Set the site of hosts where neither they nor their namespace have a site label", "SITE"
)
_SHARED: Final = Option(
    "shared-host-namespaces",
    namespace_names,
    "default",
    "Let Machines of all namespaces pin hosts of these namespaces",
    "NAMES",
)
_POLICY: Final = Option(
    "default-deletion-policy",
    deletion_policy,
    DeletionPolicy.UNSAFE.value,
    "Delete Machines without a deletionPolicy by this one: graceful, unsafe or forced",
    "POLICY",
)
_STRICT: Final = Option("strict-distribution", parse_bool, "false", "Reject Machines that name no distribution")
_MANAGERS: Final = Option(
    "min-other-managers",
    manager_count,
    "2",
    "Delete a manager only while this number of other managers of its Cluster is Ready",
    "N",
)
_METRICS: Final = Option(
    "metrics-bind-address", parse_address, ":8080", "Serve /metrics on this address; 0 disables it", "ADDRESS"
)
_PROBES: Final = Option(
    "health-probe-bind-address", parse_address, ":8081", "Serve /healthz and /readyz on this address", "ADDRESS"
)
_ELECT: Final = Option("leader-elect", parse_bool, "true", "Work only while this process holds the Lease")
BEHAVIOR: Final[tuple[Option[Any], ...]] = (_SITE, _SHARED, _POLICY, _STRICT, _MANAGERS)
OPTIONS: Final[tuple[Option[Any], ...]] = (_METRICS, _PROBES, _ELECT, *ELECTION, *BEHAVIOR)


def add_arguments(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Add the arguments of `container-cloud controller`."""
    add_options(parser, PREFIX, OPTIONS)
    add_process_arguments(parser, environ)


def parse_settings(
    args: argparse.Namespace, environ: Mapping[str, str]
) -> tuple[ContainerCloudSettings, ProcessSettings]:
    """Merge flags, environment and file.

    Raises:
        SettingsError: the file or a value is invalid.
    """
    values = OptionValues(args, PREFIX, environ, OPTIONS)
    settings = ContainerCloudSettings(
        **{option.dest: values.value(option) for option in BEHAVIOR}, election=election_settings(values)
    )
    addresses = (values.value(_METRICS), values.value(_PROBES))
    process = ProcessSettings(
        component=COMPONENT,
        kubeconfig=args.kubeconfig,
        context=args.context,
        log_format=args.log_format,
        log_level=args.log_level,
        health=tuple(address for address in addresses if address is not None),
        leader_election=values.value(_ELECT),
    )
    return settings, process


def add_up_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the switch of Container Cloud and its flags, for a process that has further flags of its own."""
    group = parser.add_argument_group("Container Cloud")
    group.add_argument(
        "--container-cloud",
        action="store_true",
        help="Serve the kinds of Container Cloud, and run their controllers; `kubectl get ma` lists their Machines",
    )
    for option in BEHAVIOR:
        default = f" (default: {option.default})" if option.default else ""
        more: dict[str, Any] = {"nargs": "?", "const": True} if option.parse is parse_bool else {}
        group.add_argument(
            _up_flag(option),
            dest=_up_dest(option),
            type=flag_parser(option.parse),
            metavar="BOOL" if option.parse is parse_bool else option.metavar,
            help=f"{option.help}{default}",
            **more,
        )


def up_settings_of(args: argparse.Namespace) -> ContainerCloudSettings | None:
    """Return the settings of those flags; None without --container-cloud.

    Raises:
        ValueError: a flag of Container Cloud without --container-cloud.
    """
    given = {option.dest: getattr(args, _up_dest(option)) for option in BEHAVIOR}
    named = {name: value for name, value in given.items() if value is not None}
    if not args.container_cloud:
        for option in BEHAVIOR:
            if option.dest in named:
                raise ValueError(f"{_up_flag(option)} needs --container-cloud")
        return None
    return ContainerCloudSettings(**named)


def _up_flag(option: Option[Any]) -> str:
    """Return the flag of `unbounded up`; its --site would be read as that of all Machines."""
    return "--host-site" if option is _SITE else option.flag


def _up_dest(option: Option[Any]) -> str:
    return f"container_cloud_{option.dest}"
