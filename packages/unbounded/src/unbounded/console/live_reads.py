"""Reads of the facts behind an explanation, from live data: the page follows all that the last explanation rests on.

A watch may be refused where a read is not: the rights of the user may have `get` without `watch`. Such facts are read
from the API, again after REREAD_S, and the page shows their age.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

from unbounded.api.configuration import MACHINE_CONFIGURATIONS
from unbounded.api.container_cloud.cluster import CLUSTERS, MACHINE_POOLS
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES
from unbounded.api.core import LEASES, Lease
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.fields import DNS_LABEL, DNS_SUBDOMAIN
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.console.live import LEADER_LEASES, LiveSource, LiveState, Selection, one_object, selection_of
from unbounded.console.models.leaders import LeaderTimes
from unbounded.console.view import FollowedData, View
from unbounded.explain.cached_reads import CachedReads, selection_test
from unbounded.explain.facts_reader import LEASE_S
from unbounded.kube.api import ApiError, NotFound, ObjectList, identify
from unbounded.kube.clock import utc_now

T = TypeVar("T")
R = TypeVar("R")

REREAD_S: Final = 10.0
WHOLE_KINDS: Final[frozenset[Kind[Any]]] = frozenset(  # other pages show their objects, too: one watch serves all
    {
        MACHINES,
        MACHINE_OPERATIONS,
        MACHINE_CONFIGURATIONS,
        MACHINE_DISRUPTION_BUDGETS,
        BARE_METAL_HOSTS,
        CLUSTERS,
        MACHINE_POOLS,
        CONTAINER_CLOUD_MACHINES,
    }
)
_NAME: Final = re.compile(DNS_SUBDOMAIN)
_NAMESPACE: Final = re.compile(DNS_LABEL)


class ReadRequest(NamedTuple):
    """A request for an object by its name, or for objects by selectors."""

    name: str = ""
    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def test(self) -> Callable[[Any], bool]:
        """Return the test of an object that belongs to the answer."""
        if self.name:
            key = (self.namespace, self.name)
            return lambda item: tuple(identify(item).key) == key
        return selection_test(self.namespace, self.labels, self.fields)


@dataclass
class _Source:
    """A selection that the page follows, what was asked of it, and the answers of the API where it has no watch."""

    followed: FollowedData
    requests: dict[ReadRequest, Callable[[Any], bool]] = field(default_factory=dict)
    answers: dict[ReadRequest, tuple[datetime, Any]] = field(default_factory=dict)
    was_read: bool = False  # from the live data
    end: Callable[[], None] = lambda: None

    @property
    def was_answered(self) -> bool:
        return self.was_read or bool(self.answers)


class LiveReads:
    """A ReadApi of live data.

    Args:
        changed: called after each change of what was read.
        lost: called when something that was read may not be read any more.
        followed: what the page itself follows. It may have objects of one namespace in place of all of a kind.
    """

    def __init__(
        self,
        view: View,
        changed: Callable[[], None],
        lost: Callable[[], None],
        followed: Iterable[LiveSource[Any]] = (),
    ) -> None:
        self._view = view
        self._followed = frozenset(map(selection_of, followed))
        self._changed = changed
        self._lost = lost
        self._sources: dict[Selection[Any], _Source] = {}
        self._requested: set[tuple[Selection[Any], ReadRequest]] = set()  # in the present pass
        self._leaders = _leaders()
        view.at_end(self._close)

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """Read all facts again; what was not read any more is not followed afterwards."""
        self._requested = set()
        yield
        for selection, source in tuple(self._sources.items()):
            for request in [one for one in source.requests if (selection, one) not in self._requested]:
                del source.requests[request]
                source.answers.pop(request, None)
            if not source.requests:
                self._end(selection)

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T:
        """As a ReadApi has it. Objects of WHOLE_KINDS are compacted."""
        return await self._get(self._selection(kind, ReadRequest(name, namespace)), name, namespace)

    async def whole(self, kind: Kind[T], name: str) -> T:
        """Return an object with the parts that the live data of its kind leave out."""
        return await self._get(one_object(kind, name), name, "")

    async def list(self, kind: Kind[T], *, namespace: str = "", labels: str = "", fields: str = "") -> ObjectList[T]:
        """As a ReadApi has it."""
        request = ReadRequest("", namespace, labels, fields)

        def read(reads: CachedReads) -> Awaitable[ObjectList[T]]:
            return reads.list(kind, namespace=namespace, labels=labels, fields=fields)

        return await self._read(self._selection(kind, request), request, read)

    def is_late(self, lease: str) -> bool:
        """Return whether a Lease of a controller was not renewed while the page has followed it."""
        return lease in self._leaders.late

    def has_aged(self) -> bool:
        """Return whether other Leases are late than before, by the time alone."""
        source = self._sources.get(LEADER_LEASES)
        if source is None:
            return False
        if source.followed.live.state is not LiveState.LIVE:
            self._leaders.interrupt()
            return False
        return self._leaders.has_aged()

    # ---- reading

    async def _get(self, selection: Selection[T], name: str, namespace: str) -> T:
        kind = selection.kind
        if _NAME.fullmatch(name) is None:  # nor would a selector be one
            raise NotFound(f"no {kind.kind} can have the name {name}", code=404, reason="NotFound")
        if namespace and _NAMESPACE.fullmatch(namespace) is None:
            raise NotFound(f"no namespace can have the name {namespace}", code=404, reason="NotFound")

        def read(reads: CachedReads) -> Awaitable[T]:
            return reads.get(kind, name, namespace=namespace)

        return await self._read(selection, ReadRequest(name, namespace), read)

    async def _read(
        self, selection: Selection[Any], request: ReadRequest, read: Callable[[CachedReads], Awaitable[R]]
    ) -> R:
        source = self._follow(selection)
        source.requests.setdefault(request, request.test())
        self._requested.add((selection, request))
        live = source.followed.live
        await live.settled()
        if live.state is LiveState.DENIED and selection.is_whole and request.namespace:  # it may watch that part of it
            return await self._read(Selection(selection.kind, request.namespace), request, read)
        reads = CachedReads(self._view.api, [live.cache])
        if live.cache.synced.is_set():
            source.was_read = True
            return await read(reads)
        return await self._read_unwatched(source, request, partial(read, reads))

    async def _read_unwatched(self, source: _Source, request: ReadRequest, read: Callable[[], Awaitable[R]]) -> R:
        """Return the answer of the API; that of a short time ago stands for it."""
        at, found = source.answers.get(request, (None, None))
        if at is None or utc_now() - at >= timedelta(seconds=REREAD_S):
            try:
                found = await read()
            except ApiError as error:
                found = error
            source.answers[request] = utc_now(), found
            self._note_age(source)
        if isinstance(found, ApiError):
            raise found
        return cast("R", found)

    def _note_age(self, source: _Source) -> None:
        answers = source.answers.values()
        times = [at for at, found in answers if not isinstance(found, ApiError) or isinstance(found, NotFound)]
        source.followed.read_at = min(times, default=None)
        self._view.note_state()

    # ---- following

    def _selection(self, kind: Kind[T], request: ReadRequest) -> Selection[T]:
        """Return what to follow for the answer to a request."""
        if kind in WHOLE_KINDS:
            part = Selection(kind, request.namespace)
            return part if part in self._followed else Selection(kind)
        if (kind.plural, request.namespace) == (LEASES.plural, NAMESPACE):
            return cast("Selection[T]", LEADER_LEASES)
        if request.name:
            return one_object(kind, request.name, request.namespace)
        return Selection(kind, request.namespace, request.labels, request.fields)

    def _follow(self, selection: Selection[Any]) -> _Source:
        source = self._sources.get(selection)
        if source is None:
            if selection == LEADER_LEASES:
                self._leaders = _leaders()
            source = self._sources[selection] = _Source(FollowedData(self._view.live.of(selection), is_main=False))
            source.end = self._view.subscribe(
                source.followed, partial(self._note, selection, source), partial(self._note_state, source)
            )
        return source

    def _note(self, selection: Selection[Any], source: _Source, old: Any, new: Any) -> None:
        if selection == LEADER_LEASES and not self._leaders.note(cast("Lease | None", old), cast("Lease | None", new)):
            return
        found = [one for one in (old, new) if one is not None]
        if source.was_answered and any(test(one) for test in source.requests.values() for one in found):
            self._changed()

    def _note_state(self, source: _Source) -> None:
        if not source.was_answered:
            return
        if source.followed.live.state is LiveState.DENIED and source.was_read:
            source.was_read = False
            self._lost()
        elif source.followed.live.cache.synced.is_set() and source.answers:
            source.answers.clear()
            self._note_age(source)
        self._changed()

    def _end(self, selection: Selection[Any]) -> None:
        self._sources.pop(selection).end()

    def _close(self) -> None:
        for selection in tuple(self._sources):
            self._end(selection)


def _leaders() -> LeaderTimes:
    return LeaderTimes(None, late_s=LEASE_S, by_observation=True)
