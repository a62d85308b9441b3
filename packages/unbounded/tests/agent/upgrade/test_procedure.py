"""The table of AgentUpgrade: no row is missing, and each end reports the real state of the host."""

from __future__ import annotations

from typing import Final

import pytest

from unbounded.agent.upgrade import procedure as table
from unbounded.agent.upgrade.procedure import UpgradeState, procedure
from unbounded.workflow.procedure import CANCELLED, COMPLETE, Cancel

PROCEDURE = procedure(trial_s=270.0)
BEFORE_THE_SWITCH: Final = (table.DOWNLOADING, table.STAGED)
ON_TRIAL: Final = (table.VERIFYING, table.PROVING)


@pytest.mark.parametrize("stage", ["", "Verifying", "ProbingOfTheYear3000"], ids=["claim", "known", "later"])
def test_the_table_is_sound(stage: str) -> None:
    assert procedure(trial_s=270.0, stage=stage).faults() == []


def test_complete_follows_from_nothing_but_a_proven_release() -> None:
    facts = {fact for (_stage, fact), step in PROCEDURE.table.items() if step.stage == COMPLETE}
    assert facts == {UpgradeState.PROVEN}
    assert PROCEDURE.proof == {table.EVIDENCE_RUNNING, table.EVIDENCE_HEALTHY}


def test_a_release_is_taken_back_with_daemon_failed_in_every_stage() -> None:
    reasons = {PROCEDURE.table[stage, UpgradeState.TAKEN_BACK].fail for stage in PROCEDURE.stages}
    assert reasons == {table.DAEMON_FAILED}


def test_nothing_is_switched_to_that_did_not_answer() -> None:
    asking = {(stage, fact) for (stage, fact), step in PROCEDURE.table.items() if step.action == table.SWITCH}
    assert {fact for _stage, fact in asking} <= {UpgradeState.VERIFIED, UpgradeState.WITHDRAWN, UpgradeState.SWITCHED}
    assert [stage for stage, fact in asking if fact is UpgradeState.WITHDRAWN] == [table.SWITCHING], (
        "too late to cancel"
    )


def test_nothing_is_discarded_that_was_switched_to() -> None:
    facts = {fact for (_stage, fact), step in PROCEDURE.table.items() if step.action == table.DISCARD}
    assert facts == {UpgradeState.FETCHING, UpgradeState.STAGED, UpgradeState.VERIFIED, UpgradeState.WITHDRAWN}


def test_cancel_undoes_before_the_switch_and_comes_too_late_after_it() -> None:
    for name, stage in PROCEDURE.stages.items():
        assert stage.cancel is (Cancel.UNDO if name in BEFORE_THE_SWITCH else Cancel.TOO_LATE)
    for before in BEFORE_THE_SWITCH:
        assert PROCEDURE.table[before, UpgradeState.WITHDRAWN].action == table.DISCARD
    assert PROCEDURE.table[table.UNDOING, UpgradeState.ABSENT].stage == CANCELLED


@pytest.mark.parametrize("stage", ON_TRIAL)
@pytest.mark.parametrize(
    "fact", [UpgradeState.ABSENT, UpgradeState.STAGED, UpgradeState.VERIFIED, UpgradeState.FETCHING]
)
def test_a_trial_whose_traces_are_gone_was_taken_back(stage: str, fact: UpgradeState) -> None:
    assert PROCEDURE.table[stage, fact].fail == table.DAEMON_FAILED


def test_a_stage_of_a_later_agent_is_a_trial() -> None:
    later = procedure(trial_s=270.0, stage="Marvelling")
    for fact in set(UpgradeState) - {UpgradeState.LEAVING}:
        assert later.table["Marvelling", fact] == later.table[table.VERIFYING, fact]


def test_every_reason_has_a_meaning() -> None:
    reasons = {step.fail for step in PROCEDURE.table.values() if step.fail} - {"OutcomeUnknown"}
    assert reasons <= table.MEANING.keys()
