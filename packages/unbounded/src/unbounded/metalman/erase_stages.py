"""Procedure of HostErase: the host boots the installer, which erases the disks that metalman names, and stays Off.

The Node of the Machine has to be drained before: cordoned, and without Pods but those of DaemonSets, mirrors of static
ones, and finished ones. The stages up to the report are those of HostInspect. An erasure cannot be undone, so a cancel
or a failure after the loader ends in the cleanup stages, and the message says which disks are erased, begun and
untouched. The host gets its former power state back only where no disk was begun.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from unbounded.api.core import NODES, PODS, Node, Pod
from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation
from unbounded.kube.api import Api, NotFound
from unbounded.metalman import inspect_stages as inspection
from unbounded.metalman import reasons
from unbounded.metalman import replace_table as netboot
from unbounded.metalman.power import IS_OFF, IS_ON, SWITCH_OFF, table_rows
from unbounded.metalman.reasons import NODE_NOT_DRAINED
from unbounded.metalman.replace_observation import node_name
from unbounded.metalman.replace_table import ReplaceFact
from unbounded.operations.executor_protocol import Refusal
from unbounded.workflow.procedure import COMPLETE, Cancel, Capacity, Procedure, Stage, Step

ERASE_LIMIT_S: Final = 7 * 86_400.0  # the deadline of the operation ends it earlier
ERASE_STILL_S: Final = 1800.0  # the installer reports every half minute

EVIDENCE_ERASED: Final = "every disk was erased and verified"
EVIDENCE_STAYS_OFF: Final = "the host is Off, and boots from its disk"

_TIMED_OUT: Final = Step(
    inspection.CLEANING_UP_INSTALLER,
    fail=reasons.ERASE_TIMED_OUT,
    message="the installer did not erase the disks in time, or made no progress",
)
_FAILED: Final = Step(inspection.CLEANING_UP_INSTALLER, fail=reasons.ERASE_FAILED, message="the installer stopped")
MIRROR: Final = "kubernetes.io/config.mirror"
FINISHED: Final = ("Succeeded", "Failed")
LISTED: Final = 5


def _erase_rows() -> netboot.Table:
    failures = {fact: replace(step, stage=inspection.CLEANING_UP_INSTALLER) for fact, step in netboot.FAILURES.items()}
    named = {
        **failures,
        ReplaceFact.INSTALL_FAILED: _FAILED,
        ReplaceFact.ERASED: Step(inspection.WAITING_INSTALLER_OFF, action=SWITCH_OFF, evidence=EVIDENCE_ERASED),
    }
    return table_rows(netboot.WAITING_ERASE, ReplaceFact, named)


def _table() -> netboot.Table:
    reported = Step(netboot.WAITING_ERASE, evidence=inspection.EVIDENCE_REPORT)
    off = Step(COMPLETE, evidence=EVIDENCE_STAYS_OFF)
    return {
        **inspection.TABLE,
        (netboot.WAITING_REPORT, ReplaceFact.REPORTED): reported,
        (netboot.WAITING_REPORT, ReplaceFact.ERASED): reported,
        (netboot.WAITING_REPORT, ReplaceFact.INSTALL_FAILED): _FAILED,
        (netboot.RESTORING, ReplaceFact.ON_AS_BEFORE): Step(netboot.RESTORING, action=SWITCH_OFF),
        (netboot.RESTORING, ReplaceFact.OFF_AS_BEFORE): off,
        **_erase_rows(),
    }


TABLE: Final = _table()


def erase(operation: MachineOperation) -> Procedure:
    """Return the procedure of HostErase: off, network boot, hardware reported, disks erased, and off."""
    base = inspection.inspect(operation)
    before = base.stages[netboot.SETTING_BOOT]
    stages: Mapping[str, Stage] = {
        name: replace(stage, undo=None) if stage.undo == before.undo and name != netboot.WAITING_IMAGE else stage
        for name, stage in base.stages.items()
        if name not in (inspection.UNDOING_INSTALLER, netboot.RESTORING_AFTER_CANCEL)
    }
    waiting = Stage(
        "the installer to erase the disks",
        ERASE_LIMIT_S,
        on_timeout=_TIMED_OUT,
        condition=IS_ON,
        stalled_s=ERASE_STILL_S,
        cancel=Cancel.UNDO,  # by its cleanup stage: what is erased stays erased
        capacity=Capacity.BACKGROUND,
        cleanup_stage=inspection.CLEANING_UP_INSTALLER,
    )
    stages = {**stages, netboot.WAITING_ERASE: waiting}
    table = {(stage, fact): step for (stage, fact), step in TABLE.items() if stage in stages}
    return replace(
        base,
        stages=stages,
        table=table,
        proof=frozenset({netboot.EVIDENCE_LOADER, inspection.EVIDENCE_REPORT, EVIDENCE_ERASED, EVIDENCE_STAYS_OFF}),
        end_conditions=(IS_OFF,),
    )


async def check_drained(api: Api, machine: Machine) -> None:
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
