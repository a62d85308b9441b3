"""Delete expired bootstrap tokens, as kube-controller-manager does; they are not valid any more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from unbounded_apiserver.access import bootstrap
from unbounded_apiserver.builtin import SECRETS
from unbounded_apiserver.collection import ObjectChange
from unbounded_apiserver.controllers.work_queue import ControllerQueue, delete_expired
from unbounded_apiserver.deletes import Deletes
from unbounded_apiserver.store import Store
from unbounded_apiserver.writes import WriteTarget

_PREFIX: Final = SECRETS.key(bootstrap.NAMESPACE, "")


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
        if obj.get("type") != bootstrap.TYPE or (ends := bootstrap.expiration(obj)) is None:
            return
        wait_s = (ends - self._now()).total_seconds()
        if wait_s > 0:
            self._queue.add_after(key, wait_s)
        else:
            target = WriteTarget(SECRETS, bootstrap.NAMESPACE, obj["metadata"]["name"])
            await delete_expired(self._deletes, target, obj["metadata"]["uid"])
