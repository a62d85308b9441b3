"""What `machina controller` is told: flags, then environment, then file; read once."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from unbounded.fetch.reference import image_name
from unbounded.join.release_key import public_key
from unbounded.kube.endpoint import endpoint_url
from unbounded.kube.options import Option, Told, add_options, duration, sha256_or_none, whole
from unbounded.kube.settings import Address, ProcessSettings, add_process_arguments, address, flag, truth
from unbounded.machina.machines.settings import Settings


def endpoint_or_none(text: str) -> str:
    """Where an API server is, as a URL; empty for none. Raises ValueError."""
    return endpoint_url(text) if text else ""


def web_url(text: str) -> str:
    """An http or https URL; empty for none. Raises ValueError."""
    if not text or _is_web_url(text):
        return text
    raise ValueError(f"{text!r} is no http or https URL")


def _is_web_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        whole_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    plain = not (parts.username or parts.password or parts.query or parts.fragment)
    return parts.scheme in ("http", "https") and whole_host and plain and not any(one.isspace() for one in text)


def ip_or_none(text: str) -> str:
    """An IP address; empty for none. Raises ValueError."""
    return str(ip_address(text)) if text else ""


def image_or_none(text: str) -> str:
    """The name of an image in a registry; empty for none. Raises ValueError."""
    return image_name(text) if text else ""


PREFIX: Final = "MACHINA"

_METRICS: Final = Option("metrics-addr", address, ":8080", "where /metrics is served; 0 for nowhere", "ADDRESS")
_PROBES: Final = Option("probe-addr", address, ":8081", "where /healthz and /readyz are served", "ADDRESS")
_ELECTION: Final = Option("enable-leader-election", truth, "true", "work only while holding the Lease")
_ENDPOINT: Final = Option(
    "api-server-endpoint",
    endpoint_or_none,
    "",
    "what hosts are told, in place of what kube-public/cluster-info says",
    "URL",
)
_DNS: Final = Option("cluster-dns", ip_or_none, "", "what hosts are told, in place of Service kube-dns", "ADDRESS")
_AT_ONCE: Final = Option("max-concurrent-reconciles", whole, "50", "how many hosts are set up at a time", "COUNT")
_TIMEOUT: Final = Option("provisioning-timeout", duration, "30m", "how long setting up one host may take", "DURATION")
_MIRROR: Final = Option(
    "artifact-mirror", web_url, "", "where hosts download what their Machine gives no place for", "URL"
)
_AGENT_VERSION: Final = Option("agent-version", str, "", "of agents, for Machines that do not say", "VERSION")
_AGENT_BASE: Final = Option("agent-base-url", web_url, "", "where releases of the agent are, for the same", "URL")
_AGENT_URL: Final = Option("agent-url", web_url, "", "the agent's tarball itself, for the same", "URL")
_AGENT_SHA256: Final = Option(
    "agent-sha256", sha256_or_none, "", "digest of the agent's tarball; needed where it comes over plain http", "DIGEST"
)
_AGENT_KEY: Final = Option(
    "agent-public-key",
    public_key,
    "",
    "public key of releases of the agent: hosts run those that it signed alone",
    "KEY",
)
_AGENT_IMAGE: Final = Option("agent-image", image_or_none, "", "root file system of nodes, for the same", "IMAGE")
OPTIONS: Final = (
    _METRICS,
    _PROBES,
    _ELECTION,
    _ENDPOINT,
    _DNS,
    _AT_ONCE,
    _TIMEOUT,
    _MIRROR,
    _AGENT_VERSION,
    _AGENT_BASE,
    _AGENT_URL,
    _AGENT_SHA256,
    _AGENT_KEY,
    _AGENT_IMAGE,
)


def add_arguments(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    add_options(parser, PREFIX, OPTIONS)
    add_process_arguments(parser, environ)


HOST_OPTIONS: Final = (
    _DNS, _AT_ONCE, _TIMEOUT, _MIRROR, _AGENT_VERSION, _AGENT_BASE, _AGENT_URL, _AGENT_SHA256, _AGENT_KEY, _AGENT_IMAGE,
)  # fmt: skip


def add_host_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags for the hosts that are set up over SSH, for a process that has others of its own."""
    group = parser.add_argument_group("setting hosts up over SSH")
    for option in HOST_OPTIONS:
        default = f" (default: {option.default})" if option.default else ""
        group.add_argument(
            option.flag,
            dest=option.dest,
            type=flag(option.parse),
            default=option.parse(option.default),
            metavar=option.metavar,
            help=f"{option.help}{default}",
        )


def host_settings_of(args: argparse.Namespace) -> Settings:
    """What those flags say."""
    return Settings(
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


_OF_HOSTS: Final = (  # named as in Settings
    _DNS, _MIRROR, _AGENT_VERSION, _AGENT_BASE, _AGENT_URL, _AGENT_SHA256, _AGENT_KEY, _AGENT_IMAGE,
)  # fmt: skip


def file_of(settings: Settings) -> dict[str, str]:
    """What hosts are told by these settings, as keys and values of a file that says the same."""
    return {option.key: value for option in _OF_HOSTS if (value := getattr(settings, option.dest))}


def settings_of(args: argparse.Namespace, environ: Mapping[str, str]) -> tuple[ProcessSettings, Settings, list[str]]:
    """The settings, and the keys of the file that mean nothing to this version: files are older than it, or newer.

    Raises:
        SettingsError: the file cannot be read, or something in it or in the environment cannot be meant.
    """
    told = Told(args, PREFIX, environ, OPTIONS, lenient=True)
    process = ProcessSettings(
        component="machina",
        kubeconfig=args.kubeconfig,
        context=args.context,
        log_format=args.log_format,
        log_level=args.log_level,
        health=_addresses(told.of(_METRICS), told.of(_PROBES)),
        leader_election=told.of(_ELECTION),
    )
    settings = Settings(
        attempts_at_once=told.of(_AT_ONCE),
        provisioning_timeout_s=told.of(_TIMEOUT),
        agent_version=told.of(_AGENT_VERSION),
        agent_base_url=told.of(_AGENT_BASE),
        agent_url=told.of(_AGENT_URL),
        agent_sha256=told.of(_AGENT_SHA256),
        agent_public_key=told.of(_AGENT_KEY),
        agent_image=told.of(_AGENT_IMAGE),
        cluster_dns=told.of(_DNS),
        apiserver_endpoint=told.of(_ENDPOINT),
        artifact_mirror=told.of(_MIRROR),
    )
    return process, settings, told.without_meaning


def _addresses(*given: Address | None) -> tuple[Address, ...]:
    return tuple(one for one in given if one is not None)
