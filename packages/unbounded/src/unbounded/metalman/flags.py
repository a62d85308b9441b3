"""Settings of `metalman` from flags, environment variables and a YAML file."""

from __future__ import annotations

import argparse
import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from unbounded.api.names import PCRPolicy
from unbounded.fetch.failures import UnusableContent
from unbounded.fetch.reference import Reference
from unbounded.kube.options import (
    ELECTION,
    Option,
    OptionValues,
    add_options,
    duration,
    election_settings,
    positive_int,
)
from unbounded.kube.settings import Address, ProcessSettings, add_process_arguments, parse_bool, parse_port
from unbounded.metalman.settings import (
    ATTEMPTS,
    CACHE,
    CONCURRENT,
    DHCP_PORT,
    DOCKER_CONFIG,
    EVERY_ADDRESS,
    HTTP_PORT,
    MEDIA_PORT,
    POWER_READS_PER_S,
    SERIAL_ADDRESS,
    TFTP_PORT,
    DhcpMode,
    FlagNames,
    MetalmanSettings,
    NetbootSettings,
    Network,
    check_dhcp,
    media_settings,
)

PREFIX: Final = "METALMAN"
LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
NAMESPACED_NAME: Final = re.compile(r"([a-z0-9]([-a-z0-9]*[a-z0-9])?)/([a-z0-9]([-a-z0-9.]*[a-z0-9])?)")
LONGEST_INTERFACE: Final = 15
MOST_READS_PER_S: Final = 1000.0
LEAST_TICKET_S: Final = 600.0
MOST_TICKET_S: Final = 86_400.0


def site(text: str) -> str:
    """Parse a label value; empty for Machines without the label."""
    if text and not LABEL_VALUE.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a valid label value: at most 63 letters, digits, '-', '_' and '.', beginning "
            "and ending with a letter or a digit"
        )
    return text


def ipv4(text: str) -> str:
    """Parse an IPv4 address; machines boot over IPv4."""
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise ValueError(f"{text!r} is not an IPv4 address, such as 192.0.2.1") from None


def interface(text: str) -> str | None:
    """Parse the name of a Linux interface; None for the empty text."""
    if len(text.encode()) > LONGEST_INTERFACE or "/" in text or any(one.isspace() for one in text):
        raise ValueError(f"{text!r} is not a valid interface name, such as eth0")
    return text or None


def web_url(text: str) -> str:
    """Parse an http or https URL without a query; return it without a slash at its end, and empty for none."""
    if not text:
        return ""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"{text!r} is not a URL: {error}") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ValueError(f"{text!r} is not a URL like http://192.0.2.1:8880")
    return text.rstrip("/")


def plain_url(text: str) -> str:
    """Parse a URL for boot loaders, which accept TLS only from servers with a known certificate."""
    url = web_url(text)
    if url.startswith("https:"):
        raise ValueError(f"{text!r}: boot loaders use plain http; write http://…")
    return url


def tls_url(text: str) -> str:
    """Parse a URL for BMCs, which fetch images by https only."""
    url = web_url(text)
    if url.startswith("http:"):
        raise ValueError(f"{text!r}: BMCs fetch boot images by https; write https://…")
    return url


def ticket_lifetime(text: str) -> float:
    """Parse a duration from ten minutes to a day."""
    seconds = duration(text)
    if not LEAST_TICKET_S <= seconds <= MOST_TICKET_S:
        raise ValueError(f"{text!r} is not from 10m to 24h")
    return seconds


def dhcp_mode(text: str) -> DhcpMode:
    try:
        return DhcpMode(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a mode: choose from {', '.join(one.value for one in DhcpMode)}") from None


def pcr_policy(text: str) -> PCRPolicy:
    try:
        return PCRPolicy(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a policy: choose from {', '.join(PCRPolicy)}") from None


def networks(text: str) -> tuple[Network, ...]:
    """Parse networks or addresses, separated by commas."""
    found = []
    for one in filter(None, (part.strip() for part in text.split(","))):
        try:
            found.append(ipaddress.ip_network(one))
        except ValueError as error:
            raise ValueError(f"{one!r} is not an address or network, such as 10.0.0.0/8: {error}") from None
    return tuple(found)


def ipv4_networks(text: str) -> tuple[ipaddress.IPv4Network, ...]:
    """Parse networks or addresses of IPv4, separated by commas."""
    found = networks(text)
    if wrong := [str(one) for one in found if one.version != 4]:
        raise ValueError(f"{wrong[0]} is not an IPv4 network: machines boot over IPv4")
    return tuple(one for one in found if one.version == 4)


def image(text: str) -> str:
    """Parse a reference to an OCI image; empty for none."""
    if text:
        try:
            Reference.parse(text)
        except UnusableContent as error:
            raise ValueError(f"{text!r} is not an image: {error}") from None
    return text


def namespaced_name(text: str) -> tuple[str, str] | None:
    """Parse NAMESPACE/NAME; None for the empty text."""
    if not text:
        return None
    if not NAMESPACED_NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a Secret: write NAMESPACE/NAME")
    namespace, _slash, name = text.partition("/")
    return namespace, name


def address_or_none(text: str) -> str:
    return ipv4(text) if text else ""


def path(text: str) -> Path:
    if not text:
        raise ValueError("expected a path")
    return Path(text).expanduser()


def file_or_none(text: str) -> Path | None:
    path = Path(text).expanduser()
    if text and not path.is_file():
        raise ValueError(f"{text!r} is not a file")
    return path if text else None


def rate(text: str) -> float:
    """Parse a number a second, from 0."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= MOST_READS_PER_S:
        raise ValueError(f"{text!r} is not a number from 0 to {MOST_READS_PER_S:g}")
    return found


def serial_address(text: str) -> Address | None:
    """Parse ADDRESS:PORT; None for the empty text."""
    if not text:
        return None
    host, _colon, port = text.rpartition(":")
    try:
        return Address(str(ipaddress.ip_address(host.strip("[]"))), parse_port(port))
    except ValueError:
        raise ValueError(f"{text!r} is not ADDRESS:PORT, such as 127.0.0.1:0 or [::1]:8884") from None


_SITE: Final = Option(
    "site",
    site,
    "",
    "Manage the Machines with this value of label unbounded-cloud.io/site (default: Machines without the label)",
    "SITE",
)
_CACHE: Final = Option("cache-dir", path, CACHE, "Store images in this directory, which no other process uses", "DIR")
_BIND: Final = Option("bind-address", ipv4, EVERY_ADDRESS, "Listen on this address for HTTP, TFTP and DHCP", "ADDRESS")
_HTTP_PORT: Final = Option(
    "http-port", parse_port, str(HTTP_PORT), "Serve HTTP to booting machines on this port", "PORT"
)
_TFTP_PORT: Final = Option(
    "tftp-port", parse_port, str(TFTP_PORT), "Serve TFTP on this port; firmware uses only 69", "PORT"
)
_DHCP_PORT: Final = Option(
    "dhcp-port", parse_port, str(DHCP_PORT), "Serve DHCP on this port; firmware uses only 67", "PORT"
)
_HEALTH_PORT: Final = Option(
    "health-port", parse_port, "8081", "Serve /metrics, /healthz and /readyz on this port", "PORT"
)
_HEALTH_BIND: Final = Option(
    "health-bind", str, "", "Serve metrics and health on this address (default: all addresses)", "ADDRESS"
)
_INTERFACE: Final = Option(
    "dhcp-interface", interface, "", "Serve DHCP on this interface (default: only to relays)", "NAME"
)
_AUTO: Final = Option(
    "dhcp-auto-interface", parse_bool, "false", "Serve DHCP on the interface with the address that machines reach"
)
_MODE: Final = Option(
    "dhcp-mode",
    dhcp_mode,
    "auto",
    "Set the DHCP mode: interface, relay, proxy (beside a DHCP server that assigns the addresses of "
    "spec.pxe.dhcpLeases) or none. auto selects interface where one is named, else relay",
    "MODE",
)
_RELAYS: Final = Option(
    "dhcp-relay",
    ipv4_networks,
    "",
    "Accept packets only from the DHCP relay with this address (giaddr). metalman ignores other "
    "relays; a packet from a second host may end a boot as contested. Repeatable",
    "CIDR",
    many=True,
)
_SERVE_URL: Final = Option(
    "serve-url",
    plain_url,
    "",
    "Set the URL at which machines reach HTTP here (default: http:// with the bind address, the "
    "address of the DHCP interface, or the address of the default route)",
    "URL",
)
_ELECT: Final = Option(
    "leader-elect",
    parse_bool,
    "true",
    "Run controllers and DHCP only while this process holds a Lease in namespace unbounded-kube",
)
_CONCURRENT: Final = Option(
    "operation-max-concurrent-machines",
    positive_int,
    str(CONCURRENT),
    "Limit the number of operations in progress at once",
    "N",
)
_ATTEMPTS: Final = Option(
    "operation-max-attempts", positive_int, str(ATTEMPTS), "Limit the attempts of one action on a host", "N"
)
_POLL: Final = Option(
    "operation-poll-interval",
    duration,
    "5s",
    "Limit the pause between two observations of a host whose BMC sends no events; the first one after an action is "
    "later where hosts of its model needed longer",
    "DURATION",
)
_POWER_READS: Final = Option(
    "power-reads-per-second",
    rate,
    f"{POWER_READS_PER_S:g}",
    "Limit the readings of idle hosts' power for status.power; 0 reads none. A BMC is read every 100 seconds, and less "
    "often at a site with more than 100 BMCs for each of these readings",
    "N",
)
_EVENTS: Final = Option("bmc-events", parse_bool, "true", "Follow the events of BMCs that offer them")
_SERIAL: Final = Option(
    "serial-console-address",
    serial_address,
    f"{SERIAL_ADDRESS.host}:{SERIAL_ADDRESS.port}",
    "Serve the serial consoles of BMCs to `kubectl unbounded machine serial` on this address; port 0 takes a free one, "
    "and an empty value serves none",
    "ADDRESS:PORT",
)
_KEEP_CONSOLE: Final = Option(
    "keep-console-output",
    parse_bool,
    "true",
    "Record the serial consoles of hosts that boot, where BMCs offer them, and keep the last 64 KiB of a boot that "
    "failed in a Secret, without the secrets that metalman recognizes",
)
_IMAGE: Final = Option(
    "default-netboot-image",
    image,
    "",
    "Use these netboot files for Machines that name none; their image then is a disk image",
    "IMAGE",
)
_PULL_SECRET: Final = Option(
    "default-netboot-pull-secret",
    namespaced_name,
    "",
    "Use these registry credentials for the default netboot image",
    "NAMESPACE/NAME",
)
_DOCKER: Final = Option(
    "docker-config", path, DOCKER_CONFIG, "Use the registry logins in this file after those of pull secrets", "FILE"
)
_APISERVER: Final = Option(
    "apiserver-url",
    web_url,
    "",
    "Give booted machines this URL of the API server (default: the one in kube-public/cluster-info)",
    "URL",
)
_DNS: Final = Option(
    "cluster-dns",
    address_or_none,
    "",
    "Give booted machines this DNS server if there is no Service kube-dns",
    "ADDRESS",
)
_EK_CA: Final = Option(
    "ek-ca", file_or_none, "", "Require a TPM certificate that chains to the roots in this PEM file", "FILE"
)
_CHALLENGE: Final = Option(
    "attest-require-challenge",
    parse_bool,
    "true",
    "Pin and serve a TPM only after it has answered a challenge of this server; false admits agents that cannot answer",
)
_PCRS: Final = Option(
    "pcr-policy",
    pcr_policy,
    PCRPolicy.RECORDED,
    "Set the consequence of a boot whose PCRs deviate from the first one's, for Machines without "
    "spec.pxe.attestation.pcrPolicy: Required (no token) or Recorded (a condition)",
    "POLICY",
)
_PROXIES: Final = Option(
    "trusted-proxy", networks, "", "Trust X-Forwarded-For from these addresses. Repeatable", "CIDR", many=True
)
_SCRIPTS: Final = Option(
    "allow-profile-scripts",
    parse_bool,
    "false",
    "Run the scripts of MachineProfiles, and commands in their modprobe.d files, on the hosts that are installed",
)
_MEDIA_CERTIFICATE: Final = Option(
    "media-certificate",
    file_or_none,
    "",
    "Serve boot images to BMCs by HTTPS with the certificate chain in this PEM file, for Machines with "
    "spec.pxe.bootMode VirtualMedia",
    "FILE",
)
_MEDIA_KEY: Final = Option(
    "media-key", file_or_none, "", "Use the private key in this PEM file for --media-certificate", "FILE"
)
_MEDIA_URL: Final = Option(
    "media-url",
    tls_url,
    "",
    "Set the URL at which BMCs reach the boot images; its host is in the certificate (default: https:// with the "
    "address at which machines reach HTTP)",
    "URL",
)
_MEDIA_PORT: Final = Option("media-port", parse_port, str(MEDIA_PORT), "Serve boot images on this port", "PORT")
_MEDIA_TICKET: Final = Option(
    "media-ticket-lifetime",
    ticket_lifetime,
    "1h",
    "Expire the URL of a boot image after this time, from 10m to 24h; it ends with its boot in any case",
    "DURATION",
)
MEDIA_OPTIONS: Final = (_MEDIA_URL, _MEDIA_PORT, _MEDIA_TICKET)
DEPLOYED_OPTIONS: Final = (
    _MODE,
    _HTTP_PORT,
    _TFTP_PORT,
    _DHCP_PORT,
    _DNS,
    _SCRIPTS,
    _KEEP_CONSOLE,
    *MEDIA_OPTIONS,
    _PCRS,
)  # passed on by `site deploy-pxe`
CONTROLLER_OPTIONS: Final = (
    _SITE, _CONCURRENT, _ATTEMPTS, _POLL, _POWER_READS, _EVENTS, _SERIAL, _KEEP_CONSOLE, _HEALTH_PORT,
    _HEALTH_BIND, _ELECT, *ELECTION,
)  # fmt: skip
OPTIONS: Final = (
    *CONTROLLER_OPTIONS, _CACHE, _BIND, _HTTP_PORT, _TFTP_PORT, _DHCP_PORT, _INTERFACE, _AUTO, _MODE, _RELAYS,
    _SERVE_URL, _APISERVER, _DNS, _IMAGE, _PULL_SECRET, _DOCKER, _EK_CA, _CHALLENGE, _PCRS, _SCRIPTS,
    _PROXIES, _MEDIA_CERTIFICATE, _MEDIA_KEY, *MEDIA_OPTIONS,
)  # fmt: skip


_NAMED: Final[Mapping[str, Option[Any]]] = {
    "interface": _INTERFACE,
    "auto_interface": _AUTO,
    "mode": _MODE,
    "bind_address": _BIND,
    "serve_url": _SERVE_URL,
    "http_port": _HTTP_PORT,
    "tftp_port": _TFTP_PORT,
    "dhcp_port": _DHCP_PORT,
    "cache_dir": _CACHE,
    "cluster_dns": _DNS,
    "ek_ca": _EK_CA,
    "docker_config": _DOCKER,
    "media_url": _MEDIA_URL,
    "media_port": _MEDIA_PORT,
    "media_certificate": _MEDIA_CERTIFICATE,
    "media_key": _MEDIA_KEY,
    "media_ticket_lifetime": _MEDIA_TICKET,
}


def add_arguments(parser: argparse.ArgumentParser, environ: Mapping[str, str], *, netboot: bool) -> None:
    """Add the options of `metalman serve-pxe`, or those of `metalman controller`, which does not serve booting
    machines.
    """
    add_options(parser, PREFIX, OPTIONS if netboot else CONTROLLER_OPTIONS)
    add_process_arguments(parser, environ)


def parse_settings(
    args: argparse.Namespace, environ: Mapping[str, str], *, netboot: bool
) -> tuple[MetalmanSettings, ProcessSettings]:
    """Combine flags, environment and file into settings.

    Raises:
        SettingsError: the file or a value is invalid.
    """
    values = OptionValues(args, PREFIX, environ, OPTIONS)
    settings = MetalmanSettings(
        site=values.value(_SITE),
        concurrent=values.value(_CONCURRENT),
        attempts=values.value(_ATTEMPTS),
        poll_s=values.value(_POLL),
        power_reads_per_s=values.value(_POWER_READS),
        events=values.value(_EVENTS),
        serial_consoles=values.value(_SERIAL),
        keeps_console_output=values.value(_KEEP_CONSOLE),
        election=election_settings(values),
        netboot=_netboot(values) if netboot else None,
        netboots=netboot,
    )
    process = ProcessSettings(
        component="metalman",
        kubeconfig=args.kubeconfig,
        context=args.context,
        log_format=args.log_format,
        log_level=args.log_level,
        health=(Address(values.value(_HEALTH_BIND), values.value(_HEALTH_PORT)),),
        leader_election=values.value(_ELECT),
    )
    return settings, process


def _netboot(values: OptionValues) -> NetbootSettings:
    flags = FlagNames(**{name: values.given(option) for name, option in _NAMED.items()})
    found = NetbootSettings(
        cache_dir=values.value(_CACHE),
        bind_address=values.value(_BIND),
        http_port=values.value(_HTTP_PORT),
        tftp_port=values.value(_TFTP_PORT),
        dhcp_port=values.value(_DHCP_PORT),
        dhcp_mode=values.value(_MODE),
        interface=values.value(_INTERFACE),
        auto_interface=values.value(_AUTO),
        relays=values.value(_RELAYS),
        serve_url=values.value(_SERVE_URL),
        default_image=values.value(_IMAGE),
        default_pull_secret=values.value(_PULL_SECRET),
        docker_config=values.value(_DOCKER),
        apiserver_url=values.value(_APISERVER),
        cluster_dns=values.value(_DNS),
        ek_ca=values.value(_EK_CA),
        challenge=values.value(_CHALLENGE),
        pcr_policy=values.value(_PCRS),
        allow_profile_scripts=values.value(_SCRIPTS),
        trusted_proxies=values.value(_PROXIES),
        media=media_settings(
            flags,
            values.value(_MEDIA_CERTIFICATE),
            values.value(_MEDIA_KEY),
            url=values.value(_MEDIA_URL),
            port=values.value(_MEDIA_PORT),
            lifetime_s=values.value(_MEDIA_TICKET),
        ),
        flags=flags,
    )
    check_dhcp(found)
    return found
