"""Sending of answers to a client, each within a time limit."""

from __future__ import annotations

import asyncio
import os
import stat
from typing import Final

from aiohttp import web

from unbounded.metalman.http import responses
from unbounded.metalman.http.conditions import FileRange, WholeFile, decide
from unbounded.metalman.http.file_sender import FileSender, SendOutcome
from unbounded.metalman.http.metrics import HttpMetrics
from unbounded.metalman.http.ports import OnDisk, Rendered
from unbounded.metalman.packet_counters import PacketCounters

RETRY_AFTER_S: Final = 5


class Sender:
    """Sender of answers; `within_s` is the time that a client has to receive a short one."""

    def __init__(self, file_sender: FileSender, metrics: HttpMetrics, tally: PacketCounters, within_s: float) -> None:
        self._file_sender = file_sender
        self._metrics = metrics
        self._tally = tally
        self._within_s = within_s

    async def short(self, request: web.BaseRequest, response: web.Response) -> web.StreamResponse:
        """Send an answer that is in memory; abort the connection if the client does not receive it in time.

        Raises:
            ConnectionError: the client closed the connection, or it was aborted.
        """
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
        decision = decide(responses.conditions(request), get=get, size=size, etag=found.etag, modified=modified)
        code, fields = responses.heading(found, decision)
        if not isinstance(decision, WholeFile | FileRange):
            return await self.short(request, web.Response(status=code, headers=fields)), False
        start, stop = (decision.start, decision.stop) if isinstance(decision, FileRange) else (0, size)
        if isinstance(found, Rendered):
            response = web.Response(status=code, headers=fields, body=found.content[start:stop])
            return await self.short(request, response), get and stop == size
        try:
            file = _opened(found)
        except OSError as error:
            self._tally.count("file unreadable", why=str(error))
            return await self.short(request, responses.retry_later(RETRY_AFTER_S, "not there now")), False
        streamed = web.StreamResponse(status=code, headers=fields)
        streamed.content_length = stop - start
        ended = await self._stream(request, client, streamed, file, (start, stop if get else start))
        return streamed, get and ended and stop == size

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
