"""The table of FirmwareUpdate: sound in itself, never repeats the update, and completes only with its proof."""

from __future__ import annotations

from typing import Final

import pytest

from unbounded.api.operation import MachineOperation, MachineOperationSpec
from unbounded.metalman.firmware_update import (
    EVIDENCE_DONE,
    READING_FIRMWARE,
    TABLE,
    UPDATE,
    UPDATING,
    FirmwareFact,
    update,
)
from unbounded.metalman.redfish.documents import is_running_update, percent_of
from unbounded.workflow.procedure import COMPLETE, Cancel, Repeat

PROCEDURE: Final = update(MachineOperation(spec=MachineOperationSpec(operation_kind="FirmwareUpdate")))
TARGET: Final = "/redfish/v1/UpdateService/Actions/UpdateService.SimpleUpdate"


def test_the_table_is_sound() -> None:
    assert PROCEDURE.faults() == []


def test_the_update_is_sent_when_none_runs_and_never_repeated() -> None:
    assert PROCEDURE.actions == {UPDATE: Repeat.ONCE}
    asks = {here for here, step in TABLE.items() if step.action}
    assert asks == {(READING_FIRMWARE, FirmwareFact.READY), (UPDATING, FirmwareFact.READY)}


def test_it_completes_only_with_another_version_or_after_the_end_of_its_task() -> None:
    assert {fact for (_, fact), step in TABLE.items() if step.stage == COMPLETE} == {FirmwareFact.CHANGED}
    assert TABLE[UPDATING, FirmwareFact.DONE].evidence == EVIDENCE_DONE
    assert PROCEDURE.proof == {EVIDENCE_DONE}


@pytest.mark.parametrize("stage", sorted(PROCEDURE.stages))
def test_a_silent_bmc_fails_no_stage(stage: str) -> None:
    assert TABLE[stage, FirmwareFact.SILENT].fail is None
    assert PROCEDURE.stages[stage].cancel is (Cancel.AT_ONCE if stage == READING_FIRMWARE else Cancel.TOO_LATE)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"TaskState": "Running", "Payload": {"TargetUri": TARGET}}, True),
        ({"TaskState": "Running", "Payload": {"TargetUri": f"{TARGET}/"}}, True),
        ({"TaskState": "Completed", "Payload": {"TargetUri": TARGET}}, False),
        (
            {"TaskState": "Running", "Payload": {"TargetUri": "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset"}},
            False,
        ),
        ({"TaskState": "Running", "Payload": None}, False),
        ({"TaskState": "Running"}, False),
    ],
)
def test_a_running_update_is_known_by_its_payload(document: dict[str, object], expected: bool) -> None:
    assert is_running_update(document) is expected


@pytest.mark.parametrize(
    ("value", "expected"), [(0, 0), (100, 100), (101, None), (True, None), ("5", None), (None, None)]
)
def test_only_a_percentage_is_shown_as_one(value: object, expected: int | None) -> None:
    assert percent_of({"PercentComplete": value}) == expected
