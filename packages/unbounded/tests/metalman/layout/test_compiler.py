"""The text that a profile compiles to, and the profiles that no disks can make good."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metalman.layout.support import (
    compiled,
    disk,
    file,
    layout,
    lines,
    path,
    profile,
    refusal,
    request,
)
from unbounded.metalman.layout.compiler import compile_layout, name_uuid
from unbounded.metalman.layout.model import LayoutImage, summary

A, B = disk("sda"), disk("sdb", sector_bytes=4096)
ESP, RAID = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "a19d880f-05fc-4d3b-a006-743f0f84911e"


def test_a_mirror_on_disks_of_two_sector_sizes() -> None:
    made = compiled(profile(), A, B)
    assert lines(made, "disk") == [["d1", path("sda"), "Blank"], ["d2", path("sdb"), "Blank"]]
    assert [[*words[:5], words[6]] for words in lines(made, "partition")] == [
        ["d1", "1", "4096", "409600", ESP, "uefi-a"],
        ["d1", "2", "413696", "33138688", RAID, "root-a"],
        ["d2", "1", "512", "51200", ESP, "uefi-b"],
        ["d2", "2", "51712", "4142336", RAID, "root-b"],
    ]
    ((*raid, uuid, first, second),) = lines(made, "raid")
    assert (raid, first, second) == (["md0", "1", "1.0"], "d1/2", "d2/2")
    assert lines(made, "group") == [["system", "raid:md0"]]
    assert lines(made, "volume") == [
        ["system", "root", "6442450944", "linear"],
        ["system", "data", "rest", "linear"],
    ]
    assert [words[:2] for words in lines(made, "filesystem")] == [
        ["vfat", "d1/1"],
        ["vfat", "d2/1"],
        ["ext4", "volume:system/root"],
        ["xfs", "volume:system/data"],
    ]
    assert lines(made, "mount") == [
        ["volume:system/root", "/", "errors=remount-ro"],
        ["d1/1", "/boot/efi", "umask=0077,nofail,x-systemd.device-timeout=10s"],
        ["volume:system/data", "/var/lib/data", "defaults"],
    ]
    assert lines(made, "esp") == [["d1/1"], ["d2/1"]]
    assert file(made, "/etc/sysctl.d/90-unbounded-profile.conf") == "kernel.panic = 10\n"
    assert uuid.replace("-", "") in file(made, "/etc/mdadm/mdadm.conf").replace(":", "")
    assert file(made, "/etc/mdadm/mdadm.conf").startswith("HOMEHOST <ignore>\nMAILADDR root\n")
    (root,) = (words[2] for words in lines(made, "filesystem") if words[1] == "volume:system/root")
    assert file(made, "/etc/fstab").splitlines()[0] == f"UUID={root} / ext4 errors=remount-ro 0 1"
    assert made.text.startswith("unbounded-layout 1\n")
    assert made.text.endswith("\nend\n")


def test_the_same_input_has_the_same_digest_and_another_input_another() -> None:
    digest = compiled(profile(), A, B).digest
    assert compiled(profile(), B, A).digest == digest
    others = [
        compiled(profile(logicalVolumes__0__size="7Gi"), A, B),
        compiled(profile(), A, disk("sdc")),
        compiled(profile(), A, disk("sdb", gib=17, sector_bytes=4096)),
    ]
    assert len({digest, *(one.digest for one in others)}) == 4
    identities = [{words[2] for words in lines(one, "filesystem")} for one in others]
    assert identities[0].isdisjoint(identities[1])  # no two layouts have one identity


@given(st.text())
def test_identities_are_uuids_of_version_5(name: str) -> None:
    assert name_uuid(name) == str(uuid.uuid5(uuid.NAMESPACE_OID, name))


WHOLE = """
devices:
- device: {byName: sda}
  partitions: [{name: efi, size: 100Mi, partflags: [esp]}, {name: swap, size: 1Gi}, {name: root, size: 0}]
- device: {byName: sdc}
volumeGroups: [{name: data, devices: [{device: sdc}]}]
logicalVolumes: [{name: d, vg: data, size: 1Gi}]
fileSystems:
- {fileSystem: vfat, partition: efi}
- {fileSystem: swap, partition: swap}
- {fileSystem: ext4, partition: root, mountPoint: /}
- {fileSystem: xfs, logicalVolume: d, mountPoint: /d}
"""


def test_a_whole_disk_is_a_physical_volume_by_a_partition_of_its_own() -> None:
    made = compiled(profile(WHOLE), A, disk("sdc"))
    assert [words[:2] + words[6:] for words in lines(made, "partition")][-1] == ["d2", "1", "disk2"]
    assert lines(made, "group") == [["data", "d2/1"]]
    unused = refusal(profile(WHOLE, fileSystems__3=None, logicalVolumes=[], volumeGroups=[]), A, disk("sdc"))
    assert "spec.devices[1]: it has no partitions" in unused


def test_a_swap_does_not_hold_up_a_start_without_its_disk() -> None:
    made = compiled(profile(WHOLE), A, disk("sdc"))
    assert file(made, "/etc/fstab").splitlines()[-1].endswith(" none swap sw,nofail 0 0")
    assert lines(made, "partition")[1][4] == "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f"


def test_options_of_file_systems_and_kernel() -> None:
    options = ["GRUB_TIMEOUT=5", 'GRUB_CMDLINE_LINUX="console=ttyS1 quiet"', "GRUB_CMDLINE_LINUX_DEFAULT=nomodeset"]
    spec = profile(
        grubConfig={"defaultGrubOptions": options},
        kernelParameters={"modules": [{"filename": "kvm.conf", "content": "options kvm_intel nested=1"}]},
        fileSystems__3__opts="-L data -m crc=1",
        fileSystems__0__mountOpts="umask=0022",
    )
    made = compiled(spec, A, B)
    assert lines(made, "filesystem")[3][3] == "-L,data,-m,crc=1"
    assert lines(made, "mount")[1][2] == "umask=0022,nofail,x-systemd.device-timeout=10s"
    assert lines(made, "cmdline") == [["Y29uc29sZT10dHlTMSBxdWlldCBub21vZGVzZXQ="]]
    assert file(made, "/etc/modprobe.d/kvm.conf") == "options kvm_intel nested=1\n"
    assert file(made, "/etc/default/grub.d/90-unbounded-profile.cfg").splitlines() == [
        "GRUB_TIMEOUT=5",
        "GRUB_CMDLINE_LINUX='console=ttyS1 quiet'",
        "GRUB_CMDLINE_LINUX_DEFAULT=nomodeset",
    ]


@pytest.mark.parametrize(
    ("grub", "esps"),
    [
        ({"toDeviceFailOver": False}, ["d1/1"]),
        ({"toDeviceFailOver": True}, ["d1/1", "d2/1"]),
        ({"toDevices": ["sdb"]}, ["d2/1"]),
    ],
)
def test_the_loader_is_on_the_esps_that_the_profile_wants(grub: Any, esps: list[str]) -> None:
    spec = profile(devices__0__device={"byName": "sda"}, devices__1__device={"byName": "sdb"}, grubConfig=grub)
    assert [words[0] for words in lines(compiled(spec, A, B), "esp")] == esps


def module(content: str) -> dict[str, Any]:
    return {"kernelParameters": {"modules": [{"filename": "a.conf", "content": content}]}}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"preDeployScript": "modprobe x"}, "preDeployScript"),
        ({"postDeployScript": "apt-get update"}, "postDeployScript"),
        (module("options a b=1\n install a /bin/sh"), "kernelParameters.modules[0].content"),
        (module("remove\\\n a /bin/sh"), "kernelParameters.modules[0].content"),
    ],
)
def test_commands_of_a_profile_run_where_metalman_allows_them_only(changes: dict[str, Any], field: str) -> None:
    message = refusal(profile(**changes), A, B)
    assert f"spec.{field}: " in message
    assert "--allow-profile-scripts" in message
    layout(compile_layout(request(profile(**changes), allow_scripts=True), [A, B]))


def test_scripts_are_the_last_lines_of_a_layout() -> None:
    spec = profile(preDeployScript="a", postDeployScript="b")
    made = layout(compile_layout(request(spec, allow_scripts=True), [A, B]))
    assert made.lines[-2:] == ("script pre YQ==", "script post Yg==")


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"devices__0__partitions__0__partflags": []}, "fileSystems[0].partition", "/boot/efi is no partition with"),
        (
            {"devices__0__partitions__0__partflags": [], "devices__1__partitions__0__partflags": [],
             "fileSystems__0__mountPoint": "/e"},
            "devices", "no partition has the partflag esp",
        ),
        ({"fileSystems__1": None}, "devices[1].partitions[0]", "an esp needs a vfat"),
        ({"fileSystems__0__fileSystem": "ext4"}, "fileSystems[0].fileSystem", "an esp has vfat"),
        ({"fileSystems__2__fileSystem": "vfat"}, "fileSystems[2].fileSystem", "/ needs links"),
        ({"fileSystems__2__mountPoint": "/x"}, "fileSystems", "none has mountPoint /"),
        ({"fileSystems__3__mountPoint": "/"}, "fileSystems[3].mountPoint", "another file system has it"),
        ({"fileSystems__3__opts": "-d /etc"}, "fileSystems[3].opts", "options name no files"),
        ({"fileSystems__1__partition": "root-a"}, "fileSystems[1]", "softRaidDevices[0].devices[0] uses the same"),
        ({"fileSystems__1__partition": "none"}, "fileSystems[1].partition", "no partition of devices with the name"),
        ({"softRaidDevices__0__devices__1__partition": "root-a"},
         "softRaidDevices[0].devices[1]", "uses the same device"),
        ({"softRaidDevices__0__devices__1__partition": "uefi-b"},
         "softRaidDevices[0].devices[1].partition", "in no array"),
        ({"volumeGroups__0__devices": [{"softRaidDevice": "md9"}]},
         "volumeGroups[0].devices[0].softRaidDevice", "no array"),
        ({"volumeGroups__0__devices": [{"partition": "uefi-b"}]}, "volumeGroups[0].devices[0]", "no physical volume"),
        ({"logicalVolumes__0__vg": "none"}, "logicalVolumes[0].vg", "no volume group with the name"),
        ({"logicalVolumes__0__size": 0}, "logicalVolumes[1].size", "takes the rest of system"),
        ({"logicalVolumes__0__type": "raid1"}, "logicalVolumes[0].type", "raid1 needs two physical volumes"),
        ({"logicalVolumes__0__size": "60Gi"},
         "logicalVolumes[0].size", "60Gi does not fit: volume group system has 17.0 GB"),
        ({"logicalVolumes__0__size": "15.7Gi"}, "fileSystems[3]", "xfs needs 300Mi"),
        ({"devices__0__partitions__0__size": 0}, "devices[0].partitions[0].size", "more partitions follow"),
        ({"devices__0__partitions__0__name": "uefi-b"}, "devices[1].partitions[0].name", "name of another partition"),
        (
            {"grubConfig": {"defaultGrubOptions": ["GRUB_TIMEOUT=1", 'GRUB_CMDLINE_LINUX="a;b"']}},
            "grubConfig.defaultGrubOptions[1]", "GRUB reads a character",
        ),
        ({"grubConfig": {"toDevices": ["sdq"]}}, "grubConfig.toDevices[0]", "sdq is byName of no device"),
    ],
)  # fmt: skip
def test_a_profile_that_cannot_be_installed_is_refused_with_the_field(
    changes: dict[str, Any], field: str, words: str
) -> None:
    message = refusal(profile(**changes), A, B)
    assert message.startswith(f"MachineProfile mirror: spec.{field}: "), message
    assert words in message


SIGNED = LayoutImage(is_signed=True)


@pytest.mark.parametrize("name", ["GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT"])
def test_a_signed_image_takes_no_kernel_parameters(name: str) -> None:
    spec = profile(grubConfig={"defaultGrubOptions": ["GRUB_TIMEOUT=5", f'{name}="quiet"']})
    message = refusal(spec, A, B, image=SIGNED)
    assert message.startswith(
        "MachineProfile mirror: spec.grubConfig.defaultGrubOptions[1]: a signed image starts with"
    )
    assert "not with 'quiet'" in message
    compiled(spec, A, B)
    compiled(profile(grubConfig={"defaultGrubOptions": ["GRUB_TIMEOUT=5", f'{name}=""']}), A, B, image=SIGNED)


def test_an_esp_without_room_for_the_loader_is_refused_with_sizes() -> None:
    loader = LayoutImage(is_signed=True, loader_bytes=120 << 20)
    assert lines(compiled(profile(), A, B, image=loader), "esp") == [["d1/1"], ["d2/1"]]
    small: dict[str, Any] = {"devices__0__partitions__0__size": "125Mi", "devices__1__partitions__0__size": "124Mi"}
    assert refusal(profile(**small), A, B, image=loader) == (
        "MachineProfile mirror: spec.devices[1].partitions[0].size: the loader of this image has 125.8 MB of files, "
        "for which vfat needs 125Mi, and the partition has 124Mi"
    )
    compiled(profile(**small), A, B)  # of an image that does not tell the size of its loader
    named: dict[str, Any] = {"devices__0__device": {"byName": "sda"}, "devices__1__device": {"byName": "sdb"}}
    compiled(profile(**small, **named, grubConfig={"toDevices": ["sda"]}), A, B, image=loader)


def test_a_summary_says_what_is_on_each_disk() -> None:
    made = compiled(profile(), A, B)
    assert list(summary(made)) == [
        f"layout {made.digest} of MachineProfile mirror",
        f"  {path('sda')} (sda, 17.2 GB, Blank)",
        "    1: uefi-a, 209.7 MB, vfat at /boot/efi, with the loader",
        "    2: root-a, 17.0 GB, in raid md0",
        f"  {path('sdb')} (sdb, 17.2 GB, Blank)",
        "    1: uefi-b, 209.7 MB, vfat, with the loader",
        "    2: root-b, 17.0 GB, in raid md0",
        "  raid1 /dev/md/md0 of 2 partitions (metadata 1.0): in group system",
        "  volume system/root, 6.4 GB, linear: ext4 at /",
        "  volume system/data, the rest, linear: xfs at /var/lib/data",
    ]


def test_disks_of_one_path_are_refused() -> None:
    twins = [disk("sda", by_id=("ata-TWIN",)), disk("sdb", by_id=("ata-TWIN",))]
    assert "two disks have the same path" in refusal(profile(), *twins)
