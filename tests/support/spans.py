"""A sink that keeps spans."""

from __future__ import annotations

from unbounded.kube.tracing import SpanRecord


class SpanList:
    """Spans, in the order of their ends."""

    def __init__(self, *, sampled: bool = True) -> None:
        self.spans: list[SpanRecord] = []
        self._sampled = sampled

    def is_sampled(self, trace_id: int, name: str) -> bool:
        return self._sampled

    def send(self, span: SpanRecord) -> None:
        self.spans.append(span)

    def named(self, name: str) -> list[SpanRecord]:
        return [one for one in self.spans if one.name == name]
