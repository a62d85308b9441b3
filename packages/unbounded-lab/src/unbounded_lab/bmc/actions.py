"""Actions of a BMC on POST, PATCH and DELETE: a table of paths for each method, and their functions.

Each function takes the BMC, the segments at the `*` of its pattern, the request and the time. It raises RedfishProblem
to reject the request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from unbounded_lab.bmc import resources
from unbounded_lab.bmc.access import ACCOUNT_ID
from unbounded_lab.bmc.device import BmcSystem, SimulatedBmc, Task, TaskState
from unbounded_lab.bmc.events import EVENT_STREAM
from unbounded_lab.bmc.inventory import CHASSIS_ID, FIRMWARE, SIMPLE_UPDATE
from unbounded_lab.bmc.media import ACTIONS_OF_MEDIA
from unbounded_lab.bmc.power import HostBootOverride, HostPower, OverrideEnabled, Press, PressEffect
from unbounded_lab.bmc.redfish import EXTENDED_INFO, ROOT, BmcRequest, RedfishProblem, json_reply, message_body
from unbounded_lab.http import LabReply, Routes

Act = Callable[[SimulatedBmc, tuple[str, ...], BmcRequest, float], LabReply]

IMAGE: Final = re.compile(r"/(?P<component>\w+)-(?P<version>[\d.]+\d)\.\w+$")
NO_CONTENT: Final = LabReply(204)

BOOT_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "BootSourceOverrideEnabled": tuple(OverrideEnabled),
    "BootSourceOverrideMode": resources.BOOT_MODES,
}


def login(bmc: SimulatedBmc, _ids: tuple[str, ...], request: BmcRequest, now: float) -> LabReply:
    if bmc.faults.session_service == "absent":
        raise RedfishProblem("ResourceMissingAtURI", request.path)
    body = request.json()
    username, password = (_string(body, name) for name in ("UserName", "Password"))
    session = bmc.access.login(username, password, now, bmc.faults)
    shown = resources.session_body(bmc, session)
    if bmc.faults.password_expired and not bmc.access.password_changed:
        shown[EXTENDED_INFO] = [message_body("PasswordChangeRequired", f"{ROOT}/AccountService/Accounts/{ACCOUNT_ID}")]
    headers = {"x-auth-token": session.token, "location": shown["@odata.id"]}
    return json_reply(shown, status=201, headers=headers)


def logout(bmc: SimulatedBmc, ids: tuple[str, ...], request: BmcRequest, now: float) -> LabReply:
    session = bmc.access.session(ids[0], now, bmc.faults)
    if session is None:
        raise RedfishProblem("ResourceMissingAtURI", request.path)
    bmc.access.logout(session)
    return NO_CONTENT


def reset_system(bmc: SimulatedBmc, ids: tuple[str, ...], request: BmcRequest, now: float) -> LabReply:
    found = _system(bmc, ids[0], request)
    press = Press(_reset_type(request, "ComputerSystem.Reset", bmc.faults.reset_types))
    if bmc.spend("failing_resets"):
        raise RedfishProblem("InternalError")
    if bmc.spend("deaf_resets"):
        bmc.record_ignored_reset(found, press, now)
        return NO_CONTENT
    if bmc.faults.reset_task != "none":
        return _reset_by_task(bmc, found, press, now)
    effect = bmc.press(found, press, now)
    if effect is PressEffect.IMPOSSIBLE:
        raise RedfishProblem("ResourceInStandby")
    if effect is PressEffect.ALREADY:
        return _already(bmc, found)
    return NO_CONTENT


def _already(bmc: SimulatedBmc, found: BmcSystem) -> LabReply:
    match bmc.faults.already_status:
        case 400:
            raise RedfishProblem("iLO.2.18.InvalidOperationForSystemState")
        case 409:
            raise RedfishProblem("IDRAC.2.1.PSU501", "OFF" if found.host.power is HostPower.OFF else "ON")
        case status:
            return LabReply(status)


def _reset_by_task(bmc: SimulatedBmc, found: BmcSystem, press: Press, now: float) -> LabReply:
    kind = bmc.faults.reset_task
    outcome = TaskState.EXCEPTION if kind == "fails" else TaskState.COMPLETED
    task = bmc.tasks.start(
        f"{press.value} of system {found.name}",
        partial(bmc.press, found, press),
        now,
        takes_s=bmc.faults.task_s,
        outcome=outcome,
        vanishes=kind == "vanishes",
    )
    return _accepted(task, now)


def _accepted(task: Task, now: float) -> LabReply:
    headers = {"location": resources.monitor_path(task), "retry-after": "1"}
    return json_reply(resources.task_body(task, now), status=202, headers=headers)


def simple_update(bmc: SimulatedBmc, _ids: tuple[str, ...], request: BmcRequest, now: float) -> LabReply:
    """Accept an image whose name has component and version, such as BIOS-2.5.0.bin; nothing is loaded."""
    if bmc.faults.firmware_update == "absent":
        raise RedfishProblem("ActionNotSupported", "UpdateService.SimpleUpdate")
    body = request.json()
    for name in body.keys() - {"ImageURI", "TransferProtocol", "Targets"}:
        raise RedfishProblem("ActionParameterNotSupported", name, "UpdateService.SimpleUpdate")
    image = _string(body, "ImageURI")
    found = IMAGE.search(image)
    component = found["component"] if found is not None else ""
    targets = body.get("Targets", [f"{FIRMWARE}/{component}"])
    is_good = found is not None and targets == [f"{FIRMWARE}/{component}"] and component in bmc.firmware
    kind = bmc.faults.firmware_update
    version = bmc.firmware.get(component, "") if found is None or kind == "same-version" else found["version"]
    bmc.updates.append(image)
    task = bmc.tasks.start(
        f"Update from {image}",
        partial(bmc.install, component, version),
        now,
        takes_s=bmc.faults.update_s,
        outcome=TaskState.COMPLETED if is_good else TaskState.EXCEPTION,
        vanishes=kind == "vanishes",
        problem=("Update.1.2.VerificationFailed", image, ", ".join(targets)),
        request=(SIMPLE_UPDATE, request.body.decode()),
    )
    return _accepted(task, now)


def monitor(bmc: SimulatedBmc, ids: tuple[str, ...], request: BmcRequest, now: float) -> LabReply:
    """Answer at a Task's monitor: 202 while it runs, then the reply that the action itself would have had."""
    task = bmc.tasks.get(ids[0], now)
    if task is None:
        raise RedfishProblem("ResourceMissingAtURI", request.path)
    match task.state(now):
        case TaskState.RUNNING:
            headers = {"location": resources.monitor_path(task), "retry-after": "1"}
            return json_reply(resources.task_body(task, now), status=202, headers=headers)
        case TaskState.EXCEPTION:
            raise RedfishProblem(*task.problem)
        case TaskState.COMPLETED:
            return NO_CONTENT


def stream(bmc: SimulatedBmc, _ids: tuple[str, ...], request: BmcRequest, _now: float) -> LabReply:
    """Accept a stream of events, whose frames follow. As OpenBMC does, require its media type in Accept."""
    if bmc.faults.event_service == "absent" or EVENT_STREAM not in request.headers.get("accept", ""):
        raise RedfishProblem("ResourceMissingAtURI", request.path)
    if len(bmc.events.streams) >= bmc.faults.event_streams:
        raise RedfishProblem("EventSubscriptionLimitExceeded")
    return LabReply(200, headers={"content-type": EVENT_STREAM})


def reset_chassis(bmc: SimulatedBmc, ids: tuple[str, ...], request: BmcRequest, now: float) -> LabReply:
    """Switch all hosts of the chassis; the faults of a system's own reset do not apply."""
    if ids[0] != CHASSIS_ID:
        raise RedfishProblem("ResourceMissingAtURI", request.path)
    press = Press(_reset_type(request, "Chassis.Reset", resources.CHASSIS_RESETS))
    for found in bmc.systems:
        bmc.press(found, press, now)
    return NO_CONTENT


def reset_manager(bmc: SimulatedBmc, ids: tuple[str, ...], request: BmcRequest, now: float) -> LabReply:
    if ids[0] != resources.MANAGER_ID:
        raise RedfishProblem("ResourceMissingAtURI", request.path)
    if bmc.faults.manager_reset == "absent":
        raise RedfishProblem("ActionNotSupported", "Manager.Reset")
    _reset_type(request, "Manager.Reset", resources.MANAGER_RESETS)
    if bmc.faults.manager_reset == "restarts":
        bmc.restart(now)
    return NO_CONTENT


def patch_system(bmc: SimulatedBmc, ids: tuple[str, ...], request: BmcRequest, now: float) -> LabReply:
    found = _system(bmc, ids[0], request)
    requested = _only(request.json(), "Boot")
    if not isinstance(requested, dict):
        raise RedfishProblem("PropertyValueTypeError", str(requested), "Boot")
    boot = _boot_from(found.host.boot, requested, bmc.faults.boot_targets, reverts=bmc.faults.override_mode_reverts)
    match bmc.faults.override:
        case "refused":
            raise RedfishProblem("OperationNotAllowed", headers={"allow": "GET, HEAD"})
        case "fails-when-off" if found.host.power is HostPower.OFF:
            raise RedfishProblem("InternalError")
        case "dropped":
            pass
        case "continuous" if boot.enabled is OverrideEnabled.ONCE:
            found.host.boot = HostBootOverride(OverrideEnabled.CONTINUOUS, boot.target, boot.mode)
        case _:
            found.host.boot = boot
    return json_reply(resources.system(bmc, ids, now) or {})


def _boot_from(
    boot: HostBootOverride, requested: Mapping[str, Any], targets: tuple[str, ...], *, reverts: bool
) -> HostBootOverride:
    """Return the override that a PATCH requests.

    Raises:
        RedfishProblem: an unknown property, or a value that is not listed.
    """
    values = {**BOOT_VALUES, "BootSourceOverrideTarget": targets}
    for name, value in requested.items():
        if name not in values:
            raise RedfishProblem("PropertyUnknown", name)
        if value not in values[name]:
            raise RedfishProblem("PropertyValueNotInList", str(value), name)
    enabled = OverrideEnabled(requested.get("BootSourceOverrideEnabled", boot.enabled))
    target = "None" if enabled is OverrideEnabled.DISABLED else boot.target
    return HostBootOverride(
        enabled,
        requested.get("BootSourceOverrideTarget", target),
        requested.get("BootSourceOverrideMode", "Legacy" if reverts else boot.mode),
    )


def patch_account(bmc: SimulatedBmc, ids: tuple[str, ...], request: BmcRequest, now: float) -> LabReply:
    if ids[0] != ACCOUNT_ID:
        raise RedfishProblem("ResourceMissingAtURI", request.path)
    if bmc.faults.rotation in ("action", "absent"):
        raise RedfishProblem("PropertyNotWritable", "Password")
    body = request.json()
    _only(body, "Password")
    bmc.access.request_password(_string(body, "Password"), now, bmc.faults)
    return json_reply(resources.account(bmc, ids, now) or {})


def change_password(bmc: SimulatedBmc, ids: tuple[str, ...], request: BmcRequest, now: float) -> LabReply:
    if ids[0] != ACCOUNT_ID or bmc.faults.rotation != "action":
        raise RedfishProblem("ResourceMissingAtURI", request.path)
    body = request.json()
    if _string(body, "SessionAccountPassword") != bmc.access.password:
        raise RedfishProblem("NoValidSession", status=403)
    bmc.access.request_password(_string(body, "NewPassword"), now, bmc.faults)
    return NO_CONTENT


def _system(bmc: SimulatedBmc, name: str, request: BmcRequest) -> BmcSystem:
    found = bmc.system(name)
    if found is None:
        raise RedfishProblem("ResourceMissingAtURI", request.path)
    return found


def _reset_type(request: BmcRequest, action: str, allowed: tuple[str, ...]) -> str:
    body = request.json()
    for name in body.keys() - {"ResetType"}:
        raise RedfishProblem("ActionParameterNotSupported", name, action)
    if "ResetType" not in body:
        raise RedfishProblem("ActionParameterMissing", action, "ResetType")
    if body["ResetType"] not in allowed:
        raise RedfishProblem("ActionParameterValueNotInList", str(body["ResetType"]), "ResetType", action)
    return str(body["ResetType"])


def _only(body: Mapping[str, Any], name: str) -> Any:
    """Return the value of the one writable property."""
    for other in body.keys() - {name}:
        raise RedfishProblem("PropertyNotWritable", other)
    if name not in body:
        raise RedfishProblem("PropertyMissing", name)
    return body[name]


def _string(body: Mapping[str, Any], name: str) -> str:
    if name not in body:
        raise RedfishProblem("PropertyMissing", name)
    if not isinstance(body[name], str):
        raise RedfishProblem("PropertyValueTypeError", str(body[name]), name)
    return str(body[name])


ACTIONS: Final[Mapping[str, Routes[Act]]] = {
    "GET": Routes({f"{ROOT}/TaskService/TaskMonitors/*": monitor, resources.SSE: stream}),
    "POST": Routes(
        {
            f"{ROOT}/SessionService/Sessions": login,
            f"{ROOT}/Systems/*/Actions/ComputerSystem.Reset": reset_system,
            f"{ROOT}/Chassis/*/Actions/Chassis.Reset": reset_chassis,
            f"{ROOT}/Managers/*/Actions/Manager.Reset": reset_manager,
            f"{ROOT}/AccountService/Accounts/*/Actions/ManagerAccount.ChangePassword": change_password,
            **ACTIONS_OF_MEDIA,
            SIMPLE_UPDATE: simple_update,
        }
    ),
    "PATCH": Routes({f"{ROOT}/Systems/*": patch_system, f"{ROOT}/AccountService/Accounts/*": patch_account}),
    "DELETE": Routes({f"{ROOT}/SessionService/Sessions/*": logout}),
}
LOGIN: Final = ("POST", f"{ROOT}/SessionService/Sessions")
