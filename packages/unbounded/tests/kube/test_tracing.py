"""Spans: their ids, parents and errors, the header in logs, and the variables that switch traces on."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

import pytest

from tests.support.spans import SpanList
from unbounded.kube import otel
from unbounded.kube.logs import JsonFormatter, Log
from unbounded.kube.process import StartupError, open_tracer, wants_traces
from unbounded.kube.tracing import NO_TRACER, SpanKind, Tracer, span, trace_id, traceparent

UID = "8f6f2c1e-0b5e-4c53-9a1d-0d7c3f1a2b4c"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def test_a_trace_has_the_uid_and_spans_nest_in_stages_and_root() -> None:
    sink = SpanList()
    tracer = Tracer(sink, now_ns=lambda: 10**18)
    get = span("GET /", kind=SpanKind.CLIENT, http_request_method="GET")
    with tracer.within(UID, "WaitingOff"), span("observe"), get as request:
        request.attributes["http.response.status_code"] = 200
    tracer.left_stage(UID, "WaitingOff", 2.5, {})
    tracer.ended(UID, "HostReboot", 999_999_990.0, {"unbounded.operation.kind": "HostReboot"}, None)
    request_span, observe, stage, root = sink.spans
    assert {f"{one.trace_id:032x}" for one in sink.spans} == {UID.replace("-", "")}
    assert [one.parent_id for one in sink.spans] == [observe.span_id, stage.span_id, root.span_id, None]
    assert request_span.attributes == {"http.request.method": "GET", "http.response.status_code": 200}
    assert (stage.end_ns - stage.start_ns, root.end_ns - root.start_ns) == (2_500_000_000, 10_000_000_000)
    assert len({one.span_id for one in sink.spans}) == 4


def test_another_process_continues_the_same_trace() -> None:
    sinks = SpanList(), SpanList()
    for sink in sinks:
        tracer = Tracer(sink)
        with tracer.within(UID, "WaitingOff"), span("observe"):
            pass
        tracer.left_stage(UID, "WaitingOff", 1, {})
        tracer.ended(UID, "HostReboot", 0, {}, None)
    first, second = (sink.spans for sink in sinks)
    assert [one.parent_id for one in first] == [one.parent_id for one in second]
    assert [one.span_id for one in first][1:] == [one.span_id for one in second][1:]
    assert first[0].span_id != second[0].span_id


def test_a_failed_span_has_its_error_and_the_one_around_it_too() -> None:
    sink = SpanList()
    with pytest.raises(OSError, match="broken"), Tracer(sink).within(UID, "s"), span("outer"), span("inner"):
        raise OSError("broken")
    assert [(one.name, one.error) for one in sink.spans] == [("inner", "OSError: broken"), ("outer", "OSError: broken")]


@pytest.mark.parametrize("tracer", [NO_TRACER, Tracer(SpanList(sampled=False))])
def test_nothing_is_recorded_without_a_sink_or_outside_of_the_sample(tracer: Tracer) -> None:
    with tracer.within(UID, "WaitingOff"), span("observe") as opened:
        assert traceparent() is None
        opened.attributes["kept"] = "nowhere"
    tracer.left_stage(UID, "WaitingOff", 1, {})
    tracer.ended(UID, "HostReboot", 0, {}, None)
    with span("outside of all"):
        assert traceparent() is None


def test_a_uid_of_another_form_has_a_trace_too() -> None:
    assert trace_id("Machine attempt-1") == trace_id("Machine attempt-1") != trace_id("Machine attempt-2")
    assert 0 < trace_id("x") < 1 << 128


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    stream, logger = io.StringIO(), logging.getLogger("traced")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    yield stream
    logger.removeHandler(handler)


def test_logs_inside_of_a_span_have_its_header(logged: io.StringIO) -> None:
    log = Log("traced")
    sink = SpanList()
    with Tracer(sink).within(UID, "WaitingOff"), span("observe"):
        log.warning("inside", machine="m1")
    log.warning("outside")
    inside, outside = map(json.loads, logged.getvalue().splitlines())
    assert inside["traceparent"] == f"00-{UID.replace('-', '')}-{sink.spans[0].span_id:016x}-01"
    assert inside["machine"] == "m1"
    assert "traceparent" not in outside


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({ENDPOINT: "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({ENDPOINT: "http://collector:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({ENDPOINT: "http://collector:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({ENDPOINT: " "}, False),
    ],
)
def test_the_variables_of_opentelemetry_switch_traces_on(environ: Mapping[str, str], wanted: bool) -> None:
    assert wants_traces(environ) is wanted


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER: 'zipkin' is not supported; set it to otlp or none"),
        ({ENDPOINT: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "set it to http/protobuf"),
    ],
)
def test_what_is_not_supported_is_named(environ: Mapping[str, str], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        wants_traces(environ)


def test_a_missing_sdk_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "unbounded.kube.otel", None)  # as if it could not be imported
    with (
        pytest.raises(StartupError, match=r"install unbounded\[otel\]"),
        open_tracer({ENDPOINT: "http://c"}, "machina"),
    ):
        pass


@pytest.mark.slow
def test_the_sdk_is_not_imported_without_traces() -> None:
    code = (
        "import sys, unbounded.machina.controller, unbounded.metalman.controller, unbounded.machineops.controller\n"
        "from unbounded.kube.process import open_tracer\n"
        "with open_tracer({}, 'x'): print([one for one in sys.modules if one.startswith('opentelemetry')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


@pytest.mark.slow
def test_a_receiver_that_is_gone_keeps_a_process_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1")
    monkeypatch.setattr(otel, "CLOSE_S", 0.2)
    began = time.monotonic()
    with open_tracer({ENDPOINT: "http://127.0.0.1:1"}, "machina") as tracer:
        tracer.ended(UID, "HostReboot", 0, {}, "failed")
    assert time.monotonic() - began < 20
