"""Observations of one Machine of cluster.k8s.io, and the decisions on it. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from unbounded.api.container_cloud.cluster import Cluster, ClusterRelease
from unbounded.api.container_cloud.host import BareMetalHost
from unbounded.api.container_cloud.machine import (
    ContainerCloudMachine,
    DeletionPhase,
    DeletionPolicy,
    MachineExecution,
    MachineStage,
)
from unbounded.api.container_cloud.network import IpamHost
from unbounded.api.core import Node
from unbounded.api.disruption import MAINTENANCE, DisruptionStage
from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation, OperationKind, OperationPhase
from unbounded.containercloud.claims import Claim
from unbounded.containercloud.hosts.adoption import leaves_as_is
from unbounded.containercloud.refused import RefusedWrite
from unbounded.containercloud.waits import MachineWait

Raw = dict[str, Any]

DELETION_STAGES: Final = frozenset(
    {
        MachineStage.GUARDING,
        MachineStage.DRAINING,
        MachineStage.RESETTING,
        MachineStage.POWERING_OFF,
        MachineStage.REMOVING,
        MachineStage.RELEASING,
    }
)


class MachineReason(StrEnum):
    """Causes for which a Machine does not go on, beside those of its claim, its profile and its network."""

    CLUSTER_MISSING = "ClusterMissing"
    RELEASE_MISSING = "ReleaseMissing"
    INVALID_CONFIGURATION = "InvalidConfiguration"
    HOST_NOT_PREPARED = "HostNotPrepared"  # its Machine and its own status do not have the claim yet
    NETWORK_PENDING = "NetworkPending"
    INSTALLING = "Installing"
    INSTALL_FAILED = "InstallFailed"
    ATTEMPTS_EXHAUSTED = "AttemptsExhausted"
    CANCELLED = "Cancelled"
    AWAITING_REPORT = "AwaitingReport"
    CONFIGURATION_MISSING = "ConfigurationMissing"
    AWAITING_AGENT = "AwaitingAgent"
    PREPARING_NODE = "PreparingNode"  # the agent downloads, and builds the root file system
    AWAITING_NODE = "AwaitingNode"
    NODE_NOT_READY = "NodeNotReady"
    MARKING_NODE = "MarkingNode"
    UPDATING = "Updating"
    UPDATE_FAILED = "UpdateFailed"
    ENTERING_MAINTENANCE = "EnteringMaintenance"
    RETURNING_NODE = "ReturningNode"  # to service, after maintenance
    MANAGERS_MISSING = "ManagersMissing"
    MANAGER_DELETION = "ManagerDeletion"  # of another manager
    CLUSTER_MAINTENANCE = "ClusterMaintenance"
    DRAINING = "Draining"  # for the deletion
    OPERATION_RUNNING = "OperationRunning"
    DRAIN_TIMED_OUT = "DrainTimedOut"
    RESET_FAILED = "ResetFailed"
    POWER_OFF_FAILED = "PowerOffFailed"
    ABORTING = "Aborting"
    REMOVING_NODE = "RemovingNode"
    RELEASING_HOST = "ReleasingHost"
    FINALIZERS_REMAINING = "FinalizersRemaining"  # of others, on the Machine
    WRITE_REFUSED = "WriteRefused"  # by the server, or a webhook


@dataclass(frozen=True)
class OperationOutcome:
    """The state of an operation, from its object or from the history of its Machine."""

    phase: str
    reason: str
    message: str

    @property
    def failed(self) -> bool:
        return self.phase == OperationPhase.FAILED

    @property
    def complete(self) -> bool:
        return self.phase == OperationPhase.COMPLETE

    @property
    def ended(self) -> bool:
        return self.failed or self.complete


@dataclass(frozen=True, kw_only=True)
class MachineView:
    """A Machine, and all that decides on it.

    Args:
        release: ClusterRelease that the Cluster is to have; None if there is no usable one.
        host: BareMetalHost that it has claimed.
        target: Machine of unbounded-cloud.io of that host.
        operation: MachineOperation that `status.execution` names.
        name_taken: an operation on another Machine has that name.
        handover: change of `spec.pxe` of the target that the planned install needs for its network.
        refused: write for it that the server refuses now.
        profile, network: causes for which the disks and the network of an install are not planned yet.
        upgrade_index: upgradeIndex that it has or gets; None without a Cluster.
        managers: the other managers of the Cluster.
        default_policy: deletionPolicy of Machines that name none.
        min_other_managers: managers that must be ready before another one is deleted.
        strict_distribution: whether a Machine has to name its distribution.
    """

    machine: ContainerCloudMachine
    now: datetime
    claim: Claim
    cluster: Cluster | None = None
    release: ClusterRelease | None = None
    host: BareMetalHost | None = None
    target: Machine | None = None
    node: Node | None = None
    operation: MachineOperation | None = None
    name_taken: bool = False
    ipam: IpamHost | None = None
    profile: MachineWait | None = None
    network: MachineWait | None = None
    refused: RefusedWrite | None = None
    handover: Mapping[str, Any] = field(default_factory=dict)
    upgrade_index: int | None = None
    managers: tuple[ContainerCloudMachine, ...] = ()
    default_policy: DeletionPolicy = DeletionPolicy.UNSAFE
    min_other_managers: int = 2
    strict_distribution: bool = False

    @property
    def execution(self) -> MachineExecution:
        return self.machine.status.execution or MachineExecution(stage=MachineStage.CLAIMING)

    @property
    def full_name(self) -> str:
        return f"{self.machine.metadata.namespace}/{self.machine.name}"

    @property
    def adopted(self) -> bool:
        """True for a host that others have installed, and that is not written."""
        return leaves_as_is(self.host, self.target)

    @property
    def drained(self) -> bool:
        """True while the Node is drained for the maintenance of the target."""
        disruption = self.target.status.disruption if self.target is not None else None
        drained = (DisruptionStage.DRAINED, DisruptionStage.WORKING)
        return disruption is not None and disruption.holder.kind == MAINTENANCE and disruption.stage in drained

    @property
    def result(self) -> OperationOutcome | None:
        """The state of the operation that the execution names; None if it was never created."""
        operation, name = self.operation, self.execution.operation
        if self.name_taken:
            text = f"MachineOperation {name} exists, and is of another Machine"
            return OperationOutcome(OperationPhase.FAILED, "NameTaken", text)
        if operation is not None:
            status = operation.status
            return OperationOutcome(status.phase or OperationPhase.PENDING, status.reason or "", status.message or "")
        recent = () if self.target is None else self.target.status.recent_operations
        found = next((one for one in recent if one.name == name), None)
        return None if found is None else OperationOutcome(found.phase, found.reason or "", found.message or "")


# Actions


@dataclass(frozen=True)
class SetMachineFinalizer:
    """Add or remove the finalizer of the Machine."""

    present: bool


@dataclass(frozen=True)
class ChangeTarget:
    """Change the spec of the target, where None removes a field, its labels and its annotations."""

    spec: Raw
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RequestOperation:
    """Create the MachineOperation that the execution names."""

    name: str
    kind: OperationKind
    spec: Raw


@dataclass(frozen=True)
class CancelOperation:
    """Ask the running operation to stop."""

    operation: MachineOperation


@dataclass(frozen=True)
class SetProviderID:
    """Write `spec.providerID` of a Node that has none."""

    node: Node
    provider_id: str


@dataclass(frozen=True)
class DeleteNode:
    """Delete the Node with this UID."""

    node: Node


@dataclass(frozen=True)
class ReleaseHost:
    """Remove the claim of the host."""

    host: BareMetalHost


@dataclass(frozen=True)
class DeleteMachineObject:
    """Delete the Machine of cluster.k8s.io, whose finalizer still holds it."""


MachineAction = (
    SetMachineFinalizer
    | ChangeTarget
    | RequestOperation
    | CancelOperation
    | SetProviderID
    | DeleteNode
    | ReleaseHost
    | DeleteMachineObject
)


@dataclass(frozen=True, kw_only=True)
class MachineStep:
    """The next step of a Machine.

    Args:
        execution: to be stored before the actions are carried out.
        obstacle: cause of the wait in the stage; None while nothing is waited for.
        deleting: value of `status.providerStatus.delete`.
        phase: prepareDeletionPhase; None for none.
        requeue_s: time after which the next pass is due without an event.
    """

    execution: MachineExecution
    actions: tuple[MachineAction, ...] = ()
    obstacle: MachineWait | None = None
    deleting: bool = False
    phase: DeletionPhase | None = None
    requeue_s: float | None = None
