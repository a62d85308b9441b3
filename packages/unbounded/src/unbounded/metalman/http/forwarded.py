"""Client address of a request: the peer's, or the one that trusted proxies report."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
MOST_HOPS: Final = 32


def client_of(peer: str, said: Sequence[str], trusted: Sequence[Network]) -> str:
    """Return the client's address in its shortest form.

    Only a trusted proxy is believed, and only about the hop before it. The result is the first address from the right
    that is not itself a trusted proxy. A value that is not an address ends the search at the proxy that sent it, whose
    address belongs to no Machine.

    Args:
        peer: the other end of the connection.
        said: the values of X-Forwarded-For, in their order.
    """
    found = address(peer)
    if found is None:
        return peer
    if not trusted:
        return str(found)
    hops = [hop for value in said for hop in value.split(",")][-MOST_HOPS:]
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
