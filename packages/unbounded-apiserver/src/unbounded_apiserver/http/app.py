"""The handler of all requests: authenticate, route, dispatch, and answer errors and health checks."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import HttpVersion11, web

from unbounded.kube.logs import Log
from unbounded_apiserver import status
from unbounded_apiserver.access.impersonation import impersonate
from unbounded_apiserver.access.reviews import Answer
from unbounded_apiserver.access.tokens import DelegatedTokens
from unbounded_apiserver.auth import CLUSTER_INFO, OPEN_PATHS, AuthAttributes, AuthChain
from unbounded_apiserver.http import discovery, metrics, openapi_v2, paths
from unbounded_apiserver.http.api_call import (
    DISCOVERY,
    ApiCall,
    BodyMemory,
    accepts_aggregated,
    negotiate_form,
    read_body,
)
from unbounded_apiserver.http.audit import AuditEntry, is_logged
from unbounded_apiserver.http.extensions import Extension, ExtensionCall, first_segment
from unbounded_apiserver.http.kubelet_client import KubeletClient
from unbounded_apiserver.http.log_limiter import LogLimiter
from unbounded_apiserver.http.openapi import OpenApi
from unbounded_apiserver.http.paths import DiscoveryPath, NoSuchPath, PathRouter
from unbounded_apiserver.http.reply import QUICK_BYTES, HttpReply, finish
from unbounded_apiserver.http.request_heads import RequestHead
from unbounded_apiserver.http.resources import Resources
from unbounded_apiserver.resource_model import ResourcePath
from unbounded_apiserver.server_core import ServerCore
from unbounded_apiserver.status import StatusError

TEXT: Final = "text/plain; charset=utf-8"


Check = Callable[[], str | None]
GZIP_BYTES: Final = 128 * 1024
FAILED_EVERY_S: Final = 1.0
NO_EXTENSIONS: Final[Mapping[str, Extension]] = {}
log = Log(__name__)


class ApiHandler:
    """The request handler of a server."""

    def __init__(
        self,
        core: ServerCore,
        guard: AuthChain,
        version: Mapping[str, str],
        address: Callable[[], str],
        *,
        answers: Mapping[str, Answer],
        note: Callable[[AuditEntry], None],
        kubelets: KubeletClient,
        connections: Callable[[], metrics.ConnectionCounts],
        certificates: Mapping[str, datetime],
        extensions: Mapping[str, Extension] = NO_EXTENSIONS,
        delegated: DelegatedTokens | None = None,
    ) -> None:
        self._core = core
        self._guard = guard
        self._note = note
        self._extensions = extensions
        self._delegated = delegated or DelegatedTokens()
        self._resources = Resources(core, guard, answers, kubelets, note)
        self._openapi = OpenApi(core.catalog)
        self._router = PathRouter(core.catalog)
        self._requests = metrics.RequestCounts()
        self._metrics = metrics.ApiMetrics(
            self._requests,
            core.store,
            watches=self._resources.watches,
            streams=self._resources.streams,
            connections=connections,
            certificates=certificates,
        )
        self._address = address
        self._memory = BodyMemory()
        self._failed = LogLimiter(log.exception, "a request failed", every_s=FAILED_EVERY_S)
        self._plain: Mapping[str, Callable[[ApiCall], HttpReply]] = {
            "/": lambda call: call.answer(msgspec.json.encode(discovery.roots(core.catalog))),
            **health_handlers(lambda: core.store.storage_error),
            "/metrics": lambda call: call.answer(self._metrics.text(), media=metrics.CONTENT_TYPE),
            "/version": lambda call: call.answer(msgspec.json.encode(version)),
            "/openapi/v2": self._openapi_v2,
            "/openapi/v3": lambda call: call.answer(self._openapi.index(), media=TEXT),  # as kube-apiserver does
        }

    def stop(self) -> None:
        """End all watches and all streams from kubelets in good order."""
        self._resources.stop()

    async def handle(self, request: web.BaseRequest) -> HttpReply | web.StreamResponse:
        """Answer one request, errors included, in a form that clients of Kubernetes understand."""
        head = RequestHead.of(request)
        if head.expects and not head.expects_continue:
            return HttpReply(b"", TEXT, HTTPStatus.EXPECTATION_FAILED, keep_alive=False)
        if head.path == "*" and request.method == "OPTIONS":  # a request for the server, without a path
            return HttpReply(b"", TEXT)
        call = ApiCall(request, head, head.query, memory=self._memory)
        code, method, began = 0, request.method, time.perf_counter()
        self._requests.begin(method)
        try:
            response = await self._answered(call)
            code = response.status
        finally:
            call.release()
            self._requests.end(method, _request_labels(call), code, time.perf_counter() - began)
            if is_logged(method, call.attributes, code, impersonates=call.user is not call.sender):
                self._note(call.entry(code))
        if not isinstance(response, HttpReply):
            return response
        quick = len(response.body) <= QUICK_BYTES
        if head.accepts_gzip or quick or method == "HEAD" or request.version < HttpVersion11:
            response.complete()
        if len(response.body) <= QUICK_BYTES:
            return response
        if head.accepts_gzip:
            await _compress(response)
        return await finish(request, response)

    async def _answered(self, call: ApiCall) -> HttpReply | web.StreamResponse:
        request = call.request
        try:
            return await self._dispatch(call)
        except StatusError as error:
            return call.failure(error)
        except NoSuchPath:
            return call.answer(b"404 page not found\n", 404, TEXT)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except RecursionError:
            return call.failure(status.bad_request("the request is nested too deeply"))
        except Exception as error:
            self._failed(method=request.method, path=request.path)
            return call.failure(status.internal(f"{type(error).__name__}"))

    async def _dispatch(self, call: ApiCall) -> HttpReply | web.StreamResponse:
        path = call.head.path
        if not _may_be_anonymous(call, path):
            call.sender = call.user = self._guard.authenticate(call.credentials())
            call.connection.tracked.authenticate()
            if call.head.impersonates:
                call.user = impersonate(call.sender, call.request.headers, self._guard)
        if self._extensions and (extension := self._extensions.get(first_segment(path))) is not None:
            return await self._extended(call, extension)
        try:
            place = self._router.route(path)
        except NoSuchPath:
            call.authorize(self._guard, paths.path_attributes(call.request.method, path))
            raise
        if isinstance(place, ResourcePath):
            return await self._resources.serve(call, place)
        if path not in OPEN_PATHS:
            call.authorize(self._guard, AuthAttributes(call.request.method.lower(), path=path))
        if isinstance(place, DiscoveryPath):
            return self._discover(call, place)
        handler = self._plain.get(path.rstrip("/") or "/")
        if handler is not None:
            if call.request.method not in {"GET", "HEAD"}:
                raise status.method_not_allowed()
            return handler(call)
        if path.startswith("/openapi/v3/"):
            document = self._openapi.document(path.removeprefix("/openapi/v3/"))
            return call.answer(document) if document is not None else call.answer(b"", 404, TEXT)
        raise NoSuchPath

    async def _extended(self, call: ApiCall, extension: Extension) -> HttpReply:
        """Let an extension answer. Its reads are authorized one by one, hence not its path."""
        call.attributes = AuthAttributes(call.request.method.lower(), path=call.head.path)
        body = await read_body(call)
        with self._delegated.lend(call.user) as token:
            return await extension(
                ExtensionCall(
                    call.request.method, call.head.path, call.query, call.request.headers, body, call.user, token
                )
            )

    def _openapi_v2(self, call: ApiCall) -> HttpReply:
        accept = call.head.accept
        if any(media in accept for media in openapi_v2.ACCEPTED):
            return call.answer(self._openapi.v2_protobuf(), media=openapi_v2.MEDIA_TYPE)
        return call.answer(self._openapi.v2())

    def _discover(self, call: ApiCall, listing: DiscoveryPath) -> HttpReply:
        catalog = self._core.catalog
        if call.request.method not in {"GET", "HEAD"}:
            raise status.method_not_allowed()
        accept = call.head.accept
        top = listing.version is None and (listing.group is None or listing.core)
        if top and accepts_aggregated(accept):
            found = discovery.aggregated(catalog, core=listing.core)
            return call.answer(msgspec.json.encode(found), media=DISCOVERY)
        call.form = negotiate_form(accept)
        found = discovery.document(catalog, listing, self._address())
        return call.answer(msgspec.json.encode(found), media="application/json")


def _may_be_anonymous(call: ApiCall, path: str) -> bool:
    """Return whether a request needs no credentials and has none; a bad token is rejected on every path.

    A host that is about to join reads cluster-info anonymously. As in Kubernetes, roles decide whether it may.
    """
    if call.head.authorized:
        return False
    return path in OPEN_PATHS or (path == CLUSTER_INFO and not call.connection.peer[0])


def _request_labels(call: ApiCall) -> metrics.RequestLabels:
    attributes = call.attributes or AuthAttributes("")
    return metrics.request_labels(call.request.method, attributes.verb, call.resource, attributes.subresource)


async def _compress(answer: HttpReply) -> None:
    """Compress a long answer for a client that accepts gzip, in a thread."""
    if len(answer.body) < GZIP_BYTES:
        return
    answer.body = await asyncio.to_thread(partial(gzip.compress, answer.body, 1))
    answer.extra_headers += [("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")]


def health_handlers(storage: Check) -> dict[str, Callable[[ApiCall], HttpReply]]:
    """Return the handlers by path.

    Args:
        storage: returns None while writes can be stored, else the reason. Restarting such a server does not help, so
            that /livez leaves this check out.
    """
    alive: dict[str, Check] = {"ping": lambda: None}
    ready = {**alive, "storage": storage}
    found: dict[str, Callable[[ApiCall], HttpReply]] = {}
    for name, checks in (("healthz", ready), ("livez", alive), ("readyz", ready)):
        found[f"/{name}"] = partial(_all, name, checks)
        found.update({f"/{name}/{one}": partial(_one, check) for one, check in checks.items()})
    return found


def _all(name: str, checks: Mapping[str, Check], call: ApiCall) -> HttpReply:
    """Answer with the state of all checks.

    Reasons are withheld, as anonymous clients may read them; authorized users read a check's reason at its own path.
    """
    excluded = set(call.query.get("exclude", ()))
    failed = False
    lines = []
    for one, check in checks.items():
        if one in excluded:
            lines.append(f"[+]{one} excluded: ok")
        elif check() is None:
            lines.append(f"[+]{one} ok")
        else:
            failed = True
            lines.append(f"[-]{one} failed: reason withheld")
    if unknown := sorted(excluded - checks.keys()):
        quoted = ",".join(f'"{one}"' for one in unknown)
        lines.append(f"warn: some health checks cannot be excluded: no matches for {quoted}")
    if failed:
        return call.answer("\n".join([*lines, f"{name} check failed", ""]).encode(), 500, TEXT)
    if "verbose" in call.query:
        return call.answer("\n".join([*lines, f"{name} check passed", ""]).encode(), media=TEXT)
    return call.answer(b"ok", media=TEXT)


def _one(check: Check, call: ApiCall) -> HttpReply:
    why = check()
    if why is None:
        return call.answer(b"ok", media=TEXT)
    return call.answer(f"internal server error: {why}\n".encode(), 500, TEXT)
