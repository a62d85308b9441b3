"""One parsed request, its body, and the negotiated form of its answer. Bodies are read within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, cast

import msgspec
from aiohttp import HttpVersion11, web

from unbounded_apiserver import protobuf, status
from unbounded_apiserver.auth import ANONYMOUS, UNAUTHENTICATED, AuthAttributes, AuthChain, RequestCredentials, User
from unbounded_apiserver.decoding import RequestDocument
from unbounded_apiserver.http.audit import COMPLETE, AuditEntry
from unbounded_apiserver.http.connection import HttpConnection
from unbounded_apiserver.http.reply import HttpReply
from unbounded_apiserver.http.request_heads import RequestHead
from unbounded_apiserver.options import DeleteOptions
from unbounded_apiserver.resource_model import Resource
from unbounded_apiserver.status import StatusError, too_many, warning_headers
from unbounded_apiserver.type_descriptors import StructType
from unbounded_apiserver.workloads.pods import DELETE_OPTIONS

JSON: Final = "application/json"
YAML: Final = "application/yaml"
DISCOVERY: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_TRANSFORMS: Final = frozenset({"Table", "PartialObjectMetadata", "PartialObjectMetadataList"})
_VERSIONS: Final = frozenset({"v1", "v1beta1"})
BODIES_BYTES: Final = 128 * 2**20
NOBODY: Final = User(ANONYMOUS, (UNAUTHENTICATED,))
BODY_BYTES: Final = 3 * 2**20
BODY_S: Final = 60.0
QUICK_BYTES: Final = 32 * 1024  # of bodies that are not decoded by C code
JSON_BODIES: Final = frozenset({"", JSON, "*/*"})
YAML_BODIES: Final = frozenset({"application/yaml", "application/x-yaml", "text/yaml"})


@dataclass(frozen=True)
class AnswerForm:
    """The form of an answer: the object itself, or a Table or PartialObjectMetadata in a version of meta.k8s.io."""

    yaml: bool = False
    convert: str = ""
    version: str = ""

    @property
    def media_type(self) -> str:
        return YAML if self.yaml else JSON


PLAIN: Final = AnswerForm()


@dataclass
class BodyMemory:
    """Memory for the bodies of the running requests; without a limit, many clients could exhaust the memory."""

    limit: int = BODIES_BYTES
    taken: int = 0


class ApiCall(msgspec.Struct):
    """One parsed request."""

    request: web.BaseRequest
    head: RequestHead  # parsed from its head
    query: Mapping[str, list[str]]
    sender: User = NOBODY
    user: User = NOBODY  # after impersonation
    attributes: AuthAttributes | None = None
    resource: Resource | None = None  # the requested one, if it is served
    form: AnswerForm = PLAIN
    new_name: str = ""  # the name in a created object; '' if the server generates one
    warnings: list[str] = []
    annotations: dict[str, str] = {}  # for the audit log
    memory: BodyMemory = msgspec.field(default_factory=BodyMemory)
    reserved: int = 0  # bytes of that memory

    def reserve(self, size: int) -> None:
        """Reserve memory for this many more bytes of the body. Raises StatusError (429) if there is not enough."""
        if self.memory.taken + size > self.memory.limit:
            raise too_many()
        self.memory.taken += size
        self.reserved += size

    def release(self) -> None:
        """Release the reserved memory."""
        self.memory.taken -= self.reserved
        self.reserved = 0

    def authorize(self, guard: AuthChain, attributes: AuthAttributes) -> None:
        """Authorize the request and record its attributes. Raises StatusError (403)."""
        self.attributes = attributes
        guard.authorize(self.user, attributes)

    def answer(self, body: bytes, code: int = 200, media: str = "") -> HttpReply:
        answer = HttpReply(body, media or self.form.media_type, code)
        if self.warnings:
            answer.extra_headers += [("Warning", value) for value in warning_headers(self.warnings)]
        return answer

    def failure(self, error: StatusError) -> HttpReply:
        answer = self.answer(msgspec.json.encode(error.body()), error.code, "application/json")
        if error.retry_after_s is not None:
            answer.extra_headers.append(("Retry-After", str(error.retry_after_s)))
        return answer

    @property
    def connection(self) -> HttpConnection:
        """The connection of the request."""
        return cast(HttpConnection, self.request.protocol)

    def credentials(self) -> RequestCredentials:
        """Return the credentials of the request."""
        certificate, connection = self.connection.peer
        return RequestCredentials(certificate, self.request.headers, connection)

    def entry(self, code: int, *, stage: str = COMPLETE) -> AuditEntry:
        """Return the request's entry for the audit log; `code` is 0 if there was no answer."""
        request = self.request
        return AuditEntry(
            request.method,
            request.raw_path,
            self.sender,
            self.user,
            self.attributes,
            code,
            request.remote or "",
            self.head.agent,
            self.annotations,
            stage,
        )


@lru_cache(maxsize=256)
def negotiate_form(accept: str) -> AnswerForm:
    """Return the first acceptable form. Raises StatusError (406) if there is none."""
    for media, parameters in _clauses(accept):
        if media not in {JSON, YAML, "*/*", "application/*"}:
            continue
        yaml = media == YAML
        convert = parameters.get("as", "")
        if not convert:
            return AnswerForm(yaml)
        group, version = parameters.get("g"), parameters.get("v", "")
        if convert in _TRANSFORMS and group == "meta.k8s.io" and version in _VERSIONS:
            return AnswerForm(yaml, convert, version)
    raise status.not_acceptable()


def accepts_aggregated(accept: str) -> bool:
    """Return whether the client accepts aggregated discovery. Raises StatusError (406)."""
    for media, parameters in _clauses(accept):
        if parameters.get("as") == "APIGroupDiscoveryList":
            if media == JSON and (parameters.get("g"), parameters.get("v")) == ("apidiscovery.k8s.io", "v2"):
                return True
        elif media in {JSON, "*/*", "application/*", YAML}:
            return False
    raise status.not_acceptable()


def _clauses(accept: str) -> list[tuple[str, dict[str, str]]]:
    """Return media types with their parameters, the preferred ones first."""
    found = []
    for clause in (accept or "*/*").split(","):
        media, *rest = (part.strip() for part in clause.split(";"))
        parameters = dict(part.split("=", 1) for part in rest if "=" in part)
        found.append((media.lower(), parameters))
    return sorted(found, key=lambda item: -_quality(item[1]))


def _quality(parameters: dict[str, str]) -> float:
    try:
        return float(parameters.get("q", "1"))
    except ValueError:
        return 0.0


async def read_object(call: ApiCall, resource: Resource) -> RequestDocument:
    """Read the object of a request. Raises StatusError (400, 413, 415)."""
    kind = call.head.media
    if kind in JSON_BODIES:
        return RequestDocument.read(await read_body(call), resource.kind)
    shape = resource.type.shape
    if kind == protobuf.MEDIA_TYPE and shape is not None and protobuf.readable(shape):
        return await _protobuf(await read_body(call), shape)
    if kind not in YAML_BODIES:
        raise status.unsupported_media(("application/json", "application/yaml", protobuf.MEDIA_TYPE))
    return await _read(await read_body(call), resource.kind, yaml=True)


async def read_configuration(call: ApiCall) -> RequestDocument:
    """Read the body of a server-side apply. Raises StatusError (400, 413)."""
    data = await read_body(call)
    return await _in_thread(partial(RequestDocument.read_configuration, data), len(data))


async def _read(data: bytes, kind: str, *, yaml: bool) -> RequestDocument:
    return await _in_thread(partial(RequestDocument.read, data, kind, yaml=yaml), len(data) if yaml else 0)


async def _protobuf(data: bytes, shape: StructType) -> RequestDocument:
    return await _in_thread(partial(RequestDocument.read_protobuf, data, shape), len(data))


async def _in_thread(read: Callable[[], RequestDocument], size: int) -> RequestDocument:
    """Decode a long document in a thread, so that other requests are answered meanwhile."""
    return await asyncio.to_thread(read) if size > QUICK_BYTES else read()


async def read_delete_options(call: ApiCall) -> DeleteOptions:
    """Read the options of a deletion from its body or its query. Raises StatusError."""
    data = await read_body(call)
    if not data:
        return DeleteOptions.read(call.query, None)
    if call.head.media == protobuf.MEDIA_TYPE:
        return DeleteOptions.read(call.query, (await _protobuf(data, DELETE_OPTIONS)).value)
    yaml = call.head.media in YAML_BODIES
    return DeleteOptions.read(call.query, (await _read(data, "DeleteOptions", yaml=yaml)).value)


async def read_body(call: ApiCall) -> bytes:
    """Read the whole body. Raises StatusError (400, 413, 429)."""
    request = call.request
    if not request.can_read_body:
        return b""
    if call.head.length > BODY_BYTES:
        raise status.too_large(BODY_BYTES)
    if request.content.is_eof() and request.content.exception() is None:  # the body arrived with its head, as most do
        return _within(request.content.read_nowait())
    if call.head.expects_continue and request.version >= HttpVersion11:
        call.connection.send_continue()
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_S):
            while part := await request.content.readany():
                call.reserve(len(part))
                parts.append(part)
                size += len(part)
                if size > BODY_BYTES:
                    raise status.too_large(BODY_BYTES)
    except TimeoutError:
        raise status.bad_request("the body of the request did not arrive in time") from None
    except web.HTTPException as error:
        raise status.bad_request(f"the body of the request cannot be read: {error.reason}") from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _within(body: bytes) -> bytes:
    if len(body) > BODY_BYTES:
        raise status.too_large(BODY_BYTES)
    return body
