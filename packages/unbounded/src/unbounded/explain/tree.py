"""Trees of objects: a Machine with its Node, operations, host and budgets, below its claim in Container Cloud. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from unbounded.api.conditions import ConditionType
from unbounded.api.configuration import MACHINE_CONFIGURATIONS, MachineConfiguration
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS, BareMetalHost
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.core import NODES
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS, MachineDisruptionBudget
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind, Object
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationPhase
from unbounded.containercloud.hosts.model import CONDITION_AVAILABLE
from unbounded.explain.facts import ExplainFacts
from unbounded.explain.links import UnreadFact
from unbounded.explain.results import RELEASE
from unbounded.kube.clock import rfc3339

MISSING: Final = "Missing"
DELETING: Final = "Deleting"
READY: Final = "Ready"
NOT_READY: Final = "NotReady"
SSH: Final = "SSH"
BMC: Final = "BMC"
INSTANCE: Final = "Instance"


class TreeNode(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An object, with the objects below it.

    Attributes:
        kind: of the object; SSH, BMC or Instance for an access to the host, which is no object.
        group: API group of the object; empty for a Node, and for an access.
        name: of the object, or the address of the access.
        phase: Missing for an object that another one names and that does not exist.
        created: RFC 3339; empty for an access.
    """

    kind: str
    group: str = ""
    namespace: str = ""
    name: str
    phase: str = ""
    message: str = ""
    created: str = ""
    children: tuple[TreeNode, ...] = ()


class ObjectTree(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A tree of objects.

    Attributes:
        complete: nothing is left out.
        unread: what is left out, because the reader may not read it, or the server does not answer.
        read_at: RFC 3339, by the clock of the program that answers.
        version: release of that program.
    """

    root: TreeNode
    complete: bool = True
    unread: tuple[UnreadFact, ...] = ()
    read_at: str = ""
    version: str = RELEASE


def tree_of(found: Machine | BareMetalHost | ContainerCloudMachine, facts: ExplainFacts) -> ObjectTree:
    """Return the tree below an object, from the facts of `FactsReader.related`.

    A Machine of Container Cloud has its host below it, and that its Machine of unbounded-cloud.io. A tree that begins
    at the latter has its host and claim as branches.
    """
    claim = next(map(_claim_node, facts.claims.values()), None)
    host = next(map(_host_node, facts.hosts.values()), None)
    machine = next((_machine_node(one, facts) for one in facts.machines.values()), None)
    match found:
        case ContainerCloudMachine():
            root = _above(_claim_node(found), None if host is None else _above(host, machine))
        case BareMetalHost():
            root = _above(_host_node(found), claim, machine)
        case Machine():
            root = _above(_machine_node(found, facts), None if host is None else _above(host, claim))
    return ObjectTree(root=root, complete=not facts.unread, unread=facts.unread, read_at=rfc3339(facts.read_at))


def _above(parent: TreeNode, *children: TreeNode | None) -> TreeNode:
    """Return a node with further children in front of its own."""
    return msgspec.structs.replace(parent, children=(*filter(None, children), *parent.children))


def _node(item: Object, kind: Kind[Any], phase: str, message: str | None = None) -> TreeNode:
    meta = item.metadata
    return TreeNode(
        kind=kind.kind,
        group=kind.group,
        namespace=meta.namespace or "",
        name=meta.name,
        phase=phase if meta.deletion_timestamp is None else DELETING,
        message=message or "",
        created=meta.creation_timestamp or "",
    )


def _claim_node(claim: ContainerCloudMachine) -> TreeNode:
    status, execution = claim.status, claim.status.execution
    message = status.error_message or (None if execution is None else execution.message)
    phase = claim.provider_status.status or ("" if execution is None else execution.stage)
    return _node(claim, CONTAINER_CLOUD_MACHINES, phase, message)


def _host_node(host: BareMetalHost) -> TreeNode:
    available = next((one.message for one in host.status.conditions if one.type == CONDITION_AVAILABLE), "")
    return _node(host, BARE_METAL_HOSTS, host.state, host.status.error_message or available)


def _machine_node(machine: Machine, facts: ExplainFacts) -> TreeNode:
    node = _node(machine, MACHINES, machine.status.phase or "", machine.status.message)
    children = (
        *_accesses(machine),
        *_nodes(machine, facts),
        *map(_operation_node, sorted(facts.on(machine.name), key=_order)),
        *map(_configuration_node, facts.configurations.values()),
        *(_budget_node(one, machine) for one in facts.budgets.values()),
    )
    return msgspec.structs.replace(node, children=children)


def _accesses(machine: Machine) -> Iterator[TreeNode]:
    """Yield the accesses to the host: over SSH, over its BMC, and at its cloud."""
    spec, status = machine.spec, machine.status
    if spec.ssh is not None:
        reached = next((one for one in status.conditions if one.type == ConditionType.SSH_REACHABLE), None)
        phase, message = ("", "") if reached is None else (reached.reason, reached.message)
        yield TreeNode(kind=SSH, name=f"{spec.ssh.username}@{spec.ssh.host}", phase=phase, message=message)
    if spec.pxe is not None and spec.pxe.redfish is not None:
        redfish, power = spec.pxe.redfish, status.power
        phase = "" if power is None else power.state
        yield TreeNode(kind=BMC, name=f"{redfish.url} Systems/{redfish.device_id}", phase=phase)
    if spec.provider_id is not None or machine.provider is not None:
        yield TreeNode(kind=INSTANCE, name=spec.provider_id or machine.provider or "")


def _nodes(machine: Machine, facts: ExplainFacts) -> Iterator[TreeNode]:
    """Yield the Node, also one that the Machine names and that does not exist."""
    node = facts.nodes.get(machine.name)
    ref = None if machine.spec.kubernetes is None else machine.spec.kubernetes.node_ref
    if node is None:
        if ref is not None and not facts.hides(NODES):
            yield TreeNode(kind=NODES.kind, name=ref.name, phase=MISSING, message="the Machine names it")
        return
    ready = node.ready_condition
    cordoned = "cordoned" if node.spec.unschedulable else ""
    cause = "" if node.ready or ready is None else ready.message or ready.reason or ""
    yield _node(node, NODES, READY if node.ready else NOT_READY, "; ".join(filter(None, (cordoned, cause))))


def _order(operation: MachineOperation) -> tuple[str, str]:
    return operation.metadata.creation_timestamp or "", operation.name


def _operation_node(operation: MachineOperation) -> TreeNode:
    status = operation.status
    reason = status.reason if status.phase == OperationPhase.FAILED else None
    message = ": ".join(filter(None, (operation.spec.operation_kind, reason, status.message)))
    return _node(operation, MACHINE_OPERATIONS, status.phase or OperationPhase.PENDING, message)


def _configuration_node(configuration: MachineConfiguration) -> TreeNode:
    rollout = configuration.status.rollout
    phase, message = ("", "") if rollout is None else (rollout.phase, rollout.message)
    return _node(configuration, MACHINE_CONFIGURATIONS, phase, message)


def _budget_node(budget: MachineDisruptionBudget, machine: Machine) -> TreeNode:
    allowed = budget.status.allowed
    held = [f"granted to {one.holder}" for one in budget.status.grants if one.machine_uid == machine.metadata.uid]
    counts = [] if allowed is None else [f"{allowed} more may be unavailable"]
    return _node(budget, MACHINE_DISRUPTION_BUDGETS, "", "; ".join((*held, *counts)))
