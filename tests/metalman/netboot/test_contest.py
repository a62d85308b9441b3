"""Two hosts on one boot are noticed, and one host never is taken for two."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded.metalman.netboot.contest import (
    Contested,
    Event,
    Identified,
    Known,
    Loading,
    Neighbour,
    PrefixUsed,
    Reported,
    Trace,
    saw,
)
from unbounded.metalman.netboot.model import Window

MAC, ADDRESS = "52:54:00:00:00:01", "10.0.0.50"
KNOWN = Known(frozenset({ADDRESS, "10.0.1.50"}), frozenset({MAC, "52:54:00:00:00:02"}))
ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
LOADER, KERNEL = Loading("shimx64.efi"), Loading("vmlinuz", kernel=True)
OURS = PrefixUsed(ADDRESS, Window.INSTALLING)


def after(*events: Event) -> Trace | Contested:
    trace = Trace()
    for event in events:
        result = saw(trace, event, KNOWN)
        if isinstance(result, Contested):
            return result
        trace = result
    return trace


def option(uuid: UUID, *, swapped: bool = False) -> bytes:
    return b"\0" + (uuid.bytes_le if swapped else uuid.bytes)


def run_of(percents: list[int]) -> list[Event]:
    """What one start of the host shows, from firmware to the image."""
    return [
        Identified(option(ID)),
        LOADER,
        Loading("grub/grub.cfg"),
        KERNEL,
        OURS,
        Reported(),
        *map(Reported, percents),
    ]


percents = st.lists(st.integers(0, 100), max_size=8).map(sorted)
starts = st.lists(st.tuples(percents, st.integers(0, 14), st.booleans()), min_size=1, max_size=6)


@pytest.mark.slow
@given(starts)
def test_one_host_that_starts_again_and_again_is_never_taken_for_two(runs: list[tuple[list[int], int, bool]]) -> None:
    events: list[Event] = []
    for done, cut, repeats in runs:
        run = run_of(done)[: cut + 1]
        events += run + run[-1:] if repeats else run  # a report whose answer was lost is sent again
    assert not isinstance(after(*events), Contested)


@pytest.mark.slow
@given(
    starts,
    st.sampled_from([[ADDRESS, "10.0.1.50"], ["192.0.2.7"]]),
    st.sampled_from([ADDRESS, "192.0.2.7", "192.0.2.8"]),
)
def test_an_installed_system_has_addresses_of_its_leases_or_one_of_its_own_and_not_both(
    runs: list[tuple[list[int], int, bool]], own: list[str], more: str
) -> None:
    events = [event for done, cut, _ in runs for event in run_of(done)[: cut + 1]]
    events += [PrefixUsed(address, Window.FINISHING) for address in own * 2]
    assert not isinstance(after(*events), Contested)
    ended = after(*events, PrefixUsed(more, Window.FINISHING))
    assert isinstance(ended, Contested) is (more not in own)


@pytest.mark.slow
@given(starts, st.sampled_from(["10.0.0.51", "192.0.2.7"]))
def test_a_prefix_in_other_hands_ends_the_boot_whenever_it_comes(
    runs: list[tuple[list[int], int, bool]], address: str
) -> None:
    events = [event for done, cut, _ in runs for event in run_of(done)[: cut + 1]]
    ended = after(*events, PrefixUsed(address, Window.INSTALLING))
    assert isinstance(ended, Contested)
    assert address in ended.why


def test_all_nics_of_a_machine_are_its_own() -> None:
    events: list[Event] = [PrefixUsed("10.0.1.50", Window.INSTALLING), Neighbour(ADDRESS, "52:54:00:00:00:02")]
    assert not isinstance(after(*events), Contested)


def test_another_mac_behind_the_boots_address_ends_it() -> None:
    ended = after(Neighbour(ADDRESS, MAC), Neighbour(ADDRESS, "66:66:00:00:00:01"))
    assert isinstance(ended, Contested)
    assert "66:66:00:00:00:01" in ended.why


def test_two_machine_ids_end_it_and_byte_orders_or_missing_ids_do_not() -> None:
    same: list[bytes] = [
        option(ID),
        option(ID, swapped=True),
        b"",
        b"\0" + bytes(16),
        b"\0" + b"\xff" * 16,
        b"\1" + ID.bytes,
        b"x",
    ]
    assert not isinstance(after(*map(Identified, same)), Contested)
    assert isinstance(after(Identified(option(ID)), Identified(option(UUID(int=7)))), Contested)


def test_a_machine_id_proves_nothing_once_a_kernel_went_out() -> None:
    """Who has the kernel boots: a packet that comes later, forged or not, must not end that."""
    ours, other = Identified(option(ID)), Identified(option(UUID(int=7)))
    assert not isinstance(after(ours, LOADER, KERNEL, other), Contested)
    assert not isinstance(after(LOADER, KERNEL, ours, other), Contested)
    assert isinstance(after(ours, LOADER, other), Contested)


@pytest.mark.parametrize("percent", [None, 0, 20, 61, 99])
def test_an_install_that_goes_on_while_the_loader_goes_out_again_is_of_two_hosts(percent: int | None) -> None:
    ended = after(*run_of([10, 60]), LOADER, Reported(percent))
    assert isinstance(ended, Contested)
    assert "shimx64.efi" in ended.why


def test_an_install_that_goes_on_after_another_kernel_went_out_is_of_two_hosts() -> None:
    second: list[Event] = [LOADER, KERNEL, Loading("initrd")]
    assert isinstance(after(*run_of([10, 60]), *second, Reported(61)), Contested)
    assert not isinstance(after(*run_of([10, 60]), *second, Reported(), Reported(61)), Contested)
    assert not isinstance(after(*run_of([1, 2]), *second, Reported(2)), Contested)  # its first report may be lost
