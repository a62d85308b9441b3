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
            "Ended attempts to set up a host over SSH, by result: Completed, or the reason of the failure.",
            ("result",),
            registry=registry,
        )
        self._seconds = Histogram(
            "unbounded_provisioning_seconds",
            "Duration of attempts to set up a host over SSH, by success.",
            ("result",),
            buckets=(5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600),
            registry=registry,
        )
        self._probes = Counter("unbounded_ssh_probes", "Probes of SSH ports by result.", ("result",), registry=registry)
        self._running = Gauge("unbounded_provisioning_running", "Hosts in setup over SSH.", registry=registry)

        self._connections = Gauge("unbounded_ssh_connections", "Open logins to hosts and bastions.", registry=registry)

    def attempt_ended(self, failure: str | None, seconds: float) -> None:
        self._attempts.labels(failure or "Completed").inc()
        self._seconds.labels("Failed" if failure else "Completed").observe(seconds)

    def probed(self, result: str) -> None:
        self._probes.labels(result).inc()

    def count_running(self, count: Callable[[], int]) -> None:
        self._running.set_function(count)

    def count_connections(self, count: Callable[[], int]) -> None:
        self._connections.set_function(count)
