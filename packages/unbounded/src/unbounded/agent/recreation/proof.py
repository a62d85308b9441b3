"""Requirements of a proven node: pure, from the observation of the slot, the Node and its lease."""

from __future__ import annotations

from dataclasses import dataclass

from unbounded.agent.model import SlotFacts
from unbounded.api.core import Node


@dataclass(frozen=True)
class NodeEvidence:
    """Observation of the node in the API.

    Args:
        node: None when there is none.
        renewed: its lease has changed since its machine was started.
        vanished: a Node of this very boot existed and is gone: kubelet does not register a second time.
        trouble: why kubelet is not healthy, in its own words; empty when it is.
        sandbox_trouble: why no Pod sandbox runs in the slot, in containerd's words; empty when one ran, and where none
            is required.
    """

    node: Node | None = None
    renewed: bool = False
    vanished: bool = False
    trouble: str = ""
    sandbox_trouble: str = ""


def unmet_requirement(facts: SlotFacts, version: str, seen: NodeEvidence) -> str:
    """Return the first requirement that a node in this slot does not meet; empty for a proven node.

    Args:
        version: of Kubernetes, from its goal.
    """
    node = seen.node
    if not facts.running:
        return "kubelet is not running"
    if not facts.kubelet:
        return seen.trouble or "kubelet is not running"
    if not facts.boot_id:
        return "its machine does not report its boot ID"
    if seen.trouble:
        return seen.trouble
    if seen.sandbox_trouble:
        return seen.sandbox_trouble
    if node is None:
        return "the Node does not exist"
    info = node.status.node_info
    if info is None or info.boot_id != facts.boot_id:
        return "this boot of the machine has not reported the Node yet"
    if not same_version(info.kubelet_version or "", version):
        return f"kubelet reports version {info.kubelet_version}, not {version}"
    if not node.ready:
        return f"the Node is not Ready{_why(node)}"
    return "" if seen.renewed else "the lease of the Node has not been renewed yet"


def same_version(reported: str, desired: str) -> bool:
    """Return whether the versions are equal: `v1.34.0` is 1.34.0. A build's suffix after a plus or a dash does not
    count unless the desired version has one.
    """
    bare, desired = reported.removeprefix("v"), desired.removeprefix("v")
    return bare == desired or bare.partition("+")[0].partition("-")[0] == desired


def _why(node: Node) -> str:
    ready = node.ready_condition
    if ready is None:
        return ""
    return f": {ready.reason or ready.status}{f', {ready.message}' if ready.message else ''}"
