"""Compilation of a layout: the same profile, Machine and disks give the same text, and so the same digest.

The text contains the files and kernel parameters of the installed system.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import msgspec

from unbounded.api.conditions import fit_message
from unbounded.api.hardware import DiskFacts
from unbounded.api.profile import FileSystem, FileSystemType, MachineProfileSpec, RaidLevel
from unbounded.api.profile_check import EFI_PATH, LINUX, ProfileFault, ProfileGraph, resolve, size_bytes
from unbounded.metalman.disk_choice import COMMAND_MESSAGE, is_foreign
from unbounded.metalman.layout import model
from unbounded.metalman.layout.disk_matching import DiskConsent, RequestedDisk, erasure_of, match_disks, path_of
from unbounded.metalman.layout.geometry import EXTENT, check_loader, check_sizes, place

_KERNEL_WORDS: Final = frozenset({"GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT"})
# GRUB reads others as its own
_PLAIN: Final = re.compile(r"[A-Za-z0-9 .,:=@_/%+-]*")
NOFAIL: Final = "nofail"  # the host starts without a disk of a mirror
WAIT: Final = "x-systemd.device-timeout=10s"
LEVELS: Final = {RaidLevel.RAID0: "0", RaidLevel.RAID1: "1", RaidLevel.RAID10: "10"}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def files(graph: ProfileGraph, identities: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of files.

    Args:
        identities: UUIDs of file systems and arrays, by their devices in the text.
    """
    spec = graph.spec
    yield _file("/etc/fstab", "".join(_fstab(graph, identities)))
    if spec.soft_raid_devices:
        yield _file("/etc/mdadm/mdadm.conf", "".join(_mdadm(graph, identities)))
    kernel = spec.kernel_parameters
    if kernel is not None and kernel.sysctl:
        settings = (f"{name} = {value}\n" for name, value in sorted(kernel.sysctl.items()))
        yield _file("/etc/sysctl.d/90-unbounded-profile.conf", "".join(settings))
    for module in sorted(kernel.modules, key=lambda one: one.filename) if kernel is not None else ():
        if module.content:
            yield _file(f"/etc/modprobe.d/{module.filename}", module.content.rstrip("\n") + "\n")
    if options := _grub_options(spec):
        lines = (f"{name}={shlex.quote(value)}\n" for name, value in options)
        yield _file("/etc/default/grub.d/90-unbounded-profile.cfg", "".join(lines))


def cmdline(spec: MachineProfileSpec) -> str:
    """Return the kernel parameters of a profile.

    Raises:
        ProfileFault: GRUB would read a character as its own.
    """
    words = []
    for at, (name, value) in enumerate(_grub_options(spec)):
        if name not in _KERNEL_WORDS:
            continue
        if not _PLAIN.fullmatch(value):
            raise ProfileFault(
                f"grubConfig.defaultGrubOptions[{at}]", f"GRUB reads a character of {value!r} as its own"
            )
        words += value.split()
    return " ".join(words)


def check_signed(spec: MachineProfileSpec) -> None:
    """Check that a profile can be installed from a signed image.

    Raises:
        ProfileFault: it has kernel parameters.
    """
    for at, (name, value) in enumerate(_grub_options(spec)):
        if name in _KERNEL_WORDS and value.strip():
            raise ProfileFault(
                f"grubConfig.defaultGrubOptions[{at}]",
                f"a signed image starts with the kernel parameters that were signed with it, and not with {value!r}: "
                "remove the option, or use an image that is not signed",
            )


def mount_options(graph: ProfileGraph, system: FileSystem, device: str) -> str:
    """Return the options of a file system in /etc/fstab."""
    options = system.mount_opts or ""
    if device in graph.esps:
        return options if NOFAIL in options.split(",") else f"{options or 'umask=0077'},{NOFAIL},{WAIT}"
    if system.file_system == FileSystemType.SWAP:
        return options or f"sw,{NOFAIL}"
    return options or ("errors=remount-ro" if system.file_system == FileSystemType.EXT4 else "defaults")


def mounts(graph: ProfileGraph) -> list[tuple[str, FileSystem]]:
    """Return the file systems that are mounted, with their devices, in the order of mounting."""
    systems = [
        (graph.of(one, f"fileSystems[{at}]"), one)
        for at, one in enumerate(graph.spec.file_systems)
        if one.mount_point is not None
    ]
    return sorted(systems, key=lambda entry: [part for part in (entry[1].mount_point or "").split("/") if part])


def _file(path: str, content: str) -> str:
    return f"file {path} 0644 {encoded(content)}"


def _fstab(graph: ProfileGraph, identities: Mapping[str, str]) -> Iterator[str]:
    for device, system in mounts(graph):
        passes = 1 if system.mount_point == "/" else 0 if system.file_system == FileSystemType.XFS else 2
        options = mount_options(graph, system, device)
        yield f"UUID={identities[device]} {system.mount_point} {system.file_system} {options} 0 {passes}\n"
    for at, system in enumerate(graph.spec.file_systems):
        if system.file_system == FileSystemType.SWAP:
            device = graph.of(system, f"fileSystems[{at}]")
            yield f"UUID={identities[device]} none swap {mount_options(graph, system, device)} 0 0\n"


def _mdadm(graph: ProfileGraph, identities: Mapping[str, str]) -> Iterator[str]:
    yield "HOMEHOST <ignore>\nMAILADDR root\n"  # without an address, mdmonitor fails
    for array in graph.spec.soft_raid_devices:
        name = graph.arrays[array.name]
        digits = UUID(identities[f"array:{name}"]).hex
        parts = ":".join(digits[at : at + 8] for at in range(0, 32, 8))
        yield f"ARRAY /dev/md/{name} metadata={array.metadata} UUID={parts}\n"


def _grub_options(spec: MachineProfileSpec) -> list[tuple[str, str]]:
    options = spec.grub_config.default_grub_options if spec.grub_config is not None else ()
    pairs = (option.partition("=") for option in options)
    return [(name, value.removeprefix('"').removesuffix('"')) for name, _, value in pairs]


@dataclass(frozen=True)
class LayoutRequest:
    """A profile for one Machine.

    Args:
        name: name of the MachineProfile, for messages.
        machine_uid: UID of the Machine in the marks on its disks.
        allow_scripts: commands of the profile may run.
        image: what it is installed from, as far as that is known.
    """

    name: str
    profile: MachineProfileSpec
    machine_uid: str
    consent: DiskConsent = field(default_factory=DiskConsent)
    allow_scripts: bool = False
    image: model.LayoutImage = field(default_factory=model.LayoutImage)


def compile_layout(request: LayoutRequest, disks: Sequence[DiskFacts], *, final: bool = True) -> model.LayoutChoice:
    """Compile the layout of a Machine.

    Args:
        final: the installer has waited for late disks; a missing one is refused and no longer awaited.
    """
    try:
        return _compiled(request, disks)
    except model.NoDisk as error:
        text = _message(request, str(error))
        return model.LayoutWait(text) if error.may_come and not final else model.LayoutRefused(text)
    except (ProfileFault, ValueError) as error:
        return model.LayoutRefused(_message(request, str(error)))


def _message(request: LayoutRequest, text: str) -> str:
    return fit_message(f"MachineProfile {request.name}: {text}", 2 * COMMAND_MESSAGE)


def _compiled(request: LayoutRequest, disks: Sequence[DiskFacts]) -> model.DiskLayout:
    spec = request.profile
    graph = resolve(spec, allow_scripts=request.allow_scripts)
    if request.image.is_signed:
        check_signed(spec)
    selectors = [device.device for device in spec.devices]
    requested = [
        RequestedDisk.of(at, selector, partitions)
        for at, (selector, partitions) in enumerate(zip(selectors, graph.partitions, strict=True))
    ]
    matched = match_disks(requested, disks, request.consent)
    taken = tuple(
        model.LayoutDisk(f"d{at}", path_of(disk, selector), disk)
        for at, (disk, selector) in enumerate(zip(matched, selectors, strict=True), 1)
    )
    if len({one.path for one in taken}) < len(taken):
        raise model.NoDisk("two disks have the same path; name them by other paths in workBy")
    erasures = tuple(erasure_of(one.disk) for one in taken if is_foreign(one.disk))
    return model.DiskLayout(request.name, taken, tuple(_Writer(request, graph, taken).lines()), erasures)


def name_uuid(name: str) -> str:
    """Return the UUID of version 5 of a name in the namespace OID; `uuid.uuid5` takes three times as long."""
    digits = hashlib.sha1(uuid.NAMESPACE_OID.bytes + name.encode(), usedforsecurity=False).hexdigest()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-5{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"


class _Writer:
    """Lines of one layout, in the order of the work."""

    def __init__(self, request: LayoutRequest, graph: ProfileGraph, disks: Sequence[model.LayoutDisk]) -> None:
        self._spec, self._graph, self._disks = request.profile, graph, disks
        self._loader_bytes = request.image.loader_bytes
        self._sizes: dict[str, int] = {}  # of partitions, by their devices in the text
        parts = [[one.path, one.disk.size_bytes, one.disk.sector_bytes] for one in disks]
        canonical = msgspec.json.encode([request.profile, parts], order="sorted")
        self._seed = f"{request.machine_uid}/{hashlib.sha256(canonical).hexdigest()}"
        self._identities: dict[str, str] = {}

    def _identity(self, device: str, *, short: bool = False) -> str:
        """Return a UUID that belongs to this layout; for vfat, a volume ID."""
        made = name_uuid(f"{self._seed}/{device}")
        self._identities[device] = f"{made[:4]}-{made[4:8]}".upper() if short else made
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
            size = model.rounded_up(size_bytes(volume.size), EXTENT) or "rest"
            yield f"volume {volume.vg} {volume.name} {size} {volume.type}"
        yield from self._file_systems()
        yield from self._loaders()
        yield from files(self._graph, self._identities)
        if words := cmdline(self._spec):
            yield f"cmdline {encoded(words)}"
        for when, script in (("pre", self._spec.pre_deploy_script), ("post", self._spec.post_deploy_script)):
            if script:
                yield f"script {when} {encoded(script)}"

    def _partitions(self) -> Iterator[str]:
        lines = []
        for one, partitions in zip(self._disks, self._graph.partitions, strict=True):
            sector = one.disk.sector_bytes or 0
            for number, (partition, (start, size)) in enumerate(
                zip(partitions, place(partitions, one.disk), strict=True), 1
            ):
                device = f"{one.id}/{number}"
                self._sizes[device] = size
                kind, identity = self._graph.types.get(device, LINUX), self._identity(f"partition:{device}")
                lines.append(
                    f"partition {one.id} {number} {start // sector} {size // sector} {kind} {identity} {partition.name}"
                )
        check_sizes(self._graph, self._sizes)
        yield from lines

    def _file_systems(self) -> Iterator[str]:
        for at, system in enumerate(self._spec.file_systems):
            device = self._graph.of(system, f"fileSystems[{at}]")
            identity = self._identity(device, short=system.file_system == FileSystemType.VFAT)
            options = ",".join((system.opts or "").split()) or "-"
            yield f"filesystem {system.file_system} {device} {identity} {options}"
        for device, system in mounts(self._graph):
            yield f"mount {device} {system.mount_point} {mount_options(self._graph, system, device)}"

    def _loaders(self) -> Iterator[str]:
        """Yield the partitions that get the loader, the mounted one first."""
        mounted = [device for device, system in mounts(self._graph) if system.mount_point == EFI_PATH]
        grub = self._spec.grub_config
        esps = [*mounted, *(device for device in self._graph.esps if device not in mounted)]
        if grub is not None and grub.to_device_fail_over is False:
            esps = esps[:1]
        if grub is not None and grub.to_devices:
            esps = [device for device in esps if device.partition("/")[0] in self._named(grub.to_devices)]
        if not esps:
            raise ProfileFault("grubConfig.toDevices", "no esp partition is on these devices")
        for device in esps:
            check_loader(device, self._sizes[device], self._loader_bytes)
            yield f"esp {device}"

    def _named(self, names: Sequence[str]) -> set[str]:
        known = {device.device.by_name: f"d{at}" for at, device in enumerate(self._spec.devices, 1)}
        for at, name in enumerate(names):
            if name not in known:
                raise ProfileFault(f"grubConfig.toDevices[{at}]", f"{name} is byName of no device")
        return {known[name] for name in names}
