"""Writing down what was seen: through conflicts and trouble, seldom for percentages, never for a boot that is over."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metalman.support.netboot_objects import machine, machine_body
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.machine import MACHINES, Machine, NetbootMilestone, NetbootStatus
from unbounded.api.meta import Kind
from unbounded.kube.api import ResponseLost, ServerUnreachable
from unbounded.kube.cache import Cache
from unbounded.metalman.netboot.model import MILESTONE_RANKS, BootObservation, ConditionState, milestone_rank
from unbounded.metalman.netboot.status_writer import (
    BootStatusWriter,
    cloud_init_condition,
    image_written,
    merge_observations,
    repaved_condition,
    status_change,
)

T = TypeVar("T")
M = NetbootMilestone


class SlowApi(MemoryApi):
    """An API whose patches fail as configured: 0 before the write, 1 after it."""

    def __init__(self) -> None:
        super().__init__(now=virtual_now)
        self.faults: list[int] = []
        self.patched_at: list[float] = []

    async def patch(
        self, kind: Kind[T], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        fault = self.faults.pop(0) if self.faults else None
        if fault == 0:
            raise ServerUnreachable("fault: refused")
        result = await super().patch(kind, name, patch, namespace=namespace, subresource=subresource)
        if subresource:
            self.patched_at.append(asyncio.get_running_loop().time())
        if fault == 1:
            raise ResponseLost("fault: the answer was lost")
        return result


@dataclass
class Desk:
    """A Machine, and its status writer; `boots` are the requested ones."""

    api: SlowApi
    writer: BootStatusWriter
    cache: Cache[Machine]
    boots: set[str] = field(default_factory=lambda: {"b"})

    async def status(self) -> NetbootStatus | None:
        return (await self.api.get(MACHINES, "m1")).status.netboot


@asynccontextmanager
async def desk() -> AsyncIterator[Desk]:
    api = SlowApi()
    await api.create(MACHINES, machine_body())
    cache = Cache(api, MACHINES)
    boots = {"b"}
    writer = BootStatusWriter(api, cache, lambda _machine, boot: boot in boots, now=virtual_now)
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(cache.run()), group.create_task(writer.run())]
        await cache.synced.wait()
        try:
            yield Desk(api, writer, cache, boots)
        finally:
            for task in running:
                task.cancel()


def test_percentages_are_written_every_two_seconds_and_the_last_one_is() -> None:
    async def main() -> None:
        async with desk() as at:
            at.writer.note("m1", BootObservation(boot="b", milestone=M.INSTALLER_STARTED))
            for percent in range(101):
                at.writer.note("m1", BootObservation(boot="b", milestone=M.IMAGE_WRITING, percent=percent))
                await asyncio.sleep(0.1)
            await asyncio.sleep(3)
            status = await at.status()
            assert status is not None
            assert status.percent == 100
            assert 5 <= len(at.api.patched_at) <= 8
            gaps = [later - earlier for earlier, later in zip(at.api.patched_at, at.api.patched_at[1:], strict=False)]
            assert min(gaps[1:]) >= 1.99

    run_virtual(main())


def test_milestone_is_written_at_once_and_flush_waits_for_it() -> None:
    async def main() -> None:
        async with desk() as at:
            at.writer.note("m1", BootObservation(boot="b", milestone=M.IMAGE_WRITING, percent=99))
            await at.writer.flush("m1")
            at.writer.note("m1", BootObservation(boot="b", milestone=M.IMAGE_WRITTEN, percent=100))
            await at.writer.flush("m1")
            status = await at.status()
            assert status is not None
            assert status.milestone == M.IMAGE_WRITTEN
            assert asyncio.get_running_loop().time() < 1

    run_virtual(main())


def test_status_writes_survive_errors_and_conflicts_with_newer_observations() -> None:
    async def main() -> None:
        async with desk() as at:
            at.api.faults = [0, 1, 0]
            at.writer.note("m1", BootObservation(boot="b", milestone=M.LOADER_FETCHED))
            flushed = asyncio.create_task(at.writer.flush("m1"))
            await asyncio.sleep(0.05)
            at.writer.note("m1", BootObservation(boot="b", milestone=M.KERNEL_FETCHED))
            patch = {"status": {"message": "of another"}}
            await MemoryApi.patch(at.api, MACHINES, "m1", patch, subresource="status")
            await flushed
            await at.writer.flush("m1")
            status = await at.status()
            assert status is not None
            assert status.milestone == M.KERNEL_FETCHED
            assert (await at.api.get(MACHINES, "m1")).status.message == "of another"

    run_virtual(main())


def test_observations_of_ended_boots_and_deleted_machines_are_dropped() -> None:
    async def main() -> None:
        async with desk() as at:
            writes = at.api.writes
            at.writer.note("m1", BootObservation(boot="an earlier one", milestone=M.IMAGE_WRITTEN))
            at.writer.note("m2", BootObservation(boot="b", milestone=M.IMAGE_WRITTEN))
            await at.writer.flush("m1")
            await at.writer.flush("m2")
            assert at.api.writes == writes

    run_virtual(main())


def test_two_replicas_that_saw_different_things_leave_the_later_one() -> None:
    async def main() -> None:
        async with desk() as at:
            other = BootStatusWriter(at.api, at.cache, lambda _machine, boot: boot == "b", now=virtual_now)
            async with asyncio.TaskGroup() as group:
                running = group.create_task(other.run())
                for milestone in M:
                    at.writer.note("m1", BootObservation(boot="b", milestone=milestone, loads=1))
                    other.note("m1", BootObservation(boot="b", milestone=M.LOADER_FETCHED, loads=1))
                    await asyncio.gather(at.writer.flush("m1"), other.flush("m1"))
                running.cancel()
            status = await at.status()
            assert status is not None
            assert (status.milestone, status.loads) == (M.CONTESTED, 2 * len(M))

    run_virtual(main())


def test_status_writer_memory_does_not_grow_with_booted_machines() -> None:
    async def scene() -> None:
        async with desk() as it:

            async def boot(number: int) -> None:
                await it.api.create(MACHINES, {**machine_body(), "metadata": {"name": f"m{number}"}})
                it.writer.note(f"m{number}", BootObservation(boot="b", milestone=M.LOADER_FETCHED))
                await it.writer.flush(f"m{number}")
                await asyncio.sleep(5)

            for number in range(10, 20):
                await boot(number)
            before = len(pickle.dumps(kept(it.writer)))
            for number in range(20, 80):
                await boot(number)
            assert len(it.api.patched_at) == 70
            assert len(pickle.dumps(kept(it.writer))) <= before

    run_virtual(scene())


def kept(writer: BootStatusWriter) -> list[object]:
    """All tables that it has, whatever they are for."""
    return [value for value in vars(writer).values() if isinstance(value, dict)]


def test_nothing_is_written_twice() -> None:
    async def main() -> None:
        async with desk() as at:
            seen = BootObservation(boot="b", milestone=M.OFFERED, image_digest="sha256:1")
            at.writer.note("m1", seen)
            await at.writer.flush("m1")
            writes = at.api.writes
            for _ in range(5):
                at.writer.note("m1", seen)
                await at.writer.flush("m1")
            assert at.api.writes == writes

    run_virtual(main())


NOW, LATER = "2030-01-01T00:00:00Z", "2030-01-01T00:00:09Z"


def applied(before: Machine, patch: dict[str, Any]) -> Machine:
    """The Machine after a merge patch of its status."""
    body = msgspec.to_builtins(before)
    status = body.setdefault("status", {})
    for name, value in patch.items():
        merged = {**status.get(name, {}), **value} if isinstance(value, dict) else value
        status[name] = {k: v for k, v in merged.items() if v is not None} if isinstance(merged, dict) else merged
    return msgspec.convert(body, Machine)


def after(before: Machine, *seen: BootObservation, now: str = NOW) -> Machine:
    for one in seen:
        before = applied(before, status_change(before, one, now))
    return before


def condition(of: Machine, kind: ConditionType) -> tuple[str, str] | None:
    return next(((each.status, each.reason) for each in of.status.conditions if each.type == kind), None)


cloud_inits = st.sampled_from(
    [
        None,
        cloud_init_condition("start", "init-network", "", ""),
        cloud_init_condition("finish", "modules-final", "SUCCESS", ""),
        cloud_init_condition("finish", "modules-config", "FAIL", "it broke"),
    ]
)
sights = st.builds(
    lambda milestone, percent, loads, message, cloud_init: BootObservation(
        boot="b",
        milestone=milestone,
        percent=percent,
        loads=loads,
        message=message,
        conditions={ConditionType.CLOUD_INIT_DONE: cloud_init} if cloud_init else {},
    ),
    st.one_of(st.none(), st.sampled_from(list(M))),
    st.one_of(st.none(), st.integers(0, 100)),
    st.integers(0, 2),
    st.one_of(st.none(), st.text(max_size=5)),
    cloud_inits,
)


@pytest.mark.slow
@given(st.lists(sights, max_size=12))
def test_nothing_ever_goes_back_in_whatever_order_it_is_seen(seen: list[BootObservation]) -> None:
    states = [machine()]
    for one in seen:
        states.append(after(states[-1], one))
    recorded = [state.status.netboot for state in states if state.status.netboot is not None]
    for old, new in pairwise(recorded):
        assert milestone_rank(new.milestone) >= milestone_rank(old.milestone)
        assert (new.percent or 0) >= (old.percent or 0)
        assert (new.loads or 0) >= (old.loads or 0)
    assert sum(one.loads for one in seen) == ((recorded[-1].loads or 0) if recorded else 0)
    ends = [condition(state, ConditionType.CLOUD_INIT_DONE) for state in states]
    final = [end for end in ends if end is not None and end[1] in ("Succeeded", "Failed")]
    assert len(set(final)) <= 1
    if final:
        assert ends[-1] == final[0]


@pytest.mark.slow
@given(st.lists(sights, min_size=1, max_size=8))
def test_merged_boot_observations_give_the_status_of_separate_writes(seen: list[BootObservation]) -> None:
    together = seen[0]
    for one in seen[1:]:
        together = merge_observations(together, one)
    one_by_one, at_once = after(machine(), *seen), after(machine(), together)
    a, b = one_by_one.status.netboot, at_once.status.netboot
    assert a is not None
    assert b is not None
    assert a == b
    kind = ConditionType.CLOUD_INIT_DONE
    assert condition(one_by_one, kind) == condition(at_once, kind)


@pytest.mark.slow
@given(sights)
def test_a_second_write_of_the_same_changes_nothing(seen: BootObservation) -> None:
    seen = msgspec_without_loads(seen)
    once = after(machine(), seen)
    assert status_change(once, seen, LATER) == {}


def msgspec_without_loads(seen: BootObservation) -> BootObservation:
    return BootObservation(boot=seen.boot, milestone=seen.milestone, percent=seen.percent, message=seen.message)


def test_a_new_boot_begins_anew_and_clears_what_was_left() -> None:
    old = BootObservation(
        boot="a",
        milestone=M.IMAGE_WRITTEN,
        percent=100,
        loads=3,
        message="done",
        image_digest="sha256:1",
        conditions={ConditionType.CLOUD_INIT_DONE: cloud_init_condition("finish", "modules-final", "SUCCESS", "")},
    )
    before = after(machine(), old)
    patch = status_change(before, BootObservation(boot="b", milestone=M.OFFERED), LATER)
    now = applied(before, patch).status.netboot
    assert now is not None
    assert (now.boot, now.milestone, now.percent, now.loads, now.message, now.image_digest, now.at) == (
        "b", "Offered", None, None, None, None, LATER,
    )  # fmt: skip
    assert condition(applied(before, patch), ConditionType.CLOUD_INIT_DONE) is None


def test_written_image_is_recorded_with_the_boot_that_wrote_it() -> None:
    offered = BootObservation(boot="a", milestone=M.OFFERED, image="os:v1", image_digest="sha256:1")
    before = after(machine(), offered)
    assert before.status.image is None
    done = after(before, BootObservation(boot="a", milestone=M.IMAGE_WRITTEN))
    image = done.status.image
    assert image is not None
    assert (image.image, image.digest, image.boot) == ("os:v1", "sha256:1", "a")
    assert image.is_of("os:v1")
    assert image.is_of("mirror.example.com/os@sha256:1")
    assert not image.is_of("os:v2")
    inspected = after(done, BootObservation(boot="i", milestone=M.HARDWARE_REPORTED, image="os:v2", image_digest="d"))
    assert inspected.status.image == image, "another boot that writes nothing leaves it"
    begun = after(inspected, BootObservation(boot="b", milestone=M.IMAGE_WRITING, image="os:v2", image_digest="d"))
    assert begun.status.image is None, "the disk has neither the former image nor the next one"
    ended = after(begun, BootObservation(boot="b", milestone=M.IMAGE_WRITTEN)).status.image
    assert ended is not None
    assert (ended.image, ended.boot) == ("os:v2", "b")


def test_report_on_a_system_ends_as_its_disk_is_written() -> None:
    reported = {"agent": {"version": "1.0", "stage": "Running", "host": {"hostname": "m1"}}}
    offered = BootObservation(boot="a", milestone=M.OFFERED, image="os:v1", image_digest="sha256:1")
    before = after(machine(status=reported), offered)
    assert before.status.agent is not None
    assert before.status.agent.stage == "Running"
    written = after(before, BootObservation(boot="a", milestone=M.IMAGE_WRITTEN))
    assert written.status.agent is not None
    agent = written.status.agent
    assert (agent.version, agent.stage, agent.host) == ("1.0", None, None)
    assert after(machine(), offered, BootObservation(boot="a", milestone=M.IMAGE_WRITTEN)).status.agent is None
    again = applied(written, {"agent": {"stage": "Preparing", "host": {"hostname": "m1"}}})
    assert "agent" not in status_change(again, BootObservation(boot="a", milestone=M.IMAGE_WRITTEN, percent=100), LATER)


def test_image_of_an_unknown_reference_is_not_claimed() -> None:
    known = BootObservation(boot="a", milestone=M.IMAGE_WRITTEN, image="os:v1", image_digest="sha256:1")
    before = after(machine(), known)
    unknown = BootObservation(boot="b", milestone=M.IMAGE_WRITTEN, image_digest="sha256:2")
    assert after(before, unknown).status.image is None
    lost = after(before, BootObservation(boot="e", milestone=M.DISKS_ERASED, is_erased=True))
    assert lost.status.image is None


@pytest.mark.parametrize(
    ("image", "digest", "expected"),
    [(None, None, "os:v1"), ("", "sha256:1", "os:v1"), ("", "sha256:2", None), ("os:v2", "sha256:2", "os:v2")],
)
def test_reference_of_a_boot_stays_with_its_digest(image: str | None, digest: str | None, expected: str | None) -> None:
    first = BootObservation(boot="a", milestone=M.OFFERED, image="os:v1", image_digest="sha256:1")
    later = BootObservation(boot="a", milestone=M.KERNEL_FETCHED, image=image, image_digest=digest)
    both = after(after(machine(), first), later).status.netboot
    assert both is not None
    assert both.image == merge_observations(first, later).image == expected


def test_the_end_of_a_counted_repave_is_one_write() -> None:
    before = after(
        machine(),
        BootObservation(boot="repave-2", conditions={ConditionType.REPAVED: repaved_condition("img", done=False)}),
    )
    assert condition(before, ConditionType.REPAVED) == ("False", "Pending")
    said = image_written("img", 2)
    end = BootObservation("repave-2", said.milestone, said.percent, conditions=said.conditions, repave=said.repave)
    patch = status_change(before, end, LATER)
    assert patch["operations"] == {"repaveCounter": 2}
    now = applied(before, patch)
    assert condition(now, ConditionType.REPAVED) == ("True", "Succeeded")
    assert now.status.netboot is not None
    assert (now.status.netboot.milestone, now.status.netboot.percent) == ("ImageWritten", 100)
    ahead = machine(status={"operations": {"repaveCounter": 5, "rebootCounter": 1}})
    patch = status_change(ahead, end, LATER)
    assert "operations" not in patch


def test_words_without_a_milestone_are_about_the_one_that_is_reached() -> None:
    reached = after(machine(), BootObservation(boot="a", milestone=M.LOADER_FETCHED, message="hm"))
    told = after(reached, BootObservation(boot="a", message="grub.cfg.tmpl:2 is wrong"))
    assert told.status.netboot is not None
    assert (told.status.netboot.milestone, told.status.netboot.message) == ("LoaderFetched", "grub.cfg.tmpl:2 is wrong")
    late = after(told, BootObservation(boot="a", milestone=M.OFFERED, message="older"))
    assert late.status.netboot == told.status.netboot
    on = after(late, BootObservation(boot="a", milestone=M.KERNEL_FETCHED))
    assert on.status.netboot is not None
    assert on.status.netboot.message is None


def test_conditions_of_no_boot_leave_the_boot_alone() -> None:
    before = after(machine(), BootObservation(boot="a", milestone=M.OFFERED))
    served = ConditionState(ConditionStatus.FALSE, ConditionReason.NO_BOOT_FILE, "none for arm64")
    patch = status_change(before, BootObservation(conditions={ConditionType.NETBOOT_SERVED: served}), LATER)
    assert patch.keys() == {"conditions"}
    both = merge_observations(
        BootObservation(boot="a", milestone=M.OFFERED),
        BootObservation(conditions={ConditionType.NETBOOT_SERVED: served}),
    )
    assert (both.boot, both.milestone) == ("a", M.OFFERED)
    other = merge_observations(
        BootObservation(conditions={ConditionType.NETBOOT_SERVED: served}),
        BootObservation(boot="c", milestone=M.OFFERED),
    )
    assert other.conditions == {ConditionType.NETBOOT_SERVED: served}


def test_all_milestones_have_their_place_and_failed_can_be_got_over() -> None:
    assert set(MILESTONE_RANKS) == set(M)
    assert (
        milestone_rank(M.IMAGE_WRITING)
        < milestone_rank(M.FAILED)
        < milestone_rank(M.IMAGE_WRITTEN)
        < milestone_rank(M.CONTESTED)
        < milestone_rank("Later")
    )


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (("start", "init-local", "", ""), ("False", "Running")),
        (("finish", "init-local", "SUCCESS", ""), ("False", "Running")),
        (("finish", "init-local", "success", ""), ("False", "Running")),
        (("finish", "modules-final", "SUCCESS", ""), ("True", "Succeeded")),
        (("finish", "modules-final", "FAIL", "x" * 5000), ("False", "Failed")),
        (("finish", "modules-config", "WARN", "x"), ("False", "Failed")),
        (("log", "x", "", ""), None),
        (("", "", "", ""), None),
    ],
)
def test_events_of_cloud_init(event: tuple[str, str, str, str], said: tuple[str, str] | None) -> None:
    got = cloud_init_condition(*event)
    assert (None if got is None else (got.status, got.reason)) == said
    assert got is None or len(got.message) <= 1024
