"""The table of HostInspect: nothing in it installs or leaves the host in another power state."""

from __future__ import annotations

from typing import Final

import pytest

from unbounded.api.operation import MachineOperation, MachineOperationSpec
from unbounded.metalman import inspect_stages, power
from unbounded.metalman import replace as netboot
from unbounded.metalman.inspect_stages import TABLE, inspect
from unbounded.metalman.replace import ReplaceFact
from unbounded.metalman.replace_observation import restored
from unbounded.workflow.procedure import ENDS, Cancel

PROCEDURE: Final = inspect(MachineOperation(spec=MachineOperationSpec(operation_kind="HostInspect")))
RESTORED: Final = (ReplaceFact.ON_AS_BEFORE, ReplaceFact.OFF_AS_BEFORE)


@pytest.mark.parametrize("stage", sorted(PROCEDURE.stages))
def test_operation_ends_only_with_the_former_power_state(stage: str) -> None:
    for fact in ReplaceFact:
        step = TABLE[stage, fact]
        if step.stage in ENDS:
            assert fact in RESTORED
            assert stage in netboot.RESTORING_STAGES
    if stage != PROCEDURE.start:  # nothing has happened there
        assert PROCEDURE.stages[stage].is_cleanup or PROCEDURE.stages[stage].cleanup_stage


def test_every_stage_before_the_report_can_be_undone() -> None:
    stages = (netboot.BEFORE_INSTALLER | {netboot.WAITING_REPORT}) - {netboot.WAITING_IMAGE}
    assert {PROCEDURE.stages[stage].cancel for stage in stages} == {Cancel.UNDO}


@pytest.mark.parametrize(
    ("fact", "was_on", "expected"),
    [
        (ReplaceFact.ON, True, ReplaceFact.ON_AS_BEFORE),
        (ReplaceFact.ON_ARMED, True, ReplaceFact.ON_ARMED),
        (ReplaceFact.OFF, True, ReplaceFact.OFF),
        (ReplaceFact.OFF_ARMED, True, ReplaceFact.OFF),
        (ReplaceFact.OFF, False, ReplaceFact.OFF_AS_BEFORE),
        (ReplaceFact.OFF_ARMED, False, ReplaceFact.OFF_ARMED),
        (ReplaceFact.ON, False, ReplaceFact.ON),
        (ReplaceFact.ON_ARMED, False, ReplaceFact.ON),
        (ReplaceFact.UNSETTLED, True, ReplaceFact.UNSETTLED),
    ],
)
def test_power_is_restored_when_it_and_the_override_are_as_before(
    fact: ReplaceFact, was_on: bool, expected: ReplaceFact
) -> None:
    assert restored(fact, was_on=was_on) is expected


def test_restoring_acts_on_what_differs_from_before() -> None:
    actions = {fact: TABLE[netboot.RESTORING, fact].action for fact in ReplaceFact}
    assert {fact: action for fact, action in actions.items() if action} == {
        ReplaceFact.ON: power.SWITCH_OFF,
        ReplaceFact.OFF: power.SWITCH_ON,
        ReplaceFact.ON_ARMED: netboot.CLEAR_BOOT,
        ReplaceFact.OFF_ARMED: netboot.CLEAR_BOOT,
    }
    assert TABLE[inspect_stages.CLEANING_UP_INSTALLER, ReplaceFact.ON].action == power.SWITCH_OFF


@pytest.mark.parametrize("stage", [power.SHUTTING_DOWN, power.WAITING_OFF])
def test_a_host_that_has_not_begun_its_boot_is_never_switched_off_to_undo(stage: str) -> None:
    undo = PROCEDURE.stages[stage].undo
    assert undo is not None
    for after in (undo.stage, PROCEDURE.stages[stage].cleanup_stage or ""):
        assert after in netboot.RESTORING_STAGES
        assert PROCEDURE.stages[after].dwell_s >= PROCEDURE.stages[power.SHUTTING_DOWN].limit_s


@pytest.mark.parametrize("stage", [netboot.RESTORING, netboot.RESTORING_AFTER_CANCEL])
def test_a_host_with_its_former_power_state_is_not_switched_off_for_its_override(stage: str) -> None:
    assert PROCEDURE.stages[stage].cleanup_stage == netboot.RESTORING_AFTER_FAILURE
