"""Readings of a BMC: what differs from its reading before, and what is no difference."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from unbounded.api.bounds import bounded
from unbounded.api.hardware import (
    AcceleratorFacts,
    BMCReading,
    DiskFacts,
    FirmwareVersion,
    HardwareFacts,
    HardwareSource,
    HardwareStatus,
    NICFacts,
    PowerSupplyFacts,
    ProcessorFacts,
    TPMFacts,
)
from unbounded.metalman.hardware_merge import merged, reading_condition, reading_of, reported
from unbounded.metalman.inspection import change_condition, inspected
from unbounded.metalman.netboot.model import ConditionState
from unbounded.metalman.redfish.inventory_reader import Inventory

AT, LATER = "2026-11-27T10:00:00Z", "2026-11-28T10:00:00Z"
GIB = 1 << 30
A = DiskFacts(name="Bay.0", serial_number="A1", size_bytes=480_000_000_000, health="OK")
B = DiskFacts(name="Bay.1", wwn="0xB2", size_bytes=960_000_000_000, health="OK")
GPU = AcceleratorFacts(name="GPU1", model="H100", serial_number="G1", pci_address="0000:17:00.0", health="OK")
FACTS = HardwareFacts(
    cpus=64,
    memory_bytes=512 * GIB,
    disks=(A, B),
    nics=(NICFacts(mac="aa:bb:cc:00:00:01"),),
    tpm=TPMFacts(version="2.0"),
    power_supplies=(PowerSupplyFacts(name="PSU1", health="OK"), PowerSupplyFacts(name="PSU2", health="OK")),
    accelerators=(GPU, replace(GPU, name="GPU2", serial_number="G2", pci_address=None)),
)
FIRST = reading_of(FACTS, None, AT)
BAD_A = replace(A, health="Critical")
ALL_PARTS_FAILED = ("Processors", "Memory", "Storage", "EthernetInterfaces", "PowerSupplies")


def after(before: BMCReading, reason: str | None = None, **changes: Any) -> ConditionState | None:
    """Return the update of the condition after a reading of changed facts."""
    return reading_condition(before, reading_of(replace(FACTS, **changes), before, LATER), reason)


@pytest.mark.parametrize(
    ("changes", "reason", "text"),
    [
        ({"disks": (A,)}, "PartsMissing", "missing: disk 0xB2 (960000 MB)"),
        ({"disks": ()}, "PartsMissing", "missing: disk 0xB2 (960000 MB), disk A1 (480000 MB)"),
        ({"memory_bytes": 480 * GIB}, "PartsMissing", "missing: memory: 491520 MiB after 524288 MiB"),
        ({"nics": ()}, "PartsMissing", "missing: NIC aa:bb:cc:00:00:01"),
        ({"power_supplies": FACTS.power_supplies[:1]}, "PartsMissing", "missing: power supply PSU2"),
        ({"accelerators": FACTS.accelerators[:1]}, "PartsMissing", "missing: accelerator GPU2 (H100)"),
        ({"accelerators": FACTS.accelerators[1:]}, "PartsMissing", "missing: accelerator 0000:17:00.0 (H100)"),
        ({"disks": (BAD_A, B)}, "HealthChanged", "health: disk A1 (480000 MB): Critical after OK"),
        ({"disks": (BAD_A,)}, "PartsMissing", "missing: disk 0xB2 (960000 MB); health: disk A1 (480000 MB): Crit"),
        ({"disks": (A, B, replace(A, name="Bay.2", serial_number="C3"))}, "PartsAdded", "new: disk C3 (480000 MB)"),
    ],
)
def test_what_a_bmc_no_longer_lists_or_reports_as_ill_is_an_alarm(
    changes: dict[str, Any], reason: str, text: str
) -> None:
    condition = after(FIRST, **changes)
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", reason)
    assert condition.message.startswith(f"since the BMC's reading of {AT}, {text}")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"disks": (replace(B, name="Bay.7", wwn="naa.b2"), replace(A, size_bytes=None))},
        {"disks": (replace(A, health=None), B)},
        {"memory_bytes": None, "cpus": None},
        {"accelerators": (replace(GPU, pci_address="0000:18:00.0", name="A"), FACTS.accelerators[1])},
        {"firmware_inventory": (FirmwareVersion(name="BIOS", version="2"),)},
    ],
    ids=[
        "the same",
        "other order and spelling",
        "health unknown",
        "amounts unknown",
        "a card in another slot",
        "other firmware",
    ],
)
def test_what_is_no_difference_is_no_alarm(changes: dict[str, Any]) -> None:
    assert after(FIRST, **changes) is None


def test_a_first_reading_has_nothing_to_compare_with() -> None:
    assert reading_condition(None, FIRST, None) is None
    assert reading_of(FACTS, FIRST, LATER) == FIRST, "the same again is no news"


def test_nothing_is_missing_in_what_could_not_be_read() -> None:
    read = reading_of(HardwareFacts(tpm=FACTS.tpm), FIRST, LATER, failed=ALL_PARTS_FAILED)
    assert read == FIRST
    disks_only = reading_of(HardwareFacts(tpm=FACTS.tpm), FIRST, LATER, failed=("Storage",))
    condition = reading_condition(FIRST, disks_only, None)
    assert condition is not None
    assert "disk" not in condition.message
    assert "missing: NIC" in condition.message


def test_what_is_read_for_the_first_time_is_not_new() -> None:
    partial = reading_of(HardwareFacts(cpus=64), None, AT)
    assert reading_condition(partial, reading_of(FACTS, partial, LATER), None) is None


def test_a_host_hides_no_part_while_off_and_shows_it_when_on() -> None:
    off = reading_of(HardwareFacts(cpus=32, memory_bytes=GIB), FIRST, LATER, is_on=False)
    assert reading_condition(FIRST, off, None) is None
    assert reading_condition(off, reading_of(FACTS, off, LATER), None) is None
    gone = reading_condition(off, reading_of(replace(FACTS, disks=(A,)), off, LATER), None)
    assert gone is not None
    assert "missing: disk 0xB2" in gone.message


def test_the_alarm_about_health_ends_when_all_parts_are_ok() -> None:
    bad_supply = (PowerSupplyFacts(name="PSU1", health="Warning"), FACTS.power_supplies[1])
    ill = reading_of(replace(FACTS, disks=(BAD_A, B), power_supplies=bad_supply), FIRST, LATER)
    assert after(ill, "HealthChanged", disks=(BAD_A, B)) is None, "a disk is still ill"
    well = after(ill, "HealthChanged")
    assert well is not None
    assert (well.status, well.reason) == ("False", "Unchanged")
    assert after(ill, "PartsMissing") is None, "an alarm about a part is not taken back"


def test_a_part_that_only_the_installer_or_only_the_bmc_knows_is_no_alarm() -> None:
    behind_a_controller = DiskFacts(name="sda", serial_number="logical", state="Blank")
    report = inspected(
        HardwareFacts(memory_bytes=503 * GIB, disks=(behind_a_controller,)), HardwareSource.INSTALLER, AT, "boot-1"
    )
    first = merged(report, Inventory(FACTS), AT)
    second = merged(first, Inventory(FACTS), LATER)
    assert second == first
    assert first.bmc is not None
    assert reading_condition(first.bmc, second.bmc or FIRST, None) is None
    again = reported(second, report)
    assert again.bmc == first.bmc, "a report keeps what the BMC listed"
    unchanged = change_condition(second, replace(report, boot="boot-2"))
    assert unchanged is not None
    assert (unchanged.status, unchanged.message) == ("False", f"as in the inspection of {AT}")


def test_a_report_keeps_what_only_the_bmc_could_read() -> None:
    model = ProcessorFacts(model="Xeon", sockets=2)
    of_bmc = merged(None, Inventory(replace(FACTS, processor=model)), AT)
    report = inspected(HardwareFacts(cpus=128, disks=(A,)), HardwareSource.INSTALLER, LATER, "boot-1")
    both = reported(of_bmc, report)
    assert (both.cpus, both.processor, both.memory_bytes) == (128, model, FACTS.memory_bytes)
    later = merged(both, Inventory(replace(FACTS, processor=model)), LATER)
    assert (later.processor, later.memory_bytes) == (both.processor, both.memory_bytes), "the next reading is no change"


def test_a_bmc_completes_the_accelerators_of_a_report() -> None:
    card = AcceleratorFacts(pci_address="0000:17:00.0", vendor_id="10de", driver="nvidia")
    report = inspected(HardwareFacts(accelerators=(card,)), HardwareSource.INSTALLER, AT, "boot-1")
    both = replace(card, name="GPU1", model="H100", serial_number="G1", health="OK")
    first = merged(report, Inventory(FACTS), AT)
    assert first.accelerators == (both,)
    assert reported(first, replace(report, boot="boot-2")).accelerators == (both,)
    ill = merged(first, Inventory(replace(FACTS, accelerators=(replace(GPU, health="Critical"),))), LATER)
    assert ill.accelerators == (replace(both, health="Critical"),)
    assert merged(ill, Inventory(HardwareFacts(), {"PCIeDevices": "500"}), LATER).accelerators == ill.accelerators


def test_an_inspection_of_the_host_takes_back_no_alarm_about_health() -> None:
    report = inspected(HardwareFacts(cpus=64), HardwareSource.INSTALLER, AT, "boot-1")
    ill = merged(report, Inventory(replace(FACTS, disks=(BAD_A,))), AT)
    assert change_condition(ill, replace(report, boot="boot-2")) is None


def test_a_reading_of_the_largest_inventory_fits_the_api() -> None:
    many = HardwareFacts(
        disks=tuple(DiskFacts(name=f"d{n}", serial_number="s" * 128 + str(n), wwn="0x" + "f" * 125 + f"{n:03}")
                    for n in range(128)),
        nics=tuple(NICFacts(mac=f"aa:bb:cc:00:00:{n:02x}") for n in range(64)),
        tpm=FACTS.tpm,
        power_supplies=tuple(PowerSupplyFacts(name=f"{n}" * 60) for n in range(16)),
    )  # fmt: skip
    status = merged(None, Inventory(many), AT)
    assert isinstance(status, HardwareStatus)
    assert status.bmc is not None
    assert len(status.bmc.parts) == 128 + 64 + 1 + 16
    assert bounded(status.bmc) == status.bmc
