"""Reader of request bodies, within limits of size and time."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_exceptions import HTTPException

from unbounded.metalman.http import responses

LARGEST_BYTES: Final = 1 << 20


async def body_of(request: web.BaseRequest, within_s: float) -> bytes | web.Response:
    """Return the body of a request, or an error answer if the body is too large, too slow or unreadable."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        return responses.text_response(415, "content encodings are not supported\n")
    if (request.content_length or 0) > LARGEST_BYTES:
        return responses.text_response(413, "too large\n")
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    content = bytearray()
    try:
        async with asyncio.timeout(within_s):
            while chunk := await request.content.readany():
                content += chunk
                if len(content) > LARGEST_BYTES:
                    return responses.text_response(413, "too large\n")
    except TimeoutError:
        response = responses.text_response(408, "the body did not arrive in time\n")
        response.force_close()
        return response
    except (HttpProcessingError, HTTPException, ValueError, web.RequestPayloadError):
        return responses.text_response(400, "cannot read the body\n")
    return bytes(content)
