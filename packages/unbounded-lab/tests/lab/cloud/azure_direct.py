"""Azure's SDK without sockets: its requests are handed to a cloud in the same process, for tests in virtual time.

What goes wrong on the way is raised as the SDK's own transport raises it over a socket; a test holds the two together.
"""

from __future__ import annotations

import asyncio
from http.client import responses
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from azure.core.exceptions import IncompleteReadError, ServiceRequestError, ServiceResponseTimeoutError
from azure.core.pipeline.transport import AsyncHttpTransport
from azure.core.rest import AsyncHttpResponse, HttpRequest
from azure.core.rest._http_response_impl_async import AsyncHttpResponseImpl

from unbounded_lab.cloud.azure import LabAzure
from unbounded_lab.http import Delivery, LabReply, LabRequest


class DirectTransport(AsyncHttpTransport[HttpRequest, AsyncHttpResponse]):
    """For `transport=` of a client. The cloud has to be started."""

    def __init__(self, cloud: LabAzure) -> None:
        self._cloud = cloud
        self._exchanges: set[asyncio.Task[LabReply]] = set()  # they continue when their client has left

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        pass

    async def send(self, request: HttpRequest, **options: Any) -> AsyncHttpResponse:
        exchange = asyncio.create_task(self._cloud.exchange(_received(request)))
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._exchanges.discard)
        try:
            async with asyncio.timeout(options.get("read_timeout", 300)):
                reply = await asyncio.shield(exchange)
        except TimeoutError as error:
            raise ServiceResponseTimeoutError("no answer in time") from error
        if reply.fate is Delivery.DROPPED:
            raise ServiceRequestError("Server disconnected")
        if reply.fate is Delivery.CUT_OFF:
            raise IncompleteReadError("Response payload is not completed")
        return _Response(request, reply)


class _Response(AsyncHttpResponseImpl):
    """One that has been read already, with nothing behind it that would have to be closed."""

    def __init__(self, request: HttpRequest, reply: LabReply) -> None:
        super().__init__(
            request=request,
            internal_response=None,
            status_code=reply.status,
            reason=responses.get(reply.status, ""),
            content_type=reply.headers.get("content-type"),
            headers=dict(reply.headers),
            stream_download_generator=None,
            block_size=4096,
        )
        self._content = reply.body

    async def close(self) -> None:
        self._is_closed = True


def _received(request: HttpRequest) -> LabRequest:
    url = urlsplit(request.url)
    headers = {"host": url.netloc, **{name.lower(): str(value) for name, value in request.headers.items()}}
    body: Any = request.content or b""
    return LabRequest(request.method, url.path, headers, body.encode() if isinstance(body, str) else body, url.query)
