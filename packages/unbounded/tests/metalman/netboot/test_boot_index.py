"""Machines by MAC, address and prefix, changed one at a time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metalman.support.all_reservations import index_reservations
from unbounded.api.machine_spec import DHCPLease
from unbounded.metalman.dhcp.model import WithheldReservation
from unbounded.metalman.netboot.boot_index import BootIndex, Reservation
from unbounded.metalman.netboot.boot_requests import KEY_BYTES, PrefixKey
from unbounded.metalman.netboot.model import BootRequest, BootWindow

KEY = PrefixKey(bytes(KEY_BYTES))
MACS = [f"52:54:00:00:00:{n:02X}" for n in range(10, 14)]
ADDRESSES = [f"10.0.0.{n}" for n in range(50, 54)]


def roll() -> BootIndex:
    return BootIndex(lambda wanted: KEY.prefix(wanted.uid, wanted.boot))


def lease(mac: str, address: str, mask: str = "255.255.255.0") -> DHCPLease:
    return DHCPLease(ipv4=address, mac=mac, subnet_mask=mask, gateway="10.0.0.1")


leases = st.lists(
    st.builds(lease, st.sampled_from(MACS), st.sampled_from(ADDRESSES), st.sampled_from(["255.255.255.0", "1.2.3.4"])),
    max_size=3,
).map(tuple)
changes = st.lists(st.tuples(st.sampled_from(["m1", "m2", "m3"]), leases), max_size=12)


@pytest.mark.slow
@given(changes)
def test_after_any_changes_it_says_what_a_register_of_all_says(steps: list[tuple[str, tuple[DHCPLease, ...]]]) -> None:
    made, there = roll(), dict[str, tuple[DHCPLease, ...]]()
    for name, have in steps:
        before = {each: made.findings(each) for each in ("m1", "m2", "m3")}
        there[name] = have
        changed = made.set_leases(name, have)
        assert changed == {each for each in before if made.findings(each) != before[each]}
    whole = index_reservations(there.items())
    for mac in map(str.lower, MACS):
        one, other = made.by_mac(mac), whole.by_mac.get(mac)
        assert type(one) is type(other)
        if isinstance(other, Reservation):
            assert one == other
    assert {finding for each in there for finding in made.findings(each)} == set(whole.findings)


@pytest.mark.slow
@given(changes)
def test_an_address_belongs_to_one_machine_or_to_none(steps: list[tuple[str, tuple[DHCPLease, ...]]]) -> None:
    made, there = roll(), dict[str, tuple[DHCPLease, ...]]()
    for name, have in steps:
        there[name] = have
        made.set_leases(name, have)
    for address in ADDRESSES:
        owners = {name for name, have in there.items() if any(each.ipv4 == address for each in have)}
        owner = made.by_address(address)
        assert owner is None or owners == {owner}


def test_duplicate_lease_is_withheld_until_one_machine_drops_it() -> None:
    made = roll()
    made.set_leases("m1", (lease(MACS[0], ADDRESSES[0]),))
    assert made.by_address(ADDRESSES[0]) == "m1"
    assert made.set_leases("m2", (lease(MACS[1], ADDRESSES[0]),)) == {"m1", "m2"}
    assert made.by_address(ADDRESSES[0]) is None
    assert isinstance(made.by_mac(MACS[0].lower()), WithheldReservation)
    assert "m2" in made.findings("m1")[0].text
    assert made.set_leases("m2", ()) == {"m1", "m2"}
    assert made.by_address(ADDRESSES[0]) == "m1"
    assert not made.findings("m1")


def test_a_prefix_finds_its_boot_and_nothing_else_does() -> None:
    made = roll()
    one = BootRequest("m1", "uid-1", "boot-1", BootWindow.INSTALLING)
    made.set_request("m1", one)
    prefix = made.prefix("m1")
    assert made.by_prefix(prefix) == one
    for wrong in ("", prefix[:-1], prefix + "a", prefix[:8], prefix[:-1] + "é", prefix.upper()):
        assert made.by_prefix(wrong) is None
    made.set_request("m1", BootRequest("m1", "uid-1", "boot-2", BootWindow.INSTALLING))
    assert made.by_prefix(prefix) is None
    made.set_request("m1", None)
    assert made.request_of("m1") is None
    assert not made.all_requests()


def test_url_prefix_is_stable_and_unique_per_boot_machine_and_key() -> None:
    there = {
        KEY.prefix("uid-1", "boot-1"),
        KEY.prefix("uid-1", "boot-2"),
        KEY.prefix("uid-2", "boot-1"),
        PrefixKey(b"x" * KEY_BYTES).prefix("uid-1", "boot-1"),
    }
    assert len(there) == 4
    assert all(len(prefix) == 32 and prefix.isalnum() and prefix == prefix.lower() for prefix in there)
    assert KEY.prefix("uid-1", "boot-1") == PrefixKey(bytes(KEY_BYTES)).prefix("uid-1", "boot-1")
    assert "0" * 8 not in repr(KEY)


@pytest.mark.slow
def test_one_change_among_ten_thousand_machines_costs_what_it_costs_among_ten() -> None:
    def filled(count: int) -> BootIndex:
        made = roll()
        for n in range(count):
            made.set_leases(f"m{n}", (lease(f"52:54:00:00:{n >> 8:02x}:{n & 255:02x}", f"10.1.{n >> 8}.{n & 255}"),))
        return made

    def seconds(made: BootIndex) -> float:
        best = 1.0
        for n in range(50):
            began = time.perf_counter()
            made.set_leases("extra", (lease(f"52:54:01:00:00:{n:02x}", f"10.2.0.{n + 1}"),))
            best = min(best, time.perf_counter() - began)
        return best

    assert seconds(filled(10_000)) < 10 * seconds(filled(10))
