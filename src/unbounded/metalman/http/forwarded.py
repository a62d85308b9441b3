"""Whose request it is: the address that it came from, or what trusted proxies say of it."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
MOST_HOPS: Final = 32


def client_of(peer: str, said: Sequence[str], trusted: Sequence[Network]) -> str:
    """The address of the client, in its shortest form.

    Only a trusted proxy is believed, and only of the hop before it: from the right, the first address that is no
    trusted proxy itself. What is not an address ends the search at the proxy that said it; that is nobody's Machine.

    Args:
        peer: where the connection comes from.
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
    """An address as sockets and proxies write it, perhaps with a port; one of IPv4 in IPv6 is the one of IPv4."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found
