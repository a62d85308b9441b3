"""Reservations from the static leases of all Machines, by MAC.

If two Machines claim one MAC or address, the server answers neither.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from unbounded.api.machine import DHCPLease
from unbounded.metalman.dhcp.model import DhcpFinding, DhcpFindingKind, StaticLease, WithheldReservation


@dataclass(frozen=True, slots=True)
class Reservation:
    """Machine's lease that the server may hand out."""

    machine: str
    lease: StaticLease


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
