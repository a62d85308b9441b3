"""Calls to the systems of one BMC account: find and read a system, change its power, write its boot override."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from unbounded.api.failures import Failure, Rejected, Transient, Uncertain
from unbounded.metalman.redfish import documents, quirks
from unbounded.metalman.redfish.bmc_channel import BmcChannel
from unbounded.metalman.redfish.bmc_interface import (
    BmcLimits,
    BmcPowerState,
    BootOverride,
    ResetAcceptance,
    ResetType,
    SystemState,
    Unsupported,
    clean,
    error_text,
)
from unbounded.metalman.redfish.documents import SystemReading, failure_of
from unbounded.metalman.redfish.endpoint import SERVICE_ROOT
from unbounded.metalman.redfish.event_stream import MEDIA_TYPE, EventStreamReader
from unbounded.metalman.redfish.http import BmcResponse
from unbounded.metalman.redfish.inventory_reader import Inventory, InventoryInterrupted, InventoryReader
from unbounded.metalman.redfish.virtual_media import MediaClient, MediaDrive

SLOWER: Final = 1.5


@dataclass(frozen=True, slots=True)
class TaskEnd:
    settled: bool
    said: str = ""


async def follow(channel: BmcChannel, accepted: BmcResponse, *, what: str, limits: BmcLimits) -> TaskEnd:
    """Poll the task until it ends; between polls the BMC is free for other calls.

    Returns:
        not settled if the task still runs at the limit, or if the BMC does not name it.
    Raises:
        TaskFailed, Rejected: the task failed, with its own message.
        Uncertain: the task is gone, or could not be read any more.
    """
    monitor, *resource = documents.monitors_of(accepted) or ("",)
    if not monitor:
        return TaskEnd(settled=False, said="accepted as a task that the BMC does not name")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limits.task_s
    pause_s = limits.task_poll_s
    trouble: Transient | None = None
    message, said = False, ""
    while loop.time() + pause_s <= deadline:
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * SLOWER, limits.task_poll_max_s)
        try:
            async with asyncio.timeout_at(deadline):
                answer = await channel.get(monitor)
        except TimeoutError:
            if not message:  # else the task ran at its last answer, and only the limit cuts this poll off
                trouble = Transient(f"{channel.where}: reading the task took too long")
            break
        except Transient as error:
            trouble = error
            continue
        if answer.status in documents.TASK_UNREADABLE:
            trouble = Transient(f"{channel.where}: cannot read the task ({answer.status})")
            continue
        view, trouble = documents.task(answer, where=channel.where, hide=channel.secrets), None
        said = view.said or said
        if isinstance(view.failure, Uncertain) and resource:
            monitor = resource.pop()  # the monitor cannot report (gone, or an error of its own): the Task may
            continue
        if view.failure is not None:
            raise view.failure
        if not view.running:
            return TaskEnd(settled=True, said=said)
        message = True
    if trouble is not None:
        raise Uncertain(f"{channel.where}: {what} was accepted, but its task cannot be followed") from trouble
    return TaskEnd(settled=False, said=said or f"its task was still running after {limits.task_s:g} s")


SYSTEMS: Final = f"{SERVICE_ROOT}/Systems"
DEFAULT_DEVICE: Final = "1"
_TARGET_POWER: Final[Mapping[ResetType, BmcPowerState]] = {
    ResetType.ON: BmcPowerState.ON,
    ResetType.FORCE_OFF: BmcPowerState.OFF,
    ResetType.GRACEFUL_SHUTDOWN: BmcPowerState.OFF,
}


@dataclass(slots=True)
class KnownSystem:
    """Stable facts of one system between calls: its paths and its ResetTypes. Never its state."""

    system: SystemReading
    allowable: tuple[str, ...] | None


class RedfishClient:
    """Calls by the device id as the user wrote it; the client finds and remembers the system of each id."""

    def __init__(self, channel: BmcChannel, limits: BmcLimits) -> None:
        self.channel = channel
        self._limits = limits
        self._known: dict[str, KnownSystem] = {}
        self._media = MediaClient(self, limits)
        self._events: str | None = None  # path of the stream of events; "" if the BMC has none
        self._if_match = 0  # index of the IF_MATCH row that this BMC accepted last

    async def system(self, device_id: str) -> SystemState:
        return (await self._read(device_id)).state

    async def reset(self, device_id: str, desired: ResetType, leave_by: float | None = None) -> ResetAcceptance:
        """See `PooledBmc.reset`."""
        leave_by = self.channel.leave_by() if leave_by is None else leave_by
        if device_id not in self._known:
            await self._read(device_id)
        known = self._known[device_id]
        system, allowable = known.system, await self._allowable(known)
        refused: Failure = Unsupported(
            f"{self.channel.where}: system {system.state.device_id} supports no reset type for {desired}; it "
            f"lists {', '.join(allowable or ()) or 'nothing'}"
        )
        for choice in quirks.choices(desired, allowable):
            try:
                return await self._reset(device_id, system, desired, choice, leave_by)
            except Unsupported as error:
                refused = error
        self._known.pop(device_id, None)  # the remembered facts may be the mistake
        raise refused

    async def _reset(
        self, device_id: str, system: SystemReading, desired: ResetType, choice: quirks.ResetChoice, leave_by: float
    ) -> ResetAcceptance:
        note = "" if choice.value == desired else f"{choice.value} was sent for {desired}"
        if choice.only_when_on:
            state = await self.system(device_id)
            if state.power is BmcPowerState.OFF:
                return ResetAcceptance(
                    sent="", already=True, note=f"nothing was sent: the system is {state.power_text}"
                )
            if state.power is not BmcPowerState.ON:
                raise Transient(
                    f"{self.channel.where}: metalman does not send {choice.value} while the power state is "
                    f"{state.power_text!r}"
                )
        what = f"reset {choice.value}"
        answer = await self._post(system, {"ResetType": choice.value}, leave_by)
        if answer.status == 202:
            end = await follow(self.channel, answer, what=what, limits=self._limits)
            return ResetAcceptance(choice.value, settled=end.settled, note="; ".join(filter(None, (note, end.said))))
        if answer.ok:
            return ResetAcceptance(choice.value, note=note)
        if answer.status in quirks.ALREADY_STATUS and quirks.ALREADY.search(error_text(answer.hints())):
            return await self._already(device_id, answer, desired, choice)
        raise self.refusal(answer, what)

    async def _post(self, system: SystemReading, body: Mapping[str, Any], leave_by: float) -> BmcResponse:
        """Send an action without If-Match, or with it if the BMC requires it (428 and 412: nothing was done)."""
        answer = await self.channel.send("POST", system.reset_path, body=body, leave_by=leave_by)
        if answer.status in quirks.PRECONDITION:
            etag = (await self._read_path(system.path, system.state.device_id)).state.etag or "*"
            headers = {"If-Match": etag}
            answer = await self.channel.send("POST", system.reset_path, body=body, headers=headers, leave_by=leave_by)
        return answer

    async def _already(
        self, device_id: str, answer: BmcResponse, desired: ResetType, choice: quirks.ResetChoice
    ) -> ResetAcceptance:
        """Read the system: the answer means that the state is reached, or that the action is impossible now."""
        state = await self.system(device_id)
        message = clean(error_text(answer.hints()), hide=self.channel.secrets)
        if state.power is _TARGET_POWER[desired]:
            return ResetAcceptance(choice.value, already=True, note=message)
        raise Transient(
            f"{self.channel.where}: the BMC rejected reset {choice.value} while the power state is "
            f"{state.power_text!r}: {message}"
        )

    async def _allowable(self, known: KnownSystem) -> tuple[str, ...] | None:
        """Return the ResetTypes in the system or its ActionInfo; None if neither lists them."""
        if known.allowable is None and known.system.action_info:
            answer = await self.channel.get(known.system.action_info)
            if answer.ok:
                known.allowable = documents.action_values(answer.document())
        return known.allowable

    async def set_boot_override(
        self, device_id: str, desired: BootOverride, leave_by: float | None = None
    ) -> BootOverride:
        """See `PooledBmc.set_boot_override`."""
        leave_by = self.channel.leave_by() if leave_by is None else leave_by
        system = await self._read(device_id)
        if system.state.boot is None:
            raise Unsupported(f"{self.channel.where}: system {system.state.device_id} has no boot override")
        mode = desired.mode or system.state.boot.mode or quirks.DEFAULT_BOOT_MODE
        fields = {"Enabled": desired.enabled, "Target": desired.target}
        boot = {f"BootSourceOverride{name}": value for name, value in fields.items() if value is not None}
        try:
            await self._patch(system, {"Boot": {**boot, "BootSourceOverrideMode": mode}}, leave_by)
        except Unsupported:
            if desired.mode:
                raise
            # the caller did not request a mode, and some BMCs cannot write it
            await self._patch(system, {"Boot": boot}, leave_by)
        return (await self._read(device_id)).state.boot or BootOverride(None)

    async def disable_boot_override(self, device_id: str, leave_by: float | None = None) -> BootOverride:
        """See `PooledBmc.disable_boot_override`."""
        leave_by = self.channel.leave_by() if leave_by is None else leave_by
        refused: Unsupported | None = None
        override: BootOverride | None = None
        for desired in quirks.BOOT_DISABLE:
            try:
                override = await self.set_boot_override(device_id, desired, leave_by)
            except Unsupported as error:
                refused = error
                continue
            if override.leaves_disk:
                return override
        if override is not None:
            return override
        raise refused or Unsupported(f"{self.channel.where}: the boot override cannot be disabled")

    async def inventory(self, device_id: str, may_continue: Callable[[], bool]) -> Inventory:
        """See `PooledBmc.inventory`."""
        path = await self._path(device_id)

        async def get(path: str) -> Mapping[str, Any]:
            if not may_continue():
                raise InventoryInterrupted
            return await self.document(path, f"inventory {clean(path)}")

        try:
            return await InventoryReader(get).read(path)
        except Unsupported:  # moved or gone
            self._known.pop(device_id, None)
            raise

    async def media_drive(self, device_id: str) -> MediaDrive:
        """See `MediaClient.drive`."""
        return await self._media.drive(await self._path(device_id))

    async def insert_media(self, device_id: str, url: str, leave_by: float | None = None) -> MediaDrive:
        """See `MediaClient.insert`."""
        leave_by = self.channel.leave_by() if leave_by is None else leave_by
        return await self._media.insert(await self._path(device_id), url, leave_by)

    async def eject_media(self, device_id: str, leave_by: float | None = None) -> MediaDrive:
        """See `MediaClient.eject`."""
        leave_by = self.channel.leave_by() if leave_by is None else leave_by
        return await self._media.eject(await self._path(device_id), leave_by)

    async def _path(self, device_id: str) -> str:
        """Return the path of the system, and find it first if necessary."""
        if device_id not in self._known:
            await self._read(device_id)
        return self._known[device_id].system.path

    async def change(self, method: str, path: str, body: Mapping[str, Any] | None, what: str, leave_by: float) -> bool:
        """Change a resource, or call an action; a 202 task is followed to its end or limit.

        Args:
            what: names the change in messages.
        Returns:
            whether the change is complete; False if its task still ran at the limit.
        """
        if method == "PATCH":
            return await self._patch_path(path, body or {}, leave_by, what)
        answer = await self.channel.send(method, path, body=body, leave_by=leave_by)
        if answer.status in quirks.PRECONDITION:
            answer = await self.channel.send(method, path, body=body, headers={"If-Match": "*"}, leave_by=leave_by)
        return await self._accepted(answer, what)

    async def _accepted(self, answer: BmcResponse, what: str) -> bool:
        """Follow the task of an accepted change; raise the failure of a rejected one."""
        if answer.status == 202:
            return (await follow(self.channel, answer, what=what, limits=self._limits)).settled
        if not answer.ok:
            raise self.refusal(answer, what)
        return True

    async def events(self) -> AsyncGenerator[tuple[str | None, ...], None]:
        """See `PooledBmc.events`."""
        reader = EventStreamReader()
        async with aclosing(self.channel.stream(await self._event_uri(), MEDIA_TYPE)) as parts:
            async for part in parts:
                origins = tuple(reader.feed(part))
                if origins or not part:
                    yield origins

    async def _event_uri(self) -> str:
        """Return the path of the stream, found once."""
        if self._events is None:
            root = await self.document(f"{SERVICE_ROOT}/", "the service root")
            service = documents.link(root, "EventService")
            found = await self.document(service, "the event service") if service else {}
            self._events = documents.event_uri(found) or ""
        if not self._events:
            raise Unsupported(f"{self.channel.where} offers no stream of events")
        return self._events

    async def _patch(self, system: SystemReading, body: Mapping[str, Any], leave_by: float) -> None:
        """PATCH the system, or its settings object if the system itself rejects changes."""
        refused: Unsupported | None = None
        for path in filter(None, (system.path, system.settings_path)):
            try:
                await self._patch_path(path, body, leave_by, "boot override")
            except Unsupported as error:
                refused = refused or error
            else:
                return
        raise refused or Unsupported(f"{self.channel.where}: system {system.state.device_id} accepts no changes")

    async def _patch_path(self, path: str, body: Mapping[str, Any], leave_by: float, what: str) -> bool:
        """Try the If-Match rows, from the one that worked last; 412 and 428 mean that nothing was done."""
        rows = range(self._if_match, self._if_match + len(quirks.IF_MATCH))
        for row in (row % len(quirks.IF_MATCH) for row in rows):
            headers = await self._if_match_header(path, row)
            answer = await self.channel.send("PATCH", path, body=body, headers=headers, leave_by=leave_by)
            if answer.status not in quirks.PRECONDITION:
                break
        is_complete = await self._accepted(answer, what)
        self._if_match = row
        return is_complete

    async def _if_match_header(self, path: str, row: int) -> Mapping[str, str]:
        form = quirks.IF_MATCH[row]
        if form is None:
            return {}
        answer = await self.channel.get(path)
        etag = documents.etag_of(answer.hints(), answer)
        return {"If-Match": form(etag) if etag else "*"}

    async def _read(self, device_id: str) -> SystemReading:
        """Read the system; find it first if necessary."""
        known = self._known.get(device_id)
        if known is not None:
            try:
                return self._remember(device_id, await self._read_path(known.system.path, known.system.state.device_id))
            except Unsupported:  # moved or gone
                self._known.pop(device_id, None)
        return self._remember(device_id, await self._find(device_id or DEFAULT_DEVICE))

    def _remember(self, device_id: str, system: SystemReading) -> SystemReading:
        known = self._known.get(device_id)
        inherited = known.allowable if known and system.action_info else None
        self._known[device_id] = KnownSystem(system, system.state.allowable or inherited)
        return system

    async def _find(self, device_id: str) -> SystemReading:
        """Find the member of that id. For the default id, the only member counts if there is no "1"."""
        if device_id not in (".", ".."):
            try:
                return await self._read_path(f"{SYSTEMS}/{quote(device_id, safe='')}", device_id)
            except Unsupported:
                pass
        found = documents.members(await self.document(SYSTEMS, "the list of systems"))
        if not found:
            raise Transient(f"{self.channel.where} lists no systems (a starting BMC may not list them yet)")
        if device_id in found:
            return await self._read_path(found[device_id], device_id)
        if device_id == DEFAULT_DEVICE and len(found) == 1:
            ((only, path),) = found.items()
            return await self._read_path(path, only)
        listed = clean(", ".join(sorted(found)))
        raise Rejected(f"{self.channel.where} has no system {device_id!r}; set deviceID to one of: {listed}")

    async def manager_path(self, device_id: str) -> str | None:
        """Return the path of the manager that the system names; None if it names none."""
        known = self._known.get(device_id)
        return (await self._read(device_id) if known is None else known.system).manager_path

    async def system_document(self, device_id: str) -> Mapping[str, Any]:
        """Read the system whole, for what `system` does not parse."""
        return await self.document(await self._path(device_id), f"system {clean(device_id)}")

    async def _read_path(self, path: str, device_id: str) -> SystemReading:
        answer = await self.channel.get(path)
        if not answer.ok:
            raise self.refusal(answer, f"system {device_id}", changes=False)
        document = answer.document()
        etag = documents.etag_of(document, answer)
        return documents.system(document, path=path, device_id=device_id, etag=etag)

    async def document(self, path: str, what: str) -> Mapping[str, Any]:
        """Read a resource; `what` names it in the message of a failure."""
        answer = await self.channel.get(path)
        if not answer.ok:
            raise self.refusal(answer, what, changes=False)
        return answer.document()

    def refusal(self, answer: BmcResponse, what: str, *, changes: bool = True) -> Failure:
        """Return the failure that an answer other than 2xx means."""
        return failure_of(answer, what=what, where=self.channel.where, changes=changes, hide=self.channel.secrets)
