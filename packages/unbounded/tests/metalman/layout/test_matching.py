"""The disks that a profile's devices take, and those that no install changes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from tests.metalman.layout.support import (
    BLANK,
    FOREIGN,
    GIB,
    OWN,
    SINGLE,
    compiled,
    disk,
    path,
    profile,
    refusal,
    request,
)
from tests.support.seeds import first_seed
from unbounded.api.hardware import DiskFacts
from unbounded.api.machine_status import DiskErasure
from unbounded.metalman.layout.compiler import compile_layout
from unbounded.metalman.layout.model import DiskLayout, LayoutRefused, LayoutWait

A, B, C = disk("sda"), disk("sdb"), disk("sdc")
HDD, NVME = disk("sdh", rotational=True), disk("nvme0n1", bus="nvme")
SMALL = disk("sds", gib=2)


def device(**fields: Any) -> Any:
    return profile(SINGLE, devices__0__device=fields)


def taken(spec: Any, *disks: DiskFacts, **consent: Any) -> list[str]:
    return [one.disk.name for one in compiled(spec, *disks, **consent).disks]


@pytest.mark.parametrize(
    ("fields", "disks", "name"),
    [
        ({}, (disk("sdx", gib=32), A), "sda"),
        ({"minSize": "20Gi"}, (A, disk("sdx", gib=32), disk("sdy", gib=24)), "sdy"),
        ({"minSize": 16 * GIB, "maxSize": 16 * GIB}, (disk("sdx", gib=32), SMALL, A), "sda"),
        ({"type": "hdd"}, (A, NVME, HDD), "sdh"),
        ({"type": "ssd"}, (HDD, NVME, A), "sda"),
        ({"type": "nvme"}, (HDD, A, NVME), "nvme0n1"),
        ({"byName": "sdb"}, (A, B), "sdb"),
        ({"byName": "/dev/sdb"}, (A, B), "sdb"),
        ({"byName": "/dev/disk/by-path/pci-0-sdb"}, (A, B), "sdb"),
        ({"byName": "/dev/disk/by-id/wwn-0xsdb"}, (A, B), "sdb"),
        ({"byName": "sds"}, (SMALL,), "sds"),
        ({}, (SMALL, A), "sda"),
        ({}, (replace(SMALL, state=OWN), A), "sds"),
        ({}, (A, replace(B, state=OWN)), "sdb"),
        ({}, (replace(A, state=FOREIGN), B), "sdb"),
        ({}, (replace(A, sector_bytes=4096),), "sda"),
    ],
)
def test_a_device_takes_the_smallest_disk_that_fits(
    fields: dict[str, Any], disks: tuple[DiskFacts, ...], name: str
) -> None:
    assert taken(device(**fields), *disks) == [name]


def test_devices_take_each_disk_once_and_named_ones_first() -> None:
    spec = profile(devices__1__device={"byName": "sda"})
    assert taken(spec, A, B, C) == ["sdb", "sda"]
    assert "spec.devices[1].device: byName sda does not fit" in refusal(
        profile(devices__0__device={"byName": "/dev/disk/by-id/wwn-0xsda"}, devices__1__device={"byName": "sda"}), A, B
    )


@pytest.mark.parametrize(
    ("fields", "disks", "words"),
    [
        ({"minSize": "20Gi"}, (A,), "no disk fits (minSize 20Gi): sda (17.2 GB, wwn-0xsda): smaller than minSize 20Gi"),
        ({"maxSize": "1Gi"}, (A,), "sda (17.2 GB, wwn-0xsda): larger than maxSize 1Gi"),
        ({"type": "nvme"}, (A, HDD), "type ssd, not nvme; sdh (17.2 GB, wwn-0xsdh): type hdd, not nvme"),
        ({"type": "ssd"}, (replace(A, rotational=None),), "type unknown, not ssd"),
        ({}, (SMALL,), "smaller than 4000 MB, which byName has to name"),
        ({}, (replace(A, sector_bytes=520),), "sectors of 520 bytes"),
        ({}, (disk("sdt", gib=0.05, state=OWN),), "smaller than its partitions, which need"),
        ({}, (), "no disk fits (any disk): there is no disk"),
        ({"byName": "sdq"}, (A,), "byName sdq is no disk here; connect it, or name another"),
        ({"byName": "sda", "minSize": "1Ti"}, (A,), "byName sda does not fit: sda (17.2 GB, wwn-0xsda): smaller than"),
        ({"minSize": "2Gi", "maxSize": "1Gi"}, (A,), "spec.devices[0].device.maxSize: it is less than minSize"),
    ],
)
def test_a_device_without_disk_says_why_each_does_not_fit(
    fields: dict[str, Any], disks: tuple[DiskFacts, ...], words: str
) -> None:
    message = refusal(device(**fields), *disks)
    assert message.startswith("MachineProfile mirror: spec.devices[0]")
    assert words in message


def test_a_missing_disk_is_awaited_until_the_last_report() -> None:
    assert isinstance(compile_layout(request(), [A], final=False), LayoutWait)
    assert isinstance(compile_layout(request(), [A], final=True), LayoutRefused)
    foreign = [replace(A, state=FOREIGN), replace(B, state=FOREIGN)]
    assert isinstance(compile_layout(request(), foreign, final=False), LayoutRefused)  # waiting would not help


BY_ID = "/dev/disk/by-id/ata-DISK_sda"
FOREIGN_A = replace(A, state=FOREIGN, contents="LVM")
ERASED = DiskErasure(serial_number="S-sda", contents="LVM")


def test_foreign_data_is_refused_with_the_command_that_permits_its_erasure() -> None:
    message = refusal(device(), FOREIGN_A)
    assert "spec.devices[0]: sda (17.2 GB, wwn-0xsda) holds data of others: LVM" in message
    assert message.endswith(
        "; the command at the end erases it\nkubectl unbounded machine replace m1 --erase-disk S-sda\n"
    )
    assert "kubectl" not in refusal(device(), FOREIGN_A, machine="")


@pytest.mark.parametrize(
    ("fields", "consent", "erases"),
    [
        ({"byName": BY_ID, "wipe": True}, {}, True),
        ({"byName": "/dev/disk/by-id/wwn-0xsda", "wipe": True}, {}, True),
        ({"byName": BY_ID, "wipeDevice": {"eraseMetadata": {"enabled": True}}}, {}, True),
        ({"byName": BY_ID, "wipeDevice": {"eraseMetadata": {"enabled": False}}}, {}, False),
        ({"byName": BY_ID}, {}, False),
        ({"byName": "sda", "wipe": True}, {}, False),  # another disk may have this name at the next boot
        ({"byName": "/dev/disk/by-path/pci-0-sda", "wipe": True}, {}, False),
        ({"wipe": True}, {}, False),
        ({}, {"erase": ("S-sda",)}, True),
        ({}, {"erase": ("S-sda",), "used": (ERASED,)}, True),
        ({}, {"erase": ("S-sda",), "used": (DiskErasure(serial_number="S-sda", contents="xfs"),)}, False),
        ({}, {"erase": ("S-other",)}, False),
    ],
)
def test_foreign_data_is_written_with_consent_only(fields: dict[str, Any], consent: Any, erases: bool) -> None:
    if erases:
        assert compiled(device(**fields), FOREIGN_A, **consent).erasures == (ERASED,)
    else:
        refusal(device(**fields), FOREIGN_A, **consent)


def test_a_foreign_disk_without_a_serial_number_of_its_own_is_refused() -> None:
    for others in ((replace(FOREIGN_A, serial_number=None),), (FOREIGN_A, replace(B, serial_number="S-sda"))):
        assert "no serial number of its own" in refusal(device(byName=BY_ID, wipe=True), *others)


@pytest.mark.parametrize(
    ("recorded", "disks", "consent", "names"),
    [
        (("sdb", "sda"), (A, B), {}, ["sdb", "sda"]),
        (("sdc", "sdb"), (A, B, C), {}, ["sdc", "sdb"]),
        (("sdq", "sdb"), (A, replace(B, state=OWN)), {}, []),  # the other disk's is no consent
        (("sdq", "sdb"), (A, replace(B, state=OWN), replace(C, state=OWN)), {}, ["sdc", "sdb"]),
        (("sdq", "sdb"), (A, B), {"erase": ("S-sda",)}, ["sda", "sdb"]),
    ],
)
def test_the_disks_of_the_last_install_stay_those_of_their_devices(
    recorded: tuple[str, ...], disks: tuple[DiskFacts, ...], consent: Any, names: list[str]
) -> None:
    known = {"recorded": tuple(path(name) for name in recorded), **consent}
    if names:
        assert taken(profile(), *disks, **known) == names
    else:
        assert "its disk of this Machine's last install, is not here: it was swapped or is missing" in refusal(
            profile(), *disks, **known
        )


@pytest.mark.parametrize(
    ("work_by", "found"),
    [
        ("by_id", "/dev/disk/by-id/ata-DISK_sda"),
        ("by_wwn,by_id", "/dev/disk/by-id/wwn-0xsda"),
        ("by_path, by_id", "/dev/disk/by-path/pci-0-sda"),
        ("by_name", "/dev/sda"),
        (None, "/dev/disk/by-id/wwn-0xsda"),
    ],
)
def test_the_installer_finds_a_disk_by_the_name_that_work_by_asks_for(work_by: str | None, found: str) -> None:
    fields = {} if work_by is None else {"workBy": work_by}
    assert compiled(device(**fields), A).disks[0].path == found


def test_no_permutation_of_disks_writes_one_that_it_may_not() -> None:
    chance = random.Random(first_seed())
    made = 0
    for _ in range(1000):
        disks = [
            disk(f"sd{letter}", chance.choice((BLANK, OWN, FOREIGN)), chance.choice((2, 8, 8, 16, 64)))
            for letter in "abcdef"[: chance.randint(0, 6)]
        ]
        erase = tuple(f"S-{one.name}" for one in disks if chance.random() < 0.1)
        recorded = tuple(path(f"sd{letter}") for letter in chance.sample("abcdefg", 2)) if chance.random() < 0.3 else ()
        asked = request(erase=erase, recorded=recorded)
        choice = compile_layout(asked, disks)
        again = compile_layout(asked, chance.sample(disks, len(disks)))
        if not isinstance(choice, DiskLayout):
            assert isinstance(again, LayoutRefused)
            assert "spec.devices[" in choice.message
            continue
        assert isinstance(again, DiskLayout)
        assert again.text == choice.text
        made += 1
        written = [one.disk for one in choice.disks]
        assert len({one.name for one in written}) == 2
        assert all(one.state != FOREIGN or one.serial_number in erase for one in written)
        assert all((one.size_bytes or 0) >= 8 * GIB for one in written)
    assert made > 100
