"""Sending to clients that may read slowly, or not at all."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

QUICK_BYTES: Final = 32 * 1024  # so much goes into the buffers of a connection that takes what it is sent
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


async def finish(request: web.BaseRequest, response: web.Response) -> None:
    """Send a long answer here and now, so that it cannot stay in memory for as long as the client likes."""
    if response.body is None or not isinstance(response.body, bytes) or len(response.body) <= QUICK_BYTES:
        return
    transport = request.transport
    try:
        async with asyncio.timeout(_patience_s(len(response.body))):
            await response.prepare(request)
            await response.write_eof()
    except TimeoutError:
        if transport is not None:
            transport.abort()
        raise ConnectionResetError("the client does not read") from None


def _patience_s(size: int) -> float:
    return STALLED_S + size / SLOWEST_BYTES_S
