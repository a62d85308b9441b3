"""Procedures have no holes: the real ones are sound, and each kind of fault is found in a broken one."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from itertools import product

import pytest

from tests.operations.building import operation_of
from tests.operations.faults import FAIR, Incarnation
from tests.operations.simulated import AgentExecutor, Outside, ReplaceExecutor
from tests.support.memory_api import MemoryApi
from unbounded.api.conditions import CONDITIONS, ConditionType
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.metalman import power
from unbounded.workflow.procedure import CANCELLED, COMPLETE, Cancel, Procedure, Repeat, Stage, Step

PARAMETERS: tuple[dict[str, str], ...] = ({}, {"force": "true"}, {"graceSeconds": "0"}, {"graceSeconds": "3600"})
POWER_OPERATIONS = [
    operation_of(kind=kind, parameters=parameters)
    for kind, parameters in product(power.PROCEDURES, PARAMETERS)
    if not (parameters and kind is OperationKind.HOST_POWER_ON)
]


@pytest.mark.parametrize("operation", POWER_OPERATIONS, ids=lambda op: f"{op.spec.operation_kind}-{op.spec.parameters}")
def test_metalmans_procedures_are_sound(operation: MachineOperation) -> None:
    assert power.PROCEDURES[OperationKind(operation.spec.operation_kind)](operation).faults() == []


async def test_the_simulated_procedures_are_sound() -> None:
    chance = random.Random(0)
    life, outside = Incarnation("p", chance, FAIR), Outside(chance)
    agent = AgentExecutor("unbounded-agent/m1", life, outside)
    replacer = ReplaceExecutor("machine-ops-controller/lab/Sim", life, outside, MemoryApi())
    assert agent.procedure(operation_of(kind="NodeReboot")).faults() == []
    assert replacer.procedure(operation_of(kind="HostReplace")).faults() == []


def test_tuning_changes_defaults_but_not_values_of_a_stage() -> None:
    usual = power.PROCEDURES[OperationKind.HOST_REBOOT](operation_of(kind="HostReboot"))
    special = replace(usual, stages={**usual.stages, "WaitingOn": replace(usual.stages["WaitingOn"], attempts=7)})
    tuned = special.tuned(attempts=5, longest_pause_s=1.2)
    assert (tuned.stages["WaitingOff"].attempts, tuned.stages["WaitingOn"].attempts) == (5, 7)
    assert [tuned.poll_s(looks) for looks in (0, 9)] == [1.0, 1.2]
    assert tuned.faults() == []
    assert usual.tuned(attempts=3, longest_pause_s=5.0) == usual


@pytest.mark.parametrize("kind", power.PROCEDURES)
def test_every_stage_can_be_reached_from_the_start(kind: OperationKind) -> None:
    for parameters in ({}, {"force": "true"}):
        procedure = power.PROCEDURES[kind](operation_of(kind=kind, parameters=parameters))
        reached, todo = {procedure.start}, [procedure.start]
        while todo:
            stage = todo.pop()
            steps = [step for (where, _fact), step in procedure.table.items() if where == stage]
            here = procedure.stages[stage]
            extra = (here.on_timeout, here.undo)
            after = {step.stage for step in (*steps, *extra) if step is not None and step.stage in procedure.stages}
            after |= {here.cleanup_stage} if here.cleanup_stage is not None else set()
            todo += after - reached
            reached |= after
        never = set(procedure.stages) - reached
        assert never <= ({power.SHUTTING_DOWN} if parameters else set())  # force leaves the grace out


class Light(StrEnum):
    RED = "Red"
    GREEN = "Green"


SOUND = Procedure(
    start="Start",
    facts=Light,
    stages={
        "Start": Stage("red", limit_s=10, on_timeout=Step("Going")),
        "Going": Stage("green", limit_s=10, cancel=Cancel.UNDO, undo=Step("Back", action="Stop")),
        "Back": Stage("red again", limit_s=10, dwell_s=5),
    },
    table={
        ("Start", Light.RED): Step("Going", action="Go"),
        ("Start", Light.GREEN): Step("Going"),
        ("Going", Light.RED): Step("Going", action="Go"),
        ("Going", Light.GREEN): Step(COMPLETE, evidence="green"),
        ("Back", Light.RED): Step(CANCELLED),
        ("Back", Light.GREEN): Step("Back", action="Stop"),
    },
    actions={"Go": Repeat.SETS_STATE, "Stop": Repeat.ONCE},
    proof=frozenset({"green"}),
)


def _with_stage(name: str, stage: Stage) -> Procedure:
    return replace(SOUND, stages={**SOUND.stages, name: stage})


def _with_row(row: tuple[str, StrEnum], step: Step) -> Procedure:
    return replace(SOUND, table={**SOUND.table, row: step})


def _with_last_stages(going: Step) -> Procedure:
    """Back leads on to Going, and both are cleanup stages."""
    last = {name: Stage(name, limit_s=10, is_cleanup=True) for name in ("Back", "Going")}
    rows: dict[tuple[str, StrEnum], Step] = {
        ("Going", Light.RED): going,
        ("Going", Light.GREEN): Step("Going", fail="NoEffect", evidence="green"),
        ("Back", Light.RED): Step("Going", evidence="red"),
    }
    return replace(SOUND, stages={**SOUND.stages, **last}, table={**SOUND.table, **rows})


def _without_row(row: tuple[str, StrEnum]) -> Procedure:
    return replace(SOUND, table={key: step for key, step in SOUND.table.items() if key != row})


def test_the_sound_one_is_sound() -> None:
    assert SOUND.faults() == []


def test_a_last_stage_may_lead_on_to_another_one() -> None:
    assert _with_last_stages(Step("Going", action="Go")).faults() == []


class Other(StrEnum):
    BLUE = "Blue"


FAULTS: Mapping[str, tuple[Callable[[], Procedure], str]] = {
    "a missing row": (lambda: _without_row(("Going", Light.RED)), "no row for"),
    "a row of an unknown stage": (lambda: _with_row(("Nowhere", Light.RED), Step("Start")), "names no stage or fact"),
    "a row of an unknown fact": (lambda: _with_row(("Start", Other.BLUE), Step("Start")), "names no stage or fact"),
    "a step to an unknown stage": (
        lambda: _with_row(("Start", Light.GREEN), Step("Nowhere")),
        "leads to the unknown stage Nowhere",
    ),
    "an unknown action": (lambda: _with_row(("Start", Light.RED), Step("Going", action="Fly")), "unknown action Fly"),
    "a limit to an unknown stage": (
        lambda: _with_stage("Start", Stage("red", limit_s=10, on_timeout=Step("Nowhere"))),
        "on_timeout of Start leads to the unknown stage Nowhere",
    ),
    "a former stage without a successor": (
        lambda: replace(SOUND, former_stages={"Old": "Nowhere"}),
        "a former stage continues in the unknown stage Nowhere",
    ),
    "an undo with an unknown action": (
        lambda: _with_stage("Going", Stage("g", limit_s=10, cancel=Cancel.UNDO, undo=Step("Back", action="Fly"))),
        "undo of Going calls the unknown action Fly",
    ),
    "undo without a step": (lambda: _with_stage("Going", Stage("g", limit_s=10, cancel=Cancel.UNDO)), "do not agree"),
    "a step that nothing undoes with": (
        lambda: _with_stage("Going", Stage("g", limit_s=10, undo=Step("Back"))),
        "undo and cancel do not agree",
    ),
    "a dwell past the limit": (lambda: _with_stage("Back", Stage("b", limit_s=5, dwell_s=5)), "ends before its dwell"),
    "limits in a circle": (
        lambda: _with_stage("Going", Stage("g", limit_s=10, on_timeout=Step("Start"))),
        "limits lead in a circle",
    ),
    "a limit that leads to itself": (
        lambda: _with_stage("Back", Stage("b", limit_s=10, on_timeout=Step("Back"))),
        "limits lead in a circle",
    ),
    "a proof that nothing records": (lambda: replace(SOUND, proof=frozenset({"blue"})), "nothing records the proof"),
    "an unknown start": (lambda: replace(SOUND, start="Nowhere"), "starts in the unknown stage Nowhere"),
    "a cleanup stage that is not marked as one": (
        lambda: _with_stage("Going", Stage("g", limit_s=10, cleanup_stage="Back")),
        "its cleanup stage Back is not one",
    ),
    "a cleanup stage after a cleanup stage": (
        lambda: _with_stage("Back", Stage("b", limit_s=10, is_cleanup=True, cleanup_stage="Back")),
        "a cleanup stage with a cleanup stage has no end",
    ),
    "a cleanup stage that leads to a good end": (
        lambda: _with_stage("Back", Stage("b", limit_s=10, is_cleanup=True)),
        "(Back, Red) leads out of a cleanup stage to Cancelled",
    ),
    "a cleanup stage that leads to one that is not": (
        lambda: _with_last_stages(Step("Start")),
        "(Going, Red) leads out of a cleanup stage to Start",
    ),
    "cleanup stages that lead on for ever": (
        lambda: _with_last_stages(Step("Back")),
        "(Going, Red) leads out of a cleanup stage to Back",
    ),
    "a cleanup stage whose limit leads back": (
        lambda: _with_stage("Back", Stage("b", limit_s=10, is_cleanup=True, on_timeout=Step("Start"))),
        "on_timeout of Back leads out of a cleanup stage to Start",
    ),
    "a stage whose limit is nothing": (lambda: _with_stage("Back", Stage("b", limit_s=0)), "limit"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    make, words = FAULTS[fault]
    found = make().faults()
    assert any(words in text for text in found), found


def test_a_fault_of_one_kind_hides_none_of_another() -> None:
    broken = replace(_without_row(("Going", Light.RED)), proof=frozenset({"blue"}))
    assert len(broken.faults()) == 2


def test_a_condition_shows_the_reasons_that_are_documented_and_no_other() -> None:
    procedures = [make(operation_of(kind=kind)) for kind, make in power.PROCEDURES.items()]
    marks = [
        mark
        for one in procedures
        for mark in (*(s.condition for s in one.stages.values()), *one.end_conditions)
        if mark
    ]
    shown = {(mark.type, mark.reason) for mark in marks if mark.status is not None}
    assert shown == {(kind, reason) for kind, _ in shown for reason in CONDITIONS[ConditionType(kind)].reasons}
