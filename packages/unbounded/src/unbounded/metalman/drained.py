"""The Node of a Machine before its disks are erased: it does not exist, or is drained.

Drained: the Node is cordoned, and has no Pods but those of DaemonSets, mirrors of static ones, and finished ones.
"""

from __future__ import annotations

from typing import Final

from unbounded.api.core import NODES, PODS, Node, Pod
from unbounded.api.machine import Machine
from unbounded.kube.api import Api, NotFound
from unbounded.metalman.reasons import NODE_NOT_DRAINED
from unbounded.metalman.replace_observation import node_name
from unbounded.operations.ports import Refusal

MIRROR: Final = "kubernetes.io/config.mirror"
FINISHED: Final = ("Succeeded", "Failed")
LISTED: Final = 5


async def check(api: Api, machine: Machine) -> None:
    """Check the Node of a Machine, and its Pods, as the API has them now.

    Raises:
        Refusal: the Node exists, and is not drained.
    """
    name = node_name(machine)
    try:
        node = await api.get(NODES, name)
    except NotFound:
        return
    pods = (await api.list(PODS, fields=f"spec.nodeName={name}")).items
    why = not_drained(node, pods)
    if why:
        raise Refusal(NODE_NOT_DRAINED, f"Node {name} {why}; drain it\nkubectl drain {name} --ignore-daemonsets\n")


def not_drained(node: Node, pods: tuple[Pod, ...]) -> str:
    """Return why a Node is not drained; empty if it is."""
    if not node.spec.unschedulable:
        return "is not cordoned"
    left = sorted(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods if _counts(pod))
    more = f" and {len(left) - LISTED} more" if len(left) > LISTED else ""
    return f"has Pods: {', '.join(left[:LISTED])}{more}" if left else ""


def _counts(pod: Pod) -> bool:
    owners = {owner.kind for owner in pod.metadata.owner_references}
    return not (MIRROR in pod.metadata.annotations or "DaemonSet" in owners or pod.status.phase in FINISHED)
