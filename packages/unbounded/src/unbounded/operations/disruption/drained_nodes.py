"""Access to the Nodes that are drained: their cordons and conditions, their pods and evictions, and their return."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unbounded.api.core import LEASES, NODE_LEASES, NODES, PODS, Node, NodeCondition, Pod, evictions_of
from unbounded.api.failures import Stale
from unbounded.api.names import ANNOTATION_CORDONED_BY
from unbounded.kube.api import Api, Conflict, EvictionBlocked, NotFound, ServerError
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, loop_time, rfc3339
from unbounded.kube.status_writer import StatusWriter
from unbounded.operations.disruption.drain import RETRY_S, EvictionRefusal, refusal
from unbounded.operations.disruption.model import is_cordoned_by_us, node_conditions
from unbounded.operations.disruption.plan import DisruptionPlan
from unbounded.operations.disruption.stages import CORDON, UNCORDON


class NodeMarker:
    """Writer of the cordons and conditions of Nodes.

    Args:
        check_leads: called before each write; raises Stale once another process may lead.
    """

    def __init__(self, api: Api, nodes: Cache[Node], now: WallClock, check_leads: Callable[[], None]) -> None:
        self._api = api
        self._nodes = nodes
        self._now = now
        self._check_leads = check_leads
        self._status = StatusWriter(api, NODES, fields=("conditions",), cache=nodes, strategic=True)

    async def mark(self, node: Node, plan: DisruptionPlan, holder: str | None) -> None:
        """Set the conditions of a Node, then change its cordon: the server adds a taint to a cordoned Node."""
        if plan.conditions:
            node = await self._set_conditions(node, plan.conditions)
        if plan.action in (CORDON, UNCORDON):
            await self._patch(node, {"unschedulable": holder is not None or None}, holder)

    async def clear(self, node: Node) -> None:
        """Undo what a disruption has left on a Node."""
        self._check_leads()
        if conditions := node_conditions(node, None):
            node = await self._set_conditions(node, conditions)
        if is_cordoned_by_us(node):
            await self._patch(node, {"unschedulable": None}, None)

    async def _patch(self, node: Node, spec: Mapping[str, Any], holder: str | None) -> None:
        self._check_leads()
        metadata = {"resourceVersion": node.metadata.resource_version, "annotations": {ANNOTATION_CORDONED_BY: holder}}
        try:
            patched = await self._api.patch(NODES, node.metadata.name, {"metadata": metadata, "spec": dict(spec)})
        except NotFound as error:
            raise Stale(f"Node {node.metadata.name} is gone") from error
        self._nodes.observe(patched)

    async def _set_conditions(self, node: Node, conditions: tuple[NodeCondition, ...]) -> Node:
        """Set conditions of a Node as it was read; return the Node with them.

        Raises:
            Conflict: the Node has changed since.
            Stale: it is gone.
        """
        present, now = {one.type: one.status for one in node.status.conditions}, rfc3339(self._now())
        changed = [
            {
                "type": one.type,
                "status": one.status,
                "reason": one.reason,
                "message": one.message or "",
                "lastHeartbeatTime": now,
                **({"lastTransitionTime": now} if present.get(one.type) != one.status else {}),
            }
            for one in conditions
        ]
        self._check_leads()
        try:
            written = await self._status.write(node, {"conditions": changed})
        except NotFound as error:
            raise Stale(f"Node {node.metadata.name} is gone") from error
        return node if written is None else written


def is_marked(node: Node | None) -> bool:
    """Return whether a Node has a cordon or conditions of ours."""
    return node is not None and (is_cordoned_by_us(node) or bool(node_conditions(node, None)))


@dataclass
class NodeReturn:
    """The return of one Machine's Node: the time since it is Ready in its present boot, and a renewed lease."""

    # UID and boot ID of the Node that is Ready, and since when it says so
    ready_as: tuple[str | None, ...] | None = None
    ready_at: float = 0.0
    renewed_from: str | None = None
    renewed: bool = False

    def ready_s(self, node: Node | None, now: float) -> float:
        """Return the seconds since this Node, in this boot, was first observed Ready.

        A watch that broke may have hidden that it was away: its own lastTransitionTime then differs.
        """
        if node is None or not node.ready:
            self.ready_as = None
            self.reset_renewal()
            return 0.0
        info, ready = node.status.node_info, node.ready_condition
        boot_id = None if info is None else info.boot_id
        ready_as = (node.metadata.uid, boot_id, None if ready is None else ready.last_transition_time)
        if ready_as != self.ready_as:
            self.ready_as, self.ready_at = ready_as, now
            self.reset_renewal()
        return now - self.ready_at

    def reset_renewal(self) -> None:
        """Forget the lease: only a later renewal counts."""
        self.renewed_from, self.renewed = None, False

    async def is_renewed(self, api: Api, node: Node) -> bool:
        """Return whether kubelet has renewed its lease since the Node was first observed Ready."""
        if self.renewed:
            return True
        try:
            lease = await api.get(LEASES, node.metadata.name, namespace=NODE_LEASES)
        except NotFound:
            self.renewed = True
            return True
        renewed = lease.spec.renew_time or ""
        self.renewed = self.renewed_from not in (None, renewed)
        self.renewed_from = self.renewed_from if self.renewed_from is not None else renewed
        return self.renewed


@dataclass
class PodEvictions:
    """Evictions of the pods of one Machine's Node, with the answers of the server."""

    refusals: dict[str, EvictionRefusal] = field(default_factory=dict)  # by the UID of the pod
    evicted: dict[str, float] = field(default_factory=dict)  # UIDs of pods, until the watch has surely shown their end

    async def evict(
        self,
        api: Api,
        pods: tuple[Pod, ...],
        check_leads: Callable[[], None],
        limiter: asyncio.Semaphore,
        *,
        dry_run: bool = False,
    ) -> None:
        """Evict pods side by side, by their UIDs; keep the answers of a server that does not.

        Args:
            limiter: of the evictions from all Nodes, so that other writes do not wait for a thousand of them.
            dry_run: evict none.
        """
        self.evicted = {uid: until for uid, until in self.evicted.items() if until > loop_time()}
        async with asyncio.TaskGroup() as group:
            for pod in pods:
                if pod.metadata.uid not in self.evicted:
                    group.create_task(self._evict_one(api, pod, check_leads, limiter, dry_run=dry_run))

    async def _evict_one(
        self, api: Api, pod: Pod, check_leads: Callable[[], None], limiter: asyncio.Semaphore, *, dry_run: bool
    ) -> None:
        """Evict a pod, by its UID; keep the answer of a server that does not."""
        meta = pod.metadata
        body = {
            "metadata": {"name": meta.name, "namespace": meta.namespace},
            "deleteOptions": {"preconditions": {"uid": meta.uid}, **({"dryRun": ["All"]} if dry_run else {})},
        }
        try:
            async with limiter:
                check_leads()
                await api.create(evictions_of(meta.name), body, namespace=meta.namespace or "")
        except (NotFound, Conflict):  # it is gone, or another one has its name: the watch delivers it
            self.refusals.pop(meta.uid, None)
        except (EvictionBlocked, ServerError) as error:  # ServerError: several budgets select the pod
            causes = (error.status.get("details") or {}).get("causes") or ()
            texts = [str(cause.get("message", "")) for cause in causes]
            self.refusals[meta.uid] = refusal(pod, str(error), texts, loop_time())
        else:
            self.refusals.pop(meta.uid, None)
            self.evicted[meta.uid] = loop_time() + RETRY_S


class PodCaches:
    """Caches of the pods of those Nodes that are being drained.

    Args:
        changed: called with the name of a Machine on whose Node pods have changed.
    """

    def __init__(self, api: Api, tasks: asyncio.TaskGroup, changed: Callable[[str], None]) -> None:
        self._api = api
        self._tasks = tasks
        self._changed = changed
        self._caches: dict[str, tuple[Cache[Pod], asyncio.Task[None]]] = {}

    def of(self, machine: str, node: Node) -> tuple[Pod, ...] | None:
        """Return the pods of a Machine's Node; None until they are known. The first call begins to follow them."""
        if machine not in self._caches:
            cache = Cache(self._api, PODS, fields=f"spec.nodeName={node.metadata.name}")
            cache.subscribe(lambda _old, _new: self._changed(machine))
            self._caches[machine] = (cache, self._tasks.create_task(cache.run(), name=f"pods of {machine}"))
        cache, _task = self._caches[machine]
        return cache.all() if cache.synced.is_set() else None

    def stop(self, machine: str) -> None:
        """Follow the pods of a Machine's Node no longer."""
        cache = self._caches.pop(machine, None)
        if cache is not None:
            cache[1].cancel()
