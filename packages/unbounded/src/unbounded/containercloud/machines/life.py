"""The life of a Machine of cluster.k8s.io, from the claim of a host to a Node that is kept current. Pure.

Each stage is stored before the next one begins, and each operation before it is created. The evidence comes from the
host's Machine, its Node and its operation alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from unbounded.api.conditions import ConditionReason, ConditionType
from unbounded.api.container_cloud.host import BareMetalHost
from unbounded.api.container_cloud.machine import (
    ClaimedHost,
    ErrorReason,
    MachineExecution,
    MachineStage,
)
from unbounded.api.container_cloud.names import ANNOTATION_RETRY
from unbounded.api.container_cloud.network import IpamHost
from unbounded.api.core import Node
from unbounded.api.disruption import MAINTENANCE, DisruptionStatus
from unbounded.api.machine import Machine, NodeUpdatePhase
from unbounded.api.machine_status import AgentStage
from unbounded.api.operation import OperationKind
from unbounded.containercloud.claims import claim_wait, disallowed
from unbounded.containercloud.hosts.model import IN_USE, host_key, machine_of_host
from unbounded.containercloud.machines.model import (
    ChangeTarget,
    MachineAction,
    MachineReason,
    MachineStep,
    MachineView,
    RequestOperation,
    SetMachineFinalizer,
    SetProviderID,
)
from unbounded.containercloud.machines.target_fields import (
    desired_labels,
    desired_taints,
    image_of,
    label_changes,
    maintenance_change,
    record_of_claim,
    target_changes,
)
from unbounded.containercloud.refused import RefusedWrite
from unbounded.containercloud.releases import reference_to
from unbounded.containercloud.waits import ACCEPTED, CONTAINER_CLOUD, CORRECTED, MACHINA, MachineWait, WaitLimit
from unbounded.kube.clock import rfc3339, seconds_since
from unbounded.operations import reasons
from unbounded.operations.executor_selection import ExecutorKind

ATTEMPTS: Final = 5  # installs with the same inputs
BACKOFF_S: Final = 60.0  # before the second attempt; twice as long before each further one
JOIN_LIMIT_S: Final = 1800.0  # of the stages between the written image and a Ready Node, each

_PROVIDER_ID: Final = "spec.providerID"
_S = MachineStage
_R = MachineReason
_RETRIED: Final = "the Cluster has another release, or its maintenance begins and ends, which tries the Machine again"
_UPDATING: Final = frozenset({NodeUpdatePhase.DRAINING, NodeUpdatePhase.RECREATING, NodeUpdatePhase.REPLACING})

_NEW_INPUTS: Final = f"annotation {ANNOTATION_RETRY}, the image, the profile or the network changes"

Outcome = tuple[MachineExecution, MachineWait | None]


def plan_life(view: MachineView) -> MachineStep:
    """Return the next step of a Machine that is not being deleted."""
    if (lost := _lost_host(view)) is not None:
        return MachineStep(execution=view.execution, actions=(SetMachineFinalizer(True),), obstacle=lost)
    execution, obstacle = _STAGES[MachineStage(view.execution.stage)](view)
    if execution.stage != view.execution.stage and obstacle is None:
        obstacle = _first_obstacle(view, execution)
    actions = [*_finalizer(execution), *_operation(view, execution), *_provider_id(view, execution)]
    changes, labels = target_changes(view, execution), label_changes(view, execution)
    is_early = execution.stage == _S.PLANNING and view.network is not None
    if (changes or labels) and view.upgrade_index is not None and not is_early:  # one write has all
        actions.append(ChangeTarget(changes, labels, record_of_claim(view)))
    requeue_s = _requeue_s(view, obstacle)
    if view.refused is not None:
        obstacle = _refused(execution, view.refused)
    return MachineStep(execution=execution, actions=tuple(actions), obstacle=obstacle, requeue_s=requeue_s)


def _refused(execution: MachineExecution, write: RefusedWrite) -> MachineWait:
    """Return the wait for a write that the server refuses; its controller retries it."""
    is_node = execution.stage in (_S.READY, _S.UPDATING, _S.MAINTAINED)
    error = ErrorReason.UPDATE_ERROR if is_node else ErrorReason.CREATE_ERROR
    return MachineWait(_R.WRITE_REFUSED, write.text, write.by, ACCEPTED, error=error)


def _first_obstacle(view: MachineView, execution: MachineExecution) -> MachineWait | None:
    """Return the cause for which the Machine will stay in a stage that it enters, so that one write has both."""
    status = replace(view.machine.status, execution=execution)
    entered = dataclasses.replace(view, machine=replace(view.machine, status=status))
    if execution.operation != view.execution.operation:
        entered = dataclasses.replace(entered, operation=None, name_taken=False)
    after, obstacle = _STAGES[MachineStage(execution.stage)](entered)
    return obstacle if after.stage == execution.stage else None


def _finalizer(execution: MachineExecution) -> Iterator[MachineAction]:
    """Yield the finalizer of a Machine that has a host; the claim has written it, but for a host that a user pinned."""
    if execution.host is not None:
        yield SetMachineFinalizer(True)


def enter(view: MachineView, stage: MachineStage, **changed: Any) -> MachineExecution:
    """Return the execution in another stage."""
    return replace(view.execution, stage=stage.value, since=rfc3339(view.now), **changed)


def in_stage_s(view: MachineView) -> float:
    """Return the seconds since the stage was stored."""
    since = view.execution.since
    return 0.0 if since is None else max(seconds_since(since, view.now), 0.0)


def operation_name(view: MachineView, purpose: str) -> str:
    """Return a name for a new operation, which no earlier one of the Machine has; the execution keeps it."""
    return f"cc-{view.machine.metadata.uid[:8]}-{purpose}-{view.now:%Y%m%d%H%M%S}"


def request(view: MachineView, name: str, kind: OperationKind, **spec: Any) -> RequestOperation:
    """Return the request for an operation on the host."""
    return RequestOperation(name, kind, {"operationKind": kind.value, "machineRef": view.execution.machine, **spec})


def _requeue_s(view: MachineView, obstacle: MachineWait | None) -> float | None:
    limit = None if obstacle is None else obstacle.limit
    return None if limit is None else max((limit.at - view.now).total_seconds(), 0.05)


def _stay(view: MachineView, reason: str, message: str, held_by: str, until: str, **more: Any) -> Outcome:
    return view.execution, MachineWait(reason, message, held_by, until, **more)


def _itself(view: MachineView) -> str:
    """Return the holder of a wait that ends when a person changes the Machine."""
    return f"Machine {view.full_name}"


def _go(execution: MachineExecution) -> Outcome:
    return execution, None


# The claim


def _claiming(view: MachineView) -> Outcome:
    wait, host = claim_wait(view.machine, view.claim), view.claim.host
    if wait is not None or host is None:
        return view.execution, wait
    return _go(enter(view, _S.PLANNING, host=claimed_host(host), machine=machine_of_host(host)))


def claimed_host(host: BareMetalHost) -> ClaimedHost:
    return ClaimedHost(namespace=host.metadata.namespace or "", name=host.name, uid=host.metadata.uid)


def _lost_host(view: MachineView) -> MachineWait | None:
    """Return the message on a host that was deleted or taken under the Machine; no other one takes its place."""
    return None if view.execution.host is None else claim_wait(view.machine, view.claim)


# The install


def _planning(view: MachineView) -> Outcome:
    if view.adopted:  # others have installed the host
        return _go(enter(view, _S.BOOTING))
    obstacle = install_obstacle(view)
    if obstacle is not None:
        return view.execution, obstacle
    inputs = install_inputs(view)
    attempt = view.execution.attempt + 1 if inputs == view.execution.inputs else 1
    name = operation_name(view, "replace")
    return _go(enter(view, _S.PROVISIONING, operation=name, attempt=attempt, inputs=inputs))


def install_obstacle(view: MachineView) -> MachineWait | None:
    """Return why the host cannot be installed yet; None if it can."""
    machine, name = view.machine, f"Machine {view.execution.machine}"
    of_cluster = f"Cluster {machine.metadata.namespace}/{machine.cluster}"
    if view.cluster is None:
        text = f"{of_cluster} does not exist"
        return MachineWait(_R.CLUSTER_MISSING, text, of_cluster, "the Cluster exists")
    if view.release is None:
        text = (
            f"ClusterRelease {view.cluster.value.release} of Cluster {view.cluster.name} does not exist, or is unusable"
        )
        return MachineWait(_R.RELEASE_MISSING, text, of_cluster, "the Cluster has a usable ClusterRelease")
    if (fault := disallowed(machine, reference_to(view.release), strict=view.strict_distribution)) is not None:
        error = ErrorReason.INVALID_CONFIGURATION
        return MachineWait(_R.INVALID_CONFIGURATION, fault, _itself(view), CORRECTED, error=error)
    if view.target is None:
        text, holder = f"{name} of the host does not exist", f"BareMetalHost {view.execution.host}"
        return MachineWait(_R.HOST_NOT_PREPARED, text, holder, f"{name} exists")
    if view.profile is not None:
        return view.profile
    if view.network is not None:
        return view.network
    if target_changes(view, view.execution) or label_changes(view, view.execution):
        text = f"{name} is given the image and the labels"
        return MachineWait(_R.HOST_NOT_PREPARED, text, CONTAINER_CLOUD, f"{name} has the image and the labels")
    return _unfollowed_claim(view)


def _unfollowed_claim(view: MachineView) -> MachineWait | None:
    """Return the wait for the host's status to follow the claim.

    A release of the host that finds it in stock still would free its addresses, though an install may have begun.
    """
    host = view.host
    if host is None or host.state in IN_USE:
        return None
    name = f"BareMetalHost {host_key(host)}"
    text = f"{name} is {host.state or 'not registered'} by its status, which does not show the claim yet"
    return MachineWait(_R.HOST_NOT_PREPARED, text, name, f"{name} is {IN_USE[0]}")


def install_inputs(view: MachineView) -> str:
    """Return a digest of what an install depends on. A new value of the retry annotation changes it, too."""
    pxe = view.target.spec.pxe if view.target is not None else None
    profile = None if pxe is None or pxe.profile_ref is None else pxe.profile_ref.name
    network = None if view.ipam is None else _network_inputs(view.ipam, view.target)
    retry = view.machine.metadata.annotations.get(ANNOTATION_RETRY)
    parts = [image_of(view), profile, network, retry]
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:16]


def _network_inputs(ipam: IpamHost, target: Machine | None) -> list[Any]:
    """Return the parts of a network that people decide: not the cards that the host itself has reported."""
    hardware = target.status.hardware if target is not None else None
    nics = hardware.nics if hardware is not None else ()
    reported = {(nic.name or nic.mac, (nic.mac or "").lower()) for nic in nics}
    named = [card for card in ipam.spec.nic_mac_map if (card.name, card.mac.lower()) not in reported]
    spec = replace(ipam.spec, nic_mac_map=tuple(named))
    return [ipam.metadata.uid, ipam.status.l2_template_ref, msgspec.to_builtins(spec)]


def _provisioning(view: MachineView) -> Outcome:
    if (failed := _failed_install(view)) is not None:
        return failed
    if _is_written(view):
        return _go(enter(view, _S.BOOTING))
    return view.execution, _installing(view, "it has written the image, or has failed")


def _is_written(view: MachineView) -> bool:
    """Return whether the operation of this attempt has written the image; a later install forgets that."""
    image = view.target.status.image if view.target is not None else None
    is_of_boot = view.operation is not None and image is not None and image.boot == view.operation.metadata.uid
    return is_of_boot or (view.result is not None and view.result.complete)


def _installing(view: MachineView, until: str) -> MachineWait:
    """Return the wait for the install. Its phase and its progress are the operation's: one write has the wait."""
    name = f"HostReplace {view.execution.operation}"
    return MachineWait(_R.INSTALLING, f"{name} installs the host", name, until)


def _failed_install(view: MachineView) -> Outcome | None:
    """Return the stage after an install that failed; None if it has not."""
    result, attempt = view.result, view.execution.attempt
    if view.execution.operation is None or result is None or not result.failed:
        return None
    text = f"HostReplace {view.execution.operation} failed: {result.reason}: {result.message}"
    stage = _S.STUCK if attempt >= ATTEMPTS or result.reason == reasons.CANCELLED else _S.BACKOFF
    return _go(enter(view, stage, message=text))


def _backoff(view: MachineView) -> Outcome:
    if (changed := _changed_inputs(view)) is not None:
        return changed
    pause_s = BACKOFF_S * 2 ** max(view.execution.attempt - 1, 0)
    left_s = pause_s - in_stage_s(view)
    if left_s <= 0:
        return _go(enter(view, _S.PLANNING))
    attempt = f"attempt {view.execution.attempt + 1} of {ATTEMPTS}"
    text, limit = f"{view.execution.message}; {attempt} follows", limit_in(view, left_s, f"{attempt} begins")
    until = f"the pause ends, or {_NEW_INPUTS}"
    return _stay(view, _R.INSTALL_FAILED, text, CONTAINER_CLOUD, until, limit=limit, error=ErrorReason.CREATE_ERROR)


def _stuck(view: MachineView) -> Outcome:
    if (changed := _changed_inputs(view)) is not None:
        return changed
    error = ErrorReason.CREATE_ERROR
    if _is_cancelled(view):
        text = f"{view.execution.message}; annotate {ANNOTATION_RETRY} with a new value to install again"
        return _stay(view, _R.CANCELLED, text, _itself(view), _NEW_INPUTS, error=error)
    text = f"{view.execution.message}; correct the cause, then annotate {ANNOTATION_RETRY} with a new value"
    return _stay(view, _R.ATTEMPTS_EXHAUSTED, text, _itself(view), _NEW_INPUTS, error=error)


def _is_cancelled(view: MachineView) -> bool:
    """Return whether the last install was cancelled; its operation, and the record of it, may be gone."""
    result, waiting = view.result, view.execution.waiting
    known = waiting is not None and waiting.reason == _R.CANCELLED
    return known if result is None else result.reason == reasons.CANCELLED


def _changed_inputs(view: MachineView) -> Outcome | None:
    is_known = view.release is not None and view.target is not None
    if not is_known or install_inputs(view) == view.execution.inputs:
        return None
    return _go(enter(view, _S.PLANNING, attempt=0))


def _operation(view: MachineView, execution: MachineExecution) -> Iterator[MachineAction]:
    """Yield the request for the stage's install, until it is known to exist."""
    name = execution.operation
    if (
        execution.stage == _S.PROVISIONING
        and name is not None
        and (name != view.execution.operation or not view.result)
    ):
        yield RequestOperation(
            name,
            OperationKind.HOST_REPLACE,
            {"operationKind": OperationKind.HOST_REPLACE.value, "machineRef": execution.machine},
        )


# From the written image to the Node


def _joining(
    next_stage: MachineStage, seen: Callable[[MachineView], MachineWait | None]
) -> Callable[[MachineView], Outcome]:
    """Return the function of a stage that ends with an observation, or with a failure of the install."""

    def plan(view: MachineView) -> Outcome:
        obstacle = seen(view)
        if obstacle is None:
            return _go(enter(view, next_stage))
        if (failed := _failed_install(view)) is not None:
            return failed
        late_s = JOIN_LIMIT_S - in_stage_s(view)
        if late_s > 0:
            limit = limit_in(view, late_s, f"errorReason is {ErrorReason.JOIN_CLUSTER_TIMEOUT}, and the wait goes on")
            return view.execution, dataclasses.replace(obstacle, limit=limit)
        text = f"{obstacle.message}; it takes longer than {JOIN_LIMIT_S / 60:.0f} min"
        return view.execution, dataclasses.replace(obstacle, message=text, error=ErrorReason.JOIN_CLUSTER_TIMEOUT)

    return plan


def limit_in(view: MachineView, left_s: float, then: str) -> WaitLimit:
    """Return a limit of a wait, some seconds from now."""
    return WaitLimit(view.now + timedelta(seconds=left_s), then)


def _not_reported(view: MachineView) -> MachineWait | None:
    target = view.target
    if target is not None:
        reports = (one for one in target.status.conditions if one.type == ConditionType.CLOUD_INIT_DONE)
        if _agent_reports(target) or view.node is not None or any(reports):
            return None
    host = view.execution.host
    text, until = f"host {host}: the installed system has not reported yet", "the installed system reports"
    return MachineWait(_R.AWAITING_REPORT, text, f"BareMetalHost {host}", until)


def _agent_reports(target: Machine) -> bool:
    """Return whether the agent of the installed system has reported: it has reported the host, or `start` works.

    metalman removes the report on the host as it writes another system.
    """
    agent, conditions = target.status.agent, target.status.conditions
    if agent is not None and agent.host is not None:
        return True
    return any(
        (one.type, one.reason) == (ConditionType.AGENT_BOOTSTRAPPED, ConditionReason.RUNNING) for one in conditions
    )


def _not_assigned(view: MachineView) -> MachineWait | None:
    if view.adopted or view.node is not None:  # the configuration of an adopted host stays
        return None
    target, name = view.target, f"Machine {view.execution.machine}"
    if target is None or target.spec.configuration_ref is None:
        cluster = view.machine.cluster
        text = f"{name} is not bound to the MachineConfiguration of Cluster {cluster} yet"
        return MachineWait(_R.CONFIGURATION_MISSING, text, f"Cluster {cluster}", f"machina has bound {name}")
    if not _agent_reports(target):
        host = view.execution.host
        text = f"host {host}: the agent of the installed system has not reported yet"
        return MachineWait(_R.AWAITING_AGENT, text, f"BareMetalHost {host}", "the agent reports")
    return None


def _not_prepared(view: MachineView) -> MachineWait | None:
    """Return the wait for the agent, which prepares the Node; an earlier version of it does not report that."""
    agent = view.target.status.agent if view.target is not None else None
    if view.node is not None or agent is None or agent.stage is None:
        return _without_node(view)
    if agent.stage != AgentStage.PREPARING:
        return None
    name = view.execution.machine
    text = f"the agent downloads what Node {name} needs, and builds its root file system"
    return MachineWait(_R.PREPARING_NODE, text, f"{ExecutorKind.AGENT}/{name}", "the agent starts the node")


def _without_node(view: MachineView) -> MachineWait | None:
    if view.node is not None:
        return None
    name, agent = f"Node {view.execution.machine}", f"{ExecutorKind.AGENT}/{view.execution.machine}"
    return MachineWait(_R.AWAITING_NODE, f"{name} is not registered yet", agent, f"{name} is registered")


def _not_ready(view: MachineView) -> MachineWait | None:
    if view.node is None:
        return _without_node(view)
    if not view.node.ready:
        condition = view.node.ready_condition
        why = "it has not reported" if condition is None else f"{condition.reason}: {condition.message}"
        name = f"Node {view.node.name}"
        return MachineWait(_R.NODE_NOT_READY, f"{name} is not Ready: {why}", name, f"{name} is Ready")
    if view.execution.operation is not None and view.result is not None and not view.result.complete:
        return _installing(view, "it ends")
    return None


# The Node


def unmarked(view: MachineView, node: Node) -> str:
    """Return the first mark that the Node lacks; empty if it has all."""
    for key, value in desired_labels(view).items():
        if node.metadata.labels.get(key) != value:
            return f"label {key}={value}"
    for taint in desired_taints(view) or ():
        if not any(f"{one.key}={one.value or ''}:{one.effect}" == taint for one in node.spec.taints):
            return f"taint {taint}"
    if node.spec.provider_id is None:
        return _PROVIDER_ID
    return ""


def _provider_id(view: MachineView, execution: MachineExecution) -> Iterator[MachineAction]:
    host, node = execution.host, view.node
    if host is not None and node is not None and node.spec.provider_id is None:
        yield SetProviderID(node, f"metal3://{host.namespace}/{host.name}/{view.machine.name}")


def _configuring(view: MachineView) -> Outcome:
    if view.node is None:
        return _go(enter(view, _S.PREPARING))
    missing = unmarked(view, view.node)
    if not missing:
        return _go(enter(view, _S.READY, operation=None, message=None))
    holder = CONTAINER_CLOUD if missing == _PROVIDER_ID else MACHINA
    name = f"Node {view.node.name}"
    return _stay(view, _R.MARKING_NODE, f"{name} lacks {missing}", holder, f"{name} has {missing}")


def _update(view: MachineView) -> str:
    """Return the phase of an update of the Node that is under way, or has failed; empty for none."""
    update = view.target.status.node_update if view.target is not None else None
    if update is None or (update.phase not in _UPDATING and update.phase != NodeUpdatePhase.FAILED):
        return ""
    return update.phase


def _ready(view: MachineView) -> Outcome:
    if view.drained and view.machine.value.maintenance:
        return _go(enter(view, _S.MAINTAINED))
    if _update(view):
        return _go(enter(view, _S.UPDATING))
    if view.node is not None and unmarked(view, view.node):
        return _go(enter(view, _S.CONFIGURING))
    if view.machine.value.maintenance:
        disruption = view.target.status.disruption if view.target is not None else None
        text = "the Node is to be drained" if disruption is None or not disruption.message else disruption.message
        return _stay(view, _R.ENTERING_MAINTENANCE, text, drain_holder(disruption), "the Node is drained")
    return _go(replace(view.execution, message=None))


def _updating(view: MachineView) -> Outcome:
    phase = _update(view)
    target = view.target
    update = target.status.node_update if target is not None else None
    if target is None or update is None or not phase:
        return _go(enter(view, _S.CONFIGURING))
    text = f"update of the Node: {update.phase}{f': {update.message}' if update.message else ''}"
    holder = f"MachineConfigurationVersion {update.version}"
    if phase == NodeUpdatePhase.FAILED:
        return _stay(view, _R.UPDATE_FAILED, text, holder, _RETRIED, error=ErrorReason.UPDATE_ERROR)
    if phase == NodeUpdatePhase.DRAINING and target.status.disruption is not None:
        return _stay(view, _R.UPDATING, text, drain_holder(target.status.disruption), "the Node is drained")
    return _stay(view, _R.UPDATING, text, holder, "the Node has that version, or the update fails")


def _maintained(view: MachineView) -> Outcome:
    if view.drained and view.machine.value.maintenance:
        return _go(replace(view.execution, message=None))
    target = view.target
    disruption = target.status.disruption if target is not None else None
    if target is None or disruption is None or disruption.holder.kind != MAINTENANCE:
        return _go(enter(view, _S.CONFIGURING))
    kept = target.spec.maintenance
    if kept is not None and kept.enabled and maintenance_change(view, target, enabled=False) is None:
        name = f"Machine {target.name}"
        text = f"{name} has a maintenance of others{f': {kept.reason}' if kept.reason else ''}"
        return _stay(view, _R.RETURNING_NODE, text, name, "that maintenance ends")
    text = disruption.message or f"Node {view.execution.machine} is returned to service"
    return _stay(view, _R.RETURNING_NODE, text, drain_holder(disruption), "the Node is uncordoned")


def drain_holder(disruption: DisruptionStatus | None) -> str:
    """Return the holder of a drain, or of the return from one: a pod, a budget or a Node, else machina, which works."""
    return (None if disruption is None else disruption.held_by) or MACHINA


_STAGES: Final[Mapping[MachineStage, Callable[[MachineView], Outcome]]] = {
    _S.CLAIMING: _claiming,
    _S.PLANNING: _planning,
    _S.PROVISIONING: _provisioning,
    _S.BACKOFF: _backoff,
    _S.BOOTING: _joining(_S.ASSIGNING, _not_reported),
    _S.ASSIGNING: _joining(_S.PREPARING, _not_assigned),
    _S.PREPARING: _joining(_S.DEPLOYING, _not_prepared),
    _S.DEPLOYING: _joining(_S.CONFIGURING, _not_ready),
    _S.CONFIGURING: _configuring,
    _S.READY: _ready,
    _S.UPDATING: _updating,
    _S.MAINTAINED: _maintained,
    _S.STUCK: _stuck,
}
