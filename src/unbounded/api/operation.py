"""MachineOperation: one discrete action on one Machine, or on the Machines that a selector names."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from unbounded.api.base import ApiStruct
from unbounded.api.kinds import Kind
from unbounded.api.meta import Condition, LabelSelector, Object
from unbounded.api.names import GROUP, VERSION


class OperationKind(StrEnum):
    NODE_REBOOT = "NodeReboot"
    AGENT_UPGRADE = "AgentUpgrade"
    AGENT_RESET = "AgentReset"
    HOST_REBOOT = "HostReboot"
    HOST_POWER_OFF = "HostPowerOff"
    HOST_POWER_ON = "HostPowerOn"
    HOST_REPLACE = "HostReplace"

    @property
    def is_host(self) -> bool:
        return self.value.startswith("Host")


class OperationPhase(StrEnum):
    PENDING = "Pending"
    IN_PROGRESS = "InProgress"
    COMPLETE = "Complete"
    FAILED = "Failed"


TERMINAL_PHASES: Final = frozenset({OperationPhase.COMPLETE, OperationPhase.FAILED})


class OperationsStatus(ApiStruct, frozen=True, kw_only=True):
    """Counters: `spec.operations` asks, `status.operations` says what was acted on last."""

    reboot_counter: int = 0
    repave_counter: int = 0


class Evidence(ApiStruct, frozen=True, kw_only=True):
    """Something that was seen and proves a step: what, when (RFC 3339), and where it was read."""

    what: str
    at: str
    where: str


class TargetStatus(ApiStruct, frozen=True, kw_only=True):
    """One Machine of an operation: how far it is. An executed operation has exactly one."""

    machine_ref: str
    phase: str | None = None
    stage: str | None = None
    message: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    observed_generation: int | None = None
    target_operations: OperationsStatus | None = None
    attempts: int | None = None
    last_attempt_at: str | None = None
    operation: str | None = None  # the child that carries this target out; set in parents only
    reason: str | None = None


class Execution(ApiStruct, frozen=True, kw_only=True):
    """What an executor has to know to carry on where it, or its predecessor, was cut off."""

    executor: str  # who claimed, e.g. "metalman/lab"
    incarnation: str  # which process of it wrote the last intent
    machine_uid: str
    binding: str  # digest of what the action goes to: BMC URL and device id, or providerID
    action: str | None = None  # what was asked last in this stage
    boot_id: str | None = None  # of the host when the action was asked, where the host itself is concerned
    handle: str | None = None  # of a long call, opaque, at most 4 KiB
    spent_seconds: int = 0  # of deadlineSeconds, up to the last write


class Waiting(ApiStruct, frozen=True, kw_only=True):
    """What an operation waits for: held by whom, since and until when (RFC 3339, as the writer's clock saw it)."""

    reason: str
    held_by: str | None = None
    since: str
    until: str | None = None


class MachineOperationSpec(ApiStruct, frozen=True, kw_only=True):
    operation_kind: str
    machine_ref: str | None = None
    machine_selector: LabelSelector | None = None
    parameters: dict[str, str] = {}
    ttl_seconds_after_finished: int | None = None
    cancel: bool = False
    start_deadline_seconds: int = 3600
    deadline_seconds: int | None = None
    max_concurrent: int = 10
    max_failures: int = 1


class MachineOperationStatus(ApiStruct, frozen=True, kw_only=True):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    observed_machine_generation: int | None = None
    targets: tuple[TargetStatus, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    waiting: Waiting | None = None
    execution: Execution | None = None
    conditions: tuple[Condition, ...] = ()


class MachineOperation(Object, frozen=True, kw_only=True):
    spec: MachineOperationSpec
    status: MachineOperationStatus = MachineOperationStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def terminal(self) -> bool:
        return self.status.phase in TERMINAL_PHASES

    @property
    def claimed(self) -> bool:
        """Whether an executor has taken it (or, for a parent, the steward has started it)."""
        return self.status.execution is not None or bool(self.status.targets)


MACHINE_OPERATIONS: Final = Kind(GROUP, VERSION, "MachineOperation", "machineoperations", MachineOperation)
