"""A drained Node: cordoned, and without Pods but those that a drain leaves."""

from __future__ import annotations

import pytest

from unbounded.api.core import Node, NodeSpec, Pod, PodStatus
from unbounded.api.meta import ObjectMeta, OwnerReference
from unbounded.metalman.erase_stages import MIRROR, not_drained

CORDONED = Node(spec=NodeSpec(unschedulable=True))


def pod(name: str = "web", *, owner: str = "", mirror: bool = False, phase: str = "Running") -> Pod:
    owners = (OwnerReference(api_version="apps/v1", kind=owner, name="o", uid="u"),) if owner else ()
    annotations = {MIRROR: "x"} if mirror else {}
    metadata = ObjectMeta(name=name, namespace="default", owner_references=owners, annotations=annotations)
    return Pod(metadata=metadata, status=PodStatus(phase=phase))


def test_a_node_that_takes_pods_is_not_drained() -> None:
    assert not_drained(Node(), ()) == "is not cordoned"
    assert not_drained(CORDONED, ()) == ""


LEFT = [pod(owner="DaemonSet"), pod(mirror=True), pod(phase="Succeeded"), pod(phase="Failed")]


@pytest.mark.parametrize("left", LEFT)
def test_pods_that_a_drain_leaves_do_not_count(left: Pod) -> None:
    assert not_drained(CORDONED, (left,)) == ""


@pytest.mark.parametrize("left", [pod(), pod(owner="ReplicaSet"), pod(owner="StatefulSet"), pod(phase="Pending")])
def test_other_pods_are_named(left: Pod) -> None:
    assert not_drained(CORDONED, (left,)) == "has Pods: default/web"


def test_the_message_of_many_pods_is_short() -> None:
    pods = tuple(pod(f"web-{number}") for number in range(9))
    assert not_drained(CORDONED, pods).endswith("default/web-4 and 4 more")
