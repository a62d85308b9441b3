"""Sending to clients that may read slowly, or not at all."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

QUICK_BYTES: Final = 32 * 1024  # so much goes into the buffers of a connection that takes what it is sent
PART_BYTES: Final = 256 * 1024
STALLED_S: Final = 60.0
SLOWEST_BYTES_S: Final = 64 * 1024


async def send(request: web.BaseRequest, response: web.StreamResponse, data: bytes) -> None:
    """Write a part of a stream. Raises ConnectionResetError, with the connection gone, when it is not taken in time."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has gone")
    if len(data) + transport.get_write_buffer_size() <= QUICK_BYTES:
        await response.write(data)
        return
    try:
        async with asyncio.timeout(_patience_s(len(data))):
            await response.write(data)
    except TimeoutError:
        transport.abort()
        raise ConnectionResetError("the client does not read") from None


async def finish(request: web.BaseRequest, response: web.Response) -> web.StreamResponse:
    """Send a long answer here and now, so that it cannot stay in memory for as long as the client likes.

    What comes back is the answer as aiohttp is to finish it. Raises ConnectionResetError, as `send`.
    """
    body = response.body
    if not isinstance(body, bytes) or len(body) <= QUICK_BYTES:
        return response
    transport = request.transport
    try:
        async with asyncio.timeout(_patience_s(len(body))):
            return (
                await _in_parts(request, response, body) if len(body) > PART_BYTES else await _whole(request, response)
            )
    except TimeoutError:
        if transport is not None:
            transport.abort()
        raise ConnectionResetError("the client does not read") from None


async def _whole(request: web.BaseRequest, response: web.Response) -> web.StreamResponse:
    await response.prepare(request)
    await response.write_eof()
    return response


async def _in_parts(request: web.BaseRequest, response: web.Response, body: bytes) -> web.StreamResponse:
    """A list of many objects shall neither stop all other requests nor stand in memory three times over."""
    sent = web.StreamResponse(status=response.status, headers=response.headers)
    sent.content_length = len(body)
    await sent.prepare(request)
    if request.method != "HEAD":
        whole = memoryview(body)
        for start in range(0, len(whole), PART_BYTES):
            await sent.write(whole[start : start + PART_BYTES])
    await sent.write_eof()
    return sent


def _patience_s(size: int) -> float:
    return STALLED_S + size / SLOWEST_BYTES_S
