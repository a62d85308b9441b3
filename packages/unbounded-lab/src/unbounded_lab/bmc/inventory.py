"""Resources of what a host is made of: processors, GPUs, memory, drives, power supplies, and the firmware of each.

All hosts are alike, but for their serial numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from unbounded_lab.bmc.device import BIOS, BMC, Render, SimulatedBmc
from unbounded_lab.bmc.identity import BmcIdentity
from unbounded_lab.bmc.redfish import ENABLED, ROOT, Body, collection, link, resource, system_path

PROCESSOR: Final = "Loopback Processor 16C"
PROCESSORS: Final = ("CPU1", "CPU2")
CORES: Final = 16
THREADS: Final = 32
GPU: Final = "GPU1"  # a processor, and a PCIe device with one function
GPU_MODEL: Final = "Loopback Accelerator 80GB"
DIMMS: Final = ("DIMM1", "DIMM2", "DIMM3", "DIMM4")
DIMM_MIB: Final = 32_768
DRIVES: Final = ("Disk.Bay.0", "Disk.Bay.1")
DRIVE_BYTES: Final = 960_197_124_096
POWER_SUPPLIES: Final = ("PSU1", "PSU2")
FIRMWARE_NAMES: Final[Mapping[str, str]] = {
    BIOS: "System BIOS",
    BMC: "Management Controller",
    "NIC1": "Network Adapter 1",
}
FIRMWARE: Final = f"{ROOT}/UpdateService/FirmwareInventory"
SIMPLE_UPDATE: Final = f"{ROOT}/UpdateService/Actions/UpdateService.SimpleUpdate"
CHASSIS_ID: Final = "1"
POWER: Final = f"{ROOT}/Chassis/{CHASSIS_ID}/PowerSubsystem"
SUPPLIES: Final = f"{POWER}/PowerSupplies"


def summary(bmc: SimulatedBmc, path: str) -> Body:
    """Return the properties of a ComputerSystem that sum its hardware up, and the links to it."""
    return {
        "BiosVersion": bmc.firmware[BIOS],
        "ProcessorSummary": {
            "Count": len(PROCESSORS),
            "CoreCount": len(PROCESSORS) * CORES,
            "LogicalProcessorCount": len(PROCESSORS) * THREADS,
            "Model": PROCESSOR,
        },
        "MemorySummary": {"TotalSystemMemoryGiB": len(DIMMS) * DIMM_MIB / 1024},
        "TrustedModules": [{"InterfaceType": "TPM2_0", "FirmwareVersion": "7.2.3", "Status": ENABLED}],
        "PCIeDevices": [link(f"{path}/PCIeDevices/{GPU}")],
        "PCIeDevices@odata.count": 1,
        **{part: link(f"{path}/{part}") for part in ("Processors", "Memory", "Storage", "SecureBoot")},
    }


@dataclass(frozen=True, slots=True)
class _Part:
    """A collection below a system.

    Args:
        more: properties of the member with an id, in the system with an index.
    """

    kind: str
    ids: tuple[str, ...]
    more: Callable[[BmcIdentity, int, str, str], Body]  # identity, index, path of the member, id

    def members(self, name: str) -> Render:
        def render(bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
            found = bmc.system(ids[0])
            return (
                collection(self.kind, f"{system_path(found.name)}/{name}", name, self.ids)
                if found is not None
                else None
            )

        return render

    def member(self, name: str) -> Render:
        def render(bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
            found = bmc.system(ids[0])
            if found is None or ids[1] not in self.ids:
                return None
            path = f"{system_path(found.name)}/{name}/{ids[1]}"
            more = self.more(bmc.identity, found.index, path, ids[1])
            return resource(self.kind, path, f"{self.kind} {ids[1]}", Status=ENABLED, **more)

        return render


def _processor(identity: BmcIdentity, index: int, path: str, member: str) -> Body:
    if member == GPU:
        device = f"{path.removesuffix(f'/Processors/{GPU}')}/PCIeDevices/{GPU}"
        functions = [link(f"{device}/PCIeFunctions/1")]
        related = {"PCIeDevice": link(device), "PCIeFunctions": functions, "PCIeFunctions@odata.count": 1}
        return {"ProcessorType": "GPU", "Links": related, **_card(identity, index)}
    return {
        "Socket": member,
        "ProcessorType": "CPU",
        "ProcessorArchitecture": "x86",
        "InstructionSet": "x86-64",
        "Manufacturer": "Unbounded Lab",
        "Model": PROCESSOR,
        "TotalCores": CORES,
        "TotalThreads": THREADS,
    }


def _card(identity: BmcIdentity, index: int) -> Body:
    return {
        "Manufacturer": "Unbounded Lab",
        "Model": GPU_MODEL,
        "SerialNumber": identity.serial_number(f"{GPU} {index}"),
    }


def pcie_device(bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
    found = bmc.system(ids[0])
    if found is None or ids[1] != GPU:
        return None
    path = f"{system_path(found.name)}/PCIeDevices/{GPU}"
    functions = link(f"{path}/PCIeFunctions")
    more = {**_card(bmc.identity, found.index), "DeviceType": "SingleFunction", "PCIeFunctions": functions}
    return resource("PCIeDevice", path, f"PCIe Device {GPU}", Status=ENABLED, **more)


def pcie_functions(bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
    found = bmc.system(ids[0])
    if found is None or ids[1] != GPU:
        return None
    path = f"{system_path(found.name)}/PCIeDevices/{GPU}/PCIeFunctions"
    return collection("PCIeFunction", path, "PCIe Functions", ("1",))


def pcie_function(bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
    found = bmc.system(ids[0])
    if found is None or ids[1:] != (GPU, "1"):
        return None
    device = f"{system_path(found.name)}/PCIeDevices/{GPU}"
    return resource(
        "PCIeFunction",
        f"{device}/PCIeFunctions/1",
        "PCIe Function 1",
        FunctionType="Physical",
        DeviceClass="DisplayController",
        ClassCode="0x030200",
        VendorId="0x10DE",
        DeviceId="0x2330",
        SegmentNumber="0x0000",
        BusNumber="0x17",
        DeviceNumber="0x00",
        FunctionNumber="0x0",
        Links={"PCIeDevice": link(device)},
        Status=ENABLED,
    )


def secure_boot(bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
    found = bmc.system(ids[0])
    if found is None:
        return None
    return resource(
        "SecureBoot",
        f"{system_path(found.name)}/SecureBoot",
        "Secure Boot",
        SecureBootEnable=True,
        SecureBootCurrentBoot="Enabled",
        SecureBootMode="UserMode",
    )


def _memory(identity: BmcIdentity, index: int, _path: str, member: str) -> Body:
    return {
        "CapacityMiB": DIMM_MIB,
        "MemoryType": "DRAM",
        "MemoryDeviceType": "DDR5",
        "Manufacturer": "Unbounded Lab",
        "SerialNumber": identity.serial_number(f"{member} {index}"),
    }


def _storage(_identity: BmcIdentity, _index: int, path: str, _member: str) -> Body:
    return {"Drives": [link(f"{path}/Drives/{drive}") for drive in DRIVES], "Drives@odata.count": len(DRIVES)}


_PARTS: Final[Mapping[str, _Part]] = {
    "Processors": _Part("Processor", (*PROCESSORS, GPU), _processor),
    "Memory": _Part("Memory", DIMMS, _memory),
    "Storage": _Part("Storage", ("1",), _storage),
}


def drive(bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
    found = bmc.system(ids[0])
    if found is None or ids[1] != "1" or ids[2] not in DRIVES:
        return None
    serial = bmc.identity.serial_number(f"{ids[2]} {found.index}")
    return resource(
        "Drive",
        f"{system_path(found.name)}/Storage/1/Drives/{ids[2]}",
        f"Drive {ids[2]}",
        CapacityBytes=DRIVE_BYTES,
        BlockSizeBytes=512,
        MediaType="SSD",
        Protocol="SATA",
        Manufacturer="Unbounded Lab",
        Model="Loopback SSD",
        SerialNumber=serial,
        Identifiers=[{"DurableName": f"5000{serial[:12].lower()}", "DurableNameFormat": "NAA"}],
        FailurePredicted=False,
        Status=ENABLED,
    )


def power_subsystem(_bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
    if ids[0] != CHASSIS_ID:
        return None
    return resource("PowerSubsystem", POWER, "Power Subsystem", Status=ENABLED, PowerSupplies=link(SUPPLIES))


def power_supplies(_bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
    return collection("PowerSupply", SUPPLIES, "Power Supplies", POWER_SUPPLIES) if ids[0] == CHASSIS_ID else None


def power_supply(bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
    if ids[0] != CHASSIS_ID or ids[1] not in POWER_SUPPLIES:
        return None
    serial = bmc.identity.serial_number(ids[1])
    return resource("PowerSupply", f"{SUPPLIES}/{ids[1]}", ids[1], SerialNumber=serial, Status=ENABLED)


def update_service(bmc: SimulatedBmc, _ids: tuple[str, ...], _now: float) -> Body:
    path = f"{ROOT}/UpdateService"
    more: dict[str, Any] = {"ServiceEnabled": True, "Status": ENABLED, "FirmwareInventory": link(FIRMWARE)}
    if bmc.faults.firmware_update != "absent":
        action: Body = {"target": SIMPLE_UPDATE}
        if bmc.faults.update_protocols is not None:
            action["TransferProtocol@Redfish.AllowableValues"] = bmc.faults.update_protocols
        more["Actions"] = {"#UpdateService.SimpleUpdate": action}
    return resource("UpdateService", path, "Update Service", **more)


def firmware_all(bmc: SimulatedBmc, _ids: tuple[str, ...], _now: float) -> Body:
    return collection("SoftwareInventory", FIRMWARE, "Firmware Inventory", tuple(bmc.firmware))


def firmware(bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
    if ids[0] not in bmc.firmware:
        return None
    more = {"Version": bmc.firmware[ids[0]], "Updateable": bmc.faults.firmware_update != "absent", "Status": ENABLED}
    return resource("SoftwareInventory", f"{FIRMWARE}/{ids[0]}", FIRMWARE_NAMES[ids[0]], **more)


INVENTORY: Final[Mapping[str, Render]] = {
    **{f"{ROOT}/Systems/*/{name}": part.members(name) for name, part in _PARTS.items()},
    **{f"{ROOT}/Systems/*/{name}/*": part.member(name) for name, part in _PARTS.items()},
    f"{ROOT}/Systems/*/Storage/*/Drives/*": drive,
    f"{ROOT}/Systems/*/PCIeDevices/*": pcie_device,
    f"{ROOT}/Systems/*/PCIeDevices/*/PCIeFunctions": pcie_functions,
    f"{ROOT}/Systems/*/PCIeDevices/*/PCIeFunctions/*": pcie_function,
    f"{ROOT}/Systems/*/SecureBoot": secure_boot,
    f"{ROOT}/Chassis/*/PowerSubsystem": power_subsystem,
    f"{ROOT}/Chassis/*/PowerSubsystem/PowerSupplies": power_supplies,
    f"{ROOT}/Chassis/*/PowerSubsystem/PowerSupplies/*": power_supply,
    f"{ROOT}/UpdateService": update_service,
    FIRMWARE: firmware_all,
    f"{FIRMWARE}/*": firmware,
}
