"""HTTPS server of virtual media: streams an image from its parts, in ranges, to the BMC that its URL is for.

All refusals are equal: a client learns neither which boots there are nor why its URL does not work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Protocol

from aiohttp import web

from unbounded.kube.http_listener import LimitedHttpServer
from unbounded.kube.logs import Log
from unbounded.kube.rejection_counters import RejectionCounters
from unbounded.kube.serving_certificate import ServingCertificate
from unbounded.metalman.http import responses
from unbounded.metalman.http.responses import FileRange, WholeFile
from unbounded.metalman.media.image import FilePart, MediaImage
from unbounded.metalman.media.tickets import PresentedTicket, presented_ticket

MEDIA_TYPE: Final = "application/octet-stream"
CHUNK_BYTES: Final = 1 << 20
BACKLOG: Final = 128
STOP_S: Final = 2.0

log = Log("metalman.media")


class MediaSource(Protocol):
    async def image(self, client: str, ticket: PresentedTicket) -> MediaImage | None:
        """Return the image that a client may read with a ticket; None if there is none, or the ticket is not valid."""
        ...


@dataclass(frozen=True, slots=True)
class MediaServerSettings:
    """Listening address of a server, and its limits.

    Args:
        chunk_s: limit on the time in which a client takes a chunk; BMCs are slow, and a stalled one holds a connection.
    """

    bind_address: str = "0.0.0.0"  # noqa: S104 - BMCs are on networks of their own
    port: int = 8443
    most_connections: int = 128
    most_connections_of_one: int = 16
    idle_s: float = 60.0
    chunk_s: float = 60.0


class VirtualMediaServer:
    """Serve the images of `source`; `counts` has the requests that were not served, by reason.

    Args:
        certificate: of the site's CA, which its BMCs trust.
    """

    def __init__(self, settings: MediaServerSettings, certificate: ServingCertificate, source: MediaSource) -> None:
        self._settings = settings
        self._certificate = certificate
        self._source = source
        self._tally = RejectionCounters(log, asyncio.get_running_loop().time, "request not served")
        self.port = settings.port

    @property
    def counts(self) -> dict[str, int]:
        """Number of requests that were not served, by reason."""
        return dict(self._tally.counts)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[VirtualMediaServer]:
        """Serve inside of the context; its end aborts running transfers.

        Raises:
            OSError: the port is taken, or the certificate cannot be used.
        """
        settings = self._settings
        context = self._certificate.load()
        connections = LimitedHttpServer(
            self._handle,
            self._tally,
            name="metalman",
            most=settings.most_connections,
            most_of_one=settings.most_connections_of_one,
            is_trusted=lambda _peer: False,
            write_buffer_bytes=CHUNK_BYTES,
            keepalive_timeout=settings.idle_s,
            auto_decompress=False,
        )
        listener = await asyncio.get_running_loop().create_server(
            connections, settings.bind_address, settings.port, backlog=BACKLOG, ssl=context
        )
        self.port = listener.sockets[0].getsockname()[1]
        log.info("serving virtual media", port=self.port)
        renewal = asyncio.create_task(self._certificate.follow(), name="certificate of virtual media")
        try:
            yield self
        finally:
            renewal.cancel()
            listener.close()
            connections.pre_shutdown()
            await connections.shutdown(STOP_S)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        client = _peer(request)
        ticket = presented_ticket(request.raw_path)
        image = None if ticket is None else await self._source.image(client, ticket)
        if image is None:
            self._tally.count("refused", source=client)
            return responses.not_found()
        if request.method not in {"GET", "HEAD"}:
            return responses.text_response(405, "method not allowed\n", Allow="GET, HEAD")
        return await self._send(request, image, client)

    async def _send(self, request: web.BaseRequest, image: MediaImage, client: str) -> web.StreamResponse:
        get = request.method == "GET"
        asked = responses.conditions(request)
        decision = responses.decide(asked, get=get, size=image.size, etag=image.etag, modified=None)
        fields = responses.NAME | {"ETag": f'"{image.etag}"', "Cache-Control": "no-store", "Accept-Ranges": "bytes"}
        match decision:
            case FileRange(start=start, stop=stop):
                code, fields["Content-Range"] = 206, f"bytes {start}-{stop - 1}/{image.size}"
            case WholeFile():
                code, start, stop = 200, 0, image.size
            case responses.RangeNotSatisfiable():
                return web.Response(status=416, headers=fields | {"Content-Range": f"bytes */{image.size}"})
            case responses.NotModified():
                return web.Response(status=304, headers=fields)
            case _:
                return web.Response(status=412, headers=fields)
        response = web.StreamResponse(status=code, headers=fields | {"Content-Type": MEDIA_TYPE})
        response.content_length = stop - start
        await response.prepare(request)
        if get:
            await self._stream(request, response, image, (start, stop), client)
        await response.write_eof()
        return response

    async def _stream(
        self,
        request: web.BaseRequest,
        response: web.StreamResponse,
        image: MediaImage,
        asked: tuple[int, int],
        client: str,
    ) -> None:
        """Send a range; abort the connection where that is not possible, as the head is sent already."""
        try:
            async for chunk in chunks(image, *asked):
                async with asyncio.timeout(self._settings.chunk_s):
                    await response.write(chunk)
        except (OSError, TimeoutError) as error:
            why = "the client took too little" if isinstance(error, TimeoutError) else "a file cannot be read"
            self._tally.count("the client has gone" if isinstance(error, ConnectionError) else why, source=client)
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError(why) from error


def _peer(request: web.BaseRequest) -> str:
    name = request.transport.get_extra_info("peername") if request.transport is not None else None
    return str(name[0]) if name else ""


async def chunks(image: MediaImage, start: int, stop: int) -> AsyncIterator[bytes | memoryview]:
    """Yield the bytes of a range.

    Raises:
        OSError: a file is gone, or another one has replaced it.
    """
    for part, first, last in image.slices(start, stop):
        if isinstance(part, bytes):
            yield memoryview(part)[first:last]
            continue
        file = await asyncio.to_thread(_opened, part)
        try:
            for at in range(first, last, CHUNK_BYTES):
                count = min(CHUNK_BYTES, last - at)
                chunk = await asyncio.to_thread(os.pread, file, count, at)
                if len(chunk) != count:
                    raise OSError("the file has become shorter")
                yield chunk
        finally:
            os.close(file)


def _opened(part: FilePart) -> int:
    file = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    if os.fstat(file).st_size == part.size:
        return file
    os.close(file)
    raise OSError("another file has replaced it")
