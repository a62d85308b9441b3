"""`status.agent.stage`: the work of the agent on the node, which is written with what else changes."""

from __future__ import annotations

import pytest

from tests.agent.preflight.support import GOAL
from unbounded.agent.model import BuildRecord, Slot
from unbounded.agent.recreation.report import bootstrapping, stage_of_node, stage_of_recreation, status_change
from unbounded.agent.recreation.state_store import RecreationPhase, Transition
from unbounded.api.machine_status import AgentStage

NOW = "2030-01-01T00:00:00Z"


@pytest.mark.parametrize("phase", RecreationPhase)
def test_each_phase_of_a_recreation_has_a_stage(phase: RecreationPhase) -> None:
    transition = Transition(uid="u", phase=phase, source=Slot.KUBE1, goal=GOAL, why="its Node is gone", since=NOW)
    assert stage_of_recreation(transition)["stage"] in AgentStage


def test_a_node_runs_once_it_has_registered() -> None:
    assert stage_of_node(BuildRecord(goal=GOAL)) == {"stage": "Starting"}
    assert stage_of_node(BuildRecord(goal=GOAL, node_uid="u")) == {"stage": "Running"}


def test_the_stage_is_written_with_the_conditions_and_only_where_it_differs() -> None:
    stage = {"stage": AgentStage.PREPARING}
    change = status_change({}, (bootstrapping("it builds kube1"),), None, None, now=NOW, agent=stage)
    assert change.keys() == {"conditions", "agent"}
    assert change["agent"] == {"stage": "Preparing"}
    known = {"status": {"agent": {"stage": "Preparing", "version": "1"}, "conditions": change["conditions"]}}
    assert status_change(known, (bootstrapping("it builds kube1"),), None, None, now=NOW, agent=stage) == {}
    assert status_change(known, (), None, None, now=NOW, agent={"stage": None}) == {"agent": {"stage": None}}
    assert status_change({}, (), None, None, now=NOW, agent={"stage": None}) == {}
