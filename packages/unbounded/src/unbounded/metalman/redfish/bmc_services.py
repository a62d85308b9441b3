"""Calls to the services of the BMC itself: its accounts, its manager, and the update of its firmware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from unbounded.api.failures import Failure, Rejected, Uncertain
from unbounded.metalman.redfish import bmc_interface, documents
from unbounded.metalman.redfish.client import RedfishClient
from unbounded.metalman.redfish.documents import AccountReading, AccountServiceReading, ManagerReading, UpdateReading
from unbounded.metalman.redfish.endpoint import SERVICE_ROOT
from unbounded.metalman.redfish.http import BmcResponse
from unbounded.metalman.redfish.quirks import NOT_INSTALLED, manager_resets

ACCOUNT_SERVICE: Final = f"{SERVICE_ROOT}/AccountService"
MAX_ACCOUNTS: Final = 64
ACCOUNT_CHANGE: Final = "the new password"
MANAGERS: Final = f"{SERVICE_ROOT}/Managers"
UPDATE_SERVICE: Final = f"{SERVICE_ROOT}/UpdateService"
FIRMWARE: Final = f"{UPDATE_SERVICE}/FirmwareInventory"
TASKS: Final = f"{SERVICE_ROOT}/TaskService/Tasks"
MAX_FIRMWARE: Final = 64
MAX_TASKS: Final = 32
DONE: Final = "done"  # handle of an update that ended with the answer


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    service: AccountServiceReading
    account: AccountReading


class AccountClient:
    """Calls to the AccountService of one BMC."""

    def __init__(self, client: RedfishClient) -> None:
        self._client = client

    async def find(self, username: str, next_password: str) -> bmc_interface.BmcUser:
        """See `PooledBmc.user`."""
        found = await self._find(username)
        channel, service = self._client.channel, found.service
        is_rejected = bool(next_password) and channel.has_rejected(next_password)
        return bmc_interface.BmcUser(
            found.path, channel.password_in_use, is_rejected, service.min_length, service.max_length
        )

    async def set_password(self, username: str, password: str, next_password: str, leave_by: float) -> bool:
        """Set a password; return whether it is set, not only accepted.

        An account with the action ChangePassword, which has the former password as a parameter, gets it where the BMC
        refuses the plain change.
        """
        found = await self._find(username)
        try:
            return await self._client.change("PATCH", found.path, {"Password": next_password}, ACCOUNT_CHANGE, leave_by)
        except bmc_interface.Unsupported:
            if found.account.change_path is None:
                raise
        body = {"NewPassword": next_password, "SessionAccountPassword": password}
        return await self._client.change("POST", found.account.change_path, body, ACCOUNT_CHANGE, leave_by)

    async def _find(self, username: str) -> _Found:
        answer = await self._client.channel.get(ACCOUNT_SERVICE)
        own = documents.own_account(answer)
        if own is not None:  # until its password is changed, the BMC shows nothing else
            return _Found(own, AccountServiceReading(None, None, None), AccountReading(username, None))
        if not answer.ok:
            raise self._client.refusal(answer, "the AccountService", changes=False)
        service = documents.account_service(answer.document())
        if service.accounts_path is None:
            raise bmc_interface.Unsupported(f"{self._where}: its AccountService has no accounts")
        listed = documents.members(await self._client.document(service.accounts_path, "the list of accounts"))
        users = []
        for name, path in list(listed.items())[:MAX_ACCOUNTS]:
            account = documents.account(await self._client.document(path, f"account {bmc_interface.clean(name)}"))
            if account.user == username:
                return _Found(path, service, account)
            users.append(account.user)
        shown = bmc_interface.clean(", ".join(filter(None, users))) or "none"
        raise Rejected(f"{self._where}: it lists no account of {username!r}; it lists: {shown}")

    @property
    def _where(self) -> str:
        return self._client.channel.where


class ManagerClient:
    """Calls to the manager of one system."""

    def __init__(self, client: RedfishClient, device_id: str) -> None:
        self._client = client
        self._device_id = device_id

    async def read(self) -> bmc_interface.ManagerState:
        """See `PooledBmc.manager`."""
        return (await self._read()).state

    async def reset(self, leave_by: float) -> str:
        """See `PooledBmc.reset_manager`."""
        manager = await self._read()
        where = f"{self._client.channel.where}: manager {manager.state.manager_id}"
        if manager.reset_path is None:
            raise bmc_interface.Unsupported(f"{where} has no action {documents.MANAGER_RESET}")
        allowable = await self._allowable(manager)
        refused: Failure = bmc_interface.Unsupported(
            f"{where} supports no restart; it lists {', '.join(allowable or ())}"
        )
        for value in manager_resets(allowable):
            try:
                await self._send(manager.reset_path, value, leave_by)
            except bmc_interface.Unsupported as error:
                refused = error
            else:
                return value
        raise refused

    async def _send(self, path: str, value: str, leave_by: float) -> None:
        """Send one reset. Its task is not followed: it ends with the BMC."""
        answer = await self._client.channel.send("POST", path, body={"ResetType": value}, leave_by=leave_by)
        if not answer.ok:
            raise self._client.refusal(answer, f"reset {value} of the BMC")

    async def _read(self) -> ManagerReading:
        path = await self._path()
        return documents.manager(await self._client.document(path, f"manager {bmc_interface.clean(path)}"), path=path)

    async def _path(self) -> str:
        """Return the path of the system's manager, or of the only one: the system may be what the BMC cannot read."""
        try:
            path = await self._client.manager_path(self._device_id)
        except (bmc_interface.BmcUnreachable, bmc_interface.CircuitOpen, bmc_interface.PasswordRejected):
            raise
        except Failure:
            path = None
        if path is not None:
            return path
        found = documents.members(await self._client.document(MANAGERS, "the list of managers"))
        if len(found) != 1:
            listed = bmc_interface.clean(", ".join(sorted(found))) or "none"
            raise Rejected(f"{self._client.channel.where}: the system names no manager; the BMC lists: {listed}")
        return next(iter(found.values()))

    async def _allowable(self, manager: ManagerReading) -> tuple[str, ...] | None:
        """Return the ResetTypes in the manager or its ActionInfo; None if neither lists them."""
        if manager.allowable is None and manager.action_info:
            answer = await self._client.channel.get(manager.action_info)
            if answer.ok:
                return documents.action_values(answer.document())
        return manager.allowable


class UpdateClient:
    """Calls to the UpdateService of one BMC."""

    def __init__(self, client: RedfishClient) -> None:
        self._client = client

    async def versions(self) -> tuple[bmc_interface.InstalledFirmware, ...]:
        """See `PooledBmc.firmware`."""
        found = documents.members(await self._client.document(FIRMWARE, "the list of firmware"))
        installed = [(name, path) for name, path in found.items() if not name.startswith(NOT_INSTALLED)]
        read = [
            documents.firmware_version(
                await self._client.document(path, f"firmware {bmc_interface.clean(name)}"), name=name
            )
            for name, path in installed[:MAX_FIRMWARE]
        ]
        return tuple(read)

    async def start(self, image_uri: str, targets: Sequence[str], leave_by: float) -> str:
        """See `PooledBmc.update_firmware`."""
        service = documents.update_service(await self._client.document(UPDATE_SERVICE, "the UpdateService"))
        if service.update_path is None:
            raise bmc_interface.Unsupported(f"{self._where}: its UpdateService has no action {documents.SIMPLE_UPDATE}")
        body = {"ImageURI": image_uri, **(await self._protocol(service, image_uri)), **(await self._targets(targets))}
        answer = await self._client.channel.send("POST", service.update_path, body=body, leave_by=leave_by)
        if not answer.ok:
            raise self._client.refusal(answer, "firmware update")
        return "\n".join(documents.monitors_of(answer)) if answer.status == 202 else DONE

    async def progress(self, handle: str) -> bmc_interface.UpdateProgress:
        """See `PooledBmc.update_progress`."""
        if handle == DONE:
            return bmc_interface.UpdateProgress(bmc_interface.UpdateState.DONE, "the BMC answered without a task")
        gone = bmc_interface.UpdateProgress(bmc_interface.UpdateState.VANISHED, "the BMC names no task")
        for path in handle.splitlines():
            answer = await self._client.channel.get(path)
            if answer.status in documents.TASK_UNREADABLE:
                text = f"{self._where}: cannot read the task ({answer.status})"
                raise bmc_interface.BmcBusy(text, retry_after_s=answer.retry_after_s)
            found = self._progress_of(answer)
            if found.state is not bmc_interface.UpdateState.VANISHED:
                return found
            gone = found
        return gone

    async def running_task(self) -> str | None:
        """See `PooledBmc.running_update`."""
        try:
            found = documents.members(await self._client.document(TASKS, "the list of tasks"))
        except bmc_interface.Unsupported:  # no TaskService
            return None
        for path in list(found.values())[-MAX_TASKS:]:
            answer = await self._client.channel.get(path)
            if answer.ok and documents.is_running_update(answer.hints()):
                return path
        return None

    @property
    def _where(self) -> str:
        return self._client.channel.where

    def _progress_of(self, answer: BmcResponse) -> bmc_interface.UpdateProgress:
        """Parse a task; a monitor that answers with an error of its own cannot report, and counts as vanished."""
        view = documents.task(answer, where=self._where, hide=self._client.channel.secrets)
        if view.running:
            percent = documents.percent_of(answer.hints())
            text = "its task runs" if percent is None else f"its task is {percent} % complete"
            return bmc_interface.UpdateProgress(
                bmc_interface.UpdateState.RUNNING, f"{text}: {view.said}" if view.said else text
            )
        if view.failure is None:
            return bmc_interface.UpdateProgress(
                bmc_interface.UpdateState.DONE, f"its task is complete{f': {view.said}' if view.said else ''}"
            )
        is_open = isinstance(view.failure, Uncertain)
        return bmc_interface.UpdateProgress(
            bmc_interface.UpdateState.VANISHED if is_open else bmc_interface.UpdateState.FAILED, str(view.failure)
        )

    async def _protocol(self, service: UpdateReading, image_uri: str) -> Mapping[str, Any]:
        """Return the TransferProtocol of a BMC that lists its protocols; the image's URI has it for the others."""
        protocol, known = urlsplit(image_uri).scheme.upper(), service.protocols
        if known is None and service.action_info:
            answer = await self._client.channel.get(service.action_info)
            known = documents.action_values(answer.document(), "TransferProtocol") if answer.ok else None
        if not known:
            return {}
        if protocol not in known:
            raise bmc_interface.Unsupported(
                f"{self._where}: it loads images by {bmc_interface.clean(', '.join(known))}, not by {protocol}"
            )
        return {"TransferProtocol": protocol}

    async def _targets(self, names: Sequence[str]) -> Mapping[str, Any]:
        if not names:
            return {}
        found = documents.members(await self._client.document(FIRMWARE, "the list of firmware"))
        unknown = [name for name in names if name not in found]
        if unknown:
            listed = bmc_interface.clean(", ".join(sorted(found)))
            raise bmc_interface.Unsupported(
                f"{self._where}: it lists no firmware {', '.join(unknown)}; it lists {listed}"
            )
        return {"Targets": [found[name] for name in names]}
