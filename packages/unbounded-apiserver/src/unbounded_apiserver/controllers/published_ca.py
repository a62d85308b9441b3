"""Publish the server's CA, as kube-controller-manager does.

Pods find it in ConfigMap `kube-root-ca.crt` of each namespace. ConfigMap kube-public/cluster-info is signed with
bootstrap tokens, so that a host with a token can verify it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final

from unbounded.kube import cluster_info
from unbounded.kube.cluster_info import KUBECONFIG, SIGNATURE
from unbounded_apiserver.access import tokens
from unbounded_apiserver.api_resources import Object
from unbounded_apiserver.builtin import CONFIG_MAPS, NAMESPACES, SECRETS
from unbounded_apiserver.collection import ObjectChange
from unbounded_apiserver.controllers.work_queue import ControllerQueue
from unbounded_apiserver.decoding import normalize
from unbounded_apiserver.options import WriteOptions
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.store import Store
from unbounded_apiserver.workloads.pod_admission import ROOT_CA
from unbounded_apiserver.writes import Writes, WriteTarget

_DESCRIPTION: Final = "kubernetes.io/description"
_WORDS: Final = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
    "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes "
    "clusters."
)
_INFO: Final = WriteTarget(CONFIG_MAPS, cluster_info.NAMESPACE, cluster_info.NAME)
_TOKENS: Final = SECRETS.key(tokens.NAMESPACE, tokens.PREFIX)


class RootCaPublisher:
    """The controller that publishes `certificate`, which is set before it begins."""

    def __init__(self, store: Store, writes: Writes) -> None:
        self._store = store
        self._writes = writes
        self.certificate = ""
        self._queue: ControllerQueue[str] = ControllerQueue(self.ensure)

    def begin(self) -> None:
        for key in self._store.snapshot(NAMESPACES.name).keys:
            self._queue.add(key)
        self._store.listen(self._on_namespace, NAMESPACES.name)
        self._store.listen(self._on_config_map, CONFIG_MAPS.name)

    async def run(self) -> None:
        await self._queue.run()

    def _on_namespace(self, change: ObjectChange) -> None:
        if change.previous is None:
            self._queue.add(change.record.key)

    def _on_config_map(self, change: ObjectChange) -> None:
        """Queue the namespace of a ConfigMap that another client changed or deleted."""
        if change.record.name == ROOT_CA and (change.deleted or change.previous is not None):
            self._queue.add(change.record.namespace)

    async def ensure(self, namespace: str) -> None:
        """Create or correct the ConfigMap of a namespace that is not being deleted."""
        if (holder := self._store.get(NAMESPACES.name, namespace)) is None or b'"deletionTimestamp"' in holder.bare:
            return
        if self._store.get(CONFIG_MAPS.name, f"{namespace}/{ROOT_CA}") is not None:
            await self._writes.edit(WriteTarget(CONFIG_MAPS, namespace, ROOT_CA), self._correct)
            return
        obj: Object = {"metadata": {"name": ROOT_CA}}
        self._correct(obj)
        normalize(CONFIG_MAPS, obj)
        try:
            await self._writes.create_object(CONFIG_MAPS, namespace, obj, WriteOptions())
        except StatusError as error:
            if error.code not in {403, 404, 409}:  # created meanwhile, or the namespace is being deleted
                raise

    def _correct(self, obj: Object) -> None:
        obj["data"] = {"ca.crt": self.certificate}
        if not obj["metadata"].get("annotations", {}).get(_DESCRIPTION):
            obj["metadata"].setdefault("annotations", {})[_DESCRIPTION] = _WORDS


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
            if (token := tokens.token_of(obj, "usage-bootstrap-signing", self._now())) is not None:
                yield token.id, token.secret
