"""URLs of virtual media: each is for one insertion of one boot's image into one BMC, and ends by itself.

A BMC reads an image with many requests, and some read it again after a reset of the host: "once" is an insertion, and
not a request. The ticket in the URL authenticates the boot, the address of the BMC and the time at which it expires, so
that any replica can check it and none stores it. A boot that ends takes its tickets with it, as the server looks the
boot up for each request.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from unbounded.api.failures import Transient
from unbounded.kube.clock import WallClock, utc_now

IMAGE_NAME: Final = "boot.iso"  # some BMCs accept only names that end so
TAG_BYTES: Final = 20  # 160 bits, which are 32 letters without padding
PATH: Final = re.compile(
    r"/media/(?P<machine>[-a-z0-9.]{1,253})/(?P<expires>[0-9a-f]{1,12})\.(?P<tag>[a-z2-7]{32})/boot\.iso"
)


@dataclass(frozen=True, slots=True)
class MediaTicket:
    """Right of one BMC to read the image of one boot.

    Args:
        machine: name of the Machine; `uid` is the one that counts.
        boot: UID of the operation.
        address: of the BMC.
        expires: in seconds since 1970.
    """

    machine: str
    uid: str
    boot: str
    address: str
    expires: int


@dataclass(frozen=True, slots=True)
class PresentedTicket:
    """Ticket as it stands in the path of a request, not verified."""

    machine: str
    expires: int
    tag: str


class TicketKey:
    """Key that authenticates tickets; its `repr` hides it."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __repr__(self) -> str:
        return "TicketKey(…)"

    def path(self, ticket: MediaTicket) -> str:
        """Return the path of the image's URL, which is secret."""
        return f"/media/{ticket.machine}/{ticket.expires:x}.{self._tag(ticket)}/{IMAGE_NAME}"

    def permits(self, presented: PresentedTicket, *, uid: str, boot: str, client: str, now: float) -> bool:
        """Return whether a client may read the image of a boot now, in a time that does not depend on the equal part.

        Args:
            uid, boot: of the Machine that the ticket names, as they are now.
            client: address of the client.
            now: in seconds since 1970.
        """
        expected = MediaTicket(presented.machine, uid, boot, client, presented.expires)
        is_genuine = hmac.compare_digest(self._tag(expected), presented.tag)
        return is_genuine and now < presented.expires

    def _tag(self, ticket: MediaTicket) -> str:
        parts = (ticket.machine, ticket.uid, ticket.boot, plain_address(ticket.address), str(ticket.expires))
        digest = hmac.new(self._key, "\n".join(parts).encode(), hashlib.sha256).digest()
        return base64.b32encode(digest[:TAG_BYTES]).decode().lower()


class MediaUrls:
    """URLs of the images of a site.

    Args:
        base: URL of the server as BMCs reach it, without a slash at its end.
    """

    def __init__(self, base: str, lifetime: timedelta, now: WallClock = utc_now) -> None:
        self._base = base
        self._lifetime = lifetime
        self._now = now
        self._key: TicketKey | None = None

    @property
    def host(self) -> str:
        """Name or address of the server."""
        return urlsplit(self._base).hostname or ""

    def open(self, key: TicketKey) -> None:
        """Set the key, without which there are no URLs."""
        self._key = key

    def issue(self, machine: str, uid: str, boot: str, address: str) -> str:
        """Return a new URL for one boot of a Machine and the address of its BMC; it is secret.

        Raises:
            Transient: the key is not there yet.
        """
        if self._key is None:
            raise Transient("the key of boot URLs is not read yet")
        expires = int((self._now() + self._lifetime).timestamp())
        return f"{self._base}{self._key.path(MediaTicket(machine, uid, boot, address, expires))}"

    def permits(self, url: str, uid: str, boot: str, address: str) -> bool:
        """Return whether a BMC may read the image of a boot by this URL now."""
        presented = presented_ticket(urlsplit(url).path)
        if presented is None or self._key is None:
            return False
        return self._key.permits(presented, uid=uid, boot=boot, client=address, now=self._now().timestamp())


def machine_of(url: str) -> str | None:
    """Return the Machine that a URL of an image names; None if it is not one of an image of ours."""
    presented = presented_ticket(urlsplit(url).path)
    return None if presented is None else presented.machine


def presented_ticket(path: str) -> PresentedTicket | None:
    """Parse the path of a request; None if it is not that of an image."""
    found = PATH.fullmatch(path)
    return None if found is None else PresentedTicket(found["machine"], int(found["expires"], 16), found["tag"])


def plain_address(address: str) -> str:
    """Return an address in its shortest form; a socket for both families names IPv4 clients by IPv6 addresses.

    Raises:
        ValueError: not an address.
    """
    found = ipaddress.ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
