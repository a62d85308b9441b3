"""FirmwareUpdate: the BMC loads an image by Redfish's SimpleUpdate, which is sent once.

The proof is the end of the BMC's task. Where the BMC has lost the task, as one that updates itself does, another
version is the proof. The evidence has the versions before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from unbounded.api.machine import Machine
from unbounded.api.machine_status import accept_command
from unbounded.api.operation import MachineOperation
from unbounded.metalman.power import Table, table_rows
from unbounded.metalman.reasons import TASK_FAILED
from unbounded.metalman.redfish.bmc_interface import BmcBusy, BmcUnreachable, InstalledFirmware, UpdateState
from unbounded.metalman.redfish.pool import PooledBmc
from unbounded.operations.execution_record import Run
from unbounded.operations.parameters import firmware_targets
from unbounded.workflow.procedure import COMPLETE, Cancel, Capacity, Observation, Procedure, Repeat, Stage, Step

READING_FIRMWARE: Final = "ReadingFirmware"
UPDATING: Final = "UpdatingFirmware"
COMPARING: Final = "ComparingVersions"
WAITING_VERSION: Final = "WaitingVersion"

UPDATE: Final = "SimpleUpdate"

OF_FIRMWARE: Final = frozenset({0, 1, 2, 3})  # PCRs that an update of firmware changes: code and settings

EVIDENCE_DONE: Final = "the BMC carried the update out"
_BEFORE: Final = "before the update: "
_AFTER: Final = "after the update: "
_STILL: Final = "after the update, as before: "
_TASK: Final = "the BMC updates its firmware in "

BUSY_LIMIT_S: Final = 1800.0
ANSWER_LIMIT_S: Final = 300.0  # for an update that no task shows
TASK_LIMIT_S: Final = 7200.0
SILENT_LIMIT_S: Final = 1800.0
VERSION_LIMIT_S: Final = 120.0


class FirmwareFact(StrEnum):
    """Observed state of an update."""

    READY = "Ready"  # no update runs, and the versions are those of before
    BUSY = "Busy"  # another update runs
    RUNNING = "Running"
    SILENT = "Silent"  # the BMC does not answer: it may restart with its new firmware
    DONE = "Done"
    FAILED = "Failed"
    CHANGED = "Changed"  # the versions differ from those of before


def _table() -> Table:
    update, changed = Step(UPDATING, action=UPDATE), Step(COMPLETE, evidence=EVIDENCE_DONE)
    return {
        **table_rows(READING_FIRMWARE, FirmwareFact, {FirmwareFact.READY: update}),
        **table_rows(
            UPDATING,
            FirmwareFact,
            {
                FirmwareFact.READY: update,
                FirmwareFact.DONE: Step(COMPARING, evidence=EVIDENCE_DONE),
                FirmwareFact.FAILED: Step(UPDATING, fail=TASK_FAILED),
                FirmwareFact.CHANGED: changed,
            },
        ),
        **table_rows(
            COMPARING, FirmwareFact, {FirmwareFact.READY: Step(WAITING_VERSION), FirmwareFact.CHANGED: changed}
        ),
        **table_rows(
            WAITING_VERSION, FirmwareFact, {FirmwareFact.SILENT: Step(COMPARING), FirmwareFact.CHANGED: changed}
        ),
    }


TABLE: Final = _table()


def update(_operation: MachineOperation) -> Procedure:
    return Procedure(
        start=READING_FIRMWARE,
        facts=FirmwareFact,
        stages={
            READING_FIRMWARE: Stage(
                "the BMC to answer, and to end another update", limit_s=BUSY_LIMIT_S, cancel=Cancel.AT_ONCE
            ),
            UPDATING: Stage(
                "the BMC to update the firmware",
                limit_s=ANSWER_LIMIT_S,
                late_s=TASK_LIMIT_S - ANSWER_LIMIT_S,
                capacity=Capacity.BACKGROUND,
            ),
            COMPARING: Stage("the BMC to list its firmware", limit_s=SILENT_LIMIT_S, capacity=Capacity.BACKGROUND),
            WAITING_VERSION: Stage(
                "the BMC to list another version", limit_s=VERSION_LIMIT_S, on_timeout=Step(COMPLETE)
            ),
        },
        table=TABLE,
        actions={UPDATE: Repeat.ONCE},
        proof=frozenset({EVIDENCE_DONE}),
        polls_s=(1.0, 2.0, 5.0),
    )


async def observe(operation: MachineOperation, run: Run, bmc: PooledBmc, url: str, machine: Machine) -> Observation:
    """Read task and versions. Once the update was requested, the BMC's silence is a fact, and no failure to read it."""
    where = f"{url} UpdateService"
    try:
        if run.stage == UPDATING:
            observation = await _observe_update(operation, run, bmc, where)
        else:
            observation = await _observe_versions(operation, run, bmc, where)
    except (BmcUnreachable, BmcBusy) as silence:
        if run.stage in ("", READING_FIRMWARE):
            raise
        return Observation(FirmwareFact.SILENT, str(silence), where)
    if observation.fact not in (FirmwareFact.DONE, FirmwareFact.CHANGED):
        return observation
    return replace(observation, evidence=(*observation.evidence, *_stale_reference(machine)))


def _stale_reference(machine: Machine) -> tuple[str, ...]:
    """Return that the reference of the Machine's boots is older than the update, as evidence."""
    reference = machine.status.tpm.reference if machine.status.tpm else None
    if reference is None:
        return ()
    command = accept_command(machine.name, OF_FIRMWARE)
    return (f"status.tpm.reference is of {reference.at}, before this update: `{command}` accepts other firmware",)


async def _observe_update(operation: MachineOperation, run: Run, bmc: PooledBmc, where: str) -> Observation:
    """Read the task of the answer, or one that runs; where neither is left, the versions decide."""
    recorded = [one.what.removeprefix(_TASK) for one in run.evidence if one.what.startswith(_TASK)]
    handle = run.handle or next(iter(recorded), None) or await bmc.running_update()
    if handle:
        progress = await bmc.update_progress(handle)
        evidence = (_task_text(handle),) if progress.state is UpdateState.RUNNING else ()
        match progress.state:
            case UpdateState.RUNNING:
                return Observation(
                    FirmwareFact.RUNNING, progress.text, where, progress=progress.text, evidence=evidence
                )
            case UpdateState.DONE:
                return Observation(FirmwareFact.DONE, progress.text, where)
            case UpdateState.FAILED:
                return Observation(FirmwareFact.FAILED, progress.text, where)
            case UpdateState.VANISHED:
                pass
    return await _observe_versions(operation, run, bmc, where)


def _task_text(handle: str) -> str:
    """Return the evidence of a task: its own path, which the BMC names last."""
    return f"{_TASK}{handle.splitlines()[-1]}"


async def _observe_versions(operation: MachineOperation, run: Run, bmc: PooledBmc, where: str) -> Observation:
    text = _versions_text(await bmc.firmware(), firmware_targets(operation))
    if run.stage in ("", READING_FIRMWARE):
        busy = await bmc.running_update()
        if busy is not None:
            return Observation(FirmwareFact.BUSY, f"{text}; the BMC carries out another update: {busy}", where)
        return Observation(FirmwareFact.READY, text, where, evidence=(f"{_BEFORE}{text}",))
    before = next((one.what.removeprefix(_BEFORE) for one in run.evidence if one.what.startswith(_BEFORE)), text)
    if before != text:
        return Observation(FirmwareFact.CHANGED, f"{_AFTER}{text}", where, evidence=(f"{_AFTER}{text}",))
    evidence = (f"{_STILL}{text}",) if run.stage == WAITING_VERSION else ()
    return Observation(FirmwareFact.READY, f"the BMC lists {text}", where, evidence=evidence)


def _versions_text(versions: Sequence[InstalledFirmware], targets: Sequence[str]) -> str:
    """Return the versions of the targets, or of all components that can be updated, or of all."""
    updateable = [one for one in versions if one.updateable]
    shown = [one for one in versions if one.name in targets] if targets else updateable or versions
    listed = ", ".join(f"{one.name} {one.version or 'without a version'}" for one in shown)
    return listed or f"no firmware {', '.join(targets)}".rstrip()
