"""HTTPS server of virtual media: streams an image from its parts, in ranges, to the BMC that its URL is for.

All refusals are equal: a client learns neither which boots there are nor why its URL does not work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

from aiohttp import web
from cryptography import x509

from unbounded.kube.http_listener import LimitedHttpServer
from unbounded.kube.logs import Log
from unbounded.kube.rejection_counters import RejectionCounters
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
    """Listening address of a server, its certificate and its limits.

    Args:
        certificate, key: files in PEM; a certificate of the site's CA, which its BMCs trust.
        renewal_s: seconds between two readings of the files, which may be renewed.
        chunk_s: limit on the time in which a client takes a chunk; BMCs are slow, and a stalled one holds a connection.
    """

    certificate: Path
    key: Path
    bind_address: str = "0.0.0.0"  # noqa: S104 - BMCs are on networks of their own
    port: int = 8443
    most_connections: int = 128
    most_connections_of_one: int = 16
    idle_s: float = 60.0
    chunk_s: float = 60.0
    renewal_s: float = 15.0

    def context(self) -> ssl.SSLContext:
        """Read the files.

        Raises:
            OSError: a file cannot be read.
            ssl.SSLError: a file is no certificate or key, or they do not belong together.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context

    def expires(self) -> datetime | None:
        """Return the end of the certificate's validity; None while the file has no readable certificate."""
        try:
            return x509.load_pem_x509_certificate(self.certificate.read_bytes()).not_valid_after_utc
        except (OSError, ValueError):
            return None

    def content(self) -> tuple[bytes, bytes] | None:
        """Return the content of both files; None while one of them cannot be read."""
        try:
            return self.certificate.read_bytes(), self.key.read_bytes()
        except OSError:
            return None


class VirtualMediaServer:
    """Serve the images of `source`; `counts` has the requests that were not served, by reason."""

    def __init__(self, settings: MediaServerSettings, source: MediaSource) -> None:
        self._settings = settings
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
            OSError: the port is taken, or a file cannot be read.
            ssl.SSLError: a file is no certificate or key, or they do not belong together.
        """
        settings = self._settings
        loaded, context = settings.content(), settings.context()
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
        renewal = asyncio.create_task(self._renew(context, loaded), name="certificate of virtual media")
        try:
            yield self
        finally:
            renewal.cancel()
            listener.close()
            connections.pre_shutdown()
            await connections.shutdown(STOP_S)

    async def _renew(self, context: ssl.SSLContext, loaded: tuple[bytes, bytes] | None) -> None:
        """Use the certificate of new files for new connections; keep the former one until both belong together."""
        settings, refused = self._settings, None
        while True:
            await asyncio.sleep(settings.renewal_s)
            found = await asyncio.to_thread(settings.content)
            if found in (loaded, refused, None):
                continue
            try:
                await asyncio.to_thread(settings.context)
                context.load_cert_chain(settings.certificate, settings.key)
            except (OSError, ssl.SSLError) as error:
                refused = found
                log.warning("cannot use the new certificate of virtual media", error=error)
            else:
                loaded, refused = found, None
                log.info("certificate of virtual media renewed")

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
