"""The handler of all requests: who asks, for what, and how it is answered."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final
from urllib.parse import parse_qs

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from unbounded.apiserver import documents, metadata, naming, patches, protobuf, status
from unbounded.apiserver.access.escalation import Escalation
from unbounded.apiserver.access.impersonation import impersonated
from unbounded.apiserver.access.kinds import GROUP as ROLES_GROUP
from unbounded.apiserver.access.reviews import Answer
from unbounded.apiserver.auth import ANONYMOUS, OPEN_PATHS, UNAUTHENTICATED, Attributes, Credentials, Guard, User
from unbounded.apiserver.builtin import NAMESPACES
from unbounded.apiserver.documents import Document
from unbounded.apiserver.http import asked, discovery, negotiate, openapi_proto, paths, render
from unbounded.apiserver.http.audit import Entry
from unbounded.apiserver.http.negotiate import PLAIN, Form
from unbounded.apiserver.http.openapi import OpenApi
from unbounded.apiserver.http.paths import Listing, NoSuchPath, Place
from unbounded.apiserver.http.streams import Lines, Stream
from unbounded.apiserver.options import DeleteOptions, ListOptions, WriteOptions, check_timeout, first, revision
from unbounded.apiserver.reads import Page
from unbounded.apiserver.registry import Registry
from unbounded.apiserver.status import StatusError, warning_header
from unbounded.apiserver.types import Object, Resource
from unbounded.apiserver.versions import present
from unbounded.apiserver.writes import Outcome, Target

BODY_BYTES: Final = 3 * 2**20
BODY_S: Final = 60.0
GZIP_BYTES: Final = 128 * 1024
TEXT: Final = "text/plain; charset=utf-8"
JSON_BODIES: Final = frozenset({"", "application/json", "*/*"})
YAML_BODIES: Final = frozenset({"application/yaml", "application/x-yaml", "text/yaml"})
VERBS: Final[Mapping[tuple[str, bool], str]] = {
    ("GET", False): "list",
    ("HEAD", False): "list",
    ("POST", False): "create",
    ("DELETE", False): "deletecollection",
    ("GET", True): "get",
    ("HEAD", True): "get",
    ("POST", True): "create",
    ("PUT", True): "update",
    ("PUT", False): "update",
    ("PATCH", True): "patch",
    ("PATCH", False): "patch",
    ("DELETE", True): "delete",
}

NOBODY: Final = User(ANONYMOUS, (UNAUTHENTICATED,))

log = logging.getLogger(__name__)


@dataclass
class Call:
    """One request, as far as it is understood."""

    request: web.BaseRequest
    query: Mapping[str, list[str]]
    asker: User = NOBODY
    user: User = NOBODY  # whom the request acts as
    asked: Attributes | None = None
    form: Form = PLAIN
    warnings: list[str] = field(default_factory=list)

    def answer(self, body: bytes, code: int = 200, media: str = "") -> web.Response:
        headers = CIMultiDict({"Content-Type": media or self.form.media_type, "Cache-Control": "no-cache, private"})
        for text in self.warnings:
            headers.add("Warning", warning_header(text))
        return web.Response(body=body, status=code, headers=headers)


class Api:
    """Requests on a registry."""

    def __init__(
        self,
        registry: Registry,
        guard: Guard,
        version: Mapping[str, str],
        address: Callable[[], str],
        *,
        answers: Mapping[str, Answer],
        note: Callable[[Entry], None],
    ) -> None:
        self._registry = registry
        self._guard = guard
        self._answers = answers
        self._note = note
        self._escalation = Escalation(registry.roles, guard)
        self._openapi = OpenApi(registry.catalog)
        self._lines = Lines()
        self._address = address
        self._streams: set[Stream] = set()
        self._plain: Mapping[str, Callable[[Call], web.Response]] = {
            "/": lambda call: call.answer(msgspec.json.encode(discovery.roots(registry.catalog))),
            "/healthz": _ok,
            "/livez": _ok,
            "/readyz": _ok,
            "/version": lambda call: call.answer(msgspec.json.encode(version)),
            "/openapi/v2": self._openapi_v2,
            "/openapi/v3": lambda call: call.answer(self._openapi.index(), media=TEXT),  # as kube-apiserver does
        }

    def stop(self) -> None:
        """End all watches, in good order."""
        for stream in tuple(self._streams):
            stream.stop()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; whatever happens, in a form that clients of Kubernetes understand."""
        text = request.rel_url.raw_query_string
        call = Call(request, parse_qs(text, keep_blank_values=True) if text else {})
        code = 0
        try:
            response = await self._answered(call)
            code = response.status
        finally:
            self._note(_entry(call, code))
        if isinstance(response, web.Response):
            await _compress(request, response)
        return response

    async def _answered(self, call: Call) -> web.StreamResponse:
        request = call.request
        try:
            return await self._dispatch(call)
        except StatusError as error:
            return _failure(call, error)
        except NoSuchPath:
            return call.answer(b"404 page not found\n", 404, TEXT)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("a request failed", extra={"method": request.method, "path": request.path})
            return _failure(call, status.internal(f"{type(error).__name__}"))

    async def _dispatch(self, call: Call) -> web.StreamResponse:
        path = call.request.rel_url.raw_path
        if path not in OPEN_PATHS:
            call.asker = call.user = self._guard.identify(_credentials(call.request))
            call.user = impersonated(call.asker, call.request.headers, self._guard)
        try:
            place = paths.parse(self._registry.catalog, path)
        except NoSuchPath:
            self._check(call, asked.of_path(call.request.method, path))
            raise
        if isinstance(place, Place):
            return await self._resource(call, place)
        if path not in OPEN_PATHS:
            self._check(call, Attributes(call.request.method.lower(), path=path))
        if isinstance(place, Listing):
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

    def _check(self, call: Call, attributes: Attributes) -> None:
        """Raises StatusError (403)."""
        call.asked = attributes
        self._guard.check(call.user, attributes)

    def _openapi_v2(self, call: Call) -> web.Response:
        accept = call.request.headers.get("Accept", "")
        if any(media in accept for media in openapi_proto.ACCEPTED):
            return call.answer(self._openapi.v2_protobuf(), media=openapi_proto.MEDIA_TYPE)
        return call.answer(self._openapi.v2())

    def _discover(self, call: Call, listing: Listing) -> web.Response:
        catalog = self._registry.catalog
        if call.request.method not in {"GET", "HEAD"}:
            raise status.method_not_allowed()
        accept = call.request.headers.get("Accept", "")
        top = listing.version is None and (listing.group is None or listing.core)
        if top and negotiate.accepts_aggregated(accept):
            found = discovery.aggregated(catalog, core=listing.core)
            return call.answer(msgspec.json.encode(found), media=negotiate.DISCOVERY)
        call.form = negotiate.accepted(accept)
        found = discovery.document(catalog, listing, self._address())
        return call.answer(msgspec.json.encode(found), media="application/json")

    async def _resource(self, call: Call, place: Place) -> web.StreamResponse:
        verb = VERBS.get((call.request.method, bool(place.name)))
        resource = place.resource
        if resource is None or verb is None:
            self._check(call, asked.of_path(call.request.method, call.request.rel_url.raw_path))
            raise status.no_such_resource() if resource is None else status.method_not_allowed()
        watching = verb == "list" and (place.watch or first(call.query, "watch") in {"true", "1"})
        selector = first(call.query, "fieldSelector")
        self._check(call, asked.of_resource("watch" if watching else verb, resource, place, selector))
        if resource.deprecation:
            call.warnings.append(resource.deprecation)
        _check_place(place, verb)
        call.form = negotiate.accepted(call.request.headers.get("Accept", ""))
        if call.form.convert == "Table":
            render.check_include(first(call.query, "includeObject"))
        if watching:
            return await self._watch(call, place)
        check_timeout(call.query)
        handlers: Mapping[str, Callable[[Call, Place], Awaitable[web.StreamResponse]]] = {
            "get": self._get,
            "list": self._list,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }
        return await handlers[verb](call, place)

    async def _get(self, call: Call, place: Place) -> web.Response:
        resource = _known(place)
        asked = revision(first(call.query, "resourceVersion"))
        record = await self._registry.reads.get(resource, place.namespace, place.name, asked)
        return self._one(call, resource, Outcome(present(resource, record.body)))

    async def _list(self, call: Call, place: Place) -> web.Response:
        resource = _known(place)
        options = ListOptions.read(call.query, watch=False)
        found = await self._registry.reads.list(resource, place.namespace, options)
        return self._page(call, resource, found)

    async def _watch(self, call: Call, place: Place) -> web.StreamResponse:
        resource = _known(place)
        options = ListOptions.read(call.query, watch=True)
        watch = await self._registry.reads.watch(resource, place.namespace, options)
        stream = Stream(
            resource,
            watch,
            self._lines,
            form=call.form,
            include=first(call.query, "includeObject"),
            bookmarks=options.bookmarks,
            timeout_s=options.timeout_s,
        )
        self._streams.add(stream)
        try:
            return await stream.serve(call.request, call.warnings)
        finally:
            self._streams.discard(stream)

    async def _create(self, call: Call, place: Place) -> web.Response:
        resource = _known(place)
        options = self._write_options(call, resource, "CreateOptions")
        resource = resource.asked.get(place.subresource, resource)
        document = await _document(call, resource)
        answer = self._answers.get(resource.name)
        if answer is not None:
            return self._answer(call, place, answer, documents.ingest(resource, document, options))
        outcome = await self._registry.writes.create(resource, place.namespace, document, options)
        return self._one(call, resource, outcome)

    def _answer(self, call: Call, place: Place, answer: Answer, review: Object) -> web.Response:
        """Answer what is asked and not stored; the review gets its status."""
        answer(call.user, place, review)
        return self._one(call, _known(place), Outcome(metadata.encode(review, 0), created=True))

    def _write_options(self, call: Call, resource: Resource, kind: str) -> WriteOptions:
        options = WriteOptions.read(call.query, kind, call.warnings)
        creates = resource.type.create_on_update or kind == "PatchOptions"
        if resource.group != ROLES_GROUP and not creates:
            return options
        return replace(options, admit=partial(self._admit, call, resource))

    def _admit(self, call: Call, resource: Resource, obj: Object, old: Object | None) -> None:
        """What cannot be judged before it is known what is written. Raises StatusError (403)."""
        if old is None and call.request.method != "POST":  # who may change something may not, for that, create it
            namespace, name = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
            self._guard.check(call.user, Attributes("create", resource.group, resource.plural, "", namespace, name))
        if resource.group == ROLES_GROUP:
            self._escalation.check(call.user, resource, obj, old)

    async def _update(self, call: Call, place: Place) -> web.Response:
        resource = _known(place)
        options = self._write_options(call, resource, "UpdateOptions")
        document = await _document(call, resource)
        target = Target(resource, place.namespace, place.name, place.subresource)
        return self._one(call, resource, await self._registry.writes.update(target, document, options))

    async def _patch(self, call: Call, place: Place) -> web.Response:
        resource = _known(place)
        options = self._write_options(call, resource, "PatchOptions")
        supported = [patches.JSON, patches.MERGE]
        if resource.type.shape is not None:
            supported.append(patches.STRATEGIC)
        kind = call.request.content_type
        if kind not in supported:
            raise status.unsupported_media(supported)
        data = await _body(call.request)
        target = Target(resource, place.namespace, place.name, place.subresource)
        return self._one(call, resource, await self._registry.writes.patch(target, kind, data, options))

    async def _delete(self, call: Call, place: Place) -> web.Response:
        resource = _known(place)
        options = await _delete_options(call)
        target = Target(resource, place.namespace, place.name)
        deleted = await self._registry.deletes.delete(target, options)
        if deleted.body is not None:
            return self._one(call, resource, Outcome(deleted.body))
        done = status.success(resource.group, resource.plural, place.name, deleted.uid)
        return call.answer(msgspec.json.encode(done), media="application/json")

    async def _delete_collection(self, call: Call, place: Place) -> web.Response:
        resource = _known(place)
        selection = ListOptions.read(call.query, watch=False)
        options = await _delete_options(call)
        found = await self._registry.deletes.delete_collection(resource, place.namespace, selection, options)
        return self._page(call, resource, found)

    def _one(self, call: Call, resource: Resource, outcome: Outcome) -> web.Response:
        body = render.one(resource, outcome.body, call.form, first(call.query, "includeObject"))
        return call.answer(body, 201 if outcome.created else 200)

    def _page(self, call: Call, resource: Resource, found: Page) -> web.Response:
        return call.answer(render.page(resource, found, call.form, first(call.query, "includeObject")))


def _ok(call: Call) -> web.Response:
    return call.answer(b"ok", media=TEXT)


def _known(place: Place) -> Resource:
    if place.resource is None:
        raise status.no_such_resource()
    return place.resource


def _entry(call: Call, code: int) -> Entry:
    """What the audit log may note of a request."""
    request, method = call.request, call.request.method
    agent = request.headers.get("User-Agent", "")
    return Entry(method, request.raw_path, call.asker, call.user, call.asked, code, request.remote or "", agent)


def _credentials(request: web.BaseRequest) -> Credentials:
    transport = request.transport
    certificate = transport.get_extra_info("peercert") if transport is not None else None
    return Credentials(certificate, request.headers, partial(_encoded, transport))


def _encoded(transport: asyncio.Transport | None) -> bytes | None:
    """The client certificate as DER."""
    connection = transport.get_extra_info("ssl_object") if transport is not None else None
    encoded: bytes | None = connection.getpeercert(True) if connection is not None else None
    return encoded


def _check_place(place: Place, verb: str) -> None:
    """What cannot be done with a collection, an object or a subresource. Raises StatusError or NoSuchPath."""
    resource = _known(place)
    if not place.name:
        if verb in {"update", "patch"}:
            raise status.bad_request("name must be provided") if resource.custom else status.method_not_allowed()
        if verb not in resource.verbs:
            raise status.method_not_allowed()
        if resource.namespaced and not place.namespace and verb in {"create", "deletecollection"}:
            raise NoSuchPath if resource.custom else status.method_not_allowed()
        return
    for why in naming.path_segment(place.name):
        raise status.bad_request(f'Name parameter invalid: "{place.name}": {why}')
    if place.subresource and not _has_subresource(resource, place.subresource):
        if resource.custom:
            raise status.not_found(resource.group, resource.plural, place.name)
        raise status.no_such_resource()
    if place.subresource in resource.asked:
        if verb != "create":
            raise status.method_not_allowed()
        return
    if not resource.custom and resource.verbs == ("create",):  # asked and not stored
        raise status.method_not_allowed()
    if verb == "create" or (verb == "delete" and place.subresource):
        custom = status.not_supported(resource.group, resource.plural, verb)
        raise custom if resource.custom else status.method_not_allowed()


def _has_subresource(resource: Resource, name: str) -> bool:
    if name in resource.asked:
        return True
    return (name == "status" and resource.status) or (name == "finalize" and resource is NAMESPACES)


async def _document(call: Call, resource: Resource) -> Document:
    kind = _media(call.request)
    if kind == protobuf.MEDIA_TYPE and not resource.custom and protobuf.readable(resource.kind):
        return Document.read_protobuf(await _body(call.request), resource.kind)
    if kind not in JSON_BODIES | YAML_BODIES:
        raise status.unsupported_media(("application/json", "application/yaml", protobuf.MEDIA_TYPE))
    return Document.read(await _body(call.request), resource.kind, yaml=kind in YAML_BODIES)


def _media(request: web.BaseRequest) -> str:
    return request.content_type if "Content-Type" in request.headers else ""


async def _delete_options(call: Call) -> DeleteOptions:
    data = await _body(call.request)
    if not data:
        return DeleteOptions.read(call.query, None)
    if _media(call.request) == protobuf.MEDIA_TYPE:
        return DeleteOptions.read(call.query, Document.read_protobuf(data, "DeleteOptions").value)
    yaml = _media(call.request) in YAML_BODIES
    return DeleteOptions.read(call.query, Document.read(data, "DeleteOptions", yaml=yaml).value)


async def _body(request: web.BaseRequest) -> bytes:
    """The whole body. Raises StatusError (400, 413)."""
    if not request.can_read_body:
        return b""
    if (request.content_length or 0) > BODY_BYTES:
        raise status.too_large(BODY_BYTES)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_S):
            while part := await request.content.readany():
                parts.append(part)
                size += len(part)
                if size > BODY_BYTES:
                    raise status.too_large(BODY_BYTES)
    except TimeoutError:
        raise status.bad_request("the body of the request did not arrive in time") from None
    except web.HTTPException as error:
        raise status.bad_request(f"the body of the request cannot be read: {error.reason}") from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _failure(call: Call, error: StatusError) -> web.Response:
    response = call.answer(msgspec.json.encode(error.body()), error.code, "application/json")
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


async def _compress(request: web.BaseRequest, response: web.Response) -> None:
    """Compress a long answer for who accepts it; beside the event loop."""
    body = response.body
    if not isinstance(body, bytes) or len(body) < GZIP_BYTES:
        return
    if "gzip" not in request.headers.get("Accept-Encoding", ""):
        return
    response.body = await asyncio.to_thread(partial(gzip.compress, body, 1))
    response.headers["Content-Encoding"] = "gzip"
    response.headers["Vary"] = "Accept-Encoding"
