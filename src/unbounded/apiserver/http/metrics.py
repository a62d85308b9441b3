"""What the server counts, as Prometheus scrapes it. Requests are named as kube-apiserver names them, so that its
dashboards work; no name of an object, user or client is ever a label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec.structs import astuple
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from unbounded.apiserver.store import Store
from unbounded.apiserver.tally import Tally
from unbounded.apiserver.types import Resource

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
WATCH: Final = "WATCH"
CONNECT: Final = "CONNECT"  # what a kubelet answers, of any verb
LONG: Final = frozenset({WATCH, CONNECT})  # whose duration says nothing of the server
VERBS: Final = {
    "get": "GET",
    "list": "LIST",
    "watch": WATCH,
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETECOLLECTION",
}
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
READING: Final = frozenset({"GET", "HEAD"})
_OTHER: Final = "other"  # what clients make up shall not become a label
_REQUEST: Final = ("verb", "group", "version", "resource", "subresource")


class Asked(msgspec.Struct, frozen=True):
    """What a request was for; empty where it was for no resource that is served."""

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""


def asked_of(method: str, verb: str, resource: Resource | None, subresource: str) -> Asked:
    """The labels of a request. `verb` and `subresource` count for a resource that is served alone."""
    if resource is None:
        return Asked(method if method in METHODS else _OTHER)
    if subresource in resource.proxied:
        return Asked(CONNECT, resource.group, resource.version, resource.plural, subresource)
    known = not subresource or subresource in {"status", "finalize"} or subresource in resource.asked
    return Asked(
        VERBS.get(verb, _OTHER), resource.group, resource.version, resource.plural, subresource if known else _OTHER
    )


@dataclass
class Requests:
    """The requests of one server, counted in its event loop."""

    reading: int = 0  # under way, watches included
    writing: int = 0
    codes: Counter[tuple[Asked, int]] = field(default_factory=Counter)
    took: dict[Asked, Tally] = field(default_factory=dict)

    def begin(self, method: str) -> None:
        if method in READING:
            self.reading += 1
        else:
            self.writing += 1

    def end(self, method: str, asked: Asked, code: int, seconds: float) -> None:
        """Exactly once for each `begin`; `code` is 0 where nothing was answered."""
        if method in READING:
            self.reading -= 1
        else:
            self.writing -= 1
        self.codes[asked, code] += 1
        if asked.verb not in LONG:
            tally = self.took.get(asked)
            if tally is None:
                tally = self.took[asked] = Tally()
            tally.add(seconds)


@dataclass(frozen=True)
class ConnectionCounts:
    """Connections of clients.

    Args:
        open: at this moment; all others since the start of the server.
        refused: as all places were taken.
        dropped: so that a newcomer has a place; their clients had not authenticated.
        no_head: as no whole head of a request came in time.
    """

    open: int = 0
    refused: int = 0
    dropped: int = 0
    no_head: int = 0


class Metrics(Collector):
    """All that one server has to tell, put together when it is asked for.

    Args:
        watches: the resources of the watches that are open, one entry for each.
        streams: how many requests kubelets are answering.
        connections: of clients, at this moment.
    """

    def __init__(
        self,
        requests: Requests,
        store: Store,
        *,
        watches: Callable[[], Iterable[Resource]],
        streams: Callable[[], int],
        connections: Callable[[], ConnectionCounts],
    ) -> None:
        self._requests = requests
        self._store = store
        self._watches = watches
        self._streams = streams
        self._connections = connections
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._of_requests()
        yield from self._of_connections()
        yield from self._of_store()

    def _of_requests(self) -> Iterator[Metric]:
        total = CounterMetricFamily(
            "apiserver_request", "Requests by their answer; code is 0 where none was given.", labels=(*_REQUEST, "code")
        )
        for (asked, code), count in tuple(self._requests.codes.items()):
            total.add_metric([*astuple(asked), str(code)], count)
        yield total
        took = HistogramMetricFamily(
            "apiserver_request_duration_seconds",
            "Duration of requests, but of watches and of what kubelets answer.",
            labels=_REQUEST,
        )
        for asked, tally in tuple(self._requests.took.items()):
            took.add_metric(astuple(asked), tally.cumulative(), tally.seconds)
        yield took

    def _of_connections(self) -> Iterator[Metric]:
        watches = Counter((one.group, one.version, one.plural) for one in self._watches())
        now = GaugeMetricFamily(
            "apiserver_current_inflight_requests", "Requests under way, watches apart.", labels=("request_kind",)
        )
        now.add_metric(("readOnly",), self._requests.reading - watches.total())
        now.add_metric(("mutating",), self._requests.writing)
        yield now
        long = GaugeMetricFamily(
            "apiserver_longrunning_requests", "Watches that are open.", labels=("verb", "group", "version", "resource")
        )
        for resource, count in watches.items():
            long.add_metric((WATCH, *resource), count)
        yield long
        streams = "Logs, exec, attach and port-forward that kubelets are answering."
        yield GaugeMetricFamily("unbounded_apiserver_kubelet_streams", streams, self._streams())
        counts = self._connections()
        yield GaugeMetricFamily("unbounded_apiserver_connections", "Connections that are open.", counts.open)
        closed = CounterMetricFamily(
            "unbounded_apiserver_connections_closed",
            "Connections that the server closed by itself.",
            labels=("reason",),
        )
        for reason, count in (("limit", counts.refused), ("makes_room", counts.dropped), ("no_head", counts.no_head)):
            closed.add_metric((reason,), count)
        yield closed

    def _of_store(self) -> Iterator[Metric]:
        journal, objects = self._store.commits, self._store.objects()
        stored = GaugeMetricFamily("apiserver_storage_objects", "Objects that are stored.", labels=("resource",))
        for resource, count in objects.items():
            stored.add_metric((resource,), count)
        yield stored
        yield GaugeMetricFamily("unbounded_store_revision", "The newest revision.", self._store.revision)
        yield GaugeMetricFamily(
            "unbounded_store_history_bytes", "Changes that are kept for watches.", self._store.history_bytes
        )
        took = HistogramMetricFamily(
            "unbounded_journal_commit_seconds", "Duration of commits to disk, of writes and of compactions."
        )
        took.add_metric((), journal.took.cumulative(), journal.took.seconds)
        yield took
        yield CounterMetricFamily("unbounded_journal_entries", "Writes that were made durable.", journal.entries)
        yield CounterMetricFamily("unbounded_journal_failures", "Commits that failed.", journal.failures)
