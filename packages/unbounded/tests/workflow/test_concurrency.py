"""The concurrency limit of an executor: bounded, the oldest first, and slow ones yield their place."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.seeds import first_seed
from unbounded.workflow.concurrency import FairLimiter


def _places(count: int) -> tuple[FairLimiter, list[str]]:
    woken: list[str] = []
    return FairLimiter(count, woken.append), woken


def _order(number: int) -> tuple[str, str]:
    return (f"{number:04}", "")


def test_there_are_no_more_inside_than_places() -> None:
    limiter, _woken = _places(2)
    assert [limiter.acquire(f"u{n}", f"n{n}", _order(n)) for n in range(3)] == [True, True, False]
    assert limiter.in_use == 2


def test_who_is_inside_stays_inside() -> None:
    limiter, _woken = _places(1)
    assert limiter.acquire("u1", "n1", _order(1))
    assert limiter.acquire("u1", "n1", _order(1))
    assert limiter.in_use == 1


def test_whoever_leaves_wakes_the_oldest() -> None:
    limiter, woken = _places(1)
    assert limiter.acquire("u0", "n0", _order(0))
    assert not limiter.acquire("u9", "n9", _order(9))
    assert not limiter.acquire("u5", "n5", _order(5))
    limiter.release("u0")
    assert woken == ["n5"]
    assert not limiter.acquire("u9", "n9", _order(9))  # the older one is first, although it has not come yet
    assert limiter.acquire("u5", "n5", _order(5))


def test_a_lent_place_lets_somebody_in_and_its_owner_comes_back() -> None:
    limiter, woken = _places(1)
    assert limiter.acquire("slow", "slow", _order(0))
    assert not limiter.acquire("next", "next", _order(1))
    limiter.yield_("slow")
    assert woken == ["next"]
    assert limiter.acquire("next", "next", _order(1))
    limiter.resume("slow")
    assert limiter.in_use == 2  # for a moment
    limiter.release("slow")
    assert limiter.in_use == 1


def test_who_gives_up_waiting_holds_nobody_up() -> None:
    limiter, woken = _places(1)
    assert limiter.acquire("in", "in", _order(0))
    assert not limiter.acquire("gives up", "gives up", _order(1))
    assert not limiter.acquire("waits", "waits", _order(2))
    limiter.release("in")
    limiter.release("gives up")
    assert limiter.acquire("waits", "waits", _order(2))
    assert woken[-1] == "waits"


def test_what_was_claimed_before_is_inside_without_asking() -> None:
    limiter, _woken = _places(1)
    limiter.adopt("u1")
    limiter.adopt("u2")
    assert limiter.in_use == 2
    assert not limiter.acquire("u3", "u3", _order(3))
    limiter.release("u1")
    assert not limiter.acquire("u3", "u3", _order(3))
    limiter.release("u2")
    assert limiter.acquire("u3", "u3", _order(3))


DOES = ["acquire", "release", "yield_", "resume", "yield_waiting"]
STEPS = st.lists(st.tuples(st.sampled_from(DOES), st.integers(0, 7)), max_size=60)


@pytest.mark.slow
@given(st.integers(1, 4), STEPS)
def test_in_the_end_everybody_gets_in(count: int, steps: list[tuple[str, int]]) -> None:
    """Whatever went before: once the inside is empty, those who wait are woken one after the other."""
    limiter, woken = _places(count)
    inside: set[int] = set()

    def take(number: int) -> bool:
        return limiter.acquire(f"u{number}", f"u{number}", _order(number), ("", "a", "b")[number % 3])

    for step, number in steps:
        uid = f"u{number}"
        match step:
            case "acquire":
                if take(number):
                    inside.add(number)
            case "release":
                limiter.release(uid)
                inside.discard(number)
            case _:
                getattr(limiter, step)(uid)
    for number in inside:
        limiter.yield_(f"u{number}")
    waiting = [number for number in range(8) if number not in inside and not take(number)]
    inside = set(range(8)) - set(waiting)
    for number in sorted(inside):
        limiter.release(f"u{number}")
    for number in waiting:
        assert f"u{number}" in woken
        assert take(number)
        limiter.release(f"u{number}")
    assert limiter.in_use == 0


def test_who_lends_for_long_goes_on_when_there_is_a_place_again() -> None:
    limiter, woken = _places(1)
    for number in range(3):
        assert limiter.acquire(f"u{number}", f"n{number}", _order(number))
        limiter.yield_(f"u{number}")
    assert limiter.in_use == 0
    assert limiter.reacquire("u2", "n2", _order(2))
    assert not limiter.reacquire("u1", "n1", _order(1))
    assert not limiter.reacquire("u0", "n0", _order(0))
    limiter.adopt("u0")  # it is observed meanwhile, and still waits
    woken.clear()
    limiter.release("u2")
    assert woken == ["n0"]
    assert not limiter.reacquire("u1", "n1", _order(1))
    assert limiter.reacquire("u0", "n0", _order(0))
    assert limiter.in_use == 1


def test_who_has_to_wait_again_stands_in_nobodys_way() -> None:
    limiter, woken = _places(1)
    for number in range(2):
        assert limiter.acquire(f"u{number}", f"n{number}", _order(number))
        limiter.yield_(f"u{number}")
    assert limiter.acquire("in", "in", _order(5))
    assert not limiter.reacquire("u0", "n0", _order(0))
    assert not limiter.reacquire("u1", "n1", _order(1))
    woken.clear()
    limiter.yield_("u0")
    limiter.release("in")
    assert woken[-1] == "n1"
    assert limiter.reacquire("u1", "n1", _order(1))
    assert limiter.reacquire("u1", "n1", _order(1))


def test_yielding_group_acquires_no_more_than_the_limit() -> None:
    limiter, woken = _places(2)
    for number in (0, 1):
        assert limiter.acquire(f"a{number}", f"a{number}", _order(number), "account-a")
        limiter.yield_waiting(f"a{number}")
    assert limiter.in_use == 0
    assert not limiter.acquire("a2", "a2", _order(2), "account-a")
    assert limiter.acquire("b3", "b3", _order(3), "account-b")  # younger, and has nothing to wait for
    assert limiter.acquire("c4", "c4", _order(4))
    assert not limiter.acquire("b5", "b5", _order(5), "account-b")
    limiter.release("c4")
    assert woken[-1] == "b5"
    limiter.yield_("a0")
    assert woken[-1] == "a2"
    assert limiter.acquire("a2", "a2", _order(2), "account-a")
    assert not limiter.acquire("b5", "b5", _order(5), "account-b")


def test_who_works_beside_others_counts_where_it_is_slow_again() -> None:
    limiter, _woken = _places(1)
    assert limiter.acquire("a0", "a0", _order(0), "account-a")
    limiter.yield_("a0")
    limiter.yield_waiting("a0")
    assert not limiter.acquire("a1", "a1", _order(1), "account-a")
    limiter.resume("a0")
    assert not limiter.acquire("a1", "a1", _order(1), "account-a")
    limiter.yield_("a0")
    assert limiter.acquire("a1", "a1", _order(1), "account-a")


def test_who_waits_for_an_answer_and_leaves_is_not_waited_for() -> None:
    limiter, woken = _places(1)
    assert limiter.acquire("a0", "a0", _order(0), "account-a")
    limiter.yield_waiting("a0")
    assert not limiter.acquire("a1", "a1", _order(1), "account-a")
    limiter.release("a0")
    assert woken == ["a1"]
    assert limiter.acquire("a1", "a1", _order(1), "account-a")


def test_woken_member_of_a_full_group_wakes_another_group() -> None:
    limiter, woken = _places(2)
    assert limiter.acquire("x0", "x0", _order(0))
    assert limiter.acquire("x1", "x1", _order(1))
    for number in (2, 3):
        assert not limiter.acquire(f"a{number}", f"a{number}", _order(number), "account-a")
    assert not limiter.acquire("b4", "b4", _order(4), "account-b")
    limiter.adopt("a5", "account-a")
    limiter.yield_waiting("a5")
    limiter.release("x0")
    limiter.release("x1")
    assert limiter.acquire("a2", "a2", _order(2), "account-a")
    assert not limiter.acquire("a3", "a3", _order(3), "account-a")
    assert woken[-1] == "b4"
    assert limiter.acquire("b4", "b4", _order(4), "account-b")


def test_who_goes_on_without_asking_waits_for_no_place_any_more() -> None:
    limiter, woken = _places(2)
    assert limiter.acquire("u0", "u0", _order(0))
    limiter.yield_("u0")
    assert limiter.acquire("u1", "u1", _order(1))
    assert limiter.acquire("u2", "u2", _order(2))
    assert not limiter.reacquire("u0", "u0", _order(0))
    assert not limiter.acquire("u3", "u3", _order(3))
    limiter.resume("u0")
    limiter.release("u1")
    limiter.release("u2")
    assert woken == ["u3"]
    assert limiter.acquire("u3", "u3", _order(3))


@dataclass
class _Schedule:
    """Operations that come, woken or not, and do what an executor may do with them."""

    chance: random.Random
    woken: list[str] = field(default_factory=list)  # and have not come since
    waiting: set[str] = field(default_factory=set)
    inside: set[str] = field(default_factory=set)  # they may have lent their place

    def __post_init__(self) -> None:
        self.limiter = FairLimiter(self.chance.randint(2, 3), self.woken.append)
        self.lanes = {f"u{number}": self.chance.choice("ab") for number in range(12)}

    def step(self) -> None:
        uid = self.chance.choice(self.woken if self.woken and self.chance.random() < 0.2 else list(self.lanes))
        while uid in self.woken:
            self.woken.remove(uid)
        match self.chance.choices(["ask", "yield_waiting", "release", "yield_", "resume", "adopt"], [8, 4, 4, 1, 1, 1])[
            0
        ]:
            case "ask":
                self.asks(uid)
            case "adopt" if uid not in self.inside:
                self.limiter.adopt(uid, self.lanes[uid])
                self.inside.add(uid)
                self.waiting.discard(uid)
            case "release":
                self.limiter.release(uid)
                self.inside.discard(uid)
                self.waiting.discard(uid)
            case "resume" | "yield_waiting" | "yield_" as does if uid in self.inside:
                getattr(self.limiter, does)(uid)
                self.waiting.discard(uid)
            case _ if uid in self.waiting:
                self.asks(uid)

    def asks(self, uid: str) -> bool:
        order = _order(int(uid[1:]))
        if uid in self.inside:
            has_place = self.limiter.reacquire(uid, uid, order)
        else:
            has_place = self.limiter.acquire(uid, uid, order, self.lanes[uid])
        if has_place:
            self.inside.add(uid)
            self.waiting.discard(uid)
        else:
            self.waiting.add(uid)
        return has_place

    def judge(self) -> None:
        """Check that every waiter of a free place was woken."""
        for uid in sorted(self.waiting.difference(self.woken)):
            assert not self.asks(uid), f"{uid} could have come in, and was not woken"


@pytest.mark.slow
def test_no_place_is_left_unused_while_somebody_waits_for_one() -> None:
    for seed in range(first_seed(), first_seed() + 300):
        schedule = _Schedule(random.Random(seed))
        for _ in range(60):
            schedule.step()
            schedule.judge()
