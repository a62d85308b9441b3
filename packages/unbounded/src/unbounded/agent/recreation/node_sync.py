"""Upkeep of a node that is not being recreated: restarts of its machine and services, its labels and its taints.

An operation that was interrupted between its stop and its start leaves a machine that is stopped and disabled at boot;
so does a `poweroff` inside. The observed state counts, whatever its cause.

Labels and taints are updated in place. Those from elsewhere stay on the Node; only those of the slot's goal that are no
longer desired are removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from unbounded.agent.interfaces import Nodes
from unbounded.agent.model import NodeGoal, Slot, SlotFacts
from unbounded.agent.node.kubelet import node_flags
from unbounded.agent.recreation.perform import Lock
from unbounded.agent.recreation.plan import RecreationLimits
from unbounded.api.core import NODES
from unbounded.api.failures import Failure, Rejected
from unbounded.join.labels_and_taints import label_changes, taints_after
from unbounded.kube.api import Api, NotFound
from unbounded.kube.clock import Backoff
from unbounded.kube.logs import Log

AGAIN: Final = Backoff(base_s=20.0, max_s=600.0)  # between starts of a node that does not stay up

log = Log("agent")


def stopped_part(facts: SlotFacts) -> str:
    """Return which part of a node does not run; empty for a node that serves."""
    if not facts.running:
        return "its machine is not running"
    missing = [name for name, runs in (("containerd", facts.containerd), ("kubelet", facts.kubelet)) if not runs]
    return "" if not missing else f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not running"


class NodeRestarter:
    """Restarts stopped parts of the node.

    Args:
        held_back: returns why another controller owns the node now; empty when none does.
    """

    def __init__(self, nodes: Nodes, lock: Lock, limits: RecreationLimits, held_back: Callable[[], str]) -> None:
        self._nodes = nodes
        self._lock = lock
        self._limits = limits
        self._blocked_by = held_back
        self._starts = 0  # since it last stayed up
        self._not_before: float | None = None  # earliest time of the next start; None while it is not known to be down
        self._up_since: float | None = None

    async def ensure_running(self, home: Slot) -> float:
        """Observe the node, and start stopped parts; return the seconds until the next check."""
        if self._blocked_by():
            self._not_before = None
            return self._limits.check_s
        lacks = stopped_part(await self._nodes.observe(home))
        now = asyncio.get_running_loop().time()
        if not lacks:
            return self._record_serving(now)
        self._up_since = None
        if self._not_before is None:  # it may be starting, or stopping together with its host
            self._not_before = now + (AGAIN.after(self._starts) if self._starts else self._limits.down_s)
        if now < self._not_before:
            return self._not_before - now
        self._starts += 1
        await self._start(home)
        again_s = AGAIN.after(self._starts)
        self._not_before = asyncio.get_running_loop().time() + again_s
        return again_s

    def _record_serving(self, now: float) -> float:
        """Record that the node serves. A node that soon stops again is restarted at growing intervals."""
        self._not_before = None
        self._up_since = now if self._up_since is None else self._up_since
        if now - self._up_since >= self._limits.check_s:
            self._starts = 0
        return self._limits.check_s

    async def _start(self, home: Slot) -> None:
        try:
            async with self._lock("start of a node that is down"):
                lacks = stopped_part(await self._nodes.observe(home))
                if lacks and not self._blocked_by():  # both may have changed while the lock was awaited
                    log.warning("node is down; starting it", slot=str(home), why=lacks, attempt=self._starts)
                    await self._nodes.start(home)
        except (Failure, OSError) as error:
            log.warning("node is down; cannot start it", error=error, slot=str(home))


def labels_differ(made: NodeGoal, desired: NodeGoal) -> bool:
    """Return whether labels or taints differ."""
    return made.labels != desired.labels or sorted(made.taints) != sorted(desired.taints)


def node_change(node: Mapping[str, Any], made: NodeGoal, desired: NodeGoal) -> dict[str, Any]:
    """Return the merge patch for the Node; empty when it has the desired labels and taints.

    Args:
        made: goal with the labels and taints that the slot has now.
    """
    labels = label_changes(node["metadata"].get("labels") or {}, made.labels, desired.labels)
    before = list((node.get("spec") or {}).get("taints") or ())
    after = taints_after(before, made.taints, desired.taints)
    change: dict[str, Any] = {"metadata": {"labels": labels}} if labels else {}
    return change if after == before else {**change, "spec": {"taints": after}}


class LabelSync:
    """Updates labels and taints of this Machine's Node.

    Args:
        lock: the host's lock; its argument names the holder.
        held_back: returns why another controller owns the node now.
    """

    def __init__(self, api: Api, machine: str, nodes: Nodes, lock: Lock, held_back: Callable[[], str]) -> None:
        self._api = api
        self._machine = machine
        self._nodes = nodes
        self._lock = lock
        self._blocked_by = held_back
        self._requested: object = None
        self._refused = ""

    async def sync(self, home: Slot, uid: str, made: NodeGoal, desired: NodeGoal) -> str:
        """Update labels and taints of the Node, and those with which the slot would register. Return why the API server
        rejects them. A rejected update is not repeated until the desired ones change.

        Args:
            uid: of the Node that the slot registered.
        """
        requested = (uid, desired.labels, desired.taints)
        if requested == self._requested:
            return self._refused
        if blocker := self._blocked_by():
            return blocker
        try:
            node_flags(desired)  # the next start of kubelet uses them, too
            if await self._patch(uid, made, desired):
                log.info("labels and taints of the Node updated", machine=self._machine, slot=str(home))
        except Rejected as error:
            log.warning("no permission to update labels and taints of the Node", error=error, machine=self._machine)
            self._requested, self._refused = requested, str(error)
            return self._refused
        async with self._lock("labels and taints of the node"):
            await self._nodes.describe(home, desired.labels, desired.taints)
        return ""

    async def _patch(self, uid: str, made: NodeGoal, desired: NodeGoal) -> bool:
        """Patch the Node; return whether it differed. A change since the read is a Conflict."""
        try:
            node = await self._api.get(NODES.raw(), self._machine)
        except NotFound:
            return False
        change = node_change(node, made, desired)
        if not change or node["metadata"]["uid"] != uid:
            return False
        version = {"resourceVersion": node["metadata"]["resourceVersion"]}
        await self._api.patch(NODES, self._machine, {**change, "metadata": {**change.get("metadata", {}), **version}})
        return True
