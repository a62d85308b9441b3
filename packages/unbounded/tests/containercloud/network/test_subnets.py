"""Addresses of a Subnet: only usable ones are given, each once, and they come back."""

from __future__ import annotations

import ipaddress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.containercloud.network.support import subnet
from unbounded.api.container_cloud.network import MAX_ALLOCATED, SubnetSpec
from unbounded.containercloud.network.subnets import (
    AddressPool,
    Allocation,
    SubnetFault,
    SubnetFull,
    allocate,
    allocate_all,
    parse_allocation,
    release,
    subnet_status,
)


def pool(**spec: Any) -> AddressPool:
    return AddressPool.of(msgspec.convert(spec, SubnetSpec))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"cidr": "10.0.0.0/29"}, "1 2 3 4 5 6"),
        ({"cidr": "10.0.0.0/29", "gateway": "10.0.0.1"}, "2 3 4 5 6"),
        ({"cidr": "10.0.0.0/29", "useWholeCidr": True}, "0 1 2 3 4 5 6 7"),
        ({"cidr": "10.0.0.0/29", "includeRanges": ["10.0.0.5-10.0.0.7", "10.0.0.2"]}, "2 5 6"),
        ({"cidr": "10.0.0.0/29", "includeRanges": ["10.0.0.2-10.0.0.4", "10.0.0.3-10.0.0.5"]}, "2 3 4 5"),
        ({"cidr": "10.0.0.0/29", "excludeRanges": ["10.0.0.2-10.0.0.3", "10.0.0.6"]}, "1 4 5"),
        ({"cidr": "10.0.0.5/32", "useWholeCidr": True}, "5"),
    ],
)
def test_hosts_get_only_addresses_of_the_ranges(spec: dict[str, Any], expected: str) -> None:
    found = pool(**spec)
    assert list(found.free(())) == [f"10.0.0.{number}" for number in expected.split()]
    assert found.capacity == len(expected.split())


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"cidr": "10.0.0.5/24"}, "spec.cidr: 10.0.0.5/24 has host bits set"),
        ({"cidr": "lcm"}, "spec.cidr: 'lcm' does not appear to be"),
        ({"cidr": "10.0.0.0/24", "gateway": "10.0.1.1"}, "spec.gateway: 10.0.1.1 is not in 10.0.0.0/24"),
        ({"cidr": "10.0.0.0/24", "nameservers": ["8.8.8"]}, r"spec.nameservers\[0\]: '8.8.8' does not"),
        ({"cidr": "10.0.0.0/24", "includeRanges": ["10.0.1.0-10.0.1.9"]}, r"spec.includeRanges\[0\]: 10.0.1.0 is not"),
        (
            {"cidr": "10.0.0.0/24", "excludeRanges": ["10.0.0.9-10.0.0.2"]},
            r"spec.excludeRanges\[0\]: 10.0.0.9 is above",
        ),
        ({"cidr": "10.0.0.4/31"}, "spec: its ranges leave no address"),
        ({"cidr": "10.0.0.0/30", "excludeRanges": ["10.0.0.1-10.0.0.2"]}, "spec: its ranges leave no address"),
    ],
)
def test_a_wrong_subnet_names_its_field(spec: dict[str, Any], fault: str) -> None:
    with pytest.raises(SubnetFault, match=fault):
        pool(**spec)
    assert (subnet_status(subnet(**spec)).state or "").startswith("ERR: spec")


def test_an_address_is_given_once_and_stays() -> None:
    entries = allocate(subnet(), "u-1", ["k8s-lcm"])
    assert entries == ["10.0.0.100:u-1/k8s-lcm"]
    entries = allocate(subnet("lcm", *entries), "u-2", ["52-54-00-00-00-01", "k8s-lcm"])
    assert entries[1:] == ["10.0.0.101:u-2/52-54-00-00-00-01", "10.0.0.102:u-2/k8s-lcm"]
    assert allocate(subnet("lcm", *entries), "u-1", ["k8s-lcm"]) == entries
    kept = release(subnet("lcm", *entries), {"u-2"})
    assert kept == entries[:1]
    assert allocate(subnet("lcm", *kept), "u-3", ["k8s-lcm"])[1:] == ["10.0.0.101:u-3/k8s-lcm"]


def test_a_full_subnet_gives_none() -> None:
    full = allocate(subnet(), "u-1", ["a", "b", "c", "d"])
    with pytest.raises(SubnetFull, match="all addresses are in use"):
        allocate(subnet("lcm", *full), "u-2", ["a"])
    assert allocate(subnet("lcm", *full), "u-1", ["d"]) == full
    many = [f"10.1.{number // 256}.{number % 256}:u/{number}" for number in range(MAX_ALLOCATED)]
    with pytest.raises(SubnetFull, match="4096 addresses are in use"):
        allocate(subnet("lcm", *many), "u-2", ["a"])


def test_hosts_that_ask_together_get_what_is_free() -> None:
    entries = allocate_all(subnet(), {"u-1": ["a", "b"], "u-2": ["a", "b", "c"], "u-3": ["a"]})
    assert [entry.partition(":")[2] for entry in entries] == ["u-1/a", "u-1/b", "u-3/a"]
    assert len({entry.partition(":")[0] for entry in entries}) == 3


def test_status_counts_free_addresses_and_names_strays() -> None:
    status = subnet_status(subnet("lcm", "10.0.0.100:u-1/a", "10.0.0.200:u-1/b"))
    assert (status.capacity, status.allocatable, status.state) == (4, 3, "OK")
    moved = subnet_status(subnet("lcm", "10.9.9.9:u-1/a"))
    assert moved.state == "ERR: spec.cidr: addresses in use are not in 10.0.0.0/24: 10.9.9.9"
    large = subnet_status(subnet(cidr="fd00::/32", includeRanges=[], gateway="fd00::1"))
    assert (large.capacity, large.allocatable) == ((1 << 63) - 1, (1 << 63) - 1)


@pytest.mark.parametrize("text", ["10.0.0.5:u-1/k8s-lcm", "10.0.0.5:u-1", "fd00::5:ab12-cd/52-54-00-00-00-01"])
def test_an_entry_reads_as_it_was_written(text: str) -> None:
    found = parse_allocation(text)
    assert found is not None
    assert str(found) == text
    assert found.address == text.rpartition(":")[0]


@pytest.mark.parametrize("text", ["", "10.0.0.5", "nothing:u-1", "300.0.0.1:u-1", "10.0.0.5:"])
def test_an_entry_of_another_form_is_kept_and_gives_nothing(text: str) -> None:
    assert parse_allocation(text) is None
    assert release(subnet("lcm", text), {"u-1"}) == [text]


NUMBERS = st.integers(0, 255)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5), st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5))
def test_ranges_agree_with_sets_of_addresses(included: list[tuple[int, int]], excluded: list[tuple[int, int]]) -> None:
    def listed(pairs: list[tuple[int, int]]) -> tuple[list[str], set[int]]:
        ordered = [sorted(pair) for pair in pairs]
        return [f"10.0.0.{a}-10.0.0.{b}" for a, b in ordered], {n for a, b in ordered for n in range(a, b + 1)}

    (include, inside), (exclude, outside) = listed(included), listed(excluded)
    expected = (inside or set(range(256))) - outside - {0, 255}
    try:
        found = pool(cidr="10.0.0.0/24", includeRanges=include, excludeRanges=exclude)
    except SubnetFault:
        assert not expected
        return
    assert [int(ipaddress.ip_address(one)) & 255 for one in found.free(())] == sorted(expected)
    assert found.capacity == len(expected)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["k8s-lcm", "bond0", None])), max_size=30))
def test_no_address_has_two_owners_whatever_is_taken_and_returned(steps: list[tuple[str, str | None]]) -> None:
    entries: list[str] = []
    owned: dict[tuple[str, str], str] = {}
    for uid, interface in steps:
        current = subnet("lcm", *entries)
        if interface is None:
            entries = release(current, {uid})
            owned = {key: address for key, address in owned.items() if key[0] != uid}
            continue
        try:
            entries = allocate(current, uid, [interface])
        except SubnetFull:
            assert len(owned) == 4
            continue
        found = {(one.uid, one.interface): one.address for one in map(parse_allocation, entries) if one is not None}
        assert owned.items() <= found.items()
        owned = found
        assert len(set(owned.values())) == len(owned) == len(entries)
    assert {str(Allocation(address, *key)) for key, address in owned.items()} == set(entries)
