"""MachineProfile: the partitions, arrays, volumes and file systems of a host, for any machine whose disks fit.

`MachineProfileSpec` is the whole layout, and another kind can embed it. Its field names are those of
`BareMetalHostProfile` (metal3.io). metalman compiles it with the disks that the installer reports.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from unbounded.api.fields import ApiStruct, DiskSize, Field
from unbounded.api.meta import Kind, Object
from unbounded.api.names import GROUP, VERSION

# becomes a word of the installer's shell commands
LayoutName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9+_.-]*$", min_length=1, max_length=32)]
PartitionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", min_length=1, max_length=32)]
ArrayName = Annotated[str, Field(pattern=r"^(/dev/(md/)?)?[A-Za-z0-9][A-Za-z0-9_.-]*$", min_length=1, max_length=40)]
Options = Annotated[str, Field(min_length=1, max_length=256)]
Script = Annotated[str, Field(max_length=65536)]
MAX_DEVICES: Final = 24  # with 8 partitions each: rules compare all names, within the limits of kube-apiserver
MAX_MEMBERS: Final = 24


class DiskType(StrEnum):
    HDD = "hdd"
    SSD = "ssd"
    NVME = "nvme"


class PartitionFlag(StrEnum):
    BIOS_GRUB = "bios_grub"
    ESP = "esp"
    BOOT = "boot"
    RAID = "raid"
    LVM = "lvm"


class RaidLevel(StrEnum):
    RAID0 = "raid0"
    RAID1 = "raid1"
    RAID10 = "raid10"


class VolumeType(StrEnum):
    LINEAR = "linear"
    RAID1 = "raid1"


class FileSystemType(StrEnum):
    EXT4 = "ext4"
    XFS = "xfs"
    VFAT = "vfat"
    SWAP = "swap"


class EraseSwitch(ApiStruct, frozen=True, kw_only=True):
    """One way to erase."""

    enabled: Annotated[bool, Field("Erase in this way.")] = False


class EraseDevice(ApiStruct, frozen=True, kw_only=True):
    """Erasure of the whole device. Not implemented: an entry that is enabled is rejected."""

    blkdiscard: Annotated[EraseSwitch | None, Field("Discard all blocks.")] = None
    secure_erase: Annotated[EraseSwitch | None, Field("Erase by a command of the disk.")] = None


class WipeDevice(ApiStruct, frozen=True, kw_only=True):
    """Parts of the device that an install erases."""

    erase_metadata: Annotated[EraseSwitch | None, Field("Consent to the loss of the disk's contents, like wipe.")] = (
        None
    )
    erase_device: Annotated[EraseDevice | None, Field("Erasure of the whole device. Not implemented.")] = None


class DeviceSelector(ApiStruct, frozen=True, kw_only=True):
    """The disk of an entry. Without byName, the smallest disk that fits is taken; each disk is taken once."""

    by_name: Annotated[
        str | None,
        Field(
            "Name or path of the disk, such as sda, or below /dev/disk/by-id or /dev/disk/by-path. An entry with a "
            "name takes its disk before the entries without one.",
            pattern=r"^(/dev/(disk/by-(id|path)/)?)?[A-Za-z0-9#+.:=@_-]+$",
            max_length=253,
        ),
    ] = None
    work_by: Annotated[
        str | None,
        Field(
            "Kinds of names by which the installer may find the disk, in their order: by_id, by_wwn, by_path, "
            "by_name, with commas. Defaults to all of them.",
            pattern=r"^by_(id|wwn|path|name)(, ?by_(id|wwn|path|name)){0,3}$",
            max_length=64,
        ),
    ] = None
    min_size: Annotated[DiskSize | None, Field("Least size of the disk, such as 100Gi.")] = None
    max_size: Annotated[DiskSize | None, Field("Largest size of the disk, such as 1Ti.")] = None
    type: Annotated[
        str | None, Field("hdd for a rotating disk, nvme for one on NVMe, ssd for other flash.", enum=tuple(DiskType))
    ] = None
    wipe: Annotated[
        bool, Field("Consent to the loss of data of others on the disk, if byName names it by id or WWN.")
    ] = False
    wipe_device: Annotated[WipeDevice | None, Field("Like wipe, in more detail.")] = None
    use_for: Annotated[
        str | None, Field("Kept. It has no effect: purpose of the disk, for people.", max_length=128)
    ] = None


class Partition(ApiStruct, frozen=True, kw_only=True):
    """A partition. Each install makes it anew."""

    name: Annotated[PartitionName, Field("Name of the partition, unique within the profile.")]
    size: Annotated[
        DiskSize, Field("Size, such as 200Mi, rounded up to whole MiB. 0 is the rest, for the last one only.")
    ]
    partflags: Annotated[
        tuple[Annotated[str, Field(enum=tuple(PartitionFlag))], ...],
        Field("Flags: bios_grub, esp, boot, raid, lvm. The loader is on partitions with esp.", max_items=5),
    ] = ()
    wipe: Annotated[bool, Field("Kept. It has no effect: an install erases each partition.")] = False


class ProfileDevice(ApiStruct, frozen=True, kw_only=True):
    """A disk of the host, and its partitions."""

    device: Annotated[DeviceSelector, Field("Disk that the entry takes.")]
    partitions: Annotated[
        tuple[Partition, ...], Field("Partitions, in their order on the disk.", map_keys=("name",), max_items=8)
    ] = ()


class PartitionReference(ApiStruct, frozen=True, kw_only=True):
    """A partition by its name."""

    partition: Annotated[PartitionName, Field("Name of the partition.")]


class SoftRaidDevice(ApiStruct, frozen=True, kw_only=True):
    """An array of partitions (md)."""

    name: Annotated[ArrayName, Field("Name of the array, such as /dev/md0. The host has it below /dev/md.")]
    level: Annotated[str, Field("Level of the array.", enum=tuple(RaidLevel), defaulted=True)] = RaidLevel.RAID1.value
    metadata: Annotated[str, Field("Format of the array's metadata.", enum=("1.0", "1.1", "1.2"), defaulted=True)] = (
        "1.0"
    )
    devices: Annotated[
        tuple[PartitionReference, ...], Field("Members of the array.", min_items=2, max_items=MAX_MEMBERS)
    ]


class PhysicalVolume(ApiStruct, frozen=True, kw_only=True):
    """A physical volume: exactly one of its fields is set."""

    device: Annotated[
        str | None, Field("byName of an entry of devices without partitions: the whole disk.", max_length=253)
    ] = None
    partition: Annotated[PartitionName | None, Field("Name of a partition.")] = None
    soft_raid_device: Annotated[ArrayName | None, Field("Name of an array.")] = None


class VolumeGroup(ApiStruct, frozen=True, kw_only=True):
    """A volume group (LVM)."""

    name: Annotated[LayoutName, Field("Name of the volume group.")]
    devices: Annotated[
        tuple[PhysicalVolume, ...], Field("Physical volumes of the group.", min_items=1, max_items=MAX_MEMBERS)
    ]


class LogicalVolume(ApiStruct, frozen=True, kw_only=True):
    """A logical volume (LVM)."""

    name: Annotated[LayoutName, Field("Name of the volume, unique within the profile.")]
    vg: Annotated[LayoutName, Field("Volume group of the volume.")]
    size: Annotated[
        DiskSize, Field("Size, such as 6Gi, rounded up to 4 MiB. 0 is the rest, for the last volume of a group only.")
    ]
    type: Annotated[
        str, Field("linear, or raid1 for two copies on two physical volumes.", enum=tuple(VolumeType), defaulted=True)
    ] = VolumeType.LINEAR.value


class FileSystem(ApiStruct, frozen=True, kw_only=True):
    """A file system or swap area, on exactly one of partition, logicalVolume and softRaidDevice."""

    file_system: Annotated[str, Field("Type: ext4, xfs, vfat or swap.", enum=tuple(FileSystemType))]
    partition: Annotated[PartitionName | None, Field("Name of the partition.")] = None
    logical_volume: Annotated[LayoutName | None, Field("Name of the logical volume.")] = None
    soft_raid_device: Annotated[ArrayName | None, Field("Name of the array.")] = None
    mount_point: Annotated[
        str | None,
        Field(
            "Directory of the host. One file system must have /.",
            pattern=r"^/([A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*)?$",
            max_length=253,
        ),
    ] = None
    mount_opts: Annotated[
        Options | None,
        Field("Mount options for /etc/fstab, such as noatime,nodiratime.", pattern=r"^[A-Za-z0-9#+.:=@_/,%-]+$"),
    ] = None
    opts: Annotated[
        Options | None,
        Field(
            "Options of mkfs, such as -L data -m 1. A comma is not allowed: repeat the option.",
            pattern=r"^[A-Za-z0-9#+.:=@_/%-]+( [A-Za-z0-9#+.:=@_/%-]+)*$",
        ),
    ] = None


class GrubConfig(ApiStruct, frozen=True, kw_only=True):
    """The boot loader of the host."""

    default_grub_options: Annotated[
        tuple[
            Annotated[
                str,
                Field(
                    pattern=r"""^GRUB_[A-Z0-9_]+=("[^"$`\\\x00-\x1f\x7f]*"|[A-Za-z0-9#+.:=@_/,%-]*)$""",
                    max_length=1024,
                ),
            ],
            ...,
        ],
        Field(
            'Settings of /etc/default/grub, such as GRUB_TIMEOUT=5. GRUB_CMDLINE_LINUX="…" is kernel parameters, '
            "which count from the first boot on; the others from the next update-grub on.",
            max_items=32,
        ),
    ] = ()
    to_devices: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253)], ...],
        Field(
            "byName of the devices whose esp partitions get the loader. If absent, all do.",
            max_items=MAX_DEVICES,
        ),
    ] = ()
    to_device_fail_over: Annotated[
        bool | None,
        Field("False: only the esp partition at /boot/efi gets the loader. Defaults to true."),
    ] = None


class KernelModuleFile(ApiStruct, frozen=True, kw_only=True):
    """A file of /etc/modprobe.d."""

    filename: Annotated[str, Field("Name of the file.", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*\.conf$", max_length=64)]
    content: Annotated[str, Field("Content, such as options kvm_intel nested=1.", max_length=16384)]


class KernelParameters(ApiStruct, frozen=True, kw_only=True):
    """Settings of the host's kernel."""

    sysctl: Annotated[
        dict[str, Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=512)]],
        Field('Kernel parameters for /etc/sysctl.d, such as kernel.panic: "10".'),
    ] = {}
    modules: Annotated[
        tuple[KernelModuleFile, ...],
        Field("Files of /etc/modprobe.d.", map_keys=("filename",), max_items=16),
    ] = ()


class MachineProfileSpec(ApiStruct, frozen=True, kw_only=True):
    """The layout of a host's disks. An install erases the disks that its devices take, and no other."""

    devices: Annotated[
        tuple[ProfileDevice, ...],
        Field("Disks of the host. They take their disks in this order.", min_items=1, max_items=MAX_DEVICES),
    ]
    soft_raid_devices: Annotated[
        tuple[SoftRaidDevice, ...], Field("Arrays of partitions.", map_keys=("name",), max_items=8)
    ] = ()
    volume_groups: Annotated[tuple[VolumeGroup, ...], Field("Volume groups.", map_keys=("name",), max_items=8)] = ()
    logical_volumes: Annotated[
        tuple[LogicalVolume, ...], Field("Logical volumes.", map_keys=("name",), max_items=32)
    ] = ()
    file_systems: Annotated[tuple[FileSystem, ...], Field("File systems and swap areas.", min_items=1, max_items=64)]
    grub_config: Annotated[GrubConfig | None, Field("Boot loader.")] = None
    kernel_parameters: Annotated[KernelParameters | None, Field("Settings of the kernel.")] = None
    pre_deploy_script: Annotated[
        Script | None,
        Field("Script that the installer runs before it writes. metalman needs --allow-profile-scripts."),
    ] = None
    post_deploy_script: Annotated[
        Script | None,
        Field("Script that runs in the installed system. metalman needs --allow-profile-scripts."),
    ] = None


class MachineProfile(Object, frozen=True, kw_only=True):
    """A layout of disks for Machines that refer to it by spec.pxe.profileRef."""

    spec: Annotated[MachineProfileSpec, Field("Layout of the host's disks.")]


MACHINE_PROFILES: Final = Kind(GROUP, VERSION, "MachineProfile", "machineprofiles", MachineProfile)
