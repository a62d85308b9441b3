"""The cache converges to the store, whatever happens on the way, and its subscribers with it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.faulty_api import FORBIDDEN, FaultyApi
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual
from unbounded.api.core import CONFIG_MAPS, ConfigMap
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.machine_spec import MachineSpec
from unbounded.api.meta import Kind
from unbounded.kube.api import ApiError, NotFound, ObjectKey, WatchEvent, key_of
from unbounded.kube.cache import Cache
from unbounded.kube.object_codec import decode_frame

T = TypeVar("T")
Mirror = dict[str, Machine]


def machine(name: str, site: str = "lab") -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"site": site}}, "spec": {}}


def by_site(item: Machine) -> list[str]:
    return [item.metadata.labels.get("site", "")]


class Subscriber:
    """Keeps a copy from the callbacks alone, and checks that each `old` is what it had."""

    def __init__(self) -> None:
        self.copy: Mirror = {}
        self.calls: list[tuple[str, str]] = []

    def __call__(self, old: Machine | None, new: Machine | None) -> None:
        item = new or old
        assert item is not None
        assert self.copy.get(item.name) is old
        self.calls.append(("gone" if new is None else "changed" if old else "new", item.name))
        if new is None:
            del self.copy[item.name]
        else:
            self.copy[item.name] = new


@contextlib.asynccontextmanager
async def running(cache: Cache[Any]) -> AsyncIterator[None]:
    task = asyncio.create_task(cache.run())
    try:
        async with asyncio.timeout(3600):
            await cache.synced.wait()
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], bool], within_s: float = 3600) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  # any condition, in virtual time
            await asyncio.sleep(0.1)


def test_it_holds_what_is_there_and_follows_what_comes() -> None:
    async def main() -> None:
        api = MemoryApi()
        await api.create(MACHINES, machine("a"))
        cache = Cache(api, MACHINES, indexes={"site": by_site})
        seen = Subscriber()
        cache.subscribe(seen)
        async with running(cache):
            assert [item.name for item in cache.all()] == ["a"]
            await api.create(MACHINES, machine("b", "other"))
            await until(lambda: cache.get("b") is not None)
            assert [item.name for item in cache.by("site", "other")] == ["b"]
            await api.patch(MACHINES, "b", {"metadata": {"labels": {"site": "lab"}}})
            await until(lambda: len(cache.by("site", "lab")) == 2)
            assert cache.by("site", "other") == ()
            await api.delete(MACHINES, "a")
            await until(lambda: cache.get("a") is None)
            assert [item.name for item in cache.by("site", "lab")] == ["b"]
        assert seen.calls == [("new", "a"), ("new", "b"), ("changed", "b"), ("gone", "a")]
        assert len(cache) == 1
        with pytest.raises(KeyError):
            cache.by("unknown", "x")

    run_virtual(main())


def test_an_index_key_has_no_two_several_and_one_object_again() -> None:
    async def main() -> None:
        api = MemoryApi()
        cache = Cache(api, MACHINES, indexes={"site": lambda item: item.metadata.labels["site"].split(".")})
        async with running(cache):

            def found() -> list[list[str]]:
                return [sorted(item.name for item in cache.by("site", site)) for site in ("lab", "other")]

            async def move(name: str, site: str) -> None:
                await api.patch(MACHINES, name, {"metadata": {"labels": {"site": site}}})
                await asyncio.sleep(1)

            await api.create(MACHINES, machine("a", "lab.lab"))  # the same key twice
            await api.create(MACHINES, machine("b", "lab.other"))
            await asyncio.sleep(1)
            assert found() == [["a", "b"], ["b"]]
            await move("a", "other.lab")
            assert found() == [["a", "b"], ["a", "b"]]
            await move("b", "none")
            assert found() == [["a"], ["a"]]
            assert cache.by("site", "lab") == cache.all()[:1]  # the present version
            await move("a", "none")
            assert found() == [[], []]
            await move("a", "lab")
            await api.delete(MACHINES, "a")
            await asyncio.sleep(1)
            assert found() == [[], []]

    run_virtual(main())


def test_a_cache_stores_and_reports_objects_as_its_compaction_returns_them() -> None:
    async def main() -> None:
        api, seen = MemoryApi(), list[Machine | None]()

        def compact(item: Machine) -> Machine:
            return msgspec.structs.replace(item, spec=MachineSpec())

        cache = Cache(api, MACHINES, compact=compact)
        cache.subscribe(lambda _old, new: seen.append(new))
        async with running(cache):
            made = await api.create(MACHINES, machine("a") | {"spec": {"joinCounter": 1}})
            await until(lambda: cache.get("a") is not None)
            assert made.spec != MachineSpec()
            assert cache.get("a") == compact(made)
            assert seen == [compact(made)]
            cache.observe(await api.patch(MACHINES, "a", {"spec": {"joinCounter": 2}}))
            assert [item.spec for item in cache.all()] == [MachineSpec()]

    run_virtual(main())


def test_a_subscription_lasts_as_long_as_its_block_also_where_that_breaks() -> None:
    async def main() -> None:
        api, seen = MemoryApi(), Subscriber()
        cache = Cache(api, MACHINES)
        await api.create(MACHINES, machine("a"))
        async with running(cache):
            with contextlib.suppress(ValueError), cache.subscribed(seen):
                await api.create(MACHINES, machine("b"))
                await until(lambda: cache.get("b") is not None)
                raise ValueError
            await api.create(MACHINES, machine("c"))
            await until(lambda: cache.get("c") is not None)
        assert seen.calls == [("new", "a"), ("new", "b")]

    run_virtual(main())


def test_late_subscriber_gets_the_present_objects() -> None:
    async def main() -> None:
        api = MemoryApi()
        await api.create(MACHINES, machine("a"))
        cache = Cache(api, MACHINES)
        async with running(cache):
            seen = Subscriber()
            cache.subscribe(seen)
            assert seen.calls == [("new", "a")]

    run_virtual(main())


def test_namespaces_tell_objects_of_one_name_apart() -> None:
    async def main() -> None:
        api = MemoryApi()
        for namespace in ("default", "kube-system"):
            await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"in": namespace}}, namespace=namespace)
        whole: Cache[ConfigMap] = Cache(api, CONFIG_MAPS)
        part: Cache[dict[str, Any]] = Cache(api, CONFIG_MAPS.raw(), namespace="default")
        async with running(whole), running(part):
            found = whole.get("a", "kube-system")
            assert found is not None
            assert found.data == {"in": "kube-system"}
            assert [item["metadata"]["namespace"] for item in part.all()] == ["default"]

    run_virtual(main())


def test_failing_subscriber_does_not_stop_others(caplog: pytest.LogCaptureFixture) -> None:
    def breaks(old: Machine | None, new: Machine | None) -> None:
        raise RuntimeError("a bug")

    async def main() -> None:
        api = MemoryApi()
        cache, seen = Cache(api, MACHINES), Subscriber()
        cache.subscribe(breaks)
        cache.subscribe(seen)
        async with running(cache):
            await api.create(MACHINES, machine("a"))
            await until(lambda: "a" in seen.copy)

    run_virtual(main())
    assert "subscriber failed" in caplog.text


# ---- own writes


def test_an_own_write_is_read_back_before_the_watch_tells_it() -> None:
    async def main() -> None:
        api = MemoryApi()
        await api.create(MACHINES, machine("a"))
        cache, seen = Cache(api, MACHINES), Subscriber()
        cache.subscribe(seen)
        async with running(cache):
            cache.observe(await api.patch(MACHINES, "a", {"spec": {"provider": "x"}}))
            item = cache.get("a")
            assert item is not None
            assert item.spec.provider == "x"
            await api.create(MACHINES, machine("b"))
            await until(lambda: cache.get("b") is not None)
        assert seen.calls == [("new", "a"), ("changed", "a"), ("new", "b")]  # not reported twice

    run_virtual(main())


def test_an_answer_that_comes_after_the_deletion_brings_nothing_back() -> None:
    async def main() -> None:
        api = MemoryApi()
        cache = Cache(api, MACHINES)
        async with running(cache):
            late = await api.create(MACHINES, machine("a"))
            await until(lambda: cache.get("a") is not None)
            await api.delete(MACHINES, "a")
            await until(lambda: cache.get("a") is None)
            cache.observe(late)
            assert cache.get("a") is None

    run_virtual(main())


def test_the_deletion_of_its_predecessor_does_not_hide_what_we_made() -> None:
    async def main() -> None:
        api = MemoryApi()
        await api.create(MACHINES, machine("a"))
        cache, seen = Cache(api, MACHINES), Subscriber()
        cache.subscribe(seen)
        async with running(cache):
            await api.delete(MACHINES, "a")
            cache.observe(await api.create(MACHINES, machine("a")))
            await api.create(MACHINES, machine("b"))
            await until(lambda: cache.get("b") is not None)
        assert seen.calls == [("new", "a"), ("gone", "a"), ("new", "a"), ("new", "b")]

    run_virtual(main())


def test_an_answer_outside_of_the_selection_is_not_taken_in() -> None:
    async def main() -> None:
        api = MemoryApi()
        cache = Cache(api, MACHINES, labels="site=lab")
        async with running(cache):
            cache.observe(await api.create(MACHINES, machine("a", "other")))
            assert cache.get("a") is None
            cache.observe(await api.create(MACHINES, machine("b", "lab")))
            assert cache.get("b") is not None
            cache.observe(await api.patch(MACHINES, "b", {"metadata": {"labels": {"site": "other"}}}))
            await until(lambda: cache.get("b") is None)

    run_virtual(main())


# ---- recovery


def test_deletions_during_an_outage_are_delivered_afterwards() -> None:
    async def main() -> None:
        api = FaultyApi(random.Random(1), rate=0)
        for name in ("a", "b", "c"):
            await api.create(MACHINES, machine(name))
        cache, seen = Cache(api, MACHINES), Subscriber()
        cache.subscribe(seen)
        async with running(cache):
            api.rate = 1.0
            await api.patch(MACHINES, "a", {"spec": {"provider": "x"}})
            await api.delete(MACHINES, "b")
            await api.delete(MACHINES, "c")
            made_again = await api.create(MACHINES, machine("c"))
            api.compact()
            await asyncio.sleep(300)
            assert seen.calls == [("new", "a"), ("new", "b"), ("new", "c")]
            api.rate = 0.0
            await until(lambda: seen.copy.get("c") == made_again, within_s=60)
        assert sorted(seen.calls[3:]) == [("changed", "a"), ("gone", "b"), ("gone", "c"), ("new", "c")]

    run_virtual(main())


def test_an_outage_is_not_hammered() -> None:
    async def main() -> int:
        api = FaultyApi(random.Random(1), rate=1.0)
        task = asyncio.create_task(Cache(api, MACHINES).run())
        await asyncio.sleep(3600)
        task.cancel()
        return api.watches + api.lists

    assert 100 < run_virtual(main()) < 600  # about one each ten seconds


class WithoutDefinitions(MemoryApi):
    """An API without the definitions of our kinds."""

    served = False

    async def watch(
        self, kind: Kind[T], *, resource_version: str = "", namespace: str = "", labels: str = "", fields: str = ""
    ) -> AsyncIterator[WatchEvent[T]]:
        if not self.served:
            raise NotFound("404 page not found")
        selection = {"namespace": namespace, "labels": labels, "fields": fields}
        async for event in super().watch(kind, resource_version=resource_version, **selection):
            yield event


def test_unserved_kind_is_logged_and_watched_once_defined(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        api = WithoutDefinitions()
        cache = Cache(api, MACHINES)
        task = asyncio.create_task(cache.run())
        await asyncio.sleep(60)
        assert {record.message for record in caplog.records} == {
            "kind is not served; install its CustomResourceDefinition"
        }
        api.served = True
        await asyncio.wait_for(cache.synced.wait(), 60)
        task.cancel()

    run_virtual(main())


def test_an_idle_cache_asks_nothing() -> None:
    async def main() -> int:
        api = FaultyApi(random.Random(1), rate=0.0)
        cache = Cache(api, MACHINES)
        async with running(cache):
            await asyncio.sleep(3600)
        return api.watches + api.lists

    assert run_virtual(main()) == 1


# The answer of a kube-apiserver 1.36.2 with etcd 3.4.23 to a watch with sendInitialEvents=true.
NO_PROGRESS = (
    b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"a watch '
    b'stream was requested by the client but the required storage feature RequestWatchProgress is disabled",'
    b'"reason":"InternalError","code":500}}'
)


def refusal_of(frame: bytes) -> ApiError:
    with pytest.raises(ApiError) as raised:
        decode_frame(MACHINES, frame)
    return raised.value


@pytest.mark.parametrize("refusal", [FORBIDDEN, refusal_of(NO_PROGRESS)], ids=["old server", "old etcd"])
def test_a_server_that_streams_no_lists_is_listed_and_remembered(refusal: ApiError) -> None:
    async def main() -> None:
        api = FaultyApi(random.Random(1), rate=0.0, streams=False, refusal=refusal)
        await api.create(MACHINES, machine("a"))
        cache = Cache(api, MACHINES)
        async with running(cache):
            assert cache.get("a") is not None
            await api.create(MACHINES, machine("b"))
            await until(lambda: cache.get("b") is not None)
            assert (api.lists, api.watches) == (1, 2)

    run_virtual(main())


def test_a_store_that_was_replaced_by_an_older_one_is_taken_over() -> None:
    class Switch(MemoryApi):
        """Serves another store from one moment on, as after a restore from a backup."""

        target: MemoryApi | None = None

        def watch(self, kind: Kind[Any], **options: Any) -> AsyncIterator[Any]:
            if self.target is not None:
                return self.target.watch(kind, **options)
            return super().watch(kind, **options)

    async def main() -> None:
        api = Switch()
        for name in ("a", "b", "c"):
            await api.create(MACHINES, machine(name))
        cache, seen = Cache(api, MACHINES), Subscriber()
        cache.subscribe(seen)
        async with running(cache):
            restored = MemoryApi(namespaces=())  # so that its versions are lower
            older = await restored.create(MACHINES, machine("a"))
            api.target = restored
            api.compact()
            await api.create(MACHINES, machine("x"))  # the old watch ends, as it was compacted away
            api.compact()
            await until(lambda: seen.copy == {"a": older}, within_s=60)
            await restored.create(MACHINES, machine("d"))
            await until(lambda: "d" in seen.copy, within_s=60)

    run_virtual(main())


# ---- any faults

NAMES = ("a", "b", "c", "d")
Step = tuple[str, str, float]

steps = st.lists(
    st.tuples(
        st.sampled_from(("create", "move", "patch", "delete", "compact", "saw")),
        st.sampled_from(NAMES),
        st.sampled_from((0.0, 0.0, 0.01, 0.3, 2.0, 150.0)),
    ),
    max_size=40,
)


async def act(api: FaultyApi, cache: Cache[Machine], action: str, name: str, count: int) -> None:
    if action == "create":
        await api.create(MACHINES, machine(name, ("lab", "other")[count % 2]))
    elif action == "move":
        await api.patch(MACHINES, name, {"metadata": {"labels": {"site": ("other", "lab")[count % 2]}}})
    elif action == "patch":
        await api.patch(MACHINES, name, {"status": {"message": str(count)}}, subresource="status")
    elif action == "delete":
        await api.delete(MACHINES, name)
    elif action == "saw":
        cache.observe(await api.patch(MACHINES, name, {"status": {"message": f"saw {count}"}}, subresource="status"))
    else:
        api.compact()


@pytest.mark.slow
@given(
    steps=steps,
    seed=st.integers(0, 2**32),
    rate=st.sampled_from((0.0, 0.1, 0.5)),
    labels=st.sampled_from(("", "site=lab")),
    streams=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_a_cache_converges_to_the_store_under_any_faults(
    steps: list[Step], seed: int, rate: float, labels: str, streams: bool
) -> None:
    async def main() -> None:
        api = FaultyApi(random.Random(seed), rate=rate, streams=streams)
        cache, seen = Cache(api, MACHINES, labels=labels, indexes={"site": by_site}), Subscriber()
        cache.subscribe(seen)
        task = asyncio.create_task(cache.run())
        for count, (action, name, pause_s) in enumerate(steps):
            with contextlib.suppress(ApiError):
                await act(api, cache, action, name, count)
            if pause_s:
                await asyncio.sleep(pause_s)
        api.rate = 0.0
        await asyncio.sleep(400)  # longer than a half-open watch and the back-off after it
        stored = {key_of(item): item for item in (await MemoryApi.list(api, MACHINES, labels=labels)).items}
        assert {key_of(item): item for item in cache.all()} == stored
        assert {ObjectKey("", name): item for name, item in seen.copy.items()} == stored
        for site in ("lab", "other"):
            wanted = {key for key, item in stored.items() if item.metadata.labels["site"] == site}
            assert {key_of(item) for item in cache.by("site", site)} == wanted
        task.cancel()

    run_virtual(main())


def test_the_faults_of_these_tests_do_happen() -> None:
    """The condition of the property above: with a rate, reads do fail."""

    async def main() -> None:
        api = FaultyApi(random.Random(1), rate=1.0)
        with pytest.raises(ApiError):
            await api.list(MACHINES)
        with pytest.raises(NotFound):
            await api.get(MACHINES, "a")

    run_virtual(main())
