"""Which incarnations are known to have ended, and how long what they asked for is waited for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unbounded.operations.lives import Life, life_of
from unbounded.operations.memory import Memory
from unbounded.operations.record import Run

THIRD = Life("keeper-a", 3)
ASKED = Run("m1", "uid", "machine-ops-controller/lab/Sim", "", "b", "Going", "", action="Go", attempt=1)


def test_earlier_lives_have_ended_and_of_others_nothing_is_known() -> None:
    assert THIRD.has_ended(Life("keeper-a", 2).new_identity())
    for other in (THIRD, Life("keeper-a", 4), Life("keeper-b", 1)):
        assert not THIRD.has_ended(other.new_identity())
    for foreign in ("", "host_0b7c", "keeper-a.1.2_x", "keeper-a.1x_y", "keeper-a_1"):
        assert not THIRD.has_ended(foreign)


def test_a_life_is_told_in_one_word_and_its_incarnations_are_never_the_same() -> None:
    assert life_of(str(THIRD)) == THIRD
    assert THIRD.new_identity() != THIRD.new_identity()
    with pytest.raises(ValueError, match=r"write KEEPER\.NUMBER"):
        life_of("keeper")


@pytest.mark.parametrize(("ended", "settles_s"), [(True, 30.0), (False, 45.0)])
def test_of_one_that_has_ended_only_its_request_is_waited_for(*, ended: bool, settles_s: float) -> None:
    memory = Memory("uid")
    memory.follow(ASKED, "me", 100.0, ended=ended)
    for elapsed_s in (0.0, 10.0):
        timing = memory.timing(100.0 + elapsed_s, settle_s=45.0, landing_s=30.0)
        assert (timing.settles_in_s, timing.ended) == (settles_s - elapsed_s, ended)
    assert memory.timing(100.0 + settles_s, settle_s=45.0, landing_s=30.0).settles_in_s == 0


def test_what_was_answered_is_not_waited_for_and_our_own_neither() -> None:
    for run, incarnation in ((ASKED, ""), (replace(ASKED, handle=""), "me")):
        memory = Memory("uid")
        memory.follow(run, incarnation, 100.0, ended=True)
        timing = memory.timing(100.0, settle_s=45.0, landing_s=30.0)
        assert (timing.settles_in_s, timing.ended) == (0.0, False)
