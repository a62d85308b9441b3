"""Calls of Azure Resource Manager with the official SDK's login, budgets, time limits and translated errors.

Changes, and reads of virtual machines and disks, are the SDK's requests without its client: its models and policies
take longer than the request. The SDK's client reads images.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import getproxies

import aiohttp
import msgspec
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestTimeoutError,
    ServiceResponseError,
)
from azure.core.pipeline import PipelineContext, PipelineRequest, PipelineResponse
from azure.core.pipeline.policies import AsyncHTTPPolicy
from azure.core.pipeline.transport import AioHttpTransport
from azure.core.settings import settings
from azure.mgmt.compute.aio import ComputeManagementClient
from azure.mgmt.core.policies import AsyncARMChallengeAuthenticationPolicy
from azure.mgmt.core.tools import get_arm_endpoints

from unbounded.api.failures import Failure
from unbounded.kube.clock import loop_time
from unbounded.kube.http_pool import HttpAddress, HttpPool, NotConnected, split_server
from unbounded.machineops import reasons
from unbounded.machineops.provider import Budget, Throttled, Transient, Uncertain, said
from unbounded.machineops.providers.azure import errors
from unbounded.machineops.providers.azure.errors import ArmRequest, AzureErrorResponse, Throttles, used_up

T = TypeVar("T")

CONNECT_S: Final = 10.0
ANSWER_S: Final = 40.0
VERSIONS: Final = {"virtualmachines": "2026-04-01", "disks": "2026-03-02"}
"""API versions that the SDK uses for these resources."""
HEADERS: Final = {
    "Accept": "application/json",
    "Accept-Encoding": "gzip, deflate",
    "User-Agent": "unbounded-machine-ops-controller",
}
LEFT_READS: Final = "x-ms-ratelimit-remaining-subscription-reads"
LEFT_WRITES: Final = "x-ms-ratelimit-remaining-subscription-writes"

Headers = Mapping[str, str]
NOTHING: Final[Headers] = {}


class AzureCredential(Protocol):
    """Credential of the SDK."""

    async def get_token(self, *scopes: str, **options: Any) -> Any: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Request:
    """A request, as the SDK's login takes one: it adds its header."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Response:
    """A response, as the SDK's policies and errors take one."""

    request: _Request
    status_code: int
    headers: Headers
    content: bytes

    @property
    def reason(self) -> str:
        return str(self.status_code)

    def text(self) -> str:
        return self.content.decode("utf-8", "replace")


class _Transport(AsyncHTTPPolicy[Any, Any]):
    """The end of a pipeline, in place of the SDK's transport."""

    async def send(self, request: PipelineRequest[Any]) -> PipelineResponse[Any, Any]:
        try:
            async with asyncio.timeout(ANSWER_S):
                response = await self._exchange(request.http_request)
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            raise ServiceResponseError(error, error=error) from error
        return PipelineResponse(request.http_request, response, request.context)

    async def _exchange(self, request: _Request) -> _Response:
        raise NotImplementedError


class _DirectTransport(_Transport):
    """Requests to Resource Manager without a proxy."""

    def __init__(self, pool: HttpPool, address: HttpAddress) -> None:
        super().__init__()
        self._pool = pool
        self._address = address

    async def _exchange(self, request: _Request) -> _Response:
        parts = urlsplit(request.url)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        got = await self._pool.request(
            self._address, request.method, target, request.headers.items(), request.body, connect_s=CONNECT_S
        )
        try:
            return _Response(request, got.status, got.headers, await got.read())
        finally:
            got.release()


class _ProxyTransport(_Transport):
    """Requests through the proxy that the environment names."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        super().__init__()
        self._http = http

    async def _exchange(self, request: _Request) -> _Response:
        async with self._http.request(
            request.method, request.url, headers=request.headers, data=request.body, allow_redirects=False
        ) as got:
            return _Response(request, got.status, got.headers, await got.read())


class AzureClient:
    """Calls of one login.

    Args:
        login: name of its MachineOperationCredential, for messages.
        log_in: makes the SDK's credential on the given transport.
        endpoint: of Resource Manager.
        context: TLS context with the trusted authorities.
    """

    def __init__(
        self,
        login: str,
        log_in: Callable[[AioHttpTransport], AzureCredential],
        budget: Budget,
        *,
        endpoint: str,
        context: Callable[[], ssl.SSLContext],
    ) -> None:
        self.endpoint = endpoint.rstrip("/")
        self._login = login
        self._log_in = log_in
        self._budget = budget
        self._context = cache(context)
        self._pool = HttpPool()
        self._http: aiohttp.ClientSession | None = None
        self._proxied: aiohttp.ClientSession | None = None  # on the same connections; decompresses bodies
        self._credential: AzureCredential | None = None
        self._clients: dict[str, Any] = {}
        self._pipelines: dict[str, AsyncHTTPPolicy[Any, Any]] = {}
        self._throttles = Throttles()

    async def read(self, request: ArmRequest, call: Callable[[Any], Awaitable[T]]) -> T:
        """Make a call of the SDK's client that changes nothing, and return its result.

        Args:
            call: takes the client. Untyped, as every field of the SDK's responses may be None.
        """
        return await self._answered(request, lambda: call(self._client(request.instance.scope)), self._budget.read)

    async def show(self, asked: ArmRequest, resource_id: str, **query: str) -> dict[str, Any]:
        """Return a resource as Azure shows it.

        Args:
            resource_id: such as /subscriptions/…/providers/Microsoft.Compute/disks/disk-1.
            query: further parameters of the request.
        """
        url = self._url(resource_id, query)

        async def call() -> bytes:
            answer = await self._send(asked.instance.scope, "GET", url)
            if answer.status_code != 200:
                raise HttpResponseError(response=answer)
            return answer.content

        content = await self._answered(asked, call, self._budget.read)
        try:
            return msgspec.json.decode(content, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Transient(f"{asked}: the answer is not a resource: {said(str(error))}") from error

    async def change(
        self,
        asked: ArmRequest,
        method: str,
        resource_id: str,
        body: Mapping[str, Any] | None = None,
        *,
        before: float,
        condition: Headers = NOTHING,
        query: Mapping[str, str] = NOTHING,
    ) -> Headers:
        """Request a change, and return the headers of the response.

        Args:
            resource_id: as of `show`; with the name of an action after it, such as /restart, for a POST.
            before: time of the loop after which the request is not sent any more.
            condition: header fields without which Azure makes the change in any case, such as If-Match.
        """
        url = self._url(resource_id, query)

        async def call() -> Headers:
            answer = await self._send(asked.instance.scope, method, url, body, condition)
            if answer.status_code >= 300:
                raise HttpResponseError(response=answer)
            return answer.headers

        return await self._answered(asked, call, partial(self._budget.write, before=before))

    async def get(self, request: ArmRequest, url: str) -> tuple[int, Headers, bytes]:
        """Send a GET to a URL from Resource Manager; return status, headers and content."""

        async def call() -> tuple[int, Headers, bytes]:
            answer = await self._send(request.instance.scope, "GET", url)
            return answer.status_code, answer.headers, answer.content

        status, headers, content = await self._answered(request, call, self._budget.read)
        if status in (401, 403, 429) or status >= 500:
            raise self._refused(parse_error(status, headers, content), request)
        return status, headers, content

    def _url(self, resource_id: str, query: Mapping[str, str]) -> str:
        kind = resource_id.lower().partition("/providers/microsoft.compute/")[2].partition("/")[0]
        terms = urlencode({**query, "api-version": VERSIONS[kind]}, quote_via=quote, safe="$")
        return f"{quote(f'{self.endpoint}{resource_id}', safe='/:')}?{terms}"

    async def _send(
        self,
        scope: str,
        method: str,
        url: str,
        body: Mapping[str, Any] | None = None,
        condition: Headers = NOTHING,
    ) -> _Response:
        """Send a request with the SDK's login."""
        headers = {**HEADERS, **condition}
        content = b"" if method == "POST" else None
        if body is not None:
            headers["Content-Type"], content = "application/json", msgspec.json.encode(body)
        pipeline_request = PipelineRequest(_Request(method, url, headers, content), PipelineContext(None))
        answered = await self._pipeline(scope).send(pipeline_request)
        self._count(scope, answered)
        answer: _Response = answered.http_response
        return answer

    def _pipeline(self, scope: str) -> AsyncHTTPPolicy[Any, Any]:
        """Return the pipeline of a subscription: the SDK's login, and the transport."""
        if scope not in self._pipelines:
            scopes = get_arm_endpoints(settings.azure_cloud())["credential_scopes"]
            pipeline = AsyncARMChallengeAuthenticationPolicy(self._logged_in(self._transport()), *scopes)
            pipeline.next = _ProxyTransport(self._proxied_session()) if _is_proxied() else self._direct()
            self._pipelines[scope] = pipeline
        return self._pipelines[scope]

    def _direct(self) -> _DirectTransport:
        host, port, _path = split_server(self.endpoint)
        is_encrypted = self.endpoint.startswith("https:")
        return _DirectTransport(self._pool, HttpAddress(host, port, self._context() if is_encrypted else None))

    async def _answered(
        self, request: ArmRequest, call: Callable[[], Awaitable[T]], turn: Callable[[str], Awaitable[None]]
    ) -> T:
        scope = request.instance.scope
        try:
            for narrower in self._throttles.scopes(request, loop_time()):
                await turn(narrower)
            await turn(scope)
            try:
                return await call()
            except HttpResponseError as error:
                if error.status_code != 401 or not self._is_from_manager(error):
                    raise
                await self._renew_token()  # a token can be revoked, or expire on the way; the request did nothing
            await turn(scope)
            return await call()
        except AzureError as error:
            raise self._failure(error, request) from error

    async def _renew_token(self) -> None:
        credential, self._credential = self._credential, None
        self._clients.clear()
        self._pipelines.clear()
        if credential is not None:
            await credential.close()

    def _failure(self, error: AzureError, request: ArmRequest) -> Failure:
        if isinstance(error, HttpResponseError) and self._is_from_manager(error):
            response: Any = error.response
            return self._refused(parse_error(response.status_code, response.headers, _content(response)), request)
        if isinstance(error, ClientAuthenticationError):
            return errors.login_failure(error.message, self._login)
        words = f"{request}: {said(str(error)) or type(error).__name__}"
        return Uncertain(words) if request.changes and not _never_sent(error) else Transient(words)

    def _refused(self, answer: AzureErrorResponse, request: ArmRequest) -> Failure:
        """Return the failure for an error. An error of a rate limit blocks its scope and no other."""
        failure = errors.failure(answer, str(request), self._login, changes=request.changes)
        if isinstance(failure, Throttled):
            until = loop_time() + failure.after_s
            failure.scope = self._throttles.refused(request, answer.used_up, answer.message, until)
        return failure

    def _is_from_manager(self, error: HttpResponseError) -> bool:
        """Return whether Resource Manager sent the error. Token errors come from elsewhere, and responses can be cut
        off.
        """
        response: Any = error.response
        if response is None or response.status_code < 400:
            return False
        return str(response.request.url).lower().startswith(f"{self.endpoint.lower()}/subscriptions/")

    def _client(self, scope: str) -> Any:
        if scope not in self._clients:
            transport = self._transport()
            self._clients[scope] = ComputeManagementClient(
                self._logged_in(transport),
                scope,
                base_url=self.endpoint,
                transport=transport,
                retry_total=0,
                raw_response_hook=partial(self._count, scope),
            )
        return self._clients[scope]

    def _logged_in(self, transport: AioHttpTransport) -> Any:
        """Return the credential; untyped, as the SDK's protocol asks for more than it uses."""
        self._credential = self._credential or self._log_in(transport)
        return self._credential

    def _transport(self) -> AioHttpTransport:
        if self._http is None:
            connector = aiohttp.TCPConnector(ssl=self._context(), limit=0)  # the engine limits the connections
            self._http = aiohttp.ClientSession(connector=connector, auto_decompress=False, trust_env=_is_proxied())
        return AioHttpTransport(
            session=self._http, session_owner=False, connection_timeout=CONNECT_S, read_timeout=ANSWER_S
        )

    def _proxied_session(self) -> aiohttp.ClientSession:
        if self._proxied is None:
            self._proxied = aiohttp.ClientSession(
                connector=self._transport().session.connector,
                connector_owner=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_S),
                trust_env=True,
            )
        return self._proxied

    def _count(self, scope: str, response: Any) -> None:
        headers = response.http_response.headers
        reads, writes = (_number(headers.get(name)) for name in (LEFT_READS, LEFT_WRITES))
        self._budget.left(scope, reads=reads, writes=writes)

    async def close(self) -> None:
        """Close all connections."""
        await self._renew_token()
        await self._pool.close()
        for session in (self._proxied, self._http):
            if session is not None:
                await session.close()


def _is_proxied() -> bool:
    """Return whether there is a proxy at all: aiohttp would look it up for each request, in a thread."""
    return bool(getproxies())


class _ErrorBody(msgspec.Struct, rename={"more": "additionalInfo"}):
    code: str = ""
    message: str = ""
    details: list[dict[str, Any]] = []
    more: list[dict[str, Any]] = []


class _ErrorDocument(msgspec.Struct):
    error: _ErrorBody | None = None


def parse_error(status: int, headers: Headers, content: bytes) -> AzureErrorResponse:
    """Parse an error from its status, headers and content."""
    try:
        found = msgspec.json.decode(content, type=_ErrorDocument).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        found = None
    found = found or _ErrorBody(f"status {status}", said(content.decode("utf-8", "replace")))
    policies = used_up(headers, found.details)
    return AzureErrorResponse(status, found.code, found.message, retry_after(headers), policies, _policy(found.more))


def _policy(more: list[dict[str, Any]]) -> dict[str, str]:
    """Return the assignment of the policy that disallows a request."""
    info = next((one.get("info") for one in more if one.get("type") == "PolicyViolation"), None)
    if not isinstance(info, dict) or not isinstance(info.get("policyAssignmentId"), str):
        return {}
    name = info.get("policyAssignmentDisplayName") or info.get("policyAssignmentName") or ""
    return {reasons.POLICY: str(name), reasons.POLICY_ID: info["policyAssignmentId"]}


def retry_after(headers: Headers) -> float | None:
    """Return the seconds after which Azure accepts a repetition."""
    return _number(headers.get("retry-after"))


def _number(text: str | None) -> float | None:
    try:
        return max(float(text), 0.0) if text else None
    except ValueError:  # a date, which Azure does not send
        return None


def _content(response: Any) -> bytes:
    try:
        content = response.content if hasattr(response, "content") else response.body()
    except Exception:  # the body was not read completely
        return b""
    return content if isinstance(content, bytes) else b""


def _never_sent(error: AzureError) -> bool:
    """Return whether no connection was made. The SDK raises the same class if one broke after the request was sent."""
    is_refused = isinstance(error.__cause__, aiohttp.ClientConnectorError | NotConnected)
    return isinstance(error, ServiceRequestTimeoutError) or is_refused
