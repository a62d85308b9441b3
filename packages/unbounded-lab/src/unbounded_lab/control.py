"""Shared parts of the simulators' control interfaces: JSON in, JSON out, and errors with a reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer an invalid name or value with 400 and the reason."""
    try:
        return await handler(request)
    except (ValueError, msgspec.MsgspecError) as error:
        raise web.HTTPBadRequest(text=str(error)) from error


async def read_object(request: web.Request) -> dict[str, Any]:
    """Return the body of a request.

    Raises:
        MsgspecError: it is no JSON object.
    """
    return msgspec.json.decode(await request.read(), type=dict[str, Any])


def json_response(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
