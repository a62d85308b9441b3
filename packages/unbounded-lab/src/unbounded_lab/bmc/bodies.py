"""Bodies of Redfish resources: their common properties, and the versions of their schemas.

Schema versions are those of the bundle DSP8010 2025.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from unbounded_lab.bmc.device import BmcSystem, SimulatedBmc

Body = dict[str, Any]
Render = Callable[[SimulatedBmc, tuple[str, ...], float], Body | None]

ROOT: Final = "/redfish/v1"

SCHEMAS: Final[Mapping[str, str]] = {
    "AccountService": "v1_15_1",
    "ActionInfo": "v1_4_2",
    "Chassis": "v1_25_2",
    "ComputerSystem": "v1_26_0",
    "Drive": "v1_22_0",
    "EventDestination": "v1_16_0",
    "EventService": "v1_12_0",
    "EthernetInterface": "v1_12_2",
    "Manager": "v1_19_2",
    "ManagerAccount": "v1_12_1",
    "Memory": "v1_23_0",
    "Message": "v1_3_0",
    "PCIeDevice": "v1_21_0",
    "PCIeFunction": "v1_7_0",
    "PowerSubsystem": "v1_1_3",
    "PowerSupply": "v1_6_0",
    "Processor": "v1_22_0",
    "Role": "v1_3_3",
    "SecureBoot": "v1_1_2",
    "ServiceRoot": "v1_17_0",
    "Session": "v1_7_2",
    "SessionService": "v1_1_9",
    "SoftwareInventory": "v1_13_0",
    "Storage": "v1_21_0",
    "Task": "v1_7_4",
    "TaskService": "v1_2_1",
    "UpdateService": "v1_17_0",
    "VirtualMedia": "v1_6_5",
}
COLLECTIONS: Final = (
    "ChassisCollection",
    "ComputerSystemCollection",
    "EthernetInterfaceCollection",
    "EventDestinationCollection",
    "ManagerAccountCollection",
    "ManagerCollection",
    "MemoryCollection",
    "PCIeFunctionCollection",
    "PowerSupplyCollection",
    "ProcessorCollection",
    "RoleCollection",
    "SessionCollection",
    "SoftwareInventoryCollection",
    "StorageCollection",
    "TaskCollection",
    "VirtualMediaCollection",
)

ENABLED: Final = {"State": "Enabled", "Health": "OK"}


def schema(name: str) -> str:
    return f"#{name}.{SCHEMAS[name]}.{name}"


def link(path: str) -> dict[str, str]:
    return {"@odata.id": path}


def system_path(system: BmcSystem) -> str:
    return f"{ROOT}/Systems/{system.name}"


def resource(kind: str, path: str, name: str, **more: Any) -> Body:
    return {
        "@odata.type": schema(kind),
        "@odata.id": path,
        "Id": path.rpartition("/")[2],
        "Name": name,
        "Description": name,
        **more,
    }


def collection(kind: str, path: str, name: str, members: Sequence[str]) -> Body:
    return {
        "@odata.type": f"#{kind}Collection.{kind}Collection",
        "@odata.id": path,
        "Name": name,
        "Members": [link(f"{path}/{member}") for member in members],
        "Members@odata.count": len(members),
    }
