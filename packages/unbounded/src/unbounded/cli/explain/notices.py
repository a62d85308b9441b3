"""Conditions of a Machine that serves with a deficiency: the meaning of each, and what resolves it. A table.

`conditions` has the conditions that block a Machine. A row without a fix is a note: a fact to know before acting.
"""

from __future__ import annotations

from typing import Final

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.machine import Machine
from unbounded.api.meta import Condition
from unbounded.api.names import CONFIGMAP_RELEASES, NAMESPACE
from unbounded.cli.explain.conditions import (
    ConditionRow,
    agent_fixes,
    condition,
    configuration_fixes,
    duplicate_host,
    row,
)
from unbounded.cli.explain.fix_commands import ssh_command
from unbounded.cli.explain.links import PLUGIN, Fix


def notices_of(machine: Machine) -> list[tuple[ConditionRow, Condition]]:
    """Return the rows that fit the Machine's conditions, in the order of the table."""
    return [(notice, one) for notice in NOTICES for one in machine.status.conditions if notice.fits(one)]


def is_note(notice: ConditionRow) -> bool:
    """Return whether the row needs no action."""
    return not notice.next_step


def _recreate(machine: Machine, _said: Condition) -> tuple[Fix, ...]:
    modified = condition(machine, ConditionType.NODE_MODIFIED)
    lost = modified is not None and modified.status == ConditionStatus.TRUE
    but = ", which discards the manual changes of files" if lost else ""
    return (Fix(f"kubectl delete node {machine.name}", f"recreates the node{but}"),)


def _access(machine: Machine, _said: Condition) -> tuple[Fix, ...]:
    published = "kubectl -n kube-public get configmap cluster-info -o yaml"
    return (Fix(published, "shows the address and the CA that the cluster publishes"), *agent_fixes(machine)[:1])


def _gpus(machine: Machine, _said: Condition) -> tuple[Fix, ...]:
    return (
        Fix(f"{ssh_command(machine)}nvidia-smi", "shows on the host whether its driver works"),
        Fix(f"{PLUGIN} machine node-reboot {machine.name}", "restarts the node, which describes the GPUs again"),
    )


def _release_key(_machine: Machine, _said: Condition) -> tuple[Fix, ...]:
    show = f"kubectl -n {NAMESPACE} get configmap {CONFIGMAP_RELEASES} -o yaml"
    return (Fix(show, "shows the public key of releases, which machina publishes from its setting agentPublicKey"),)


def _duplicate(machine: Machine, _said: Condition) -> tuple[Fix, ...]:
    return (
        Fix(f"kubectl edit machine {machine.name}", "corrects spec.pxe.redfish, if it is wrong here"),
        Fix("kubectl get machines -o custom-columns=NAME:.metadata.name,BMC:.spec.pxe.redfish.url", "shows all BMCs"),
    )


def _hardware(machine: Machine, _said: Condition) -> tuple[Fix, ...]:
    return (
        Fix(
            f"kubectl get machine {machine.name} -o jsonpath='{{.status.hardware}}'", "shows what the inspection found"
        ),
    )


def _none(_machine: Machine, _said: Condition) -> tuple[Fix, ...]:
    return ()


_C = ConditionType
_R = ConditionReason
_TRUE: Final = frozenset({ConditionStatus.TRUE})
_FALSE: Final = frozenset({ConditionStatus.FALSE})
_UNKNOWN: Final = frozenset({ConditionStatus.UNKNOWN})
_STAYS: Final = "the node stays as it is until its Node is deleted"
NOTICES: Final = (
    row(
        _C.CLUSTER_ACCESS_CURRENT,
        _FALSE,
        (_R.PENDING,),
        "the host keeps its address and CA; its agent tries the published ones every minute",
        _access,
    ),
    row(
        _C.RELEASE_KEY_CURRENT,
        _FALSE,
        (_R.PENDING,),
        "its agent runs no AgentUpgrade until the key is valid",
        _release_key,
    ),
    row(
        _C.BMC_EXCLUSIVE,
        _FALSE,
        (_R.DUPLICATE_BMC,),
        "host operations on these Machines continue, one at a time, and each of them acts on the same host",
        _duplicate,
    ),
    row(
        _C.HOST_EXCLUSIVE,
        _FALSE,
        (_R.DUPLICATE_HOST,),
        "the existing setup stays; machina sets up no other of these Machines on the host",
        duplicate_host,
    ),
    row(_C.REPAVE_PENDING, _TRUE, (_R.PENDING, _R.ROLLED_BACK), _STAYS, _recreate),
    row(_C.REPAVE_PENDING, _UNKNOWN, (_R.CONFIGURATION_MISSING,), _STAYS, configuration_fixes),
    row(
        _C.GPUS_DESCRIBED,
        _FALSE,
        (_R.NO_DRIVER, _R.FAILED),
        "its node serves without GPUs until the problem on the host is fixed and the node is restarted",
        _gpus,
    ),
    row(_C.GPUS_DESCRIBED, _FALSE, (_R.NOT_FOUND,), "", _none),
    row(_C.BOOT_ORDER_CONFIG_SUPPORTED, _FALSE, (_R.NOT_SUPPORTED,), "", _none),
    row(_C.NODE_MODIFIED, _TRUE, (_R.MODIFIED,), "", _none),
    row(_C.HARDWARE_CHANGED, _TRUE, (_R.PARTS_MISSING, _R.HEALTH_CHANGED), "", _hardware),
)
