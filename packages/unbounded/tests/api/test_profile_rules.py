"""MachineProfiles that the API refuses and accepts."""

import pytest

from tests.api.checking import SCHEMAS, Object, assert_refused, made, refusals
from unbounded.api.profile import MAX_DEVICES

KIND = "MachineProfile"
MIRROR = """
devices:
- device: {minSize: 8Gi, type: ssd}
  partitions:
  - {name: uefi-a, size: 200Mi, partflags: [esp]}
  - {name: root-a, size: 0, partflags: [raid]}
- device: {minSize: 8Gi, type: ssd}
  partitions:
  - {name: uefi-b, size: 200Mi, partflags: [esp]}
  - {name: root-b, size: 0, partflags: [raid]}
softRaidDevices:
- {name: /dev/md0, level: raid1, devices: [{partition: root-a}, {partition: root-b}]}
volumeGroups: [{name: system, devices: [{softRaidDevice: /dev/md0}]}]
logicalVolumes: [{name: root, vg: system, size: 6Gi}, {name: data, vg: system, size: 0}]
fileSystems:
- {fileSystem: vfat, partition: uefi-a, mountPoint: /boot/efi}
- {fileSystem: vfat, partition: uefi-b}
- {fileSystem: ext4, logicalVolume: root, mountPoint: /}
- {fileSystem: xfs, logicalVolume: data, mountPoint: /var/lib/data}
kernelParameters: {sysctl: {kernel.panic: "10"}}
"""  # the example of Container Cloud's reference


def test_the_mirror_is_accepted_and_nothing_of_it_is_dropped() -> None:
    written = made(KIND, MIRROR)
    assert SCHEMAS[KIND].prune(written) == []
    assert SCHEMAS[KIND].validate(written) == []


def test_the_largest_profile_is_within_the_costs_of_rules() -> None:
    devices = [
        {
            "device": {"byName": f"sd{number}"},
            "partitions": [{"name": f"{number:02}{part}{'p' * 29}", "size": "1Gi"} for part in range(8)],
        }
        for number in range(MAX_DEVICES)
    ]
    arrays = [
        {"name": f"md{array}", "devices": [{"partition": f"{number:02}7{'p' * 29}"} for number in range(MAX_DEVICES)]}
        for array in range(8)
    ]
    systems = [{"fileSystem": "xfs", "partition": f"23{at % 8}{'p' * 29}", "mountPoint": f"/d{at}"} for at in range(64)]
    systems[0]["mountPoint"] = "/"
    groups = [{"name": f"g{group}", "devices": arrays[group]["devices"]} for group in range(8)]
    spec: Object = {
        "devices": devices, "softRaidDevices": arrays, "volumeGroups": groups, "logicalVolumes": [],
        "fileSystems": systems,
    }  # fmt: skip
    assert refusals(KIND, made(KIND, MIRROR, **spec)) == []


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"devices__0__partitions__0__name": "uefi-b", "fileSystems__0__partition": "uefi-b"},
         "spec.devices", "partition must be unique"),
        ({"devices__0__partitions__0__size": 0}, "spec.devices[0].partitions", "only the last partition"),
        ({"devices__0__partitions__0__size": "0"}, "spec.devices[0].partitions", "only the last partition"),
        ({"devices__0__partitions__0__size": "0Mi"}, "spec.devices[0].partitions[0].size", "should match"),
        ({"devices__0__partitions__0__size": -1}, "spec.devices[0].partitions[0].size", "greater than or equal to 0"),
        ({"devices__0__partitions__0__size": "200 MB"}, "spec.devices[0].partitions[0].size", "should match"),
        ({"devices__0__partitions__0__name": "a b", "fileSystems__0__partition": "root-a"},
         "spec.devices[0].partitions[0].name", "should match"),
        ({"devices__0__device__byName": "/etc/passwd"}, "spec.devices[0].device.byName", "should match"),
        ({"devices__0__device__maxSize": "7Gi"}, "spec.devices[0].device.maxSize", "must not be less than minSize"),
        ({"devices__0__device__maxSize": 8589934591}, "spec.devices[0].device.maxSize", "less than minSize"),
        ({"devices__0__device__workBy": "by_luck"}, "spec.devices[0].device.workBy", "should match"),
        (
            {"devices__0__device__byName": "sda", "devices__1__device__byName": "sda"},
            "spec.devices",
            "each disk is taken once",
        ),
        (
            {"devices__0__device__wipeDevice": {"eraseDevice": {"secureErase": {"enabled": True}}}},
            "spec.devices[0].device.wipeDevice.eraseDevice",
            "not implemented",
        ),
        ({"softRaidDevices__0__devices__0__partition": "none"}, "spec.softRaidDevices", "must refer to partitions"),
        ({"softRaidDevices__0__devices": [{"partition": "root-a"}]}, "spec.softRaidDevices[0].devices", "at least 2"),
        ({"softRaidDevices__0__level": "raid5"}, "spec.softRaidDevices[0].level", "supported values"),
        ({"volumeGroups__0__devices": [{"softRaidDevice": "md9"}]}, "spec.volumeGroups", "must refer to partitions"),
        ({"volumeGroups__0__devices": [{"device": "sda"}]}, "spec.volumeGroups", "without partitions by byName"),
        ({"volumeGroups__0__devices": [{}]}, "spec.volumeGroups[0].devices[0]", "exactly one of device"),
        (
            {"volumeGroups__0__devices": [{"partition": "root-a", "softRaidDevice": "/dev/md0"}]},
            "spec.volumeGroups[0].devices[0]",
            "exactly one of device",
        ),
        ({"logicalVolumes__0__vg": "other"}, "spec.logicalVolumes", "must refer to volumeGroups"),
        ({"fileSystems__1__partition": "none"}, "spec.fileSystems", "must refer to partitions"),
        ({"fileSystems__3__logicalVolume": "none"}, "spec.fileSystems", "must refer to partitions"),
        ({"fileSystems__1__partition": None}, "spec.fileSystems[1]", "exactly one of partition"),
        (
            {"fileSystems__1__partition": None, "fileSystems__1__softRaidDevice": "/dev/md0"},
            "spec.fileSystems",
            "not both",
        ),
        ({"fileSystems__2__mountPoint": "/root"}, "spec.fileSystems", "exactly one file system must have mountPoint /"),
        ({"fileSystems__3__mountPoint": "/boot/efi"}, "spec.fileSystems", "mountPoint must be unique"),
        ({"fileSystems__3__mountPoint": "/var/../etc"}, "spec.fileSystems[3].mountPoint", "should match"),
        ({"fileSystems__1__fileSystem": "swap", "fileSystems__1__mountPoint": "/s"},
         "spec.fileSystems[1].mountPoint", "swap has no"),
        ({"fileSystems__3__opts": "-L a; reboot"}, "spec.fileSystems[3].opts", "should match"),
        ({"fileSystems__3__mountOpts": "ro rw"}, "spec.fileSystems[3].mountOpts", "should match"),
        ({"kernelParameters__sysctl": {"panic": "1"}}, "spec.kernelParameters.sysctl", "such as vm.max_map_count"),
        (
            {"grubConfig": {"defaultGrubOptions": ["GRUB_TIMEOUT=$(reboot)"]}},
            "spec.grubConfig.defaultGrubOptions[0]",
            "should match",
        ),
    ],
)  # fmt: skip
def test_a_profile_is_refused(changes: Object, field: str, words: str) -> None:
    assert refusals(KIND, made(KIND, MIRROR)) == []
    assert_refused(KIND, made(KIND, MIRROR, **changes), None, field, words)


@pytest.mark.parametrize("entry", ["softRaidDevices", "volumeGroups", "logicalVolumes"])
def test_names_are_unique_for_each_class(entry: str) -> None:
    written = made(KIND, MIRROR)
    written["spec"][entry].append(dict(written["spec"][entry][0]))
    assert any("Duplicate" in text for text in refusals(KIND, written)), refusals(KIND, written)


@pytest.mark.parametrize("largest", ["8Gi", "8.5Gi", "8G", 8589934592, "1Ti"])
def test_a_largest_size_that_is_no_less_than_the_least_is_accepted(largest: str | int) -> None:
    least = "8000M" if largest == "8G" else "8Gi"
    sizes: Object = {"devices__0__device__minSize": least, "devices__0__device__maxSize": largest}
    assert refusals(KIND, made(KIND, MIRROR, **sizes)) == []
