"""One object of the API, followed over any failure of the connection.

A `Cache` handles dropped, half-open and expired watches. This module adds what a user needs to know: that the server
does not answer, and that a right is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar

from unbounded.api.kinds import Kind
from unbounded.kube.cache import Cache
from unbounded.kube.errors import ApiError, Expired, Forbidden
from unbounded.kube.port import Api, ObjectList, WatchEvent

T = TypeVar("T")


QUIET_S: Final = 3.0


class WatchedObject(Generic[T]):
    """Latest state of one object.

    Attributes:
        synced: whether the state is known; before, `now` has no meaning.
    """

    def __init__(self, changed: asyncio.Event) -> None:
        self._changed = changed
        self._now: T | None = None
        self._refused: Forbidden | None = None
        self.synced = False
        self._trouble: tuple[str, float] | None = None  # the error, and the loop time of its start

    @property
    def trouble(self) -> str:
        """The reason why the server has not answered for QUIET_S; empty when all is well.

        A broken watch is usually restored at once, and is not reported.
        """
        if self._trouble is None:
            return ""
        text, since = self._trouble
        return text if asyncio.get_running_loop().time() - since >= QUIET_S else ""

    @property
    def now(self) -> T | None:
        """The object; None when there is none (any more). Raises Forbidden when the user may not watch it."""
        if self._refused is not None:
            raise self._refused
        return self._now

    def on_change(self, old: T | None, new: T | None) -> None:  # noqa: ARG002  # as a cache calls it
        self._now, self.synced = new, True
        self._changed.set()

    def on_synced(self) -> None:
        """Record that the first list is complete, whether the object exists or not."""
        self.synced = True
        self._changed.set()

    def on_response(self) -> None:
        if self._trouble is not None:
            self._trouble = None
            self._changed.set()

    def on_error(self, error: ApiError) -> None:
        if isinstance(error, Forbidden):
            self._refused = error
        elif not isinstance(error, Expired):  # a long watch regularly ends with Expired
            since = asyncio.get_running_loop().time() if self._trouble is None else self._trouble[1]
            self._trouble = (str(error), since)
        self._changed.set()


@asynccontextmanager
async def watched_object(
    api: Api, kind: Kind[T], name: str, changed: asyncio.Event, *, namespace: str = ""
) -> AsyncIterator[WatchedObject[T]]:
    """Follow one object inside the context; `changed` is set after each change."""
    followed: WatchedObject[T] = WatchedObject(changed)
    cache = Cache(_ReportingApi(api, followed), kind, namespace=namespace, fields=f"metadata.name={name}")
    task = asyncio.create_task(_run(cache, followed))
    try:
        with cache.subscribed(followed.on_change):
            yield followed
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _run(cache: Cache[T], followed: WatchedObject[T]) -> None:
    running = asyncio.create_task(cache.run())
    try:
        await cache.synced.wait()
        followed.on_synced()
        await running
    finally:
        running.cancel()


class _ReportingApi:
    """An `Api` that forwards all calls and reports the results of reads."""

    def __init__(self, api: Api, followed: WatchedObject[Any]) -> None:
        self._api, self._followed = api, followed

    async def list(self, kind: Kind[T], *, namespace: str = "", labels: str = "", fields: str = "") -> ObjectList[T]:
        try:
            found = await self._api.list(kind, namespace=namespace, labels=labels, fields=fields)
        except ApiError as error:
            self._followed.on_error(error)
            raise
        self._followed.on_response()
        return found

    async def watch(
        self, kind: Kind[T], *, resource_version: str, namespace: str = "", labels: str = "", fields: str = ""
    ) -> AsyncIterator[WatchEvent[T]]:
        selection = {"namespace": namespace, "labels": labels, "fields": fields}
        stream = self._api.watch(kind, resource_version=resource_version, **selection)
        try:
            async for event in stream:
                self._followed.on_response()
                yield event
        except ApiError as error:
            self._followed.on_error(error)
            raise
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T:
        return await self._api.get(kind, name, namespace=namespace)

    async def create(self, kind: Kind[T], body: Mapping[str, Any], *, namespace: str = "") -> T:
        return await self._api.create(kind, body, namespace=namespace)

    async def patch(
        self, kind: Kind[T], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        return await self._api.patch(kind, name, patch, namespace=namespace, subresource=subresource)

    async def delete(
        self, kind: Kind[T], name: str, *, namespace: str = "", uid: str = "", resource_version: str = ""
    ) -> None:
        await self._api.delete(kind, name, namespace=namespace, uid=uid, resource_version=resource_version)

    async def version(self) -> str:
        return await self._api.version()
