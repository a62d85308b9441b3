"""What `metalman controller` is told: flags and environment, read once."""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from unbounded.kube.settings import Address, ProcessSettings, add_process_arguments, flag, port, truth

CONCURRENT: Final = 10
HEALTH_PORT: Final = 8081
LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """
    Args:
        site: the site whose Machines are looked after; empty for Machines without one, None for all sites.
        concurrent: how many Machines of a site are worked on at once.
    """

    site: str | None = ""
    concurrent: int = CONCURRENT

    @property
    def lease(self) -> str:
        """The Lease of those who look after the same site; a label may hold what the name of an object may not."""
        if not self.site:
            return "metalman"
        if OBJECT_NAME.fullmatch(self.site):
            return f"metalman-{self.site}"
        plain = re.sub("[^a-z0-9]", "-", self.site.lower())
        return f"metalman-{plain}-{hashlib.sha256(self.site.encode()).hexdigest()[:8]}"


def add_arguments(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    parser.add_argument(
        "--site",
        type=flag(_site),
        default=environ.get("METALMAN_SITE", ""),
        help="look after the Machines with this label unbounded-cloud.io/site (default: those without one)",
    )
    parser.add_argument(
        "--operation-max-concurrent-machines",
        type=flag(_positive),
        default=environ.get("METALMAN_OPERATION_MAX_CONCURRENT_MACHINES", str(CONCURRENT)),
        metavar="N",
        help="how many Machines are worked on at once (%(default)s)",
    )
    parser.add_argument(
        "--health-port",
        type=flag(port),
        default=environ.get("METALMAN_HEALTH_PORT", str(HEALTH_PORT)),
        metavar="PORT",
        help="of /metrics, /healthz and /readyz (%(default)s)",
    )
    parser.add_argument(
        "--health-bind",
        default=environ.get("METALMAN_HEALTH_BIND", ""),
        metavar="ADDRESS",
        help="address that they are served on (default: every one)",
    )
    parser.add_argument(
        "--leader-elect",
        type=flag(truth),
        default=environ.get("METALMAN_LEADER_ELECT", "true"),
        metavar="BOOL",
        help="work only while holding a Lease in namespace unbounded-kube (%(default)s)",
    )
    add_process_arguments(parser, environ)


def settings_of(args: argparse.Namespace) -> Settings:
    return Settings(site=args.site, concurrent=args.operation_max_concurrent_machines)


def process_settings_of(args: argparse.Namespace) -> ProcessSettings:
    return ProcessSettings(
        component="metalman",
        kubeconfig=args.kubeconfig,
        context=args.context,
        log_format=args.log_format,
        log_level=args.log_level,
        health=(Address(args.health_bind, args.health_port),),
        leader_election=args.leader_elect,
    )


def _site(text: str) -> str:
    """The value of a label, as Kubernetes takes it; empty for Machines without one."""
    if text and not LABEL_VALUE.fullmatch(text):
        raise ValueError(
            f"{text!r} cannot be the value of a label: it has at most 63 letters, digits, '-', '_' and '.', "
            "with a letter or a digit at both ends"
        )
    return text


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{text!r} is not a number from 1 on")
    return int(text)
