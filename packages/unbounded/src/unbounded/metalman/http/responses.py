"""Answers as aiohttp sends them: header fields, and the texts that do not depend on the client."""

from __future__ import annotations

from email.utils import formatdate
from typing import Final

import msgspec
from aiohttp import web

from unbounded.metalman.http.conditions import (
    Decision,
    FileRange,
    NotModified,
    PreconditionFailed,
    RangeNotSatisfiable,
    RequestConditions,
    WholeFile,
)
from unbounded.metalman.http.ports import FileRejected, OnDisk, Rendered, ReportAnswer

NAME: Final = {"Server": "metalman"}
OCTETS: Final = "application/octet-stream"
MEDIA: Final = {".efi": "application/efi"}  # UEFI HTTP boot decides by the media type
# the same for everything that does not exist, is not requested yet, or belongs to another Machine
NOT_FOUND: Final = "not found\n"


def text_response(code: int, text: str, **more: str) -> web.Response:
    """Return an answer with one line of text; `more` are header fields, with `_` for `-`."""
    fields = {name.replace("_", "-"): value for name, value in more.items()}
    return web.Response(status=code, text=text, headers=NAME | fields)


def not_found() -> web.Response:
    return text_response(404, NOT_FOUND)


def rejected(found: FileRejected) -> web.Response:
    """Return the answer to a rejected request; all 404 answers are equal."""
    return not_found() if found.code == 404 else text_response(found.code, f"{found.text}\n")


def retry_later(seconds: int, text: str) -> web.Response:
    """Return a 503 answer with its Retry-After."""
    return text_response(503, f"{text}\n", Retry_After=str(max(seconds, 1)))


def outcome(found: ReportAnswer) -> web.Response:
    """Return the answer to a report."""
    fields = {} if found.retry_after_s is None else {"Retry-After": str(max(found.retry_after_s, 1))}
    body = msgspec.json.encode(found.body)
    return web.Response(status=found.code, body=body, content_type="application/json", headers=NAME | fields)


def conditions(request: web.BaseRequest) -> RequestConditions:
    """Return the conditional header fields of a request for a file."""

    def field(name: str) -> str | None:
        values = request.headers.getall(name, None)
        return None if values is None else ", ".join(values)

    return RequestConditions(
        if_match=field("If-Match"),
        if_unmodified_since=field("If-Unmodified-Since"),
        if_none_match=field("If-None-Match"),
        if_modified_since=field("If-Modified-Since"),
        if_range=field("If-Range"),
        range=field("Range"),
    )


def heading(found: OnDisk | Rendered, decision: Decision) -> tuple[int, dict[str, str]]:
    """Return status and header fields of an answer about a file, without its length."""
    fields = NAME | {"ETag": f'"{found.etag}"', "Cache-Control": "private, no-cache", "Accept-Ranges": "bytes"}
    if isinstance(found, OnDisk):
        fields["Last-Modified"] = formatdate(found.modified, usegmt=True)
    size = found.size if isinstance(found, OnDisk) else len(found.content)
    match decision:
        case NotModified():
            return 304, fields
        case PreconditionFailed():
            return 412, fields
        case RangeNotSatisfiable():
            return 416, fields | {"Content-Range": f"bytes */{size}"}
        case FileRange(start=start, stop=stop):
            fields["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        case WholeFile():
            pass
    media = found.media if isinstance(found, Rendered) else MEDIA.get(found.path.suffix.lower(), OCTETS)
    return 206 if isinstance(decision, FileRange) else 200, fields | {"Content-Type": media}
