"""Courses of made-up procedures: each has one thing that the kinds of today seldom need."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

from tests.operations.courses import Plot, Recorded, Sees, Work, course, until_ended, workshop
from unbounded.api.failures import Transient, Uncertain
from unbounded.operations.executor_protocol import NotDone, Refusal
from unbounded.workflow.procedure import (
    CANCELLED,
    COMPLETE,
    CallFailure,
    Cancel,
    Capacity,
    Observation,
    Procedure,
    Repeat,
    Stage,
    Step,
)

CUT, DONE = "it was seen cut", "it was seen done"
Table = dict[tuple[str, StrEnum], Step]
ACTIONS: Final = {"Cut": Repeat.SETS_STATE, "Press": Repeat.KEYED, "Blow": Repeat.ONCE, "Sweep": Repeat.SETS_STATE}


def _table(rows: Mapping[str, Mapping[Work, Step]]) -> Table:
    return {(stage, fact): row.get(fact, Step(stage)) for stage, row in rows.items() for fact in Work}


def _one(action: str = "Cut", *, proof: Iterable[str] = (DONE,), **given: Any) -> Procedure:
    """Begin, request one action until it is done, and end."""
    first = Step("Working", action=action)
    rows = {
        "Beginning": {Work.ROUGH: first, Work.CUT: first, Work.DONE: Step(COMPLETE, evidence=DONE)},
        "Working": {Work.ROUGH: first, Work.DONE: Step(COMPLETE, evidence=DONE)},
    }
    stages = {
        "Beginning": Stage("a look", limit_s=60, cancel=Cancel.AT_ONCE),
        "Working": Stage("the work to be done", **{"limit_s": 100.0, "retry_after_s": 10.0, **given}),
    }
    return Procedure("Beginning", Work, stages, _table(rows), ACTIONS, frozenset(proof))


def _after(asks: int, work: Work = Work.DONE, before: Work = Work.ROUGH) -> Sees:
    return lambda _at, done: work if done >= asks else before


async def _work(world: Recorded, plot: Plot, **spec: Any) -> None:
    await world.machine("m1", provider="Sim", providerID="sim://m1")
    workshop(world, plot).start()
    await world.operation("op", "HostReplace", "m1", **spec)
    await until_ended(world, "op")


@course
async def work_without_effect(world: Recorded) -> None:
    await _work(world, Plot(_one(), _after(99)))


@course
async def work_with_any_number_of_attempts(world: Recorded) -> None:
    await _work(world, Plot(_one(attempts=None), _after(99)))


@course
async def work_that_is_never_done(world: Recorded) -> None:
    answers: list[Any] = [Transient(f"away {number}") for number in range(9)]
    await _work(world, Plot(_one(), _after(1), answers))


@course
async def work_done_at_the_third_attempt(world: Recorded) -> None:
    await _work(world, Plot(_one(), _after(1), [NotDone("Busy", "busy"), Transient("away")]))


@course
async def work_with_a_lost_answer(world: Recorded) -> None:
    await _work(world, Plot(_one(), _after(2), [Uncertain("lost"), None, None]))


@course
async def work_with_lost_answers_alone(world: Recorded) -> None:
    await _work(world, Plot(_one(), _after(1), [Uncertain("lost")] * 9))


@course
async def work_that_is_refused(world: Recorded) -> None:
    await _work(world, Plot(_one(), _after(1), [Refusal("TooBig", "it is too big")]))


@course
async def work_of_a_handle(world: Recorded) -> None:
    await _work(world, Plot(_one(), lambda at, done: Work.DONE if at > 12 else Work.ROUGH, ["job/1"]))


@course
async def work_with_proof_that_nothing_records(world: Recorded) -> None:
    await _work(world, Plot(_one(proof=(DONE, CUT)), _after(1)))


@course
async def work_once_that_shows_nothing(world: Recorded) -> None:
    await _work(world, Plot(_one("Blow"), _after(99)))


@course
async def work_once_with_a_lost_answer(world: Recorded) -> None:
    await _work(world, Plot(_one("Blow"), _after(99), [Uncertain("lost")]))


@course
async def work_once_that_was_not_done(world: Recorded) -> None:
    await _work(world, Plot(_one("Blow"), _after(1), [Transient("away")]))


@course
async def keyed_work_is_asked_until_it_is_answered(world: Recorded) -> None:
    await _work(world, Plot(_one("Press"), _after(1, before=Work.ODD), [Uncertain("lost")] * 3))


@course
async def keyed_work_that_passes_by(world: Recorded) -> None:
    await _work(world, Plot(_one("Press"), _after(99), [Uncertain("lost"), None]))


@course
async def keyed_work_without_an_answer(world: Recorded) -> None:
    await _work(world, Plot(_one("Press"), _after(99), [Uncertain("lost")] * 99))


@course
async def keyed_work_that_is_accepted_and_shows_nothing(world: Recorded) -> None:
    await _work(world, Plot(_one("Press"), _after(99)))


@course
async def keyed_work_of_two_processes(world: Recorded) -> None:
    world.reaps = False
    await world.machine("m1", provider="Sim", providerID="sim://m1")
    plot = Plot(_one("Press"), _after(2), [25.0, None])
    shop = workshop(world, plot)
    first = shop.start()
    await world.operation("op", "HostReplace", "m1")
    await asyncio.sleep(3)
    await first.stop()
    world.user("killed")
    shop.start()
    await until_ended(world, "op")


@course
async def more_of_the_same(world: Recorded) -> None:
    def sees(_at: float, done: int) -> Observation | Work:
        return Work.DONE if done >= 3 else Observation(Work.ROUGH, "a part of it", "workshop", more=True)

    await _work(world, Plot(_one(attempts=None), sees))


@course
async def work_that_comes_to_nothing(world: Recorded) -> None:
    def sees(_at: float, done: int) -> Observation | Work:
        failed = CallFailure("Broke", "the blade broke")
        return Work.DONE if done >= 3 else Observation(Work.ROUGH, "rough", "workshop", failed=failed if done else None)

    await _work(world, Plot(_one(attempts=9), sees))


@course
async def work_that_moves_and_stands_still(world: Recorded) -> None:
    def sees(at: float, _done: int) -> Observation:
        return Observation(Work.ODD, "odd", "workshop", progress=f"{min(int(at) // 5, 6)} parts", next_poll_s=4.0)

    begun = _one(stalled_s=30.0)
    rows = {**begun.table, ("Beginning", Work.ODD): Step("Working", action="Cut")}
    await _work(world, Plot(replace(begun, table=rows), sees))


@course
async def work_that_is_on_its_way_at_the_limit(world: Recorded) -> None:
    def sees(at: float, done: int) -> Work:
        return Work.DONE if at > 120 else Work.ODD if done else Work.ROUGH

    await _work(world, Plot(_one(late_s=60.0), sees))


@course
async def work_that_is_on_its_way_for_too_long(world: Recorded) -> None:
    await _work(world, Plot(_one(late_s=30.0), _after(1, Work.ODD)))


@course
async def work_that_nobody_can_see(world: Recorded) -> None:
    def sees(_at: float, done: int) -> Work | Exception:
        return Transient("no light") if done else Work.ROUGH

    await _work(world, Plot(replace(_one(), unobservable_limit_s=150.0), sees))


@course
async def work_that_nobody_may_see(world: Recorded) -> None:
    def sees(_at: float, done: int) -> Work | Exception:
        return Refusal("Locked", "the door is locked") if done else Work.ROUGH

    await _work(world, Plot(_one(), sees))


@course
async def looks_that_take_long(world: Recorded) -> None:
    await _work(world, Plot(_one(), lambda at, done: Work.DONE if done else 5.0 if at < 12 else Work.ROUGH))


@course
async def a_limit_that_leads_on(world: Recorded) -> None:
    begun = _one(on_timeout=Step("Sweeping", action="Sweep"))
    rows: Table = {("Sweeping", fact): Step("Sweeping", action="Sweep") for fact in Work}
    rows[("Sweeping", Work.DONE)] = Step(COMPLETE, evidence=DONE)
    stages = {**begun.stages, "Sweeping": Stage("a clean floor", limit_s=60)}
    plot = Plot(replace(begun, stages=stages, table={**begun.table, **rows}), _after(4))
    await _work(world, plot)


def _sweeping(**given: Any) -> Procedure:
    """Return a procedure whose purpose is done after the cut; the floor need not be clean."""
    begun = _one()
    table: Table = {
        **begun.table,
        ("Working", Work.DONE): Step("Sweeping", action="Sweep", evidence=DONE),
        **{("Sweeping", fact): Step("Sweeping", action="Sweep") for fact in Work},
    }
    sweeping = Stage("a clean floor", **{"limit_s": 40.0, "on_timeout": Step(COMPLETE), **given})
    return replace(begun, stages={**begun.stages, "Sweeping": sweeping}, table=table)


@course
async def a_floor_that_stays_dirty(world: Recorded) -> None:
    await _work(world, Plot(_sweeping(), _after(1)))


@course
async def a_broom_that_is_refused(world: Recorded) -> None:
    await _work(world, Plot(_sweeping(), _after(1), [None, Refusal("NoBroom", "there is no broom")]))


@course
async def a_deadline_on_a_dirty_floor(world: Recorded) -> None:
    await _work(world, Plot(_sweeping(limit_s=500.0, attempts=None), _after(1)), deadlineSeconds=30)


@course
async def a_floor_that_fails_it(world: Recorded) -> None:
    otherwise = Step("Sweeping", fail="Dirty", message="it is dirty")
    await _work(world, Plot(_sweeping(on_timeout=otherwise), _after(1)))


def _with_cleanup(**given: Any) -> Procedure:
    """A failure goes through a clean-up, which ends as that failure."""
    begun = _one(cleanup_stage="Cleaning", cancel=Cancel.UNDO, lingers="the blade may still turn", **given)
    clean = Stage("a clean bench", limit_s=30, is_cleanup=True, blind="Sweep", left="left dirty", dwell_s=3.0)
    rows: Table = {("Cleaning", fact): Step("Cleaning", action="Sweep") for fact in Work}
    rows[("Cleaning", Work.CUT)] = Step("Cleaning", fail="Unclean", evidence="it was seen clean")
    return replace(begun, stages={**begun.stages, "Cleaning": clean}, table={**begun.table, **rows})


@course
async def a_failure_that_is_cleaned_up(world: Recorded) -> None:
    answers: list[Any] = [Refusal("TooBig", "it is too big")]
    await _work(world, Plot(_with_cleanup(), _after(1, Work.CUT), answers))


@course
async def a_failure_that_stays_dirty(world: Recorded) -> None:
    answers: list[Any] = [Refusal("TooBig", "it is too big")]
    await _work(world, Plot(_with_cleanup(), _after(99), answers))


@course
async def a_failure_that_is_cleaned_up_blind(world: Recorded) -> None:
    def sees(_at: float, done: int) -> Work | Exception:
        return Transient("no light") if done else Work.ROUGH

    await _work(world, Plot(replace(_with_cleanup(), unobservable_limit_s=40.0), sees), deadlineSeconds=50)


@course
async def a_cancel_that_is_cleaned_up(world: Recorded) -> None:
    await world.machine("m1", provider="Sim", providerID="sim://m1")
    workshop(world, Plot(_with_cleanup(), lambda _at, done: Work.CUT if done > 1 else Work.ROUGH)).start()
    await world.operation("op", "HostReplace", "m1")
    await asyncio.sleep(3)
    await world.cancel("op")
    await until_ended(world, "op")


@course
async def a_machine_edited_with_a_dirty_bench(world: Recorded) -> None:
    await world.machine("m1", provider="Sim", providerID="sim://m1")
    workshop(world, Plot(_with_cleanup(), _after(99))).start()
    await world.operation("op", "HostReplace", "m1")
    await asyncio.sleep(3)
    await world.take_away("m1")
    await until_ended(world, "op")


@course
async def a_step_that_fails(world: Recorded) -> None:
    begun = _one()
    table = {**begun.table, ("Working", Work.CUT): Step("Working", fail="WrongCut", message="it was cut wrong")}
    await _work(world, Plot(replace(begun, table=table), _after(1, Work.CUT)))


async def _two(world: Recorded, procedure: Procedure, sees: Sees) -> None:
    """Two operations, and one place."""
    for name in ("m1", "m2"):
        await world.machine(name, provider="Sim", providerID=f"sim://{name}")
    workshop(world, Plot(procedure, sees), concurrent=1).start()
    for name in ("m1", "m2"):
        await world.operation(f"op-{name}", "HostReplace", name)
    await until_ended(world, "op-m1", "op-m2")


@course
async def work_that_lends_its_place(world: Recorded) -> None:
    begun = _one()
    table: Table = {
        **begun.table,
        ("Beginning", Work.ROUGH): Step("Drying"),
        **{("Drying", fact): Step("Drying") for fact in Work},
        ("Drying", Work.CUT): Step("Working", action="Cut"),
        ("Drying", Work.DONE): Step(COMPLETE, evidence=DONE),
        ("Working", Work.CUT): Step("Working", action="Cut"),
    }
    stages = {**begun.stages, "Drying": Stage("it to dry", limit_s=100, capacity=Capacity.YIELD)}
    procedure = replace(begun, table=table, stages=stages)
    await _two(world, procedure, lambda at, done: Work.DONE if done > 1 else Work.CUT if at > 20 else Work.ROUGH)


@course
async def work_that_idles(world: Recorded) -> None:
    await _two(world, _one(capacity=Capacity.BACKGROUND), lambda at, _done: Work.DONE if at > 30 else Work.ROUGH)


@course
async def what_would_destroy_what_comes_next_arrives_first(world: Recorded) -> None:
    """A process was killed with a cut on its way: what follows waits until that can no longer arrive."""
    begun = _one()
    table: Table = {
        **begun.table,
        ("Working", Work.CUT): Step("Working"),
        ("Working", Work.ROUGH): Step("Pressing", action="Press"),
        **{("Pressing", fact): Step("Pressing") for fact in Work},
        ("Pressing", Work.DONE): Step(COMPLETE, evidence=DONE),
    }
    stages = {**begun.stages, "Pressing": Stage("it to be flat", limit_s=100)}
    procedure = replace(begun, table=table, stages=stages, settled=frozenset({"Cut"}))
    await world.machine("m1", provider="Sim", providerID="sim://m1")
    plot = Plot(procedure, lambda _at, done: Work.DONE if done else Work.ROUGH, [20.0])
    shop = workshop(world, plot)
    first = shop.start()
    await world.operation("op", "HostReplace", "m1")
    await asyncio.sleep(0.3)
    await first.stop()
    world.user("killed")
    shop.start()
    await until_ended(world, "op")


@course
async def many_processes_one_after_the_other(world: Recorded) -> None:
    """The times of a stage and of a deadline are counted over all of them."""
    await world.machine("m1", provider="Sim", providerID="sim://m1")
    shop = workshop(world, Plot(_one(attempts=None), _after(99)))
    await world.operation("op", "HostReplace", "m1", deadlineSeconds=60)
    for _ in range(5):
        running = shop.start()
        await asyncio.sleep(14)
        await running.stop()
        world.user("killed")
    shop.start()
    await until_ended(world, "op")


@course
async def unlimited_work_with_lost_answers(world: Recorded) -> None:
    await _work(world, Plot(_one(attempts=None), _after(1), [Uncertain("lost")] * 99))


@course
async def a_cut_that_arrived_is_not_waited_for(world: Recorded) -> None:
    """A process was killed with a cut on its way, and its effect is seen."""
    begun = _one()
    table: Table = {
        **begun.table,
        ("Working", Work.CUT): Step("Pressing", action="Press", evidence=CUT),
        **{("Pressing", fact): Step("Pressing", action="Press") for fact in Work},
        ("Pressing", Work.DONE): Step(COMPLETE, evidence=DONE),
    }
    stages = {**begun.stages, "Pressing": Stage("it to be flat", limit_s=100)}
    procedure = replace(begun, stages=stages, table=table, settled=frozenset({"Cut"}))

    def sees(at: float, done: int) -> Work:
        return Work.DONE if done else Work.CUT if at > 2 else Work.ROUGH

    await world.machine("m1", provider="Sim", providerID="sim://m1")
    shop = workshop(world, Plot(procedure, sees, [20.0]))
    first = shop.start()
    await world.operation("op", "HostReplace", "m1")
    await asyncio.sleep(0.5)
    await first.stop()
    world.user("killed")
    await asyncio.sleep(3)
    shop.start()
    await until_ended(world, "op")


@course
async def a_handle_of_an_earlier_process(world: Recorded) -> None:
    await world.machine("m1", provider="Sim", providerID="sim://m1")
    shop = workshop(world, Plot(_one("Blow"), lambda at, _done: Work.DONE if at > 40 else Work.ROUGH, ["job/1"]))
    first = shop.start()
    await world.operation("op", "HostReplace", "m1")
    await asyncio.sleep(5)
    await first.stop()
    world.user("killed")
    shop.start()
    await until_ended(world, "op")


@course
async def a_handle_of_another_process(world: Recorded) -> None:
    """It is read later than the intent that it came of."""
    world.reaps = False

    await world.machine("m1", provider="Sim", providerID="sim://m1")
    procedure = _one("Press", cancel=Cancel.TOO_LATE)
    first = workshop(world, Plot(procedure, lambda at, _done: Work.DONE if at > 60 else Work.ROUGH, [(6.0, "job/1")]))
    first.start()
    await world.operation("op", "HostReplace", "m1")
    await asyncio.sleep(1)
    world.user("a second one")
    workshop(world, Plot(procedure, lambda at, _done: Work.DONE if at > 60 else Work.ROUGH, [None] * 9)).start()
    await until_ended(world, "op")


def _undoing() -> Procedure:
    """A cancel is undone as long as nothing was pressed."""
    begun = _one(cancel=Cancel.UNDO, undo=Step("Undoing"))
    table: Table = {
        **begun.table,
        ("Working", Work.CUT): Step("Pressing", action="Press", evidence=CUT),
        **{("Pressing", fact): Step("Pressing", action="Press") for fact in Work},
        ("Pressing", Work.DONE): Step(COMPLETE, evidence=DONE),
        **{("Undoing", fact): Step("Undoing", action="Sweep") for fact in Work},
        ("Undoing", Work.ODD): Step(CANCELLED, evidence="it was seen as before"),
    }
    stages = {
        **begun.stages,
        "Pressing": Stage("it to be flat", limit_s=100),
        "Undoing": Stage("it to be as before", limit_s=60),
    }
    return replace(begun, stages=stages, table=table)


async def _cancelled(world: Recorded, sees: Sees) -> None:
    await world.machine("m1", provider="Sim", providerID="sim://m1")
    workshop(world, Plot(_undoing(), sees)).start()
    await world.operation("op", "HostReplace", "m1")
    await asyncio.sleep(3)
    await world.cancel("op")
    await until_ended(world, "op")


@course
async def a_cancel_that_is_undone(world: Recorded) -> None:
    await _cancelled(world, lambda _at, done: Work.ODD if done > 1 else Work.ROUGH)


@course
async def a_cancel_when_the_world_has_gone_on(world: Recorded) -> None:
    await _cancelled(world, lambda at, done: Work.DONE if done > 1 else Work.CUT if at > 2.5 else Work.ROUGH)


@course
async def work_that_stands_still_from_the_beginning(world: Recorded) -> None:
    await asyncio.sleep(100)
    await _work(world, Plot(_one(stalled_s=30.0), _after(99)))


@course
async def a_successor_that_does_not_know_the_stage(world: Recorded) -> None:
    await world.machine("m1", provider="Sim", providerID="sim://m1")
    first = workshop(world, Plot(_one(), _after(99))).start()
    await world.operation("op", "HostReplace", "m1")
    await asyncio.sleep(3)
    await first.stop()
    world.user("killed")
    older = _one()
    stages = {"Beginning": older.stages["Beginning"]}
    table: Table = {("Beginning", fact): Step("Beginning") for fact in Work}
    workshop(world, Plot(replace(older, stages=stages, table=table), _after(99))).start()
    await until_ended(world, "op")


@course
async def a_step_that_fails_before_its_dwell_is_over(world: Recorded) -> None:
    begun = _one(dwell_s=20.0)
    table = {**begun.table, ("Working", Work.CUT): Step("Working", fail="WrongCut", message="it was cut wrong")}
    await _work(world, Plot(replace(begun, table=table), _after(1, Work.CUT)))
