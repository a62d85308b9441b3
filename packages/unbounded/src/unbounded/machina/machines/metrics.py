"""Metrics of Machines over SSH. Without names of Machines, so that labels stay few."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class MachineMetrics:
    """Metrics of one process, in its registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        self._attempts = Counter(
            "unbounded_provisioning_attempts",
            "Attempts to set a host up over SSH that ended, by result: Completed, or why they failed.",
            ("result",),
            registry=registry,
        )
        self._seconds = Histogram(
            "unbounded_provisioning_seconds",
            "Duration of attempts to set a host up over SSH, by whether they went well.",
            ("result",),
            buckets=(5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600),
            registry=registry,
        )
        self._probes = Counter(
            "unbounded_ssh_probes", "Looks at SSH ports by what they met.", ("result",), registry=registry
        )
        self._running = Gauge(
            "unbounded_provisioning_running", "Hosts that are being set up over SSH.", registry=registry
        )

        self._connections = Gauge(
            "unbounded_ssh_connections", "Logins that are open, to hosts and to bastions.", registry=registry
        )

    def attempt_ended(self, failure: str | None, seconds: float) -> None:
        self._attempts.labels(failure or "Completed").inc()
        self._seconds.labels("Failed" if failure else "Completed").observe(seconds)

    def probed(self, result: str) -> None:
        self._probes.labels(result).inc()

    def count_running(self, count: Callable[[], int]) -> None:
        self._running.set_function(count)

    def count_connections(self, count: Callable[[], int]) -> None:
        self._connections.set_function(count)
