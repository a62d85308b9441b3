"""Checks of an install by the installer's report: what it may write, before the first byte. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from unbounded.api.hardware import HardwareFacts
from unbounded.api.machine import Machine
from unbounded.metalman.disk_choice import (
    LARGE_SECTOR_BYTES,
    AwaitedDisk,
    ChosenDisk,
    DiskChoice,
    DiskRefused,
    DiskSelection,
    choose_disk,
)
from unbounded.metalman.host_network import missing_nics, network_faults
from unbounded.metalman.http.ports import FileRejected, HardwareReport
from unbounded.metalman.netboot.boot_files import has_network_config
from unbounded.metalman.netboot.boot_requests import boot_record

UNREPORTED: Final = FileRejected(
    409,
    "spec.pxe.rootDeviceHints: the image is sent after the installer has reported the hardware; that of an older "
    "netboot image never does: use an image of this release, or spec.pxe.targetDisk instead of the hints",
)
UNPLANTED: Final = FileRejected(
    409,
    "the Machine has a network configuration, which the installer of an older netboot image does not write: use an "
    "image of this release",
)
BY_PROFILE: Final = FileRejected(
    409,
    "a Machine with spec.pxe.profileRef is installed from rootfs.tar.zst, and other Machines from the image of a whole "
    "disk; an older netboot image knows no profiles: use an image of this release",
)
NO_LAYOUT: Final = FileRejected(409, "no layout of the present profile was compiled for this boot")
UNAWARE: Final = (
    "the installer of an older netboot image writes only disks with sectors of 512; use a netboot image of this release"
)


def check_install(
    machine: Machine, boot: str, erase: tuple[str, ...], report: HardwareReport, sectors: Collection[int]
) -> DiskChoice:
    """Choose the disk of an install, if the host also has the network cards of the Machine's network.

    A card may appear as late as a disk.

    Args:
        erase: serial numbers of the disks that the operation permits to be erased.
        sectors: sector sizes of the disks that there is an image for.
    """
    obstacle = network_obstacle(machine, report.hardware)
    if obstacle:
        return DiskRefused(obstacle) if report.final or has_faults(machine) else AwaitedDisk(obstacle)
    selection = _selection(machine, boot, erase)
    disks, size = report.hardware.disks, report.image_bytes
    choice = choose_disk(disks, selection, image_bytes=size, sectors=sectors, final=report.final)
    is_large = isinstance(choice, ChosenDisk) and choice.disk.sector_bytes == LARGE_SECTOR_BYTES
    if isinstance(choice, ChosenDisk) and is_large and not report.large_sectors:
        return DiskRefused(f"disk {choice.disk.name} has sectors of {LARGE_SECTOR_BYTES} bytes: {UNAWARE}")
    return choice


def network_obstacle(machine: Machine, hardware: HardwareFacts) -> str:
    """Return why a host with this hardware cannot have the Machine's network; empty if it can."""
    network = machine.spec.network
    if network is None:
        return ""
    return "; ".join(network_faults(network)) or missing_nics(network, hardware.nics)


def has_faults(machine: Machine) -> bool:
    return machine.spec.network is not None and bool(network_faults(machine.spec.network))


def layout_obstacle(machine: Machine, boot: str, *, rootfs: bool) -> FileRejected | None:
    """Return why a boot may not have an image, of a Machine with a profile or an image for one; None if it may."""
    pxe, record, hardware = machine.spec.pxe, machine.status.layout, machine.status.hardware
    if not rootfs or pxe is None or pxe.profile_ref is None:
        return BY_PROFILE
    is_compiled = record is not None and (record.boot, record.profile) == (boot, pxe.profile_ref.name)
    return None if is_compiled and hardware is not None and hardware.boot == boot else NO_LAYOUT


def write_obstacle(
    machine: Machine, boot: str, erase: tuple[str, ...], sectors: Collection[int], *, rootfs: bool = False
) -> FileRejected | None:
    """Return why a boot may not write a disk, by its report and the present spec; None if it may.

    A boot without a report has an older installer, which chooses by itself, cannot do that by hints, and writes no
    network configuration.

    Args:
        erase: serial numbers of the disks that the operation permits to be erased.
        sectors: sector sizes of the disks that there is an image for.
        rootfs: the image is the archive of the root file system, and not that of a whole disk.
    """
    hardware, pxe = machine.status.hardware, machine.spec.pxe
    if rootfs or (pxe is not None and pxe.profile_ref is not None):
        return layout_obstacle(machine, boot, rootfs=rootfs)
    if hardware is None or hardware.boot != boot:
        if has_network_config(machine):
            return UNPLANTED
        return UNREPORTED if pxe is not None and pxe.root_device_hints is not None else None
    obstacle = network_obstacle(machine, hardware)
    if obstacle:
        return FileRejected(409, obstacle)
    choice = choose_disk(hardware.disks, _selection(machine, boot, erase), sectors=sectors)
    return None if isinstance(choice, ChosenDisk) else FileRejected(409, choice.message)


def _selection(machine: Machine, boot: str, erase: tuple[str, ...]) -> DiskSelection:
    seen = boot_record(machine, boot)
    return DiskSelection.of(machine, erase, None if seen is None else seen.erasure)
