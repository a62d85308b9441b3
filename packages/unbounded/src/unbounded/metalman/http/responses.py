"""Answers to clients: conditional and range requests, header fields, and sending within a time limit.

Conditions and ranges (RFC 9110 13 and 14) are evaluated without a connection. Names of Machines and addresses are never
labels of a metric.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime
from typing import Final

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge

from unbounded.kube.rejection_counters import RejectionCounters
from unbounded.metalman.http import response_signing
from unbounded.metalman.http.boot_service import FileRejected, OnDisk, Rendered, ReportAnswer
from unbounded.metalman.http.file_sender import FileSender, SendOutcome

RETRY_AFTER_S: Final = 5
MOST_DIGESTS: Final = 2  # parts of files that are read at once to sign them


class Sender:
    """Sender of answers; `within_s` is the time that a client has to receive a short one.

    Args:
        keys: gives the key that signs answers to requests with a nonce.
    """

    def __init__(
        self,
        file_sender: FileSender,
        metrics: HttpMetrics,
        tally: RejectionCounters,
        within_s: float,
        keys: response_signing.StatementKeySource = response_signing.no_statements,
    ) -> None:
        self._file_sender = file_sender
        self._metrics = metrics
        self._tally = tally
        self._within_s = within_s
        self._keys = keys
        self._digests = response_signing.PartDigests()
        self._digesting = asyncio.Semaphore(MOST_DIGESTS)

    async def short(
        self, request: web.BaseRequest, response: web.Response, sent: bytes | None = None
    ) -> web.StreamResponse:
        """Send an answer that is in memory; abort the connection if the client does not receive it in time.

        Args:
            sent: the body of the request; None if it was not read to its end, and the answer is not signed.

        Raises:
            ConnectionError: the client closed the connection, or it was aborted.
        """
        if sent is not None and isinstance(response.body, bytes | None):
            await self._sign(request, response, sent, hashlib.sha256(response.body or b"").hexdigest())
        try:
            async with asyncio.timeout(self._within_s):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError as error:
            self._cut(request, SendOutcome.SLOW)
            raise ConnectionResetError("the client took too little") from error
        return response

    async def file(
        self, request: web.BaseRequest, client: str, found: OnDisk | Rendered
    ) -> tuple[web.StreamResponse, bool]:
        """Answer a request for a file; return the response and whether the file's end was sent.

        Raises:
            ConnectionError: the client closed the connection, or it was aborted.
        """
        get = request.method == "GET"
        modified = found.modified if isinstance(found, OnDisk) else None
        size = found.size if isinstance(found, OnDisk) else len(found.content)
        decision = decide(conditions(request), get=get, size=size, etag=found.etag, modified=modified)
        code, fields = heading(found, decision)
        if not isinstance(decision, WholeFile | FileRange):
            return await self.short(request, web.Response(status=code, headers=fields), b""), False
        start, stop = (decision.start, decision.stop) if isinstance(decision, FileRange) else (0, size)
        if isinstance(found, Rendered):
            response = web.Response(status=code, headers=fields, body=found.content[start:stop])
            return await self.short(request, response, b""), get and stop == size
        digest = await self._digest(found, start, stop) if get and is_to_be_signed(request) else None
        try:
            file = _opened(found)
        except OSError as error:
            self._tally.count("file unreadable", why=str(error))
            return await self.short(request, retry_later(RETRY_AFTER_S, "not there now"), b""), False
        streamed = web.StreamResponse(status=code, headers=fields)
        streamed.content_length = stop - start
        if digest is not None:
            await self._sign(request, streamed, b"", digest)
        ended = await self._stream(request, client, streamed, file, (start, stop if get else start))
        return streamed, get and ended and stop == size

    async def _sign(self, request: web.BaseRequest, response: web.StreamResponse, sent: bytes, digest: str) -> None:
        key = await self._keys() if is_to_be_signed(request) else None
        if key is None:
            return
        stated = response_signing.statement(
            request.method,
            request.raw_path,
            request.headers[response_signing.NONCE_FIELD],
            sent,
            code=response.status,
            content_range=response.headers.get("Content-Range"),
            digest=digest,
        )
        response.headers[response_signing.STATEMENT_FIELD] = key.sign(stated)

    async def _digest(self, found: OnDisk, start: int, stop: int) -> str | None:
        async with self._digesting:
            return await asyncio.to_thread(self._digests.of, found, start, stop)

    async def _stream(
        self, request: web.BaseRequest, client: str, response: web.StreamResponse, file: int, part: tuple[int, int]
    ) -> bool:
        """Send the head and a part of a file, and close the file; return whether all of it was sent."""
        try:
            async with asyncio.timeout(self._within_s):
                writer = await response.prepare(request)
                if writer is not None:
                    await writer.drain()  # from here on only the file_sender writes to the socket
        except BaseException as error:
            os.close(file)
            if isinstance(error, TimeoutError):
                self._cut(request, SendOutcome.SLOW)
                raise ConnectionResetError("the client took too little") from error
            raise
        start, stop = part
        if start == stop:
            os.close(file)
        elif request.transport is None:
            os.close(file)
            raise ConnectionResetError("the client has gone")
        else:
            sock = request.transport.get_extra_info("socket")
            end, sent = await self._file_sender.send(client, sock, file, start, stop)
            self._metrics.sent_bytes.inc(sent)
            if end is not SendOutcome.DONE:
                self._cut(request, end, source=client)
                raise ConnectionResetError(end.value)
        await response.write_eof()
        return True

    def _cut(self, request: web.BaseRequest, end: SendOutcome, **facts: object) -> None:
        self._metrics.cut.labels(end.value).inc()
        self._tally.count(end.value, **facts)
        if request.transport is not None:
            request.transport.abort()


def is_to_be_signed(request: web.BaseRequest) -> bool:
    return response_signing.NONCE.fullmatch(request.headers.get(response_signing.NONCE_FIELD, "")) is not None


def _opened(found: OnDisk) -> int:
    """Open the file.

    Raises:
        OSError: the file does not exist any more, or is another one.
    """
    file = os.open(found.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    facts = os.fstat(file)
    if stat.S_ISREG(facts.st_mode) and facts.st_size == found.size:
        return file
    os.close(file)
    raise OSError("another file replaced it")


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


NAME: Final = {"Server": "metalman"}
OCTETS: Final = "application/octet-stream"
MEDIA: Final = {".efi": "application/efi"}  # UEFI HTTP boot decides by the media type
# the same for everything that does not exist, is not requested yet, or belongs to another Machine
NOT_FOUND: Final = "not found\n"


def text_response(code: int, text: str, **more: str) -> web.Response:
    """Return an answer with one line of text; `more` are header fields, with `_` for `-`."""
    fields = {name.replace("_", "-"): value for name, value in more.items()}
    return web.Response(status=code, text=text, headers=NAME | fields)


def not_found() -> web.Response:
    return text_response(404, NOT_FOUND)


def rejected(found: FileRejected) -> web.Response:
    """Return the answer to a rejected request; all 404 answers are equal."""
    return not_found() if found.code == 404 else text_response(found.code, f"{found.text}\n")


def retry_later(seconds: int, text: str) -> web.Response:
    """Return a 503 answer with its Retry-After."""
    return text_response(503, f"{text}\n", Retry_After=str(max(seconds, 1)))


def outcome(found: ReportAnswer) -> web.Response:
    """Return the answer to a report."""
    fields = {} if found.retry_after_s is None else {"Retry-After": str(max(found.retry_after_s, 1))}
    body = msgspec.json.encode(found.body)
    return web.Response(status=found.code, body=body, content_type="application/json", headers=NAME | fields)


def conditions(request: web.BaseRequest) -> RequestConditions:
    """Return the conditional header fields of a request for a file."""

    def field(name: str) -> str | None:
        values = request.headers.getall(name, None)
        return None if values is None else ", ".join(values)

    return RequestConditions(
        if_match=field("If-Match"),
        if_unmodified_since=field("If-Unmodified-Since"),
        if_none_match=field("If-None-Match"),
        if_modified_since=field("If-Modified-Since"),
        if_range=field("If-Range"),
        range=field("Range"),
    )


def heading(found: OnDisk | Rendered, decision: Decision) -> tuple[int, dict[str, str]]:
    """Return status and header fields of an answer about a file, without its length."""
    fields = NAME | {"ETag": f'"{found.etag}"', "Cache-Control": "private, no-cache", "Accept-Ranges": "bytes"}
    if isinstance(found, OnDisk):
        fields["Last-Modified"] = formatdate(found.modified, usegmt=True)
    size = found.size if isinstance(found, OnDisk) else len(found.content)
    match decision:
        case NotModified():
            return 304, fields
        case PreconditionFailed():
            return 412, fields
        case RangeNotSatisfiable():
            return 416, fields | {"Content-Range": f"bytes */{size}"}
        case FileRange(start=start, stop=stop):
            fields["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        case WholeFile():
            pass
    media = found.media if isinstance(found, Rendered) else MEDIA.get(found.path.suffix.lower(), OCTETS)
    return 206 if isinstance(decision, FileRange) else 200, fields | {"Content-Type": media}


ETAGS: Final = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
RANGE: Final = re.compile(r"([0-9]{0,18})-([0-9]{0,18})")


@dataclass(frozen=True, slots=True)
class RequestConditions:
    """Conditional header fields of a request; repeated fields are joined by commas."""

    if_match: str | None = None
    if_unmodified_since: str | None = None
    if_none_match: str | None = None
    if_modified_since: str | None = None
    if_range: str | None = None
    range: str | None = None


@dataclass(frozen=True, slots=True)
class WholeFile:
    """200."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """206: the bytes from `start` up to `stop`, exclusive; at least one."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class NotModified:
    """304."""


@dataclass(frozen=True, slots=True)
class PreconditionFailed:
    """412."""


@dataclass(frozen=True, slots=True)
class RangeNotSatisfiable:
    """416."""


Decision = WholeFile | FileRange | NotModified | PreconditionFailed | RangeNotSatisfiable


def decide(conditions: RequestConditions, *, get: bool, size: int, etag: str, modified: float | None) -> Decision:
    """Decide which bytes of a file to send.

    Args:
        get: True for a GET; other methods have no ranges.
        etag: bare and strong.
        modified: in seconds since 1970; None if unknown, as of a text that is generated for this request.
    """
    seconds = None if modified is None else int(modified)  # HTTP dates have a resolution of a second
    if conditions.if_match is not None:
        if not _names(conditions.if_match, etag, weak=False):
            return PreconditionFailed()
    elif (since := _date(conditions.if_unmodified_since)) is not None and seconds is not None and seconds > since:
        return PreconditionFailed()
    if conditions.if_none_match is not None:
        if _names(conditions.if_none_match, etag, weak=True):
            return NotModified()
    elif (since := _date(conditions.if_modified_since)) is not None and seconds is not None and seconds <= since:
        return NotModified()
    if not get or conditions.range is None or not _same(conditions.if_range, etag, seconds):
        return WholeFile()
    return _ranged(conditions.range, size)


def _names(field: str, etag: str, *, weak: bool) -> bool:
    if field.strip() == "*":
        return True
    return any(found[2] == etag and (weak or not found[1]) for found in ETAGS.finditer(field))


def _same(if_range: str | None, etag: str, seconds: int | None) -> bool:
    """Return whether the range belongs to the same version of the file that the client has a part of."""
    if if_range is None:
        return True
    if '"' in if_range:
        found = ETAGS.fullmatch(if_range.strip())
        return found is not None and not found[1] and found[2] == etag
    return seconds is not None and _date(if_range) == seconds


def _ranged(field: str, size: int) -> Decision:
    """Decide on a range. Several ranges, and invalid ones, are answered with the whole file, as RFC 9110 allows."""
    unit, _, ranges = field.partition("=")
    found = RANGE.fullmatch(ranges.strip())
    if unit.strip().lower() != "bytes" or found is None or found[0] == "-":
        return WholeFile()
    if not found[1]:
        start, stop = max(size - int(found[2]), 0), size
    else:
        start, stop = int(found[1]), min(int(found[2]) + 1, size) if found[2] else size
        if found[2] and int(found[2]) < start:
            return WholeFile()
    return FileRange(start, stop) if start < stop else RangeNotSatisfiable()


def _date(field: str | None) -> float | None:
    if field is None:
        return None
    try:
        return parsedate_to_datetime(field).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
