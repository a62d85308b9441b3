"""The API without a server: route a request, answer it with the caller's rights, and encode the answer."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from unbounded.explain.chain import explain
from unbounded.explain.results import RELEASE
from unbounded.explain_api import openapi
from unbounded.explain_api.limits import RequestLimits
from unbounded.explain_api.releases import HEADER, release_fault
from unbounded.explain_api.requests import explain_request, intent_of, manifests_of, plan_request
from unbounded.explain_api.statuses import RequestRejected, bad_request, of_api_error, status_body
from unbounded.kube.logs import Log
from unbounded.plan.changes import DryRunApi, PlanScope, plan_intent, plan_manifests

JSON: Final = "application/json"
EXPLAIN: Final = "explain"
PLAN: Final = "plan"
PREFIXES: Final = (EXPLAIN, PLAN)  # the first segments of its paths
DOCUMENT: Final = "openapi.json"
BODY_BYTES: Final = 1024 * 1024
LIMIT_S: Final = 60.0
CACHE_CONTROL: Final = "no-store"  # no cache may keep an answer: it rests on the rights of its caller
# A server of many users keeps no password of a BMC, and follows no address that an object names.
SERVED: Final = PlanScope(reads_secrets=False, calls_clouds=False)

log = Log(__name__)


@dataclass(frozen=True)
class ServedRequest:
    """A request.

    Args:
        path: as on the wire, without the query.
        caller: whose requests count together.
        open_api: opens a client with the caller's rights, and no others.
    """

    method: str
    path: str
    query: Mapping[str, Any]
    release: str
    body: bytes
    caller: str
    open_api: Callable[[], AbstractAsyncContextManager[DryRunApi]]


@dataclass(frozen=True)
class ServedReply:
    body: bytes
    code: int = 200
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def all_headers(self) -> list[tuple[str, str]]:
        """The headers beside the type and the length of the body, and CACHE_CONTROL."""
        return [(HEADER, RELEASE), ("X-Content-Type-Options", "nosniff"), *self.headers]


@dataclass
class ExplainService:
    """Answers of the API.

    Args:
        limit_s: of one answer.
    """

    limits: RequestLimits = field(default_factory=RequestLimits)
    limit_s: float = LIMIT_S

    async def respond(self, request: ServedRequest) -> ServedReply:
        """Answer a request, errors included."""
        try:
            return await self._answered(request)
        except RequestRejected as rejected:
            return rejection(rejected)
        except Exception as error:
            known = of_api_error(error)
            if known is None:
                log.exception("a request failed", path=request.path)
                known = RequestRejected(500, "InternalError", type(error).__name__)
            return rejection(known)

    async def _answered(self, request: ServedRequest) -> ServedReply:
        if request.release and (fault := release_fault(request.release)):
            raise bad_request(f"header {HEADER}: {fault}")
        if request.query:
            raise bad_request(f"unknown query parameter {next(iter(request.query))[:64]!r}: there are none")
        first, *rest = request.path.removeprefix("/").split("/")
        match first, rest:
            case "explain", ["openapi.json"]:
                _check_method(request, "GET")
                return ServedReply(openapi.DOCUMENT)
            case "explain", [_, _, *more] if len(more) <= 1:
                _check_method(request, "GET")
                return await self._limited(request, self._explain, rest)
            case "plan", []:
                _check_method(request, "POST")
                return await self._limited(request, self._plan)
        raise RequestRejected(404, "NotFound", f"there is no such path: /{EXPLAIN}/{DOCUMENT} describes the API")

    async def _limited(self, request: ServedRequest, answer: Callable[..., Any], *given: Any) -> ServedReply:
        caller = hashlib.sha256(request.caller.encode()).hexdigest()
        with self.limits.turn(caller):
            try:
                async with asyncio.timeout(self.limit_s):
                    reply: ServedReply = await answer(request, *given)
            except TimeoutError:
                raise RequestRejected(504, "Timeout", f"no answer within {self.limit_s:.0f} s") from None
        self.limits.note_served(caller)
        return reply

    async def _explain(self, request: ServedRequest, segments: list[str]) -> ServedReply:
        subject = explain_request(segments)
        async with request.open_api() as api:
            found = await explain(api, subject.topic, subject.name, namespace=subject.namespace)
        return ServedReply(msgspec.json.encode(found))

    async def _plan(self, request: ServedRequest) -> ServedReply:
        if len(request.body) > BODY_BYTES:
            raise RequestRejected(413, "RequestEntityTooLarge", f"the body has more than {BODY_BYTES} bytes")
        writes, unknown = plan_request(request.body)
        intent, manifests = None if writes.objects else intent_of(writes), manifests_of(writes)
        try:
            async with request.open_api() as api:
                plan = await (
                    plan_manifests(api, manifests, SERVED) if intent is None else plan_intent(api, intent, SERVED)
                )
        except (msgspec.ValidationError, ValueError) as error:  # fields of an object that the server refuses, too
            raise RequestRejected(422, "Invalid", f"an object would be invalid: {error}") from error
        warnings = tuple(("Warning", f'299 - "unknown field {name[:64]!r}"') for name in unknown[:10] if name.isascii())
        return ServedReply(msgspec.json.encode(plan), headers=warnings)


def rejection(rejected: RequestRejected) -> ServedReply:
    """Return the answer of an error."""
    headers = () if rejected.retry_after_s is None else (("Retry-After", str(rejected.retry_after_s)),)
    if rejected.code == 401:
        headers = (*headers, ("WWW-Authenticate", "Bearer"))
    return ServedReply(msgspec.json.encode(status_body(rejected)), rejected.code, headers)


def _check_method(request: ServedRequest, method: str) -> None:
    if request.method != method:
        raise RequestRejected(405, "MethodNotAllowed", f"this path takes {method} alone")
