"""Inspections: bounds and digest of a report, and what differs from the inspection before."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from unbounded.api.bounds import bounded
from unbounded.api.conditions import ConditionReason, ConditionStatus
from unbounded.api.hardware import (
    AcceleratorFacts,
    DiskFacts,
    HardwareFacts,
    HardwareSource,
    HardwareStatus,
    NICFacts,
    SystemIdentity,
    TPMFacts,
)
from unbounded.metalman.inspection import (
    HardwareChanges,
    change_condition,
    facts_digest,
    hardware_changes,
    inspected,
)

GIB = 1 << 30
DISK_A = DiskFacts(name="sda", wwn="0xa", size_bytes=480_000_000_000)
DISK_B = DiskFacts(name="sdb", serial_number="B2", size_bytes=960_000_000_000)
FACTS = HardwareFacts(
    system=SystemIdentity(serial_number="X1"),
    cpus=64,
    memory_bytes=512 * GIB,
    nics=(NICFacts(name="eth0", mac="AA:bb:cc:00:00:01"), NICFacts(name="eth1", mac="aa:bb:cc:00:00:02")),
    disks=(DISK_A, DISK_B),
    tpm=TPMFacts(version="2.0"),
    accelerators=(AcceleratorFacts(pci_address="0000:17:00.0", vendor_id="10de", device_id="2330"),),
)
BEFORE = inspected(FACTS, HardwareSource.INSTALLER, "2026-11-27T10:00:00Z", "boot-1")


@pytest.mark.parametrize(
    ("change", "missing", "added"),
    [
        ({}, (), ()),
        ({"disks": (DISK_B, replace(DISK_A, name="sdc"))}, (), ()),
        ({"nics": (replace(FACTS.nics[1], name="ens1"), replace(FACTS.nics[0], mac="aa:bb:cc:00:00:01"))}, (), ()),
        ({"memory_bytes": 512 * GIB - 300_000_000}, (), ()),
        ({"disks": (replace(DISK_A, wwn="naa.A", serial_number="A1"), DISK_B)}, (), ()),
        ({"tpm": TPMFacts(version="2.0", ek_certificate="PEM 1")}, (), ()),
        ({"tpm": TPMFacts(version="1.2")}, ("TPM 2.0",), ("TPM 1.2",)),
        ({"disks": (DISK_B,)}, ("disk 0xa (480000 MB)",), ()),
        (
            {"disks": (DISK_B, DiskFacts(name="sda", serial_number="C3"))},
            ("disk 0xa (480000 MB)",),
            ("disk C3 (0 MB)",),
        ),
        ({"nics": FACTS.nics[:1]}, ("NIC aa:bb:cc:00:00:02",), ()),
        ({"tpm": None}, ("TPM 2.0",), ()),
        ({"accelerators": ()}, ("accelerator 0000:17:00.0 (10de:2330)",), ()),
        ({"memory_bytes": 480 * GIB}, ("memory: 491520 MiB after 524288 MiB",), ()),
        ({"memory_bytes": 1024 * GIB, "cpus": 32}, ("CPUs: 32 after 64",), ("memory: 1048576 MiB after 524288 MiB",)),
        ({"system": None}, (), ()),  # which this installer could not read
        ({"system": SystemIdentity(serial_number="X1", uuid="u2")}, (), ()),
        (
            {"system": SystemIdentity(serial_number="X2")},
            ("system X1",),
            ("system X2",),
        ),
    ],
)
def test_parts_are_compared_by_their_identity(
    change: dict[str, Any], missing: tuple[str, ...], added: tuple[str, ...]
) -> None:
    assert hardware_changes(FACTS, replace(FACTS, **change)) == HardwareChanges(missing, added)
    assert facts_digest(replace(FACTS, **change)) != BEFORE.digest or not change


def test_another_tpm_is_known_by_its_certificate() -> None:
    one, other = (replace(FACTS, tpm=TPMFacts(version="2.0", ek_certificate=pem)) for pem in ("PEM 1", "PEM 2"))
    assert hardware_changes(one, one) == HardwareChanges()
    lists = ("TPM with the certificate of before",), ("TPM with another certificate",)
    assert hardware_changes(one, other) == HardwareChanges(*lists)


def test_the_condition_lists_what_is_missing_and_what_is_new() -> None:
    now = replace(BEFORE, boot="boot-2", tpm=None, disks=(DISK_A, DISK_B, DiskFacts(name="sdc", wwn="0xc")))
    condition = change_condition(BEFORE, now)
    assert condition is not None
    assert (condition.status, condition.reason) == (ConditionStatus.TRUE, ConditionReason.PARTS_MISSING)
    assert condition.message == "since the inspection of 2026-11-27T10:00:00Z, missing: TPM 2.0; new: disk 0xc (0 MB)"
    added = change_condition(now, replace(BEFORE, boot="boot-3", disks=now.disks))
    assert added is not None
    assert added.reason == ConditionReason.PARTS_ADDED


def test_the_condition_is_false_after_an_inspection_that_found_the_same() -> None:
    condition = change_condition(BEFORE, replace(BEFORE, boot="boot-2"))
    assert condition is not None
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, ConditionReason.UNCHANGED)


def test_the_condition_stays_when_a_boot_reports_again_or_nothing_is_comparable() -> None:
    assert change_condition(None, BEFORE) is None
    assert change_condition(BEFORE, BEFORE) is None
    assert change_condition(replace(BEFORE, source=HardwareSource.REDFISH, boot=None), BEFORE) is None


def test_many_parts_are_counted_and_not_listed() -> None:
    disks = tuple(DiskFacts(name=f"sd{number}") for number in range(30))
    condition = change_condition(replace(BEFORE, disks=disks), replace(BEFORE, disks=()))
    assert condition is not None
    assert condition.message.endswith("disk sd19 (0 MB) and 10 more")


def test_a_report_is_cut_to_the_limits_of_the_api() -> None:
    many = tuple(DiskFacts(name=f"sd{number}", model="m" * 9999) for number in range(500))
    cut = bounded(replace(FACTS, disks=many, system=SystemIdentity(product="p" * 300)))
    assert len(cut.disks) == 128
    assert {len(disk.model or "") for disk in cut.disks} == {256}
    assert cut.system is not None
    assert cut.system.product == "p" * 255 + "…"
    assert bounded(DiskFacts(name="sda", by_id=("ata-A", "a b", "wwn-0xa"))).by_id == ("ata-A", "wwn-0xa")
    in_a_folder = DiskFacts(name="cciss!c0d0", by_path=("pci-0!1",))
    assert bounded(in_a_folder) == replace(in_a_folder, by_path=()), "links are words of a shell command"
    assert bounded(FACTS) == FACTS


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cpus": -1}, "cpus: must be a number from 0 to"),
        ({"memory_bytes": 1 << 63}, "memoryBytes: must be a number"),
        ({"disks": (DiskFacts(name="../sda"),)}, "disks[0].name: must match"),
        ({"disks": (DISK_A, replace(DISK_B, state="Empty"))}, "disks[1].state: must be one of Blank, Own, Foreign"),
        ({"tpm": TPMFacts(version="3")}, "tpm.version: must be one of 2.0, 1.2"),
    ],
)
def test_an_impossible_value_is_refused_with_its_field(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r"must") as raised:
        bounded(replace(FACTS, **change))
    assert str(raised.value).startswith(words)


def test_the_digest_covers_the_facts_alone() -> None:
    again = inspected(FACTS, HardwareSource.REDFISH, "2026-11-28T10:00:00Z")
    assert again.digest == BEFORE.digest == facts_digest(again)
    assert len(BEFORE.digest) == 64
    shuffled = msgspec.json.decode(
        msgspec.json.encode(dict(reversed(msgspec.to_builtins(FACTS).items()))), type=HardwareFacts
    )
    assert facts_digest(shuffled) == BEFORE.digest


def test_a_disk_without_a_number_is_known_by_its_slot() -> None:
    old = HardwareFacts(disks=(DiskFacts(name="sda", by_path=("pci-0",)), DiskFacts(name="sdb", by_path=("pci-1",))))
    new = HardwareFacts(disks=(DiskFacts(name="sda", by_path=("pci-1",)), DiskFacts(name="sdb", by_path=("pci-0",))))
    assert hardware_changes(old, new) == HardwareChanges()
    gone = hardware_changes(old, HardwareFacts(disks=new.disks[:1]))
    assert gone == HardwareChanges(("disk pci-0 (0 MB)",), ())


def test_reported_text_cannot_control_a_terminal() -> None:
    disk = DiskFacts(name="sda", model="A\x1b[2JB\u202eC", contents="ext4\nready: yes\x00")
    facts = bounded(HardwareFacts(disks=(disk,), tpm=TPMFacts(ek_certificate="-----BEGIN\nAA==\x07")))
    assert (facts.disks[0].model, facts.disks[0].contents) == ("A [2JB C", "ext4 ready: yes ")
    assert facts.tpm == TPMFacts(ek_certificate="-----BEGIN\nAA== ")


def test_the_report_in_the_docs_has_the_digest_of_its_facts() -> None:
    page = (Path(__file__).parents[4] / "docs/bare-metal.md").read_text()
    (sample,) = re.findall(r"```yaml\n(status:\n  hardware:\n.*?)```", page, re.DOTALL)
    told = msgspec.convert(yaml.safe_load(sample)["status"]["hardware"], HardwareStatus)
    assert told.digest == facts_digest(told)
