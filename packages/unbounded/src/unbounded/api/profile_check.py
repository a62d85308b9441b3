"""The references of a profile: what each partition, array and volume is used for, and what no disks could make good."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Final

from unbounded.api import profile

ESP: Final = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
BIOS_BOOT: Final = "21686148-6449-6e6f-744e-656564454649"
RAID: Final = "a19d880f-05fc-4d3b-a006-743f0f84911e"
LVM: Final = "e6d6d379-f507-44c2-a23c-238f2a3df928"
SWAP: Final = "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f"
LINUX: Final = "0fc63daf-8483-4772-8e79-3d69d8477de4"
WHOLE: Final = "disk"  # begins the name of the partition of a device that is a physical volume as a whole
EFI_PATH: Final = "/boot/efi"
SCRIPT_FLAG: Final = "--allow-profile-scripts"
_SUFFIXES: Final = {"k": 1000, **{letter: 1000 ** (at + 2) for at, letter in enumerate("MGTPE")}} | {
    f"{letter}i": 1024 ** (at + 1) for at, letter in enumerate("KMGTPE")
}
_SIZE: Final = re.compile(r"([0-9.]+)([a-zA-Z]*)")
_COMMANDS: Final = re.compile(r"^\s*(install|remove)\s", re.MULTILINE)


class ProfileFault(Exception):
    """A profile that cannot be installed on any disks: `field` is its place below spec."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"spec.{field}: {text}")


@lru_cache(maxsize=1024)
def size_bytes(size: int | str) -> int:
    """Return the bytes of a size, rounded up; its schema has admitted it.

    Raises:
        ValueError: it is no size.
    """
    if isinstance(size, int):
        return size
    found = _SIZE.fullmatch(size)
    if found is None or (found[2] and found[2] not in _SUFFIXES) or found[1].count(".") > 1:
        raise ValueError(f"{size} is no size")
    exact = Decimal(found[1]) * _SUFFIXES.get(found[2], 1)
    return int(exact.to_integral_value(rounding="ROUND_CEILING"))


@dataclass
class ProfileGraph:
    """A profile with its references resolved.

    Attributes:
        partitions: of each device.
        devices: device as the text names it (`d1/2`), by the name of a partition.
        arrays: name of an array in the text, by its name in the profile.
        used: the field that uses a device, by the device as the text names it.
        types: types of partitions by their devices.
    """

    spec: profile.MachineProfileSpec
    partitions: list[list[profile.Partition]] = field(default_factory=list)
    devices: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, str] = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    volumes: dict[str, str] = field(default_factory=dict)

    def partition(self, name: str, place: str) -> str:
        return _found(self.devices, name, f"{place}.partition", "partition of devices")

    def member(self, volume: profile.PhysicalVolume, place: str) -> str:
        """Return the device of a physical volume."""
        if volume.partition is not None:
            return self.partition(volume.partition, place)
        if volume.soft_raid_device is not None:
            array = _found(self.arrays, volume.soft_raid_device, f"{place}.softRaidDevice", "array of softRaidDevices")
            return f"raid:{array}"
        for at, device in enumerate(self.spec.devices):
            if device.device.by_name == volume.device and not device.partitions:
                return f"d{at + 1}/1"
        raise ProfileFault(f"{place}.device", f"{volume.device} is byName of no device without partitions")

    def of(self, system: profile.FileSystem, place: str) -> str:
        """Return the device of a file system."""
        if system.partition is not None:
            return self.partition(system.partition, place)
        if system.logical_volume is not None:
            volume = _found(self.volumes, system.logical_volume, f"{place}.logicalVolume", "volume of logicalVolumes")
            return f"volume:{volume}"
        array = _found(
            self.arrays, system.soft_raid_device or "", f"{place}.softRaidDevice", "array of softRaidDevices"
        )
        return f"raid:{array}"

    def use(self, device: str, place: str, kind: str = "") -> None:
        """Note the use of a device, which has one at most."""
        if device in self.used:
            raise ProfileFault(place, f"{self.used[device]} uses the same device")
        self.used[device] = place
        if kind:
            self.types[device] = kind

    @property
    def esps(self) -> list[str]:
        """Devices with an EFI system partition."""
        return [device for device, kind in self.types.items() if kind == ESP]


def resolve(spec: profile.MachineProfileSpec, *, allow_scripts: bool) -> ProfileGraph:
    """Resolve the references of a profile.

    Raises:
        ProfileFault: the profile cannot be installed.
    """
    _check_scripts(spec, allow_scripts=allow_scripts)
    graph = ProfileGraph(spec)
    _add_partitions(graph)
    _add_arrays(graph)
    _add_groups(graph)
    _add_file_systems(graph)
    for at, device in enumerate(spec.devices):
        if not device.partitions and f"d{at + 1}/1" not in graph.used:
            raise ProfileFault(f"devices[{at}]", "it has no partitions, and no volume group has the device")
    _check_boot(graph)
    return graph


def _found(names: Mapping[str, str], name: str, place: str, kind: str) -> str:
    if name not in names:
        raise ProfileFault(place, f"there is no {kind} with the name {name!r}")
    return names[name]


def _check_scripts(spec: profile.MachineProfileSpec, *, allow_scripts: bool) -> None:
    if allow_scripts:
        return
    needs = f"metalman runs no commands of profiles: start it with {SCRIPT_FLAG}, or remove them"
    for place in commands_in(spec):
        raise ProfileFault(place, needs if place.endswith("Script") else f"install and remove are commands; {needs}")


def commands_in(spec: profile.MachineProfileSpec) -> Iterator[str]:
    """Yield the fields of a profile with commands, which metalman runs only with `SCRIPT_FLAG`."""
    if spec.pre_deploy_script:
        yield "preDeployScript"
    if spec.post_deploy_script:
        yield "postDeployScript"
    for at, file in enumerate(spec.kernel_parameters.modules if spec.kernel_parameters else ()):
        if _COMMANDS.search(file.content.replace("\\\n", " ")):
            yield f"kernelParameters.modules[{at}].content"


def _add_partitions(graph: ProfileGraph) -> None:
    for at, device in enumerate(graph.spec.devices):
        whole = (profile.Partition(name=f"{WHOLE}{at + 1}", size=0),)
        graph.partitions.append(list(device.partitions or whole))
        for number, partition in enumerate(graph.partitions[at], 1):
            place = f"devices[{at}].partitions[{number - 1}]"
            if device.partitions and partition.name in graph.devices:
                raise ProfileFault(f"{place}.name", f"{partition.name} is the name of another partition")
            if size_bytes(partition.size) == 0 and number < len(graph.partitions[at]):
                raise ProfileFault(f"{place}.size", "0 is the rest of the disk, and more partitions follow")
            if device.partitions:
                graph.devices[partition.name] = f"d{at + 1}/{number}"
            if profile.PartitionFlag.ESP in partition.partflags:
                graph.types[f"d{at + 1}/{number}"] = ESP
            elif profile.PartitionFlag.BIOS_GRUB in partition.partflags:
                graph.use(f"d{at + 1}/{number}", f"{place}.partflags", BIOS_BOOT)


def _add_arrays(graph: ProfileGraph) -> None:
    for at, array in enumerate(graph.spec.soft_raid_devices):
        place, name = f"softRaidDevices[{at}]", array.name.rpartition("/")[2]
        if name in graph.arrays.values():
            raise ProfileFault(f"{place}.name", f"another array is {name} on the host")
        graph.arrays[array.name] = name
        for number, member in enumerate(array.devices):
            inside = f"{place}.devices[{number}]"
            device = graph.partition(member.partition, inside)
            if graph.types.get(device) == ESP:
                raise ProfileFault(
                    f"{inside}.partition", "firmware reads an esp, which is in no array: use one each disk"
                )
            graph.use(device, inside, RAID)


def _add_groups(graph: ProfileGraph) -> None:
    sizes = {group.name: len(group.devices) for group in graph.spec.volume_groups}
    for at, group in enumerate(graph.spec.volume_groups):
        for number, member in enumerate(group.devices):
            place = f"volumeGroups[{at}].devices[{number}]"
            device = graph.member(member, place)
            if graph.types.get(device) == ESP:
                raise ProfileFault(place, "an esp is no physical volume")
            graph.use(device, place, "" if device.startswith("raid:") else LVM)
    full: set[str] = set()
    for at, volume in enumerate(graph.spec.logical_volumes):
        place = f"logicalVolumes[{at}]"
        if volume.vg not in sizes:
            raise ProfileFault(f"{place}.vg", f"there is no volume group with the name {volume.vg!r}")
        if volume.vg in full:
            raise ProfileFault(f"{place}.size", f"an earlier volume takes the rest of {volume.vg}")
        if size_bytes(volume.size) == 0:
            full.add(volume.vg)
        if volume.type == profile.VolumeType.RAID1 and sizes[volume.vg] < 2:
            raise ProfileFault(f"{place}.type", f"raid1 needs two physical volumes, and {volume.vg} has one")
        graph.volumes[volume.name] = f"{volume.vg}/{volume.name}"


def _add_file_systems(graph: ProfileGraph) -> None:
    mounted: set[str] = set()
    for at, system in enumerate(graph.spec.file_systems):
        place = f"fileSystems[{at}]"
        device, is_swap = graph.of(system, place), system.file_system == profile.FileSystemType.SWAP
        is_esp = graph.types.get(device) == ESP
        if is_esp and system.file_system != profile.FileSystemType.VFAT:
            raise ProfileFault(f"{place}.fileSystem", "an esp has vfat, which firmware reads")
        graph.use(device, place, "" if is_esp or not device.startswith("d") else SWAP if is_swap else LINUX)
        if system.mount_point is not None and (system.mount_point in mounted or is_swap):
            raise ProfileFault(f"{place}.mountPoint", "swap has none" if is_swap else "another file system has it")
        mounted.add(system.mount_point or "")
        if system.mount_point in ("/", "/boot") and system.file_system == profile.FileSystemType.VFAT:
            raise ProfileFault(f"{place}.fileSystem", f"{system.mount_point} needs links, which vfat does not have")
        if any(word.startswith("/") for word in (system.opts or "").split()):
            raise ProfileFault(f"{place}.opts", "options name no files")


def _check_boot(graph: ProfileGraph) -> None:
    systems = graph.spec.file_systems
    if all(system.mount_point != "/" for system in systems):
        raise ProfileFault("fileSystems", "none has mountPoint /")
    if not graph.esps:
        raise ProfileFault("devices", "no partition has the partflag esp, from which the host boots")
    for device in graph.esps:
        if device not in graph.used:
            at, number = (int(part) - 1 for part in device[1:].split("/"))
            raise ProfileFault(f"devices[{at}].partitions[{number}]", "an esp needs a vfat in fileSystems")
    for at, system in enumerate(systems):
        if system.mount_point == EFI_PATH and graph.of(system, f"fileSystems[{at}]") not in graph.esps:
            raise ProfileFault(f"fileSystems[{at}].partition", f"{EFI_PATH} is no partition with the partflag esp")
