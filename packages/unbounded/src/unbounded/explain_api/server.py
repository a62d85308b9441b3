"""The API as a process of its own: listeners, and the credentials of requests.

The process passes the caller's credentials on to the API server, and has none itself. A token crosses the network only
under TLS: without a certificate, the process listens on loopback alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import parse_qs, unquote

from aiohttp import web

from unbounded.explain_api.releases import HEADER
from unbounded.explain_api.service import (
    BODY_BYTES,
    CACHE_CONTROL,
    JSON,
    ExplainService,
    ServedReply,
    ServedRequest,
    rejection,
)
from unbounded.explain_api.statuses import RequestRejected, bad_request
from unbounded.kube.client import HttpApi
from unbounded.kube.config import ClientConfig
from unbounded.kube.credentials import AuthInfo, Impersonation, StaticCredentials
from unbounded.kube.http_listener import LimitedHttpServer
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.rejection_counters import RejectionCounters
from unbounded.kube.serving_certificate import ServingCertificate
from unbounded.kube.settings import Address

AGENT: Final = "unbounded-explain"
CONNECTIONS: Final = 512
CONNECTIONS_OF_ONE: Final = 128  # an ingress is one address
BODY_S: Final = 20.0
KEEPALIVE_S: Final = 60.0
STOP_S: Final = 1.0
BACKLOG: Final = 128
WRITE_BUFFER_BYTES: Final = 64 * 1024
_TOKEN: Final = re.compile(r"[Bb]earer +([A-Za-z0-9._~+/=-]+) *")  # RFC 6750
_EXTRA: Final = "impersonate-extra-"

log = Log(__name__)


class ExplainServer:
    """Listeners of the API.

    Args:
        config: address and authority of the API server. Its credentials are not used.
        metrics: of the process; they count the reads of all callers.
    """

    def __init__(self, config: ClientConfig, metrics: ControllerMetrics) -> None:
        self._config = replace(config, credentials=StaticCredentials(AuthInfo()))
        self._service = ExplainService()
        self._metrics = metrics
        self._tally = RejectionCounters(log, asyncio.get_running_loop().time, "connection not served")

    @contextlib.asynccontextmanager
    async def serving(self, address: Address, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
        """Serve inside of the context; yields the port. Raises OSError."""
        connections = LimitedHttpServer(
            self._handle,
            self._tally,
            name=AGENT,
            most=CONNECTIONS,
            most_of_one=CONNECTIONS_OF_ONE,
            is_trusted=lambda _peer: False,
            write_buffer_bytes=WRITE_BUFFER_BYTES,
            keepalive_timeout=KEEPALIVE_S,
            auto_decompress=False,
            handler_cancellation=True,
        )
        loop = asyncio.get_running_loop()
        host = address.host or None
        listener = await loop.create_server(connections, host, address.port, backlog=BACKLOG, ssl=tls)
        port: int = listener.sockets[0].getsockname()[1]
        log.info("serving explanations", host=address.host or "*", port=port, tls=tls is not None)
        try:
            yield port
        finally:
            listener.close()
            connections.pre_shutdown()
            await connections.shutdown(STOP_S)

    async def serve_tls(self, address: Address, certificate: ServingCertificate) -> None:
        """Serve with a certificate, from when its files exist, until cancelled."""
        async with self.serving(address, await certificate.wait_usable()):
            await certificate.follow()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            login = credentials_of(request)
            served = ServedRequest(
                request.method,
                request.rel_url.raw_path,
                parse_qs(request.rel_url.raw_query_string, keep_blank_values=True),
                request.headers.get(HEADER, ""),
                await _body(request),
                login.token or "",
                partial(self._open_api, login),
            )
        except RequestRejected as rejected:
            return _response(rejection(rejected), keep=rejected.code != 413)
        return _response(await self._service.respond(served))

    def _open_api(self, login: AuthInfo) -> HttpApi:
        config = replace(self._config, credentials=StaticCredentials(login))
        return HttpApi(config, user_agent=AGENT, metrics=self._metrics)


def credentials_of(request: web.BaseRequest) -> AuthInfo:
    """Return the credentials that a request passes on. Raises RequestRejected (401)."""
    given = request.headers.getall("Authorization", [])
    found = _TOKEN.fullmatch(given[0]) if len(given) == 1 else None
    if found is None:
        raise RequestRejected(401, "Unauthorized", "give the bearer token of the API server in header Authorization")
    return AuthInfo(found[1], impersonation=_impersonation(request))


def _impersonation(request: web.BaseRequest) -> Impersonation | None:
    """Return the user that a request is made as; the API server decides whether the caller may."""
    headers = request.headers
    extra = tuple(
        (unquote(name[len(_EXTRA) :]), value) for name, value in headers.items() if name.lower().startswith(_EXTRA)
    )
    user, uid = headers.get("Impersonate-User", ""), headers.get("Impersonate-Uid", "")
    groups = tuple(headers.getall("Impersonate-Group", ()))
    if not user and (uid or groups or extra):
        raise bad_request("header Impersonate-User is missing")
    return Impersonation(user, uid, groups, extra) if user else None


async def _body(request: web.BaseRequest) -> bytes:
    """Return the body. Raises RequestRejected (400, 413)."""
    if (request.content_length or 0) > BODY_BYTES:
        raise RequestRejected(413, "RequestEntityTooLarge", f"the body has more than {BODY_BYTES} bytes")
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise RequestRejected(413, "RequestEntityTooLarge", f"the body has more than {BODY_BYTES} bytes") from error
    except TimeoutError as error:
        raise bad_request("the body did not arrive in time") from error


def _response(reply: ServedReply, *, keep: bool = True) -> web.Response:
    headers = [("Cache-Control", CACHE_CONTROL), *reply.all_headers]
    response = web.Response(body=reply.body, status=reply.code, content_type=JSON, headers=headers)
    if not keep:
        response.force_close()
    return response
