"""Prometheus metrics of the network servers' counters. Reasons are few and our own; clients add none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

Counts = Callable[[], Mapping[str, int]]


class PacketCountersCollector(Collector):
    """Counters of servers that start and stop within a process; their counts remain.

    Args:
        name: of the metric, without `_total`.
    """

    def __init__(self, registry: CollectorRegistry, name: str, text: str) -> None:
        self._name, self._text = name, text
        self._ended: dict[str, int] = {}
        self._counts: Counts | None = None
        registry.register(self)

    def begin(self, counts: Counts) -> None:
        """Follow a new server's counts, which start at zero; the counts of the one before are kept."""
        self._ended = self._sum()
        self._counts = counts

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._text, labels=("result",))
        for result, count in sorted(self._sum().items()):
            family.add_metric((result,), count)
        yield family

    def _sum(self) -> dict[str, int]:
        found = dict(self._ended)
        for result, count in (self._counts() if self._counts else {}).items():
            found[result] = found.get(result, 0) + count
        return found
