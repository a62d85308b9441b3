"""Kubernetes' IP and CIDR libraries."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address, ip_network
from typing import Final, TypeAlias

from unbounded_apiserver.cel.types import BOOL, CIDR, INT, IP, STRING, Overload, function, method
from unbounded_apiserver.cel.values import EvalError, register_opaque

Address: TypeAlias = IPv4Address | IPv6Address


class Prefix:
    """An address and the length of its network; bits beyond the length may be set."""

    __slots__ = ("address", "length")

    def __init__(self, address: Address, length: int) -> None:
        self.address = address
        self.length = length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Prefix) and (self.address, self.length) == (other.address, other.length)

    def __hash__(self) -> int:
        return hash((self.address, self.length))

    def __str__(self) -> str:
        return f"{self.address}/{self.length}"

    def masked(self) -> Prefix:
        network = ip_network(str(self), strict=False)
        return Prefix(network.network_address, self.length)

    def covers(self, address: Address) -> bool:
        if address.version != self.address.version:
            return False
        return (int(address) ^ int(self.address)) >> (address.max_prefixlen - self.length) == 0


for _type in (IPv4Address, IPv6Address):
    register_opaque(_type, IP)
register_opaque(Prefix, CIDR)


def _why_not_ipv4(text: str) -> str:
    """Return the error of Go's netip.ParseAddr."""
    parts = text.split(".")
    if not all(part.isascii() and part.isdigit() for part in parts if part):
        return "unexpected character"
    if any(not part for part in parts):
        return "IPv4 field must have at least one digit"
    if any(len(part) > 1 and part.startswith("0") for part in parts):
        return "IPv4 field has octet with leading zero"
    if any(int(part[:6]) > 255 for part in parts):
        return "IPv4 field has value >255"
    return "IPv4 address too short" if len(parts) < 4 else "IPv4 address too long"


def _parse_error(text: str) -> str:
    for char in text:
        if char == ".":
            return f'ParseAddr("{text}"): {_why_not_ipv4(text)}'
        if char == ":":
            return f'ParseAddr("{text}"): unexpected character'
        if char == "%":
            return f'ParseAddr("{text}"): missing IPv6 address'
    return f'ParseAddr("{text}"): unable to parse IP'


def parse_ip(text: str) -> Address | str:
    """Return the address, or the reason why Kubernetes rejects the text: no zone, no IPv4 in IPv6."""
    try:
        address = ip_address(text)
    except ValueError:
        return f'IP Address "{text}" parse error during conversion from string: {_parse_error(text)}'
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return f'IP address "{text}" with zone value is not allowed'
        if address.ipv4_mapped is not None:
            return f'IPv4-mapped IPv6 address "{text}" is not allowed'
    return address


def parse_cidr(text: str) -> Prefix | str:
    host, slash, length = text.rpartition("/")
    problem = f'network address parse error during conversion from string: netip.ParsePrefix("{text}"): '
    if not slash:
        return problem + "no '/'"
    address = parse_ip(host)
    if isinstance(address, str):
        return problem + _parse_error(host)
    if not (length.isascii() and length.isdigit()) or (len(length) > 1 and length.startswith("0")):
        return problem + f'bad bits after slash: "{length}"'
    if int(length[:6]) > address.max_prefixlen:
        return problem + "prefix length out of range"
    return Prefix(address, int(length))


def _ip(text: str) -> Address:
    address = parse_ip(text)
    if isinstance(address, str):
        raise EvalError(address)
    return address


def _cidr(text: str) -> Prefix:
    prefix = parse_cidr(text)
    if isinstance(prefix, str):
        raise EvalError(prefix)
    return prefix


def _is_canonical(text: str) -> bool:
    return str(_ip(text)) == text


def _is_link_local_multicast(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return address in IPv4Network("224.0.0.0/24")
    return address.packed[0] == 0xFF and address.packed[1] & 0x0F == 2


def _is_global_unicast(address: Address) -> bool:
    """Return whether an address is global unicast for Go: private ones are, broadcast and link-local ones are not."""
    if address == IPv4Address("255.255.255.255"):
        return False
    return not (address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local)


def _contains_prefix(outer: Prefix, inner: Prefix) -> bool:
    return outer.length <= inner.length and outer.covers(inner.address)


def _ip_library() -> Iterator[Overload]:
    yield function("ip", "string_to_ip", (STRING,), IP, _ip)
    yield function("isIP", "is_ip", (STRING,), BOOL, lambda text: not isinstance(parse_ip(text), str))
    yield function("ip.isCanonical", "ip_is_canonical", (STRING,), BOOL, _is_canonical)
    yield function("string", "ip_to_string", (IP,), STRING, str)
    yield method("family", "ip_family", (IP,), INT, lambda address: address.version)
    yield method("isUnspecified", "ip_is_unspecified", (IP,), BOOL, lambda address: address.is_unspecified)
    yield method("isLoopback", "ip_is_loopback", (IP,), BOOL, lambda address: address.is_loopback)
    yield method("isLinkLocalMulticast", "ip_is_link_local_multicast", (IP,), BOOL, _is_link_local_multicast)
    yield method("isLinkLocalUnicast", "ip_is_link_local_unicast", (IP,), BOOL, lambda address: address.is_link_local)
    yield method("isGlobalUnicast", "ip_is_global_unicast", (IP,), BOOL, _is_global_unicast)


def _cidr_library() -> Iterator[Overload]:
    yield function("cidr", "string_to_cidr", (STRING,), CIDR, _cidr)
    yield function("isCIDR", "is_cidr", (STRING,), BOOL, lambda text: not isinstance(parse_cidr(text), str))
    yield function("string", "cidr_to_string", (CIDR,), STRING, str)
    yield method("ip", "cidr_ip", (CIDR,), IP, lambda prefix: prefix.address)
    yield method("masked", "cidr_masked", (CIDR,), CIDR, lambda prefix: prefix.masked())
    yield method("prefixLength", "cidr_prefix_length", (CIDR,), INT, lambda prefix: prefix.length)
    yield method("containsIP", "cidr_contains_ip_ip", (CIDR, IP), BOOL, lambda prefix, address: prefix.covers(address))
    yield method(
        "containsIP", "cidr_contains_ip_string", (CIDR, STRING), BOOL, lambda prefix, text: prefix.covers(_ip(text))
    )
    yield method("containsCIDR", "cidr_contains_cidr", (CIDR, CIDR), BOOL, _contains_prefix)
    yield method(
        "containsCIDR",
        "cidr_contains_cidr_string",
        (CIDR, STRING),
        BOOL,
        lambda outer, text: _contains_prefix(outer, _cidr(text)),
    )


ADDRESSES: Final = (*_ip_library(), *_cidr_library())
