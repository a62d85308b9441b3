"""Labels and taints of a node that serves: they follow what is wanted, and no node is made anew for them.

What is on the Node and came from elsewhere stays: only what the slot was described with, and is not any more, goes.
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


def differs(made: NodeGoal, wanted: NodeGoal) -> bool:
    """Whether there is something to follow."""
    return made.labels != wanted.labels or sorted(made.taints) != sorted(wanted.taints)


def node_change(node: Mapping[str, Any], made: NodeGoal, wanted: NodeGoal) -> dict[str, Any]:
    """What has to change on the Node, for a merge patch; empty when it is as it is wanted.

    Args:
        made: what the slot was described with.
    """
    labels = label_changes(node["metadata"].get("labels") or {}, made.labels, wanted.labels)
    before = list((node.get("spec") or {}).get("taints") or ())
    after = taints_after(before, made.taints, wanted.taints)
    change: dict[str, Any] = {"metadata": {"labels": labels}} if labels else {}
    return change if after == before else {**change, "spec": {"taints": after}}


class Follower:
    """Args:
    lock: the host's lock, given who wants it.
    held_back: why the node is somebody else's now.
    """

    def __init__(self, api: Api, machine: str, nodes: Nodes, lock: Lock, held_back: Callable[[], str]) -> None:
        self._api = api
        self._machine = machine
        self._nodes = nodes
        self._lock = lock
        self._held_back = held_back
        self._asked: object = None
        self._refused = ""

    async def follow(self, home: Slot, uid: str, made: NodeGoal, wanted: NodeGoal) -> str:
        """Bring labels and taints of the Node up to date, and those that the slot would register with; in words, why
        that may not be. What was refused is not asked for again until something else is wanted.

        Args:
            uid: of the Node that the slot registered.
        """
        asked = (uid, wanted.labels, wanted.taints)
        if asked == self._asked:
            return self._refused
        if held := self._held_back():
            return held
        try:
            node_flags(wanted)  # the next start of kubelet has them too
            if await self._patch(uid, made, wanted):
                log.info("labels and taints of the Node follow", machine=self._machine, slot=str(home))
        except Rejected as error:
            log.warning("labels and taints of the Node may not follow", error=error, machine=self._machine)
            self._asked, self._refused = asked, str(error)
            return self._refused
        async with self._lock("labels and taints of the node"):
            await self._nodes.describe(home, wanted.labels, wanted.taints)
        return ""

    async def _patch(self, uid: str, made: NodeGoal, wanted: NodeGoal) -> bool:
        """Whether something had to be changed. It rests on what was read: a change in between is a Conflict."""
        try:
            node = await self._api.get(NODES.raw(), self._machine)
        except NotFound:
            return False
        change = node_change(node, made, wanted)
        if not change or node["metadata"]["uid"] != uid:
            return False
        version = {"resourceVersion": node["metadata"]["resourceVersion"]}
        await self._api.patch(NODES, self._machine, {**change, "metadata": {**change.get("metadata", {}), **version}})
        return True
