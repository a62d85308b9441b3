"""Settings of metalman, as frozen data; `flags` parses them."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from unbounded.api.names import PCRPolicy
from unbounded.kube.options import SettingsError
from unbounded.kube.settings import Address, Election, lease_name

CONCURRENT: Final = 10
ATTEMPTS: Final = 3
POLL_S: Final = 5.0
POWER_READS_PER_S: Final = 30.0
HTTP_PORT: Final = 8880
DHCP_PORT: Final = 67
TFTP_PORT: Final = 69
MEDIA_PORT: Final = 8443
TICKET_LIFETIME_S: Final = 3600.0
EVERY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - the reference's default; an interface narrows it
CACHE: Final = "~/.unbounded/metalman/cache"
SERIAL_ADDRESS: Final = Address("127.0.0.1", 0)
DOCKER_CONFIG: Final = "~/.docker/config.json"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class DhcpMode(Enum):
    """Mode of the DHCP server."""

    AUTO = "auto"  # on an interface if one is named, else behind relays
    INTERFACE = "interface"
    RELAY = "relay"
    PROXY = "proxy"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class FlagNames:
    """Names of the settings for the user, for messages that name the setting to change."""

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
    media_url: str = "--media-url"
    media_port: str = "--media-port"
    media_certificate: str = "--media-certificate"
    media_key: str = "--media-key"
    media_ticket_lifetime: str = "--media-ticket-lifetime"


@dataclass(frozen=True, kw_only=True)
class MediaSettings:
    """Server of virtual media.

    Args:
        certificate, key: files in PEM; BMCs check the certificate.
        url: of the server for BMCs; empty for one of this host's own addresses.
        lifetime_s: after which a URL that a BMC was given ends.
    """

    certificate: Path
    key: Path
    url: str = ""
    port: int = MEDIA_PORT
    lifetime_s: float = TICKET_LIFETIME_S


def _in_home(text: str) -> Path:
    """Return a path in the user's home; as it is for a user who has none, as in a container."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


@dataclass(frozen=True, kw_only=True)
class NetbootSettings:
    """Servers that machines boot from.

    Args:
        cache_dir: folder of images; one process uses it at a time.
        bind_address: listening address of HTTP, TFTP, and DHCP behind relays.
        interface: DHCP serves the segment of this interface; None for relays only.
        relays: networks of the site's DHCP relays; empty: any relay is answered.
        auto_interface: use the interface with the address that clients reach.
        serve_url: URL of HTTP for clients; empty for one of this host's own addresses.
        default_image, default_pull_secret: for Machines without a netboot image; the Secret is (namespace, name).
        docker_config: logins for registries, tried after those of pull secrets; the file is optional.
        apiserver_url: API server for booted machines, in place of the one that the cluster publishes.
        artifact_mirror: source of a node's artifacts for which a Machine sets no other; empty for none.
        ek_ca: PEM file with the roots of TPM manufacturers.
        challenge: a TPM has to answer a challenge before its key is pinned; without one, it has proven nothing by then.
        pcr_policy: consequence of a boot whose PCRs deviate, for Machines that name none.
        trusted_proxies: proxies whose X-Forwarded-For counts.
        allow_profile_scripts: commands of MachineProfiles may run on hosts.
        media: the server of virtual media; None for none.
    """

    cache_dir: Path = _in_home(CACHE)  # noqa: RUF009 - a constant of the process
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
    docker_config: Path = _in_home(DOCKER_CONFIG)  # noqa: RUF009
    apiserver_url: str = ""
    cluster_dns: str = ""
    artifact_mirror: str = ""
    ek_ca: Path | None = None
    challenge: bool = True
    pcr_policy: PCRPolicy = PCRPolicy.RECORDED
    trusted_proxies: tuple[Network, ...] = ()
    allow_profile_scripts: bool = False
    media: MediaSettings | None = None
    flags: FlagNames = FlagNames()


@dataclass(frozen=True, kw_only=True)
class MetalmanSettings:
    """Settings of the process.

    Args:
        site: the site to serve; empty for Machines without one, None for all sites.
        concurrent: limit on the Machines of a site with a running operation.
        attempts: limit on the attempts of one action on a host.
        poll_s: the longest pause between two observations of a host during an operation.
        power_reads_per_s: limit on the readings of idle hosts' power in a site; 0 reads none.
        events: follow the events of BMCs that offer them.
        serial_consoles: listening address of the server of serial consoles, on a free port if that is 0; None for none.
        keeps_console_output: record the consoles of hosts that boot, and keep the output of boots that fail.
        netboot: settings of the servers in this process; None for none.
        netboots: some process serves booting machines; without one, no HostReplace begins.
    """

    site: str | None = ""
    concurrent: int = CONCURRENT
    attempts: int = ATTEMPTS
    poll_s: float = POLL_S
    power_reads_per_s: float = POWER_READS_PER_S
    events: bool = True
    serial_consoles: Address | None = SERIAL_ADDRESS
    keeps_console_output: bool = True
    election: Election = field(default_factory=Election)
    netboot: NetbootSettings | None = None
    netboots: bool = True

    @property
    def lease(self) -> str:
        """Name of the Lease that all processes of the same site share."""
        return lease_name("metalman", self.site or "")


def media_settings(
    flags: FlagNames,
    certificate: Path | None,
    key: Path | None,
    *,
    url: str,
    port: int | None = None,
    lifetime_s: float = TICKET_LIFETIME_S,
) -> MediaSettings | None:
    """Return the settings of virtual media; None if nothing is given.

    Raises:
        SettingsError: the certificate or its key is missing.
    """
    if certificate is None and key is None:
        for flag, is_given in (
            (flags.media_url, bool(url)),
            (flags.media_port, port not in (None, MEDIA_PORT)),
            (flags.media_ticket_lifetime, lifetime_s != TICKET_LIFETIME_S),
        ):
            if is_given:
                raise SettingsError(f"{flag} needs {flags.media_certificate} FILE and {flags.media_key} FILE")
        return None
    if certificate is None or key is None:
        given, missing = flags.media_certificate, flags.media_key
        given, missing = (missing, given) if certificate is None else (given, missing)
        raise SettingsError(f"{given} needs {missing} FILE")
    return MediaSettings(
        certificate=certificate,
        key=key,
        url=url,
        port=MEDIA_PORT if port is None else port,
        lifetime_s=lifetime_s,
    )


def check_dhcp(found: NetbootSettings) -> None:
    """Check the settings of DHCP for contradictions.

    Raises:
        SettingsError: two settings exclude each other.
    """
    flags, mode = found.flags, found.dhcp_mode
    given = flags.interface if found.interface is not None else flags.auto_interface if found.auto_interface else None
    if found.interface is not None and found.auto_interface:
        raise SettingsError(
            f"{flags.interface} and {flags.auto_interface} exclude each other: name the interface, or let "
            "metalman find it"
        )
    if mode in {DhcpMode.INTERFACE, DhcpMode.PROXY} and given is None:
        raise SettingsError(f"{flags.mode} {mode.value} needs {flags.interface} NAME or {flags.auto_interface}")
    if mode in {DhcpMode.RELAY, DhcpMode.NONE} and given is not None:
        raise SettingsError(f"{flags.mode} {mode.value} excludes {given}: omit one of them")
