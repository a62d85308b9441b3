"""Shell of the HTTP server: identifies client and target of a request, and sends the answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_exceptions import HTTPException
from prometheus_client import CollectorRegistry

from unbounded.kube.http_listener import LimitedHttpServer
from unbounded.kube.logs import Log
from unbounded.kube.process_tuning import open_files
from unbounded.kube.rejection_counters import RejectionCounters, RepeatFilter
from unbounded.metalman.http import requests, responses
from unbounded.metalman.http.boot_service import BootService, FileRejected, NotReadyYet, ReportAnswer
from unbounded.metalman.http.file_sender import MINIMUM_RATE, TRANSFERS_OF_ONE, FileSender, MinimumRate
from unbounded.metalman.http.response_signing import StatementKeySource, no_statements
from unbounded.metalman.http.responses import RETRY_AFTER_S, HttpMetrics, Sender

LARGEST_BYTES: Final = 1 << 20
REPORTS: Final = {
    requests.HttpRoute.PROGRESS: "a progress",
    requests.HttpRoute.HARDWARE: "a hardware",
    requests.HttpRoute.ERASURE: "an erasure",
    requests.HttpRoute.RESCUE: "a rescue",
}
LARGEST_HARDWARE_BYTES: Final = 256 << 10


FILES_OF_ONE: Final = 3  # open files of a connection during a transfer
SPARE_FILES: Final = 256
BACKLOG: Final = 1024
FIND_S: Final = 10.0
REPORT_S: Final = 60.0  # an attestation calls the API several times
STOP_S: Final = 2.0

log = Log("metalman.http")


@dataclass(frozen=True, slots=True)
class HttpServerSettings:
    """Listening address of a server, its trusted proxies and its limits."""

    bind_address: str = "0.0.0.0"  # noqa: S104 - the reference's default
    port: int = 8880
    trusted_proxies: tuple[requests.Network, ...] = ()  # proxies whose X-Forwarded-For counts
    most_connections: int = 4000
    most_connections_of_one: int = 64
    most_transfers_of_one: int = TRANSFERS_OF_ONE  # further transfers of the client wait for these
    least: MinimumRate = MINIMUM_RATE
    idle_s: float = 30.0  # also limits the arrival of a request's head
    body_s: float = 30.0  # limits the arrival of a request's body, and the sending of a short answer


class HttpServer:
    """Serve the files of `boots`; `counts` has the requests that were not served, by reason.

    Args:
        keys: gives the key that signs answers to the requests that ask for it.
    """

    def __init__(
        self,
        settings: HttpServerSettings,
        boots: BootService,
        registry: CollectorRegistry,
        keys: StatementKeySource = no_statements,
    ) -> None:
        self._settings = settings
        self._boots = boots
        clock = asyncio.get_running_loop().time
        self._tally = RejectionCounters(log, clock, "request not served")
        self._once = RepeatFilter(clock)
        self._metrics = HttpMetrics(registry)
        self._file_sender = FileSender(places_of_one=settings.most_transfers_of_one, least=settings.least)
        self._sender = Sender(self._file_sender, self._metrics, self._tally, settings.body_s, keys)
        self._notifications: set[asyncio.Task[None]] = set()
        self.port = settings.port

    @property
    def counts(self) -> dict[str, int]:
        """Number of requests that were not served, by reason."""
        return dict(self._tally.counts)

    def check(self) -> str | None:
        """Return the error for the process's readiness; None if there is none."""
        return "cannot send files" if self._file_sender.broken else None

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[HttpServer]:
        """Serve inside of the context; its end aborts running transfers.

        Raises:
            OSError: the port is taken, or the address does not belong to this host.
        """
        settings = self._settings
        room = open_files(settings.most_connections * FILES_OF_ONE + SPARE_FILES) - SPARE_FILES
        connections = LimitedHttpServer(
            self._handle,
            self._tally,
            name="metalman",
            most=min(settings.most_connections, room // FILES_OF_ONE),
            most_of_one=settings.most_connections_of_one,
            is_trusted=self._is_trusted,
            keepalive_timeout=settings.idle_s,
            lingering_time=min(settings.body_s, 5.0),
            auto_decompress=False,
        )
        self._metrics.watch(lambda: self._file_sender.open, lambda: connections.count)
        loop = asyncio.get_running_loop()
        async with self._file_sender.running():
            listener = await loop.create_server(connections, settings.bind_address, settings.port, backlog=BACKLOG)
            self.port = listener.sockets[0].getsockname()[1]
            log.info("serving HTTP", port=self.port)
            try:
                yield self
            finally:
                listener.close()
                connections.pre_shutdown()
                self._file_sender.stop()
                await connections.shutdown(STOP_S)
                await self._finish_notifications()

    def _is_trusted(self, peer: str) -> bool:
        found = requests.address(peer)
        return found is not None and any(found in network for network in self._settings.trusted_proxies)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        forwarded = request.headers.getall("X-Forwarded-For", [])
        client = requests.client_of(_peer(request), forwarded, self._settings.trusted_proxies)
        response = await self._answer(request, client)
        self._metrics.requests.labels(response.status).inc()
        return response

    async def _answer(self, request: web.BaseRequest, client: str) -> web.StreamResponse:
        target = requests.parse_target(request.raw_path)
        if target is None:
            self._tally.count("not a name", source=client)
            return await self._sender.short(request, responses.not_found())
        allowed = ("GET", "HEAD") if target.route is requests.HttpRoute.FILE else ("POST",)
        if request.method not in allowed:
            refusal = responses.text_response(405, "method not allowed\n", Allow=", ".join(allowed))
            return await self._sender.short(request, refusal)
        if target.route is requests.HttpRoute.FILE:
            return await self._file(request, client, target)
        most = LARGEST_HARDWARE_BYTES if target.route is requests.HttpRoute.HARDWARE else LARGEST_BYTES
        body = await body_of(request, self._settings.body_s, most)
        if isinstance(body, web.Response):
            return await self._sender.short(request, body)
        return await self._sender.short(request, await self._handle_report(client, target, body), body)

    async def _file(self, request: web.BaseRequest, client: str, target: requests.HttpTarget) -> web.StreamResponse:
        try:
            async with asyncio.timeout(FIND_S):
                found = await self._boots.file(client, target.prefix, target.path)
        except TimeoutError:
            found = NotReadyYet(RETRY_AFTER_S, "not there yet")
        except Exception:
            return await self._sender.short(request, self._internal_error(client, target), b"")
        if isinstance(found, NotReadyYet):
            return await self._sender.short(request, responses.retry_later(found.retry_after_s, found.text), b"")
        if isinstance(found, FileRejected):
            self._tally.count("refused", source=client, path=target.path, why=found.text)
            return await self._sender.short(request, responses.rejected(found), b"")
        response, to_its_end = await self._sender.file(request, client, found)
        if to_its_end:  # in a task, so that the client's next request does not wait for the status write
            task = asyncio.create_task(self._notify_sent(client, target))
            self._notifications.add(task)
            task.add_done_callback(self._notifications.discard)
        return response

    async def _notify_sent(self, client: str, target: requests.HttpTarget) -> None:
        try:
            async with asyncio.timeout(REPORT_S):
                await self._boots.served(client, target.prefix, target.path)
        except Exception:
            self._internal_error(client, target)

    async def _finish_notifications(self) -> None:
        if self._notifications:
            _, late = await asyncio.wait(self._notifications, timeout=STOP_S)
            for task in late:
                task.cancel()

    async def _handle_report(self, client: str, target: requests.HttpTarget, body: bytes) -> web.Response:
        """Pass a report on, and return its answer."""
        try:
            async with asyncio.timeout(REPORT_S):
                return await self._pass_on(client, target, body)
        except TimeoutError:
            return responses.retry_later(RETRY_AFTER_S, "not done in time")
        except Exception:
            return self._internal_error(client, target)

    async def _pass_on(self, client: str, target: requests.HttpTarget, body: bytes) -> web.Response:
        prefix = target.prefix or ""
        match target.route:
            case requests.HttpRoute.ATTEST:
                return responses.outcome(await self._boots.attest(client, prefix, body))
            case requests.HttpRoute.DISABLE:
                return responses.outcome(await self._boots.disable(client, prefix))
            case requests.HttpRoute.CLOUD_INIT:
                event = requests.cloud_init_event(body)
                if event is None:  # cloud-init cannot correct it, and must not fail because of it
                    self._tally.count("not a cloud-init event", source=client)
                    return responses.outcome(ReportAnswer(200, {}))
                return responses.outcome(await self._boots.cloud_init(client, prefix, event))
            case requests.HttpRoute.FILE:
                raise ValueError("this path does not accept POST")
        try:
            report = self._report(client, prefix, target.route, body)
        except ValueError as error:
            return responses.text_response(400, f"not {REPORTS[target.route]} report: {error}\n")
        return responses.outcome(await report)

    def _report(self, client: str, prefix: str, route: requests.HttpRoute, body: bytes) -> Awaitable[ReportAnswer]:
        """Parse a report, and return the call that takes it. Raises ValueError for other content."""
        match route:
            case requests.HttpRoute.PROGRESS:
                return self._boots.progress(client, prefix, requests.progress_report(body))
            case requests.HttpRoute.HARDWARE:
                return self._boots.hardware(client, prefix, requests.hardware_report(body))
            case requests.HttpRoute.ERASURE:
                return self._boots.erasure(client, prefix, requests.erasure_report(body))
            case _:
                return self._boots.rescue(client, prefix, requests.rescue_report(body))

    def _internal_error(self, client: str, target: requests.HttpTarget) -> web.Response:
        """Return the answer to a bug, ours or of `boots`; called while the exception is handled."""
        self._tally.counts["failed"] += 1
        if self._once.allows((target.route, target.path)):  # many hosts request the same path
            log.exception("request failed", source=client, path=target.path)
        return responses.text_response(500, "internal error\n")


def _peer(request: web.BaseRequest) -> str:
    name = request.transport.get_extra_info("peername") if request.transport is not None else None
    return str(name[0]) if name else ""


async def body_of(request: web.BaseRequest, within_s: float, most: int = LARGEST_BYTES) -> bytes | web.Response:
    """Return the body of a request, or an error answer if the body is too large, too slow or unreadable."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        return responses.text_response(415, "content encodings are not supported\n")
    if (request.content_length or 0) > most:
        return responses.text_response(413, "too large\n")
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    content = bytearray()
    try:
        async with asyncio.timeout(within_s):
            while chunk := await request.content.readany():
                content += chunk
                if len(content) > most:
                    return responses.text_response(413, "too large\n")
    except TimeoutError:
        response = responses.text_response(408, "the body did not arrive in time\n")
        response.force_close()
        return response
    except (HttpProcessingError, HTTPException, ValueError, web.RequestPayloadError):
        return responses.text_response(400, "cannot read the body\n")
    return bytes(content)
