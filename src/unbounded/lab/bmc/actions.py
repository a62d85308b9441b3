"""Actions of a BMC on POST, PATCH and DELETE: a table of paths for each method, and their functions.

Each function takes the BMC, the segments at the `*` of its pattern, the request and the time. It raises Problem to
reject the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from unbounded.lab.bmc.access import ACCOUNT_ID
from unbounded.lab.bmc.device import Bmc
from unbounded.lab.bmc.http import EXTENDED_INFO, Problem, Request, json_reply, message_body
from unbounded.lab.bmc.power import Boot, Effect, Override, Power, Press
from unbounded.lab.bmc.resources import (
    BOOT_MODES,
    CHASSIS_ID,
    CHASSIS_RESETS,
    MANAGER_ID,
    MANAGER_RESETS,
    ROOT,
    account,
    monitor_path,
    session_body,
    system,
    task_body,
)
from unbounded.lab.bmc.system import System
from unbounded.lab.bmc.tasks import TaskState
from unbounded.lab.http import Reply
from unbounded.lab.routes import Routes

Act = Callable[[Bmc, tuple[str, ...], Request, float], Reply]

NO_CONTENT: Final = Reply(204)

BOOT_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "BootSourceOverrideEnabled": tuple(Override),
    "BootSourceOverrideMode": BOOT_MODES,
}


def login(bmc: Bmc, _ids: tuple[str, ...], request: Request, now: float) -> Reply:
    if bmc.dials.session_service == "absent":
        raise Problem("ResourceMissingAtURI", request.path)
    body = request.json()
    username, password = (_string(body, name) for name in ("UserName", "Password"))
    session = bmc.access.login(username, password, now, bmc.dials)
    shown = session_body(bmc, session)
    if bmc.dials.password_expired and not bmc.access.password_changed:
        shown[EXTENDED_INFO] = [message_body("PasswordChangeRequired", f"{ROOT}/AccountService/Accounts/{ACCOUNT_ID}")]
    headers = {"x-auth-token": session.token, "location": shown["@odata.id"]}
    return json_reply(shown, status=201, headers=headers)


def logout(bmc: Bmc, ids: tuple[str, ...], request: Request, now: float) -> Reply:
    session = bmc.access.session(ids[0], now, bmc.dials)
    if session is None:
        raise Problem("ResourceMissingAtURI", request.path)
    bmc.access.logout(session)
    return NO_CONTENT


def reset_system(bmc: Bmc, ids: tuple[str, ...], request: Request, now: float) -> Reply:
    found = _system(bmc, ids[0], request)
    press = Press(_reset_type(request, "ComputerSystem.Reset", bmc.dials.reset_types))
    if bmc.spend("failing_resets"):
        raise Problem("InternalError")
    if bmc.spend("deaf_resets"):
        bmc.leave_unheard(found, press, now)
        return NO_CONTENT
    if bmc.dials.reset_task != "none":
        return _reset_by_task(bmc, found, press, now)
    effect = bmc.press(found, press, now)
    if effect is Effect.IMPOSSIBLE:
        raise Problem("ResourceInStandby")
    if effect is Effect.ALREADY:
        return _already(bmc, found)
    return NO_CONTENT


def _already(bmc: Bmc, found: System) -> Reply:
    match bmc.dials.already_status:
        case 400:
            raise Problem("iLO.2.18.InvalidOperationForSystemState")
        case 409:
            raise Problem("IDRAC.2.1.PSU501", "OFF" if found.host.power is Power.OFF else "ON")
        case status:
            return Reply(status)


def _reset_by_task(bmc: Bmc, found: System, press: Press, now: float) -> Reply:
    kind = bmc.dials.reset_task
    outcome = TaskState.EXCEPTION if kind == "fails" else TaskState.COMPLETED
    task = bmc.tasks.start(
        found.name, press, now, takes_s=bmc.dials.task_s, outcome=outcome, vanishes=kind == "vanishes"
    )
    headers = {"location": monitor_path(task), "retry-after": "1"}
    return json_reply(task_body(task, now), status=202, headers=headers)


def monitor(bmc: Bmc, ids: tuple[str, ...], request: Request, now: float) -> Reply:
    """Answer at a Task's monitor: 202 while it runs, then the reply that the action itself would have had."""
    task = bmc.tasks.get(ids[0], now)
    if task is None:
        raise Problem("ResourceMissingAtURI", request.path)
    match task.state(now):
        case TaskState.RUNNING:
            headers = {"location": monitor_path(task), "retry-after": "1"}
            return json_reply(task_body(task, now), status=202, headers=headers)
        case TaskState.EXCEPTION:
            raise Problem("InternalError")
        case TaskState.COMPLETED:
            return NO_CONTENT


def reset_chassis(bmc: Bmc, ids: tuple[str, ...], request: Request, now: float) -> Reply:
    """Switch all hosts of the chassis; the faults of a system's own reset do not apply."""
    if ids[0] != CHASSIS_ID:
        raise Problem("ResourceMissingAtURI", request.path)
    press = Press(_reset_type(request, "Chassis.Reset", CHASSIS_RESETS))
    for found in bmc.systems:
        bmc.press(found, press, now)
    return NO_CONTENT


def reset_manager(bmc: Bmc, ids: tuple[str, ...], request: Request, now: float) -> Reply:
    if ids[0] != MANAGER_ID:
        raise Problem("ResourceMissingAtURI", request.path)
    _reset_type(request, "Manager.Reset", MANAGER_RESETS)
    bmc.restart(now)
    return NO_CONTENT


def patch_system(bmc: Bmc, ids: tuple[str, ...], request: Request, now: float) -> Reply:
    found = _system(bmc, ids[0], request)
    wanted = _only(request.json(), "Boot")
    if not isinstance(wanted, dict):
        raise Problem("PropertyValueTypeError", str(wanted), "Boot")
    boot = _boot_from(found.host.boot, wanted, bmc.dials.boot_targets, reverts=bmc.dials.override_mode_reverts)
    match bmc.dials.override:
        case "refused":
            raise Problem("OperationNotAllowed", headers={"allow": "GET, HEAD"})
        case "fails-when-off" if found.host.power is Power.OFF:
            raise Problem("InternalError")
        case "dropped":
            pass
        case "continuous" if boot.enabled is Override.ONCE:
            found.host.boot = Boot(Override.CONTINUOUS, boot.target, boot.mode)
        case _:
            found.host.boot = boot
    return json_reply(system(bmc, ids, now) or {})


def _boot_from(boot: Boot, wanted: Mapping[str, Any], targets: tuple[str, ...], *, reverts: bool) -> Boot:
    """Return the override that a PATCH requests.

    Raises:
        Problem: an unknown property, or a value that is not listed.
    """
    values = {**BOOT_VALUES, "BootSourceOverrideTarget": targets}
    for name, value in wanted.items():
        if name not in values:
            raise Problem("PropertyUnknown", name)
        if value not in values[name]:
            raise Problem("PropertyValueNotInList", str(value), name)
    enabled = Override(wanted.get("BootSourceOverrideEnabled", boot.enabled))
    target = "None" if enabled is Override.DISABLED else boot.target
    return Boot(
        enabled,
        wanted.get("BootSourceOverrideTarget", target),
        wanted.get("BootSourceOverrideMode", "Legacy" if reverts else boot.mode),
    )


def patch_account(bmc: Bmc, ids: tuple[str, ...], request: Request, now: float) -> Reply:
    if ids[0] != ACCOUNT_ID:
        raise Problem("ResourceMissingAtURI", request.path)
    body = request.json()
    _only(body, "Password")
    bmc.access.change_password(_string(body, "Password"))
    return json_reply(account(bmc, ids, now) or {})


def _system(bmc: Bmc, name: str, request: Request) -> System:
    found = bmc.system(name)
    if found is None:
        raise Problem("ResourceMissingAtURI", request.path)
    return found


def _reset_type(request: Request, action: str, allowed: tuple[str, ...]) -> str:
    body = request.json()
    for name in body.keys() - {"ResetType"}:
        raise Problem("ActionParameterNotSupported", name, action)
    if "ResetType" not in body:
        raise Problem("ActionParameterMissing", action, "ResetType")
    if body["ResetType"] not in allowed:
        raise Problem("ActionParameterValueNotInList", str(body["ResetType"]), "ResetType", action)
    return str(body["ResetType"])


def _only(body: Mapping[str, Any], name: str) -> Any:
    """Return the value of the one writable property."""
    for other in body.keys() - {name}:
        raise Problem("PropertyNotWritable", other)
    if name not in body:
        raise Problem("PropertyMissing", name)
    return body[name]


def _string(body: Mapping[str, Any], name: str) -> str:
    if name not in body:
        raise Problem("PropertyMissing", name)
    if not isinstance(body[name], str):
        raise Problem("PropertyValueTypeError", str(body[name]), name)
    return str(body[name])


ACTIONS: Final[Mapping[str, Routes[Act]]] = {
    "GET": Routes({f"{ROOT}/TaskService/TaskMonitors/*": monitor}),
    "POST": Routes(
        {
            f"{ROOT}/SessionService/Sessions": login,
            f"{ROOT}/Systems/*/Actions/ComputerSystem.Reset": reset_system,
            f"{ROOT}/Chassis/*/Actions/Chassis.Reset": reset_chassis,
            f"{ROOT}/Managers/*/Actions/Manager.Reset": reset_manager,
        }
    ),
    "PATCH": Routes({f"{ROOT}/Systems/*": patch_system, f"{ROOT}/AccountService/Accounts/*": patch_account}),
    "DELETE": Routes({f"{ROOT}/SessionService/Sessions/*": logout}),
}
LOGIN: Final = ("POST", f"{ROOT}/SessionService/Sessions")
