"""The inventory of a BMC: its resources become facts, unknown facts are left out, and no answer breaks the reader."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metalman.fake_bmc import ROOT, SYSTEM, FakeBmc, error, hang_up, says
from unbounded.api.bounds import bounded
from unbounded.api.failures import Transient
from unbounded.metalman.redfish import inventory
from unbounded.metalman.redfish.bmc_interface import BmcAccount, BmcBusy, Garbled, Unsupported
from unbounded.metalman.redfish.inventory_reader import (
    MAX_FIRMWARE,
    MAX_REQUESTS,
    Inventory,
    InventoryInterrupted,
    InventoryReader,
)
from unbounded.metalman.redfish.pool import BmcPool
from unbounded_lab.bmc.local import LabBmc

Documents = Mapping[str, Any]
CHASSIS = f"{ROOT}/Chassis/1"
FIRMWARE = f"{ROOT}/UpdateService/FirmwareInventory"


def links(*paths: str) -> list[dict[str, str]]:
    return [{"@odata.id": path} for path in paths]


class RecordedBmc:
    """Documents by path; a path may have a failure instead, and is unknown otherwise."""

    def __init__(self, resources: Documents) -> None:
        self.resources = resources
        self.asked: list[str] = []

    async def get(self, path: str) -> Mapping[str, Any]:
        self.asked.append(path)
        found = self.resources.get(path)
        if isinstance(found, Exception):
            raise found
        if found is None:
            raise Unsupported(f"{path}: 404")
        assert isinstance(found, dict)
        return found


def read(resources: Documents) -> tuple[Inventory, list[str]]:
    bmc = RecordedBmc(resources)
    return asyncio.run(InventoryReader(bmc.get).read(SYSTEM)), bmc.asked


def collected(path: str, members: Documents) -> dict[str, Any]:
    """Return a collection and its members, by their paths."""
    return {path: {"Members": links(*(f"{path}/{name}" for name in members))}} | {
        f"{path}/{name}": member for name, member in members.items()
    }


def a_server() -> dict[str, Any]:
    """A server with properties as vendors write them: a float for a count, dashes in a MAC, an empty bay, a GPU."""
    system = {
        "Id": "1",
        "Manufacturer": " Maker ",
        "Model": "Model",
        "SerialNumber": "S-1",
        "UUID": "4C4C4544-0000-0000-0000-000000000001",
        "BiosVersion": "1.2",
        "ProcessorSummary": {"Count": 2, "Model": "A model", "LogicalProcessorCount": 8.0},
        "MemorySummary": {"TotalSystemMemoryGiB": 1.5},
        "TrustedModules": [{"InterfaceType": "TPM2_0", "Status": {"State": "Enabled"}}],
        "Links": {"Chassis": links(CHASSIS)},
        **{
            name: {"@odata.id": f"{SYSTEM}/{name}"}
            for name in ("Processors", "Memory", "Storage", "EthernetInterfaces")
        },
    }
    drives = {
        "a": {
            "Id": "Disk.Bay.0 left",
            "Name": "Solid State Disk",
            "CapacityBytes": 960197124096,
            "BlockSizeBytes": 512,
            "MediaType": "SSD",
            "Protocol": "SATA",
            "SerialNumber": "D-1 ",
            "Identifiers": [{"DurableNameFormat": "NAA", "DurableName": "50:00:C5:00:A1:B2:C3:D4"}],
            "Status": {"State": "Enabled", "Health": "OK"},
            "FailurePredicted": True,
        },
        "b": {"Id": "b", "MediaType": "HDD", "Protocol": "NVMe", "Status": {"Health": "Critical"}},
        "c": {"Id": "c", "Status": {"State": "Absent"}},
    }
    paths = {f"{SYSTEM}/Storage/1/Drives/{name}": drive for name, drive in drives.items()}
    cpu = {"ProcessorType": "CPU", "InstructionSet": "x86-64", "TotalCores": 2, "TotalThreads": 4, "Model": "Other"}
    return {
        SYSTEM: system,
        **collected(f"{SYSTEM}/Processors", {"1": cpu, "2": cpu, "gpu": {"ProcessorType": "GPU", "TotalCores": 99}}),
        **collected(f"{SYSTEM}/Storage", {"1": {"Drives": links(*paths)}}),
        **paths,
        **collected(
            f"{SYSTEM}/EthernetInterfaces",
            {
                "1": {"Id": "NIC.1", "MACAddress": "02-AA-00-00-00-01", "LinkStatus": "LinkUp", "SpeedMbps": 25000},
                "2": {"Id": "NIC.2", "PermanentMACAddress": "02:aa:00:00:00:02", "LinkStatus": "LinkDown"},
                "3": {"Id": "NIC.3", "MACAddress": "00:00:00:00:00:00"},
            },
        ),
        **collected(
            FIRMWARE,
            {
                "Installed-1": {"Name": "BIOS", "Version": "1.2"},
                "Current-1": {"Name": "BIOS", "Version": "1.2"},
                "Previous-1": {"Name": "BIOS", "Version": "1.1"},
                "blank": {"Name": "Backplane", "Version": None},
            },
        ),
        CHASSIS: {"Power": {"@odata.id": f"{CHASSIS}/Power"}},
        f"{CHASSIS}/Power": {
            "PowerSupplies": [
                {"Name": "PSU 1", "Status": {"State": "Enabled", "Health": "OK"}},
                {"MemberId": "1", "Status": {"Health": "Critical"}},
                {"Name": "PSU 3", "Status": {"State": "Absent"}},
            ]
        },
    }


def test_a_server_is_read_whole() -> None:
    found, asked = read(a_server())
    facts = found.facts
    assert (found.failed, found.cut_short) == ({}, False)
    assert facts.system is not None
    assert facts.processor is not None
    assert (facts.system.manufacturer, facts.system.uuid) == ("Maker", "4c4c4544-0000-0000-0000-000000000001")
    assert (facts.cpus, facts.processor.sockets, facts.processor.cores) == (8, 2, 4)
    assert (facts.processor.architecture, facts.processor.model) == ("x86_64", "A model")
    assert facts.memory_bytes == 3 << 29
    assert facts.tpm is not None
    assert facts.tpm.version == "2.0"
    ssd, hdd = facts.disks
    assert (ssd.name, ssd.bus, ssd.rotational, ssd.size_bytes) == ("Disk.Bay.0_left", "ata", False, 960197124096)
    assert (ssd.wwn, ssd.serial_number, ssd.health) == ("0x5000c500a1b2c3d4", "D-1", "OK (failure predicted)")
    assert (hdd.bus, hdd.rotational, hdd.health) == ("nvme", True, "Critical")
    assert [(nic.name, nic.mac, nic.link) for nic in facts.nics] == [
        ("NIC.1", "02:aa:00:00:00:01", True),
        ("NIC.2", "02:aa:00:00:00:02", False),
    ]
    assert [(one.name, one.version) for one in facts.firmware_inventory] == [("BIOS", "1.2")]
    assert [(one.name, one.health) for one in facts.power_supplies] == [("PSU 1", "OK"), ("1", "Critical")]
    assert f"{SYSTEM}/Memory" not in asked, "the system has the sum of its modules"
    assert f"{FIRMWARE}/Previous-1" not in asked
    assert len(asked) == len(set(asked)), "no resource is read twice"


def test_other_forms_of_the_same_parts_are_read() -> None:
    """Modules without a sum, SimpleStorage, and a PowerSubsystem."""
    subsystem, dimm = f"{CHASSIS}/PowerSubsystem", {"CapacityMiB": 1024, "Status": {"State": "Enabled"}}
    names = {"Memory": f"{SYSTEM}/Memory", "SimpleStorage": f"{SYSTEM}/SimpleStorage"}
    found, _ = read(
        {
            SYSTEM: {key: {"@odata.id": path} for key, path in names.items()} | {"Links": {"Chassis": links(CHASSIS)}},
            **collected(names["Memory"], {"1": dimm, "2": dimm, "3": {"Status": {"State": "Absent"}}}),
            **collected(names["SimpleStorage"], {"1": {"Devices": [{"Name": "disk 0", "CapacityBytes": 5}, {}, None]}}),
            CHASSIS: {"PowerSubsystem": {"@odata.id": subsystem}},
            subsystem: {"PowerSupplies": {"@odata.id": f"{subsystem}/PowerSupplies"}},
            **collected(f"{subsystem}/PowerSupplies", {"a": {"Id": "a", "Status": {"Health": "Warning"}}}),
        }
    )
    assert found.failed == {}
    assert found.facts.memory_bytes == 2 << 30
    assert [(disk.name, disk.size_bytes) for disk in found.facts.disks] == [("disk_0", 5)]
    assert [(one.name, one.health) for one in found.facts.power_supplies] == [("a", "Warning")]


def test_accelerators_and_secure_boot_are_read() -> None:
    def device(name: str) -> str:
        return f"{SYSTEM}/PCIeDevices/{name}"

    function = {
        "ClassCode": "0x030200", "VendorId": "0x10DE", "DeviceId": "0x2330", "SegmentNumber": "0x0001",
        "BusNumber": "0x3B", "DeviceNumber": "0x00", "FunctionNumber": "0x01",
    }  # fmt: skip
    gpu = {"Id": "gpu", "ProcessorType": "GPU", "Model": "H100", "Links": {"PCIeDevice": {"@odata.id": device("a")}}}
    resources = a_server() | {
        **collected(f"{SYSTEM}/Processors", {"gpu": gpu, "dpu": {"Id": "dpu", "ProcessorType": "FPGA"}}),
        device("a"): {"Links": {"PCIeFunctions": links(f"{device('a')}/PCIeFunctions/1")}},
        f"{device('a')}/PCIeFunctions/1": function,
        f"{SYSTEM}/SecureBoot": {"SecureBootCurrentBoot": "Disabled"},
    }
    resources[SYSTEM] |= {"SecureBoot": {"@odata.id": f"{SYSTEM}/SecureBoot"}, "PCIeDevices": links(device("unread"))}
    found, asked = read(resources)
    assert found.failed == {}
    first, second = found.facts.accelerators
    assert (first.name, first.model, first.pci_address) == ("gpu", "H100", "0001:3b:00.1")
    assert (first.vendor_id, first.device_id, first.class_) == ("10de", "2330", "0302")
    assert (second.name, second.pci_address) == ("dpu", None)
    assert found.facts.firmware is not None
    assert (found.facts.firmware.version, found.facts.firmware.secure_boot) == ("1.2", False)
    assert device("unread") not in asked


def test_without_such_processors_accelerators_are_pcie_devices() -> None:
    functions = {"vga": "0x030000", "npu": "0x120000", "nic": "0x020000", "odd": 3, "none": None}
    paths = [f"{SYSTEM}/PCIeDevices/{name}" for name in functions]
    resources: dict[str, Any] = {SYSTEM: {"PCIeDevices": links(*paths)}}
    for path, code in zip(paths, functions.values(), strict=True):
        name = path.rpartition("/")[2]
        resources[path] = {"Id": name, "PCIeFunctions": {"@odata.id": f"{path}/PCIeFunctions"},
                           "Status": {"State": "Enabled", "Health": "Warning"}}  # fmt: skip
        resources |= collected(f"{path}/PCIeFunctions", {"1": {"ClassCode": code}} if code else {})
    found, _ = read(resources)
    assert [(card.name, card.class_, card.health) for card in found.facts.accelerators] == [
        ("vga", "0300", "Warning"),
        ("npu", "1200", "Warning"),
    ]


def test_a_part_that_fails_is_named_and_the_others_are_read() -> None:
    broken = a_server() | {f"{SYSTEM}/Storage/1/Drives/b": Garbled("not JSON"), FIRMWARE: Transient("500")}
    found, _ = read(broken)
    assert found.failed == {"Storage": "not JSON", "FirmwareInventory": "500"}
    assert not found.cut_short
    assert (found.facts.disks, found.facts.firmware_inventory) == ((), ())
    assert len(found.facts.nics) == len(found.facts.power_supplies) == 2


def test_a_member_that_does_not_exist_is_left_out() -> None:
    resources = a_server()
    del resources[f"{SYSTEM}/Storage/1/Drives/a"], resources[FIRMWARE]
    found, _ = read(resources)
    assert (found.failed, len(found.facts.disks), found.facts.firmware_inventory) == ({}, 1, ())


def test_a_bmc_that_fails_in_between_is_asked_nothing_more() -> None:
    found, asked = read(a_server() | {f"{SYSTEM}/Storage": BmcBusy("503")})
    assert asked[-1] == f"{SYSTEM}/Storage"
    assert found.cut_short
    assert set(found.failed) == {"Storage", "EthernetInterfaces", "FirmwareInventory", "PowerSupplies"}
    assert found.facts.cpus == 8


def test_hundreds_of_members_cost_a_bounded_number_of_requests() -> None:
    many = {str(number): {"Id": f"m{number}", "Name": f"m{number}", "Version": "1"} for number in range(500)}
    drives = {f"{SYSTEM}/Drives/{number}": {"Id": f"d{number}"} for number in range(500)}
    found, asked = read(
        a_server()
        | collected(FIRMWARE, many)
        | collected(f"{SYSTEM}/Processors", many)
        | collected(f"{SYSTEM}/EthernetInterfaces", many)
        | collected(f"{SYSTEM}/Storage", {name: {"Drives": links(*drives)} for name in many})
        | drives
    )
    assert len(found.facts.firmware_inventory) == MAX_FIRMWARE
    assert len(found.facts.disks) == 128
    assert len(asked) <= MAX_REQUESTS
    assert bounded(found.facts) == found.facts, "within the limits of the API"


KEYS = st.sampled_from(
    (
        *("Id", "Name", "Members", "Status", "State", "Health", "Links", "Version", "@odata.id", "Devices"),
        *("Chassis", "Power", "PowerSupplies", "Processors", "Memory", "Storage", "Drives", "EthernetInterfaces"),
        *("MACAddress", "SpeedMbps", "CapacityBytes", "Identifiers", "DurableName", "DurableNameFormat"),
        *("PCIeDevices", "PCIeFunctions", "PCIeDevice", "ClassCode", "BusNumber", "ProcessorType", "SecureBoot"),
        *("ProcessorSummary", "MemorySummary", "Count", "TotalSystemMemoryGiB", "TrustedModules", "InterfaceType"),
    )
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=300)
KNOWN = st.sampled_from(
    [SYSTEM, FIRMWARE, CHASSIS, "NAA", "TPM2_0", "02:aa:00:00:00:01", "x86-64", "OK", "GPU", "0x030000"]
)
JSON = st.recursive(
    LEAVES | KNOWN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6), max_leaves=20
)


@given(st.dictionaries(KEYS, JSON, max_size=12), st.dictionaries(KEYS, JSON, max_size=6))
def test_whatever_a_bmc_answers_is_read(system: dict[str, Any], other: dict[str, Any]) -> None:
    found, asked = read({SYSTEM: system, FIRMWARE: other, CHASSIS: other, "OK": other})
    assert found.failed == {}
    assert len(asked) <= MAX_REQUESTS
    assert bounded(found.facts) == found.facts


def test_the_facts_of_one_source_complete_those_of_another() -> None:
    first, second = {"cpus": 4, "processor": {"model": "a"}}, {"cpus": 8, "processor": {"model": "b", "cores": 2}}
    assert inventory.joined(first, second) == {"cpus": 4, "processor": {"model": "a", "cores": 2}}


# ---- through the client


async def test_an_inventory_of_the_lab_costs_the_documented_number_of_requests(pool: BmcPool) -> None:
    async with LabBmc() as bmc:
        account = BmcAccount(bmc.url, bmc.username, bmc.password, cert_fingerprint=bmc.fingerprint)
        found = await pool.bmc(account).inventory(lambda: True)
        asked = [(each.method, each.path) for each in bmc.bmc.journal]
    assert (found.failed, found.cut_short) == ({}, False)
    facts = found.facts
    assert facts.system is not None
    assert (facts.cpus, facts.memory_bytes, facts.system.serial_number) == (64, 128 << 30, "lab-01-0")
    assert [len(each) for each in (facts.disks, facts.nics, facts.firmware_inventory)] == [2, 2, 3]
    assert [(one.name, one.health) for one in facts.power_supplies] == [("PSU1", "OK"), ("PSU2", "OK")]
    assert all(method == "GET" for method, _ in asked[1:])
    assert len(asked) == 25, asked
    (card,) = facts.accelerators
    assert (card.name, card.pci_address, card.class_, card.health) == ("GPU1", "0000:17:00.0", "0302", "OK")
    assert facts.firmware is not None
    assert facts.firmware.secure_boot


async def test_a_reading_gives_way_between_two_requests(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.extra = {"Processors": {"@odata.id": f"{SYSTEM}/Processors"}}
    with pytest.raises(InventoryInterrupted):
        await pool.bmc(bmc.access()).inventory(lambda: bmc.count("GET", f"{SYSTEM}/Processors") == 0)
    assert bmc.requests[-1] == ("GET", f"{SYSTEM}/Processors")


async def test_a_bmc_that_hangs_up_leaves_the_rest_unread(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.extra = {"Processors": {"@odata.id": f"{SYSTEM}/Processors"}, "BiosVersion": "1"}
    bmc.always("GET", f"{SYSTEM}/Processors", hang_up)
    found = await pool.bmc(bmc.access()).inventory(lambda: True)
    assert found.cut_short
    assert found.facts.firmware is not None
    assert set(found.failed) == {"Processors", "FirmwareInventory"}


async def test_a_moved_system_is_found_again(bmc: FakeBmc, pool: BmcPool) -> None:
    handle = pool.bmc(bmc.access())
    await handle.system()
    bmc.once("GET", SYSTEM, says(lambda: error(404, "ResourceMissingAtURI")))
    with pytest.raises(Unsupported):
        await handle.inventory(lambda: True)
    assert (await handle.inventory(lambda: True)).failed == {}
