"""The table of HostErase: sound in itself, and nothing in it calls an erasure undone."""

from __future__ import annotations

from typing import Final

import pytest

from unbounded.api.operation import MachineOperation, MachineOperationSpec
from unbounded.metalman import erase_stages
from unbounded.metalman import replace as netboot
from unbounded.metalman.power import SHUTTING_DOWN, WAITING_OFF
from unbounded.metalman.reasons import MEANING
from unbounded.metalman.replace import ReplaceFact
from unbounded.operations import reasons as operations_reasons
from unbounded.workflow.procedure import CANCELLED, COMPLETE, Cancel, Capacity, Step

SPEC: Final = MachineOperationSpec(operation_kind="HostErase", parameters={"disks": "All"})
PROCEDURE: Final = erase_stages.erase(MachineOperation(spec=SPEC))
TABLE: Final = PROCEDURE.table


def test_the_table_is_sound() -> None:
    assert PROCEDURE.faults() == []


def test_every_stage_can_be_reached_and_left() -> None:
    steps = [(stage, step) for (stage, _), step in TABLE.items()]
    stages = PROCEDURE.stages.items()
    steps += [(name, extra) for name, stage in stages for extra in (stage.on_timeout, stage.undo) if extra is not None]
    steps += [(name, Step(stage.cleanup_stage)) for name, stage in stages if stage.cleanup_stage is not None]
    reached = {step.stage for here, step in steps if step.stage != here and step.fail is None}
    assert PROCEDURE.stages.keys() - {PROCEDURE.start} <= reached
    assert {here for here, step in steps if step.stage != here or step.fail is not None} == PROCEDURE.stages.keys()


def test_every_failure_has_a_reason_with_a_meaning() -> None:
    steps = [*TABLE.values(), *(stage.on_timeout for stage in PROCEDURE.stages.values() if stage.on_timeout)]
    assert {step.fail for step in steps if step.fail} <= MEANING.keys() | operations_reasons.MEANING.keys()


def test_only_a_shutdown_is_undone() -> None:
    undoing = {name for name, stage in PROCEDURE.stages.items() if stage.undo is not None}
    assert undoing == {SHUTTING_DOWN, WAITING_OFF}
    cancelled = {stage for (stage, _), step in TABLE.items() if step.stage == CANCELLED}
    assert cancelled == {netboot.RESTORING_AFTER_SHUTDOWN}


@pytest.mark.parametrize("stage", sorted(netboot.BOOT_STAGES & PROCEDURE.stages.keys()))
def test_a_cancel_of_a_boot_ends_in_the_cleanup_that_switches_the_host_off(stage: str) -> None:
    assert PROCEDURE.stages[stage].cancel is Cancel.UNDO
    assert PROCEDURE.stages[stage].cleanup_stage == "CleaningUpInstaller"


def test_it_completes_only_off_and_with_all_disks_erased() -> None:
    ends = {(stage, fact) for (stage, fact), step in TABLE.items() if step.stage == COMPLETE and step.fail is None}
    assert ends == {(netboot.RESTORING, ReplaceFact.OFF_AS_BEFORE)}
    assert erase_stages.SEEN_ERASED in PROCEDURE.proof
    assert {fact for (stage, fact), step in TABLE.items() if step.evidence == erase_stages.SEEN_ERASED} == {
        ReplaceFact.ERASED
    }


def test_an_erasure_of_days_holds_no_capacity() -> None:
    assert PROCEDURE.stages[netboot.WAITING_ERASE].capacity is Capacity.BACKGROUND
