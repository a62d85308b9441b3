"""Calls of Azure Resource Manager through the official SDK, with budgets, time limits and translated errors."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote, urlencode
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
from unbounded.machineops import reasons
from unbounded.machineops.provider import Budget, Throttled, Transient, Uncertain, said
from unbounded.machineops.providers.azure import errors
from unbounded.machineops.providers.azure.errors import ArmRequest, AzureErrorResponse, Throttles, used_up

T = TypeVar("T")

CONNECT_S: Final = 10.0
ANSWER_S: Final = 40.0
VERSIONS: Final = {"virtualmachines": "2026-04-01", "disks": "2026-03-02"}
"""API versions that the SDK uses for these resources: it also writes the documents that are read here."""
LEFT_READS: Final = "x-ms-ratelimit-remaining-subscription-reads"
LEFT_WRITES: Final = "x-ms-ratelimit-remaining-subscription-writes"

Headers = Mapping[str, str]


class AzureCredential(Protocol):
    """Credential of the SDK."""

    async def get_token(self, *scopes: str, **options: Any) -> Any: ...

    async def close(self) -> None: ...


class FirstResponsePolling:
    """Polling method of the SDK that returns the first response to a change, without polling and without models."""

    def initialize(self, _client: Any, answer: Any, _model_of: Any) -> None:
        self._answer = answer

    async def run(self) -> None:
        """Do nothing: there is no polling."""

    def resource(self) -> Any:
        return self._answer


@dataclass(frozen=True, slots=True)
class _Get:
    """A GET, as the SDK's login takes one: it adds its header."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _GetResponse:
    """A response to a GET, as the SDK's policies and errors take one."""

    request: _Get
    status_code: int
    reason: str
    headers: Headers
    content: bytes

    def text(self) -> str:
        return self.content.decode("utf-8", "replace")


class _GetTransport(AsyncHTTPPolicy[Any, Any]):
    """The end of a pipeline for GETs, in place of the SDK's transport, whose own responses cost as much as aiohttp."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        super().__init__()
        self._http = http

    async def send(self, request: PipelineRequest[Any]) -> PipelineResponse[Any, Any]:
        sent: _Get = request.http_request
        try:
            async with self._http.get(sent.url, headers=sent.headers, allow_redirects=False) as got:
                answer = _GetResponse(sent, got.status, got.reason or "", got.headers, await got.read())
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            raise ServiceResponseError(error, error=error) from error
        return PipelineResponse(sent, answer, request.context)


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
        self._context = context
        self._http: aiohttp.ClientSession | None = None
        self._reader: aiohttp.ClientSession | None = None  # on the same connections; decompresses bodies
        self._credential: AzureCredential | None = None
        self._clients: dict[str, Any] = {}
        self._reads: dict[str, AsyncHTTPPolicy[Any, Any]] = {}
        self._throttles = Throttles()

    async def read(self, request: ArmRequest, call: Callable[[Any], Awaitable[T]]) -> T:
        """Make a call that changes nothing, and return its result.

        Args:
            call: takes the SDK's client. Untyped, as every field of the SDK's responses may be None.
        """
        return await self._answered(request, call, self._budget.read)

    async def show(self, asked: ArmRequest, resource_id: str, **query: str) -> dict[str, Any]:
        """Return a resource as Azure shows it. Through the SDK's client and models this takes five times as long.

        Args:
            resource_id: such as /subscriptions/…/providers/Microsoft.Compute/disks/disk-1.
            query: further parameters of the request.
        """
        kind = resource_id.lower().partition("/providers/microsoft.compute/")[2].partition("/")[0]
        terms = urlencode({**query, "api-version": VERSIONS[kind]}, quote_via=quote)
        url = f"{quote(f'{self.endpoint}{resource_id}', safe='/:')}?{terms}"

        async def call(_client: Any) -> bytes:
            answer = await self._fetch(asked.instance.scope, url)
            if answer.status_code != 200:
                raise HttpResponseError(response=answer)
            return answer.content

        content = await self.read(asked, call)
        try:
            return msgspec.json.decode(content, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Transient(f"{asked}: the answer is not a resource: {said(str(error))}") from error

    async def change(self, request: ArmRequest, call: Callable[[Any], Awaitable[T]], *, before: float) -> T:
        """Make a call that changes something, and return its result.

        Args:
            before: time of the loop after which the request is not sent any more.
        """
        return await self._answered(request, call, partial(self._budget.write, before=before))

    async def get(self, request: ArmRequest, url: str) -> tuple[int, Headers, bytes]:
        """Send a GET to a URL from Resource Manager; return status, headers and content."""

        async def call(_client: Any) -> tuple[int, Headers, bytes]:
            answer = await self._fetch(request.instance.scope, url)
            return answer.status_code, answer.headers, answer.content

        status, headers, content = await self.read(request, call)
        if status in (401, 403, 429) or status >= 500:
            raise self._refused(parse_error(status, headers, content), request)
        return status, headers, content

    async def _fetch(self, scope: str, url: str) -> _GetResponse:
        """Send a GET through the SDK's login alone: its other policies take longer than the request."""
        if scope not in self._reads:
            scopes = get_arm_endpoints(settings.azure_cloud())["credential_scopes"]
            self._reads[scope] = AsyncARMChallengeAuthenticationPolicy(self._logged_in(self._transport()), *scopes)
            self._reads[scope].next = _GetTransport(self._reading())
        answered = await self._reads[scope].send(PipelineRequest(_Get(url), PipelineContext(None)))
        self._count(scope, answered)
        answer: _GetResponse = answered.http_response
        return answer

    async def _answered(
        self, request: ArmRequest, call: Callable[[Any], Awaitable[T]], turn: Callable[[str], Awaitable[None]]
    ) -> T:
        scope = request.instance.scope
        try:
            for narrower in self._throttles.scopes(request, loop_time()):
                await turn(narrower)
            await turn(scope)
            try:
                return await call(self._client(scope))
            except HttpResponseError as error:
                if error.status_code != 401 or not self._is_from_manager(error):
                    raise
                await self._renew_token()  # a token can be revoked, or expire on the way; the request did nothing
            await turn(scope)
            return await call(self._client(scope))
        except AzureError as error:
            raise self._failure(error, request) from error

    async def _renew_token(self) -> None:
        credential, self._credential = self._credential, None
        self._clients.clear()
        self._reads.clear()
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

    def _reading(self) -> aiohttp.ClientSession:
        """Return the session of the GETs."""
        if self._reader is None:
            connector = self._transport().session.connector
            self._reader = aiohttp.ClientSession(
                connector=connector,
                connector_owner=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_S, sock_read=ANSWER_S),
                trust_env=_is_proxied(),
            )
        return self._reader

    def _count(self, scope: str, response: Any) -> None:
        headers = response.http_response.headers
        reads, writes = (_number(headers.get(name)) for name in (LEFT_READS, LEFT_WRITES))
        self._budget.left(scope, reads=reads, writes=writes)

    async def close(self) -> None:
        """Close all connections."""
        await self._renew_token()
        for session in (self._reader, self._http):
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
    return isinstance(error, ServiceRequestTimeoutError) or isinstance(error.__cause__, aiohttp.ClientConnectorError)
