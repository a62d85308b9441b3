"""Index of all Machines by MAC, by address and by the prefix of their boot, changed one Machine at a time.

The cost of a change does not depend on the number of Machines, but on the number that claim the same MAC or address.

The index answers the DHCP server: static leases always, boot files only for a requested boot whose image is on disk. If
two Machines claim one MAC or address, the server answers neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from unbounded.api.machine_spec import DHCPLease
from unbounded.metalman.dhcp import packet as opt
from unbounded.metalman.dhcp.model import (
    Arrival,
    DhcpClient,
    DhcpFinding,
    DhcpFindingKind,
    DhcpReply,
    OfferedBoot,
    StaticLease,
    WithheldReservation,
)
from unbounded.metalman.dhcp.packet import REQUEST_OP, Packet
from unbounded.metalman.netboot.boot_requests import LOOKUP_LETTERS, is_same_prefix
from unbounded.metalman.netboot.duplicate_host import HostIdentity
from unbounded.metalman.netboot.model import BootImages, BootRequest, BootWindow

NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MachineLeases:
    """Leases of a Machine as they are in its spec, and their problems."""

    leases: tuple[DHCPLease, ...]
    known: HostIdentity
    entries: dict[str, Reservation | WithheldReservation]  # by MAC
    findings: tuple[DhcpFinding, ...] = ()


class BootIndex:
    """Index of leases and requested boots.

    Args:
        prefix: returns the prefix of a boot.
    """

    def __init__(self, prefix: Callable[[BootRequest], str]) -> None:
        self._prefix = prefix
        self._machines: dict[str, MachineLeases] = {}
        self._of_mac: dict[str, set[str]] = {}
        self._of_address: dict[str, set[str]] = {}
        self._requests: dict[str, tuple[BootRequest, str]] = {}  # {machine: (boot, prefix)}
        self._by_prefix: dict[str, set[str]] = {}  # by its first letters

    # ---- queries

    def by_mac(self, mac: str) -> Reservation | WithheldReservation | None:
        """Return the lease of a MAC (lower case, with colons)."""
        machines = self._of_mac.get(mac)
        return None if not machines else self._machines[next(iter(machines))].entries[mac]

    def by_address(self, address: str) -> str | None:
        """Return the Machine that an address is leased to; None if two Machines claim it or its lease is invalid."""
        machines = self._of_address.get(address, ())
        if len(machines) != 1:
            return None
        (machine,) = machines
        entry = self._machines[machine]
        served = any(
            lease.ipv4 == address and isinstance(entry.entries[normalized_mac(lease.mac)], Reservation)
            for lease in entry.leases
        )
        return machine if served else None

    def by_prefix(self, prefix: str) -> BootRequest | None:
        """Return the boot that a prefix identifies."""
        for machine in self._by_prefix.get(prefix[:LOOKUP_LETTERS], ()):
            request, known = self._requests[machine]
            if is_same_prefix(prefix, known):
                return request
        return None

    def request_of(self, machine: str) -> BootRequest | None:
        """Return the requested boot of a Machine."""
        found = self._requests.get(machine)
        return None if found is None else found[0]

    def prefix(self, machine: str) -> str:
        """Return the prefix of a Machine's requested boot.

        Raises:
            KeyError: the Machine has no requested boot.
        """
        return self._requests[machine][1]

    def without_prefix(self, text: str, machine: str) -> str:
        """Remove the boot's prefix from a text for the public: hosts and templates quote URLs in their messages."""
        found = self._requests.get(machine)
        return text if found is None else text.replace(found[1], "…")

    def all_requests(self) -> tuple[BootRequest, ...]:
        return tuple(request for request, _prefix in self._requests.values())

    def identity_of(self, machine: str) -> HostIdentity:
        """Return the MACs and addresses in a Machine's leases."""
        entry = self._machines.get(machine)
        return HostIdentity(NONE, NONE) if entry is None else entry.known

    def findings(self, machine: str) -> tuple[DhcpFinding, ...]:
        """Return the problems of a Machine's leases."""
        entry = self._machines.get(machine)
        return () if entry is None else entry.findings

    # ---- changes

    def set_leases(self, machine: str, leases: tuple[DHCPLease, ...]) -> set[str]:
        """Replace the leases of a Machine, and return the Machines whose findings this changed."""
        old = self._machines.get(machine)
        if leases == (old.leases if old else ()):
            return set()
        touched = {machine} | self._claimants(old.known if old else None)
        if old is not None:
            self._remove(machine, old.known)
        if leases:
            known = HostIdentity(
                frozenset(each.ipv4 for each in leases), frozenset(normalized_mac(each.mac) for each in leases)
            )
            self._machines[machine] = MachineLeases(leases, known, {})
            for mac in known.macs:
                self._of_mac.setdefault(mac, set()).add(machine)
            for address in known.addresses:
                self._of_address.setdefault(address, set()).add(machine)
            touched |= self._claimants(known)
        before = {each: self.findings(each) for each in touched}
        if old is not None:
            before[machine] = old.findings
        for each in touched & self._machines.keys():
            self._machines[each] = self._validated(each, self._machines[each])
        return {each for each in touched if self.findings(each) != before[each]}

    def set_request(self, machine: str, request: BootRequest | None) -> None:
        """Set the requested boot of a Machine; None removes it."""
        old = self._requests.get(machine)
        if old is not None and request is not None and (old[0].uid, old[0].boot) == (request.uid, request.boot):
            self._requests[machine] = (request, old[1])
            return
        if old is not None:
            del self._requests[machine]
            _discard(self._by_prefix, old[1][:LOOKUP_LETTERS], machine)
        if request is not None:
            prefix = self._prefix(request)
            self._requests[machine] = (request, prefix)
            self._by_prefix.setdefault(prefix[:LOOKUP_LETTERS], set()).add(machine)

    def _validated(self, machine: str, entry: MachineLeases) -> MachineLeases:
        entries: dict[str, Reservation | WithheldReservation] = {}
        findings: dict[DhcpFinding, None] = {}
        for lease in entry.leases:
            mac = normalized_mac(lease.mac)
            found, finding = reserve(machine, lease, self._of_mac[mac], self._of_address[lease.ipv4])
            entries.setdefault(mac, found)  # if a Machine has several leases for one MAC, the first counts
            if finding is not None:
                findings[finding] = None
        return MachineLeases(entry.leases, entry.known, entries, tuple(findings))

    def _claimants(self, known: HostIdentity | None) -> set[str]:
        """Return the Machines that claim one of these MACs or addresses."""
        if known is None:
            return set()
        by_mac: Iterable[set[str]] = (self._of_mac.get(mac, set()) for mac in known.macs)
        by_address: Iterable[set[str]] = (self._of_address.get(address, set()) for address in known.addresses)
        return set().union(*by_mac, *by_address)

    def _remove(self, machine: str, known: HostIdentity) -> None:
        del self._machines[machine]
        for mac in known.macs:
            _discard(self._of_mac, mac, machine)
        for address in known.addresses:
            _discard(self._of_address, address, machine)


def _discard(index: dict[str, set[str]], key: str, machine: str) -> None:
    members = index[key]
    members.discard(machine)
    if not members:
        del index[key]


class DhcpBootObserver(Protocol):
    """Observer of boots that the DHCP server reports to."""

    def served(
        self, request: BootRequest
    ) -> BootImages | None: ...  # the images of a boot; None if they are not on disk

    def record_machine_id(
        self, request: BootRequest, machine_id: bytes
    ) -> None: ...  # option 97 of a packet from the boot's MAC

    def record_offer(self, request: BootRequest) -> None: ...  # the server sends a reply with a boot file


class NetbootReservations:
    """`ReservationSource` and `PacketObserver` of the DHCP server.

    Its URLs have no prefix: the whole segment can read option 67, and the HTTP server identifies a client that fetches
    the loader by its address. Only the rendered configuration of the loader contains the prefix.

    Args:
        server: the server's own address, as clients reach it; four octets.
        serve_url: URL of the HTTP server, as Machines reach it.
    """

    def __init__(self, index: BootIndex, boots: DhcpBootObserver, *, server: bytes, serve_url: str) -> None:
        self.server = server
        self._index = index
        self._boots = boots
        self._serve_url = serve_url

    def client(self, mac: str) -> DhcpClient | WithheldReservation | None:
        """Return the Machine with this MAC (lower case, with colons)."""
        entry = self._index.by_mac(mac)
        if entry is None or isinstance(entry, WithheldReservation):
            return entry
        return DhcpClient(entry.machine, entry.lease, self._boot(entry.machine))

    def packet_received(self, packet: Packet, arrival: Arrival) -> None:
        """Record the machine id of a packet before the server decides on the packet."""
        machine_id = packet.options.get(opt.MACHINE_ID)
        if machine_id is None or packet.op != REQUEST_OP or not arrival.is_from_own_network(packet):
            return
        request = self._of(packet)
        if request is not None:
            self._boots.record_machine_id(request, machine_id)

    def reply_sent(self, packet: Packet, reply: DhcpReply) -> None:
        """Record that the server sends a boot file."""
        if opt.BOOT_FILE in reply.packet.options:
            request = self._of(packet)
            if request is not None:
                self._boots.record_offer(request)

    def _of(self, packet: Packet) -> BootRequest | None:
        """Return the boot in window INSTALLING of the Machine with the packet's MAC."""
        entry = self._index.by_mac(packet.mac or "")
        request = (
            None if entry is None or isinstance(entry, WithheldReservation) else self._index.request_of(entry.machine)
        )
        return request if request is not None and request.window is BootWindow.INSTALLING else None

    def _boot(self, machine: str) -> OfferedBoot | None:
        request = self._index.request_of(machine)
        if request is None or request.window is not BootWindow.INSTALLING or request.by_media:
            return None
        served = self._boots.served(request)
        return None if served is None else OfferedBoot(served.loaders, self._serve_url)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Machine's lease that the server may hand out."""

    machine: str
    lease: StaticLease


def normalized_mac(mac: str) -> str:
    """Return a MAC in lower case, with colons."""
    return mac.lower().replace("-", ":")


def reserve(
    machine: str, lease: DHCPLease, of_mac: Iterable[str], of_address: Iterable[str]
) -> tuple[Reservation | WithheldReservation, DhcpFinding | None]:
    """Decide on one lease: served or withheld, with the problem if there is one.

    Args:
        of_mac: names of the Machines that have a lease for the same MAC.
        of_address: names of the Machines that have a lease for the same address.
    """
    for what, claimants in ((f"MAC {normalized_mac(lease.mac)}", of_mac), (f"address {lease.ipv4}", of_address)):
        others = sorted(set(claimants) - {machine})
        if others:
            why = f"{what} is also in a lease of {', '.join(others)}; metalman serves none of them"
            return WithheldReservation(machine, why), DhcpFinding(DhcpFindingKind.DUPLICATE_LEASE, machine, why)
    try:
        lease_of = StaticLease.of(lease.ipv4, lease.subnet_mask, lease.gateway or None, lease.dns)
    except ValueError as error:
        why = f"cannot serve the lease of {normalized_mac(lease.mac)}: {error}"
        return WithheldReservation(machine, why), DhcpFinding(DhcpFindingKind.INVALID_LEASE, machine, why)
    return Reservation(machine, lease_of), None
