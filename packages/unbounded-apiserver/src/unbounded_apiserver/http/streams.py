"""Watch streams: events as lines of JSON, encoded once for all watchers that see the same."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from typing import Any, Final

import msgspec
from aiohttp import web

from unbounded_apiserver import status
from unbounded_apiserver.http import render
from unbounded_apiserver.http.api_call import PLAIN, AnswerForm
from unbounded_apiserver.http.reply import send
from unbounded_apiserver.reads import ObjectEvent, Overrun, Watch
from unbounded_apiserver.resource_model import Resource, served_body
from unbounded_apiserver.status import warning_headers

REMEMBERED_LINES: Final = 512
REMEMBERED_BYTES: Final = 8 * 2**20
TIMEOUT_S: Final = (1800.0, 3600.0)  # if the client names none: at random between these, so that not all end together
BOOKMARK_S: Final = 60.0
LAST_BOOKMARK_S: Final = 2.0  # before the end
WRITE_BYTES: Final = 256 * 1024


class EventLines:
    """Encoded events, cached for a while: the watchers of a change need them within one turn of the event loop."""

    def __init__(self) -> None:
        self._lines: OrderedDict[tuple[Resource, str, int], bytes] = OrderedDict()
        self.size = 0

    def plain(self, resource: Resource, event: ObjectEvent) -> bytes:
        key = (resource, event.type, event.record.revision)
        line = self._lines.get(key)
        if line is None:
            body = served_body(resource, event.record.body)
            line = b'{"type":"%b","object":%b}\n' % (event.type.encode(), body)
            self._lines[key] = line
            self.size += len(line)
            while len(self._lines) > REMEMBERED_LINES or self.size > REMEMBERED_BYTES:
                self.size -= len(self._lines.popitem(last=False)[1])
        return line


class WatchStream:
    """One watch, written to one client until its time is up, the server stops, or the client falls behind."""

    def __init__(
        self,
        resource: Resource,
        watch: Watch,
        lines: EventLines,
        *,
        form: AnswerForm = PLAIN,
        include: str = "",
        bookmarks: bool = False,
        timeout_s: int | None = None,
    ) -> None:
        self.resource = resource
        self._watch = watch
        self._lines = lines
        self._form = form
        self._include = include
        self._bookmarks = bookmarks
        self._timeout_s = random.uniform(*TIMEOUT_S) if not timeout_s else float(timeout_s)  # noqa: S311 - not a secret
        self._headed = False

    async def serve(self, request: web.BaseRequest, warnings: list[str]) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": self._form.media_type, "Cache-Control": "no-cache, private"}
        )
        for value in warning_headers(warnings):
            response.headers.add("Warning", value)
        response.enable_chunked_encoding()
        await response.prepare(request)
        if request.transport is not None:
            self._watch.on_overrun = request.transport.abort
        try:
            await self._write(request, response)
        except (Overrun, ConnectionError):
            return response
        finally:
            self._watch.close()
        return response

    def stop(self) -> None:
        """End the stream soon and in good order."""
        self._watch.close()

    async def _write(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        if self._watch.compacted is not None:
            await send(request, response, self._error(str(self._watch.compacted)))
            return
        loop = asyncio.get_running_loop()
        end = loop.time() + self._timeout_s
        next_bookmark = _next_bookmark(loop.time(), end)
        if self._watch.initial_until is not None:
            await self._send(request, response, self._watch.take())
            await send(request, response, self._bookmark(self._watch.initial_until, whole=True))
        while (now := loop.time()) < end and not self._watch.closed:
            await self._send(request, response, self._watch.take())
            if self._bookmarks and now >= next_bookmark:
                await send(request, response, self._bookmark(self._watch.progress()))
                next_bookmark = _next_bookmark(now, end)
            pause = min(end, next_bookmark) - now if self._bookmarks else end - now
            try:
                async with asyncio.timeout(max(pause, 0.001)):
                    await self._watch.wait()
            except TimeoutError:
                continue

    async def _send(self, request: web.BaseRequest, response: web.StreamResponse, events: list[ObjectEvent]) -> None:
        chunk: list[bytes] = []
        size = 0
        for event in events:
            line = self._line(event)
            chunk.append(line)
            size += len(line)
            if size >= WRITE_BYTES:
                await send(request, response, b"".join(chunk))
                chunk, size = [], 0
        if chunk:
            await send(request, response, b"".join(chunk))

    def _line(self, event: ObjectEvent) -> bytes:
        if not self._form.convert:
            return self._lines.plain(self.resource, event)
        obj = msgspec.json.decode(served_body(self.resource, event.record.body))
        if self._form.convert == "Table":
            meta = {"resourceVersion": str(event.record.revision)}
            shown: Any = render.table(self.resource, [obj], meta, self._form, self._include, headed=not self._headed)
            self._headed = True
        else:
            shown = render.partial(obj, self._form.version)
        return msgspec.json.encode({"type": event.type, "object": shown}) + b"\n"

    def _bookmark(self, revision: int, *, whole: bool = False) -> bytes:
        meta: dict[str, Any] = {"resourceVersion": str(revision)}
        if whole:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        kind, version = self.resource.kind, self.resource.api_version
        if self._form.convert == "Table":
            shown: Any = {
                "kind": "Table",
                "apiVersion": f"meta.k8s.io/{self._form.version}",
                "metadata": meta,
                "columnDefinitions": None,
                "rows": [],
            }
        elif self._form.convert:
            shown = {
                "kind": "PartialObjectMetadata",
                "apiVersion": f"meta.k8s.io/{self._form.version}",
                "metadata": meta,
            }
        else:
            shown = {"apiVersion": version, "kind": kind, "metadata": meta}
        return msgspec.json.encode({"type": "BOOKMARK", "object": shown}) + b"\n"

    @staticmethod
    def _error(message: str) -> bytes:
        return msgspec.json.encode({"type": "ERROR", "object": status.expired(message).body()}) + b"\n"


def _next_bookmark(now: float, end: float) -> float:
    """Return the time of the next bookmark: every minute, and a last one shortly before the end."""
    last = end - LAST_BOOKMARK_S
    return last if now < last < now + BOOKMARK_S else now + BOOKMARK_S
