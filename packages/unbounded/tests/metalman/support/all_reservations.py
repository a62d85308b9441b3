"""All reservations at once, from the leases of all Machines: the index, which changes one at a time, has to agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from unbounded.api.machine_spec import DHCPLease
from unbounded.metalman.dhcp.model import DhcpFinding, WithheldReservation
from unbounded.metalman.netboot.boot_index import Reservation, normalized_mac, reserve


@dataclass(frozen=True, slots=True)
class ReservationIndex:
    """Leases by MAC (lower case, with colons), and the problems of those that are withheld."""

    by_mac: Mapping[str, Reservation | WithheldReservation]
    findings: tuple[DhcpFinding, ...] = ()


def index_reservations(machines: Iterable[tuple[str, Iterable[DHCPLease]]]) -> ReservationIndex:
    """Index the `(name, leases)` of all Machines. If a Machine has several leases for one MAC, the first counts."""
    claims: list[tuple[str, str, DHCPLease]] = []
    by_mac: defaultdict[str, set[str]] = defaultdict(set)
    by_address: defaultdict[str, set[str]] = defaultdict(set)
    for machine, leases in machines:
        for lease in leases:
            mac = normalized_mac(lease.mac)
            claims.append((machine, mac, lease))
            by_mac[mac].add(machine)
            by_address[lease.ipv4].add(machine)
    register: dict[str, Reservation | WithheldReservation] = {}
    findings: dict[DhcpFinding, None] = {}
    for machine, mac, lease in claims:
        found, finding = reserve(machine, lease, by_mac[mac], by_address[lease.ipv4])
        if finding is not None:
            findings[finding] = None
        if mac not in register or machine != register[mac].machine:
            register[mac] = found
    return ReservationIndex(register, tuple(findings))
