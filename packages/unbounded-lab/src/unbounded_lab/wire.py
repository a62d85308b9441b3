"""HTTP on the wire: delivery of a simulator's replies with aiohttp."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from unbounded_lab.http import Delivery, LabReply


def server(handler: Any) -> web.Server:
    return web.Server(handler, access_log=None, tcp_keepalive=False, lingering_time=0.0)


async def send(http: web.BaseRequest, reply: LabReply) -> web.StreamResponse:
    match reply.fate:
        case Delivery.DROPPED:
            return hang_up(http)
        case Delivery.CUT_OFF:
            return await _send_half(http, reply)
        case Delivery.SENT:
            response = web.Response(status=reply.status, body=reply.body, headers=reply.headers)
            if reply.close:
                response.force_close()
            return response


def hang_up(http: web.BaseRequest) -> web.StreamResponse:
    """Break the connection; the returned response is not sent."""
    if http.transport is not None:
        http.transport.abort()
    return web.Response()


async def _send_half(http: web.BaseRequest, reply: LabReply) -> web.StreamResponse:
    response = web.StreamResponse(status=reply.status, headers=reply.headers)
    response.content_length = len(reply.body)
    await response.prepare(http)
    await response.write(reply.body[: len(reply.body) // 2])
    if http.transport is not None:
        http.transport.close()
    return response
