"""The addresses of a Subnet: those that hosts may get, those in use, and the next free one. Pure.

An entry of `status.allocatedIPs` is `ADDRESS:UID/INTERFACE`: the UID of the IpamHost that has the address, and the MAC
address (with dashes) or the name of the interface. One write of the list is the whole allocation.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from unbounded.api.container_cloud.network import MAX_ALLOCATED, Subnet, SubnetSpec, SubnetStatus

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
Span = tuple[int, int]  # the first and the last address, as numbers

OK: Final = "OK"
MAX_COUNT: Final = (1 << 63) - 1  # of a number in JSON that other clients read
_ENTRY: Final = re.compile(r"(?P<address>[0-9A-Fa-f.:]+):(?P<uid>[^:/]+)(?:/(?P<interface>.*))?")


class SubnetFault(Exception):
    """A Subnet whose spec gives no addresses; the text names the field."""


class SubnetFull(Exception):
    """A Subnet has no free address."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """One entry of `status.allocatedIPs`.

    Args:
        uid: UID of the IpamHost.
        interface: key of the interface, as `interface_key` returns it.
    """

    address: str
    uid: str
    interface: str = ""

    def __str__(self) -> str:
        return f"{self.address}:{self.uid}" + (f"/{self.interface}" if self.interface else "")


@lru_cache(maxsize=4 * MAX_ALLOCATED)  # lists are read again after each allocation, and hardly differ
def parse_allocation(text: str) -> Allocation | None:
    """Return the parts of an entry; None for a text of another form."""
    found = _ENTRY.fullmatch(text)
    if found is None:
        return None
    try:
        address = str(ipaddress.ip_address(found["address"]))
    except ValueError:
        return None
    return Allocation(address, found["uid"], found["interface"] or "")


def interface_key(name_or_mac: str) -> str:
    """Return the key of an interface in entries: a MAC address gets dashes, as a colon ends the address."""
    return name_or_mac.lower().replace(":", "-") if ":" in name_or_mac else name_or_mac


def allocations(subnet: Subnet) -> Iterator[Allocation]:
    """Yield the allocations of a Subnet."""
    for text in subnet.status.allocated_ips:
        if (one := parse_allocation(text)) is not None:
            yield one


def addresses_of(subnet: Subnet, uid: str) -> dict[str, str]:
    """Return the addresses of an IpamHost in a Subnet, by the keys of its interfaces."""
    return {one.interface: one.address for one in allocations(subnet) if one.uid == uid}


@dataclass(frozen=True)
class AddressPool:
    """The network of a Subnet, and the addresses that hosts may get."""

    network: IPNetwork
    gateway: IPAddress | None = None
    nameservers: tuple[IPAddress, ...] = ()
    spans: tuple[Span, ...] = field(default=())

    @classmethod
    def of(cls, spec: SubnetSpec) -> AddressPool:
        """Return the addresses of a Subnet.

        Raises:
            SubnetFault: a field of the spec is wrong.
        """
        network = _network(spec.cidr)
        gateway = None if spec.gateway is None else _address(spec.gateway, "gateway")
        if gateway is not None and gateway not in network:
            raise SubnetFault(f"spec.gateway: {gateway} is not in {network}")
        nameservers = tuple(_address(one, f"nameservers[{at}]") for at, one in enumerate(spec.nameservers))
        included = [_span(one, network, f"includeRanges[{at}]") for at, one in enumerate(spec.include_ranges)]
        excluded = [_span(one, network, f"excludeRanges[{at}]") for at, one in enumerate(spec.exclude_ranges)]
        first, last = int(network[0]), int(network[-1])
        if gateway is not None:
            excluded.append((int(gateway), int(gateway)))
        if not spec.use_whole_cidr:
            excluded += [(first, first), (last, last)]
        spans = tuple(_without(_merged(included or [(first, last)]), _merged(excluded)))
        if not spans:
            raise SubnetFault("spec: its ranges leave no address for hosts")
        return cls(network, gateway, nameservers, spans)

    @property
    def capacity(self) -> int:
        """Number of addresses that hosts may get."""
        return min(sum(last - first + 1 for first, last in self.spans), MAX_COUNT)

    @property
    def first(self) -> IPAddress:
        """First address that hosts may get."""
        return type(self.network[0])(self.spans[0][0])

    def __contains__(self, address: IPAddress) -> bool:
        number = int(address)
        return address.version == self.network.version and any(first <= number <= last for first, last in self.spans)

    def free(self, used: Collection[str]) -> Iterator[str]:
        """Yield the free addresses, the lowest first."""
        make = type(self.network[0])
        for first, last in self.spans:
            for number in range(first, last + 1):
                if (text := str(make(number))) not in used:
                    yield text

    def with_prefix(self, address: str) -> str:
        """Return an address of the network as an interface has it: 10.0.0.5/24."""
        return f"{address}/{self.network.prefixlen}"


def _network(text: str) -> IPNetwork:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise SubnetFault(f"spec.cidr: {error}") from error


def _address(text: str, place: str) -> IPAddress:
    try:
        return ipaddress.ip_address(text)
    except ValueError as error:
        raise SubnetFault(f"spec.{place}: {error}") from error


def _span(text: str, network: IPNetwork, place: str) -> Span:
    begin, _, end = text.partition("-")
    first = _address(begin, place)
    last = _address(end, place) if end else first
    for address in (first, last):
        if address not in network:
            raise SubnetFault(f"spec.{place}: {address} is not in {network}")
    if int(first) > int(last):
        raise SubnetFault(f"spec.{place}: {first} is above {last}")
    return int(first), int(last)


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Return the same addresses as ascending spans that do not touch."""
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def _without(spans: Sequence[Span], removed: Sequence[Span]) -> Iterator[Span]:
    """Yield the parts of ascending spans that no other ascending span has."""
    for first, last in spans:
        start = first
        for begin, end in removed:
            if end < start or begin > last:
                continue
            if begin > start:
                yield start, begin - 1
            start = end + 1
        if start <= last:
            yield start, last


def subnet_status(subnet: Subnet, entries: Sequence[str] | None = None) -> SubnetStatus:
    """Return the status of a Subnet.

    Args:
        entries: `allocatedIPs` to have; those of the Subnet if None.
    """
    kept = subnet.status.allocated_ips if entries is None else tuple(entries)
    try:
        pool = AddressPool.of(subnet.spec)
    except SubnetFault as fault:
        return SubnetStatus(allocated_ips=kept, state=f"ERR: {fault}")
    used = [ipaddress.ip_address(one.address) for one in map(parse_allocation, kept) if one is not None]
    inside = sum(address in pool for address in used)
    outside = [str(address) for address in used if address not in pool.network]
    state = f"ERR: spec.cidr: addresses in use are not in {pool.network}: {', '.join(outside[:8])}" if outside else OK
    capacity = pool.capacity
    return SubnetStatus(allocated_ips=kept, capacity=capacity, allocatable=max(capacity - inside, 0), state=state)


def allocate(subnet: Subnet, uid: str, interfaces: Sequence[str]) -> list[str]:
    """Return the `allocatedIPs` of a Subnet with one address for each of these interfaces of an IpamHost.

    An interface that has an address keeps it. A new address is the lowest free one.

    Raises:
        SubnetFault: the spec of the Subnet gives no addresses.
        SubnetFull: too few are free.
    """
    entries, known = list(subnet.status.allocated_ips), list(allocations(subnet))
    free = AddressPool.of(subnet.spec).free({one.address for one in known})
    present = {one.interface for one in known if one.uid == uid}
    for interface in interfaces:
        if interface in present:
            continue
        address = next(free, None)
        if address is None:
            raise SubnetFull("all addresses are in use")
        if len(entries) >= MAX_ALLOCATED:
            raise SubnetFull(f"{MAX_ALLOCATED} addresses are in use, the most that one Subnet has")
        entries.append(str(Allocation(address, uid, interface)))
    return entries


def allocate_all(subnet: Subnet, requests: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the `allocatedIPs` of a Subnet with addresses for several IpamHosts, as far as there are free ones.

    Args:
        requests: the interfaces that need an address, by the UID of the IpamHost.

    Raises:
        SubnetFault: the spec of the Subnet gives no addresses.
    """
    for uid, interfaces in requests.items():
        with suppress(SubnetFull):
            status = replace(subnet.status, allocated_ips=tuple(allocate(subnet, uid, interfaces)))
            subnet = replace(subnet, status=status)
    return list(subnet.status.allocated_ips)


def release(subnet: Subnet, uids: Collection[str]) -> list[str]:
    """Return the `allocatedIPs` of a Subnet without those of these IpamHosts."""
    parsed = ((text, parse_allocation(text)) for text in subnet.status.allocated_ips)
    return [text for text, one in parsed if one is None or one.uid not in uids]
