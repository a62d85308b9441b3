"""Metrics of the HTTP server. Names of Machines and addresses are never labels."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge


class HttpMetrics:
    """Metrics in the registry of a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "unbounded_netboot_http_requests",
            "Requests of booting hosts by answer.",
            ("code",),
            registry=registry,
        )
        self.sent_bytes = Counter(
            "unbounded_netboot_http_sent_bytes", "Bytes of files sent to booting hosts.", registry=registry
        )
        self.cut = Counter(
            "unbounded_netboot_http_cut", "Transfers that did not complete.", ("reason",), registry=registry
        )
        self.transfers = Gauge(
            "unbounded_netboot_http_open_transfers", "Files in transfer to booting hosts.", registry=registry
        )
        self.connections = Gauge(
            "unbounded_netboot_http_open_connections", "Connections of booting hosts.", registry=registry
        )

    def watch(self, transfers: Callable[[], float], connections: Callable[[], float]) -> None:
        """Set the functions that return the gauges' values at each scrape."""
        self.transfers.set_function(transfers)
        self.connections.set_function(connections)
