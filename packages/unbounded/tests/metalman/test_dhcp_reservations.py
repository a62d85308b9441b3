"""Served and withheld static leases."""

from __future__ import annotations

from tests.metalman.support.all_reservations import index_reservations
from unbounded.api.machine_spec import DHCPLease
from unbounded.metalman.dhcp.model import DhcpFindingKind, WithheldReservation
from unbounded.metalman.netboot.boot_index import Reservation

MAC_1, MAC_2, MAC_3 = (f"52:54:00:00:00:0{n}" for n in (1, 2, 3))


def lease(mac: str, address: str, mask: str = "255.255.255.0", gateway: str = "10.0.0.1") -> DHCPLease:
    return DHCPLease(ipv4=address, mac=mac, subnet_mask=mask, gateway=gateway)


def test_a_mac_is_found_however_it_is_written() -> None:
    register = index_reservations(
        [("m1", [lease("52-54-00-AB-CD-EF", "10.0.0.5")]), ("m2", [lease(MAC_2, "10.0.0.6")])]
    )
    assert {mac: entry.machine for mac, entry in register.by_mac.items()} == {"52:54:00:ab:cd:ef": "m1", MAC_2: "m2"}
    assert not register.findings


def test_two_machines_with_one_mac_are_not_served_and_both_are_named() -> None:
    register = index_reservations([("m1", [lease(MAC_1, "10.0.0.5")]), ("m2", [lease(MAC_1.upper(), "10.0.0.6")])])
    assert isinstance(register.by_mac[MAC_1], WithheldReservation)
    assert {(one.machine, one.kind, one.text) for one in register.findings} == {
        ("m1", DhcpFindingKind.DUPLICATE_LEASE, f"MAC {MAC_1} is also in a lease of m2; metalman serves none of them"),
        ("m2", DhcpFindingKind.DUPLICATE_LEASE, f"MAC {MAC_1} is also in a lease of m1; metalman serves none of them"),
    }


def test_two_machines_with_one_address_are_not_served_and_the_rest_is() -> None:
    register = index_reservations(
        [
            ("m1", [lease(MAC_1, "10.0.0.5")]),
            ("m2", [lease(MAC_2, "10.0.0.5"), lease(MAC_3, "10.0.0.7")]),
        ]
    )
    served = {mac for mac, entry in register.by_mac.items() if isinstance(entry, Reservation)}
    assert served == {MAC_3}
    assert sorted(one.machine for one in register.findings) == ["m1", "m2"]


def test_machine_may_share_an_address_between_nics_and_first_lease_wins() -> None:
    leases = [lease(MAC_1, "10.0.0.5"), lease(MAC_2, "10.0.0.5"), lease(MAC_1, "10.0.0.6")]
    register = index_reservations([("m1", leases)])
    addresses = [entry.lease.address[3] for entry in register.by_mac.values() if isinstance(entry, Reservation)]
    assert addresses == [5, 5]


def test_a_lease_that_cannot_work_is_withheld_with_the_mistake() -> None:
    register = index_reservations([("m1", [lease(MAC_1, "10.0.0.5", mask="255.0.255.0")])])
    assert isinstance(register.by_mac[MAC_1], WithheldReservation)
    assert [(one.machine, one.kind) for one in register.findings] == [("m1", DhcpFindingKind.INVALID_LEASE)]
