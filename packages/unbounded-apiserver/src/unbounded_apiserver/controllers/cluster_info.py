"""Sign ConfigMap kube-public/cluster-info with bootstrap tokens, as kube-controller-manager does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final

from unbounded.kube import cluster_info
from unbounded.kube.cluster_info import KUBECONFIG, SIGNATURE
from unbounded_apiserver.access import bootstrap
from unbounded_apiserver.builtin import CONFIG_MAPS, SECRETS
from unbounded_apiserver.collection import ObjectChange
from unbounded_apiserver.controllers.work_queue import ControllerQueue
from unbounded_apiserver.store import Store
from unbounded_apiserver.types import Object
from unbounded_apiserver.writes import Writes, WriteTarget

_INFO: Final = WriteTarget(CONFIG_MAPS, cluster_info.NAMESPACE, cluster_info.NAME)
_TOKENS: Final = SECRETS.key(bootstrap.NAMESPACE, bootstrap.PREFIX)


class ClusterInfoSigner:
    """The controller that signs the ConfigMap; without the ConfigMap it is idle. `TokenExpiry` deletes old tokens."""

    def __init__(self, store: Store, writes: Writes, now: Callable[[], datetime]) -> None:
        self._store = store
        self._writes = writes
        self._now = now
        self._queue: ControllerQueue[str] = ControllerQueue(self._sign)

    def begin(self) -> None:
        self._queue.add(_INFO.key)
        self._store.listen(self._on_change, CONFIG_MAPS.name)
        self._store.listen(self._on_change, SECRETS.name)

    async def run(self) -> None:
        await self._queue.run()

    def _on_change(self, change: ObjectChange) -> None:
        if change.record.key == _INFO.key or change.record.key.startswith(_TOKENS):
            self._queue.add(_INFO.key)

    async def _sign(self, _: str) -> None:
        await self._writes.edit(_INFO, self._signed)

    def _signed(self, obj: Object) -> None:
        data = obj.get("data") or {}
        kept = {key: value for key, value in data.items() if not key.startswith(SIGNATURE)}
        text = kept.get(KUBECONFIG)
        if text is not None:
            for identity, secret in self._signing_tokens():
                kept[SIGNATURE + identity] = cluster_info.signed(text, identity, secret)
        if kept != data:
            obj["data"] = kept

    def _signing_tokens(self) -> Iterator[tuple[str, str]]:
        """Yield the ids and secrets of the tokens that may sign now."""
        for record in self._store.snapshot(SECRETS.name).with_prefix(_TOKENS):
            obj = record.decode()
            if (token := bootstrap.token_of(obj, "usage-bootstrap-signing", self._now())) is not None:
                yield token.id, token.secret
