"""The tables of the kinds that boot the installer: each is sound in itself, and every failure has a meaning."""

from __future__ import annotations

import pytest

from unbounded.api.operation import MachineOperation, MachineOperationSpec, OperationKind
from unbounded.metalman.executor import NETBOOT_PROCEDURES
from unbounded.metalman.reasons import MEANING
from unbounded.metalman.replace_stages import by_media
from unbounded.operations import reasons as operations_reasons
from unbounded.workflow.procedure import Procedure, Step


def made(kind: OperationKind) -> Procedure:
    return NETBOOT_PROCEDURES[kind](MachineOperation(spec=MachineOperationSpec(operation_kind=kind)))


@pytest.fixture(params=[(kind, media) for kind in NETBOOT_PROCEDURES for media in (False, True)], ids=str)
def procedure(request: pytest.FixtureRequest) -> Procedure:
    kind, media = request.param
    return by_media(made(kind)) if media else made(kind)


@pytest.mark.parametrize("kind", NETBOOT_PROCEDURES)
def test_a_boot_by_media_has_the_same_stages_and_evidence_without_a_network(kind: OperationKind) -> None:
    network, media = made(kind), by_media(made(kind))
    assert (media.stages.keys(), media.proof, media.table.keys()) == (
        network.stages.keys(), network.proof, network.table.keys(),
    )  # fmt: skip
    for name, stage in media.stages.items():
        assert not any(word in stage.waits_for for word in ("network", "fetch")), name
        assert (stage.cancel, stage.undo, stage.cleanup_stage) == (
            network.stages[name].cancel, network.stages[name].undo, network.stages[name].cleanup_stage,
        )  # fmt: skip
    actions = {step.action for step in media.table.values()} | {
        stage.on_timeout.action for stage in media.stages.values() if stage.on_timeout is not None
    }
    assert not [action for action in actions if action is not None and "Network" in action]
    assert media.actions == network.actions


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
