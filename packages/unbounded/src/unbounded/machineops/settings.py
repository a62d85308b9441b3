"""Settings of `machine-ops-controller`: flags, then environment, then file; read once."""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from unbounded.api.names import NAMESPACE
from unbounded.fetch.reference import image_name
from unbounded.join import host_options
from unbounded.join.agent_install import AgentOrigin
from unbounded.kube.options import ELECTION, Option, OptionValues, add_options, election_settings, positive_int
from unbounded.kube.process_epoch import Epoch, parse_epoch
from unbounded.kube.settings import (
    Address,
    Election,
    ProcessSettings,
    add_process_arguments,
    lease_name,
    parse_address,
    parse_bool,
)

PREFIX: Final = "MACHINE_OPS"
COMPONENT: Final = "machine-ops-controller"
CANNOT_SERVE: Final = 2  # exit status for invalid arguments, or a provider that is missing or incomplete
CONCURRENT: Final = 10
ENDS_WITHIN_S: Final = 8.0  # providers may ignore cancellation; the process manager kills after 10 s or 30 s
LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
NAMESPACE_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the controller.

    Args:
        site: only site to serve; empty for all sites.
        provider: only provider to serve; empty for all installed ones.
        concurrent: limit of Machines with concurrent operations for a site and provider. One that only waits for its
            cloud does not count.
        epoch: of the process, if its parent waits for the end of each epoch.
        api_server_endpoint: for new hosts, overrides the published one.
        secret_namespace: the only allowed namespace of credentials' Secrets.
        artifact_mirror: source of downloads for which a Machine sets no other.
        agent_image: root file system of nodes, for Machines that name none.
        agent_public_key: key of agent releases, overrides the one that machina publishes; empty for no override.
        lease_namespace: namespace of the Lease; users of `why` can read only those in unbounded-kube.
    """

    site: str = ""
    provider: str = ""
    concurrent: int = CONCURRENT
    epoch: Epoch | None = None
    api_server_endpoint: str = ""
    cluster_dns: str = ""
    secret_namespace: str = NAMESPACE
    artifact_mirror: str = ""
    agent_image: str = ""
    origin: AgentOrigin = field(default_factory=AgentOrigin)
    agent_public_key: str = ""
    election: Election = field(default_factory=Election)
    lease_namespace: str = NAMESPACE

    @property
    def lease(self) -> str:
        """Name of the Lease that controllers of the same sites and providers share."""
        return lease_name(COMPONENT, self.site, self.provider)


def deployment_name(site: str, provider: str) -> str:
    """Return the name of the Deployment for a site and a provider, each empty for all, and of its other objects.

    A digest keeps names distinct whose characters are invalid in a Service's name.
    """
    name = "-".join(part for part in (COMPONENT, site, provider.lower()) if part)
    plain = re.sub("[^a-z0-9]", "-", name)
    digest = hashlib.sha256(f"{site}/{provider}".encode()).hexdigest()[:8]
    return name if plain == name else f"{plain}-{digest}"


def label_value(text: str) -> str:
    """Return the value of the site label; empty for every site."""
    if text and not LABEL_VALUE.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a valid label value: at most 63 letters, digits, '-', '_' and '.', beginning "
            "and ending with a letter or a digit"
        )
    return text


def namespace(text: str) -> str:
    if not NAMESPACE_NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a valid namespace name")
    return text


def epoch_or_none(text: str) -> Epoch | None:
    return parse_epoch(text) if text else None


def image_or_none(text: str) -> str:
    return image_name(text) if text else ""


_SITE: Final = Option(
    "site",
    label_value,
    "",
    "Manage the Machines with this value of label unbounded-cloud.io/site (default: all)",
    "SITE",
)
_PROVIDER: Final = Option(
    "provider", str, "", "Manage the Machines with this spec.provider (default: all installed providers)", "NAME"
)
_METRICS: Final = Option(
    "metrics-bind-address", parse_address, ":8080", "Serve /metrics on this address; 0 disables it", "ADDRESS"
)
_PROBES: Final = Option(
    "health-probe-bind-address", parse_address, ":8081", "Serve /healthz and /readyz on this address", "ADDRESS"
)
_ELECT: Final = Option("leader-elect", parse_bool, "true", "Work only while this process holds the Lease")
_ELECT_NAMESPACE: Final = Option(
    "leader-elect-namespace",
    namespace,
    NAMESPACE,
    "Create the Lease in this namespace, where the account needs its rights; `why` and `unbounded "
    f"up` read only {NAMESPACE}",
    "NAME",
)
_SECRETS: Final = Option(
    "credential-secret-namespace",
    namespace,
    NAMESPACE,
    "Read Secrets of credentials from this namespace only",
    "NAME",
)
_CONCURRENT: Final = Option(
    "max-concurrent-reconciles",
    positive_int,
    str(CONCURRENT),
    "Limit the number of Machines of a site in progress at once",
    "N",
)
_EPOCH: Final = Option(
    "epoch",
    epoch_or_none,
    "",
    "Mark this process as number N of LINE: a supervisor of processes that waits for the end of "
    "each. Processes with lower numbers send no more requests",
    "EPOCH",
)
_AGENT_IMAGE: Final = Option(
    "agent-image", image_or_none, "", "Use this image as the root file system of nodes", "IMAGE"
)
OPTIONS: Final = (
    _SITE, _PROVIDER, _METRICS, _PROBES, _ELECT, _ELECT_NAMESPACE, *ELECTION, _SECRETS, _CONCURRENT, _EPOCH,
    host_options.ENDPOINT, *host_options.HOST_OPTIONS, _AGENT_IMAGE,
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Add the arguments of `machine-ops-controller`."""
    add_options(parser, PREFIX, OPTIONS)
    add_process_arguments(parser, environ)
    parser.add_argument(
        "--heartbeat-fd",
        type=int,
        metavar="FD",
        help="Write a byte to this open file every few seconds, for a parent process that ends this one if it hangs",
    )


def parse_settings(args: argparse.Namespace, environ: Mapping[str, str]) -> tuple[Settings, ProcessSettings]:
    """Merge flags, environment and file.

    Raises:
        SettingsError: the file or a value is invalid.
    """
    values = OptionValues(args, PREFIX, environ, OPTIONS)
    mirror = values.value(host_options.MIRROR)
    settings = Settings(
        site=values.value(_SITE),
        provider=values.value(_PROVIDER),
        concurrent=values.value(_CONCURRENT),
        epoch=values.value(_EPOCH),
        api_server_endpoint=values.value(host_options.ENDPOINT),
        cluster_dns=values.value(host_options.DNS),
        secret_namespace=values.value(_SECRETS),
        artifact_mirror=mirror,
        agent_image=values.value(_AGENT_IMAGE),
        origin=AgentOrigin(
            version=values.value(host_options.AGENT_VERSION),
            base_url=values.value(host_options.AGENT_BASE) or mirror,
            url=values.value(host_options.AGENT_URL),
            sha256=values.value(host_options.AGENT_SHA256),
        ),
        agent_public_key=values.value(host_options.AGENT_KEY),
        election=election_settings(values),
        lease_namespace=values.value(_ELECT_NAMESPACE),
    )
    addresses: list[Address | None] = [values.value(_METRICS), values.value(_PROBES)]
    process = ProcessSettings(
        component=COMPONENT,
        ends_within_s=ENDS_WITHIN_S,
        kubeconfig=args.kubeconfig,
        context=args.context,
        log_format=args.log_format,
        log_level=args.log_level,
        health=tuple(dict.fromkeys(one for one in addresses if one is not None)),
        leader_election=values.value(_ELECT),
        heartbeat_fd=args.heartbeat_fd,
    )
    return settings, process
