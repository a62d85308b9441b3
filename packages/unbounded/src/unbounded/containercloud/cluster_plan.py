"""The next writes of a Cluster: its update, its budgets, the order of its Machines and its status. Pure.

An update is that of a MachineConfiguration with the strategy RollingUpdate, which machina carries out. A Cluster writes
only the fields of its objects that its spec and its release decide; people may add others, such as kubelet's settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any, Final, cast

import msgspec

from unbounded.api.conditions import counted
from unbounded.api.configuration import MachineConfiguration, UpdatePhase
from unbounded.api.container_cloud.cluster import (
    BaremetalClusterProviderStatus,
    Cluster,
    ClusterConditionType,
    ClusterNodes,
    ClusterRelease,
    ReleaseReferences,
)
from unbounded.api.container_cloud.machine import ContainerCloudMachine, MachineStage, ProviderCondition
from unbounded.api.container_cloud.names import (
    ANNOTATION_FOR_UID,
    FINALIZER_CLUSTER,
    LABEL_CLAIM_CLUSTER,
    LABEL_CLAIM_ROLE,
    LABEL_UPGRADE_INDEX,
    PROVIDER_API_VERSION,
    ROLE_MANAGER,
    ROLE_WORKER,
    scoped_name,
)
from unbounded.api.core import Node
from unbounded.api.disruption import MachineDisruptionBudget
from unbounded.api.fields import ApiStruct
from unbounded.api.machine import Machine
from unbounded.containercloud.refused import RefusedWrite
from unbounded.containercloud.releases import image_reference, is_version, reference_to, release_fault

Raw = dict[str, Any]
MAX_UPGRADE_INDEX: Final = 2**31 - 1
_DELETION: Final = frozenset(
    {
        MachineStage.GUARDING,
        MachineStage.DRAINING,
        MachineStage.RESETTING,
        MachineStage.POWERING_OFF,
        MachineStage.REMOVING,
        MachineStage.RELEASING,
    }
)
_PROVIDER_FIELDS: Final = ("releaseRefs", "nodes", "distributionRequired", "maintenance", "ready", "conditions")


class ClusterReason(StrEnum):
    """Reasons of the conditions of a Cluster and of the condition Usable of a ClusterRelease."""

    USABLE = "Usable"
    UNSUPPORTED_IMAGE = "UnsupportedImage"
    RELEASE_MISSING = "ReleaseMissing"
    RELEASE_UNUSABLE = "ReleaseUnusable"
    NAME_TAKEN = "NameTaken"
    NODES_NOT_READY = "NodesNotReady"
    NODES_READY = "NodesReady"
    UPDATED = "Updated"
    UPDATING = "Updating"
    PAUSED = "Paused"
    HALTED = "Halted"
    DELETING = "Deleting"
    WRITE_REFUSED = "WriteRefused"  # by the server, or a webhook


# Clusters


@dataclass(frozen=True, kw_only=True)
class ClusterView:
    """A Cluster, and all that decides on it.

    Args:
        release: the one that spec names; None if there is none.
        machines: those of the Cluster.
        hosts: Machines of unbounded-cloud.io that `machines` name, or that have the label of the Cluster, by name.
        nodes: by the name of their Machine.
        budgets: by name; at least those with the names of the Cluster's.
        kept: names of the Machines whose hosts others have installed: they are not updated.
        strict_distribution: whether its Machines have to name their distribution.
        refused: write for it that the server refuses now.
    """

    cluster: Cluster
    release: ClusterRelease | None = None
    machines: Sequence[ContainerCloudMachine] = ()
    hosts: Mapping[str, Machine] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    configuration: MachineConfiguration | None = None
    budgets: Mapping[str, MachineDisruptionBudget] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    strict_distribution: bool = False
    refused: RefusedWrite | None = None

    @property
    def name(self) -> str:
        """Name of the MachineConfiguration, and value of the label of the Cluster's hosts."""
        return scoped_name(self.cluster.metadata.namespace or "", self.cluster.name)

    @property
    def usable_release(self) -> ClusterRelease | None:
        """The release, if all its images can be used."""
        return None if self.release is None or release_fault(self.release) is not None else self.release


@dataclass(frozen=True)
class SetClusterFinalizer:
    """Add or remove the finalizer."""

    present: bool


@dataclass(frozen=True)
class DeleteMachine:
    """Delete a Machine of a Cluster that is being deleted."""

    machine: ContainerCloudMachine


@dataclass(frozen=True)
class UnlabelHost:
    """Remove labels from the Machine of a host."""

    host: Machine
    labels: Mapping[str, None]


@dataclass(frozen=True)
class CreateConfiguration:
    body: Raw


@dataclass(frozen=True)
class PatchConfiguration:
    configuration: MachineConfiguration
    patch: Raw


@dataclass(frozen=True)
class DeleteConfiguration:
    configuration: MachineConfiguration


@dataclass(frozen=True)
class CreateBudget:
    body: Raw


@dataclass(frozen=True)
class PatchBudget:
    budget: MachineDisruptionBudget
    patch: Raw


@dataclass(frozen=True)
class DeleteBudget:
    budget: MachineDisruptionBudget


@dataclass(frozen=True)
class WriteClusterStatus:
    """Merge fields into `status.providerStatus` of the Cluster."""

    provider_status: Raw

    @property
    def counts(self) -> bool:
        """True for another number of Machines, which a user reads later as well."""
        return "nodes" in self.provider_status and not self.provider_status.keys() & {"releaseRefs", "ready"}


ClusterAction = (
    SetClusterFinalizer
    | DeleteMachine
    | UnlabelHost
    | CreateConfiguration
    | PatchConfiguration
    | DeleteConfiguration
    | CreateBudget
    | PatchBudget
    | DeleteBudget
    | WriteClusterStatus
)


def plan_cluster(view: ClusterView) -> tuple[ClusterAction, ...]:
    """Return the writes of a Cluster, in their order; none where nothing is to be done.

    The status comes last, but for one with a refusal, as the write that the server refuses ends a pass.
    """
    writes = _writes(view)
    if view.refused is None:
        return writes
    status = [one for one in writes if isinstance(one, WriteClusterStatus)]
    others = (one for one in writes if not isinstance(one, WriteClusterStatus))
    return (*(status or _status(view, _provider_status(view))), *others)


def _writes(view: ClusterView) -> tuple[ClusterAction, ...]:
    if view.cluster.metadata.deletion_timestamp is not None:
        return _deletion(view)
    if FINALIZER_CLUSTER not in view.cluster.metadata.finalizers:
        return (SetClusterFinalizer(True),)
    return (
        *_labels(view),
        *_budgets(view),
        *_configuration(view),
        *_status(view, _provider_status(view)),
    )


def _deletion(view: ClusterView) -> tuple[ClusterAction, ...]:
    """Return the writes of a Cluster that is being deleted: its Machines go first, then its objects."""
    if FINALIZER_CLUSTER not in view.cluster.metadata.finalizers:
        return ()
    if view.machines:
        started = (one for one in view.machines if one.metadata.deletion_timestamp is None)
        text = f"{counted(len(view.machines), 'Machine')} {'is' if len(view.machines) == 1 else 'are'} being deleted"
        deleting = ProviderCondition(type=ClusterConditionType.NODES, reason=ClusterReason.DELETING, message=text)
        status = _with_condition(_provider_status(view), deleting)
        return (*map(DeleteMachine, started), *_status(view, status))
    if view.hosts:
        return tuple(UnlabelHost(host, _unlabelled(host)) for host in view.hosts.values())
    if view.configuration is not None and is_ours(view, view.configuration):
        return (DeleteConfiguration(view.configuration),)
    budgets = [view.budgets[name] for name in _limits(view) if name in view.budgets]
    if own := [budget for budget in budgets if is_ours(view, budget)]:
        return tuple(map(DeleteBudget, own))
    return (SetClusterFinalizer(False),)


def is_ours(view: ClusterView, item: MachineConfiguration | MachineDisruptionBudget) -> bool:
    """Return whether an object was created for this Cluster."""
    return item.metadata.annotations.get(ANNOTATION_FOR_UID) == view.cluster.metadata.uid


# Order of the Machines


def upgrade_indexes(machines: Iterable[ContainerCloudMachine]) -> Mapping[str, int]:
    """Return the upgradeIndex of Machines by name: that of the spec, else the one that it has, else a free one.

    Free numbers are given to managers first, then by age and name. A number stays.
    """
    found: dict[str, int] = {}
    without: list[ContainerCloudMachine] = []
    for machine in machines:
        index = upgrade_index(machine)
        if index is None:
            without.append(machine)
        else:
            found[machine.name] = index
    taken = set(found.values())
    free = (number for number in count(1) if number not in taken)
    for machine in sorted(without, key=_age):
        found[machine.name] = next(free)
    return found


def upgrade_index(machine: ContainerCloudMachine) -> int | None:
    """Return the upgradeIndex of a Machine: that of its spec, else the one that it was given; None before that."""
    return machine.value.upgrade_index or machine.provider_status.upgrade_index


def _age(machine: ContainerCloudMachine) -> tuple[bool, str, str]:
    return not machine.is_manager, machine.metadata.creation_timestamp or "", machine.name


def _labels(view: ClusterView) -> Iterable[UnlabelHost]:
    """Yield the removal of the Cluster's labels from hosts that none of its Machines has any more."""
    executions = (machine.status.execution for machine in view.machines)
    used = {execution.machine for execution in executions if execution is not None}
    for name, host in view.hosts.items():
        if name not in used and (labels := _unlabelled(host)):
            yield UnlabelHost(host, labels)


def claim_labels(machine: ContainerCloudMachine, index: int) -> dict[str, str]:
    """Return the labels by which the configuration and the budgets of its Cluster select the host of a Machine."""
    return {
        LABEL_CLAIM_CLUSTER: scoped_name(machine.metadata.namespace or "", machine.cluster),
        LABEL_CLAIM_ROLE: role_of(machine),
        LABEL_UPGRADE_INDEX: str(index),
    }


def role_of(machine: ContainerCloudMachine) -> str:
    """Return the role as the label of a host has it."""
    return ROLE_MANAGER if machine.is_manager else ROLE_WORKER


def _unlabelled(host: Machine) -> dict[str, None]:
    labels = (LABEL_CLAIM_CLUSTER, LABEL_CLAIM_ROLE, LABEL_UPGRADE_INDEX)
    return {key: None for key in labels if key in host.metadata.labels}


# Budgets


def _limits(view: ClusterView) -> dict[str, tuple[str, int]]:
    """Return the role and the limit of each budget, by its name."""
    return {
        f"{view.name}.managers": (ROLE_MANAGER, 1),
        f"{view.name}.workers": (ROLE_WORKER, view.cluster.value.max_worker_upgrade_count),
    }


def _budgets(view: ClusterView) -> Iterable[CreateBudget | PatchBudget]:
    for name, (role, limit) in _limits(view).items():
        labels = {LABEL_CLAIM_CLUSTER: view.name, LABEL_CLAIM_ROLE: role}
        spec: Raw = {"machineSelector": {"matchLabels": labels}, "maxUnavailable": limit}
        budget = view.budgets.get(name)
        if budget is None:
            yield CreateBudget({"metadata": _owned(view, name), "spec": spec})
        elif is_ours(view, budget) and (patch := merge_patch(as_json(budget.spec), spec)):
            yield PatchBudget(budget, {"spec": patch})


def _owned(view: ClusterView, name: str) -> Raw:
    return {"name": name, "annotations": {ANNOTATION_FOR_UID: view.cluster.metadata.uid}}


# Update


def _configuration(view: ClusterView) -> Iterable[CreateConfiguration | PatchConfiguration]:
    release, configuration = view.usable_release, view.configuration
    if release is None:
        return
    spec = configuration_spec(view, release)
    if configuration is None:
        yield CreateConfiguration({"metadata": _owned(view, view.name), "spec": without_none(spec)})
    elif is_ours(view, configuration) and (patch := merge_patch(as_json(configuration.spec), spec)):
        yield PatchConfiguration(configuration, {"spec": patch})


def configuration_spec(view: ClusterView, release: ClusterRelease) -> Raw:
    """Return the fields of the MachineConfiguration that the Cluster decides; None for one that is to be absent."""
    value = view.cluster.value
    image = None if release.spec.agent is None else release.spec.agent.image
    workers: Raw = {
        "name": "workers",
        "machineSelector": {"matchLabels": {LABEL_CLAIM_ROLE: ROLE_WORKER}},
        "maxConcurrent": value.max_worker_upgrade_count,
        "startAfter": {"stage": ROLE_MANAGER} | ({"targets": 1} if value.dedicated_control_plane else {}),  # or all
    }
    managers: Raw = {
        "name": ROLE_MANAGER,
        "machineSelector": {"matchLabels": {LABEL_CLAIM_ROLE: ROLE_MANAGER}},
        "maxConcurrent": 1,
    }
    return {
        "template": {
            "kubernetes": {"version": release.spec.kubernetes.version},
            "agent": None if image is None else {"image": image},
        },
        "machineSelector": {
            "matchLabels": {LABEL_CLAIM_CLUSTER: view.name},
            "matchExpressions": [{"key": LABEL_UPGRADE_INDEX, "operator": "Exists"}],  # not hosts installed by others
        },
        "updateStrategy": {
            "type": "RollingUpdate",
            "maxUnavailable": value.max_worker_upgrade_count + 1,  # a manager and workers; stages and budgets say which
            "rollingUpdate": {
                "stages": [managers, workers],
                "orderBy": LABEL_UPGRADE_INDEX,
                "maxFailures": 1,
                "onFailure": "Halt",
                "host": True,
                "prepareAhead": value.max_worker_prepare_count,
                "paused": value.maintenance or None,
            },
        },
    }


def merge_patch(existing: Mapping[str, Any], desired: Mapping[str, Any]) -> Raw:
    """Return the JSON merge patch that gives an object the desired fields, where None means absent; empty for none.

    Other fields of the object stay.
    """
    patch: Raw = {}
    for key, value in desired.items():
        there = existing.get(key)
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            if inner := merge_patch(there, value):
                patch[key] = inner
        elif there != value:
            patch[key] = without_none(value) if isinstance(value, Mapping) else value
    return patch


def as_json(value: ApiStruct) -> Raw:
    """Return a part of an object as it is on the wire, with lists for tuples."""
    return cast("Raw", msgspec.json.decode(msgspec.json.encode(value)))


def without_none(value: Mapping[str, Any]) -> Raw:
    """Return an object without the fields that are to be absent."""
    return {
        key: without_none(inner) if isinstance(inner, Mapping) else inner
        for key, inner in value.items()
        if inner is not None
    }


def outdated_machines(view: ClusterView, release: ClusterRelease) -> tuple[str, ...]:
    """Return the Machines whose Node or host is not that of a release.

    One without a Node gets the release's anyway. One whose host others have installed is left as it is.
    """
    ours = (one for one in view.machines if one.name not in view.kept)
    return tuple(sorted(one.name for one in ours if _is_outdated(view, release, one)))


def _is_outdated(view: ClusterView, release: ClusterRelease, machine: ContainerCloudMachine) -> bool:
    execution = machine.status.execution
    host = None if execution is None else view.hosts.get(execution.machine or "")
    node = None if host is None else view.nodes.get(host.name)
    if host is None or node is None or (execution is not None and execution.stage in _DELETION):
        return False
    info, agent = node.status.node_info, host.status.agent
    if info is not None and info.kubelet_version and not is_version(info.kubelet_version, release):
        return True
    image = None if release.spec.agent is None else release.spec.agent.image
    if image is not None and agent is not None and agent.image not in (None, image):
        return True
    system, written = release.distribution(machine.value.distribution or ""), host.status.image
    return system is not None and written is not None and not written.is_of(image_reference(system))


# Status


def _provider_status(view: ClusterView) -> BaremetalClusterProviderStatus:
    references = release_references(view)
    ready = sum(one.provider_status.ready for one in view.machines)
    conditions = (_release_condition(view), _nodes_condition(view, ready), _update_condition(view, references))
    return BaremetalClusterProviderStatus(
        release_refs=references,
        nodes=ClusterNodes(requested=len(view.machines), ready=ready),
        distribution_required=view.strict_distribution,
        maintenance=view.cluster.value.maintenance,
        ready=all(one.ready for one in conditions),
        conditions=conditions,
    )


def release_references(view: ClusterView) -> ReleaseReferences:
    """Return the releases: the next one becomes the current one when no Machine is outdated."""
    before, release = view.cluster.provider_status.releases, view.usable_release
    if release is None:
        return before
    reference = reference_to(release)
    if before.current is None or before.current.name == release.name:
        return ReleaseReferences(current=reference, previous=before.previous)
    if outdated_machines(view, release):
        return ReleaseReferences(current=before.current, previous=before.previous, next=reference)
    return ReleaseReferences(current=reference, previous=before.current)


def _release_condition(view: ClusterView) -> ProviderCondition:
    name, kind = view.cluster.value.release, ClusterConditionType.RELEASE
    if view.release is None:
        text = f"spec.providerSpec.value.release: ClusterRelease {name} does not exist"
        return ProviderCondition(type=kind, reason=ClusterReason.RELEASE_MISSING, message=text)
    if fault := release_fault(view.release):
        text = f"ClusterRelease {name} cannot be used: {fault}"
        return ProviderCondition(type=kind, reason=ClusterReason.RELEASE_UNUSABLE, message=text)
    taken = [
        f"MachineConfiguration {view.name}" if view.configuration and not is_ours(view, view.configuration) else None,
        *(
            f"MachineDisruptionBudget {name}"
            for name in _limits(view)
            if name in view.budgets and not is_ours(view, view.budgets[name])
        ),
    ]
    if found := [one for one in taken if one is not None]:
        text = f"{found[0]} was not created for this Cluster: delete it, or rename the Cluster"
        return ProviderCondition(type=kind, reason=ClusterReason.NAME_TAKEN, message=text)
    return ProviderCondition(type=kind, ready=True, reason=ClusterReason.USABLE, message=f"ClusterRelease {name}")


def _nodes_condition(view: ClusterView, ready: int) -> ProviderCondition:
    text = f"ready Machines: {ready} of {len(view.machines)}"
    done = ready == len(view.machines)
    reason = ClusterReason.NODES_READY if done else ClusterReason.NODES_NOT_READY
    return ProviderCondition(type=ClusterConditionType.NODES, ready=done, reason=reason, message=text)


def _update_condition(view: ClusterView, references: ReleaseReferences) -> ProviderCondition:
    release, kind = view.usable_release, ClusterConditionType.UPDATE
    if view.refused is not None:
        return ProviderCondition(type=kind, reason=ClusterReason.WRITE_REFUSED, message=view.refused.with_holder)
    outdated = () if release is None else outdated_machines(view, release)
    if not outdated:
        current = references.current
        text = "" if current is None else f"all Nodes are of ClusterRelease {current.name}{_but(view.kept)}"
        return ProviderCondition(type=kind, ready=True, reason=ClusterReason.UPDATED, message=text or None)
    rollout = None if view.configuration is None else view.configuration.status.rollout
    reason = ClusterReason.UPDATING
    if view.cluster.value.maintenance:
        reason = ClusterReason.PAUSED
    elif rollout is not None and rollout.phase == UpdatePhase.HALTED:
        reason = ClusterReason.HALTED
    these = _named(outdated)
    progress = (
        "" if rollout is None or not rollout.message else f"; MachineConfiguration {view.name}: {rollout.message}"
    )
    text = f"{counted(len(outdated), 'Machine')} outdated: {these}{progress}"
    return ProviderCondition(type=kind, reason=reason, message=text)


def _named(machines: Sequence[str]) -> str:
    return f"{', '.join(machines[:5])}{f' and {len(machines) - 5} more' if len(machines) > 5 else ''}"


def _but(kept: frozenset[str]) -> str:
    """Return the words on Machines that are not updated."""
    return f", apart from hosts that others have installed: {_named(sorted(kept))}" if kept else ""


def _with_condition(
    status: BaremetalClusterProviderStatus, changed: ProviderCondition
) -> BaremetalClusterProviderStatus:
    conditions = tuple(changed if one.type == changed.type else one for one in status.conditions)
    return msgspec.structs.replace(status, ready=False, conditions=conditions)


def _status(view: ClusterView, desired: BaremetalClusterProviderStatus) -> Iterable[WriteClusterStatus]:
    """Yield the write of the fields that differ. False and 0 are written, as a user reads them."""
    there = view.cluster.status.provider_status
    before, after = {} if there is None else full_status(there), full_status(desired)
    changed = {key: after[key] for key in _PROVIDER_FIELDS if before.get(key) != after[key]}
    if changed:
        head = {"apiVersion": PROVIDER_API_VERSION, "kind": "BaremetalClusterProviderStatus"}
        yield WriteClusterStatus(head | changed)


def full_status(status: BaremetalClusterProviderStatus) -> Raw:
    """Return the fields that the Cluster's controller owns; None for one that is to be absent."""
    references, nodes = status.release_refs, status.nodes
    return {
        "releaseRefs": None
        if references is None
        else {
            name: None if one is None else as_json(one)
            for name, one in (
                ("current", references.current),
                ("previous", references.previous),
                ("next", references.next),
            )
        },
        "nodes": None if nodes is None else {"requested": nodes.requested, "ready": nodes.ready},
        "distributionRequired": status.distribution_required or None,
        "maintenance": status.maintenance,
        "ready": status.ready,
        "conditions": [{"ready": False} | as_json(one) for one in status.conditions],
    }
