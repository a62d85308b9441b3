"""Settings of `machina controller`: flags, then environment, then file; read once."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from unbounded.fetch.reference import image_name
from unbounded.join import host_options
from unbounded.kube import settings as kube_settings
from unbounded.kube.clock import Backoff
from unbounded.kube.options import Option, OptionValues, add_options, duration, positive_int


@dataclass(frozen=True)
class ProvisioningSettings:
    """Settings of provisioning.

    Args:
        probe_workers: limit of concurrent probes of SSH ports.
        attempts_at_once: limit of hosts that are provisioned at the same time.
        provisioning_timeout_s: of one attempt.
        silence_s: longest time without output of an install.
        retry: backoff of failed attempts.
        agent_version, agent_base_url, agent_url, agent_sha256: of agents, for Machines that do not set them.
        agent_public_key: key that signs agent releases; empty to allow any release.
        agent_image: root file system of nodes, for Machines that do not set one.
        cluster_dns, apiserver_endpoint: override the facts of the cluster; empty for no override.
        artifact_mirror: source of all downloads for which a Machine sets no other; empty for none.
    """

    probe_workers: int = 64
    attempts_at_once: int = 50
    provisioning_timeout_s: float = 1800.0
    silence_s: float = 600.0
    reset_timeout_s: float = 900.0
    retry: Backoff = field(default_factory=lambda: Backoff(60.0, 1800.0))
    agent_version: str = ""
    agent_base_url: str = ""
    agent_url: str = ""
    agent_sha256: str = ""
    agent_public_key: str = ""
    agent_image: str = ""
    cluster_dns: str = ""
    apiserver_endpoint: str = ""
    artifact_mirror: str = ""


def image_or_none(text: str) -> str:
    """Parse the name of an image in a registry; empty means none. Raises ValueError."""
    return image_name(text) if text else ""


PREFIX: Final = "MACHINA"

_METRICS: Final = Option(
    "metrics-addr", kube_settings.parse_address, ":8080", "Serve /metrics on this address; 0 disables it", "ADDRESS"
)
_PROBES: Final = Option(
    "probe-addr", kube_settings.parse_address, ":8081", "Serve /healthz and /readyz on this address", "ADDRESS"
)
_ELECTION: Final = Option(
    "enable-leader-election", kube_settings.parse_bool, "true", "Work only while this process holds the Lease"
)
_AT_ONCE: Final = Option(
    "max-concurrent-reconciles", positive_int, "50", "Limit the number of hosts in setup at a time", "COUNT"
)
_TIMEOUT: Final = Option("provisioning-timeout", duration, "30m", "Limit the time of the setup of one host", "DURATION")
_AGENT_IMAGE: Final = Option(
    "agent-image", image_or_none, "", "Use this image as the root file system of nodes", "IMAGE"
)
OPTIONS: Final = (
    _METRICS,
    _PROBES,
    _ELECTION,
    host_options.ENDPOINT,
    _AT_ONCE,
    _TIMEOUT,
    *host_options.HOST_OPTIONS,
    _AGENT_IMAGE,
)


def add_arguments(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    add_options(parser, PREFIX, OPTIONS)
    kube_settings.add_process_arguments(parser, environ)


def add_host_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for hosts that are set up over SSH, for a process that has further flags of its own."""
    group = parser.add_argument_group("setup of hosts over SSH")
    for option in (_AT_ONCE, _TIMEOUT, *_OF_HOSTS):
        default = f" (default: {option.default})" if option.default else ""
        group.add_argument(
            option.flag,
            dest=option.dest,
            type=kube_settings.flag_parser(option.parse),
            default=option.parse(option.default),
            metavar=option.metavar,
            help=f"{option.help}{default}",
        )


def host_settings_of(args: argparse.Namespace) -> ProvisioningSettings:
    """Return the settings of those flags."""
    return ProvisioningSettings(
        attempts_at_once=args.max_concurrent_reconciles,
        provisioning_timeout_s=args.provisioning_timeout,
        agent_version=args.agent_version,
        agent_base_url=args.agent_base_url,
        agent_url=args.agent_url,
        agent_sha256=args.agent_sha256,
        agent_public_key=args.agent_public_key,
        agent_image=args.agent_image,
        cluster_dns=args.cluster_dns,
        artifact_mirror=args.artifact_mirror,
    )


_OF_HOSTS: Final = (*host_options.HOST_OPTIONS, _AGENT_IMAGE)  # names of fields of Settings


def config_values(settings: ProvisioningSettings) -> dict[str, str]:
    """Return the settings for hosts as keys and values of a config file."""
    return {option.key: value for option in _OF_HOSTS if (value := getattr(settings, option.dest))}


def settings_of(
    args: argparse.Namespace, environ: Mapping[str, str]
) -> tuple[kube_settings.ProcessSettings, ProvisioningSettings, list[str]]:
    """Return the settings, and the keys of the file that this version does not know: files may be older or newer.

    Raises:
        SettingsError: the file cannot be read, or it or the environment has an invalid value.
    """
    values = OptionValues(args, PREFIX, environ, OPTIONS, lenient=True)
    process = kube_settings.ProcessSettings(
        component="machina",
        kubeconfig=args.kubeconfig,
        context=args.context,
        log_format=args.log_format,
        log_level=args.log_level,
        health=_addresses(values.value(_METRICS), values.value(_PROBES)),
        leader_election=values.value(_ELECTION),
    )
    settings = ProvisioningSettings(
        attempts_at_once=values.value(_AT_ONCE),
        provisioning_timeout_s=values.value(_TIMEOUT),
        agent_version=values.value(host_options.AGENT_VERSION),
        agent_base_url=values.value(host_options.AGENT_BASE),
        agent_url=values.value(host_options.AGENT_URL),
        agent_sha256=values.value(host_options.AGENT_SHA256),
        agent_public_key=values.value(host_options.AGENT_KEY),
        agent_image=values.value(_AGENT_IMAGE),
        cluster_dns=values.value(host_options.DNS),
        apiserver_endpoint=values.value(host_options.ENDPOINT),
        artifact_mirror=values.value(host_options.MIRROR),
    )
    return process, settings, values.without_meaning


def _addresses(*given: kube_settings.Address | None) -> tuple[kube_settings.Address, ...]:
    return tuple(one for one in given if one is not None)
