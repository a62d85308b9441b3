"""Follow the health of Nodes by their status and Leases; taint unhealthy ones, and remove the taints afterwards.

A Node is unhealthy when neither its status nor its Lease has changed for the grace period. The period begins when this
server noticed the last change: clocks that differ, or an outage of the server, do not make a Node unhealthy.

The health of a zone limits the rate of evictions from its Nodes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from unbounded_apiserver.access.node_authorizer import LEASES as LEASES_NAMESPACE
from unbounded_apiserver.builtin_resources import LEASES, NODES
from unbounded_apiserver.collection import ObjectChange, StoredObject
from unbounded_apiserver.controllers.nodes import NodeTimes, conditions
from unbounded_apiserver.controllers.nodes.conditions import TRUE, UNKNOWN
from unbounded_apiserver.controllers.nodes.events import ApiEventRecorder
from unbounded_apiserver.controllers.nodes.pods import NODE_CONTROLLER, mark_not_ready
from unbounded_apiserver.controllers.work_queue import ControllerQueue
from unbounded_apiserver.resource_model import Object
from unbounded_apiserver.store import Store
from unbounded_apiserver.writes import Writes, WriteTarget

LARGE: Final = 50  # Nodes of a zone
MANY: Final = 0.55  # share of unhealthy Nodes in a zone from which evictions slow down or stop
EXCLUDED: Final = "node.kubernetes.io/exclude-disruption"
_REGION: Final = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
_ZONE: Final = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")


class NodeReadiness(NamedTuple):
    """The zone and the readiness of a Node."""

    zone: str
    is_ready: bool


class Disruption(Enum):
    """The extent of a zone's disruption."""

    NONE = "most Nodes are ready"
    PARTIAL = "many Nodes are not ready"
    FULL = "no Node is ready"


def zone_of(labels: Mapping[str, Any]) -> str:
    region, zone = (next((labels[key] for key in keys if labels.get(key)), "") for keys in (_REGION, _ZONE))
    return f"{region}:{zone}"


class Zones:
    """The state of all zones, and the time at which the next Node of each may be tainted NoExecute."""

    def __init__(self, times: NodeTimes) -> None:
        self._times = times
        self._sizes: Counter[str] = Counter()
        self._states: dict[str, Disruption] = {}
        self._next: dict[str, float] = {}

    @property
    def is_all_away(self) -> bool:
        """True if no Node anywhere is ready: then the fault is probably here, and nothing is evicted."""
        return bool(self._states) and all(state is Disruption.FULL for state in self._states.values())

    def update(self, nodes: Iterable[NodeReadiness]) -> bool:
        """Count all Nodes; return whether the state of a zone changed."""
        away: Counter[str] = Counter()
        self._sizes.clear()
        for node in nodes:
            self._sizes[node.zone] += 1
            away[node.zone] += not node.is_ready
        before = self._states
        self._states = {zone: _state(away[zone], size) for zone, size in self._sizes.items()}
        return self._states != before

    def wait_s(self, zone: str, now: float) -> float | None:
        """Return the seconds until a Node of a zone may be tainted, None while evictions are stopped."""
        if self.is_all_away or self._interval_s(zone) is None:
            return None
        return max(0.0, self._next.get(zone, now) - now)

    def tainted(self, zone: str, now: float) -> None:
        """Count a Node that was tainted."""
        self._next[zone] = now + (self._interval_s(zone) or 0.0)

    def _interval_s(self, zone: str) -> float | None:
        if self._states.get(zone) is not Disruption.PARTIAL:
            return self._times.taint_interval_s
        return self._times.slow_interval_s if self._sizes[zone] > LARGE else None


def _state(away: int, size: int) -> Disruption:
    if away == size:
        return Disruption.FULL
    return Disruption.PARTIAL if away > 2 and away / size >= MANY else Disruption.NONE


WORKERS: Final = 8  # their writes share commits
_PREFIX: Final = f"{LEASES_NAMESPACE}/"


class _Spec(msgspec.Struct, rename="camel"):
    renew_time: str | None = None


class _Lease(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)


_leases: Final = msgspec.json.Decoder(_Lease)


@dataclass
class _Health:
    """A Node's last observed state; `observed_at` is its last sign of life, on this process's clock."""

    uid: str
    observed_at: float
    ready: str = ""
    heartbeat: str = ""
    renewed: str = ""
    zone: str = ""
    excluded: bool = False
    is_registered: bool = False


class NodeLifecycle:
    """The controller of Node health. Each Node has one timer, which restarts when it fires and the Node is healthy."""

    def __init__(
        self, store: Store, writes: Writes, events: ApiEventRecorder, now: Callable[[], datetime], times: NodeTimes
    ) -> None:
        self._store = store
        self._writes = writes
        self._events = events
        self._now = now
        self._times = times
        self._nodes: dict[str, _Health] = {}
        self._unreported_deletions: dict[str, str] = {}  # UIDs of deleted Nodes whose Event is not written yet
        self._zones = Zones(times)
        self._is_stale = True
        self._queue: ControllerQueue[str] = ControllerQueue(self._reconcile, workers=WORKERS)

    def begin(self) -> None:
        for record in self._store.snapshot(NODES.name).with_prefix(""):
            self._observe(record)
            self._nodes[record.key].is_registered = True
            self._queue.add(record.key)
        self._store.listen(self._on_node, NODES.name)
        self._store.listen(self._on_lease, LEASES.name)

    async def run(self) -> None:
        await self._queue.run()

    def _on_node(self, change: ObjectChange) -> None:
        name = change.record.key
        if change.deleted:
            if (health := self._nodes.pop(name, None)) is not None:
                self._unreported_deletions[name], self._is_stale = health.uid, True
            self._queue.cancel(name)
        else:
            self._observe(change.record)
        self._queue.add(name)

    def _on_lease(self, change: ObjectChange) -> None:
        if change.deleted or not change.record.key.startswith(_PREFIX):
            return
        health = self._nodes.get(change.record.name)
        renewed = _leases.decode(change.record.bare).spec.renew_time
        if health is not None and renewed and renewed != health.renewed:
            health.renewed, health.observed_at = renewed, _clock()

    def _observe(self, record: StoredObject) -> None:
        node = record.decode()
        ready, meta = conditions.ready_of(node), node["metadata"]
        health = self._nodes.get(record.key)
        if health is None or health.uid != meta["uid"]:
            health = self._nodes[record.key] = _Health(meta["uid"], _clock())
        if (ready.get("lastHeartbeatTime") or "") != health.heartbeat or bool(ready) != bool(health.ready):
            health.observed_at = _clock()
        labels, before = meta.get("labels") or {}, (health.ready, health.zone, health.excluded)
        health.ready, health.heartbeat = ready.get("status", ""), ready.get("lastHeartbeatTime") or ""
        health.zone, health.excluded = zone_of(labels), EXCLUDED in labels
        self._is_stale |= before != (health.ready, health.zone, health.excluded)

    async def _reconcile(self, name: str) -> None:
        if uid := self._unreported_deletions.pop(name, ""):
            await self._record_event(
                name, uid, "RemovingNode", f"Node {name} event: Removing Node {name} from Controller"
            )
        if (health := self._nodes.get(name)) is not None:
            await self._update_node(name, health)
        await self._count_zones()

    async def _update_node(self, name: str, health: _Health) -> None:
        """Update a Node's status, taints and Pods to its observed health, and set its timer."""
        if not health.is_registered:
            health.is_registered = True
            text = f"Node {name} event: Registered Node {name} in Controller"
            await self._record_event(name, health.uid, "RegisteredNode", text)
        was_ready = health.ready == TRUE
        if health.ready != UNKNOWN and self._left_s(health) <= 0:
            await self._change(name, health, self._set_unknown)
            if was_ready and health.ready == UNKNOWN:
                await self._record_event(name, health.uid, "NodeNotReady", f"Node {name} status is now: NodeNotReady")
        if (node := self._node(name)) is not None and conditions.no_schedule_differs(node):
            await self._change(name, health, conditions.set_no_schedule)
        if health.ready == UNKNOWN:
            await mark_not_ready(self._store, self._writes, self._events, self._now, name)
        await self._count_zones()
        waits = [await self._evict(name, health), None if health.ready == UNKNOWN else self._left_s(health)]
        if (wait_s := min((one for one in waits if one is not None), default=None)) is not None:
            self._queue.add_after(name, wait_s)

    def _left_s(self, health: _Health) -> float:
        """Return the remaining seconds of a Node's grace period."""
        return health.observed_at + (self._times.grace_s if health.ready else self._times.startup_s) - _clock()

    def _set_unknown(self, node: Object, now: datetime) -> None:
        health = self._nodes.get(node["metadata"]["name"])
        if health is not None and self._left_s(health) <= 0:  # the kubelet may have reported in the meantime
            conditions.set_unknown(node, now)

    async def _evict(self, name: str, health: _Health) -> float | None:
        """Set the NoExecute taints of a Node.

        Returns the seconds to wait for the zone's eviction rate, None if there is nothing to wait for.
        """
        if (node := self._node(name)) is None:
            return None
        key, present = conditions.no_execute_key(node), conditions.no_execute_of(node)
        if present == ({key} if key else set()):
            return None
        if key and not present:
            wait_s = self._zones.wait_s(health.zone, _clock())
            if wait_s is None or wait_s > 0:
                return wait_s
            self._zones.tainted(health.zone, _clock())
        await self._change(name, health, partial(_set_no_execute, key))
        return None

    async def _count_zones(self) -> None:
        """Count the unhealthy Nodes again, once for all changes since."""
        if not self._is_stale:
            return
        self._is_stale = False
        counted = (NodeReadiness(one.zone, one.ready == TRUE) for one in self._nodes.values() if not one.excluded)
        was_all_away = self._zones.is_all_away
        if not self._zones.update(counted):
            return
        if self._zones.is_all_away:
            for name, health in tuple(self._nodes.items()):
                if (node := self._node(name)) is not None and conditions.no_execute_of(node):
                    await self._change(name, health, partial(_set_no_execute, ""))
            return
        for name, health in self._nodes.items():
            if was_all_away:  # the cause of a total outage was probably this server: all grace periods restart
                health.observed_at = _clock()
            if health.ready != TRUE:
                self._queue.add(name)

    def _node(self, name: str) -> Object | None:
        record = self._store.get(NODES.name, name)
        return None if record is None else record.decode()

    async def _change(self, name: str, health: _Health, edit: Callable[[Object, datetime], None]) -> None:
        """Edit a Node, unless another Node has taken its name."""

        def change(node: Object) -> None:
            if node["metadata"]["uid"] == health.uid:
                edit(node, self._now())

        await self._writes.edit(WriteTarget(NODES, "", name), change)

    async def _record_event(self, name: str, uid: str, reason: str, message: str) -> None:
        about = {"kind": "Node", "apiVersion": "v1", "name": name, "uid": uid}
        await self._events.record(NODE_CONTROLLER, about, reason, message)


def _set_no_execute(key: str, node: Object, now: datetime) -> None:
    conditions.set_no_execute(node, key, now)


def _clock() -> float:
    return asyncio.get_running_loop().time()
