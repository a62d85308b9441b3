"""The table of HostErase, and the check that a Node is drained before one."""

from __future__ import annotations

from typing import Final

import pytest

from unbounded.api.core import Node, NodeSpec, Pod, PodStatus
from unbounded.api.meta import ObjectMeta, OwnerReference
from unbounded.api.operation import MachineOperation, MachineOperationSpec
from unbounded.metalman import erase_stages
from unbounded.metalman import replace_table as netboot
from unbounded.metalman.erase_stages import MIRROR, not_drained
from unbounded.metalman.power import SHUTTING_DOWN, WAITING_OFF
from unbounded.metalman.replace_table import ReplaceFact
from unbounded.workflow.procedure import CANCELLED, COMPLETE, Cancel, Capacity

SPEC: Final = MachineOperationSpec(operation_kind="HostErase", parameters={"disks": "All"})
PROCEDURE: Final = erase_stages.erase(MachineOperation(spec=SPEC))
TABLE: Final = PROCEDURE.table


def test_only_a_shutdown_is_undone() -> None:
    undoing = {name for name, stage in PROCEDURE.stages.items() if stage.undo is not None}
    assert undoing == {SHUTTING_DOWN, WAITING_OFF}
    cancelled = {stage for (stage, _), step in TABLE.items() if step.stage == CANCELLED}
    assert cancelled == {netboot.RESTORING_AFTER_SHUTDOWN}


@pytest.mark.parametrize("stage", sorted(netboot.BOOT_STAGES & PROCEDURE.stages.keys()))
def test_a_cancel_of_a_boot_ends_in_the_cleanup_that_switches_the_host_off(stage: str) -> None:
    assert PROCEDURE.stages[stage].cancel is Cancel.UNDO
    assert PROCEDURE.stages[stage].cleanup_stage == "CleaningUpInstaller"


def test_it_completes_only_off_and_with_all_disks_erased() -> None:
    ends = {(stage, fact) for (stage, fact), step in TABLE.items() if step.stage == COMPLETE and step.fail is None}
    assert ends == {(netboot.RESTORING, ReplaceFact.OFF_AS_BEFORE)}
    assert erase_stages.EVIDENCE_ERASED in PROCEDURE.proof
    assert {fact for (stage, fact), step in TABLE.items() if step.evidence == erase_stages.EVIDENCE_ERASED} == {
        ReplaceFact.ERASED
    }


def test_an_erasure_of_days_holds_no_capacity() -> None:
    assert PROCEDURE.stages[netboot.WAITING_ERASE].capacity is Capacity.BACKGROUND


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
