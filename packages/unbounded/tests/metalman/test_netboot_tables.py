"""The tables of the kinds that boot from the network: each is sound in itself, and every failure has a meaning."""

from __future__ import annotations

import pytest

from unbounded.api.operation import MachineOperation, MachineOperationSpec, OperationKind
from unbounded.metalman.executor import NETBOOT_PROCEDURES
from unbounded.metalman.reasons import MEANING
from unbounded.operations import reasons as operations_reasons
from unbounded.workflow.procedure import Procedure, Step


@pytest.fixture(params=NETBOOT_PROCEDURES)
def procedure(request: pytest.FixtureRequest) -> Procedure:
    kind: OperationKind = request.param
    return NETBOOT_PROCEDURES[kind](MachineOperation(spec=MachineOperationSpec(operation_kind=kind)))


def test_the_table_is_sound(procedure: Procedure) -> None:
    assert procedure.faults() == []


def test_every_stage_can_be_reached_and_left(procedure: Procedure) -> None:
    steps = [(stage, step) for (stage, _), step in procedure.table.items()]
    stages = procedure.stages.items()
    steps += [(name, extra) for name, stage in stages for extra in (stage.on_timeout, stage.undo) if extra is not None]
    steps += [(name, Step(stage.cleanup_stage)) for name, stage in stages if stage.cleanup_stage is not None]
    reached = {step.stage for here, step in steps if step.stage != here and step.fail is None}
    assert procedure.stages.keys() - {procedure.start} <= reached
    assert {here for here, step in steps if step.stage != here or step.fail is not None} == procedure.stages.keys()


def test_every_failure_has_a_reason_with_a_meaning(procedure: Procedure) -> None:
    steps = [*procedure.table.values(), *(stage.on_timeout for stage in procedure.stages.values() if stage.on_timeout)]
    assert {step.fail for step in steps if step.fail} <= MEANING.keys() | operations_reasons.MEANING.keys()
