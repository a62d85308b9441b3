"""The table of BMCReset: sound in itself, and complete only with a restart and the host as before."""

from __future__ import annotations

from typing import Final

import pytest

from unbounded.api.operation import MachineOperation, MachineOperationSpec
from unbounded.metalman.bmc_reset import (
    COMPARING_POWER,
    EVIDENCE_RESTART,
    READING_BMC,
    RESTART_BMC,
    TABLE,
    BmcResetFact,
    reset,
)
from unbounded.metalman.reasons import MEANING
from unbounded.workflow.procedure import COMPLETE, Cancel, Repeat

PROCEDURE: Final = reset(MachineOperation(spec=MachineOperationSpec(operation_kind="BMCReset")))


def test_the_table_is_sound() -> None:
    assert PROCEDURE.faults() == []


def test_it_completes_only_with_a_restart_and_the_host_as_before() -> None:
    ends = [here for here, step in TABLE.items() if step.stage == COMPLETE]
    assert ends == [(COMPARING_POWER, BmcResetFact.POWER_AS_BEFORE)]
    assert PROCEDURE.proof == {EVIDENCE_RESTART}


def test_the_reset_is_requested_of_an_answering_bmc_only_and_never_repeated() -> None:
    assert PROCEDURE.actions == {RESTART_BMC: Repeat.ONCE}
    asks = {fact for (_, fact), step in TABLE.items() if step.action}
    assert asks == {BmcResetFact.RUNNING, BmcResetFact.SAME}


@pytest.mark.parametrize("stage", sorted(PROCEDURE.stages))
def test_every_stage_has_its_cancel_and_its_reason(stage: str) -> None:
    found = PROCEDURE.stages[stage]
    assert found.cancel is (Cancel.AT_ONCE if stage == READING_BMC else Cancel.TOO_LATE)
    assert found.on_timeout is None or found.on_timeout.fail in MEANING
