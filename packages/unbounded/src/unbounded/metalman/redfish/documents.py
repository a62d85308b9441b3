"""Parsers of a BMC's answers: systems, actions, tasks and errors. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from unbounded.api.failures import Failure, Rejected, Transient, Uncertain
from unbounded.metalman.redfish import bmc_interface
from unbounded.metalman.redfish.http import BmcResponse
from unbounded.metalman.redfish.quirks import LASTING, PASSING, TASK_DONE, TASK_RUNNING

RESET: Final = "#ComputerSystem.Reset"
MANAGER_RESET: Final = "#Manager.Reset"
SIMPLE_UPDATE: Final = "#UpdateService.SimpleUpdate"
SSH_PORT: Final = 22
TASK_UNREADABLE: Final = frozenset({429, 503})  # of the service itself, and no end of a task
CHANGE_PASSWORD: Final = "#ManagerAccount.ChangePassword"  # noqa: S105 - the name of an action
PASSWORD_CHANGE_REQUIRED: Final = "PasswordChangeRequired"  # noqa: S105 - the id of a message
_BUSY: Final = frozenset({408, 409, 423, 425, 429, 503})
_UNSUPPORTED: Final = frozenset({400, 404, 405, 410, 501})
_POWER: Final[Mapping[str, bmc_interface.BmcPowerState]] = {
    "on": bmc_interface.BmcPowerState.ON,
    "off": bmc_interface.BmcPowerState.OFF,
}


@dataclass(frozen=True, slots=True)
class SystemReading:
    """State of a system at one time, and the paths for its requests."""

    path: str
    state: bmc_interface.SystemState
    reset_path: str
    action_info: str | None  # path of the list of ResetTypes, if the system does not contain it
    settings_path: str | None  # path for changes on boards that reject them on the system (AMI: .../SD)
    manager_path: str | None  # the first of the managers that the system names


@dataclass(frozen=True, slots=True)
class ManagerReading:
    """State of a BMC's own manager, and the paths for its reset."""

    path: str
    state: bmc_interface.ManagerState
    reset_path: str | None  # None: it has no such action
    allowable: tuple[str, ...] | None
    action_info: str | None


@dataclass(frozen=True, slots=True)
class UpdateReading:
    """Paths and protocols of an UpdateService."""

    update_path: str | None  # None: it has no SimpleUpdate
    protocols: tuple[str, ...] | None  # TransferProtocols that the service lists; None: no list
    action_info: str | None


@dataclass(frozen=True, slots=True)
class AccountServiceReading:
    """List of accounts of an AccountService, and its limits of a password's length."""

    accounts_path: str | None
    min_length: int | None
    max_length: int | None


@dataclass(frozen=True, slots=True)
class AccountReading:
    """One account of a BMC."""

    user: str
    change_path: str | None  # of the action ChangePassword; None: it has none


def system(document: Mapping[str, Any], *, path: str, device_id: str, etag: str | None) -> SystemReading:
    """Parse a ComputerSystem; a missing field, or one of another type, counts as unknown.

    Raises:
        Garbled: the document is not a ComputerSystem.
    """
    if not {"PowerState", "Actions", "Boot", "Id"} & document.keys():
        raise bmc_interface.Garbled(f"the answer to {bmc_interface.clean(path)} is not a system")
    own = _text(document, "@odata.id") or ""
    if own.rstrip("/") == path.rstrip("/"):
        path = own  # in the BMC's spelling: some BMCs redirect a path without a slash at its end
    boot = _mapping(document, "Boot")
    reset = _mapping(_mapping(document, "Actions"), RESET)
    power_text = _text(document, "PowerState") or ""
    state = bmc_interface.SystemState(
        device_id=device_id,
        power=_POWER.get(power_text.lower(), bmc_interface.BmcPowerState.UNSETTLED),
        power_text=bmc_interface.clean(power_text)[:64],
        allowable=_texts(reset, "ResetType@Redfish.AllowableValues"),
        boot=_boot(boot),
        boot_targets=_texts(boot, "BootSourceOverrideTarget@Redfish.AllowableValues"),
        uuid=_text(document, "UUID"),
        etag=etag,
        consoles=console_offers(document),
        model="/".join(
            bmc_interface.clean(_text(document, name) or "")[:64] for name in ("Manufacturer", "Model")
        ).strip("/"),
    )
    return SystemReading(
        path=path,
        state=state,
        reset_path=_text(reset, "target") or f"{path.rstrip('/')}/Actions/ComputerSystem.Reset",
        action_info=_text(reset, "@Redfish.ActionInfo"),
        settings_path=_text(_mapping(_mapping(document, "@Redfish.Settings"), "SettingsObject"), "@odata.id"),
        manager_path=next(iter(_links(_mapping(document, "Links"), "ManagedBy")), None),
    )


def console_offers(system: Mapping[str, Any]) -> bmc_interface.ConsoleOffers:
    """Parse `SerialConsole` of a ComputerSystem; a protocol that is not enabled, or malformed, is not offered."""
    console = system.get("SerialConsole")
    services = {
        name: service
        for name, service in (console.items() if isinstance(console, Mapping) else ())
        if isinstance(service, Mapping)
    }
    usable: list[bmc_interface.WebSocketOffer | bmc_interface.SshOffer] = []
    socket, ssh = services.get("WebSocket", {}), services.get("SSH", {})
    if socket.get("ServiceEnabled") is True and isinstance(uri := socket.get("ConsoleURI"), str) and uri:
        usable.append(bmc_interface.WebSocketOffer(uri, interactive=socket.get("Interactive") is not False))
    if ssh.get("ServiceEnabled") is True and (port := _port(ssh)):
        command = ssh.get("ConsoleEntryCommand")
        usable.append(bmc_interface.SshOffer(port, command if isinstance(command, str) and command else None))
    others = [
        name if service.get("ServiceEnabled") is True else f"{name} (not enabled)"
        for name, service in services.items()
        if name not in ("WebSocket", "SSH") or service.get("ServiceEnabled") is not True
    ]
    return bmc_interface.ConsoleOffers(tuple(usable), tuple(bmc_interface.clean(name) for name in others))


def _port(service: Mapping[str, Any]) -> int | None:
    port = service.get("Port", SSH_PORT)
    return port if isinstance(port, int) and not isinstance(port, bool) and 0 < port < 1 << 16 else None


def manager(document: Mapping[str, Any], *, path: str) -> ManagerReading:
    """Parse a Manager; a missing field, or one of another type, counts as unknown."""
    reset = _mapping(_mapping(document, "Actions"), MANAGER_RESET)
    return ManagerReading(
        path=path,
        state=bmc_interface.ManagerState(
            manager_id=bmc_interface.clean(path.rstrip("/").rpartition("/")[2]),
            last_reset=bmc_interface.clean(_text(document, "LastResetTime") or "")[:64],
        ),
        reset_path=_text(reset, "target"),
        allowable=_texts(reset, "ResetType@Redfish.AllowableValues"),
        action_info=_text(reset, "@Redfish.ActionInfo"),
    )


def _boot(boot: Mapping[str, Any]) -> bmc_interface.BootOverride | None:
    fields = [_text(boot, f"BootSourceOverride{field}") for field in ("Enabled", "Target", "Mode")]
    return bmc_interface.BootOverride(*fields) if any(fields) else None


def etag_of(document: Mapping[str, Any], answer: BmcResponse) -> str | None:
    """Return the ETag of a resource, preferably from its body.

    Some BMCs quote the header once more and do not accept that form in If-Match.
    """
    return _text(document, "@odata.etag") or answer.headers.get("ETag")


def update_service(document: Mapping[str, Any]) -> UpdateReading:
    """Parse an UpdateService."""
    action = _mapping(_mapping(document, "Actions"), SIMPLE_UPDATE)
    return UpdateReading(
        update_path=_text(action, "target"),
        protocols=_texts(action, "TransferProtocol@Redfish.AllowableValues"),
        action_info=_text(action, "@Redfish.ActionInfo"),
    )


def account_service(document: Mapping[str, Any]) -> AccountServiceReading:
    """Parse an AccountService."""
    return AccountServiceReading(
        accounts_path=_text(_mapping(document, "Accounts"), "@odata.id"),
        min_length=_length(document, "MinPasswordLength"),
        max_length=_length(document, "MaxPasswordLength"),
    )


def account(document: Mapping[str, Any]) -> AccountReading:
    """Parse a ManagerAccount."""
    action = _mapping(_mapping(document, "Actions"), CHANGE_PASSWORD)
    return AccountReading(_text(document, "UserName") or "", _text(action, "target"))


def own_account(answer: BmcResponse) -> str | None:
    """Return the path of the account whose password must be changed first; None for any other answer.

    The message PasswordChangeRequired has the path as its only argument (DSP8011).
    """
    error = _mapping(answer.hints(), "error")
    messages = error.get("@Message.ExtendedInfo")
    for message in messages if answer.status == 403 and isinstance(messages, list) else ():
        if isinstance(message, Mapping) and PASSWORD_CHANGE_REQUIRED in str(message.get("MessageId")):
            return next(iter(_texts(message, "MessageArgs") or ()), None)
    return None


def _length(document: Mapping[str, Any], key: str) -> int | None:
    found = document.get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None


def firmware_version(document: Mapping[str, Any], *, name: str) -> bmc_interface.InstalledFirmware:
    """Parse a SoftwareInventory."""
    version = bmc_interface.clean(_text(document, "Version") or "")[:128]
    return bmc_interface.InstalledFirmware(
        bmc_interface.clean(name)[:128], version, updateable=document.get("Updateable") is True
    )


def is_running_update(document: Mapping[str, Any]) -> bool:
    """Return whether a Task is of a SimpleUpdate, and has not ended; one without a payload is unknown."""
    target = _text(_mapping(document, "Payload"), "TargetUri") or ""
    return _text(document, "TaskState") in TASK_RUNNING and target.rstrip("/").endswith("UpdateService.SimpleUpdate")


def percent_of(document: Mapping[str, Any]) -> int | None:
    """Return how much of a task is complete."""
    found = document.get("PercentComplete")
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= 100 else None


def action_values(document: Mapping[str, Any], name: str = "ResetType") -> tuple[str, ...] | None:
    """Return the values of a parameter in an ActionInfo; None if it has no list."""
    parameters = document.get("Parameters")
    for parameter in parameters if isinstance(parameters, list) else ():
        if isinstance(parameter, Mapping) and parameter.get("Name") == name:
            return _texts(parameter, "AllowableValues")
    return None


def members(document: Mapping[str, Any]) -> Mapping[str, str]:
    """Return a collection as `{id: path}`; the id is the last part of the path."""
    return {path.rstrip("/").rpartition("/")[2]: path for path in _links(document, "Members")}


@dataclass(frozen=True, slots=True)
class TaskReading:
    """State of a task at one time. `failure` is set if the task failed."""

    running: bool
    said: str = ""
    failure: Failure | None = None


def task(answer: BmcResponse, *, where: str, hide: tuple[str, ...] = ()) -> TaskReading:
    """Parse a task monitor or a Task (DSP0266, 13.8: 202 while the task runs, then the answer of the action itself)."""
    document = answer.hints()
    state = _text(document, "TaskState")
    message = bmc_interface.clean("; ".join(bmc_interface.extended(document)), hide=hide)
    if answer.status in (404, 410):
        gone = Uncertain(f"{where}: the task does not exist any more ({answer.status}), so its result is unknown")
        return TaskReading(running=False, failure=gone)
    if not answer.ok:
        return TaskReading(
            running=False, failure=failure_of(answer, what="the task", where=where, changes=True, hide=hide)
        )
    if state in TASK_RUNNING or (state is None and answer.status == 202):
        return TaskReading(running=True, said=message)
    if state is None or state == TASK_DONE:
        return TaskReading(running=False, said=message)
    text = bmc_interface.clean(f"{where}: the task ended as {state}" + (f": {message}" if message else ""), hide=hide)
    return TaskReading(
        running=False,
        said=message,
        failure=Rejected(text) if LASTING.search(message) else bmc_interface.TaskFailed(text),
    )


def monitors_of(answer: BmcResponse) -> tuple[str, ...]:
    """Return the paths at which a 202 answer's task can be read: its monitor, then the Task, as far as the BMC names
    them.
    """
    found = (answer.headers.get("Location"), _text(answer.hints(), "@odata.id"))
    return tuple(dict.fromkeys(path for path in found if path))


def failure_of(answer: BmcResponse, *, what: str, where: str, changes: bool, hide: tuple[str, ...] = ()) -> Failure:
    """Map an answer other than 2xx to a failure, with the BMC's own message."""
    message = bmc_interface.error_text(answer.hints())
    text = bmc_interface.clean(f"{where}: {what}: {answer.status}" + (f": {message}" if message else ""), hide=hide)
    if answer.status in _BUSY or (answer.status == 400 and PASSING.search(message)):
        return bmc_interface.BmcBusy(text, retry_after_s=answer.retry_after_s)
    if answer.status in _UNSUPPORTED:
        return bmc_interface.Unsupported(text)
    if answer.status >= 500:
        return Uncertain(text) if changes else Transient(text)
    return Rejected(text)


def link(document: Mapping[str, Any], name: str) -> str | None:
    return _text(_mapping(document, name), "@odata.id")


def event_uri(service: Mapping[str, Any]) -> str | None:
    """Return the path of an EventService's stream; None if it offers none."""
    return None if service.get("ServiceEnabled") is False else _text(service, "ServerSentEventUri")


def _mapping(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = holder.get(key)
    return found if isinstance(found, Mapping) else {}


def _links(holder: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the paths of a list of links."""
    found = holder.get(key)
    links = found if isinstance(found, list) else []
    return tuple(path for link in links if isinstance(link, Mapping) and (path := _text(link, "@odata.id")))


def _text(holder: Mapping[str, Any], key: str) -> str | None:
    found = holder.get(key)
    return found if isinstance(found, str) and found else None


def _texts(holder: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    found = holder.get(key)
    return tuple(item for item in found if isinstance(item, str)) if isinstance(found, list) else None
