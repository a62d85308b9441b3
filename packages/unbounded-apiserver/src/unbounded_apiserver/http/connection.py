"""One connection: a request starts as soon as it is read.

The HTTP library makes a task for each request and passes it through the event loop, which costs more than most requests
themselves. Here the reader of the socket starts a complete request at once, in the name of the connection's own task.
That task takes the request over only if it has to wait for something.

A head that any connection has read before is not parsed again.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine, Generator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from typing import Any, Final, cast

from aiohttp import HttpVersion10, StreamReader, web
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.http_parser import RawRequestMessage
from aiohttp.http_writer import StreamWriter
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import ERROR, _ErrInfo

from unbounded_apiserver.http.connection_limits import HeadDeadlines, TrackedConnection
from unbounded_apiserver.http.reply import HttpReply
from unbounded_apiserver.http.request_heads import BLANK, HEAD_END, CompleteBody, Framing, HeadCache

LINGER_S: Final = 10.0  # to read the rest of a body that the handler did not read
HOST: Final = re.compile(r"[-A-Za-z0-9!$%&'()*+,.:;=\[\]_~]*")  # as Go checks it
BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
CUT_OFF: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request"
)
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
TEXT: Final = "text/plain; charset=utf-8"
GET: Final = b"GET "  # parsed quickly, and usually for another path than the last

# the client certificate, and the TLS connection that verified it
PeerIdentity = tuple[Mapping[str, Any] | None, ssl.SSLSocket | None]
Completion = tuple[Any, bool]  # the Reply or StreamResponse, and whether the client has disconnected


@dataclass(slots=True)
class _StartedRequest:
    """A started request that waits for something. It is awaited once.

    Args:
        waits_for: the future that it has yielded to its driver; the task that awaits this object waits for it.
    """

    running: Coroutine[Any, Any, Completion]
    waits_for: Any

    def close(self) -> None:
        """Cancel the request before it is awaited."""
        self.running.close()

    def __await__(self) -> Generator[Any, Any, Completion]:
        try:
            while True:
                try:
                    sent = yield self.waits_for
                except BaseException as error:  # usually a cancellation, which only concerns the request
                    self.waits_for = self.running.throw(error)
                else:
                    self.waits_for = self.running.send(sent)
        except StopIteration as ended:
            done: Completion = ended.value
            return done


def _fault(message: RawRequestMessage) -> str:
    """Return the error of a head, '' if it has none."""
    if message.version < HttpVersion10:
        return "malformed HTTP version"
    if "%" in message.path and BAD_ESCAPE.search(message.path.partition("?")[0]):
        return "invalid escape in the path"
    if not HOST.fullmatch(message.headers.get("Host", "")):
        return "malformed Host header"
    return ""


async def _done(done: Completion) -> Completion:
    return done


async def _failed(error: BaseException) -> Completion:
    raise error


class HttpConnection(web.RequestHandler):
    """The HTTP library's connection with another way to start requests.

    Args:
        heads: the cache of heads of all connections of the server.
        deadlines: of all connections of the server.
        tracked: its entry in the limits of the server.
    """

    __slots__ = (
        "_deadlines",
        "_expects_head",
        "_framing",
        "_has_partial",
        "_head_cache",
        "_peer",
        "_started",
        "tracked",
    )

    def __init__(
        self,
        manager: web.Server,
        heads: HeadCache,
        deadlines: HeadDeadlines,
        tracked: TrackedConnection,
        **options: Any,
    ) -> None:
        super().__init__(manager, **options)
        self.tracked = tracked
        self._deadlines = deadlines
        self._expects_head = False
        self._has_partial = False  # of the expected head
        self._started: tuple[_StartedRequest | Coroutine[Any, Any, Completion], StreamReader] | None = (
            None  # for the task to take over
        )
        self._head_cache = heads
        self._peer: PeerIdentity | None = None
        self._framing = Framing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.tracked.drop = cast(asyncio.Transport, transport).abort
        if self.peer[0]:
            self.tracked.authenticate()
        self._expect_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._deadlines.end(self)
        self.tracked.release()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        self._reject_partial()

    def send_continue(self) -> None:
        """Send 100 Continue to a client that waits for it before it sends the body."""
        if self.transport is not None:
            self.transport.write(CONTINUE)

    def _expect_head(self) -> None:
        """Start the time limit for the head of a request."""
        if not self._expects_head:
            self._expects_head = True
            self._deadlines.begin(self, self._expire_head)

    def _expect_rest(self) -> None:
        """Start the time limit for the rest of a head."""
        self._expect_head()
        self._has_partial = True

    def _head_arrived(self) -> None:
        if self._expects_head:
            self._expects_head = self._has_partial = False
            self._deadlines.end(self)

    def _expire_head(self) -> None:
        self._reject_partial()
        self.force_close()

    def _reject_partial(self) -> None:
        """Answer 400 to a client whose request is cut off."""
        if self._has_partial and self.transport is not None:
            self.transport.write(CUT_OFF)

    def data_received(self, data: bytes) -> None:
        idle = self._waiter
        if idle is None or idle.done():
            self._parse(data)
            return
        known = self._find_cached(data) if self._framing.missing == 0 and data[:4] != GET and self._is_free() else None
        if known is not None:
            if not self._begin_request(*known):
                idle.set_result(None)
            return
        self._waiter = None  # a waiter would be woken at once
        try:
            self._parse(data)
        finally:
            self._waiter = idle
        if not self._messages:
            self._expect_rest()
            return
        if not (self._is_simple() and self._begin_request(*self._simple())):
            idle.set_result(None)

    @property
    def peer(self) -> PeerIdentity:
        """The client certificate of the connection: it stays the same for all requests."""
        if self._peer is None:
            transport = self.transport
            if transport is None:
                return None, None
            self._peer = transport.get_extra_info("peercert"), transport.get_extra_info("ssl_object")
        return self._peer

    def _find_cached(self, data: bytes) -> tuple[RawRequestMessage, StreamReader] | None:
        """Return the one request in these bytes, if its head is in the cache."""
        end = data.find(HEAD_END) + len(HEAD_END)
        head = self._head_cache.find(data[:end])
        if head is None or len(data) != end + head.length:
            return None
        self._request_count += 1
        self._head_arrived()
        return head.message, CompleteBody(data[end:]) if head.length else EMPTY_PAYLOAD

    def _parse(self, data: bytes) -> None:
        """Pass bytes to the parser, and track the position within a request."""
        queued, framing = len(self._messages), self._framing
        super().data_received(data)
        read = len(self._messages) - queued
        if read:
            self._head_arrived()
            self._reject_malformed(queued)
        if not data or self._is_one_get(data, read):
            return
        messages = [message for message, _ in islice(self._messages, queued, None)]
        if read == 1 and framing.missing == 0 and not self._upgraded:
            self._cache_head(data, messages[0])
        well_formed = [message for message in messages if not isinstance(message, _ErrInfo)]
        is_followed = len(well_formed) == read and not self._buffer_paused and not self._upgraded
        framing.follow(data, well_formed, all_read=is_followed)

    def _is_one_get(self, data: bytes, read: int) -> bool:
        """Return whether these bytes are exactly one request without a body; most are."""
        if read != 1 or self._framing.missing != 0 or data[:4] != GET or not data.endswith(HEAD_END):
            return False
        message, body = self._messages[-1]
        return body is EMPTY_PAYLOAD and not isinstance(message, _ErrInfo) and not self._upgraded

    def _cache_head(self, data: bytes, message: RawRequestMessage | _ErrInfo) -> None:
        """Cache the head at the beginning of these bytes."""
        if not isinstance(message, _ErrInfo) and data[:1] not in BLANK and data[:4] != GET:
            self._head_cache.add(data[: data.find(HEAD_END) + len(HEAD_END)], message)

    def _reject_malformed(self, queued: int) -> None:
        """Reject new messages that the library's parser accepts and kube-apiserver does not.

        Args:
            queued: the number of older messages.
        """
        for place in range(queued, len(self._messages)):
            message, _ = self._messages[place]
            if not isinstance(message, _ErrInfo) and (why := _fault(message)):
                self._messages[place] = _ErrInfo(400, BadHttpMessage(why), why), EMPTY_PAYLOAD

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> Any:
        """Answer a request that failed before or in its handler, and close the connection."""
        if status != HTTPStatus.BAD_REQUEST:
            return super().handle_error(request, status, exc, message)
        self.log_exception("a request is malformed", exc_info=exc)  # rate-limited: see `connection_log`
        why = (message or "").partition("\n")[0].rstrip(":")
        return HttpReply(f"400 Bad Request: {why}".encode(), TEXT, status, [("Connection", "close")])

    def _is_free(self) -> bool:
        """Return whether the connection is idle."""
        return (
            not self._messages
            and not self._force_close
            and not self._close
            and not self._upgraded
            and not self._buffer_paused
            and asyncio.current_task(self._loop) is None
        )

    def _is_simple(self) -> bool:
        """Return whether exactly one complete request has arrived, and nothing else is running on the connection."""
        message, body = self._messages[0]
        return (
            len(self._messages) == 1
            and body.is_eof()
            and not self._upgraded
            and not isinstance(message, _ErrInfo)
            and not self._force_close
            and asyncio.current_task(self._loop) is None
        )

    def _simple(self) -> tuple[RawRequestMessage | _ErrInfo, StreamReader]:
        """Return the one complete request."""
        message, body = self._next()
        if body is EMPTY_PAYLOAD or body.exception() is not None or self._reading_paused or len(body._buffer) != 1:
            return message, body
        return message, CompleteBody(body._buffer[0])  # reading from a stream would make the parser search for more

    def _begin_request(self, message: RawRequestMessage | _ErrInfo, body: StreamReader) -> bool:
        """Start a request; return whether it is answered already, and the connection waits for another."""
        task = self._task_handler
        running = self._request_coroutine(message, body)
        if task is None:
            raise ConnectionResetError("the connection is lost")
        _enter_task(self._loop, task)
        try:
            self._started = _StartedRequest(running, running.send(None)), body
        except StopIteration as ended:
            response, gone = ended.value
            if response.keep_alive and not gone and body.is_eof() and not self._close and not self._force_close:
                self._wait_for_next()
                return True
            self._started = _done(ended.value), body
        except BaseException as error:
            self._started = _failed(error), body
        finally:
            _leave_task(self._loop, task)
        return False

    def _next(self) -> tuple[RawRequestMessage | _ErrInfo, StreamReader]:
        """Return the next request that the parser has read."""
        message, body = self._messages.popleft()
        if self._parser is not None:
            self._parser.message_consumed()
        if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
            self._resume_reading_if_drained()
        return message, body

    def _request_coroutine(
        self, message: RawRequestMessage | _ErrInfo, body: StreamReader
    ) -> Coroutine[Any, Any, Completion]:
        """Return the coroutine that answers a request."""
        manager, make, handler, task = self._manager, self._request_factory, self._request_handler, self._task_handler
        if manager is None or make is None or handler is None or task is None:
            raise ConnectionResetError("the connection is lost")
        manager.requests_count += 1
        if isinstance(message, _ErrInfo):
            handler, message = self._make_error_handler(message), ERROR
        request = make(message, body, self, StreamWriter(self, self._loop), task)
        return self._handle_request(request, None, handler)

    async def start(self) -> None:
        """Run the connection's task: wait, take over requests that have to wait, and close the connection."""
        try:
            while not self._force_close:
                if self._started is None and not self._messages:
                    await self._idle()
                running, body = self._started or self._taken()
                self._started = None
                if not await self._answered(await running, body):
                    break
        except ConnectionError:
            self.log_debug("the client closed the connection")
        except asyncio.CancelledError:
            self.force_close()
            raise
        except Exception as error:
            self.log_exception("Unhandled exception", exc_info=error)
            self.force_close()
        except BaseException:
            self.force_close()
            raise
        finally:
            self._task_handler = None
            if self._started is not None:
                self._started[0].close()
        if self.transport is not None:
            self.transport.close()

    def _taken(self) -> tuple[Coroutine[Any, Any, Completion], StreamReader]:
        message, body = self._next()
        return self._request_coroutine(message, body), body

    async def finish_response(
        self, request: web.BaseRequest, resp: HttpReply | web.StreamResponse, start_time: float | None
    ) -> Completion:
        """Send an answer, unless it was sent already; return whether the client has disconnected meanwhile."""
        if isinstance(resp, HttpReply):
            if not self._upgraded:
                if (transport := self.transport) is None:
                    return resp, True
                transport.write(resp.encode(request))
                return await self._drained(resp) if self._paused else (resp, False)
            resp = resp.response()  # the library handles an upgrade that the server does not accept
        return await super().finish_response(request, resp, start_time)

    async def _drained(self, reply: HttpReply) -> Completion:
        try:
            await self._drain_helper()
        except ConnectionError:
            return reply, True
        return reply, False

    async def _idle(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def _answered(self, done: Completion, body: StreamReader) -> bool:
        """Finish a request after its answer; return whether the connection stays open."""
        response, gone = done
        if gone:
            return False
        self._keepalive = bool(response.keep_alive)
        if not body.is_eof():
            await self._linger(body)
        if not self._keepalive or self._close or self._force_close:
            return False
        self._wait_for_next()
        return True

    async def _linger(self, body: StreamReader) -> None:
        """Read the rest of a body that the handler did not read, so that the client gets to read the answer."""
        try:
            async with asyncio.timeout(LINGER_S):
                while not body.is_eof() and not self._force_close:
                    await body.readany()
        except TimeoutError:
            self.close()

    def _wait_for_next(self) -> None:
        if self._framing.missing != 0 and not self._messages and self._framing.has_part_of_head():
            self._expect_rest()
        self._keepalive = True
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(self._next_keepalive_close_time, self._process_keepalive)
