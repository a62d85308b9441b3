"""Sending answers to clients that may read slowly, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Final

from aiohttp import web

from unbounded_apiserver.http.reply import HttpReply

QUICK_BYTES: Final = 32 * 1024  # the buffers of a connection whose client reads take this many
PART_BYTES: Final = 256 * 1024
STALLED_S: Final = 60.0
SLOWEST_BYTES_S: Final = 64 * 1024

Part = bytes | memoryview


async def send(request: web.BaseRequest, response: web.StreamResponse, data: bytes) -> None:
    """Write a part of a stream.

    Raises:
        ConnectionResetError: the client did not read in time; the connection is closed.
    """
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has gone")
    if len(data) + transport.get_write_buffer_size() <= QUICK_BYTES:
        await response.write(data)
        return
    end = asyncio.get_running_loop().time() + _time_limit_s(len(data))
    await _within(end, request, response.write(data))


async def finish(request: web.BaseRequest, reply: HttpReply) -> web.StreamResponse:
    """Send a long answer at once, so that a slow client cannot keep it in memory.

    Raises ConnectionResetError, as `send`.
    """
    sent = web.StreamResponse(status=reply.status, headers=reply.headers())
    if reply.more_body is None:
        sent.content_length = len(reply.body)
    else:
        sent.enable_chunked_encoding()
    await sent.prepare(request)
    if request.method != "HEAD":
        await _send_parts(request, sent, reply)
    await sent.write_eof()
    return sent


async def _send_parts(request: web.BaseRequest, sent: web.StreamResponse, reply: HttpReply) -> None:
    """Send the parts of an answer. Their time limit covers all parts so far, so that slow reading cannot extend it."""
    size, began = 0, asyncio.get_running_loop().time()
    for part in _parts(reply):
        size += len(part)
        await _within(began + _time_limit_s(size), request, sent.write(part))


async def _within(end: float, request: web.BaseRequest, sending: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout_at(end):
            await sending
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the client does not read") from None


def _parts(reply: HttpReply) -> Iterator[Part]:
    """Yield the answer in parts, so that a long list neither blocks other requests nor is in memory three times."""
    whole = memoryview(reply.body)
    for start in range(0, len(whole), PART_BYTES):
        yield whole[start : start + PART_BYTES]
    yield from reply.more_body or ()


def _time_limit_s(size: int) -> float:
    return STALLED_S + size / SLOWEST_BYTES_S
