"""Procedures of HostInspect and HostRescue: the host boots the installer, and gets its power state back.

The installer reports the hardware, or opens an SSH server. Nothing is written to a disk by itself: in such a boot the
servers send no image. The stages up to the loader are those of HostReplace. Whatever ends the operation, the boot
override is removed, and the host gets its power state back. A host that may run the installer is switched off for that.
One that has not been Off yet runs its own system: it stays On, or is switched on once its shutdown has taken effect.

A rescue ends when its time is over, when the user cancels it, or when the user switches the rescue system off from
inside: each of these is its regular end. The rescue system switches itself off once its boot is not requested any more,
so that file systems are written back. A host that runs another system by then gets a shutdown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from unbounded.api.operation import MachineOperation
from unbounded.metalman import power, reasons, replace_stages
from unbounded.metalman import replace_table as netboot
from unbounded.metalman.power import ACTIONS as POWER_ACTIONS
from unbounded.metalman.replace_table import ReplaceFact
from unbounded.operations.parameters import grace_s, rescue_minutes
from unbounded.operations.reasons import OUTCOME_UNKNOWN
from unbounded.workflow.procedure import CANCELLED, COMPLETE, Cancel, Capacity, Procedure, Stage, Step

WAITING_INSTALLER_OFF: Final = "WaitingInstallerOff"
UNDOING_INSTALLER: Final = "UndoingInstaller"
CLEANING_UP_INSTALLER: Final = "CleaningUpInstaller"

WAS_ON: Final = "the host was On before"
WAS_OFF: Final = "the host was Off before"
EVIDENCE_REPORT: Final = "the installer reported the hardware"
EVIDENCE_RESTORED: Final = "the host has the power state that it had before"

_TIMED_OUT: Final = Step(
    CLEANING_UP_INSTALLER,
    fail=reasons.INSPECTION_TIMED_OUT,
    message="the installer did not report the hardware in time",
)
_SHUTDOWN: Final = frozenset({power.SHUTTING_DOWN, power.WAITING_OFF})  # the host still runs its own system
ENDING_RESCUE: Final = "EndingRescue"
SHUTTING_DOWN_RESCUE: Final = "ShuttingDownRescue"

EVIDENCE_RESCUE: Final = "the SSH server of the rescue system started"
EVIDENCE_LEFT: Final = "the user switched the rescue system off from inside"

RESCUE_OFF_LIMIT_S: Final = 60.0  # the rescue system learns its end within seconds, and writes its file systems back

_END_RESCUE: Final = Step(ENDING_RESCUE)
_RESCUE_NOT_STARTED: Final = Step(
    CLEANING_UP_INSTALLER,
    fail=reasons.RESCUE_NOT_STARTED,
    message="the SSH server of the rescue system did not start in time",
)


def _boot_rows() -> netboot.Table:
    """Return the rows of HostReplace up to the loader; a failure leads to the cleanup of this procedure."""

    def follow(step: Step) -> Step:
        if step.stage == netboot.WAITING_INSTALLER:
            return replace(step, stage=netboot.WAITING_REPORT)
        return replace(step, stage=CLEANING_UP_INSTALLER) if step.fail is not None else step

    rows = {key: follow(step) for key, step in netboot.TABLE.items() if key[0] in netboot.BEFORE_INSTALLER}
    for fact in (ReplaceFact.ON, ReplaceFact.ON_ARMED):
        rows[netboot.WAITING_IMAGE, fact] = Step(power.SHUTTING_DOWN, action=power.SHUT_DOWN, evidence=WAS_ON)
    for fact in (ReplaceFact.OFF, ReplaceFact.OFF_ARMED):
        rows[netboot.WAITING_IMAGE, fact] = replace(rows[netboot.WAITING_IMAGE, fact], evidence=WAS_OFF)
    return rows


def _report_rows() -> netboot.Table:
    failures = {fact: replace(step, stage=CLEANING_UP_INSTALLER) for fact, step in netboot.FAILURES.items()}
    reported = {ReplaceFact.REPORTED: Step(WAITING_INSTALLER_OFF, action=power.SWITCH_OFF, evidence=EVIDENCE_REPORT)}
    return power.table_rows(netboot.WAITING_REPORT, ReplaceFact, {**reported, **failures})


def _off_rows(off_stage: str, restoring: str) -> netboot.Table:
    """Return the rows of a stage in which the host, which may run the installer, goes off."""
    switch_off, is_off = Step(off_stage, action=power.SWITCH_OFF), Step(restoring, evidence=power.EVIDENCE_OFF)
    return power.table_rows(
        off_stage,
        ReplaceFact,
        {
            ReplaceFact.ON: switch_off,
            ReplaceFact.ON_ARMED: switch_off,
            ReplaceFact.OFF: is_off,
            ReplaceFact.OFF_ARMED: is_off,
        },
    )


def _restoring_rows(restoring: str, end: Step) -> netboot.Table:
    """Return the rows of a stage in which the host gets its power state back."""
    clear = Step(restoring, action=netboot.CLEAR_BOOT)
    rows = {
        ReplaceFact.ON: Step(restoring, action=power.SWITCH_OFF),
        ReplaceFact.OFF: Step(restoring, action=power.SWITCH_ON),
        ReplaceFact.ON_ARMED: clear,
        ReplaceFact.OFF_ARMED: clear,
        ReplaceFact.ON_AS_BEFORE: end,
        ReplaceFact.OFF_AS_BEFORE: end,
    }
    return power.table_rows(restoring, ReplaceFact, rows)


def _restoring_stage(cleanup_stage: str | None, dwell_s: float = power.CONFIRM_S) -> Stage:
    """Return the stage in which the host gets its power state back; without a cleanup stage it is one itself."""
    return Stage(
        "the host to have its former power state, and to boot from its disk",
        limit_s=power.POWER_LIMIT_S + replace_stages.BOOT_ORDER_LIMIT_S + dwell_s,
        dwell_s=dwell_s,  # the last action may take effect after the first reading
        is_cleanup=cleanup_stage is None,
        cleanup_stage=cleanup_stage,
    )


def _restoring_stages(off_stage: str, restoring: str, cleanup_stage: str | None) -> Mapping[str, Stage]:
    off = Stage(
        "the host, which runs the installer, to be Off",
        limit_s=power.POWER_LIMIT_S,
        condition=power.IS_POWERING_OFF,
        is_cleanup=cleanup_stage is None,
        cleanup_stage=cleanup_stage,
    )
    # the installer is off by then: a cleanup must not switch the system off that runs again
    after = None if cleanup_stage is None else netboot.RESTORING_AFTER_FAILURE
    return {off_stage: off, restoring: _restoring_stage(after)}


def _table() -> netboot.Table:
    done, undone = Step(COMPLETE, evidence=EVIDENCE_RESTORED), Step(CANCELLED, evidence=EVIDENCE_RESTORED)
    return {
        **_boot_rows(),
        **_report_rows(),
        **_off_rows(WAITING_INSTALLER_OFF, netboot.RESTORING),
        **_restoring_rows(netboot.RESTORING, done),
        **_restoring_rows(netboot.RESTORING_AFTER_SHUTDOWN, undone),
        **_off_rows(UNDOING_INSTALLER, netboot.RESTORING_AFTER_CANCEL),
        **_restoring_rows(netboot.RESTORING_AFTER_CANCEL, undone),
        **_restoring_rows(netboot.CLEANING_UP_SHUTDOWN, _failed(netboot.CLEANING_UP_SHUTDOWN)),
        **_off_rows(CLEANING_UP_INSTALLER, netboot.RESTORING_AFTER_FAILURE),
        **_restoring_rows(netboot.RESTORING_AFTER_FAILURE, _failed(netboot.RESTORING_AFTER_FAILURE)),
    }


def _failed(stage: str) -> Step:
    # the engine replaces this failure by the recorded one
    return Step(stage, fail=OUTCOME_UNKNOWN, message="the record names no failure")


TABLE: Final = _table()


def _before_report(grace: int) -> Mapping[str, Stage]:
    """Return the stages up to the report: a cancel undoes each of them, as nothing is written."""
    stages = {
        **replace_stages.off_stages(grace),
        **replace_stages.boot_stages(),
        netboot.WAITING_REPORT: Stage(
            "the installer to report the hardware",
            replace_stages.INSTALLER_LIMIT_S,
            on_timeout=_TIMED_OUT,
            condition=power.IS_ON,
        ),
    }
    undo, undo_shutdown = Step(UNDOING_INSTALLER), Step(netboot.RESTORING_AFTER_SHUTDOWN)
    return {
        name: replace(
            stage,
            cancel=Cancel.UNDO,
            undo=undo_shutdown if name in _SHUTDOWN else undo,
            cleanup_stage=netboot.CLEANING_UP_SHUTDOWN if name in _SHUTDOWN else CLEANING_UP_INSTALLER,
            on_timeout=_own(stage.on_timeout),
        )
        for name, stage in stages.items()
    }


def _own(step: Step | None) -> Step | None:
    """Return a step of HostReplace with its failure in the cleanup of this procedure."""
    return replace(step, stage=CLEANING_UP_INSTALLER) if step is not None and step.fail is not None else step


def inspect(operation: MachineOperation) -> Procedure:
    """Return the procedure of HostInspect: off, network boot, hardware reported, and the former power state."""
    grace = max(grace_s(operation), 1)
    stages = {
        netboot.WAITING_IMAGE: replace_stages.image_stage(),
        **_before_report(grace),
        # a requested shutdown can still take effect until its grace has passed
        netboot.RESTORING_AFTER_SHUTDOWN: _restoring_stage(netboot.CLEANING_UP_SHUTDOWN, float(grace)),
        netboot.CLEANING_UP_SHUTDOWN: _restoring_stage(None, float(grace)),
        **_restoring_stages(WAITING_INSTALLER_OFF, netboot.RESTORING, CLEANING_UP_INSTALLER),
        **_restoring_stages(UNDOING_INSTALLER, netboot.RESTORING_AFTER_CANCEL, CLEANING_UP_INSTALLER),
        **_restoring_stages(CLEANING_UP_INSTALLER, netboot.RESTORING_AFTER_FAILURE, None),
    }
    return Procedure(
        start=netboot.WAITING_IMAGE,
        facts=ReplaceFact,
        stages=stages,
        table=TABLE,
        actions={
            **POWER_ACTIONS,
            **netboot.BOOT_ACTIONS,
        },
        proof=frozenset({netboot.EVIDENCE_LOADER, EVIDENCE_REPORT, EVIDENCE_RESTORED}),
        fact_conditions={
            **dict.fromkeys((ReplaceFact.ON, ReplaceFact.ON_ARMED, ReplaceFact.ON_AS_BEFORE), power.IS_ON),
            **dict.fromkeys((ReplaceFact.OFF, ReplaceFact.OFF_ARMED, ReplaceFact.OFF_AS_BEFORE), power.IS_OFF),
        },
    )


def _rescue_table() -> netboot.Table:
    started = Step(netboot.RESCUING, evidence=EVIDENCE_RESCUE)
    failures = {fact: replace(step, stage=CLEANING_UP_INSTALLER) for fact, step in netboot.FAILURES.items()}
    shut_down, off = (
        Step(SHUTTING_DOWN_RESCUE, action=power.SHUT_DOWN),
        Step(netboot.RESTORING, evidence=power.EVIDENCE_OFF),
    )
    is_off = {ReplaceFact.OFF: off, ReplaceFact.OFF_ARMED: off}
    return {
        **TABLE,
        **power.table_rows(
            netboot.WAITING_REPORT, ReplaceFact, {ReplaceFact.RESCUED: started, ReplaceFact.LEFT: started, **failures}
        ),
        **power.table_rows(
            netboot.RESCUING, ReplaceFact, {ReplaceFact.LEFT: replace(_END_RESCUE, evidence=EVIDENCE_LEFT), **failures}
        ),
        **power.table_rows(ENDING_RESCUE, ReplaceFact, is_off),
        **power.table_rows(
            SHUTTING_DOWN_RESCUE, ReplaceFact, {**is_off, ReplaceFact.ON: shut_down, ReplaceFact.ON_ARMED: shut_down}
        ),
    }


RESCUE_TABLE: Final = _rescue_table()


def rescue(operation: MachineOperation) -> Procedure:
    """Return the procedure of HostRescue: off, network boot, the rescue system, and the former power state."""
    inspection = inspect(operation)
    stages = {
        **inspection.stages,
        netboot.WAITING_REPORT: replace(
            inspection.stages[netboot.WAITING_REPORT],
            waits_for="the SSH server of the rescue system to start",
            on_timeout=_RESCUE_NOT_STARTED,
        ),
        netboot.RESCUING: Stage(
            "the end of the rescue",
            limit_s=rescue_minutes(operation) * 60.0,
            on_timeout=_END_RESCUE,
            cancel=Cancel.UNDO,
            undo=_END_RESCUE,
            condition=power.IS_ON,
            capacity=Capacity.BACKGROUND,
            cleanup_stage=CLEANING_UP_INSTALLER,
        ),
        ENDING_RESCUE: Stage(
            "the rescue system to switch the host off",
            limit_s=RESCUE_OFF_LIMIT_S,
            on_timeout=Step(SHUTTING_DOWN_RESCUE, action=power.SHUT_DOWN),
            condition=power.IS_POWERING_OFF,
            cleanup_stage=CLEANING_UP_INSTALLER,
        ),
        SHUTTING_DOWN_RESCUE: Stage(
            "the host, which the rescue system has not switched off, to shut down",
            limit_s=max(float(grace_s(operation)), 1.0),
            on_timeout=Step(WAITING_INSTALLER_OFF, action=power.SWITCH_OFF),
            condition=power.IS_POWERING_OFF,
            cleanup_stage=CLEANING_UP_INSTALLER,
        ),
    }
    return replace(
        inspection,
        stages=stages,
        table=RESCUE_TABLE,
        proof=frozenset({netboot.EVIDENCE_LOADER, EVIDENCE_RESCUE, EVIDENCE_RESTORED}),
    )
