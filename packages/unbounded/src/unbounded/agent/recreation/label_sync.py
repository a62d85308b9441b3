"""Labels and taints of a serving node: they are updated in place, without a recreation.

Labels and taints from elsewhere stay on the Node. Only those of the slot's goal that are no longer desired are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unbounded.agent.model import NodeGoal, Slot
from unbounded.agent.node.kubelet import node_flags
from unbounded.agent.ports import Nodes
from unbounded.agent.recreation.perform import Lock
from unbounded.api.core import NODES
from unbounded.api.failures import Rejected
from unbounded.join.node_marks import label_changes, taints_after
from unbounded.kube.errors import NotFound
from unbounded.kube.logs import Log
from unbounded.kube.port import Api

log = Log("agent")


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
        if held := self._blocked_by():
            return held
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
