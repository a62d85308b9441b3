"""Two hosts on one boot are noticed, and one host never is taken for two."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded.metalman.netboot.duplicate_host import (
    BootEvent,
    BootFileSent,
    BootTrace,
    DuplicateHost,
    HostIdentity,
    MachineIdSent,
    NeighbourFound,
    PrefixUsed,
    ProgressReported,
    detect,
)
from unbounded.metalman.netboot.model import BootWindow

MAC, ADDRESS = "52:54:00:00:00:01", "10.0.0.50"
KNOWN = HostIdentity(frozenset({ADDRESS, "10.0.1.50"}), frozenset({MAC, "52:54:00:00:00:02"}))
ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
LOADER, KERNEL = BootFileSent("shimx64.efi"), BootFileSent("vmlinuz", kernel=True)
OURS = PrefixUsed(ADDRESS, BootWindow.INSTALLING)


def after(*events: BootEvent) -> BootTrace | DuplicateHost:
    trace = BootTrace()
    for event in events:
        result = detect(trace, event, KNOWN)
        if isinstance(result, DuplicateHost):
            return result
        trace = result
    return trace


def option(uuid: UUID, *, swapped: bool = False) -> bytes:
    return b"\0" + (uuid.bytes_le if swapped else uuid.bytes)


def run_of(percents: list[int]) -> list[BootEvent]:
    """Return the events of one start of the host, from firmware to the image."""
    return [
        MachineIdSent(option(ID)),
        LOADER,
        BootFileSent("grub/grub.cfg"),
        KERNEL,
        OURS,
        ProgressReported(),
        *map(ProgressReported, percents),
    ]


percents = st.lists(st.integers(0, 100), max_size=8).map(sorted)
starts = st.lists(st.tuples(percents, st.integers(0, 14), st.booleans()), min_size=1, max_size=6)


@pytest.mark.slow
@given(starts)
def test_one_host_that_starts_again_and_again_is_never_taken_for_two(runs: list[tuple[list[int], int, bool]]) -> None:
    events: list[BootEvent] = []
    for done, cut, repeats in runs:
        run = run_of(done)[: cut + 1]
        events += run + run[-1:] if repeats else run  # a report whose answer was lost is sent again
    assert not isinstance(after(*events), DuplicateHost)


@pytest.mark.slow
@given(
    starts,
    st.sampled_from([[ADDRESS, "10.0.1.50"], ["192.0.2.7"]]),
    st.sampled_from([ADDRESS, "192.0.2.7", "192.0.2.8"]),
)
def test_installed_system_with_leased_and_foreign_address_is_a_duplicate(
    runs: list[tuple[list[int], int, bool]], own: list[str], more: str
) -> None:
    events = [event for done, cut, _ in runs for event in run_of(done)[: cut + 1]]
    events += [PrefixUsed(address, BootWindow.FINISHING) for address in own * 2]
    assert not isinstance(after(*events), DuplicateHost)
    ended = after(*events, PrefixUsed(more, BootWindow.FINISHING))
    assert isinstance(ended, DuplicateHost) is (more not in own)


@pytest.mark.slow
@given(starts, st.sampled_from(["10.0.0.51", "192.0.2.7"]))
def test_a_prefix_in_other_hands_ends_the_boot_whenever_it_comes(
    runs: list[tuple[list[int], int, bool]], address: str
) -> None:
    events = [event for done, cut, _ in runs for event in run_of(done)[: cut + 1]]
    ended = after(*events, PrefixUsed(address, BootWindow.INSTALLING))
    assert isinstance(ended, DuplicateHost)
    assert address in ended.why


def test_all_nics_of_a_machine_are_its_own() -> None:
    events: list[BootEvent] = [
        PrefixUsed("10.0.1.50", BootWindow.INSTALLING),
        NeighbourFound(ADDRESS, "52:54:00:00:00:02"),
    ]
    assert not isinstance(after(*events), DuplicateHost)


def test_another_mac_behind_the_boots_address_ends_it() -> None:
    ended = after(NeighbourFound(ADDRESS, MAC), NeighbourFound(ADDRESS, "66:66:00:00:00:01"))
    assert isinstance(ended, DuplicateHost)
    assert "66:66:00:00:00:01" in ended.why


def test_different_machine_ids_are_a_duplicate_regardless_of_byte_order() -> None:
    same: list[bytes] = [
        option(ID),
        option(ID, swapped=True),
        b"",
        b"\0" + bytes(16),
        b"\0" + b"\xff" * 16,
        b"\1" + ID.bytes,
        b"x",
    ]
    assert not isinstance(after(*map(MachineIdSent, same)), DuplicateHost)
    assert isinstance(after(MachineIdSent(option(ID)), MachineIdSent(option(UUID(int=7)))), DuplicateHost)


def test_a_machine_id_proves_nothing_once_a_kernel_went_out() -> None:
    """The client with the kernel boots: a later packet, forged or not, must not end that."""
    ours, other = MachineIdSent(option(ID)), MachineIdSent(option(UUID(int=7)))
    assert not isinstance(after(ours, LOADER, KERNEL, other), DuplicateHost)
    assert not isinstance(after(LOADER, KERNEL, ours, other), DuplicateHost)
    assert isinstance(after(ours, LOADER, other), DuplicateHost)


@pytest.mark.parametrize("percent", [None, 0, 20, 61, 99])
def test_progress_after_a_second_loader_fetch_is_a_duplicate_host(percent: int | None) -> None:
    ended = after(*run_of([10, 60]), LOADER, ProgressReported(percent))
    assert isinstance(ended, DuplicateHost)
    assert "shimx64.efi" in ended.why


def test_progress_after_a_second_kernel_fetch_is_a_duplicate_host() -> None:
    second: list[BootEvent] = [LOADER, KERNEL, BootFileSent("initrd")]
    assert isinstance(after(*run_of([10, 60]), *second, ProgressReported(61)), DuplicateHost)
    assert not isinstance(after(*run_of([10, 60]), *second, ProgressReported(), ProgressReported(61)), DuplicateHost)
    assert not isinstance(
        after(*run_of([1, 2]), *second, ProgressReported(2)), DuplicateHost
    )  # its first report may be lost
