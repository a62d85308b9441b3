"""MachineOperation: one discrete action on one Machine, or on the Machines that a selector names."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from unbounded.api.disruption import OperationDrain
from unbounded.api.fields import (
    DNS_LABEL,
    MAX_EVIDENCE,
    ApiStruct,
    Cause,
    Count,
    Evidence,
    Field,
    Int32,
    LabelKey,
    Message,
    ObjectName,
    Time,
)
from unbounded.api.machine_status import MAX_ERASURES, DiskErasureRecord
from unbounded.api.meta import Condition, Kind, LabelSelector, Object
from unbounded.api.names import GROUP, VERSION
from unbounded.api.run_history import CALL_REPLIES, RunHistory

MAX_TARGETS: Final = 1000
MAX_HANDLE: Final = 4096
MAX_LATE: Final = 16
MAX_STAGES: Final = 16

# evidence of a HostReplace: the host was replaced, however the operation ends
IMAGE_WRITTEN: Final = "the image was written"
BOOT_CONTESTED: Final = "BootContested"  # reason of an operation whose boot another client took part in, perhaps first


class OperationKind(StrEnum):
    NODE_REBOOT = "NodeReboot"
    AGENT_UPGRADE = "AgentUpgrade"
    AGENT_RESET = "AgentReset"
    HOST_REBOOT = "HostReboot"
    HOST_POWER_OFF = "HostPowerOff"
    HOST_POWER_ON = "HostPowerOn"
    HOST_REPLACE = "HostReplace"
    HOST_INSPECT = "HostInspect"
    HOST_ERASE = "HostErase"
    HOST_RESCUE = "HostRescue"
    BMC_RESET = "BMCReset"
    FIRMWARE_UPDATE = "FirmwareUpdate"
    BMC_ROTATE_PASSWORD = "BMCRotatePassword"  # noqa: S105 - a kind

    @property
    def is_host(self) -> bool:
        """Return whether a cloud, too, can execute the kind: a power change of the host, or its replacement."""
        return self.value.startswith("Host") and not self.needs_bmc

    @property
    def needs_bmc(self) -> bool:
        """Return whether the kind exists only for a host with a BMC."""
        return self in (
            OperationKind.HOST_INSPECT,
            OperationKind.HOST_ERASE,
            OperationKind.HOST_RESCUE,
            OperationKind.BMC_RESET,
            OperationKind.FIRMWARE_UPDATE,
            OperationKind.BMC_ROTATE_PASSWORD,
        )

    @property
    def is_out_of_band(self) -> bool:
        """Return whether the kind acts through a cloud or a BMC: without the host's agent, and on it or on its BMC."""
        return self.is_host or self.needs_bmc

    @property
    def is_disruptive(self) -> bool:
        """Return whether the kind interrupts the pods of the Node."""
        return self not in (
            OperationKind.HOST_POWER_ON,
            OperationKind.AGENT_UPGRADE,
            OperationKind.BMC_RESET,
            OperationKind.BMC_ROTATE_PASSWORD,
        )


class OperationPhase(StrEnum):
    PENDING = "Pending"
    IN_PROGRESS = "InProgress"
    COMPLETE = "Complete"
    FAILED = "Failed"


TERMINAL_PHASES: Final = frozenset({OperationPhase.COMPLETE, OperationPhase.FAILED})

Phase = Annotated[str, Field(enum=tuple(OperationPhase))]


class FailurePolicy(StrEnum):
    """The reaction of a selector operation to failed targets."""

    FAIL = "Fail"
    HALT = "Halt"


class StagePhase(StrEnum):
    PENDING = "Pending"
    IN_PROGRESS = "InProgress"
    SOAKING = "Soaking"
    PAUSED = "Paused"
    HALTED = "Halted"
    COMPLETE = "Complete"


ALL: Final = "All"  # targets of the stage that startAfter names
StageName = Annotated[str, Field(pattern=DNS_LABEL, min_length=1, max_length=63)]
Share = Annotated[int | str, Field(max_length=8)]  # a number of Machines, or a percentage; rules check both


class OperationsStatus(ApiStruct, frozen=True, kw_only=True):
    """Counters: `spec.operations` requests, `status.operations` has the values that were reached."""

    reboot_counter: Annotated[
        Count,
        Field(
            "Number of desired reboots. metalman reboots the host while the spec value exceeds the status value.",
            defaulted=True,
        ),
    ] = 0
    repave_counter: Annotated[
        Count,
        Field(
            "Number of desired repaves. metalman reimages the host while the spec value exceeds the status value.",
            defaulted=True,
        ),
    ] = 0


class ProviderReference(ApiStruct, frozen=True, kw_only=True):
    """An object that describes the provider's side of a Machine."""

    api_group: Annotated[str | None, Field("API group of the object.", max_length=253)] = None
    kind: Annotated[str, Field("Kind of the object.", min_length=1, max_length=63)]
    name: Annotated[ObjectName, Field("Name of the object.")]


class ProviderOperation(ApiStruct, frozen=True, kw_only=True):
    """A long call that a provider accepted, as its controller needs it to poll on."""

    provider: Annotated[str, Field("Provider that accepted the call.", min_length=1, max_length=253)]
    operation_id: Annotated[str | None, Field("Identifier of the call at the provider.", max_length=MAX_HANDLE)] = None
    resume_token: Annotated[str | None, Field("Opaque state of the client.", max_length=MAX_HANDLE)] = None


class TargetInput(ApiStruct, frozen=True, kw_only=True):
    """The input of the target when execution started."""

    provider_ref: Annotated[ProviderReference | None, Field("Provider object that was used.")] = None
    host_image: Annotated[str | None, Field("Host image that was used.")] = None


class TargetStatus(ApiStruct, frozen=True, kw_only=True):
    """The progress of one Machine of an operation. An executed operation has exactly one."""

    machine_ref: Annotated[ObjectName, Field("Name of the Machine.")]
    phase: Annotated[Phase | None, Field("Pending, InProgress, Complete or Failed.")] = None
    stage: Annotated[
        str | None, Field("Stage of the operation on this Machine, such as WaitingOff.", max_length=128)
    ] = None
    message: Annotated[Message | None, Field("Progress or failure, for users.")] = None
    started_at: Annotated[Time | None, Field("Time at which work on this Machine started.")] = None
    completed_at: Annotated[Time | None, Field("Time at which this Machine reached Complete or Failed.")] = None
    observed_generation: Annotated[
        int | None, Field("metadata.generation of the Machine that the executor acted on.")
    ] = None
    target_operations: Annotated[
        OperationsStatus | None, Field("Values that the Machine's counters reach with this operation.")
    ] = None
    attempts: Annotated[Int32 | None, Field("Number of attempts of the current action.", minimum=0)] = None
    last_attempt_at: Annotated[Time | None, Field("Time of the last attempt of the current action.")] = None
    # In parents only: the child operation of this target.
    operation: Annotated[
        ObjectName | None, Field("MachineOperation that executes this target, for a selector operation.")
    ] = None
    reason: Annotated[str | None, Field("Cause of the target's phase, in CamelCase.")] = None
    rollout_stage: Annotated[StageName | None, Field("Stage of spec.strategy that this target belongs to.")] = None
    ready_at: Annotated[
        Time | None,
        Field("Start of this target's soak: its Node was Ready, and has stayed so unless the target has failed."),
    ] = None
    retry: Annotated[
        Int32, Field("Value of spec.retryFailed that started this target again; 0 if nothing did.", minimum=0)
    ] = 0
    provider_operation: Annotated[
        ProviderOperation | None, Field("Asynchronous call whose handle a provider controller stores for each target.")
    ] = None
    input: Annotated[TargetInput | None, Field("Source of the target's replacement.")] = None
    conditions: Annotated[
        tuple[Condition, ...], Field("Conditions of this target.", map_keys=("type",), max_items=32)
    ] = ()


class CallAnswer(ApiStruct, frozen=True, kw_only=True):
    """The answer to the last call for the action; absent while there is none."""

    reply: Annotated[str, Field("Accepted, NotDone, Unknown or Refused.", enum=CALL_REPLIES)]
    reason: Annotated[str | None, Field("Cause of the outcome, in CamelCase.", max_length=256)] = None
    message: Annotated[str | None, Field("Answer to the call, for users.", max_length=4096)] = None
    cause: Annotated[Cause | None, Field("Subject of the reason.")] = None


class PendingCall(ApiStruct, frozen=True, kw_only=True):
    """A call of a process that has ended, without an answer: it may still arrive."""

    epoch: Annotated[str, Field("Process that may have sent the call.", max_length=253)]
    action: Annotated[str, Field("Action of the call.", max_length=256)]
    seconds: Annotated[Count, Field("Time during which the call may still arrive, from the last write.")]


class Execution(ApiStruct, frozen=True, kw_only=True):
    """The state that an executor, or its successor, needs to resume the operation."""

    executor: Annotated[str, Field("Executor that claimed the operation, such as metalman/lab.", max_length=253)]
    incarnation: Annotated[str, Field("Process of the executor that wrote the last intent.", max_length=253)]
    machine_uid: Annotated[str, Field("UID of the Machine at the claim.", max_length=128)]
    binding: Annotated[
        str, Field("Digest of the action's target: BMC URL and device ID, or providerID.", max_length=256)
    ]
    next_binding: Annotated[
        str | None, Field("Value of binding after the requested handover of identity.", max_length=256)
    ] = None
    action: Annotated[str | None, Field("Last requested action in this stage.", max_length=256)] = None
    boot_id: Annotated[
        str | None, Field("Boot ID of the host at the time of the action, if the host reports it.", max_length=128)
    ] = None
    handle: Annotated[str | None, Field("Opaque handle of an asynchronous call.", max_length=MAX_HANDLE)] = None
    answer: Annotated[CallAnswer | None, Field("Answer to the last call of the action.")] = None
    lost: Annotated[
        bool, Field("True if an earlier call of the same action had no answer and may have had its effect.")
    ] = False
    late: Annotated[
        tuple[PendingCall, ...], Field("Calls of ended processes that may still arrive.", max_items=MAX_LATE)
    ] = ()
    spent_seconds: Annotated[Count, Field("Seconds of deadlineSeconds that had passed at the last write.")] = 0
    stage_seconds: Annotated[Count, Field("Seconds that the stage had lasted at the last write.")] = 0
    recorded_at: Annotated[Time | None, Field("Time of the last write.")] = None
    failing_reason: Annotated[
        str | None, Field("Reason of the failure that ends the operation once its cleanup is done.", max_length=256)
    ] = None
    failing_message: Annotated[str | None, Field("Message of that failure.", max_length=4096)] = None
    failing_cause: Annotated[Cause | None, Field("Subject of failingReason.")] = None
    standing: Annotated[
        str | None,
        Field(
            "Last observation up to the last write. A failure without a new observation reports it.", max_length=4096
        ),
    ] = None
    fact: Annotated[
        str | None,
        Field(
            "The same observation, as the tables of the operation kind name it. Absent until the stage, and the effect "
            "of its last action, were observed.",
            max_length=128,
        ),
    ] = None
    read_at: Annotated[Time | None, Field("Time of that observation; absent like fact.")] = None


class ReplacementLoss(ApiStruct, frozen=True, kw_only=True):
    """Something that the host loses with a HostReplace."""

    field: Annotated[
        str,
        Field(
            "Field of the provider's API, such as vnic.privateIp. parameters.accept takes it.",
            min_length=1,
            max_length=256,
        ),
    ]
    consequence: Annotated[str, Field("Effect of the loss, for users.", max_length=1024)]
    lessens_security: Annotated[
        bool | None,
        Field("The replacement is less secure because of this loss. Nothing starts before the user accepts it."),
    ] = None


class Waiting(ApiStruct, frozen=True, kw_only=True):
    """The wait of an operation: its reason and holder, its begin and end (RFC 3339, by the writer's clock)."""

    reason: Annotated[str, Field("Reason for the wait, in CamelCase.")]
    held_by: Annotated[str | None, Field("Holder that blocks the operation, such as another operation.")] = None
    since: Annotated[Time, Field("Start of the wait.")]
    until: Annotated[Time | None, Field("Time at which the wait ends without a change.")] = None


class StageStart(ApiStruct, frozen=True, kw_only=True):
    """The progress of an earlier stage that lets a stage start."""

    stage: Annotated[StageName, Field("Name of the earlier stage.")]
    targets: Annotated[
        int | str,
        Field(
            "Number of its targets that have completed and soaked, or All: the stage is complete, with its pause. A "
            "stage that is complete with fewer targets is enough.",
            max_length=3,
        ),
    ] = ALL


class RolloutStage(ApiStruct, frozen=True, kw_only=True):
    """A part of the targets, and the time at which they start. Exactly one of size and machineSelector is set."""

    name: Annotated[StageName, Field("Name of the stage.")]
    size: Annotated[
        Share | None,
        Field(
            "Targets of the stage, in order: a number, or a percentage of all targets, rounded up. It takes those "
            "that no earlier stage has; fewer if fewer are left."
        ),
    ] = None
    machine_selector: Annotated[
        LabelSelector | None,
        Field("Targets of the stage by label: those that no earlier stage has. It has to select at least one."),
    ] = None
    max_concurrent: Annotated[
        Share | None,
        Field(
            "Maximum number of targets of the stage at a time, or a percentage of them, rounded down, at least 1. "
            "spec.maxConcurrent limits all stages together."
        ),
    ] = None
    soak_seconds: Annotated[
        Int32,
        Field(
            "Seconds for which the Nodes of the completed targets have to stay Ready. A target whose Node turns not "
            "Ready has failed. Kubernetes reports a lost Node after 40 s or more, so use at least 60.",
            minimum=0,
            maximum=604800,
        ),
    ] = 0
    start_after: Annotated[
        StageStart | None, Field("Earlier stage that this one waits for. Defaults to all of the stage before.")
    ] = None
    pause_after: Annotated[
        bool,
        Field(
            "Pause when the stage is complete: set spec.paused of an operation, or rollingUpdate.paused of a "
            "configuration. Set it to false to continue. Without effect on the last stage.",
        ),
    ] = False


class OperationStrategy(ApiStruct, frozen=True, kw_only=True):
    """The stages and the order in which the targets of a selector operation start."""

    stages: Annotated[
        tuple[RolloutStage, ...],
        Field(
            "Stages, in order. Every target belongs to one. If absent, one stage has all targets.",
            map_keys=("name",),
            max_items=MAX_STAGES,
        ),
    ] = ()
    order_by: Annotated[
        LabelKey | None,
        Field(
            "Label of the Machines that orders the targets: integers ascending, then all other values, then by name. "
            "If absent, targets are ordered by name."
        ),
    ] = None
    on_failure: Annotated[
        str,
        Field(
            "Reaction when maxFailures targets of a stage have failed. Fail: no further target starts, and the "
            "operation fails. Halt: no further target starts until spec.retryFailed is raised, spec.cancel is set, or "
            "the Machines of the failed targets are deleted.",
            enum=tuple(FailurePolicy),
        ),
    ] = FailurePolicy.FAIL.value


class RolloutStageStatus(ApiStruct, frozen=True, kw_only=True):
    """The progress of one stage."""

    name: Annotated[StageName, Field("Name of the stage.")]
    phase: Annotated[
        str,
        Field("Pending, InProgress, Soaking, Paused, Halted or Complete.", enum=tuple(StagePhase)),
    ]
    targets: Annotated[Count, Field("Number of targets.")]
    completed: Annotated[Count, Field("Number of targets that have completed.")]
    failed: Annotated[Count, Field("Number of targets that have failed, and whose Machines exist.")] = 0
    paused_at: Annotated[Time | None, Field("Time at which pauseAfter has paused after the stage.")] = None


class RolloutStatus(ApiStruct, frozen=True, kw_only=True):
    """The progress of the stages of spec.strategy."""

    stages: Annotated[
        tuple[RolloutStageStatus, ...],
        Field("Stages, in order.", map_keys=("name",), max_items=MAX_STAGES),
    ] = ()
    retried_failed: Annotated[Int32, Field("Value of spec.retryFailed that was acted on.", minimum=0)] = 0


class MachineOperationSpec(ApiStruct, frozen=True, kw_only=True):
    """The requested action.

    Only abandon, cancel, deadlineSeconds, paused, retryFailed and ttlSecondsAfterFinished change.
    """

    operation_kind: Annotated[str, Field("The action.", enum=tuple(OperationKind))]
    machine_ref: Annotated[
        ObjectName | None, Field("Name of the target Machine. Exactly one of machineRef and machineSelector is set.")
    ] = None
    machine_selector: Annotated[
        LabelSelector | None,
        Field(
            "Target Machines by label, resolved once when the operation starts. Never empty. For host "
            "operations on bare metal it names one site (unbounded-cloud.io/site), in clouds a site and a "
            "provider."
        ),
    ] = None
    parameters: Annotated[
        dict[str, Annotated[str, Field(max_length=16384)]],
        Field(
            "Parameters of the operation kind: force, graceSeconds (host power); deallocate, keep, accept, "
            "imageID, sshAuthorizedKeys, assignPublicIP (cloud); eraseDisks, acceptPCRs (HostReplace of bare metal); "
            "disks (HostErase); "
            "authorizedKeys, minutes (HostRescue); "
            "imageURI, targets (FirmwareUpdate); "
            "downloadURL, sha256, retryFailedDigest (AgentUpgrade).",
            max_properties=32,
        ),
    ] = {}
    drain: Annotated[
        OperationDrain | None,
        Field("Drain of the Node before an operation of a kind that interrupts its pods."),
    ] = None
    override: Annotated[
        str | None,
        Field(
            "Reason for an operation that may exceed the disruption budgets of its Machine. The Node is then drained "
            "only with drain.mode Always. It needs machineRef, and the RBAC verb override-budget on the Machine.",
            pattern=r"\S",
            min_length=1,
            max_length=256,
        ),
    ] = None
    ttl_seconds_after_finished: Annotated[
        Int32 | None,
        Field(
            "Delete the operation this many seconds after it has finished; 0 deletes it at once. "
            "If absent, the operation stays.",
            minimum=0,
        ),
    ] = None
    cancel: Annotated[
        bool, Field("Ask the operation to stop where it can. It can change from false to true only.", defaulted=True)
    ] = False
    abandon: Annotated[
        bool,
        Field(
            "End the operation although its result is unknown. It fails as ExecutorLost once its executor "
            "has been silent for a minute, and as Cancelled if no executor has claimed it. It can change "
            "from false to true only."
        ),
    ] = False
    start_deadline_seconds: Annotated[
        Int32, Field("Seconds after its creation at which an unclaimed operation fails.", minimum=1, defaulted=True)
    ] = 3600
    deadline_seconds: Annotated[
        Int32 | None,
        Field("Seconds from the claim to the end. Defaults to the limit of the operation kind.", minimum=1),
    ] = None
    max_concurrent: Annotated[
        Int32, Field("With machineSelector: maximum number of Machines at a time.", minimum=1, defaulted=True)
    ] = 10
    max_failures: Annotated[
        Int32,
        Field(
            "With machineSelector: number of failures after which no further targets start. With strategy: failures "
            "in one stage.",
            minimum=1,
            defaulted=True,
        ),
    ] = 1
    strategy: Annotated[
        OperationStrategy | None,
        Field("With machineSelector: stages of the targets, their order, and the reaction to failures."),
    ] = None
    paused: Annotated[
        bool,
        Field(
            "With machineSelector: start no further targets. Targets in progress continue. It can change at any time."
        ),
    ] = False
    retry_failed: Annotated[
        Int32,
        Field(
            "With strategy.onFailure Halt: raise it to start the failed targets again, and to continue. It never "
            "decreases.",
            minimum=0,
        ),
    ] = 0


class MachineOperationStatus(ApiStruct, frozen=True, kw_only=True):
    """The progress of the operation, its wait, and the evidence of its end."""

    phase: Annotated[Phase | None, Field("Pending, InProgress, Complete or Failed; the last two are final.")] = None
    reason: Annotated[str | None, Field("Cause of the phase, in CamelCase.")] = None
    message: Annotated[Message | None, Field("Progress, cause of the wait, or result, for users.")] = None
    cause: Annotated[
        Cause | None,
        Field("Subject of the reason for the wait or the failure; absent if unknown."),
    ] = None
    started_at: Annotated[Time | None, Field("Time at which an executor claimed the operation.")] = None
    completed_at: Annotated[Time | None, Field("Time at which the operation reached Complete or Failed.")] = None
    observed_machine_generation: Annotated[
        int | None, Field("metadata.generation of the Machine that the executor acted on.")
    ] = None
    targets: Annotated[
        tuple[TargetStatus, ...],
        Field(
            "Machines at the start of the operation. Later changes of labels do not change the list.",
            map_keys=("machineRef",),
            max_items=MAX_TARGETS,
        ),
    ] = ()
    evidence: Annotated[
        tuple[Evidence, ...], Field("Observations that prove the result, oldest first.", max_items=MAX_EVIDENCE)
    ] = ()
    losses: Annotated[
        tuple[ReplacementLoss, ...],
        Field(
            "Properties that a replaced host loses, in addition to its boot disk; determined before any change.",
            map_keys=("field",),
            max_items=64,
        ),
    ] = ()
    erasures: Annotated[
        tuple[DiskErasureRecord, ...],
        Field("Report of a HostErase: each of its disks, and how it was erased.", max_items=MAX_ERASURES),
    ] = ()
    waiting: Annotated[Waiting | None, Field("Cause of the wait; absent when the operation does not wait.")] = None
    execution: Annotated[Execution | None, Field("Claim and last intent of the executor.")] = None
    history: Annotated[
        RunHistory | None,
        Field("Stages with their times, and the attempts before the last one; absent before the claim."),
    ] = None
    rollout: Annotated[RolloutStatus | None, Field("Progress of the stages; absent without spec.strategy.")] = None
    conditions: Annotated[
        tuple[Condition, ...], Field("Conditions of the operation.", map_keys=("type",), max_items=32)
    ] = ()


class MachineOperation(Object, frozen=True, kw_only=True):
    """A discrete, job-like action on the host, the node or the agent of one or more Machines."""

    spec: Annotated[MachineOperationSpec, Field("Requested action, and its target Machines.")]
    status: Annotated[MachineOperationStatus, Field("Progress of the operation.")] = MachineOperationStatus()

    @property
    def terminal(self) -> bool:
        return self.status.phase in TERMINAL_PHASES

    @property
    def claimed(self) -> bool:
        """Return whether an executor has claimed it (or, for a parent, the supervisor has started it)."""
        return self.status.execution is not None or bool(self.status.targets)


MACHINE_OPERATIONS: Final = Kind(GROUP, VERSION, "MachineOperation", "machineoperations", MachineOperation)
