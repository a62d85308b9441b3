"""Events: written beside the work, counted when equal, given up when there are too many."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.core import EVENTS, SECRETS, Event, ObjectReference
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.kube.api import ServerUnreachable
from unbounded.kube.events import MAX_PENDING, EventRecorder, object_reference
from unbounded.kube.metrics import ControllerMetrics

T = TypeVar("T")


@contextlib.asynccontextmanager
async def running(recorder: EventRecorder) -> AsyncIterator[None]:
    task = asyncio.create_task(recorder.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def written(api: MemoryApi) -> tuple[Event, ...]:
    return (await api.list(EVENTS)).items


async def a_machine(api: MemoryApi, name: str = "m1") -> ObjectReference:
    item = await api.create(MACHINES, {"metadata": {"name": name}, "spec": {}})
    return object_reference(MACHINES, item)


def test_an_event_says_what_happened_to_whom() -> None:
    async def main() -> None:
        api = MemoryApi()
        about = await a_machine(api)
        recorder = EventRecorder(api, "metalman", now=virtual_now)
        async with running(recorder):
            recorder.event(about, "Warning", "PasswordRefused", "the BMC refused the password")
            await asyncio.sleep(1)
        (event,) = await written(api)
        assert (event.type, event.reason, event.message) == (
            "Warning",
            "PasswordRefused",
            "the BMC refused the password",
        )
        assert event.metadata.namespace == "default"  # where kubectl reads those of cluster-scoped objects
        assert (event.involved_object.kind, event.involved_object.name) == ("Machine", "m1")
        assert event.involved_object.uid == about.uid
        assert event.involved_object.namespace is None
        assert (event.count, event.first_timestamp) == (1, "2030-01-01T00:00:00Z")
        assert event.source is not None
        assert event.source.component == "metalman"

    run_virtual(main())


def test_equal_events_are_counted_and_others_stand_apart() -> None:
    async def main() -> None:
        api = MemoryApi()
        about = await a_machine(api)
        recorder = EventRecorder(api, "metalman", now=virtual_now)
        async with running(recorder):
            for _ in range(50):
                recorder.event(about, "Normal", "Waiting", "for the slot")
            await asyncio.sleep(60)
            before = api.writes
            for _ in range(3):
                recorder.event(about, "Normal", "Waiting", "for the slot")
            await asyncio.sleep(60)
            assert api.writes - before == 1
            recorder.event(about, "Normal", "Waiting", "for the BMC")
            await asyncio.sleep(1)
        events = {event.message: event for event in await written(api)}
        assert events["for the slot"].count == 53
        assert events["for the slot"].last_timestamp == "2030-01-01T00:01:00Z"
        assert events["for the BMC"].count == 1

    run_virtual(main())


def test_an_event_that_the_server_has_forgotten_is_written_anew() -> None:
    async def main() -> None:
        api = MemoryApi()
        about = await a_machine(api)
        recorder = EventRecorder(api, "metalman")
        async with running(recorder):
            recorder.event(about, "Normal", "Waiting", "x")
            await asyncio.sleep(1)
            (event,) = await written(api)
            await api.delete(EVENTS, event.metadata.name, namespace="default")
            recorder.event(about, "Normal", "Waiting", "x")
            await asyncio.sleep(1)
        assert [event.count for event in await written(api)] == [1]

    run_virtual(main())


def test_an_event_about_a_namespaced_object_stands_beside_it() -> None:
    async def main() -> None:
        api = MemoryApi()
        secret = await api.create(SECRETS, {"metadata": {"name": "s"}}, namespace="unbounded-kube")
        recorder = EventRecorder(api, "metalman")
        async with running(recorder):
            recorder.event(object_reference(SECRETS, secret), "Normal", "Read", "x")
            await asyncio.sleep(1)
        (event,) = await written(api)
        assert (event.metadata.namespace, event.involved_object.namespace) == ("unbounded-kube", "unbounded-kube")

    run_virtual(main())


class Refusing(MemoryApi):
    refusals = 0

    async def create(self, kind: Kind[T], body: Mapping[str, Any], *, namespace: str = "") -> T:
        if kind.plural == "events" and self.refusals > 0:
            self.refusals -= 1
            raise ServerUnreachable("no")
        return await super().create(kind, body, namespace=namespace)


def test_a_passing_failure_is_tried_again_and_a_lasting_one_given_up() -> None:
    async def main() -> None:
        api, metrics = Refusing(), ControllerMetrics()
        about = await a_machine(api)
        recorder = EventRecorder(api, "metalman", metrics=metrics)
        async with running(recorder):
            api.refusals = 2
            recorder.event(about, "Normal", "Kept", "x")
            await asyncio.sleep(30)
            api.refusals = 3
            recorder.event(about, "Normal", "GivenUp", "x")
            await asyncio.sleep(30)
            recorder.event(about, "Normal", "After", "x")
            await asyncio.sleep(1)
        assert {event.reason for event in await written(api)} == {"Kept", "After"}
        assert b"unbounded_events_dropped_total 1.0" in metrics.text()

    run_virtual(main())


def test_a_storm_is_bounded_in_memory_and_in_rate() -> None:
    async def main() -> None:
        api, metrics = MemoryApi(), ControllerMetrics()
        about = await a_machine(api)
        recorder = EventRecorder(api, "metalman", metrics=metrics)
        async with running(recorder):
            for number in range(MAX_PENDING + 500):
                recorder.event(about, "Normal", "Storm", f"number {number}")
            await asyncio.sleep(10)
            assert len(await written(api)) <= 102
        assert b"unbounded_events_dropped_total 500.0" in metrics.text()

    run_virtual(main())
