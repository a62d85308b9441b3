"""What metalman is told, as frozen data; `flags` reads it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from unbounded.kube.options import SettingsError
from unbounded.kube.settings import Election, lease_name

CONCURRENT: Final = 10
ATTEMPTS: Final = 3
POLL_S: Final = 5.0
HTTP_PORT: Final = 8880
DHCP_PORT: Final = 67
TFTP_PORT: Final = 69
EVERY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - the reference's default; an interface narrows it
CACHE: Final = "~/.unbounded/metalman/cache"
DOCKER_CONFIG: Final = "~/.docker/config.json"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class DhcpMode(Enum):
    """How DHCP is served."""

    AUTO = "auto"  # on an interface when one is named, else behind relays
    INTERFACE = "interface"
    RELAY = "relay"
    PROXY = "proxy"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class FlagNames:
    """What the user calls the settings, for messages that name what to change."""

    interface: str = "--dhcp-interface"
    auto_interface: str = "--dhcp-auto-interface"
    mode: str = "--dhcp-mode"
    bind_address: str = "--bind-address"
    serve_url: str = "--serve-url"
    http_port: str = "--http-port"
    tftp_port: str = "--tftp-port"
    dhcp_port: str = "--dhcp-port"
    cache_dir: str = "--cache-dir"
    cluster_dns: str = "--cluster-dns"
    ek_ca: str = "--ek-ca"
    docker_config: str = "--docker-config"


@dataclass(frozen=True, kw_only=True)
class Netboot:
    """The servers that machines boot from.

    Args:
        cache_dir: where images are kept; one process uses it at a time.
        bind_address: what HTTP, TFTP and DHCP behind relays listen on.
        interface: the one whose segment DHCP is served on; None for relays only.
        relays: where the addresses of the site's DHCP relays lie; empty: any relay is answered.
        auto_interface: take the interface that has the address which clients reach.
        serve_url: how clients reach HTTP; empty for one of this machine's own addresses.
        default_image, default_pull_secret: for Machines that name no netboot image; the Secret is (namespace, name).
        docker_config: logins for registries, tried after those of pull secrets; it need not exist.
        apiserver_url: what booted machines are told, in place of what the cluster publishes.
        ek_ca: PEM file with the roots of TPM manufacturers.
        challenge: a TPM has to answer a challenge before its key is pinned; without, it proves nothing by then.
        trusted_proxies: whose X-Forwarded-For counts.
    """

    cache_dir: Path = Path(CACHE).expanduser()  # noqa: RUF009 - a constant of the process
    bind_address: str = EVERY_ADDRESS
    http_port: int = HTTP_PORT
    tftp_port: int = TFTP_PORT
    dhcp_port: int = DHCP_PORT
    dhcp_mode: DhcpMode = DhcpMode.AUTO
    interface: str | None = None
    auto_interface: bool = False
    relays: tuple[ipaddress.IPv4Network, ...] = ()
    serve_url: str = ""
    default_image: str = ""
    default_pull_secret: tuple[str, str] | None = None
    docker_config: Path = Path(DOCKER_CONFIG).expanduser()  # noqa: RUF009
    apiserver_url: str = ""
    cluster_dns: str = ""
    ek_ca: Path | None = None
    challenge: bool = True
    trusted_proxies: tuple[Network, ...] = ()
    flags: FlagNames = FlagNames()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """
    Args:
        site: the site whose Machines are looked after; empty for Machines without one, None for all sites.
        concurrent: how many Machines of a site are worked on at once.
        attempts: how often one action on a host may be asked for.
        poll_s: the longest pause between two looks at a host that is worked on.
        netboot: what this process serves to booting machines; None for nothing.
        netboots: whether anybody serves them; without, no HostReplace is begun.
    """

    site: str | None = ""
    concurrent: int = CONCURRENT
    attempts: int = ATTEMPTS
    poll_s: float = POLL_S
    election: Election = field(default_factory=Election)
    netboot: Netboot | None = None
    netboots: bool = True

    @property
    def lease(self) -> str:
        """The Lease of those who look after the same site."""
        return lease_name("metalman", self.site or "")


def check_dhcp(found: Netboot) -> None:
    """Refuse what contradicts itself.

    Raises:
        SettingsError
    """
    flags, mode = found.flags, found.dhcp_mode
    given = flags.interface if found.interface is not None else flags.auto_interface if found.auto_interface else None
    if found.interface is not None and found.auto_interface:
        raise SettingsError(
            f"{flags.interface} and {flags.auto_interface} exclude each other: name the interface, or let it be found"
        )
    if mode in {DhcpMode.INTERFACE, DhcpMode.PROXY} and given is None:
        raise SettingsError(f"{flags.mode} {mode.value} needs {flags.interface} NAME or {flags.auto_interface}")
    if mode in {DhcpMode.RELAY, DhcpMode.NONE} and given is not None:
        raise SettingsError(f"{flags.mode} {mode.value} leaves no work for {given}: leave one of them out")
