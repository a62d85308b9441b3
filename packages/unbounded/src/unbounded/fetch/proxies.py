"""Selection of a URL's proxy. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from yarl import URL


@dataclass(frozen=True)
class Proxies:
    """Proxies by scheme, and hosts without one.

    Args:
        http, https: URLs of proxies; empty for none.
        direct: hosts; domains, with a leading dot for the names below them alone; addresses; networks; `*` for all.
            Each may end with a port.
    """

    http: str = ""
    https: str = ""
    direct: tuple[str, ...] = ()

    def of(self, url: URL) -> URL | None:
        """Return the proxy for a URL; None for a direct connection."""
        proxy = self.https if url.scheme == "https" else self.http
        if not proxy or any(_covers(one, url) for one in self.direct):
            return None
        return URL(proxy)


def _covers(entry: str, url: URL) -> bool:
    if entry == "*":
        return True
    host, entry = (url.host or "").lower(), entry.lower()
    network = _network(entry)
    if network is None and entry.rpartition(":")[2].isdecimal():
        entry, _, port = entry.rpartition(":")
        if port != str(url.port):
            return False
        network = _network(entry.strip("[]"))
    if network is not None:
        address = _network(host)
        return address is not None and address.version == network.version and address[0] in network
    return host.endswith(entry) if entry.startswith(".") else host == entry or host.endswith(f".{entry}")


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
