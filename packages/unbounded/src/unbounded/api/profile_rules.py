"""The CEL rules of MachineProfiles."""

from __future__ import annotations

from typing import Final

from unbounded.api import profile
from unbounded.api.rules import SYSCTL, RuleTable, ValidationRule, one_of


def _named(partition: str) -> str:
    """Return CEL that holds when a device has a partition of this name. kube-apiserver's cost limits bound its use."""
    return f"self.devices.exists(d, has(d.partitions) && d.partitions.exists(p, p.name == {partition}))"


def _among(name: str, entries: str) -> str:
    return f"has(self.{entries}) && self.{entries}.exists(e, e.name == {name})"


PROFILE_RULES: Final[RuleTable] = {
    profile.DeviceSelector: (
        ValidationRule(
            "!has(self.minSize) || !has(self.maxSize)"
            " || quantity(string(self.minSize)).compareTo(quantity(string(self.maxSize))) <= 0",
            "maxSize must not be less than minSize",
            ".maxSize",
        ),
    ),
    profile.EraseDevice: (
        ValidationRule(
            "(!has(self.blkdiscard) || !has(self.blkdiscard.enabled) || !self.blkdiscard.enabled)"
            " && (!has(self.secureErase) || !has(self.secureErase.enabled) || !self.secureErase.enabled)",
            "eraseDevice is not implemented: erase the disk by other means, or use eraseMetadata",
        ),
    ),
    profile.ProfileDevice: (
        ValidationRule(
            "!has(self.partitions) || self.partitions.filter(p, p.size == 0 || p.size == '0').size() == 0"
            " || self.partitions.filter(p, p.size == 0 || p.size == '0').size() == 1"
            " && self.partitions[size(self.partitions) - 1].size in [dyn(0), dyn('0')]",
            "size 0 is the rest of the disk: only the last partition may have it",
            ".partitions",
        ),
    ),
    profile.PhysicalVolume: (
        ValidationRule(
            one_of("device", "partition", "softRaidDevice"),
            "exactly one of device, partition and softRaidDevice must be set",
        ),
    ),
    profile.FileSystem: (
        ValidationRule(
            one_of("partition", "logicalVolume", "softRaidDevice"),
            "exactly one of partition, logicalVolume and softRaidDevice must be set",
        ),
        ValidationRule(
            f"self.fileSystem != '{profile.FileSystemType.SWAP}' || !has(self.mountPoint)",
            "swap has no mountPoint",
            ".mountPoint",
        ),
    ),
    profile.KernelParameters: SYSCTL,
    profile.MachineProfileSpec: (
        ValidationRule(
            "self.devices.all(d, !has(d.partitions) || d.partitions.all(p,"
            " self.devices.filter(e, has(e.partitions) && e.partitions.exists(q, q.name == p.name)).size() == 1))",
            "the name of a partition must be unique within the profile",
            ".devices",
        ),
        ValidationRule(
            "self.devices.all(d, !has(d.device.byName)"
            " || self.devices.filter(e, has(e.device.byName) && e.device.byName == d.device.byName).size() == 1)",
            "byName of a device must be unique within the profile: each disk is taken once",
            ".devices",
        ),
        ValidationRule(
            f"!has(self.softRaidDevices) || self.softRaidDevices.all(r, r.devices.all(m, {_named('m.partition')}))",
            "softRaidDevices must refer to partitions of the profile",
            ".softRaidDevices",
        ),
        ValidationRule(
            "!has(self.volumeGroups) || self.volumeGroups.all(g, g.devices.all(m,"
            f" (!has(m.partition) || {_named('m.partition')})"
            f" && (!has(m.softRaidDevice) || {_among('m.softRaidDevice', 'softRaidDevices')})"
            " && (!has(m.device)"
            " || self.devices.exists(d, has(d.device.byName) && d.device.byName == m.device && !has(d.partitions)))))",
            "volumeGroups must refer to partitions, softRaidDevices, and to devices without partitions by byName",
            ".volumeGroups",
        ),
        ValidationRule(
            f"!has(self.logicalVolumes) || self.logicalVolumes.all(v, {_among('v.vg', 'volumeGroups')})",
            "logicalVolumes must refer to volumeGroups of the profile",
            ".logicalVolumes",
        ),
        ValidationRule(
            "self.fileSystems.all(f,"
            f" (!has(f.partition) || {_named('f.partition')})"
            f" && (!has(f.logicalVolume) || {_among('f.logicalVolume', 'logicalVolumes')})"
            f" && (!has(f.softRaidDevice) || {_among('f.softRaidDevice', 'softRaidDevices')}))",
            "fileSystems must refer to partitions, logicalVolumes or softRaidDevices of the profile",
            ".fileSystems",
        ),
        ValidationRule(
            "!has(self.volumeGroups) || !self.volumeGroups.exists(g, g.devices.exists(m, has(m.softRaidDevice)"
            " && self.fileSystems.exists(f, has(f.softRaidDevice) && f.softRaidDevice == m.softRaidDevice)))",
            "a soft RAID is a physical volume or has a file system, not both",
            ".fileSystems",
        ),
        ValidationRule(
            "self.fileSystems.filter(f, has(f.mountPoint) && f.mountPoint == '/').size() == 1",
            "exactly one file system must have mountPoint /",
            ".fileSystems",
        ),
        ValidationRule(
            "self.fileSystems.all(f, !has(f.mountPoint)"
            " || self.fileSystems.filter(e, has(e.mountPoint) && e.mountPoint == f.mountPoint).size() == 1)",
            "a mountPoint must be unique within the profile",
            ".fileSystems",
        ),
    ),
}
