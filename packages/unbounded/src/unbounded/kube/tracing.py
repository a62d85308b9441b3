"""Traces of operations: spans, the present one of each task, and the header by which logs refer to it.

The trace of an operation has the operation's UID as its id, from which the ids of its stages follow, too: a process
that resumes the operation adds to the same trace. `otel` sends spans with the SDK of OpenTelemetry. Without a sink
nothing is recorded, and a span costs one read of a context variable.
"""

from __future__ import annotations

import hashlib
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

Value = str | int | float | bool
Attributes = Mapping[str, Value]
_ROOT: Final = "operation"  # what a sampler is asked about
NANOSECONDS: Final = 1_000_000_000


class SpanKind(Enum):
    INTERNAL = "internal"
    CLIENT = "client"  # a call to another system


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A span that has ended.

    Args:
        start_ns: since the epoch.
        error: why it failed; None for a success.
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int | None
    start_ns: int
    end_ns: int
    kind: SpanKind = SpanKind.INTERNAL
    attributes: Attributes = field(default_factory=dict)
    error: str | None = None


class SpanSink(Protocol):
    """The receiver of spans."""

    def is_sampled(self, trace_id: int, name: str) -> bool: ...
    def send(self, span: SpanRecord) -> None: ...


@dataclass(frozen=True, slots=True)
class ActiveSpan:
    """The span of the present task."""

    sink: SpanSink
    trace_id: int
    span_id: int

    @property
    def traceparent(self) -> str:
        """The header of W3C Trace Context."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-01"


_ACTIVE: Final[ContextVar[ActiveSpan | None]] = ContextVar("active span", default=None)


def traceparent() -> str | None:
    """Return the header for the span of the present task; None outside of spans."""
    active = _ACTIVE.get()
    return None if active is None else active.traceparent


class OpenSpan:
    """A span in progress; its attributes may be set until its end."""

    __slots__ = ("attributes", "error")

    def __init__(self, attributes: Attributes) -> None:
        self.attributes = dict(attributes)
        self.error: str | None = None


_UNRECORDED: Final = OpenSpan({})


@contextmanager
def span(name: str, *, kind: SpanKind = SpanKind.INTERNAL, **attributes: Value) -> Iterator[OpenSpan]:
    """Record a part of the present span while inside; outside of spans it records nothing.

    Args:
        attributes: with `_` for `.` in their names.
    """
    parent = _ACTIVE.get()
    if parent is None:
        yield _UNRECORDED
        return
    active = ActiveSpan(parent.sink, parent.trace_id, _new_id())
    opened = OpenSpan({name.replace("_", "."): value for name, value in attributes.items()})
    began_ns, token = time.time_ns(), _ACTIVE.set(active)
    try:
        yield opened
    except GeneratorExit:  # its iteration ended early
        raise
    except BaseException as error:
        opened.error = f"{type(error).__name__}: {error}"
        raise
    finally:
        with suppress(ValueError):  # a generator can be closed in another context
            _ACTIVE.reset(token)
        record = SpanRecord(
            name,
            active.trace_id,
            active.span_id,
            parent.span_id,
            began_ns,
            time.time_ns(),
            kind,
            opened.attributes,
            opened.error,
        )
        active.sink.send(record)


class Tracer:
    """Traces of operations.

    Args:
        sink: None records nothing.
    """

    def __init__(self, sink: SpanSink | None = None, *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._sink = sink
        self._now_ns = now_ns

    @contextmanager
    def within(self, uid: str, stage: str = "") -> Iterator[None]:
        """Let spans and logs belong to an operation, or to a stage of it, while inside."""
        if self._sink is None:
            yield
            return
        trace, parent = trace_id(uid), _stage_id(uid, stage) if stage else _operation_id(uid)
        sampled = self._sink.is_sampled(trace, _ROOT)
        token = _ACTIVE.set(ActiveSpan(self._sink, trace, parent) if sampled else None)
        try:
            yield
        finally:
            _ACTIVE.reset(token)

    def left_stage(self, uid: str, stage: str, seconds: float, attributes: Attributes) -> None:
        """Record a stage that ends now."""
        end_ns = self._now_ns()
        start_ns = end_ns - int(seconds * NANOSECONDS)
        self._send(uid, stage, _stage_id(uid, stage), _operation_id(uid), start_ns, end_ns, attributes, None)

    def ended(self, uid: str, name: str, started: float, attributes: Attributes, error: str | None) -> None:
        """Record an operation that ends now: the root of its trace.

        Args:
            started: seconds since the epoch.
            error: why it failed.
        """
        start_ns = int(started * NANOSECONDS)
        self._send(uid, name, _operation_id(uid), None, start_ns, self._now_ns(), attributes, error)

    def _send(
        self,
        uid: str,
        name: str,
        span_id: int,
        parent_id: int | None,
        start_ns: int,
        end_ns: int,
        attributes: Attributes,
        error: str | None,
    ) -> None:
        if self._sink is None or not self._sink.is_sampled(trace_id(uid), _ROOT):
            return
        self._sink.send(
            SpanRecord(
                name,
                trace_id(uid),
                span_id,
                parent_id,
                max(min(start_ns, end_ns), 0),
                end_ns,
                attributes=attributes,
                error=error,
            )
        )


NO_TRACER: Final = Tracer()


def trace_id(uid: str) -> int:
    """Return the trace's id for a UID: its 16 bytes, or a digest of one in another form."""
    try:
        return uuid.UUID(uid).int
    except ValueError:
        return int.from_bytes(hashlib.sha256(uid.encode()).digest()[:16])


def _operation_id(uid: str) -> int:
    return _digest(f"operation {uid}")


def _stage_id(uid: str, stage: str) -> int:
    return _digest(f"stage {uid} {stage}")


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) or 1


def _new_id() -> int:
    return random.getrandbits(64) or 1
