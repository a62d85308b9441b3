"""The tables of HostInspect and HostRescue: neither installs, nor leaves the host in another power state."""

from __future__ import annotations

from typing import Final

import pytest

from unbounded.api.operation import MachineOperation, MachineOperationSpec
from unbounded.metalman import inspect_stages, power
from unbounded.metalman import replace_table as netboot
from unbounded.metalman.inspect_stages import ENDING_RESCUE, RESCUE_TABLE, SHUTTING_DOWN_RESCUE, TABLE, inspect, rescue
from unbounded.metalman.replace_observation import restored
from unbounded.metalman.replace_table import ReplaceFact
from unbounded.operations.deadline import deadline_s
from unbounded.workflow.procedure import ENDS, Cancel, Step

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


def operation(**parameters: str) -> MachineOperation:
    return MachineOperation(spec=MachineOperationSpec(operation_kind="HostRescue", parameters=parameters))


RESCUE: Final = rescue(operation())


@pytest.mark.parametrize("stage", sorted(RESCUE.stages))
def test_rescue_ends_only_with_the_former_power_state(stage: str) -> None:
    for fact in ReplaceFact:
        if RESCUE_TABLE[stage, fact].stage in ENDS:
            assert fact in (ReplaceFact.ON_AS_BEFORE, ReplaceFact.OFF_AS_BEFORE)
            assert stage in netboot.RESTORING_STAGES
    if stage != RESCUE.start:  # nothing has happened there
        assert RESCUE.stages[stage].is_cleanup or RESCUE.stages[stage].cleanup_stage


def test_time_cancel_and_the_user_inside_end_a_rescue_in_the_same_way() -> None:
    stage = RESCUE.stages[netboot.RESCUING]
    assert stage.cancel is Cancel.UNDO
    assert stage.undo == stage.on_timeout == Step(ENDING_RESCUE)
    assert RESCUE_TABLE[netboot.RESCUING, ReplaceFact.LEFT].stage == ENDING_RESCUE


def test_no_bmc_is_read_while_the_rescue_system_runs() -> None:
    assert netboot.fact_source(netboot.RESCUING) is netboot.FactSource.BOOT
    assert not any(netboot.needs_power(netboot.RESCUING, fact) for fact in ReplaceFact)


def test_a_host_is_shut_down_before_it_is_switched_off() -> None:
    assert not any(RESCUE_TABLE[ENDING_RESCUE, fact].action for fact in ReplaceFact)
    ending, shutdown = RESCUE.stages[ENDING_RESCUE].on_timeout, RESCUE.stages[SHUTTING_DOWN_RESCUE].on_timeout
    assert ending == Step(SHUTTING_DOWN_RESCUE, action=power.SHUT_DOWN)
    assert shutdown == Step(inspect_stages.WAITING_INSTALLER_OFF, action=power.SWITCH_OFF)


@pytest.mark.parametrize(("minutes", "expected_s"), [(None, 3600), ("1", 60), ("1440", 86400)])
def test_the_minutes_of_the_rescue_are_its_limit_and_lengthen_the_deadline(
    minutes: str | None, expected_s: int
) -> None:
    given = operation() if minutes is None else operation(minutes=minutes)
    assert rescue(given).stages[netboot.RESCUING].limit_s == expected_s
    assert deadline_s(given) == 3600 + expected_s
