"""Calls to a BMC's UpdateService: installed versions, SimpleUpdate, and the task that carries an update out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from unbounded.api.failures import Uncertain
from unbounded.metalman.redfish import documents
from unbounded.metalman.redfish.client import RedfishClient
from unbounded.metalman.redfish.documents import UpdateReading
from unbounded.metalman.redfish.endpoint import SERVICE_ROOT
from unbounded.metalman.redfish.http import BmcResponse
from unbounded.metalman.redfish.ports import BmcBusy, InstalledFirmware, Unsupported, UpdateProgress, UpdateState, clean
from unbounded.metalman.redfish.quirks import NOT_INSTALLED

UPDATE_SERVICE: Final = f"{SERVICE_ROOT}/UpdateService"
FIRMWARE: Final = f"{UPDATE_SERVICE}/FirmwareInventory"
TASKS: Final = f"{SERVICE_ROOT}/TaskService/Tasks"
MAX_FIRMWARE: Final = 64
MAX_TASKS: Final = 32
DONE: Final = "done"  # handle of an update that ended with the answer


class UpdateClient:
    """Calls to the UpdateService of one BMC."""

    def __init__(self, client: RedfishClient) -> None:
        self._client = client

    async def versions(self) -> tuple[InstalledFirmware, ...]:
        """See `PooledBmc.firmware`."""
        found = documents.members(await self._client.document(FIRMWARE, "the list of firmware"))
        installed = [(name, path) for name, path in found.items() if not name.startswith(NOT_INSTALLED)]
        read = [
            documents.firmware_version(await self._client.document(path, f"firmware {clean(name)}"), name=name)
            for name, path in installed[:MAX_FIRMWARE]
        ]
        return tuple(read)

    async def start(self, image_uri: str, targets: Sequence[str], leave_by: float) -> str:
        """See `PooledBmc.update_firmware`."""
        service = documents.update_service(await self._client.document(UPDATE_SERVICE, "the UpdateService"))
        if service.update_path is None:
            raise Unsupported(f"{self._where}: its UpdateService has no action {documents.SIMPLE_UPDATE}")
        body = {"ImageURI": image_uri, **(await self._protocol(service, image_uri)), **(await self._targets(targets))}
        answer = await self._client.channel.send("POST", service.update_path, body=body, leave_by=leave_by)
        if not answer.ok:
            raise self._client.refusal(answer, "firmware update")
        return "\n".join(documents.monitors_of(answer)) if answer.status == 202 else DONE

    async def progress(self, handle: str) -> UpdateProgress:
        """See `PooledBmc.update_progress`."""
        if handle == DONE:
            return UpdateProgress(UpdateState.DONE, "the BMC answered without a task")
        gone = UpdateProgress(UpdateState.VANISHED, "the BMC names no task")
        for path in handle.splitlines():
            answer = await self._client.channel.get(path)
            if answer.status in documents.TASK_UNREADABLE:
                text = f"{self._where}: cannot read the task ({answer.status})"
                raise BmcBusy(text, retry_after_s=answer.retry_after_s)
            found = self._progress_of(answer)
            if found.state is not UpdateState.VANISHED:
                return found
            gone = found
        return gone

    async def running_task(self) -> str | None:
        """See `PooledBmc.running_update`."""
        try:
            found = documents.members(await self._client.document(TASKS, "the list of tasks"))
        except Unsupported:  # no TaskService
            return None
        for path in list(found.values())[-MAX_TASKS:]:
            answer = await self._client.channel.get(path)
            if answer.ok and documents.is_running_update(answer.hints()):
                return path
        return None

    @property
    def _where(self) -> str:
        return self._client.channel.where

    def _progress_of(self, answer: BmcResponse) -> UpdateProgress:
        """Parse a task; a monitor that answers with an error of its own cannot report, and counts as vanished."""
        view = documents.task(answer, where=self._where, hide=self._client.channel.secrets)
        if view.running:
            percent = documents.percent_of(answer.hints())
            text = "its task runs" if percent is None else f"its task is {percent} % complete"
            return UpdateProgress(UpdateState.RUNNING, f"{text}: {view.said}" if view.said else text)
        if view.failure is None:
            return UpdateProgress(UpdateState.DONE, f"its task is complete{f': {view.said}' if view.said else ''}")
        is_open = isinstance(view.failure, Uncertain)
        return UpdateProgress(UpdateState.VANISHED if is_open else UpdateState.FAILED, str(view.failure))

    async def _protocol(self, service: UpdateReading, image_uri: str) -> Mapping[str, Any]:
        """Return the TransferProtocol of a BMC that lists its protocols; the image's URI has it for the others."""
        protocol, known = urlsplit(image_uri).scheme.upper(), service.protocols
        if known is None and service.action_info:
            answer = await self._client.channel.get(service.action_info)
            known = documents.action_values(answer.document(), "TransferProtocol") if answer.ok else None
        if not known:
            return {}
        if protocol not in known:
            raise Unsupported(f"{self._where}: it loads images by {clean(', '.join(known))}, not by {protocol}")
        return {"TransferProtocol": protocol}

    async def _targets(self, names: Sequence[str]) -> Mapping[str, Any]:
        if not names:
            return {}
        found = documents.members(await self._client.document(FIRMWARE, "the list of firmware"))
        unknown = [name for name in names if name not in found]
        if unknown:
            listed = clean(", ".join(sorted(found)))
            raise Unsupported(f"{self._where}: it lists no firmware {', '.join(unknown)}; it lists {listed}")
        return {"Targets": [found[name] for name in names]}
