"""Delete what has expired: Events an hour after they were last written, and bootstrap tokens.

kube-controller-manager deletes such tokens, too; they are not valid any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from unbounded_apiserver import metadata
from unbounded_apiserver.access import tokens
from unbounded_apiserver.builtin_resources import EVENTS, SECRETS
from unbounded_apiserver.collection import ObjectChange, StoredObject
from unbounded_apiserver.controllers.work_queue import ControllerQueue, delete_expired
from unbounded_apiserver.deletes import Deletes
from unbounded_apiserver.store import Store
from unbounded_apiserver.writes import WriteTarget, wait_stored

_PREFIX: Final = SECRETS.key(tokens.NAMESPACE, "")
MAX_AGE: Final = timedelta(hours=1)
AT_ONCE: Final = 500


class TokenExpiry:
    """The controller of expiring tokens: a timer for each. Without tokens it is idle."""

    def __init__(self, store: Store, deletes: Deletes, now: Callable[[], datetime]) -> None:
        self._store = store
        self._deletes = deletes
        self._now = now
        self._queue: ControllerQueue[str] = ControllerQueue(self._reconcile)

    def begin(self) -> None:
        for record in self._store.snapshot(SECRETS.name).with_prefix(_PREFIX):
            self._queue.add(record.key)
        self._store.listen(self._on_change, SECRETS.name)

    async def run(self) -> None:
        await self._queue.run()

    def _on_change(self, change: ObjectChange) -> None:
        key = change.record.key
        if not key.startswith(_PREFIX):
            return
        self._queue.cancel(key)
        if not change.deleted:
            self._queue.add(key)

    async def _reconcile(self, key: str) -> None:
        record = self._store.get(SECRETS.name, key)
        obj = record.decode() if record is not None else {}
        if obj.get("type") != tokens.TYPE or (ends := tokens.expiration(obj)) is None:
            return
        wait_s = (ends - self._now()).total_seconds()
        if wait_s > 0:
            self._queue.add_after(key, wait_s)
        else:
            target = WriteTarget(SECRETS, tokens.NAMESPACE, obj["metadata"]["name"])
            await delete_expired(self._deletes, target, obj["metadata"]["uid"])


class EventExpiry:
    """The controller of Events. It sleeps until the oldest Event is due; without Events it is idle."""

    def __init__(self, store: Store, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now
        self._due: deque[tuple[datetime, StoredObject]] = deque()
        self._wake = asyncio.Event()

    def begin(self) -> None:
        """Index the stored Events by the times in them, and listen for changes."""
        now = self._now()
        records = self._store.snapshot(EVENTS.name).with_prefix("")
        self._due.extend(sorted(((_written(r, now) + MAX_AGE, r) for r in records), key=lambda due: due[0]))
        self._store.listen(self._on_change, EVENTS.name)

    def _on_change(self, change: ObjectChange) -> None:
        if not change.deleted:
            self._due.append((self._now() + MAX_AGE, change.record))
            self._wake.set()

    async def run(self) -> None:
        while True:
            if not self._due:
                self._wake.clear()
                await self._wake.wait()
            wait = (self._due[0][0] - self._now()).total_seconds()
            if wait > 0:
                await asyncio.sleep(wait)
            await self._expire()

    async def _expire(self) -> None:
        now = self._now()
        expired: list[StoredObject] = []
        while self._due and self._due[0][0] <= now and len(expired) < AT_ONCE:
            record = self._due.popleft()[1]
            if self._store.get(EVENTS.name, record.key) is record:
                expired.append(record)
        await asyncio.gather(*(self._delete(record) for record in expired))

    async def _delete(self, record: StoredObject) -> None:
        current = await self._store.wait_current(EVENTS.name, record.key)
        if current is record:
            await wait_stored(self._store.remove(EVENTS.name, record))


def _written(record: StoredObject, now: datetime) -> datetime:
    """Return the time of an Event's last write. Times in the future are ignored: clients choose most of them."""
    event = record.decode()
    texts = (event.get("lastTimestamp"), event.get("eventTime"), event["metadata"]["creationTimestamp"])
    moments = [moment for text in texts if (moment := metadata.parse_time(text)) is not None and moment <= now]
    return max(moments, default=now)
