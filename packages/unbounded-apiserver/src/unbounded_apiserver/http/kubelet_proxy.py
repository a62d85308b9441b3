"""Requests that kubelets answer: logs, exec, attach, port-forward, and nodes/proxy.

The last part is the tunnel of an upgraded connection: bytes that arrive at either end leave at the other, unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, cast
from urllib.parse import quote

import aiohttp
from aiohttp import web
from aiohttp.client_proto import ResponseHandler
from msgspec.structs import replace
from multidict import CIMultiDict, CIMultiDictProxy

from unbounded_apiserver import status
from unbounded_apiserver.auth import AuthChain
from unbounded_apiserver.builtin_resources import NODES
from unbounded_apiserver.http import kubelet_client, kubelet_options
from unbounded_apiserver.http.api_call import ApiCall, negotiate_form, read_body
from unbounded_apiserver.http.audit import STARTED, AuditEntry
from unbounded_apiserver.http.connection import HttpConnection
from unbounded_apiserver.http.kubelet_client import HEAD_S, KubeletClient, KubeletEndpoint, KubeletUnreachable
from unbounded_apiserver.http.policy_checks import PolicyChecks
from unbounded_apiserver.http.reply import HttpReply
from unbounded_apiserver.pki import KUBELET_CLIENT
from unbounded_apiserver.resource_model import Object, Resource, ResourcePath
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.store import Store
from unbounded_apiserver.workloads.pods import PODS

STREAMS: Final = 128  # at once; each takes a file beside the client's, and up to 400 KiB if one side reads slowly
ERROR_BYTES: Final = 50_000  # of a kubelet's error message
PATHS: Final = {"attach": "attach", "exec": "exec", "portforward": "portForward"}
# The request headers that a kubelet needs. It never gets a client's credentials and other headers.
_FORWARDED_HEADERS: Final = (
    "Connection",
    "Sec-WebSocket-Extensions",
    "Sec-WebSocket-Key",
    "Sec-WebSocket-Protocol",
    "Sec-WebSocket-Version",
    "Upgrade",
    "User-Agent",
    "X-Stream-Protocol-Version",
)
# A kubelet never gets a client's credentials; these headers describe the request.
_ASKED: Final = (
    "Accept",
    "Accept-Encoding",
    "Content-Type",
    "If-Modified-Since",
    "If-None-Match",
    "Range",
    "User-Agent",
)
_OF_CONNECTION: Final = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-connection", "trailer", "transfer-encoding", "upgrade"}
)


class UpgradedResponse(web.StreamResponse):
    """The answer of a connection that was upgraded and has ended: nothing is left to send."""

    def __init__(self) -> None:
        super().__init__(status=101)
        self.force_close()

    async def prepare(self, request: web.BaseRequest) -> None:
        """Do nothing."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing."""


class KubeletProxy:
    """Answers from kubelets, for authorized clients.

    Args:
        note: writes into the audit log. An upgraded connection is logged when it begins, too.
    """

    def __init__(
        self,
        store: Store,
        guard: AuthChain,
        admitting: PolicyChecks,
        client: KubeletClient,
        note: Callable[[AuditEntry], None],
    ) -> None:
        self._store = store
        self._guard = guard
        self._policy_checks = admitting
        self._client = client
        self._note = note
        self._open: set[aiohttp.ClientResponse] = set()
        self._count = 0

    def count(self) -> int:
        """Return the number of open streams."""
        return self._count

    def stop(self) -> None:
        """End all streams."""
        for upstream in tuple(self._open):
            upstream.close()

    async def serve(self, call: ApiCall, place: ResourcePath) -> HttpReply | web.StreamResponse:
        """Answer a request from the kubelet of its Pod or Node. Raises StatusError."""
        if place.resource is None or call.attributes is None or place.watch:
            raise status.no_such_resource()
        proxied = place.resource.proxied[place.subresource]
        heads = call.request.method == "HEAD" and not proxied.passes_path
        if heads or call.attributes.verb not in proxied.verbs:
            raise status.method_not_allowed()
        if self._count >= STREAMS:
            raise status.too_many()
        self._count += 1
        try:
            if proxied.passes_path:
                return await self._proxy(call, place)
            if place.subresource == "log":
                return await self._log(call, place)
            return await self._connect(call, place)
        finally:
            self._count -= 1

    async def _log(self, call: ApiCall, place: ResourcePath) -> HttpReply | web.StreamResponse:
        call.form = negotiate_form(call.head.accept)
        if call.form.convert:
            raise status.not_acceptable()
        requested = kubelet_options.read_log(call.query, place.name)
        pod = self._stored(PODS, place.namespace, place.name)
        container = kubelet_client.container_of(pod, requested.container)
        if not kubelet_client.node_of(pod):
            return call.answer(b"", 204)
        endpoint = self._endpoint(pod)
        target = _target(("containerLogs", place.namespace, place.name, container), requested.query)
        try:
            upstream = await self._client.open(
                "GET",
                endpoint,
                target,
                {"User-Agent": call.head.agent},
                verifies=requested.verify_certificate,
                head_within_s=None if requested.follow else HEAD_S,
            )
        except KubeletUnreachable as error:
            raise StatusError(500, "", f'Get "https://{endpoint.address}{target}": {error}') from error
        self._open.add(upstream)
        try:
            return await _copy(call, place, upstream)
        finally:
            self._open.discard(upstream)
            upstream.close()

    async def _proxy(self, call: ApiCall, place: ResourcePath) -> web.StreamResponse:
        """Forward a request to a path of a node's kubelet, and return the kubelet's answer."""
        request = call.request
        self._policy_checks.check_connect(
            call, NODES, {"kind": "NodeProxyOptions", "apiVersion": "v1", "path": place.rest}
        )
        if call.user.name == KUBELET_CLIENT:  # a Node with this server's own address would act as that user
            raise status.forbidden("", NODES.plural, place.name, "the API server does not proxy requests to itself")
        if "upgrade" in request.headers.get("Connection", "").lower():
            raise status.bad_request("connections through nodes/proxy are not served: use exec, attach or port-forward")
        endpoint = kubelet_client.endpoint_of(self._stored(NODES, "", place.name))
        await kubelet_client.check_proxy_target(endpoint)
        query = request.rel_url.raw_query_string
        if not place.rest and request.method in {"GET", "HEAD"}:
            return web.Response(status=301, headers={"Location": f"{call.head.path}/{'?' if query else ''}{query}"})
        target = f"{place.rest or '/'}{'?' if query else ''}{query}"
        headers = request_headers(request.headers, request.remote)
        body = await read_body(call)
        try:
            upstream = await self._client.open(request.method, endpoint, target, headers, body=body or None)
        except KubeletUnreachable as error:
            raise StatusError(503, "ServiceUnavailable", f"error trying to reach service: {error}") from error
        self._open.add(upstream)
        try:
            root = call.head.path.removesuffix(place.rest)
            head = answer_headers(upstream.headers, root)
            return await _stream(call, upstream, web.StreamResponse(status=upstream.status, headers=head))
        finally:
            self._open.discard(upstream)
            upstream.close()

    async def _connect(self, call: ApiCall, place: ResourcePath) -> web.StreamResponse:
        if "dryRun" in call.query:
            raise status.bad_request("dryRun is not supported")
        requested = kubelet_options.CONNECTIONS[place.subresource](call.query)
        self._policy_checks.check_connect(call, PODS, requested.options_object)
        if call.request.method == "GET" and call.attributes is not None:  # a GET that upgrades does more than read
            self._guard.authorize(call.user, replace(call.attributes, verb="create"))
        pod = self._stored(PODS, place.namespace, place.name)
        path = [PATHS[place.subresource], place.namespace, place.name]
        if place.subresource != "portforward":
            path.append(kubelet_client.container_of(pod, requested.container))
        if not kubelet_client.node_of(pod):
            raise status.bad_request(f"pod {place.name} does not have a host assigned")
        endpoint = self._endpoint(pod)
        if "upgrade" not in call.request.headers.get("Connection", "").lower():
            raise status.bad_request("Upgrade request required")
        return await self._tunnel(call, endpoint, _target(path, requested.query))

    async def _tunnel(self, call: ApiCall, endpoint: KubeletEndpoint, target: str) -> web.StreamResponse:
        try:
            upstream = await self._client.open(call.request.method, endpoint, target, _forwarded_headers(call.request))
        except KubeletUnreachable as error:
            raise StatusError(500, "", f"error dialing backend: {error}") from error
        self._open.add(upstream)
        try:
            if upstream.status != 101:
                return await _refused(upstream)
            self._note(call.entry(101, stage=STARTED))
            await _switch(call.request, upstream)
            return UpgradedResponse()
        finally:
            self._open.discard(upstream)
            upstream.close()

    def _endpoint(self, pod: Object) -> KubeletEndpoint:
        return kubelet_client.endpoint_of(self._stored(NODES, "", kubelet_client.node_of(pod)))

    def _stored(self, resource: Resource, namespace: str, name: str) -> Object:
        record = self._store.get(resource.name, resource.key(namespace, name))
        if record is None:
            raise status.not_found(resource.group, resource.plural, name)
        return record.decode()


def _target(path: list[str] | tuple[str, ...], query: str) -> str:
    return "".join(f"/{quote(part, safe='')}" for part in path) + (f"?{query}" if query else "")


def _forwarded_headers(request: web.BaseRequest) -> Mapping[str, str]:
    headers: CIMultiDict[str] = CIMultiDict()
    for name in _FORWARDED_HEADERS:
        for value in request.headers.getall(name, ()):
            headers.add(name, value)
    if request.remote:
        headers["X-Forwarded-For"] = request.remote
    return headers


async def _copy(call: ApiCall, place: ResourcePath, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
    """Stream a log, no faster than the client reads it. Raises StatusError if the kubelet has none."""
    if 300 <= upstream.status < 400:
        where = upstream.headers.get("Location", "")
        raise StatusError(500, "", f'Get "{where}": redirects forbidden')
    if not 200 <= upstream.status <= 206:
        raise kubelet_client.log_error(
            upstream.status, (await _error_text(upstream)).decode(errors="replace"), place.name
        )
    head = {"Content-Type": "text/plain", "Cache-Control": "no-cache, private"}
    return await _stream(call, upstream, web.StreamResponse(headers=head))


async def _stream(call: ApiCall, upstream: aiohttp.ClientResponse, response: web.StreamResponse) -> web.StreamResponse:
    """Stream the body of a kubelet's answer, no faster than the client reads it."""
    await response.prepare(call.request)
    try:
        async for part in upstream.content.iter_any():
            await response.write(part)
    except aiohttp.ClientError as error:
        if call.request.transport is not None:
            call.request.transport.abort()  # so that the client does not take a part for the whole
        raise ConnectionResetError("the kubelet closed the connection") from error
    await response.write_eof()
    return response


async def _error_text(upstream: aiohttp.ClientResponse) -> bytes:
    """Return a kubelet's error message, as far as it arrives in time."""
    try:
        async with asyncio.timeout(HEAD_S):
            return await upstream.content.readexactly(ERROR_BYTES)
    except asyncio.IncompleteReadError as error:
        return error.partial
    except (aiohttp.ClientError, TimeoutError):
        return b""


async def _refused(upstream: aiohttp.ClientResponse) -> web.Response:
    """Return a kubelet's refusal to upgrade, unchanged; kubectl then tries the next protocol. Raises StatusError."""
    if upstream.status < 400:
        raise StatusError(500, "", f"invalid upgrade response: status code {upstream.status}")
    media = upstream.headers.get("Content-Type", "text/plain; charset=utf-8")
    response = web.Response(status=upstream.status, body=await _error_text(upstream), headers={"Content-Type": media})
    response.force_close()
    return response


async def _switch(request: web.BaseRequest, upstream: aiohttp.ClientResponse) -> None:
    """Pass on the kubelet's answer, and forward bytes both ways until either side disconnects."""
    client, link = cast(HttpConnection, request.protocol), upstream.connection
    if client.transport is None or link is None or link.transport is None:
        raise ConnectionResetError("one side closed the connection before the upgrade")
    kubelet = cast(ResponseHandler, link.protocol)
    head = [b"HTTP/1.1 101 Switching Protocols", *(b"%b: %b" % pair for pair in upstream.raw_headers)]
    client.transport.write(b"\r\n".join([*head, b"", b""]))
    await join(
        TunnelEnd(client.transport, client, client.set_parser),
        TunnelEnd(link.transport, kubelet, lambda end: kubelet.set_parser(end, None)),
    )


class TunnelEnd(asyncio.Protocol):
    """One end of a tunnel. It reads no bytes while the other end accepts none.

    Args:
        transport: of a connection that the HTTP library has served so far.
        library: the HTTP library's protocol of that connection.
        hand_over: makes the library pass the bytes that arrived since the upgrade to a parser.
    """

    def __init__(
        self, transport: asyncio.Transport, library: asyncio.BaseProtocol, hand_over: Callable[[Any], None]
    ) -> None:
        self._transport = transport
        self._library = library
        self._hand_over = hand_over
        self._other: TunnelEnd | None = None
        self._over: asyncio.Future[None] | None = None
        self._lost: list[Exception | None] = []

    def begin(self, other: TunnelEnd, over: asyncio.Future[None]) -> None:
        """Take the connection from the HTTP library; `over` gets its result when either end is closed."""
        self._other, self._over = other, over
        self._hand_over(self)
        self._transport.set_protocol(self)

    def release(self) -> None:
        """Let the HTTP library close the connection."""
        self._transport.set_protocol(self._library)
        for error in self._lost:
            asyncio.get_running_loop().call_soon(self._library.connection_lost, error)

    # Of the HTTP library's parsers

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data_received(data)
        return False, b""

    def feed_eof(self) -> None:
        self._end()

    # Of asyncio's protocols

    def data_received(self, data: bytes) -> None:
        if self._other is not None:
            self._other._transport.write(data)

    def pause_writing(self) -> None:
        if self._other is not None and not self._other._lost:
            self._other._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None and not self._other._lost:
            self._other._transport.resume_reading()

    def eof_received(self) -> None:
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.append(exc)
        self._end()

    def _end(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)


async def join(first: TunnelEnd, second: TunnelEnd) -> None:
    """Forward bytes both ways until either end is closed; the caller closes the other one."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ends = (first, second), (second, first)
    for end, other in ends:
        end.begin(other, over)
    try:
        await over
    finally:
        first.release()
        second.release()


def request_headers(headers: Mapping[str, str], remote: str | None) -> dict[str, str]:
    """Return the headers of a request for the kubelet."""
    passed = {name: headers[name] for name in _ASKED if name in headers}
    return passed | ({"X-Forwarded-For": remote} if remote else {})


def answer_headers(headers: CIMultiDictProxy[str], prefix: str) -> CIMultiDict[str]:
    """Return the headers of a kubelet's answer for the client.

    Args:
        prefix: the path of the kubelet's root; redirects to a path of the kubelet are moved below it.
    """
    passed = CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _OF_CONNECTION)
    passed.setdefault("Cache-Control", "no-cache, private")
    where = headers.get("Location", "")
    if where.startswith("/") and not where.startswith("//"):
        passed["Location"] = prefix + where
    return passed
