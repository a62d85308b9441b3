"""When a node counts as one: pure, from what is seen of the slot, the Node and its lease."""

from __future__ import annotations

from dataclasses import dataclass

from unbounded.agent.model import SlotFacts
from unbounded.api.core import Node


@dataclass(frozen=True)
class Evidence:
    """What the API shows of the node.

    Args:
        node: None when there is none.
        renewed: its lease was seen to change since its machine was started.
        vanished: a Node of this very boot was there since, and is gone: kubelet does not register a second time.
        trouble: why kubelet is not well, by its own words; empty when it is.
        sandbox_trouble: why no Pod sandbox runs in the slot, by the words of containerd; empty when one did, and where
            none is asked for.
    """

    node: Node | None = None
    renewed: bool = False
    vanished: bool = False
    trouble: str = ""
    sandbox_trouble: str = ""


def missing(facts: SlotFacts, version: str, seen: Evidence) -> str:
    """The first thing that a node in this slot still lacks, in words; empty for one that is proven.

    Args:
        version: of Kubernetes, as its goal has it.
    """
    node = seen.node
    if not facts.running:
        return "kubelet does not run"
    if not facts.kubelet:
        return seen.trouble or "kubelet does not run"
    if not facts.boot_id:
        return "its machine does not tell its boot id"
    if seen.trouble:
        return seen.trouble
    if seen.sandbox_trouble:
        return seen.sandbox_trouble
    if node is None:
        return "there is no Node"
    info = node.status.node_info
    if info is None or info.boot_id != facts.boot_id:
        return "the Node was not reported by this boot of the machine yet"
    if not same_version(info.kubelet_version or "", version):
        return f"kubelet reports version {info.kubelet_version}, not {version}"
    if not node.ready:
        return f"the Node is not Ready{_why(node)}"
    return "" if seen.renewed else "the lease of the Node was not renewed yet"


def same_version(reported: str, wanted: str) -> bool:
    """Whether `v1.34.0` is 1.34.0; what a build adds behind a plus or a dash is no other version unless it is named."""
    bare, wanted = reported.removeprefix("v"), wanted.removeprefix("v")
    return bare == wanted or bare.partition("+")[0].partition("-")[0] == wanted


def _why(node: Node) -> str:
    ready = node.ready_condition
    if ready is None:
        return ""
    return f": {ready.reason or ready.status}{f', {ready.message}' if ready.message else ''}"
