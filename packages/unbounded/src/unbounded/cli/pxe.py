"""Network boot in `unbounded up`: its flags, and its lines on the screen."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from unbounded.api.names import PCRPolicy
from unbounded.api.profile_check import SCRIPT_FLAG
from unbounded.cli.deploy.host_addresses import is_local
from unbounded.kube.options import SettingsError
from unbounded.kube.settings import flag_parser, parse_port
from unbounded.metalman import settings
from unbounded.metalman.flag_values import file_or_none, interface, ipv4, plain_url, tls_url

FLAGS: Final = settings.FlagNames(
    interface="--pxe-interface",
    auto_interface="--pxe-interface",
    mode="--pxe-dhcp-mode",
    bind_address="--pxe-interface",
    serve_url="--pxe-serve-url",
    http_port="--pxe-http-port",
    tftp_port="--pxe-tftp-port",
    dhcp_port="--pxe-dhcp-port",
    cache_dir="--data",
    cluster_dns="--pxe-cluster-dns",
    ek_ca="--pxe-ek-ca",
    docker_config="logins of this machine",
    media_url="--pxe-media-url",
    media_port="--pxe-media-port",
    media_certificate="--pxe-media-certificate",
    media_key="--pxe-media-key",
)
CACHE: Final = Path("metalman") / "cache"
MODES: Final = (settings.DhcpMode.INTERFACE.value, settings.DhcpMode.PROXY.value, settings.DhcpMode.NONE.value)


def add_pxe_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "network boots",
        "With --pxe-interface, this process serves addresses, loaders and images to machines on that segment.",
    )
    group.add_argument(
        "--pxe-interface",
        type=flag_parser(interface),
        metavar="NAME",
        help="Serve DHCP, TFTP and HTTP on this interface",
    )
    group.add_argument(
        "--pxe-serve-url",
        type=flag_parser(plain_url),
        metavar="URL",
        help="Set the URL at which machines reach HTTP here (default: http:// with the interface's address)",
    )
    group.add_argument(
        "--pxe-dhcp-mode",
        choices=MODES,
        help="Set the DHCP mode. proxy: another DHCP server on the segment assigns the addresses of "
        "spec.pxe.dhcpLeases. none: no DHCP, for machines that boot by virtual media (default: interface)",
    )
    for name, default in (("http", settings.HTTP_PORT), ("tftp", settings.TFTP_PORT), ("dhcp", settings.DHCP_PORT)):
        group.add_argument(
            f"--pxe-{name}-port", type=flag_parser(parse_port), metavar="PORT", help=f"(default: {default})"
        )
    group.add_argument(
        "--pxe-cluster-dns", type=flag_parser(ipv4), metavar="ADDRESS", help="Give new nodes this DNS server"
    )
    group.add_argument(
        "--pxe-ek-ca",
        type=flag_parser(file_or_none),
        metavar="FILE",
        help="Require a TPM certificate that chains to the roots in this PEM file",
    )
    _add_media_arguments(group)
    group.add_argument(
        "--pxe-pcr-policy",
        choices=tuple(map(str, PCRPolicy)),
        help="Set the consequence of a boot whose PCRs deviate from the first one's: Required (no token) or Recorded "
        "(a condition, default)",
    )
    group.add_argument(
        SCRIPT_FLAG,
        dest="pxe_scripts",
        action="store_const",
        const=True,
        help="Run the scripts of MachineProfiles, and the commands in their modprobe.d files, on installed hosts",
    )


def _add_media_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the flags about boot images that BMCs mount as virtual media."""
    group.add_argument(
        "--pxe-media-certificate",
        type=flag_parser(file_or_none),
        metavar="FILE",
        help="Serve boot images to BMCs by HTTPS with the certificate chain in this PEM file",
    )
    group.add_argument(
        "--pxe-media-key",
        type=flag_parser(file_or_none),
        metavar="FILE",
        help="Use the private key in this PEM file for --pxe-media-certificate",
    )
    group.add_argument(
        "--pxe-media-url",
        type=flag_parser(tls_url),
        metavar="URL",
        help="Set the URL at which BMCs reach the boot images (default: https:// with the interface's address)",
    )
    group.add_argument(
        "--pxe-media-port", type=flag_parser(parse_port), metavar="PORT", help=f"(default: {settings.MEDIA_PORT})"
    )


def netboot_of(args: argparse.Namespace) -> settings.NetbootSettings | None:
    """Return the settings of network boot; None without --pxe-interface.

    Raises:
        SettingsError: another option of network boot was given without it, or the certificate without its key.
    """
    given = {name: value for name, value in vars(args).items() if name.startswith("pxe_") and value is not None}
    desired = given.pop("pxe_interface", None)
    if desired is None:
        for name in given:
            flag = SCRIPT_FLAG if name == "pxe_scripts" else f"--{name.replace('_', '-')}"
            raise SettingsError(f"{flag} needs --pxe-interface NAME")
        return None
    return settings.NetbootSettings(
        cache_dir=args.data / CACHE,
        interface=desired,
        dhcp_mode=settings.DhcpMode(given.get("pxe_dhcp_mode", MODES[0])),
        serve_url=given.get("pxe_serve_url", ""),
        http_port=given.get("pxe_http_port", settings.HTTP_PORT),
        tftp_port=given.get("pxe_tftp_port", settings.TFTP_PORT),
        dhcp_port=given.get("pxe_dhcp_port", settings.DHCP_PORT),
        cluster_dns=given.get("pxe_cluster_dns", ""),
        artifact_mirror=args.artifact_mirror,
        ek_ca=given.get("pxe_ek_ca"),
        pcr_policy=PCRPolicy(given.get("pxe_pcr_policy", PCRPolicy.RECORDED)),
        allow_profile_scripts=given.get("pxe_scripts", False),
        media=settings.media_settings(
            FLAGS,
            given.get("pxe_media_certificate"),
            given.get("pxe_media_key"),
            url=given.get("pxe_media_url", ""),
            port=given.get("pxe_media_port"),
        ),
        flags=FLAGS,
    )


def deploy_flags(desired: settings.NetbootSettings) -> dict[str, str]:
    """Return the same settings as flags of `site deploy-pxe`, without dashes and without this machine's address."""
    values = {
        "interface": "" if desired.dhcp_mode is settings.DhcpMode.NONE else desired.interface or "",
        "dhcp-mode": "" if desired.dhcp_mode is settings.DhcpMode.INTERFACE else desired.dhcp_mode.value,
        "http-port": "" if desired.http_port == settings.HTTP_PORT else str(desired.http_port),
        "tftp-port": "" if desired.tftp_port == settings.TFTP_PORT else str(desired.tftp_port),
        "dhcp-port": "" if desired.dhcp_port == settings.DHCP_PORT else str(desired.dhcp_port),
        "cluster-dns": desired.cluster_dns,
        "artifact-mirror": desired.artifact_mirror,
        "ek-ca": "" if desired.ek_ca is None else str(desired.ek_ca.absolute()),
        "pcr-policy": "" if desired.pcr_policy is PCRPolicy.RECORDED else desired.pcr_policy.value,
        SCRIPT_FLAG.removeprefix("--"): "true" if desired.allow_profile_scripts else "",
    }
    return {name: value for name, value in values.items() if value}


def on_address(desired: settings.NetbootSettings, address: str) -> settings.NetbootSettings:
    """Listen on the interface's address alone: no booting machine uses the others."""
    return replace(desired, bind_address=address)


def screen_line(desired: settings.NetbootSettings, serve_url: str) -> str:
    """Return the line for the screen."""
    beside = ", beside another DHCP server" if desired.dhcp_mode is settings.DhcpMode.PROXY else ""
    served = "TFTP" if desired.dhcp_mode is settings.DhcpMode.NONE else "TFTP and DHCP"
    media = "" if desired.media is None else ", boot images for BMCs"
    return f"  netboot     {serve_url}, {served} on {desired.interface}{beside}{media}"


def unreachable_warning(api_url: str, address: str) -> str:
    """Return a warning if booting machines cannot reach the API server at its URL; else an empty string."""
    if not is_local(api_url):
        return ""
    return (
        "warning: machines with spec.kubernetes cannot join, as they do not reach "
        f"{urlsplit(api_url).hostname}; use --bind 0.0.0.0 --advertise-address {address}"
    )
