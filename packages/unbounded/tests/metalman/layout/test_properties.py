"""Layouts of any profile and disks: partitions are apart, fill the disk, and every word refers to an earlier line."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.metalman.layout.support import disk, lines, request
from unbounded.api.hardware import DiskFacts
from unbounded.api.profile import MachineProfileSpec
from unbounded.api.profile_check import size_bytes
from unbounded.metalman.layout.compiler import compile_layout
from unbounded.metalman.layout.model import MIB, DiskLayout, LayoutRefused

SIZES: Final = st.one_of(
    st.integers(1, 5 << 30),
    st.sampled_from(["1", "1k", "300Mi", "0.5Gi", "1.25Gi", "3G", "2000M"]),
)
FILE_SYSTEMS: Final = st.sampled_from(["ext4", "xfs", "swap", "vfat"])


@st.composite
def profiles(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the body of a profile: an esp and data on each disk, of which some are in an array and in a group."""
    count = draw(st.integers(1, 4))
    devices, systems, free = [], [], []
    for at in range(count):
        names = [f"p{at}-{number}" for number in range(draw(st.integers(1, 5)))]
        parts = [{"name": name, "size": draw(SIZES)} for name in names]
        if draw(st.booleans()):
            parts[-1]["size"] = 0
        devices.append(
            {"device": {}, "partitions": [{"name": f"efi{at}", "size": "64Mi", "partflags": ["esp"]}, *parts]}
        )
        systems.append({"fileSystem": "vfat", "partition": f"efi{at}"})
        free += names
    root, *free = draw(st.permutations(free))
    systems.append({"fileSystem": "ext4", "partition": root, "mountPoint": "/"})
    body: dict[str, Any] = {"devices": devices, "fileSystems": systems}
    if len(free) > 3 and draw(st.booleans()):
        level = draw(st.sampled_from(["raid0", "raid1", "raid10"]))
        body["softRaidDevices"] = [
            {"name": "md0", "level": level, "devices": [{"partition": name} for name in free[:2]]}
        ]
        body["volumeGroups"] = [{"name": "g", "devices": [{"softRaidDevice": "md0"}, {"partition": free[2]}]}]
        kind = draw(st.sampled_from(["linear", "raid1"]))
        body["logicalVolumes"] = [
            {"name": "a", "vg": "g", "size": draw(SIZES)},
            {"name": "b", "vg": "g", "size": draw(st.one_of(SIZES, st.just(0))), "type": kind},
        ]
        systems.append({"fileSystem": "ext4", "logicalVolume": "b", "mountPoint": "/b"})
        free = free[3:]
    systems += [{"fileSystem": draw(FILE_SYSTEMS), "partition": name} for name in free]
    return body


DISKS: Final = st.lists(
    st.builds(
        lambda size, sector: (size, sector),
        st.integers(4_000_000_000, 60_000_000_000),
        st.sampled_from([512, 4096]),
    ),
    min_size=1,
    max_size=5,
)


def facts(entries: list[tuple[int, int]]) -> list[DiskFacts]:
    return [
        disk(f"sd{at}", size_bytes=size // sector * sector, sector_bytes=sector)
        for at, (size, sector) in enumerate(entries)
    ]


@given(profiles(), DISKS)
def test_partitions_are_apart_and_the_rest_fills_the_disk(body: dict[str, Any], entries: list[tuple[int, int]]) -> None:
    spec = msgspec.convert(body, MachineProfileSpec)
    choice = compile_layout(request(spec), facts(entries))
    if isinstance(choice, LayoutRefused):
        assert "spec." in choice.message
        return
    assert isinstance(choice, DiskLayout)
    for at, one in enumerate(choice.disks):
        sector, size = one.disk.sector_bytes or 0, one.disk.size_bytes or 0
        places = [
            (int(words[2]) * sector, int(words[3]) * sector)
            for words in lines(choice, "partition")
            if words[0] == one.id
        ]
        end = 2 * MIB  # the installer's mark is before it
        for (start, length), partition in zip(places, spec.devices[at].partitions, strict=True):
            assert start == end
            assert length % MIB == 0
            wanted = size_bytes(partition.size)
            assert length - MIB < wanted <= length if wanted else length >= MIB
            end = start + length
        assert end + MIB <= size  # the table's second copy
        if size_bytes(spec.devices[at].partitions[-1].size) == 0:
            assert size - end < 2 * MIB


@given(profiles(), DISKS)
def test_every_device_of_a_line_is_made_by_an_earlier_one_and_used_once(
    body: dict[str, Any], entries: list[tuple[int, int]]
) -> None:
    choice = compile_layout(request(msgspec.convert(body, MachineProfileSpec)), facts(entries))
    if isinstance(choice, LayoutRefused):
        return
    assert isinstance(choice, DiskLayout)
    made: set[str] = set()
    used: list[str] = []
    for line in choice.lines:
        match line.split():
            case ["partition", one, number, *_]:
                made.add(f"{one}/{number}")
            case ["raid", name, _, _, _, *members]:
                used += members
                made.add(f"raid:{name}")
            case ["group", _, *members]:
                used += members
            case ["volume", group, name, *_]:
                made.add(f"volume:{group}/{name}")
            case ["filesystem", _, device, *_]:
                used.append(device)
            case ["mount" | "esp", device, *_]:
                assert device in used
        assert made.issuperset(used), line
    assert len(set(used)) == len(used)
