"""Procedure of HostRescue: the host boots the installer with an SSH server, and gets its power state back.

The stages up to the rescue system, and those that restore the power, are those of HostInspect. The rescue ends when its
time is over, when the user cancels it, or when the user switches the rescue system off from inside: each of these is
its regular end. The rescue system switches itself off once its boot is not requested any more, so that file systems
are written back. A host that runs another system by then gets a shutdown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from unbounded.api.operation import MachineOperation
from unbounded.metalman import inspect_stages, reasons
from unbounded.metalman import replace as netboot
from unbounded.metalman.inspect_stages import CLEANING_UP_INSTALLER, SEEN_RESTORED, WAITING_INSTALLER_OFF
from unbounded.metalman.power import IS_ON, IS_POWERING_OFF, SEEN_OFF, SHUT_DOWN, SWITCH_OFF
from unbounded.metalman.replace import ReplaceFact
from unbounded.operations.parameters import grace_s, rescue_minutes
from unbounded.workflow.procedure import Cancel, Capacity, Procedure, Stage, Step

ENDING_RESCUE: Final = "EndingRescue"
SHUTTING_DOWN_RESCUE: Final = "ShuttingDownRescue"

SEEN_RESCUE: Final = "the SSH server of the rescue system started"
SEEN_LEFT: Final = "the user switched the rescue system off from inside"

OFF_LIMIT_S: Final = 60.0  # the rescue system learns its end within seconds, and writes its file systems back

_END: Final = Step(ENDING_RESCUE)
_NOT_STARTED: Final = Step(
    CLEANING_UP_INSTALLER,
    fail=reasons.RESCUE_NOT_STARTED,
    message="the SSH server of the rescue system did not start in time",
)


def _rows(stage: str, named: dict[ReplaceFact, Step]) -> netboot.Table:
    return {(stage, fact): named.get(fact, Step(stage)) for fact in ReplaceFact}


def _table() -> netboot.Table:
    started = Step(netboot.RESCUING, evidence=SEEN_RESCUE)
    failures = {fact: replace(step, stage=CLEANING_UP_INSTALLER) for fact, step in netboot.FAILURES.items()}
    shut_down, off = Step(SHUTTING_DOWN_RESCUE, action=SHUT_DOWN), Step(netboot.RESTORING, evidence=SEEN_OFF)
    is_off = {ReplaceFact.OFF: off, ReplaceFact.OFF_ARMED: off}
    return {
        **inspect_stages.TABLE,
        **_rows(netboot.WAITING_REPORT, {ReplaceFact.RESCUED: started, ReplaceFact.LEFT: started, **failures}),
        **_rows(netboot.RESCUING, {ReplaceFact.LEFT: replace(_END, evidence=SEEN_LEFT), **failures}),
        **_rows(ENDING_RESCUE, is_off),
        **_rows(SHUTTING_DOWN_RESCUE, {**is_off, ReplaceFact.ON: shut_down, ReplaceFact.ON_ARMED: shut_down}),
    }


TABLE: Final = _table()


def rescue(operation: MachineOperation) -> Procedure:
    """Return the procedure of HostRescue: off, network boot, the rescue system, and the former power state."""
    inspection = inspect_stages.inspect(operation)
    stages = {
        **inspection.stages,
        netboot.WAITING_REPORT: replace(
            inspection.stages[netboot.WAITING_REPORT],
            waits_for="the SSH server of the rescue system to start",
            on_timeout=_NOT_STARTED,
        ),
        netboot.RESCUING: Stage(
            "the end of the rescue",
            limit_s=rescue_minutes(operation) * 60.0,
            on_timeout=_END,
            cancel=Cancel.UNDO,
            undo=_END,
            condition=IS_ON,
            capacity=Capacity.BACKGROUND,
            cleanup_stage=CLEANING_UP_INSTALLER,
        ),
        ENDING_RESCUE: Stage(
            "the rescue system to switch the host off",
            limit_s=OFF_LIMIT_S,
            on_timeout=Step(SHUTTING_DOWN_RESCUE, action=SHUT_DOWN),
            condition=IS_POWERING_OFF,
            cleanup_stage=CLEANING_UP_INSTALLER,
        ),
        SHUTTING_DOWN_RESCUE: Stage(
            "the host, which the rescue system has not switched off, to shut down",
            limit_s=max(float(grace_s(operation)), 1.0),
            on_timeout=Step(WAITING_INSTALLER_OFF, action=SWITCH_OFF),
            condition=IS_POWERING_OFF,
            cleanup_stage=CLEANING_UP_INSTALLER,
        ),
    }
    return replace(
        inspection,
        stages=stages,
        table=TABLE,
        proof=frozenset({netboot.SEEN_LOADER, SEEN_RESCUE, SEEN_RESTORED}),
    )
