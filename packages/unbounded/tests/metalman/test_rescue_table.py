"""The table of HostRescue: whatever ends a rescue gives the host its former power state back."""

from __future__ import annotations

from typing import Final

import pytest

from unbounded.api.operation import MachineOperation, MachineOperationSpec
from unbounded.metalman import inspect_stages, power
from unbounded.metalman import replace as netboot
from unbounded.metalman.inspect_stages import ENDING_RESCUE, RESCUE_TABLE, SHUTTING_DOWN_RESCUE, rescue
from unbounded.metalman.replace import ReplaceFact
from unbounded.operations.deadline import deadline_s
from unbounded.workflow.procedure import ENDS, Cancel, Step


def operation(**parameters: str) -> MachineOperation:
    return MachineOperation(spec=MachineOperationSpec(operation_kind="HostRescue", parameters=parameters))


PROCEDURE: Final = rescue(operation())


@pytest.mark.parametrize("stage", sorted(PROCEDURE.stages))
def test_operation_ends_only_with_the_former_power_state(stage: str) -> None:
    for fact in ReplaceFact:
        if RESCUE_TABLE[stage, fact].stage in ENDS:
            assert fact in (ReplaceFact.ON_AS_BEFORE, ReplaceFact.OFF_AS_BEFORE)
            assert stage in netboot.RESTORING_STAGES
    if stage != PROCEDURE.start:  # nothing has happened there
        assert PROCEDURE.stages[stage].is_cleanup or PROCEDURE.stages[stage].cleanup_stage


def test_time_cancel_and_the_user_inside_end_a_rescue_in_the_same_way() -> None:
    stage = PROCEDURE.stages[netboot.RESCUING]
    assert stage.cancel is Cancel.UNDO
    assert stage.undo == stage.on_timeout == Step(ENDING_RESCUE)
    assert RESCUE_TABLE[netboot.RESCUING, ReplaceFact.LEFT].stage == ENDING_RESCUE


def test_no_bmc_is_read_while_the_rescue_system_runs() -> None:
    assert netboot.fact_source(netboot.RESCUING) is netboot.FactSource.BOOT
    assert not any(netboot.needs_power(netboot.RESCUING, fact) for fact in ReplaceFact)


def test_a_host_is_shut_down_before_it_is_switched_off() -> None:
    assert not any(RESCUE_TABLE[ENDING_RESCUE, fact].action for fact in ReplaceFact)
    ending, shutdown = PROCEDURE.stages[ENDING_RESCUE].on_timeout, PROCEDURE.stages[SHUTTING_DOWN_RESCUE].on_timeout
    assert ending == Step(SHUTTING_DOWN_RESCUE, action=power.SHUT_DOWN)
    assert shutdown == Step(inspect_stages.WAITING_INSTALLER_OFF, action=power.SWITCH_OFF)


@pytest.mark.parametrize(("minutes", "expected_s"), [(None, 3600), ("1", 60), ("1440", 86400)])
def test_the_minutes_of_the_rescue_are_its_limit_and_lengthen_the_deadline(
    minutes: str | None, expected_s: int
) -> None:
    given = operation() if minutes is None else operation(minutes=minutes)
    assert rescue(given).stages[netboot.RESCUING].limit_s == expected_s
    assert deadline_s(given) == 3600 + expected_s
