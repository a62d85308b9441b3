"""Compilation of a layout: the same profile, Machine and disks give the same text, and so the same digest."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from unbounded.api.conditions import fit_message
from unbounded.api.hardware import DiskFacts
from unbounded.api.profile import FileSystemType, MachineProfileSpec, RaidLevel
from unbounded.metalman.disk_choice import COMMAND_MESSAGE, is_foreign
from unbounded.metalman.layout import host_files
from unbounded.metalman.layout.geometry import EXTENT, check_sizes, place
from unbounded.metalman.layout.matching import DiskConsent, WantedDisk, erasure_of, match_disks, path_of
from unbounded.metalman.layout.model import (
    DiskLayout,
    LayoutChoice,
    LayoutDisk,
    LayoutRefused,
    LayoutWait,
    NoDisk,
    ProfileFault,
    rounded_up,
    size_bytes,
)
from unbounded.metalman.layout.profile_check import EFI_PATH, LINUX, ProfileGraph, resolve

LEVELS: Final = {RaidLevel.RAID0: "0", RaidLevel.RAID1: "1", RaidLevel.RAID10: "10"}


@dataclass(frozen=True)
class LayoutRequest:
    """A profile for one Machine.

    Args:
        name: name of the MachineProfile, for messages.
        machine_uid: UID of the Machine in the marks on its disks.
        allow_scripts: commands of the profile may run.
    """

    name: str
    profile: MachineProfileSpec
    machine_uid: str
    consent: DiskConsent = field(default_factory=DiskConsent)
    allow_scripts: bool = False


def compile_layout(request: LayoutRequest, disks: Sequence[DiskFacts], *, final: bool = True) -> LayoutChoice:
    """Compile the layout of a Machine.

    Args:
        final: the installer has waited for late disks; a missing one is refused and no longer awaited.
    """
    try:
        return _compiled(request, disks)
    except NoDisk as error:
        text = _message(request, str(error))
        return LayoutWait(text) if error.may_come and not final else LayoutRefused(text)
    except (ProfileFault, ValueError) as error:
        return LayoutRefused(_message(request, str(error)))


def _message(request: LayoutRequest, text: str) -> str:
    return fit_message(f"MachineProfile {request.name}: {text}", 2 * COMMAND_MESSAGE)


def _compiled(request: LayoutRequest, disks: Sequence[DiskFacts]) -> DiskLayout:
    spec = request.profile
    graph = resolve(spec, allow_scripts=request.allow_scripts)
    selectors = [device.device for device in spec.devices]
    wanted = [
        WantedDisk.of(at, selector, partitions)
        for at, (selector, partitions) in enumerate(zip(selectors, graph.partitions, strict=True))
    ]
    matched = match_disks(wanted, disks, request.consent)
    taken = tuple(
        LayoutDisk(f"d{at}", path_of(disk, selector), disk)
        for at, (disk, selector) in enumerate(zip(matched, selectors, strict=True), 1)
    )
    if len({one.path for one in taken}) < len(taken):
        raise NoDisk("two disks have the same path; name them by other paths in workBy")
    erasures = tuple(erasure_of(one.disk) for one in taken if is_foreign(one.disk))
    return DiskLayout(request.name, taken, tuple(_Writer(request, graph, taken).lines()), erasures)


class _Writer:
    """Lines of one layout, in the order of the work."""

    def __init__(self, request: LayoutRequest, graph: ProfileGraph, disks: Sequence[LayoutDisk]) -> None:
        self._spec, self._graph, self._disks = request.profile, graph, disks
        parts = [[one.path, one.disk.size_bytes, one.disk.sector_bytes] for one in disks]
        canonical = msgspec.json.encode([request.profile, parts], order="sorted")
        self._seed = f"{request.machine_uid}/{hashlib.sha256(canonical).hexdigest()}"
        self._identities: dict[str, str] = {}

    def _identity(self, device: str, *, short: bool = False) -> str:
        """Return a UUID that belongs to this layout; for vfat, a volume ID."""
        made = uuid.uuid5(uuid.NAMESPACE_OID, f"{self._seed}/{device}")
        self._identities[device] = f"{made.hex[:4]}-{made.hex[4:8]}".upper() if short else str(made)
        return self._identities[device]

    def lines(self) -> Iterator[str]:
        yield from (f"disk {one.id} {one.path} {one.disk.state or 'Foreign'}" for one in self._disks)
        yield from self._partitions()
        for at, array in enumerate(self._spec.soft_raid_devices):
            members = [self._graph.partition(one.partition, f"softRaidDevices[{at}]") for one in array.devices]
            name = self._graph.arrays[array.name]
            identity = self._identity(f"array:{name}")
            yield f"raid {name} {LEVELS[RaidLevel(array.level)]} {array.metadata} {identity} {' '.join(members)}"
        for at, group in enumerate(self._spec.volume_groups):
            members = [self._graph.member(one, f"volumeGroups[{at}]") for one in group.devices]
            yield f"group {group.name} {' '.join(members)}"
        for volume in self._spec.logical_volumes:
            size = rounded_up(size_bytes(volume.size), EXTENT) or "rest"
            yield f"volume {volume.vg} {volume.name} {size} {volume.type}"
        yield from self._file_systems()
        yield from self._loaders()
        yield from host_files.files(self._graph, self._identities)
        if words := host_files.cmdline(self._spec):
            yield f"cmdline {host_files.encoded(words)}"
        for when, script in (("pre", self._spec.pre_deploy_script), ("post", self._spec.post_deploy_script)):
            if script:
                yield f"script {when} {host_files.encoded(script)}"

    def _partitions(self) -> Iterator[str]:
        sizes: dict[str, int] = {}
        lines = []
        for one, partitions in zip(self._disks, self._graph.partitions, strict=True):
            sector = one.disk.sector_bytes or 0
            for number, (partition, (start, size)) in enumerate(
                zip(partitions, place(partitions, one.disk), strict=True), 1
            ):
                device = f"{one.id}/{number}"
                sizes[device] = size
                kind, identity = self._graph.types.get(device, LINUX), self._identity(f"partition:{device}")
                lines.append(
                    f"partition {one.id} {number} {start // sector} {size // sector} {kind} {identity} {partition.name}"
                )
        check_sizes(self._graph, sizes)
        yield from lines

    def _file_systems(self) -> Iterator[str]:
        for at, system in enumerate(self._spec.file_systems):
            device = self._graph.of(system, f"fileSystems[{at}]")
            identity = self._identity(device, short=system.file_system == FileSystemType.VFAT)
            options = ",".join((system.opts or "").split()) or "-"
            yield f"filesystem {system.file_system} {device} {identity} {options}"
        for device, system in host_files.mounts(self._graph):
            yield f"mount {device} {system.mount_point} {host_files.mount_options(self._graph, system, device)}"

    def _loaders(self) -> Iterator[str]:
        """Yield the partitions that get the loader, the mounted one first."""
        mounted = [device for device, system in host_files.mounts(self._graph) if system.mount_point == EFI_PATH]
        grub = self._spec.grub_config
        esps = [*mounted, *(device for device in self._graph.esps if device not in mounted)]
        if grub is not None and grub.to_device_fail_over is False:
            esps = esps[:1]
        if grub is not None and grub.to_devices:
            esps = [device for device in esps if device.partition("/")[0] in self._named(grub.to_devices)]
        if not esps:
            raise ProfileFault("grubConfig.toDevices", "no esp partition is on these devices")
        yield from (f"esp {device}" for device in esps)

    def _named(self, names: Sequence[str]) -> set[str]:
        known = {device.device.by_name: f"d{at}" for at, device in enumerate(self._spec.devices, 1)}
        for at, name in enumerate(names):
            if name not in known:
                raise ProfileFault(f"grubConfig.toDevices[{at}]", f"{name} is byName of no device")
        return {known[name] for name in names}
