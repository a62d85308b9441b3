"""A receiver of OTLP over HTTP that decodes requests with OpenTelemetry's own protocol buffers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

PROTOBUF = "application/x-protobuf"


@dataclass(frozen=True)
class ReceivedSpan:
    """A span, with the resource that sent it."""

    service: str
    span: Span

    @property
    def trace(self) -> str:
        return self.span.trace_id.hex()

    @property
    def id(self) -> str:
        return self.span.span_id.hex()

    @property
    def parent(self) -> str:
        return self.span.parent_span_id.hex()

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def failed(self) -> bool:
        return bool(self.span.status.code == Status.STATUS_CODE_ERROR)

    @property
    def attributes(self) -> dict[str, str | int]:
        return {
            one.key: one.value.string_value if one.value.HasField("string_value") else one.value.int_value
            for one in self.span.attributes
        }


@dataclass
class OtlpReceiver:
    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)

    def of(self, trace: str) -> list[ReceivedSpan]:
        return [one for one in self.spans if one.trace == trace]

    async def take(self, request: web.Request) -> web.Response:
        assert request.content_type == PROTOBUF
        self.spans += _decoded(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response(body=ExportTraceServiceResponse().SerializeToString(), content_type=PROTOBUF)


def _decoded(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for sent in request.resource_spans:
        (service,) = [one.value.string_value for one in sent.resource.attributes if one.key == "service.name"]
        for scope in sent.scope_spans:
            yield from (ReceivedSpan(service, span) for span in scope.spans)


@asynccontextmanager
async def receiving() -> AsyncIterator[OtlpReceiver]:
    """Serve a receiver on loopback."""
    receiver = OtlpReceiver()
    app = web.Application()
    app.router.add_post("/v1/traces", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield receiver
    finally:
        await runner.cleanup()
