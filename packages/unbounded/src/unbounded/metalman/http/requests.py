"""Parsers of requests: their targets, the addresses of their clients, and the reports that a booted host posts.

A client's bytes select from a table; this module never makes a path of them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec.structs import replace

from unbounded.api.bounds import bounded
from unbounded.api.machine_status import DiskErasureRecord, ErasureState, is_ssh_key
from unbounded.metalman.http.boot_service import CloudInitEvent, HardwareReport, ProgressReport, RescueReport
from unbounded.metalman.tftp.protocol import normalized_name

BOOT: Final = "boot"
PREFIX: Final = re.compile(r"[A-Za-z0-9]{26,128}", re.ASCII)
ABSOLUTE: Final = re.compile(r"(?i:https?)://[^/?#]*", re.ASCII)
LONGEST: Final = 4096

R = TypeVar("R")


class HttpRoute(Enum):
    """Target of a request. All but files are POST requests under the prefix of a boot."""

    FILE = "a file"
    ATTEST = "attest"
    DISABLE = "pxe/disable"
    CLOUD_INIT = "cloudinit/log"
    PROGRESS = "progress"
    HARDWARE = "hardware"
    ERASURE = "erasure"
    RESCUE = "rescue"


POSTED: Final = {route.value: route for route in HttpRoute if route is not HttpRoute.FILE}


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """Parsed target; `path` is normalized (see `tftp.protocol.normalized_name`) and does not contain the prefix."""

    route: HttpRoute
    prefix: str | None
    path: str


def parse_target(target: str) -> HttpTarget | None:
    """Parse a request target; None for a target that cannot exist here.

    The query is ignored, and `%` is decoded once. The absolute form with `http://host` before the path is meant for
    proxies, but a server has to accept it, too (RFC 9112 3.2.2).
    """
    path = ABSOLUTE.sub("", target, count=1).partition("?")[0]
    if not path.startswith("/") or len(path) > LONGEST:
        return None
    try:
        name = normalized_name(unquote_to_bytes(path).decode())
    except UnicodeDecodeError:
        return None
    if name is None:
        return None
    first, _, rest = name.partition("/")
    prefix, _, below = rest.partition("/")
    if first != BOOT or PREFIX.fullmatch(prefix) is None:
        return HttpTarget(HttpRoute.FILE, None, name)
    return HttpTarget(POSTED.get(below, HttpRoute.FILE), prefix, below) if below else None


HOST_KEY: Final = re.compile(r"ssh-ed25519 AAAA[A-Za-z0-9+/]{20,100}={0,2}")
# the path becomes a word of a kernel's command line
DISK: Final = re.compile(r"/dev/disk/by-id/[A-Za-z0-9#+.:=@_-]{1,200}")


def cloud_init_event(body: bytes) -> CloudInitEvent | None:
    """Parse an event of cloud-init's webhook; None for other content, which the host cannot correct."""
    try:
        return msgspec.json.decode(body, type=CloudInitEvent, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _decoded(body: bytes, kind: type[R]) -> R:
    try:
        return msgspec.json.decode(body, type=kind)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def progress_report(body: bytes) -> ProgressReport:
    """Parse a report of the installer.

    Raises:
        ValueError: the content is not a report; the message names the wrong field.
    """
    report = _decoded(body, ProgressReport)
    if report.percent is not None and not 0 <= report.percent <= 100:
        raise ValueError("percent: must be between 0 and 100")
    if report.disk and not DISK.fullmatch(report.disk):
        raise ValueError("disk: must be a path below /dev/disk/by-id")
    return report


def hardware_report(body: bytes) -> HardwareReport:
    """Parse an installer's report of the hardware; texts and lists are cut to the limits of the API.

    Raises:
        ValueError: the content is not a report; the message names the wrong field.
    """
    report = _decoded(body, HardwareReport)
    if report.image_bytes < 0:
        raise ValueError("imageBytes: must not be negative")
    return replace(report, hardware=bounded(report.hardware, "hardware"))


REPORTED_STATES: Final = (ErasureState.ERASING, ErasureState.FAILED, ErasureState.ERASED)


def erasure_report(body: bytes) -> DiskErasureRecord:
    """Parse an installer's report of one disk's erasure; texts and lists are cut to the limits of the API.

    Raises:
        ValueError: the content is not a report; the message names the wrong field.
    """
    report = _decoded(body, DiskErasureRecord)
    if report.state not in REPORTED_STATES:
        raise ValueError(f"state: must be one of {', '.join(REPORTED_STATES)}")
    if report.percent is not None and not 0 <= report.percent <= 100:
        raise ValueError("percent: must be between 0 and 100")
    return bounded(report)


def rescue_report(body: bytes) -> RescueReport:
    """Parse a report of a rescue system.

    Raises:
        ValueError: the content is not a report; the message names the wrong field.
    """
    report = _decoded(body, RescueReport)
    if not HOST_KEY.fullmatch(report.host_key) or not is_ssh_key(report.host_key):
        raise ValueError("hostKey: must be a public key of type ssh-ed25519, without a comment")
    return report


Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
MOST_HOPS: Final = 32


def client_of(peer: str, forwarded: Sequence[str], trusted: Sequence[Network]) -> str:
    """Return the client's address in its shortest form.

    Only a trusted proxy is believed, and only about the hop before it. The result is the first address from the right
    that is not itself a trusted proxy. A value that is not an address ends the search at the proxy that sent it, whose
    address belongs to no Machine.

    Args:
        peer: the other end of the connection.
        forwarded: the values of X-Forwarded-For, in their order.
    """
    found = address(peer)
    if found is None:
        return peer
    if not trusted:
        return str(found)
    hops = [hop for value in forwarded for hop in value.split(",")][-MOST_HOPS:]
    while hops and any(found in network for network in trusted):
        earlier = address(hops.pop().strip())
        if earlier is None:
            break
        found = earlier
    return str(found)


def address(text: str) -> Address | None:
    """Parse an address with or without a port; an IPv4 address that is mapped into IPv6 becomes IPv4."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found
