"""Watches compared with a model, for any interleaving of writers, readers, compaction and restarts.

A client that follows the protocol gets every change once and in order, and ends with the objects of the store.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unbounded_apiserver import reads
from unbounded_apiserver.builtin_resources import CONFIG_MAPS
from unbounded_apiserver.options import ListOptions
from unbounded_apiserver.reads import ObjectEvent, Overrun, Reads, Watch
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.store import Store

CLIENTS = 5
SMALL_QUEUE = 4  # events; who reads more slowly is cut off
KEYS = [f"{namespace}/{name}" for namespace in ("a", "a-b", "b") for name in ("x", "y")]
NAME = CONFIG_MAPS.name

writes = st.tuples(st.just("write"), st.sampled_from(KEYS), st.sampled_from(["in", "out"]))
deletes = st.tuples(st.just("delete"), st.sampled_from(KEYS), st.just(""))
EACH = [f"{what} {number}" for what in ("read", "drop", "miss") for number in range(CLIENTS)]
others = st.sampled_from(["compact", "restart", "settle", *EACH])
steps = st.lists(st.one_of(writes, writes, deletes, st.tuples(others, st.just(""), st.just(""))), max_size=40)

State = dict[str, tuple[int, str]]  # key -> revision, label


@dataclass
class Client:
    """An informer: lists, watches from the list's revision, and lists again after a 410."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""
    streams: bool = False  # begins with a watch that sends the objects first (WatchList), in place of a list
    state: State = field(default_factory=dict)
    revision: int | None = None
    watch: Watch | None = None

    def selected(self, state: State) -> State:
        prefix = f"{self.namespace}/" if self.namespace else ""
        inside = {k: v for k, v in state.items() if k.startswith(prefix) and (not self.labels or v[1] == "in")}
        return {k: v for k, v in inside.items() if not self.fields or k.endswith("/x")}

    async def read(self, reads: Reads, history: dict[int, tuple[str, str]]) -> None:
        if self.watch is None:
            await self._begin(reads)
        assert self.watch is not None
        if self.watch.compacted is not None:
            self.drop()
            self.revision = None
            await self.read(reads, history)
            return
        try:
            events = self.watch.take()
        except Overrun:
            self.drop()
            return
        if self.revision is None:
            self._begin_with(events)
            return
        last = self.revision
        for event in events:
            revision = event.record.revision
            assert revision > last, f"{event.type} {event.record.key} at {revision} after {last}"
            last = revision
            self._apply(event.type, event.record.key, event.record.decode(), revision, history)
        self.revision = max(last, self.watch.progress())

    def _apply(self, kind: str, key: str, obj: dict, revision: int, history: dict[int, tuple[str, str]]) -> None:  # type: ignore[type-arg]  # plain JSON
        assert obj["metadata"]["resourceVersion"] == str(revision)
        assert history[revision][0] == key, "an event is of the change with its revision"
        match kind:
            case "ADDED":
                assert key not in self.state
                self.state[key] = (revision, obj["metadata"]["labels"]["sel"])
            case "MODIFIED":
                assert key in self.state
                self.state[key] = (revision, obj["metadata"]["labels"]["sel"])
            case "DELETED":
                del self.state[key]

    def _begin_with(self, events: list[ObjectEvent]) -> None:
        """Store the objects at the begin of a watch; the bookmark after them marks their end."""
        assert self.watch is not None
        assert self.watch.initial_until is not None
        early = [event for event in events if event.record.revision <= self.watch.initial_until]
        assert all(event.type == "ADDED" for event in early)
        self.state = {e.record.key: (e.record.revision, e.record.labels["sel"]) for e in early}
        assert len(self.state) == len(early), "no object twice"
        self.revision = self.watch.initial_until
        assert early == events, "nothing came between the beginning of the watch and this first look at it"

    async def _begin(self, reads: Reads) -> None:
        options = ListOptions(labels=self.labels, fields=self.fields)
        if self.revision is None and self.streams:
            start = ListOptions(
                labels=self.labels, fields=self.fields, watch=True, bookmarks=True, initial=True, match="NotOlderThan"
            )
            self.watch = await reads.watch(CONFIG_MAPS, self.namespace, start)
            return
        if self.revision is None:
            page = await reads.list(CONFIG_MAPS, self.namespace, options)
            self.state = {r.key: (r.revision, r.labels["sel"]) for r in page.records}
            self.revision = page.revision
        # revision 0 would mean "any", which no list of a store that was written answers
        options = ListOptions(labels=self.labels, fields=self.fields, revision=self.revision, watch=True)
        self.watch = await reads.watch(CONFIG_MAPS, self.namespace, options)

    def drop(self) -> None:
        if self.watch is not None:
            self.watch.close()
            self.watch = None


class World:
    """The store under test, the model of what it holds, and its clients."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = Store(history_changes=25)
        self.state: State = {}
        self.history: dict[int, tuple[str, str]] = {}
        self.clients = [
            Client(),
            Client(namespace="a"),
            Client(labels="sel=in"),
            Client(fields="metadata.name=x", streams=True),
            Client(labels="sel in (in,other)", namespace="a-b", streams=True),
        ]
        assert len(self.clients) == CLIENTS
        self.writing: list[asyncio.Task[None]] = []

    async def write(self, key: str, label: str, *, deleted: bool) -> None:
        current = await self.store.wait_current(NAME, key)
        if deleted and current is None:
            return
        meta = {"name": key.partition("/")[2], "namespace": key.partition("/")[0]}

        def body(revision: int) -> bytes:
            if deleted and current is not None:
                return current.at_revision(revision).body
            whole = {"metadata": {**meta, "resourceVersion": str(revision), "labels": {"sel": label}}}
            return json.dumps(whole, separators=(",", ":")).encode()

        future = self.store.write(NAME, key, body, deleted=deleted)
        record = await future
        self.history[record.revision] = (key, label)
        if deleted:
            self.state.pop(key, None)
        else:
            self.state[key] = (record.revision, label)

    async def settle(self) -> None:
        await asyncio.gather(*self.writing)
        self.writing.clear()

    async def step(self, what: str, key: str, label: str) -> None:
        match what.split():
            case ["write"] | ["delete"]:
                self.writing.append(asyncio.create_task(self.write(key, label, deleted=what == "delete")))
                await asyncio.sleep(0)
            case ["settle"]:
                await self.settle()
            case ["compact"]:
                self.store.compact(self.store.revision)
            case ["restart"]:
                await self.settle()
                for client in self.clients:
                    client.drop()
                await self.store.close()
                self.store = Store(history_changes=25)
                await self.store.open(self.directory)
            case ["read", number]:
                await self.settle()
                await self.clients[int(number)].read(Reads(self.store), self.history)
            case ["drop", number]:
                self.clients[int(number)].drop()
            case ["miss", number]:
                await self.miss(self.clients[int(number)])

    async def miss(self, client: Client) -> None:
        """While the client is away, objects come and go, and history is forgotten."""
        await self.settle()
        client.drop()
        for key in ("a/x", "b/y"):
            await self.write(key, "in", deleted=key in self.state)
        self.store.compact(self.store.revision)

    async def run(self, script: list[tuple[str, str, str]]) -> None:
        await self.store.open(self.directory)
        await self.write("b/x", "in", deleted=False)
        try:
            for what, key, label in script:
                await self.step(what, key, label)
            await self.settle()
            held = {r.key: (r.revision, r.labels["sel"]) for r in self.store.snapshot(NAME).with_prefix("")}
            assert held == self.state
            for client in self.clients:
                for _ in range(3):  # cut off, begun again, and read
                    await client.read(Reads(self.store), self.history)
                assert client.state == client.selected(self.state)
        finally:
            for client in self.clients:
                client.drop()
            await self.store.close()


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=steps, slow=st.booleans())
def test_a_watcher_sees_every_change_once_and_in_order(script: list[tuple[str, str, str]], slow: bool) -> None:
    """With `slow`, a client that does not read a few events is disconnected, and resumes."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        if slow:
            patch.setattr(reads, "QUEUE_EVENTS", SMALL_QUEUE)
        asyncio.run(World(Path(directory)).run(script))


async def test_watch_from_before_compaction_is_expired(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.store.open(tmp_path)
    for label in ("in", "out", "in"):
        await world.write("a/x", label, deleted=False)
    world.store.compact(2)
    reads = Reads(world.store)
    watch = await reads.watch(CONFIG_MAPS, "", ListOptions(revision=1, watch=True))
    assert str(watch.compacted) == "too old resource version: 1 (2)"
    watch.close()
    with pytest.raises(StatusError, match="too old") as refused:
        await reads.list(CONFIG_MAPS, "", ListOptions(revision=1, match="Exact"))
    assert (refused.value.code, refused.value.reason) == (410, "Expired")
    watch = await reads.watch(CONFIG_MAPS, "", ListOptions(revision=2, watch=True))
    assert [(event.type, event.record.revision) for event in watch.take()] == [("MODIFIED", 3)]
    watch.close()
    await world.store.close()


@pytest.mark.slow
async def test_a_reader_that_falls_behind_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "QUEUE_EVENTS", 5)
    world = World(tmp_path)
    await world.store.open(tmp_path)
    watch = await Reads(world.store).watch(CONFIG_MAPS, "", ListOptions(watch=True))
    for _ in range(5):
        await world.write("a/x", "in", deleted=False)
    assert len(watch.take()) == 5
    for _ in range(6):
        await world.write("a/x", "in", deleted=False)
    with pytest.raises(Overrun):
        watch.take()
    watch.close()
    await world.store.close()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(script=st.lists(st.one_of(writes, deletes), min_size=1, max_size=30), limit=st.integers(1, 4), data=st.data())
def test_pages_show_the_objects_of_one_revision(
    script: list[tuple[str, str, str]], limit: int, data: st.DataObject
) -> None:
    async def run(directory: Path) -> None:
        world = World(directory)
        await world.store.open(directory)
        reads = Reads(world.store)
        split = data.draw(st.integers(0, len(script)))
        try:
            for what, key, label in script[:split]:
                await world.write(key, label, deleted=what == "delete")
            expected = {key: revision for key, (revision, _) in sorted(world.state.items())}
            page = await reads.list(CONFIG_MAPS, "", ListOptions(limit=limit))
            seen = {record.key: record.revision for record in page.records}
            for what, key, label in script[split:]:
                await world.write(key, label, deleted=what == "delete")
            while page.token:
                assert page.remaining == len(expected) - len(seen)
                page = await reads.list(CONFIG_MAPS, "", ListOptions(limit=limit, token=page.token))
                seen |= {record.key: record.revision for record in page.records}
            assert seen == expected
            assert list(seen) == sorted(seen)
        finally:
            await world.store.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory)))
