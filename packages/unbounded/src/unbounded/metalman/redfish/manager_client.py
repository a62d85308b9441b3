"""Calls to the manager of a system, which is the BMC itself: find it, read it, restart it."""

from __future__ import annotations

from typing import Final

from unbounded.api.failures import Failure, Rejected
from unbounded.metalman.redfish import documents
from unbounded.metalman.redfish.client import RedfishClient
from unbounded.metalman.redfish.documents import ManagerReading
from unbounded.metalman.redfish.endpoint import SERVICE_ROOT
from unbounded.metalman.redfish.ports import (
    BmcUnreachable,
    CircuitOpen,
    ManagerState,
    PasswordRejected,
    Unsupported,
    clean,
)
from unbounded.metalman.redfish.quirks import manager_resets

MANAGERS: Final = f"{SERVICE_ROOT}/Managers"


class ManagerClient:
    """Calls to the manager of one system."""

    def __init__(self, client: RedfishClient, device_id: str) -> None:
        self._client = client
        self._device_id = device_id

    async def read(self) -> ManagerState:
        """See `PooledBmc.manager`."""
        return (await self._read()).state

    async def reset(self, leave_by: float) -> str:
        """See `PooledBmc.reset_manager`."""
        manager = await self._read()
        where = f"{self._client.channel.where}: manager {manager.state.manager_id}"
        if manager.reset_path is None:
            raise Unsupported(f"{where} has no action {documents.MANAGER_RESET}")
        allowable = await self._allowable(manager)
        refused: Failure = Unsupported(f"{where} supports no restart; it lists {', '.join(allowable or ())}")
        for value in manager_resets(allowable):
            try:
                await self._send(manager.reset_path, value, leave_by)
            except Unsupported as error:
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
        return documents.manager(await self._client.document(path, f"manager {clean(path)}"), path=path)

    async def _path(self) -> str:
        """Return the path of the system's manager, or of the only one: the system may be what the BMC cannot read."""
        try:
            path = await self._client.manager_path(self._device_id)
        except (BmcUnreachable, CircuitOpen, PasswordRejected):
            raise
        except Failure:
            path = None
        if path is not None:
            return path
        found = documents.members(await self._client.document(MANAGERS, "the list of managers"))
        if len(found) != 1:
            listed = clean(", ".join(sorted(found))) or "none"
            raise Rejected(f"{self._client.channel.where}: the system names no manager; the BMC lists: {listed}")
        return next(iter(found.values()))

    async def _allowable(self, manager: ManagerReading) -> tuple[str, ...] | None:
        """Return the ResetTypes in the manager or its ActionInfo; None if neither lists them."""
        if manager.allowable is None and manager.action_info:
            answer = await self._client.channel.get(manager.action_info)
            if answer.ok:
                return documents.action_values(answer.document())
        return manager.allowable
