"""`HttpApi`: the API port over HTTP, to kube-apiserver or to the embedded server."""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec

from unbounded.api.core import LEASES, PODS, SERVICE_ACCOUNTS, TOKEN_REQUESTS, VERSION_INFO
from unbounded.api.meta import Kind
from unbounded.kube import api, object_codec
from unbounded.kube.clock import utc_now
from unbounded.kube.config import ClientConfig
from unbounded.kube.credentials import REREAD_S, AuthInfo, IssuedToken
from unbounded.kube.http_pool import HttpAddress, HttpPool, HttpResponse, NotConnected, split_server
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.tls import ClientCertificate, client_context

T = TypeVar("T")

CALL_S: Final = 30.0  # limit of one request with its answer
# A watch that is silent for longer may be half open. A server sends a bookmark about every minute, but promises none:
# kube-apiserver leaves out one now and then.
SILENCE_S: Final = 100.0
WATCH_S: Final = (300, 600)  # the server is requested to end a watch after a time between these
PAGE: Final = 500
# for requests, at 75 to 125 KiB each, for which more are no faster; watches have connections of their own
CONNECTIONS: Final = 24
BUSY_WAIT_S: Final = 1.0  # if the server sends no Retry-After
BUSY_LEAST_S: Final = 0.05  # if the server sends Retry-After: 0
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"  # JSON is YAML
_PATH_SIGNS: Final = "/:@!$&'()*+,;="  # beside letters, digits and those that `quote` never changes
_PLAIN_PATH: Final = re.compile(rf"[a-zA-Z0-9_.~{re.escape(_PATH_SIGNS)}-]*")
_TOKEN_REQUEST: Final = {"apiVersion": TOKEN_REQUESTS.api_version, "kind": TOKEN_REQUESTS.kind, "spec": {}}
TRANSPORT_ERRORS: Final = (aiohttp.ClientError, OSError)  # of transport; TimeoutError and SSLError are OSErrors


@dataclass
class _Request(Generic[T]):
    """One request, and how far it came."""

    verb: str
    kind: Kind[T]
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "application/json"
    sent: bool = False  # whether the server may have seen it

    def note_sent(self) -> None:
        self.sent = True

    @property
    def writing(self) -> bool:
        return self.method != "GET"

    @property
    def what(self) -> str:
        return f"{self.verb} {self.path}"


class HttpApi:
    """An `unbounded.kube.api.Api` over HTTP/1.1; an async context manager that closes its connections.

    Args:
        call_s: limit of each call (of each page of a list), waiting for a busy server included.
        silence_s: a watch without data for about this long ends, as its connection may be half open.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        user_agent: str = "unbounded",
        metrics: ControllerMetrics | None = None,
        call_s: float = CALL_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.config = config
        metrics = metrics or ControllerMetrics()
        self._calls = cache(metrics.api_calls.labels)  # finding a child by its labels costs as much as a header
        self._seconds = cache(metrics.api_seconds.labels)
        self._call_s = call_s
        self._silence_s = silence_s
        self._headers = [
            ("User-Agent", user_agent),
            ("Accept", "application/json"),
            ("Accept-Encoding", "gzip, deflate"),
        ]
        self._addresses: dict[tuple[bytes | None, ClientCertificate | None], HttpAddress] = {}
        self._ca, self._ca_read_at = config.ca, -math.inf
        self._pool = HttpPool()
        self._free = asyncio.Semaphore(CONNECTIONS)
        self._date = ""
        self._began: datetime | None = None  # the server's time when this process's clock was at zero

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._pool.close()

    # ---- the port

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T:
        request = _Request("get", kind, "GET", _object_path(kind, name, namespace))
        return object_codec.decode(kind, await self._call(request))

    async def list(
        self, kind: Kind[T], *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> api.ObjectList[T]:
        query = _selection(labels, fields) | {"limit": str(PAGE)}
        items: list[T] = []
        while True:
            request = _Request("list", kind, "GET", _collection_path(kind, namespace), query)
            page, meta = object_codec.decode_page(kind, await self._call(request))
            items += page
            if not meta.next_page:
                return api.ObjectList(tuple(items), meta.resource_version)
            query = query | {"continue": meta.next_page}

    async def watch(
        self,
        kind: Kind[T],
        *,
        resource_version: str,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        opened: Callable[[], None] | None = None,
    ) -> AsyncIterator[api.WatchEvent[T]]:
        """As the port has it. `opened` is called once the server has accepted the watch; an event may come later."""
        query = _selection(labels, fields) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*WATCH_S)),  # noqa: S311  # spreads reconnects, guards nothing
        }
        if resource_version:
            query["resourceVersion"] = resource_version
        else:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        request = _Request("watch", kind, "GET", _collection_path(kind, namespace), query)
        silence_s = self._silence_s * random.uniform(0.8, 1.2)  # noqa: S311  # as above
        lines = object_codec.LineSplitter()
        async with self._open(request, silence_s) as response:
            if opened is not None:
                opened()
            try:
                async for chunk in response.parts():
                    for line in lines.feed(chunk):
                        event = object_codec.decode_frame(kind, line)
                        if event is not None:
                            yield event
            except aiohttp.SocketTimeoutError:
                return  # the next watch shows whether the server is there

    async def create(
        self,
        kind: Kind[T],
        body: Mapping[str, Any],
        *,
        namespace: str = "",
        manager: str = "",
        dry_run: bool = False,
        limit_s: float | None = None,
    ) -> T:
        """As the port has it. `manager` owns the fields, in place of the User-Agent; a dry run writes nothing.

        Args:
            limit_s: of this call, in place of `call_s`.
        """
        namespace = namespace or str((body.get("metadata") or {}).get("namespace") or "")
        full = {**body, "apiVersion": kind.api_version, "kind": kind.kind}
        path = _collection_path(kind, namespace)
        query = _options(manager, dry_run=dry_run)
        request = _Request("create", kind, "POST", path, query, _encode(full))
        return _written(request, await self._call(request, limit_s))

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: Mapping[str, Any],
        *,
        namespace: str = "",
        subresource: str = "",
        manager: str = "",
        dry_run: bool = False,
    ) -> T:
        """As the port has it, and `manager` and `dry_run` as `create` has them."""
        path = _object_path(kind, name, namespace, subresource)
        query = _options(manager, dry_run=dry_run)
        content_type = STRATEGIC_PATCH if isinstance(patch, api.StrategicMerge) else MERGE_PATCH
        request = _Request("patch", kind, "PATCH", path, query, _encode(patch), content_type)
        return _written(request, await self._call(request))

    async def apply(
        self, kind: Kind[T], body: Mapping[str, Any], *, manager: str, force: bool = False, dry_run: bool = False
    ) -> T:
        """Apply an object on the server side: set these fields, and make `manager` their owner. The object may be new.

        The server removes fields that `manager` applied before and that `body` no longer has.

        Args:
            body: plain JSON with metadata.name (and namespace); apiVersion and kind are filled in.
            force: take over fields of other owners, instead of a Conflict.
            dry_run: return the result, and write nothing.
        """
        meta = body["metadata"]
        full = {**body, "apiVersion": kind.api_version, "kind": kind.kind}
        path = _object_path(kind, meta["name"], str(meta.get("namespace") or ""))
        query = _options(manager, dry_run=dry_run) | ({"force": "true"} if force else {})
        request = _Request("apply", kind, "PATCH", path, query, _encode(full), APPLY_PATCH)
        return _written(request, await self._call(request))

    async def delete(
        self, kind: Kind[T], name: str, *, namespace: str = "", uid: str = "", resource_version: str = ""
    ) -> None:
        given = {"uid": uid, "resourceVersion": resource_version}
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {name: value for name, value in given.items() if value},
        }
        path = _object_path(kind, name, namespace)
        await self._call(_Request("delete", kind, "DELETE", path, body=_encode(options)))

    async def token(self, account: str, *, namespace: str) -> IssuedToken:
        """A token of a service account (TokenRequest), good for this API and for as long as the server likes."""
        path = _object_path(SERVICE_ACCOUNTS, account, namespace, "token")
        request = _Request("create", TOKEN_REQUESTS, "POST", path, body=_encode(_TOKEN_REQUEST))
        status = _written(request, await self._call(request)).status
        return IssuedToken(status.token, status.expiration_timestamp)

    async def pod_log(
        self, pod: str, *, namespace: str, container: str, lines: int, most_bytes: int, previous: bool = False
    ) -> bytes:
        """Return the last lines of a container's log.

        Args:
            most_bytes: more of these lines are left out, from their end.
            previous: the log of the instance before the last restart.
        """
        query = {"container": container, "tailLines": str(lines), "limitBytes": str(most_bytes)}
        path = _object_path(PODS, pod, namespace, "log")
        return await self._call(_Request("get", PODS, "GET", path, query | ({"previous": "true"} if previous else {})))

    def now(self) -> datetime:
        """Return the server's time, from its last answer and this process's clock; this host's time before the first
        answer.

        The ages of the server's timestamps are right even if this host's clock is wrong.
        """
        if self._began is None:
            return utc_now()
        return self._began + timedelta(seconds=asyncio.get_running_loop().time())

    async def version(self) -> str:
        """The version of Kubernetes that the server is, such as v1.34.0."""
        info = object_codec.decode(VERSION_INFO, await self._call(_Request("get", VERSION_INFO, "GET", "/version")))
        return info.git_version

    # ---- one request

    async def _call(self, request: _Request[Any], limit_s: float | None = None) -> bytes:
        """Return the body of a successful answer; retry while the server is busy, within the call's limit."""
        limit_s = self._call_s if limit_s is None else limit_s
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            while True:
                try:
                    return await self._exchange(request, limit_s - (loop.time() - began))
                except api.ServerBusy as busy:
                    asked_s = BUSY_WAIT_S if busy.retry_after_s is None else busy.retry_after_s
                    wait_s = max(asked_s, BUSY_LEAST_S) * random.uniform(1.0, 1.2)  # noqa: S311  # jitter
                    if loop.time() - began + wait_s >= limit_s:
                        raise
                    await asyncio.sleep(wait_s)
        finally:
            self._seconds(request.verb).observe(loop.time() - began)

    async def _exchange(self, request: _Request[Any], limit_s: float) -> bytes:
        """One request and its whole answer, on one of the connections for calls; watches have theirs besides."""
        request.sent = False
        try:
            async with asyncio.timeout(limit_s), self._turn(request):
                response = await self._head(request)
                try:
                    return await response.read()
                finally:
                    response.release()
        except TRANSPORT_ERRORS as error:
            raise _lost(request, error) from _cause(error)

    def _turn(self, request: _Request[Any]) -> AbstractAsyncContextManager[object]:
        """A place among the connections. A Lease that waited behind a crowd of writes would be lost by their number."""
        return nullcontext() if request.kind.plural == LEASES.plural else self._free

    @asynccontextmanager
    async def _open(self, request: _Request[Any], silence_s: float) -> AsyncIterator[HttpResponse]:
        """The successful answer to a watch, its body unread and without an end."""
        try:
            async with asyncio.timeout(self._call_s):
                response = await self._head(request, silence_s)
            try:
                yield response
            finally:
                response.close()
        except TRANSPORT_ERRORS as error:
            raise _lost(request, error) from _cause(error)

    async def _head(self, request: _Request[Any], silence_s: float | None = None) -> HttpResponse:
        """The head of a successful answer; a refused login is renewed once."""
        response, login = await self._send(request, silence_s)
        if response.status == 401 and self.config.credentials.refused(login):
            response.close()
            response, _ = await self._send(request, silence_s)
        if response.status < 300:
            return response
        try:
            raise _rejection(request, response, await response.read())
        finally:
            response.release()

    async def _send(self, request: _Request[Any], silence_s: float | None) -> tuple[HttpResponse, AuthInfo]:
        code = 0
        request.sent = False
        try:
            login = await self.config.credentials.login()
            address = self._address(login.certificate)
            response = await self._pool.request(
                address,
                request.method,
                _target(self.config.server, request),
                [*self._headers, *login.headers(), *_content_type(request)],
                request.body,
                silence_s=silence_s,
                on_send=request.note_sent,
            )
            code = response.status
            self._note_date(response.headers.get("Date", ""))
            return response, login
        finally:
            self._calls(request.verb, request.kind.plural, str(code)).inc()

    def _note_date(self, date: str) -> None:
        """Take note of the server's time, once a second."""
        if date == self._date:
            return
        self._date = date
        with suppress(ValueError):
            self._began = parsedate_to_datetime(date) - timedelta(seconds=asyncio.get_running_loop().time())

    def _address(self, certificate: ClientCertificate | None) -> HttpAddress:
        """Return the server's address, with the TLS context of a login."""
        key = (self._authority(), certificate)
        if key not in self._addresses:
            self._addresses.clear()  # a renewed certificate takes the place of the one before
            host, port, _path = split_server(self.config.server)
            context = replace(self.config, ca=self._ca).ssl_context(certificate)
            self._addresses[key] = HttpAddress(host, port, context, self.config.tls_server_name)
        return self._addresses[key]

    def _authority(self) -> bytes | None:
        """Return the server's certificate authority. Its file is read again from time to time, as token files are."""
        file, now = self.config.ca_file, asyncio.get_running_loop().time()
        if file is not None and now - self._ca_read_at > REREAD_S:
            self._ca_read_at = now
            with suppress(OSError):  # the former one counts while there is no other, whole one; SSLError is an OSError
                found = file.read_bytes()
                if found != self._ca:
                    client_context(ca=found)
                    self._ca = found
        return self._ca


def _object_path(kind: Kind[Any], name: str, namespace: str, subresource: str = "") -> str:
    """Return the path of one object.

    Raises:
        NotFound: no object can have the name; it would lead to another resource, or to the whole collection if empty.
    """
    if not name:
        raise api.NotFound(f"{kind.plural}: metadata.name is empty")
    _check_segment(kind, "name", name)
    _check_segment(kind, "namespace", namespace)
    return kind.path(name, namespace=namespace, subresource=subresource)


def _collection_path(kind: Kind[Any], namespace: str) -> str:
    """Return the path of the objects of a kind. Raises NotFound for a namespace that would lead elsewhere."""
    _check_segment(kind, "namespace", namespace)
    return kind.path(namespace=namespace)


def _check_segment(kind: Kind[Any], what: str, text: str) -> None:
    if text in (".", "..") or "/" in text or "%" in text:
        raise api.NotFound(f"{kind.plural}: metadata.{what} is {text!r}: expected none of '.', '..', '/' and '%'")


def _target(server: str, request: _Request[Any]) -> str:
    path = split_server(server)[2] + request.path
    if _PLAIN_PATH.fullmatch(path) is None:
        path = quote(path, safe=_PATH_SIGNS)
    return f"{path}?{urlencode(request.query, quote_via=quote)}" if request.query else path


def _content_type(request: _Request[Any]) -> tuple[tuple[str, str], ...]:
    return () if request.body is None else (("Content-Type", request.content_type),)


def _written(request: _Request[T], answer: bytes) -> T:
    """The object that a write came to; the write was done even if its answer makes no sense."""
    try:
        return object_codec.decode(request.kind, answer)
    except api.ReadFailed as error:
        raise api.ResponseLost(f"{request.what}: {error}") from error


def _lost(request: _Request[Any], error: Exception) -> api.ApiError:
    why = _describe(error)
    if not request.sent:
        return api.ServerUnreachable(f"{request.what}: {why}")
    return (api.ResponseLost if request.writing else api.ReadFailed)(f"{request.what}: {why}")


def _describe(error: Exception) -> str:
    """Describe a transport error in a few words."""
    if isinstance(error, NotConnected):
        cause, address = error.cause, error.address
        why = "refused" if isinstance(cause, ConnectionRefusedError) else getattr(cause, "strerror", None)
        return f"no connection to {address.host}:{address.port}: {why or _describe(cause)}"
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)


def _cause(error: Exception) -> Exception:
    return error.cause if isinstance(error, NotConnected) else error


def _rejection(request: _Request[Any], response: HttpResponse, body: bytes) -> api.ApiError:
    failure = object_codec.error_from(body, code=response.status, writing=request.writing, what=request.what)
    if isinstance(failure, api.ServerBusy):
        after = response.headers.get("Retry-After", "")
        failure.retry_after_s = float(after) if after.isdigit() else None
    return failure


def _options(manager: str, *, dry_run: bool) -> dict[str, str]:
    given = {"fieldManager": manager, "dryRun": "All" if dry_run else ""}
    return {name: text for name, text in given.items() if text}


def _selection(labels: str, fields: str) -> dict[str, str]:
    return {name: text for name, text in (("labelSelector", labels), ("fieldSelector", fields)) if text}


def _encode(body: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except TypeError as error:
        raise api.InvalidObject(f"not JSON: {error}") from error
