"""Reservations from static leases of Machines.

If two Machines claim one MAC or address, the server answers neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unbounded.api.machine_spec import DHCPLease
from unbounded.metalman.dhcp.model import DhcpFinding, DhcpFindingKind, StaticLease, WithheldReservation


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
