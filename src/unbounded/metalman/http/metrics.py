"""What the HTTP server counts. No name of a Machine, and no address, is ever a label."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge


class HttpMetrics:
    """Its metrics in the registry of a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "unbounded_netboot_http_requests",
            "Requests of booting hosts by their answer.",
            ("code",),
            registry=registry,
        )
        self.sent_bytes = Counter(
            "unbounded_netboot_http_sent_bytes", "Bytes of files that were sent to booting hosts.", registry=registry
        )
        self.cut = Counter(
            "unbounded_netboot_http_cut", "Transfers that did not come to their end.", ("reason",), registry=registry
        )
        self.transfers = Gauge(
            "unbounded_netboot_http_open_transfers", "Files that are being sent to booting hosts.", registry=registry
        )
        self.connections = Gauge(
            "unbounded_netboot_http_open_connections", "Connections of booting hosts.", registry=registry
        )

    def watch(self, transfers: Callable[[], float], connections: Callable[[], float]) -> None:
        """Show these numbers, as they are when somebody looks."""
        self.transfers.set_function(transfers)
        self.connections.set_function(connections)
