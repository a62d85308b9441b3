"""Metrics of a process, in a registry of its own. The name of an object is never a label."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SECONDS: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)


class ControllerMetrics:
    """The metrics of the runtime; components add theirs to `registry`."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.api_calls = Counter(
            "unbounded_api_requests",
            "Requests to the Kubernetes API by answer; code is 0 where no answer came.",
            ("verb", "kind", "code"),
            registry=self.registry,
        )
        self.api_seconds = Histogram(
            "unbounded_api_request_seconds",
            "Duration of requests to the Kubernetes API, except watches.",
            ("verb",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.reconciles = Counter(
            "unbounded_reconciles", "Reconciles by result.", ("controller", "result"), registry=self.registry
        )
        self.reconcile_seconds = Histogram(
            "unbounded_reconcile_seconds",
            "Duration of reconciles.",
            ("controller",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            "unbounded_queue_depth", "Keys that wait for a worker.", ("controller",), registry=self.registry
        )
        self.leading = Gauge(
            "unbounded_leading", "Whether this process is the leader.", ("lease",), registry=self.registry
        )
        self.epoch = Gauge(
            "unbounded_epoch",
            "Number of the leader's term; each new leader, and each start of `unbounded up`, has a higher one.",
            ("lease",),
            registry=self.registry,
        )
        self.events_dropped = Counter(
            "unbounded_events_dropped", "Events for users that were dropped.", registry=self.registry
        )

    def text(self) -> bytes:
        """All of it, as Prometheus scrapes it."""
        return generate_latest(self.registry)
