"""The queue and the controller loop, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual
from unbounded.api.machine import MACHINES, Machine
from unbounded.kube.api import Conflict, InvalidObject, ResponseLost, ServerBusy, ServerUnreachable
from unbounded.kube.cache import Cache
from unbounded.kube.clock import Backoff
from unbounded.kube.controller import Controller, WorkQueue
from unbounded.kube.metrics import ControllerMetrics


@contextlib.asynccontextmanager
async def running(*parts: Controller[str] | Cache[Any]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(part.run()) for part in parts]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)


# ---- the queue


def test_a_key_that_waits_is_there_once() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        for key in ("a", "b", "a", "b", "a"):
            queue.add(key)
        assert len(queue) == 2
        assert [await queue.take(), await queue.take()] == ["a", "b"]

    run_virtual(main())


def test_a_key_in_work_waits_for_its_worker() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add("a")
        assert await queue.take() == "a"
        queue.add("a")
        queue.add("a")
        assert len(queue) == 0
        queue.done("a")
        assert len(queue) == 1
        assert await queue.take() == "a"
        queue.done("a")
        assert len(queue) == 0

    run_virtual(main())


def test_the_earliest_timer_counts_and_taking_a_key_clears_it() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("a", 100)
        queue.add_after("a", 10)
        queue.add_after("a", 50)
        assert (await queue.take(), now()) == ("a", 10)
        queue.add_after("a", 100)
        queue.done("a")
        queue.add("a")
        assert (await queue.take(), now()) == ("a", 10)
        queue.done("a")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000):
                await queue.take()

    run_virtual(main())


def test_a_worker_that_is_cancelled_loses_no_key() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        first, second = asyncio.create_task(queue.take()), asyncio.create_task(queue.take())
        await asyncio.sleep(0)
        queue.add("a")  # wakes the first,
        first.cancel()  # which is cancelled before it runs
        async with asyncio.timeout(1):
            assert await second == "a"

    run_virtual(main())


def test_back_off_doubles_with_jitter_up_to_its_limit() -> None:
    backoff = Backoff(1.0, 60.0, random.Random(1).uniform)
    for failures, full_s in ((1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (5000, 60)):
        waits = {backoff.after(failures) for _ in range(50)}
        assert all(full_s / 2 <= wait <= full_s for wait in waits)
        assert len(waits) > 40


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from((0.0, 0.1, 1.0, 5.0))), max_size=30))
@settings(max_examples=100, deadline=None)
def test_every_key_that_was_added_is_looked_at_afterwards_by_one_worker(adds: list[tuple[str, float]]) -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        looked: dict[str, float] = {}
        inside: set[str] = set()

        async def work() -> None:
            while True:
                key = await queue.take()
                assert key not in inside
                inside.add(key)
                looked[key] = now()
                await asyncio.sleep(0.7)
                inside.discard(key)
                queue.done(key)

        workers = [asyncio.create_task(work()) for _ in range(2)]
        added: dict[str, float] = {}
        for key, pause_s in adds:
            queue.add(key)
            added[key] = now()
            await asyncio.sleep(pause_s)
        await asyncio.sleep(10)
        assert not any(worker.done() for worker in workers)
        assert all(looked[key] >= at for key, at in added.items())

    run_virtual(main())


# ---- the controller


def test_a_reconcile_says_when_to_look_again() -> None:
    async def main() -> list[float]:
        looks: list[float] = []

        async def reconcile(key: str) -> float | None:
            looks.append(now())
            return 30 if len(looks) < 4 else None

        controller = Controller("test", reconcile)
        controller.enqueue("a")
        async with running(controller):
            await asyncio.sleep(1000)
        return looks

    assert run_virtual(main()) == [0, 30, 60, 90]


@pytest.mark.parametrize(
    "error", [ServerUnreachable("no"), ResponseLost("no"), InvalidObject("no"), RuntimeError("a bug")]
)
def test_failures_are_looked_at_again_after_back_off(error: Exception) -> None:
    async def main() -> list[float]:
        looks: list[float] = []

        async def reconcile(key: str) -> float | None:
            looks.append(now())
            if len(looks) < 6:
                raise error
            return None

        controller = Controller("test", reconcile)
        controller.enqueue("a")
        async with running(controller):
            await asyncio.sleep(1000)
            assert controller.queue.failures("a") == 0
        return looks

    looks = run_virtual(main())
    gaps = [after - before for before, after in itertools.pairwise(looks)]
    assert len(looks) == 6
    assert all(full_s / 2 <= gap <= full_s + 0.01 for gap, full_s in zip(gaps, (0.5, 1, 2, 4, 8), strict=True))


def test_conflict_requeues_at_once_but_without_a_busy_loop() -> None:
    async def main() -> list[float]:
        looks: list[float] = []

        async def reconcile(key: str) -> float | None:
            looks.append(now())
            raise Conflict("changed")

        controller = Controller("test", reconcile)
        controller.enqueue("a")
        async with running(controller):
            await asyncio.sleep(60)
        return looks

    looks = run_virtual(main())
    assert looks[:2] == [0, 0]
    assert len(looks) < 40


def test_a_busy_server_is_given_the_time_that_it_asks_for() -> None:
    async def main() -> list[float]:
        looks: list[float] = []

        async def reconcile(key: str) -> float | None:
            looks.append(now())
            if len(looks) == 1:
                busy = ServerBusy("later")
                busy.retry_after_s = 20
                raise busy
            return None

        controller = Controller("test", reconcile)
        controller.enqueue("a")
        async with running(controller):
            await asyncio.sleep(60)
        return looks

    assert run_virtual(main()) == [0, 20]


def test_reconcile_bug_is_logged_and_other_keys_continue(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> dict[str, int]:
        looks = {"good": 0, "bad": 0}

        async def reconcile(key: str) -> float | None:
            looks[key] += 1
            if key == "bad":
                raise ZeroDivisionError("a bug")
            return 1.0

        metrics = ControllerMetrics()
        controller = Controller("test", reconcile, workers=1, metrics=metrics)
        for key in looks:
            controller.enqueue(key)
        async with running(controller):
            await asyncio.sleep(60.5)
        assert b'unbounded_reconciles_total{controller="test",result="done"} 61.0' in metrics.text()
        return looks

    looks = run_virtual(main())
    assert looks["good"] == 61
    assert looks["bad"] >= 5
    assert "ZeroDivisionError: a bug" in caplog.text


def test_a_failure_out_of_a_task_group_is_that_failure(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> int:
        looks = 0

        async def overtaken() -> None:
            raise Conflict("changed")

        async def reconcile(key: str) -> float | None:
            nonlocal looks
            looks += 1
            if looks == 1:
                async with asyncio.TaskGroup() as group:
                    group.create_task(overtaken())
            return None

        controller = Controller("test", reconcile)
        controller.enqueue("a")
        async with running(controller):
            await asyncio.sleep(0.001)
        return looks

    assert run_virtual(main()) == 2  # again at once
    assert "Traceback" not in caplog.text


def test_one_slow_key_leaves_the_other_workers_free() -> None:
    async def main() -> float:
        done: dict[str, float] = {}

        async def reconcile(key: str) -> float | None:
            await asyncio.sleep(600 if key == "slow" else 1)
            done[key] = now()
            return None

        controller = Controller("test", reconcile, workers=2)
        for key in ("slow", *(f"k{n}" for n in range(10))):
            controller.enqueue(key)
        async with running(controller):
            await asyncio.sleep(700)
        assert len(done) == 11
        return max(at for key, at in done.items() if key != "slow")

    assert run_virtual(main()) == 10


def test_a_cancelled_controller_cancels_its_reconciles_and_leaves_no_timer() -> None:
    async def main() -> None:
        cleaned: list[str] = []

        async def reconcile(key: str) -> float | None:
            if key == "timer":
                return 10.0
            try:
                await asyncio.sleep(600)
            finally:
                cleaned.append(key)
            return None

        controller = Controller("test", reconcile)
        controller.enqueue("a")
        controller.enqueue("timer")
        async with running(controller):
            await asyncio.sleep(1)
        assert cleaned == ["a"]
        await asyncio.sleep(100)
        assert len(controller.queue) == 0

    run_virtual(main())


def test_a_controller_ends_although_a_call_fails_as_it_is_cancelled() -> None:
    async def main() -> None:
        async def refused() -> None:
            await asyncio.sleep(1)
            work.cancel()
            raise ServerUnreachable("connection refused")

        async def reconcile(_key: str) -> float | None:
            async with asyncio.TaskGroup() as group:
                group.create_task(refused())
            return None

        controller = Controller("test", reconcile, workers=1)
        controller.enqueue("a")
        work = asyncio.create_task(controller.run())
        await asyncio.wait({work}, timeout=60)
        assert work.cancelled()

    run_virtual(main())


def test_a_controller_goes_on_after_one_of_several_concurrent_calls_fails() -> None:
    async def main() -> list[str]:
        calls: list[str] = []

        async def refused() -> None:
            await asyncio.sleep(1)
            raise ServerUnreachable("connection refused")

        async def reconcile(key: str) -> float | None:
            calls.append(key)
            if len(calls) == 1:
                async with asyncio.TaskGroup() as group:
                    group.create_task(refused())
            return None

        controller = Controller("test", reconcile, workers=1)
        controller.enqueue("a")
        work = asyncio.create_task(controller.run())
        await asyncio.wait({work}, timeout=60)
        assert not work.done()
        work.cancel()
        await asyncio.wait({work})
        return calls

    assert run_virtual(main()) == ["a", "a"]


def test_a_change_wakes_the_keys_of_what_was_and_what_is() -> None:
    async def main() -> list[str]:
        looks: list[str] = []

        async def reconcile(key: str) -> float | None:
            looks.append(key)
            return None

        def sites(item: Machine) -> list[str]:
            return [item.site]

        api = MemoryApi()
        label = "unbounded-cloud.io/site"
        await api.create(MACHINES, {"metadata": {"name": "a", "labels": {label: "one"}}, "spec": {}})
        cache, controller = Cache(api, MACHINES), Controller("test", reconcile, workers=1)
        controller.follow(cache, sites)
        async with running(cache, controller):
            await asyncio.sleep(1)
            await api.patch(MACHINES, "a", {"metadata": {"labels": {label: "two"}}})
            await asyncio.sleep(1)
        return looks

    assert run_virtual(main()) == ["one", "one", "two"]


def test_only_changes_of_the_parts_that_count_wake_their_keys_after_the_delay() -> None:
    async def main() -> list[tuple[float, str]]:
        looks: list[tuple[float, str]] = []

        async def reconcile(key: str) -> float | None:
            looks.append((now(), key))
            return None

        api = MemoryApi()
        await api.create(MACHINES, {"metadata": {"name": "a"}, "spec": {}})
        cache, controller = Cache(api, MACHINES), Controller("test", reconcile, workers=1)
        controller.follow(cache, lambda item: (item.name,), parts=lambda item: item.metadata.labels, delay_s=0.5)
        async with running(cache, controller):
            await asyncio.sleep(1)
            await api.patch(MACHINES, "a", {"metadata": {"annotations": {"note": "one"}}})
            await asyncio.sleep(1)
            await api.patch(MACHINES, "a", {"metadata": {"labels": {"site": "two"}}})
            await asyncio.sleep(1)
        return looks

    assert run_virtual(main()) == [(0.5, "a"), (2.5, "a")]


def test_a_controller_that_has_ended_follows_no_cache() -> None:
    async def main() -> None:
        async def reconcile(_key: str) -> float | None:
            return None

        api = MemoryApi()
        cache, controller = Cache(api, MACHINES), Controller("test", reconcile)
        controller.follow(cache, lambda item: (item.name,))
        async with running(cache):
            async with running(controller):
                await asyncio.sleep(1)
            await api.create(MACHINES, {"metadata": {"name": "a"}, "spec": {}})
            await asyncio.sleep(1)
            assert cache.get("a") is not None
            assert len(controller.queue) == 0

    run_virtual(main())
