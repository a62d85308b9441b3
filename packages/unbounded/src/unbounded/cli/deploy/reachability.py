"""Reachability of the API server at the address that a host gets, as far as it shows from here."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from unbounded.api.core import CONFIG_MAPS
from unbounded.cli.deploy.live_machina import LiveMachina
from unbounded.cli.plugin.command import CommandSession
from unbounded.join.facts import CLUSTER_INFO, CLUSTER_INFO_NAMESPACE, endpoint_of
from unbounded.kube.errors import NotFound
from unbounded.kube.port import Api
from unbounded.kube.settings import endpoint_url


def is_local(endpoint: str) -> bool:
    """Return whether an address, as HOST:PORT or as a URL, means each machine itself."""
    host = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}").hostname or ""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")  # RFC 6761 section 6.3
    return address.is_loopback or address.is_unspecified


async def published_endpoint(api: Api, config: Mapping[str, Any]) -> str:
    """Return the URL of the API server that hosts get; empty where none is configured or published.

    Args:
        config: the file of machina.
    """
    try:
        if given := str(config.get("apiServerEndpoint") or ""):
            return endpoint_url(given)
        return endpoint_of(await api.get(CONFIG_MAPS, CLUSTER_INFO, namespace=CLUSTER_INFO_NAMESPACE)).url
    except (NotFound, ValueError):  # machina sets a condition on a Machine for an endpoint that is missing or wrong
        return ""


def warn_unreachable(session: CommandSession, url: str, live: LiveMachina, *, unless: str = "") -> None:
    """Warn where a host gets an address of the API server that it reaches only if that runs on the host.

    Args:
        unless: a reservation in the message, for settings that cannot be read from here.
    """
    if is_local(url):
        session.printer.warn(
            f"the host gets {url} as the API server's address, which works only on the API server's own "
            f"host{unless}: set another one with `{live.endpoint_command(session.invocation.program)}`"
        )


def is_own_address(host: str) -> bool:
    """Return whether a socket can be bound to an address, so that it is one of this machine. Names are not resolved."""
    try:
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except (ValueError, OSError):
        return False
    return True


def is_on_server_host(host: str, server: str, *, is_own: Callable[[str], bool] = is_own_address) -> bool:
    """Return whether a host is the machine that the API server runs on, judged by its address.

    Args:
        host: name or address, without a port.
        server: the API server's URL as used from here.
    """
    return is_local(f"[{host}]" if ":" in host else host) or (is_local(server) and is_own(host))
