"""Compacted objects are equal to those that were decoded, but for the fields that are left out, and share parts."""

from __future__ import annotations

import msgspec

from unbounded.api.core import SECRETS, Secret
from unbounded.api.machine import MACHINES, Machine, MachineStatus
from unbounded.api.meta import Condition
from unbounded.kube.compaction import ObjectCompaction
from unbounded.kube.object_codec import decode


def machine(name: str, phase: str = "Ready") -> Machine:
    condition = {"type": "SSHReachable", "status": "True", "reason": "Connected", "lastTransitionTime": "-"}
    body = {
        "metadata": {"name": name, "labels": {"site": "lab"}, "finalizers": ["a.example/b"], "generation": 7},
        "spec": {"kubernetes": {"nodeLabels": {"rack": "r1"}}},
        "status": {"phase": phase, "message": f"Node {name} joined", "conditions": [condition]},
    }
    return decode(MACHINES, msgspec.json.encode(body))


def test_a_compacted_object_is_equal_to_the_decoded_one_which_stays_as_it_was() -> None:
    decoded = machine("a")
    compacted = ObjectCompaction({MachineStatus: {"message": None}})(decoded)
    assert decoded == machine("a")
    assert compacted == msgspec.structs.replace(decoded, status=msgspec.structs.replace(decoded.status, message=None))
    assert ObjectCompaction()(decoded) == decoded


def test_equal_parts_of_two_objects_are_shared() -> None:
    first, second = map(ObjectCompaction(), (machine("a"), machine("b")))
    assert first.status.conditions is second.status.conditions
    assert first.metadata.labels is second.metadata.labels
    assert first.metadata.finalizers is second.metadata.finalizers
    assert first.status.phase is second.status.phase
    assert first.spec.kubernetes is not None
    assert second.spec.kubernetes is not None
    assert first.spec.kubernetes.node_labels is second.spec.kubernetes.node_labels


def test_a_field_is_left_out_wherever_its_type_is() -> None:
    (condition,) = ObjectCompaction({Condition: {"reason": ""}})(machine("a")).status.conditions
    assert (condition.type, condition.reason) == ("SSHReachable", "")


def test_a_password_is_not_kept_beyond_its_object() -> None:
    def secret(name: str) -> Secret:
        body = {"metadata": {"name": name, "labels": {"site": "lab"}}, "data": {"password": "aHVudGVyMg=="}}
        return ObjectCompaction(apart=frozenset({"data"}))(decode(SECRETS, msgspec.json.encode(body)))

    first, second = secret("a"), secret("b")
    assert first.metadata.labels is second.metadata.labels
    assert first.data["password"] is not second.data["password"]
