"""Settings of `metalman` from flags, environment variables and a YAML file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Final

from unbounded.api.names import PCRPolicy
from unbounded.join.host_options import MIRROR
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
from unbounded.metalman import flag_values, settings

PREFIX: Final = "METALMAN"


_SITE: Final = Option(
    "site",
    flag_values.site,
    "",
    "Manage the Machines with this value of label unbounded-cloud.io/site (default: Machines without the label)",
    "SITE",
)
_CACHE: Final = Option(
    "cache-dir", flag_values.path, settings.CACHE, "Store images in this directory, which no other process uses", "DIR"
)
_BIND: Final = Option(
    "bind-address",
    flag_values.ipv4,
    settings.EVERY_ADDRESS,
    "Listen on this address for HTTP, TFTP and DHCP",
    "ADDRESS",
)
_HTTP_PORT: Final = Option(
    "http-port", parse_port, str(settings.HTTP_PORT), "Serve HTTP to booting machines on this port", "PORT"
)
_TFTP_PORT: Final = Option(
    "tftp-port", parse_port, str(settings.TFTP_PORT), "Serve TFTP on this port; firmware uses only 69", "PORT"
)
_DHCP_PORT: Final = Option(
    "dhcp-port", parse_port, str(settings.DHCP_PORT), "Serve DHCP on this port; firmware uses only 67", "PORT"
)
_HEALTH_PORT: Final = Option(
    "health-port", parse_port, "8081", "Serve /metrics, /healthz and /readyz on this port", "PORT"
)
_HEALTH_BIND: Final = Option(
    "health-bind", str, "", "Serve metrics and health on this address (default: all addresses)", "ADDRESS"
)
_INTERFACE: Final = Option(
    "dhcp-interface", flag_values.interface, "", "Serve DHCP on this interface (default: only to relays)", "NAME"
)
_AUTO: Final = Option(
    "dhcp-auto-interface", parse_bool, "false", "Serve DHCP on the interface with the address that machines reach"
)
_MODE: Final = Option(
    "dhcp-mode",
    flag_values.dhcp_mode,
    "auto",
    "Set the DHCP mode: interface, relay, proxy (beside a DHCP server that assigns the addresses of "
    "spec.pxe.dhcpLeases) or none. auto selects interface where one is named, else relay",
    "MODE",
)
_RELAYS: Final = Option(
    "dhcp-relay",
    flag_values.ipv4_networks,
    "",
    "Accept packets only from the DHCP relay with this address (giaddr). metalman ignores other "
    "relays; a packet from a second host may end a boot as contested. Repeatable",
    "CIDR",
    many=True,
)
_SERVE_URL: Final = Option(
    "serve-url",
    flag_values.plain_url,
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
    str(settings.CONCURRENT),
    "Limit the number of operations in progress at once",
    "N",
)
_ATTEMPTS: Final = Option(
    "operation-max-attempts", positive_int, str(settings.ATTEMPTS), "Limit the attempts of one action on a host", "N"
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
    flag_values.rate,
    f"{settings.POWER_READS_PER_S:g}",
    "Limit the readings of idle hosts' power for status.power; 0 reads none. A BMC is read every 100 seconds, and less "
    "often at a site with more than 100 BMCs for each of these readings",
    "N",
)
_EVENTS: Final = Option("bmc-events", parse_bool, "true", "Follow the events of BMCs that offer them")
_SERIAL: Final = Option(
    "serial-console-address",
    flag_values.serial_address,
    f"{settings.SERIAL_ADDRESS.host}:{settings.SERIAL_ADDRESS.port}",
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
    flag_values.image,
    "",
    "Use these netboot files for Machines that name none; their image then is a disk image",
    "IMAGE",
)
_PULL_SECRET: Final = Option(
    "default-netboot-pull-secret",
    flag_values.namespaced_name,
    "",
    "Use these registry credentials for the default netboot image",
    "NAMESPACE/NAME",
)
_DOCKER: Final = Option(
    "docker-config",
    flag_values.path,
    settings.DOCKER_CONFIG,
    "Use the registry logins in this file after those of pull secrets",
    "FILE",
)
_APISERVER: Final = Option(
    "apiserver-url",
    flag_values.web_url,
    "",
    "Give booted machines this URL of the API server (default: the one in kube-public/cluster-info)",
    "URL",
)
_DNS: Final = Option(
    "cluster-dns",
    flag_values.address_or_none,
    "",
    "Give booted machines this DNS server if there is no Service kube-dns",
    "ADDRESS",
)
_EK_CA: Final = Option(
    "ek-ca", flag_values.file_or_none, "", "Require a TPM certificate that chains to the roots in this PEM file", "FILE"
)
_CHALLENGE: Final = Option(
    "attest-require-challenge",
    parse_bool,
    "true",
    "Pin and serve a TPM only after it has answered a challenge of this server; false admits agents that cannot answer",
)
_PCRS: Final = Option(
    "pcr-policy",
    flag_values.pcr_policy,
    PCRPolicy.RECORDED,
    "Set the consequence of a boot whose PCRs deviate from the first one's, for Machines without "
    "spec.pxe.attestation.pcrPolicy: Required (no token) or Recorded (a condition)",
    "POLICY",
)
_PROXIES: Final = Option(
    "trusted-proxy",
    flag_values.networks,
    "",
    "Trust X-Forwarded-For from these addresses. Repeatable",
    "CIDR",
    many=True,
)
_SCRIPTS: Final = Option(
    "allow-profile-scripts",
    parse_bool,
    "false",
    "Run the scripts of MachineProfiles, and commands in their modprobe.d files, on the hosts that are installed",
)
_MEDIA_CERTIFICATE: Final = Option(
    "media-certificate",
    flag_values.file_or_none,
    "",
    "Serve boot images to BMCs by HTTPS with the certificate chain in this PEM file, for Machines with "
    "spec.pxe.bootMode VirtualMedia",
    "FILE",
)
_MEDIA_KEY: Final = Option(
    "media-key", flag_values.file_or_none, "", "Use the private key in this PEM file for --media-certificate", "FILE"
)
_MEDIA_URL: Final = Option(
    "media-url",
    flag_values.tls_url,
    "",
    "Set the URL at which BMCs reach the boot images; its host is in the certificate (default: https:// with the "
    "address at which machines reach HTTP)",
    "URL",
)
_MEDIA_PORT: Final = Option(
    "media-port", parse_port, str(settings.MEDIA_PORT), "Serve boot images on this port", "PORT"
)
_MEDIA_TICKET: Final = Option(
    "media-ticket-lifetime",
    flag_values.ticket_lifetime,
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
    MIRROR,
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
    _SERVE_URL, _APISERVER, _DNS, MIRROR, _IMAGE, _PULL_SECRET, _DOCKER, _EK_CA, _CHALLENGE, _PCRS, _SCRIPTS,
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
) -> tuple[settings.MetalmanSettings, ProcessSettings]:
    """Combine flags, environment and file into settings.

    Raises:
        SettingsError: the file or a value is invalid.
    """
    values = OptionValues(args, PREFIX, environ, OPTIONS)
    found = settings.MetalmanSettings(
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
    return found, process


def _netboot(values: OptionValues) -> settings.NetbootSettings:
    flags = settings.FlagNames(**{name: values.given(option) for name, option in _NAMED.items()})
    found = settings.NetbootSettings(
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
        artifact_mirror=values.value(MIRROR),
        ek_ca=values.value(_EK_CA),
        challenge=values.value(_CHALLENGE),
        pcr_policy=values.value(_PCRS),
        allow_profile_scripts=values.value(_SCRIPTS),
        trusted_proxies=values.value(_PROXIES),
        media=settings.media_settings(
            flags,
            values.value(_MEDIA_CERTIFICATE),
            values.value(_MEDIA_KEY),
            url=values.value(_MEDIA_URL),
            port=values.value(_MEDIA_PORT),
            lifetime_s=values.value(_MEDIA_TICKET),
        ),
        flags=flags,
    )
    settings.check_dhcp(found)
    return found
