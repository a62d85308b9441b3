"""Observations of the node to be proven, accumulated by one process; each boot of the machine starts over."""

from __future__ import annotations

from unbounded.agent.model import Slot
from unbounded.agent.ports import Nodes
from unbounded.agent.recreation.proof import NodeEvidence
from unbounded.api.core import Node

_UNREAD = object()


class EvidenceCollector:
    """Accumulator of evidence. A lease counts as renewed when it has changed; clocks of others are not compared."""

    def __init__(self) -> None:
        self._about: tuple[str, str] | None = None
        self._first_renewal: object = _UNREAD
        self._renewed = False
        self._node_uid = ""
        self._sandbox_ran = False

    def begin(self, phase: str, boot_id: str) -> None:
        """Discard observations of another boot or of another phase, which prove nothing."""
        if self._about != (phase, boot_id):
            self._about = (phase, boot_id)
            self._first_renewal, self._renewed, self._node_uid = _UNREAD, False, ""
            self._sandbox_ran = False

    def forget_node(self) -> None:
        """Forget the Node, as kubelet registers again."""
        self._node_uid = ""

    async def prove_sandbox(self, nodes: Nodes, slot: Slot) -> str:
        """Run a Pod sandbox, once for each boot of the machine; return why it failed, empty when it ran."""
        if not self._sandbox_ran:
            trouble = await nodes.sandbox_trouble(slot)
            self._sandbox_ran = not trouble
            return trouble
        return ""

    def look(self, node: Node | None, renewal: str | None) -> NodeEvidence:
        """Return the evidence after one more observation.

        Args:
            renewal: renewal time in the lease; None when there is no lease.
        """
        if self._first_renewal is _UNREAD:
            self._first_renewal = renewal
        elif renewal is not None and renewal != self._first_renewal:
            self._renewed = True
        vanished = bool(self._node_uid) and (node is None or node.metadata.uid != self._node_uid)
        info = node.status.node_info if node is not None else None
        if node is not None and info is not None and self._about and info.boot_id == self._about[1]:
            self._node_uid, vanished = node.metadata.uid, False
        return NodeEvidence(node=node, renewed=self._renewed, vanished=vanished)
