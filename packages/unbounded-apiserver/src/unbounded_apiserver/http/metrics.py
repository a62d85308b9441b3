"""Metrics of the server for Prometheus.

Request metrics have the names of kube-apiserver's, so that its dashboards work. No name of an object, user or client is
ever a label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec
from msgspec.structs import astuple
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from unbounded_apiserver.journal import Histogram
from unbounded_apiserver.resource_model import Resource
from unbounded_apiserver.store import Store

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
WATCH: Final = "WATCH"
CONNECT: Final = "CONNECT"  # the verb of all requests that a kubelet answers
LONG: Final = frozenset({WATCH, CONNECT})  # their duration depends on the client
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
_OTHER: Final = "other"  # a value that clients invent must not become a label
_REQUEST: Final = ("verb", "group", "version", "resource", "subresource")


class RequestLabels(msgspec.Struct, frozen=True):
    """The labels of a request; empty if it was for no served resource."""

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""


def request_labels(method: str, verb: str, resource: Resource | None, subresource: str) -> RequestLabels:
    """Return the labels of a request. `verb` and `subresource` are used only for a served resource."""
    if resource is None:
        return RequestLabels(method if method in METHODS else _OTHER)
    if subresource in resource.proxied:
        return RequestLabels(CONNECT, resource.group, resource.version, resource.plural, subresource)
    known = not subresource or subresource in resource.changed_by or subresource in resource.transient
    return RequestLabels(
        VERBS.get(verb, _OTHER), resource.group, resource.version, resource.plural, subresource if known else _OTHER
    )


@dataclass
class RequestCounts:
    """The request counters of one server, used in its event loop."""

    reading: int = 0  # running, watches included
    writing: int = 0
    codes: Counter[tuple[RequestLabels, int]] = field(default_factory=Counter)
    durations: dict[RequestLabels, Histogram] = field(default_factory=dict)

    def begin(self, method: str) -> None:
        if method in READING:
            self.reading += 1
        else:
            self.writing += 1

    def end(self, method: str, labels: RequestLabels, code: int, seconds: float) -> None:
        """Count the end of a request, exactly once for each `begin`; `code` is 0 if there was no answer."""
        if method in READING:
            self.reading -= 1
        else:
            self.writing -= 1
        self.codes[labels, code] += 1
        if labels.verb not in LONG:
            histogram = self.durations.get(labels)
            if histogram is None:
                histogram = self.durations[labels] = Histogram()
            histogram.observe(seconds)


@dataclass(frozen=True)
class ConnectionCounts:
    """Counts of clients' connections.

    Args:
        open: at this moment; all others are since the start of the server.
        refused: because the limit was reached.
        dropped: unauthenticated ones, in favour of new connections.
        no_head: because no complete head of a request arrived in time.
    """

    open: int = 0
    refused: int = 0
    dropped: int = 0
    no_head: int = 0


class ApiMetrics(Collector):
    """All metrics of one server, collected on each scrape.

    Args:
        watches: the resources of the open watches, one entry for each.
        streams: the number of requests that kubelets are answering.
        connections: counts of clients' connections.
        certificates: the ends of the server's own certificates.
    """

    def __init__(
        self,
        requests: RequestCounts,
        store: Store,
        *,
        watches: Callable[[], Iterable[Resource]],
        streams: Callable[[], int],
        connections: Callable[[], ConnectionCounts],
        certificates: Mapping[str, datetime],
    ) -> None:
        self._certificates = certificates
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
        expiry = GaugeMetricFamily(
            "unbounded_certificate_expiry_timestamp_seconds",
            "Time at which a certificate of this process expires, by its purpose.",
            labels=("certificate",),
        )
        for name, at in self._certificates.items():
            expiry.add_metric((name,), at.timestamp())
        yield expiry

    def _of_requests(self) -> Iterator[Metric]:
        total = CounterMetricFamily(
            "apiserver_request",
            "Requests by response code; 0 for requests without a response.",
            labels=(*_REQUEST, "code"),
        )
        for (labels, code), count in tuple(self._requests.codes.items()):
            total.add_metric([*astuple(labels), str(code)], count)
        yield total
        took = HistogramMetricFamily(
            "apiserver_request_duration_seconds",
            "Duration of requests, without watches and streams of kubelets.",
            labels=_REQUEST,
        )
        for labels, histogram in tuple(self._requests.durations.items()):
            took.add_metric(astuple(labels), histogram.cumulative(), histogram.seconds)
        yield took

    def _of_connections(self) -> Iterator[Metric]:
        watches = Counter((one.group, one.version, one.plural) for one in self._watches())
        now = GaugeMetricFamily(
            "apiserver_current_inflight_requests", "Requests in progress, without watches.", labels=("request_kind",)
        )
        now.add_metric(("readOnly",), self._requests.reading - watches.total())
        now.add_metric(("mutating",), self._requests.writing)
        yield now
        long = GaugeMetricFamily(
            "apiserver_longrunning_requests", "Open watches.", labels=("verb", "group", "version", "resource")
        )
        for resource, count in watches.items():
            long.add_metric((WATCH, *resource), count)
        yield long
        streams = "Open streams of logs, exec, attach and port-forward from kubelets."
        yield GaugeMetricFamily("unbounded_apiserver_kubelet_streams", streams, self._streams())
        counts = self._connections()
        yield GaugeMetricFamily("unbounded_apiserver_connections", "Open connections.", counts.open)
        closed = CounterMetricFamily(
            "unbounded_apiserver_connections_closed",
            "Connections that the server closed.",
            labels=("reason",),
        )
        for reason, count in (("limit", counts.refused), ("makes_room", counts.dropped), ("no_head", counts.no_head)):
            closed.add_metric((reason,), count)
        yield closed

    def _of_store(self) -> Iterator[Metric]:
        journal, objects = self._store.commits, self._store.objects()
        stored = GaugeMetricFamily("apiserver_storage_objects", "Stored objects.", labels=("resource",))
        for resource, count in objects.items():
            stored.add_metric((resource,), count)
        yield stored
        yield GaugeMetricFamily("unbounded_store_revision", "The newest revision.", self._store.revision)
        yield GaugeMetricFamily(
            "unbounded_store_history_bytes", "Changes that are stored for watches.", self._store.history_bytes
        )
        took = HistogramMetricFamily(
            "unbounded_journal_commit_seconds", "Duration of commits to disk, of writes and of compactions."
        )
        took.add_metric((), journal.durations.cumulative(), journal.durations.seconds)
        yield took
        yield CounterMetricFamily("unbounded_journal_entries", "Writes that are durable.", journal.entries)
        yield CounterMetricFamily("unbounded_journal_failures", "Failed commits.", journal.failures)
