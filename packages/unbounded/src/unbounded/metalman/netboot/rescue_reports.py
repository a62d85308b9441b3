"""Reports of the rescue system of a HostRescue: pure, from a report to the observation and the answer."""

from __future__ import annotations

from typing import Final

from unbounded.api.machine import NetbootMilestone
from unbounded.api.machine_status import RescueSystem, rescue_text
from unbounded.api.operation import MachineOperation
from unbounded.metalman.http.boot_service import ReportAnswer, RescueReport
from unbounded.metalman.netboot.boot_requests import boot_record
from unbounded.metalman.netboot.dependencies import BootVisit
from unbounded.metalman.netboot.model import BootObservation, BootWindow
from unbounded.operations.parameters import rescue_keys, rescue_minutes

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
