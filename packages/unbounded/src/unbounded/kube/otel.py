"""The sink of spans that sends them over OTLP, with the SDK of OpenTelemetry and its environment variables.

It is the only module that knows the SDK, an extra. The import takes 0.2 s, and happens only where traces are on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from unbounded.kube import tracing

CLOSE_S: Final = 3.0
_SCOPE: Final = InstrumentationScope("unbounded")
_KINDS: Final = {tracing.SpanKind.INTERNAL: SpanKind.INTERNAL, tracing.SpanKind.CLIENT: SpanKind.CLIENT}


class OtlpSink:
    """Spans in batches, sent by a thread of the SDK.

    Args:
        service: the default of OTEL_SERVICE_NAME.
    """

    def __init__(self, service: str) -> None:
        is_named = SERVICE_NAME in OTELResourceDetector().detect().attributes
        self._resource = Resource.create({} if is_named else {SERVICE_NAME: service})
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler  # as OTEL_TRACES_SAMPLER names it
        self._batches = BatchSpanProcessor(OTLPSpanExporter())

    def is_sampled(self, trace_id: int, name: str) -> bool:
        return self._sampler.should_sample(None, trace_id, name).decision is Decision.RECORD_AND_SAMPLE

    def send(self, span: tracing.SpanRecord) -> None:
        status = Status(StatusCode.OK) if span.error is None else Status(StatusCode.ERROR, span.error)
        parent = None if span.parent_id is None else _context(span.trace_id, span.parent_id)
        self._batches.on_end(
            ReadableSpan(
                span.name,
                _context(span.trace_id, span.span_id),
                parent,
                self._resource,
                attributes=span.attributes,
                kind=_KINDS[span.kind],
                instrumentation_scope=_SCOPE,
                status=status,
                start_time=span.start_ns,
                end_time=span.end_ns,
            )
        )

    def close(self) -> None:
        """Send what is left, within CLOSE_S: a receiver that does not answer does not keep the process."""
        thread = threading.Thread(target=self._batches.shutdown, name="last spans", daemon=True)
        thread.start()
        thread.join(CLOSE_S)


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


@contextmanager
def otlp_tracer(service: str) -> Iterator[tracing.Tracer]:
    """Send spans inside of the context, and the rest of them at its end."""
    sink = OtlpSink(service)
    try:
        yield tracing.Tracer(sink)
    finally:
        sink.close()
