"""Answers to the reports of a HostErase's installer and of a HostRescue's rescue system, and what these reports change.

HostErase: the disks that metalman names to the installer, the permission to begin each, and its progress. A disk is
begun only after both statuses say so, and while the API itself has the operation neither cancelled nor over, and the
Node drained: what a status calls untouched is untouched. The operation's own status has it first of all because another
process may end the operation, with the disks that it knows of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from unbounded.api.conditions import ConditionType
from unbounded.api.hardware import DiskState, HardwareSource
from unbounded.api.machine import MACHINES, Machine, NetbootMilestone
from unbounded.api.machine_status import DiskErasureRecord, ErasureState, RescueSystem, merge_erasures, rescue_text
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import Api, ApiError, Conflict, NotFound
from unbounded.kube.clock import WallClock, rfc3339
from unbounded.kube.logs import Log
from unbounded.kube.status_writer import ATTEMPTS, StatusWriter
from unbounded.metalman.disk_choice import AwaitedDisk, DiskRefused, has_path
from unbounded.metalman.disks_to_erase import choose_erasures, erasures_text, not_blank
from unbounded.metalman.erase_stages import check_drained
from unbounded.metalman.http.boot_service import HardwareReport, ReportAnswer, RescueReport
from unbounded.metalman.inspection import inspected
from unbounded.metalman.netboot.boot_requests import boot_record
from unbounded.metalman.netboot.model import BootObservation, BootRequest, BootVisit, BootWindow
from unbounded.metalman.replace_table import BOOT_STAGES
from unbounded.operations.executor_protocol import Refusal
from unbounded.operations.parameters import disks_to_erase, rescue_keys, rescue_minutes

RETRY_S: Final = 5
SWITCH_OFF: Final = ReportAnswer(200, {"status": "ok", "action": "PowerOff"})
UNREADABLE: Final = ReportAnswer(503, {"error": "cannot read the operation and its Machine now"}, RETRY_S)
UNRECORDED: Final = ReportAnswer(503, {"error": "cannot record it now"}, RETRY_S)
OVER: Final = ReportAnswer(409, {"error": "the HostErase is cancelled or over: nothing more is erased"})
OTHER_BOOT: Final = ReportAnswer(409, {"error": "this boot is not for a HostErase"})
_FINAL: Final = (ErasureState.ERASED, ErasureState.FAILED)

log = Log("metalman.netboot")
Record = Callable[[str, BootObservation], Awaitable[ReportAnswer]]


class ErasureService:
    """Answers to the installer of a HostErase.

    Args:
        record: writes an observation of a Machine's boot, and returns the answer to its reporter.
    """

    def __init__(self, api: Api, record: Record, now: WallClock) -> None:
        self._api = api
        self._operation_status = StatusWriter(api, MACHINE_OPERATIONS, fields=("erasures",))
        self._record = record
        self._now = now

    async def hardware(self, request: BootRequest, report: HardwareReport) -> ReportAnswer:
        """Record the report, and answer with the disks to erase; with PowerOff once all are."""
        found = await self._read(request)
        if isinstance(found, ReportAnswer):
            return found
        machine, operation = found
        seen = boot_record(machine, request.boot)
        before = () if seen is None else seen.erasures
        disks = report.hardware.disks
        plan = choose_erasures(disks, disks_to_erase(operation), before, final=report.final)
        if isinstance(plan, AwaitedDisk):
            return ReportAnswer(200, {"status": "ok", "action": "Wait", "message": plan.message})
        text = plan.message if isinstance(plan, DiskRefused) else not_blank(disks, before)
        milestone = NetbootMilestone.HARDWARE_REPORTED
        if text:
            return await self._refused(request, report, text, milestone)
        if isinstance(plan, DiskRefused):
            raise TypeError("a refusal has a message")
        if not plan.names:
            milestone = NetbootMilestone.DISKS_ERASED
        left_out = f"not erased, as {plan.left_out}" if plan.left_out else ""
        observation = dataclasses.replace(
            self._observation(request, report, milestone, left_out), erasures=plan.records
        )
        recorded = await self._record(request.machine, observation)
        if recorded.code != 200:
            return recorded
        if not plan.names:
            log.info("disks erased", machine=request.machine, boot=request.boot, disks=erasures_text(plan.records))
            return SWITCH_OFF
        return ReportAnswer(200, {"status": "ok", "action": "Erase", "disks": " ".join(plan.names)})

    async def progress(self, request: BootRequest, report: DiskErasureRecord) -> ReportAnswer:
        """Record the state of a disk's erasure. One without a method asks to begin, and waits until it may."""
        found = await self._read(request)
        if isinstance(found, ReportAnswer):
            return found
        machine, operation = found
        seen = boot_record(machine, request.boot)
        known = {} if seen is None else {one.serial_number: one for one in seen.erasures}
        old = known.get(report.serial_number)
        if old is None:
            text = f"disk {report.name} has the serial number {report.serial_number}, which is not to be erased"
            return ReportAnswer(409, {"error": text})
        begins = report.is_permission
        obstacle = await self._obstacle(machine, operation, old) if begins else _without_begin(old)
        if obstacle is not None:
            return obstacle
        new = self._with_times(old, report)
        lost = begins and _is_system_disk(machine, old)
        gone = {ConditionType.CLOUD_INIT_DONE: None, ConditionType.REPAVED: None} if lost else {}
        observation = BootObservation(request.boot, conditions=gone, erasures=(new,), is_erased=lost)
        recorded = await self._record(request.machine, observation)
        if recorded.code != 200 or not begins:
            return recorded
        permitted = await self._permitted(request, new, recorded)
        if permitted is recorded:
            log.info("erasure begins", machine=request.machine, boot=request.boot, disk=new.serial_number)
        return permitted

    async def _obstacle(
        self, machine: Machine, operation: MachineOperation, old: DiskErasureRecord
    ) -> ReportAnswer | None:
        """Return why a disk must not be begun now; None if it may."""
        if old.state == ErasureState.ERASED or not _may_begin(operation):
            return OVER
        try:
            await check_drained(self._api, machine)  # the Node may be back since the host was shut down
        except Refusal as refusal:
            return ReportAnswer(409, {"error": str(refusal)})
        except ApiError as error:
            log.warning("cannot read the Node of a HostErase", error=error, machine=machine.name)
            return UNREADABLE
        return None

    async def _refused(
        self, request: BootRequest, report: HardwareReport, text: str, milestone: NetbootMilestone
    ) -> ReportAnswer:
        recorded = await self._record(request.machine, self._observation(request, report, milestone, text))
        return recorded if recorded.code != 200 else ReportAnswer(409, {"error": text})

    def _observation(
        self, request: BootRequest, report: HardwareReport, milestone: NetbootMilestone, message: str
    ) -> BootObservation:
        hardware = inspected(report.hardware, HardwareSource.INSTALLER, rfc3339(self._now()), request.boot)
        return BootObservation(request.boot, milestone, message=message, hardware=hardware)

    def _with_times(self, old: DiskErasureRecord, report: DiskErasureRecord) -> DiskErasureRecord:
        now = rfc3339(self._now())
        ended = now if report.state in _FINAL else None
        return replace(report, contents=old.contents, started_at=old.started_at or now, completed_at=ended)

    async def _read(self, request: BootRequest) -> tuple[Machine, MachineOperation] | ReportAnswer:
        """Read Machine and operation: a cached operation may be cancelled since."""
        try:
            machine = await self._api.get(MACHINES, request.machine)
            operation = await self._api.get(MACHINE_OPERATIONS, request.operation)
        except NotFound:
            return OVER
        except ApiError as error:
            log.warning("cannot read a HostErase and its Machine", error=error, machine=request.machine)
            return UNREADABLE
        same = machine.metadata.uid == request.uid and operation.metadata.uid == request.boot
        return (machine, operation) if same else OVER

    async def _permitted(self, request: BootRequest, new: DiskErasureRecord, permission: ReportAnswer) -> ReportAnswer:
        """Return the permission once Machine and operation say that the disk is begun.

        A write for a boot that has just ended is dropped. One to the operation is refused where it has ended since it
        was read, and an end by another process where it does not know of this disk.
        """
        for _ in range(ATTEMPTS):
            found = await self._read(request)
            if isinstance(found, ReportAnswer):
                return found
            machine, operation = found
            if not _may_begin(operation):
                return OVER
            seen = boot_record(machine, request.boot)
            records = () if seen is None else seen.erasures
            if not any(one.serial_number == new.serial_number and one.state == new.state for one in records):
                break
            merged = merge_erasures(operation.status.erasures, records)
            if merged == operation.status.erasures:
                return permission
            try:
                await self._operation_status.write(
                    operation, {"erasures": [msgspec.to_builtins(one) for one in merged]}
                )
            except Conflict:
                continue
            except ApiError as error:
                log.warning("cannot record a begun disk in its HostErase", error=error, machine=request.machine)
                break
            return permission
        return UNRECORDED


def _without_begin(old: DiskErasureRecord) -> ReportAnswer | None:
    """Return the answer to a result of a disk that no installer was permitted to begin; None for others."""
    if old.state != ErasureState.UNTOUCHED:
        return None
    return ReportAnswer(409, {"error": f"the erasure of disk {old.serial_number} was not begun"})


def _may_begin(operation: MachineOperation) -> bool:
    """Return whether an operation may still destroy something."""
    given_up = operation.spec.cancel or operation.spec.abandon or operation.metadata.deletion_timestamp is not None
    stage = operation.status.targets[0].stage if operation.status.targets else None
    return not given_up and not operation.terminal and stage in BOOT_STAGES


def _is_system_disk(machine: Machine, record: DiskErasureRecord) -> bool:
    """Return whether a disk has this Machine's installed system, by its mark or the last install's record."""
    hardware, layout = machine.status.hardware, machine.status.layout
    disks = () if hardware is None else hardware.disks
    paths = (machine.status.target_disk, *(() if layout is None else layout.disks))
    mine = [disk for disk in disks if disk.serial_number == record.serial_number]
    return any(disk.state == DiskState.OWN or any(path and has_path(disk, path) for path in paths) for disk in mine)


START_RESCUE: Final = ReportAnswer(200, {"status": "ok", "action": "Rescue"})
RESCUE_OVER: Final = ReportAnswer(409, {"error": "this boot has no rescue system, or its rescue has ended"})


def is_rescue_over(visit: BootVisit) -> bool:
    """Return whether a boot has no rescue system any more, or is for another kind of operation."""
    request = visit.request
    seen = boot_record(visit.machine, request.boot)
    is_ended = seen is not None and seen.milestone == NetbootMilestone.RESCUE_ENDED
    return is_ended or not request.rescues or request.window is not BootWindow.INSTALLING


def rescue_change(visit: BootVisit, client: str, report: RescueReport) -> BootObservation | None:
    """Return the observation that a report makes; None if the status has it already."""
    boot = visit.request.boot
    if report.ended:
        return BootObservation(boot, NetbootMilestone.RESCUE_ENDED, message="the user switched the rescue system off")
    system, seen = RescueSystem(address=client, host_key=report.host_key), boot_record(visit.machine, boot)
    if seen is not None and seen.rescue == system:
        return None
    return BootObservation(boot, NetbootMilestone.RESCUE_STARTED, message=rescue_text(system), rescue=system)


def rescue_answer(operation: MachineOperation) -> ReportAnswer:
    """Return the answer with the keys that may log in, and the seconds after which the rescue system ends by itself."""
    keys, seconds = "\n".join(rescue_keys(operation)), str(rescue_minutes(operation) * 60)
    return ReportAnswer(200, {"status": "ok", "authorizedKeys": keys, "seconds": seconds})
