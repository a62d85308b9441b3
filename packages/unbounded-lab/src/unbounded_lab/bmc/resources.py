"""Resources of the Redfish service: a table of paths and the functions that render them for GET.

`inventory.py` renders what a host is made of. The service adds the ETags.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from unbounded_lab.bmc.access import ACCOUNT_ID, ROLE, BmcSession
from unbounded_lab.bmc.console import console_service
from unbounded_lab.bmc.device import ABSENT, BMC, BmcSystem, Render, SimulatedBmc, Task, TaskState
from unbounded_lab.bmc.inventory import CHASSIS_ID, INVENTORY, POWER, summary
from unbounded_lab.bmc.media import RESOURCES_OF_MEDIA, media_link
from unbounded_lab.bmc.power import OverrideEnabled
from unbounded_lab.bmc.redfish import (
    COLLECTIONS,
    ENABLED,
    ROOT,
    SCHEMAS,
    Body,
    collection,
    link,
    message_body,
    resource,
    system_path,
)
from unbounded_lab.http import Routes

MANAGER_ID: Final = "BMC"
NIC_ID: Final = "1"
HOST_NICS: Final = (NIC_ID, "2")
SECOND_NIC: Final = 128  # added to the index of a host for the address of its second NIC
MANAGER: Final = f"{ROOT}/Managers/{MANAGER_ID}"
EVENTS: Final = f"{ROOT}/EventService"
SSE: Final = f"{EVENTS}/SSE"
CHASSIS: Final = f"{ROOT}/Chassis/{CHASSIS_ID}"

BOOT_MODES: Final = ("UEFI", "Legacy")
CHASSIS_RESETS: Final = ("On", "ForceOff", "PowerCycle")
MANAGER_RESETS: Final = ("GracefulRestart", "ForceRestart")

ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "Administrator": ("Login", "ConfigureManager", "ConfigureUsers", "ConfigureComponents", "ConfigureSelf"),
    "Operator": ("Login", "ConfigureComponents", "ConfigureSelf"),
    "ReadOnly": ("Login", "ConfigureSelf"),
}


def timestamp(at: float) -> str:
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def versions(_bmc: SimulatedBmc, _ids: tuple[str, ...], _now: float) -> Body:
    return {"v1": f"{ROOT}/"}


def odata(_bmc: SimulatedBmc, _ids: tuple[str, ...], _now: float) -> Body:
    names = ("Systems", "Chassis", "Managers", "SessionService", "AccountService", "Tasks", "UpdateService")
    urls = {name: f"{ROOT}/{'TaskService' if name == 'Tasks' else name}" for name in names}
    singletons = [{"name": name, "kind": "Singleton", "url": url} for name, url in urls.items()]
    service = {"name": "Service", "kind": "Singleton", "url": f"{ROOT}/"}
    return {"@odata.context": f"{ROOT}/$metadata", "value": [service, *singletons]}


def root(bmc: SimulatedBmc, _ids: tuple[str, ...], _now: float) -> Body:
    parts = ["Systems", "Chassis", "Managers", "AccountService", "UpdateService"]
    body = resource("ServiceRoot", f"{ROOT}/", "Root Service", RedfishVersion="1.20.0", UUID=bmc.identity.uuid)
    body |= {"Id": "RootService", "Product": "Unbounded lab BMC", "Vendor": "Unbounded Lab"}
    body |= {"Tasks": link(f"{ROOT}/TaskService"), "Links": {}}
    if bmc.faults.session_service != "absent":
        parts.append("SessionService")
        body["Links"] = {"Sessions": link(f"{ROOT}/SessionService/Sessions")}
    if bmc.faults.event_service != "absent":
        parts.append("EventService")
    return body | {part: link(f"{ROOT}/{part}") for part in parts}


def systems(bmc: SimulatedBmc, _ids: tuple[str, ...], _now: float) -> Body:
    return collection("ComputerSystem", f"{ROOT}/Systems", "Systems", bmc.faults.systems)


def system(bmc: SimulatedBmc, ids: tuple[str, ...], now: float) -> Body | None:
    found = bmc.system(ids[0])
    if found is None:
        return None
    path = system_path(found.name)
    body = resource(
        "ComputerSystem",
        path,
        f"System {found.name}",
        SystemType="Physical",
        Manufacturer="Unbounded Lab",
        Model="Loopback 1",
        SerialNumber=f"{bmc.identity.name}-{found.index}",
        UUID=bmc.identity.system_uuid(found.index),
        HostName=bmc.identity.name,
        Status=ENABLED,
        PowerRestorePolicy=bmc.faults.power_restore,
        Boot=_boot(bmc, found),
        EthernetInterfaces=link(f"{path}/EthernetInterfaces"),
        Links={"Chassis": [link(CHASSIS)], "ManagedBy": [link(MANAGER)]},
        Actions={"#ComputerSystem.Reset": _reset_action(bmc, path)},
        **summary(bmc, path),
        **media_link(bmc, "system", path),
        **console_service(bmc, found),
    )
    power = found.power_state(now, bmc.faults)
    return body if power == ABSENT else body | {"PowerState": power}


def _boot(bmc: SimulatedBmc, found: BmcSystem) -> Body:
    boot = found.host.boot
    shown: Body = {
        "BootSourceOverrideEnabled": boot.enabled.value,
        "BootSourceOverrideTarget": boot.target,
        "BootSourceOverrideMode": boot.mode,
    }
    if bmc.faults.override != "refused":
        shown["BootSourceOverrideEnabled@Redfish.AllowableValues"] = [value.value for value in OverrideEnabled]
        shown["BootSourceOverrideTarget@Redfish.AllowableValues"] = bmc.faults.boot_targets
        shown["BootSourceOverrideMode@Redfish.AllowableValues"] = BOOT_MODES
    return shown


def _reset_action(bmc: SimulatedBmc, path: str) -> Body:
    action: Body = {"target": f"{path}/Actions/ComputerSystem.Reset"}
    if bmc.faults.reset_types_shown in ("both", "inline"):
        action["ResetType@Redfish.AllowableValues"] = bmc.faults.reset_types
    if bmc.faults.reset_types_shown in ("both", "action-info"):
        action["@Redfish.ActionInfo"] = f"{path}/ResetActionInfo"
    return action


def reset_action_info(bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
    found = bmc.system(ids[0])
    if found is None or bmc.faults.reset_types_shown not in ("both", "action-info"):
        return None
    values = bmc.faults.reset_types
    parameter = {"Name": "ResetType", "Required": True, "DataType": "String", "AllowableValues": values}
    return resource(
        "ActionInfo", f"{system_path(found.name)}/ResetActionInfo", "Reset Action Info", Parameters=[parameter]
    )


def system_nics(bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
    found = bmc.system(ids[0])
    if found is None:
        return None
    path = f"{system_path(found.name)}/EthernetInterfaces"
    return collection("EthernetInterface", path, "Host Interfaces", HOST_NICS)


def system_nic(bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
    found = bmc.system(ids[0])
    if found is None or ids[1] not in HOST_NICS:
        return None
    path = f"{system_path(found.name)}/EthernetInterfaces/{ids[1]}"
    index = found.index if ids[1] == NIC_ID else SECOND_NIC + found.index
    return _nic(path, "Host Interface", bmc.identity.mac(index))


def manager_nics(_bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
    path = f"{MANAGER}/EthernetInterfaces"
    return collection("EthernetInterface", path, "BMC Interfaces", [NIC_ID]) if ids[0] == MANAGER_ID else None


def manager_nic(bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
    if ids != (MANAGER_ID, NIC_ID):
        return None
    return _nic(f"{MANAGER}/EthernetInterfaces/{NIC_ID}", "BMC Interface", bmc.identity.mac(255))


def _nic(path: str, name: str, mac: str) -> Body:
    return resource(
        "EthernetInterface",
        path,
        name,
        MACAddress=mac,
        PermanentMACAddress=mac,
        InterfaceEnabled=True,
        LinkStatus="LinkUp",
        SpeedMbps=1000,
        FullDuplex=True,
        Status=ENABLED,
    )


def chassis_all(_bmc: SimulatedBmc, _ids: tuple[str, ...], _now: float) -> Body:
    return collection("Chassis", f"{ROOT}/Chassis", "Chassis", [CHASSIS_ID])


def chassis(bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
    if ids[0] != CHASSIS_ID:
        return None
    reset = {"target": f"{CHASSIS}/Actions/Chassis.Reset", "ResetType@Redfish.AllowableValues": CHASSIS_RESETS}
    return resource(
        "Chassis",
        CHASSIS,
        "Chassis",
        ChassisType="RackMount",
        Manufacturer="Unbounded Lab",
        Model="Loopback 1",
        SerialNumber=bmc.identity.name,
        Status=ENABLED,
        PowerSubsystem=link(POWER),
        Links={
            "ComputerSystems": [link(f"{ROOT}/Systems/{name}") for name in bmc.faults.systems],
            "ManagedBy": [link(MANAGER)],
        },
        Actions={"#Chassis.Reset": reset},
    )


def managers(_bmc: SimulatedBmc, _ids: tuple[str, ...], _now: float) -> Body:
    return collection("Manager", f"{ROOT}/Managers", "Managers", [MANAGER_ID])


def manager(bmc: SimulatedBmc, ids: tuple[str, ...], now: float) -> Body | None:
    if ids[0] != MANAGER_ID:
        return None
    reset = {"target": f"{MANAGER}/Actions/Manager.Reset", "ResetType@Redfish.AllowableValues": MANAGER_RESETS}
    all_systems = [link(f"{ROOT}/Systems/{name}") for name in bmc.faults.systems]
    shown: Body = {} if bmc.faults.manager_reset == "absent" else {"Actions": {"#Manager.Reset": reset}}
    if bmc.faults.last_reset_shown:
        shown["LastResetTime"] = timestamp(bmc.restarted_at)
    return resource(
        "Manager",
        MANAGER,
        "Management Controller",
        ManagerType="BMC",
        FirmwareVersion=bmc.firmware[BMC],
        Model="Unbounded lab BMC",
        DateTime=timestamp(now),
        DateTimeLocalOffset="+00:00",
        UUID=bmc.identity.uuid,
        ServiceEntryPointUUID=bmc.identity.uuid,
        Status=ENABLED,
        EthernetInterfaces=link(f"{MANAGER}/EthernetInterfaces"),
        **media_link(bmc, "manager", MANAGER),
        Links={"ManagerForServers": all_systems, "ManagerForChassis": [link(CHASSIS)]},
        **shown,
    )


def session_service(bmc: SimulatedBmc, _ids: tuple[str, ...], _now: float) -> Body | None:
    if bmc.faults.session_service == "absent":
        return None
    path = f"{ROOT}/SessionService"
    return resource(
        "SessionService",
        path,
        "Session Service",
        ServiceEnabled=bmc.faults.session_service == "works",
        SessionTimeout=min(max(int(bmc.faults.session_timeout_s), 30), 86_400),
        Status=ENABLED,
        Sessions=link(f"{path}/Sessions"),
    )


def sessions(bmc: SimulatedBmc, _ids: tuple[str, ...], now: float) -> Body | None:
    if bmc.faults.session_service == "absent":
        return None
    members = [session.id for session in bmc.access.sessions(now, bmc.faults)]
    return collection("Session", f"{ROOT}/SessionService/Sessions", "Sessions", members)


def session(bmc: SimulatedBmc, ids: tuple[str, ...], now: float) -> Body | None:
    found = bmc.access.session(ids[0], now, bmc.faults)
    return None if found is None else session_body(bmc, found)


def session_body(bmc: SimulatedBmc, found: BmcSession) -> Body:
    path = f"{ROOT}/SessionService/Sessions/{found.id}"
    created = timestamp(found.created)
    return resource("Session", path, "Session", UserName=bmc.access.username, CreatedTime=created)


def account_service(bmc: SimulatedBmc, _ids: tuple[str, ...], _now: float) -> Body:
    path = f"{ROOT}/AccountService"
    body = resource(
        "AccountService",
        path,
        "Account Service",
        ServiceEnabled=True,
        Status=ENABLED,
        AccountLockoutThreshold=bmc.faults.lockout_after,
        AccountLockoutDuration=int(bmc.faults.lockout_s),
        AccountLockoutCounterResetAfter=int(bmc.faults.lockout_s),
        AccountLockoutCounterResetEnabled=True,
    )
    if bmc.faults.password_lengths is not None:
        body["MinPasswordLength"], body["MaxPasswordLength"] = bmc.faults.password_lengths
    return body | {part: link(f"{path}/{part}") for part in ("Accounts", "Roles")}


def accounts(_bmc: SimulatedBmc, _ids: tuple[str, ...], _now: float) -> Body:
    return collection("ManagerAccount", f"{ROOT}/AccountService/Accounts", "Accounts", [ACCOUNT_ID])


def account(bmc: SimulatedBmc, ids: tuple[str, ...], now: float) -> Body | None:
    if ids[0] != ACCOUNT_ID:
        return None
    path = f"{ROOT}/AccountService/Accounts/{ACCOUNT_ID}"
    action = {"#ManagerAccount.ChangePassword": {"target": f"{path}/Actions/ManagerAccount.ChangePassword"}}
    body = resource(
        "ManagerAccount",
        path,
        "User Account",
        UserName=bmc.access.username,
        Password=None,
        RoleId=ROLE,
        AccountTypes=["Redfish"],
        Enabled=True,
        Locked=bmc.faults.lockout_after > 0 and now < bmc.access.locked_until,
        PasswordChangeRequired=bmc.faults.password_expired and not bmc.access.password_changed,
        Links={"Role": link(f"{ROOT}/AccountService/Roles/{ROLE}")},
    )
    return body | {"Actions": action} if bmc.faults.rotation == "action" else body


def roles(_bmc: SimulatedBmc, _ids: tuple[str, ...], _now: float) -> Body:
    return collection("Role", f"{ROOT}/AccountService/Roles", "Roles", tuple(ROLES))


def role(_bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
    if ids[0] not in ROLES:
        return None
    path = f"{ROOT}/AccountService/Roles/{ids[0]}"
    privileges = ROLES[ids[0]]
    return resource("Role", path, f"{ids[0]} Role", RoleId=ids[0], IsPredefined=True, AssignedPrivileges=privileges)


def task_service(_bmc: SimulatedBmc, _ids: tuple[str, ...], _now: float) -> Body:
    return resource(
        "TaskService",
        f"{ROOT}/TaskService",
        "Task Service",
        ServiceEnabled=True,
        Status=ENABLED,
        CompletedTaskOverWritePolicy="Oldest",
        Tasks=link(f"{ROOT}/TaskService/Tasks"),
    )


def tasks(bmc: SimulatedBmc, _ids: tuple[str, ...], now: float) -> Body:
    members = [task.id for task in bmc.tasks.visible(now)]
    return collection("Task", f"{ROOT}/TaskService/Tasks", "Tasks", members)


def task(bmc: SimulatedBmc, ids: tuple[str, ...], now: float) -> Body | None:
    found = bmc.tasks.get(ids[0], now)
    return None if found is None else task_body(found, now)


def monitor_path(found: Task) -> str:
    return f"{ROOT}/TaskService/TaskMonitors/{found.id}"


def task_body(found: Task, now: float) -> Body:
    state = found.state(now)
    body = resource(
        "Task",
        f"{ROOT}/TaskService/Tasks/{found.id}",
        found.name,
        TaskState=state.value,
        StartTime=timestamp(found.started),
        Messages=[],
    )
    if found.request is not None:
        target, sent = found.request
        body["Payload"] = {"TargetUri": target, "HttpOperation": "POST", "JsonBody": sent, "HttpHeaders": []}
        body["PercentComplete"] = found.percent(now)
    if state is TaskState.RUNNING:
        return body | {"TaskMonitor": monitor_path(found)}
    message = message_body("Success") if state is TaskState.COMPLETED else message_body(*found.problem)
    status = "OK" if state is TaskState.COMPLETED else "Critical"
    return body | {"EndTime": timestamp(found.ends), "TaskStatus": status, "Messages": [message]}


def event_service(bmc: SimulatedBmc, _ids: tuple[str, ...], _now: float) -> Body | None:
    if bmc.faults.event_service == "absent":
        return None
    return resource(
        "EventService",
        EVENTS,
        "Event Service",
        ServiceEnabled=True,
        Status=ENABLED,
        ServerSentEventUri=SSE,
        EventFormatTypes=["Event"],
        RegistryPrefixes=["ResourceEvent"],
        IncludeOriginOfConditionSupported=False,
        Subscriptions=link(f"{EVENTS}/Subscriptions"),
    )


def subscriptions(bmc: SimulatedBmc, _ids: tuple[str, ...], _now: float) -> Body | None:
    if bmc.faults.event_service == "absent":
        return None
    return collection("EventDestination", f"{EVENTS}/Subscriptions", "Subscriptions", tuple(bmc.events.streams))


def subscription(bmc: SimulatedBmc, ids: tuple[str, ...], _now: float) -> Body | None:
    if ids[0] not in bmc.events.streams:
        return None
    return resource(
        "EventDestination",
        f"{EVENTS}/Subscriptions/{ids[0]}",
        "Stream",
        Protocol="Redfish",
        SubscriptionType="SSE",
        EventFormatType="Event",
        Context="",
    )


def metadata() -> bytes:
    """Return the OData metadata document: the schema files of this service's types."""
    versioned = [(f"{name}_v1.xml", name, f"{name}.{version}") for name, version in SCHEMAS.items()]
    plain = [(f"{name}_v1.xml", name, None) for name in COLLECTIONS]
    references = []
    for file, namespace, version in [*versioned, *plain]:
        includes = "".join(f'<edmx:Include Namespace="{each}"/>' for each in (namespace, version) if each)
        uri = f"http://redfish.dmtf.org/schemas/v1/{file}"
        references.append(f'<edmx:Reference Uri="{uri}">{includes}</edmx:Reference>')
    container = f'<EntityContainer Name="Service" Extends="ServiceRoot.{SCHEMAS["ServiceRoot"]}.ServiceContainer"/>'
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<edmx:Edmx xmlns:edmx="http://docs.oasis-open.org/odata/ns/edmx" Version="4.0">'
        f"{''.join(references)}<edmx:DataServices>"
        f'<Schema xmlns="http://docs.oasis-open.org/odata/ns/edm" Namespace="Service">{container}</Schema>'
        "</edmx:DataServices></edmx:Edmx>"
    ).encode()


RESOURCES: Final[Routes[Render]] = Routes(
    {
        "/redfish": versions,
        ROOT: root,
        f"{ROOT}/odata": odata,
        f"{ROOT}/Systems": systems,
        f"{ROOT}/Systems/*": system,
        f"{ROOT}/Systems/*/ResetActionInfo": reset_action_info,
        f"{ROOT}/Systems/*/EthernetInterfaces": system_nics,
        f"{ROOT}/Systems/*/EthernetInterfaces/*": system_nic,
        f"{ROOT}/Chassis": chassis_all,
        f"{ROOT}/Chassis/*": chassis,
        f"{ROOT}/Managers": managers,
        f"{ROOT}/Managers/*": manager,
        f"{ROOT}/Managers/*/EthernetInterfaces": manager_nics,
        f"{ROOT}/Managers/*/EthernetInterfaces/*": manager_nic,
        f"{ROOT}/SessionService": session_service,
        f"{ROOT}/SessionService/Sessions": sessions,
        f"{ROOT}/SessionService/Sessions/*": session,
        f"{ROOT}/AccountService": account_service,
        f"{ROOT}/AccountService/Accounts": accounts,
        f"{ROOT}/AccountService/Accounts/*": account,
        f"{ROOT}/AccountService/Roles": roles,
        f"{ROOT}/AccountService/Roles/*": role,
        EVENTS: event_service,
        f"{EVENTS}/Subscriptions": subscriptions,
        f"{EVENTS}/Subscriptions/*": subscription,
        f"{ROOT}/TaskService": task_service,
        f"{ROOT}/TaskService/Tasks": tasks,
        f"{ROOT}/TaskService/Tasks/*": task,
        **INVENTORY,
        **RESOURCES_OF_MEDIA,
    }
)
OPEN: Final = frozenset({"/redfish", ROOT, f"{ROOT}/odata", f"{ROOT}/$metadata"})
"""Paths that need no credentials."""
