"""Index of all Machines by MAC, by address and by the prefix of their boot, changed one Machine at a time.

The cost of a change does not depend on the number of Machines, but on the number that claim the same MAC or address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from unbounded.api.machine_spec import DHCPLease
from unbounded.metalman.dhcp.model import DhcpFinding, WithheldReservation
from unbounded.metalman.dhcp.reservations import Reservation, normalized_mac, reserve
from unbounded.metalman.netboot.duplicate_host import HostIdentity
from unbounded.metalman.netboot.model import BootRequest
from unbounded.metalman.netboot.prefix import LOOKUP_LETTERS, is_same_prefix

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
