"""Places and sizes: partitions on a disk, and what arrays, groups and volumes have of them. In bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from unbounded.api.hardware import DiskFacts
from unbounded.api.profile import FileSystemType, Partition, RaidLevel, SoftRaidDevice, VolumeType
from unbounded.api.profile_check import ProfileFault, ProfileGraph, size_bytes
from unbounded.metalman.layout.model import MIB, rounded_up, size_text

FIRST: Final = 2 * MIB  # the mark of the installer is before it
LAST: Final = MIB  # at the end, for the second copy of the partition table
EXTENT: Final = 4 * MIB  # of LVM
SMALLEST_XFS: Final = 300 * MIB
VFAT_SHARE: Final = 32  # its two tables have up to a 64th of it, where clusters have 512 bytes
VFAT_LEAST: Final = MIB  # what else it has beside the files


def needed_bytes(partitions: Sequence[Partition]) -> int:
    """Return the least size of a disk for partitions; the rest of the disk is at least 1 MiB."""
    return FIRST + LAST + sum(max(rounded_up(size_bytes(one.size), MIB), MIB) for one in partitions)


def place(partitions: Sequence[Partition], disk: DiskFacts) -> list[tuple[int, int]]:
    """Return start and size of each partition of a disk that is large enough."""
    start, end = FIRST, ((disk.size_bytes or 0) - LAST) // MIB * MIB
    placed = []
    for one in partitions:
        size = rounded_up(size_bytes(one.size), MIB) or end - start
        placed.append((start, size))
        start += size
    return placed


def check_sizes(graph: ProfileGraph, sizes: Mapping[str, int]) -> None:
    """Check that volumes fit their groups, and file systems their devices.

    Args:
        sizes: of partitions, by their devices in the text.
    Raises:
        ProfileFault: something does not fit these disks.
    """
    known = dict(sizes)
    for at, array in enumerate(graph.spec.soft_raid_devices):
        members = [known[graph.partition(one.partition, f"softRaidDevices[{at}]")] for one in array.devices]
        known[f"raid:{graph.arrays[array.name]}"] = _array_bytes(array, members)
    known |= _volume_bytes(graph, known)
    for at, system in enumerate(graph.spec.file_systems):
        size = known[graph.of(system, f"fileSystems[{at}]")]
        if system.file_system == FileSystemType.XFS and size < SMALLEST_XFS:
            raise ProfileFault(f"fileSystems[{at}]", f"xfs needs 300Mi, and its device has {size_text(size)}")


def check_loader(device: str, size: int, loader_bytes: int) -> None:
    """Check that the files of an image's loader fit an EFI system partition.

    Args:
        device: the partition, as the text names it.
    Raises:
        ProfileFault: it has no room for them.
    """
    needed = rounded_up(loader_bytes + loader_bytes // VFAT_SHARE, MIB) + VFAT_LEAST if loader_bytes else 0
    if size < needed:
        at, number = (int(part) - 1 for part in device.removeprefix("d").split("/"))
        raise ProfileFault(
            f"devices[{at}].partitions[{number}].size",
            f"the loader of this image has {size_text(loader_bytes)} of files, for which vfat needs "
            f"{needed // MIB}Mi, and the partition has {size // MIB}Mi",
        )


def _array_bytes(array: SoftRaidDevice, members: Sequence[int]) -> int:
    """Return the least size of an array.

    mdadm keeps some of each member for metadata, bitmap and, from 1.1 on, growth.
    """
    kept = MIB if array.metadata == "1.0" else MIB + min(128 * MIB, rounded_up(min(members) // 1000, MIB))
    inside = [max(size - kept, 0) for size in members]
    match array.level:
        case RaidLevel.RAID0:
            return sum(inside)
        case RaidLevel.RAID10:
            return min(inside) * len(inside) // 2
        case _:
            return min(inside)


def _volume_bytes(graph: ProfileGraph, known: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of the volumes; 0 is the rest of their group."""
    free: dict[str, int] = {}
    for at, group in enumerate(graph.spec.volume_groups):
        members = [
            graph.member(one, f"volumeGroups[{at}].devices[{number}]") for number, one in enumerate(group.devices)
        ]
        free[group.name] = sum(max(known[one] - MIB, 0) // EXTENT for one in members)
    sizes: dict[str, int] = {}
    for at, volume in enumerate(graph.spec.logical_volumes):
        copies, metadata = (2, 1) if volume.type == VolumeType.RAID1 else (1, 0)
        extents = rounded_up(size_bytes(volume.size), EXTENT) // EXTENT or free[volume.vg] // copies - metadata
        if extents < 1 or (extents + metadata) * copies > free[volume.vg]:
            raise ProfileFault(
                f"logicalVolumes[{at}].size",
                f"{volume.size} does not fit: volume group {volume.vg} has "
                f"{size_text(max(free[volume.vg] // copies - metadata, 0) * EXTENT)} left on these disks",
            )
        free[volume.vg] -= (extents + metadata) * copies
        sizes[f"volume:{graph.volumes[volume.name]}"] = extents * EXTENT
    return sizes
