"""Values of the flags of `metalman`: parsers that raise ValueError with the valid form."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from unbounded.api.names import PCRPolicy
from unbounded.fetch.failures import UnusableContent
from unbounded.fetch.reference import Reference
from unbounded.kube.options import (
    duration,
)
from unbounded.kube.settings import Address, parse_port
from unbounded.metalman.settings import (
    DhcpMode,
    Network,
)

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
