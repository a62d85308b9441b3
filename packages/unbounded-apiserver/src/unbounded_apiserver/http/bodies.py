"""Bodies of requests: read within bounds, in the formats that clients send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from aiohttp import HttpVersion11, web

from unbounded_apiserver import protobuf, status
from unbounded_apiserver.decoding import RequestDocument
from unbounded_apiserver.http.call import ApiCall
from unbounded_apiserver.options import DeleteOptions
from unbounded_apiserver.type_desc import StructType
from unbounded_apiserver.types import Resource
from unbounded_apiserver.workloads.pods import DELETE_OPTIONS

BODY_BYTES: Final = 3 * 2**20
BODY_S: Final = 60.0
QUICK_BYTES: Final = 32 * 1024  # of bodies that are not decoded by C code
JSON: Final = "application/json"
JSON_BODIES: Final = frozenset({"", JSON, "*/*"})
YAML_BODIES: Final = frozenset({"application/yaml", "application/x-yaml", "text/yaml"})


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
