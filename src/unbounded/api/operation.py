"""MachineOperation: one discrete action on one Machine, or on the Machines that a selector names."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from unbounded.api.base import ApiStruct
from unbounded.api.fields import Count, Field, Int32, Message, ObjectName, Time
from unbounded.api.kinds import Kind
from unbounded.api.meta import Condition, LabelSelector, Object
from unbounded.api.names import GROUP, VERSION

MAX_TARGETS: Final = 1000
MAX_EVIDENCE: Final = 32
MAX_HANDLE: Final = 4096
MAX_LATE: Final = 16
CALL_REPLIES: Final = ("Accepted", "NotDone", "Unknown", "Refused")

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

    @property
    def is_host(self) -> bool:
        return self.value.startswith("Host")


class OperationPhase(StrEnum):
    PENDING = "Pending"
    IN_PROGRESS = "InProgress"
    COMPLETE = "Complete"
    FAILED = "Failed"


TERMINAL_PHASES: Final = frozenset({OperationPhase.COMPLETE, OperationPhase.FAILED})

Phase = Annotated[str, Field(enum=tuple(OperationPhase))]


class OperationsStatus(ApiStruct, frozen=True, kw_only=True):
    """Counters: `spec.operations` requests, `status.operations` has the values that were reached."""

    reboot_counter: Annotated[
        Count, Field("Reboots: the host is rebooted when the spec value exceeds the status value.", defaulted=True)
    ] = 0
    repave_counter: Annotated[
        Count, Field("Repaves: the host is reimaged when the spec value exceeds the status value.", defaulted=True)
    ] = 0


class Evidence(ApiStruct, frozen=True, kw_only=True):
    """Evidence of a step: the observation, its time (RFC 3339), and its source."""

    what: Annotated[str, Field("What was seen, such as PowerState=Off.")]
    at: Annotated[Time, Field("When it was seen, by the observer's clock.")]
    where: Annotated[str, Field("Where it was read: a URL, a file, an object.", max_length=2048)]


class ProviderReference(ApiStruct, frozen=True, kw_only=True):
    """An object that describes the provider's side of a Machine."""

    api_group: Annotated[str | None, Field("API group of the object.", max_length=253)] = None
    kind: Annotated[str, Field("Kind of the object.", min_length=1, max_length=63)]
    name: Annotated[ObjectName, Field("Name of the object.")]


class ProviderOperation(ApiStruct, frozen=True, kw_only=True):
    """A long call that a provider accepted, as its controller needs it to poll on."""

    provider: Annotated[str, Field("Provider that accepted the call.", min_length=1, max_length=253)]
    operation_id: Annotated[str | None, Field("The provider's name for the call.", max_length=MAX_HANDLE)] = None
    resume_token: Annotated[str | None, Field("Opaque state of the client.", max_length=MAX_HANDLE)] = None


class TargetInput(ApiStruct, frozen=True, kw_only=True):
    """The input of the target when execution started."""

    provider_ref: Annotated[ProviderReference | None, Field("The provider's object that was used.")] = None
    host_image: Annotated[str | None, Field("The host image that was used.")] = None


class TargetStatus(ApiStruct, frozen=True, kw_only=True):
    """The progress of one Machine of an operation. An executed operation has exactly one."""

    machine_ref: Annotated[ObjectName, Field("Name of the Machine.")]
    phase: Annotated[Phase | None, Field("Pending, InProgress, Complete or Failed.")] = None
    stage: Annotated[
        str | None, Field("Stage of the operation on this Machine, such as WaitingOff.", max_length=128)
    ] = None
    message: Annotated[Message | None, Field("Progress or failure, for a person.")] = None
    started_at: Annotated[Time | None, Field("When work on this Machine started.")] = None
    completed_at: Annotated[Time | None, Field("When this Machine reached Complete or Failed.")] = None
    observed_generation: Annotated[int | None, Field("metadata.generation of the Machine that was acted on.")] = None
    target_operations: Annotated[
        OperationsStatus | None, Field("Values that the Machine's counters reach with this operation.")
    ] = None
    attempts: Annotated[Int32 | None, Field("How often the current action was asked for.", minimum=0)] = None
    last_attempt_at: Annotated[Time | None, Field("When the current action was last asked for.")] = None
    # In parents only: the child operation of this target.
    operation: Annotated[
        ObjectName | None, Field("MachineOperation that carries this target out, for a selector operation.")
    ] = None
    reason: Annotated[str | None, Field("Why this target has its phase, in CamelCase.")] = None
    provider_operation: Annotated[
        ProviderOperation | None, Field("Long call of a provider controller that keeps its handle for each target.")
    ] = None
    input: Annotated[TargetInput | None, Field("What the target was to be made from.")] = None
    conditions: Annotated[
        tuple[Condition, ...], Field("Conditions of this target.", map_keys=("type",), max_items=32)
    ] = ()


class Cause(ApiStruct, frozen=True, kw_only=True):
    """The objects or values that a reason is about, for programs: the message has the same for people."""

    code: Annotated[str, Field("The cause within the reason, in CamelCase.", min_length=1, max_length=256)]
    about: Annotated[
        dict[str, Annotated[str, Field(max_length=1024)]],
        Field("What it is about, by kind: secret (NAMESPACE/NAME), keys, credential, instance.", max_properties=16),
    ] = {}


class CallAnswer(ApiStruct, frozen=True, kw_only=True):
    """The answer to the last call for the action; absent while there is none."""

    reply: Annotated[str, Field("Accepted, NotDone, Unknown or Refused.", enum=CALL_REPLIES)]
    reason: Annotated[str | None, Field("Why it was not done, in CamelCase.", max_length=256)] = None
    message: Annotated[str | None, Field("The answer, for a person.", max_length=4096)] = None
    cause: Annotated[Cause | None, Field("What the reason is about.")] = None


class PendingCall(ApiStruct, frozen=True, kw_only=True):
    """A call of a process that has ended, without an answer: it may still arrive."""

    epoch: Annotated[str, Field("The process that may have sent it.", max_length=253)]
    action: Annotated[str, Field("The action.", max_length=256)]
    seconds: Annotated[Count, Field("For how long it may still arrive, counted from the last write.")]


class Execution(ApiStruct, frozen=True, kw_only=True):
    """The state that an executor, or its successor, needs to resume the operation."""

    executor: Annotated[str, Field("Who claimed the operation, such as metalman/lab.", max_length=253)]
    incarnation: Annotated[str, Field("Which process of the executor wrote the last intent.", max_length=253)]
    machine_uid: Annotated[str, Field("UID of the Machine at the claim.", max_length=128)]
    binding: Annotated[
        str, Field("Digest of what the action goes to: BMC URL and device ID, or providerID.", max_length=256)
    ]
    next_binding: Annotated[
        str | None, Field("What binding becomes with the hand-over of identity that was asked for.", max_length=256)
    ] = None
    action: Annotated[str | None, Field("What was asked for last in this stage.", max_length=256)] = None
    boot_id: Annotated[
        str | None, Field("Boot ID of the host when the action was asked for, where it tells.", max_length=128)
    ] = None
    handle: Annotated[str | None, Field("Handle of a long call, opaque.", max_length=MAX_HANDLE)] = None
    answer: Annotated[CallAnswer | None, Field("The answer to the last call for the action.")] = None
    lost: Annotated[
        bool, Field("Whether an earlier call for the same action had no answer, so that it was perhaps done.")
    ] = False
    late: Annotated[
        tuple[PendingCall, ...], Field("Calls of processes that have ended which may still arrive.", max_items=MAX_LATE)
    ] = ()
    spent_seconds: Annotated[Count, Field("Seconds of deadlineSeconds that were spent up to the last write.")] = 0
    stage_seconds: Annotated[Count, Field("Seconds that the stage had lasted at the last write.")] = 0
    recorded_at: Annotated[Time | None, Field("When this was last written.")] = None
    failing_reason: Annotated[
        str | None, Field("Reason of the failure as which it ends, once nothing of it stays behind.", max_length=256)
    ] = None
    failing_message: Annotated[str | None, Field("What went wrong then.", max_length=4096)] = None
    failing_cause: Annotated[Cause | None, Field("What failingReason is about.")] = None
    standing: Annotated[
        str | None,
        Field(
            "What the last look found, up to the last write: a failure that sees nothing ends with it.", max_length=4096
        ),
    ] = None
    fact: Annotated[str | None, Field("The same, as the tables of the operation kind name it.", max_length=128)] = None
    read_at: Annotated[Time | None, Field("When that was read.")] = None


class ReplacementLoss(ApiStruct, frozen=True, kw_only=True):
    """Something that the host loses with a HostReplace."""

    field: Annotated[
        str,
        Field(
            "The field of the provider's API in which it stands, such as vnic.privateIp; parameters.accept takes it.",
            min_length=1,
            max_length=256,
        ),
    ]
    consequence: Annotated[str, Field("What comes of that, for a person.", max_length=1024)]
    lessens_security: Annotated[
        bool | None, Field("The replacement is less secure by it: nothing is begun before it is accepted.")
    ] = None


class Waiting(ApiStruct, frozen=True, kw_only=True):
    """The wait of an operation: its reason and holder, its begin and end (RFC 3339, by the writer's clock)."""

    reason: Annotated[str, Field("What is waited for, in CamelCase.")]
    held_by: Annotated[str | None, Field("Who holds the operation back, such as another operation.")] = None
    since: Annotated[Time, Field("Since when.")]
    until: Annotated[Time | None, Field("When the wait ends by itself.")] = None


class MachineOperationSpec(ApiStruct, frozen=True, kw_only=True):
    """The requested action. Only cancel, abandon, deadlineSeconds and ttlSecondsAfterFinished change."""

    operation_kind: Annotated[str, Field("The action.", enum=tuple(OperationKind))]
    machine_ref: Annotated[
        ObjectName | None, Field("Name of the target Machine. Exactly one of machineRef and machineSelector is set.")
    ] = None
    machine_selector: Annotated[
        LabelSelector | None,
        Field(
            "Target Machines by label, read once when the operation starts. Never empty. For host operations on bare "
            "metal it names one site (unbounded-cloud.io/site), in clouds a site and a provider."
        ),
    ] = None
    parameters: Annotated[
        dict[str, Annotated[str, Field(max_length=16384)]],
        Field(
            "Parameters of the operation kind: force, graceSeconds (host power); deallocate, keep, accept, "
            "imageID, sshAuthorizedKeys, assignPublicIP (cloud); downloadURL, sha256, retryFailedDigest "
            "(AgentUpgrade).",
            max_properties=32,
        ),
    ] = {}
    ttl_seconds_after_finished: Annotated[
        Int32 | None,
        Field(
            "Delete the operation this many seconds after it has finished; 0 deletes at once. Left out, it is kept.",
            minimum=0,
        ),
    ] = None
    cancel: Annotated[
        bool, Field("Ask the operation to stop where it can; false can become true, never back.", defaulted=True)
    ] = False
    abandon: Annotated[
        bool,
        Field(
            "Give the operation up although nobody can tell what became of it. It fails as ExecutorLost once its "
            "executor has said nothing about it for a minute, and as Cancelled if nobody has claimed it; false can "
            "become true, never back."
        ),
    ] = False
    start_deadline_seconds: Annotated[
        Int32, Field("Seconds after its creation at which an unclaimed operation fails.", minimum=1, defaulted=True)
    ] = 3600
    deadline_seconds: Annotated[
        Int32 | None,
        Field("Seconds from the claim to the end. Left out, the operation kind's own limit counts.", minimum=1),
    ] = None
    max_concurrent: Annotated[
        Int32, Field("With machineSelector: how many Machines are acted on at a time.", minimum=1, defaulted=True)
    ] = 10
    max_failures: Annotated[
        Int32, Field("With machineSelector: stop starting targets after so many failures.", minimum=1, defaulted=True)
    ] = 1


class MachineOperationStatus(ApiStruct, frozen=True, kw_only=True):
    """The progress of the operation, its wait, and the evidence of its end."""

    phase: Annotated[Phase | None, Field("Pending, InProgress, Complete or Failed; the last two are final.")] = None
    reason: Annotated[str | None, Field("Why the operation has its phase, in CamelCase.")] = None
    message: Annotated[Message | None, Field("What it does or waits for, or how it ended, for a person.")] = None
    cause: Annotated[
        Cause | None,
        Field("What the reason is about for which it waits or has failed; absent where no more is known."),
    ] = None
    started_at: Annotated[Time | None, Field("When the operation was claimed.")] = None
    completed_at: Annotated[Time | None, Field("When the operation reached Complete or Failed.")] = None
    observed_machine_generation: Annotated[
        int | None, Field("metadata.generation of the Machine that was acted on.")
    ] = None
    targets: Annotated[
        tuple[TargetStatus, ...],
        Field(
            "The Machines, as they were when the operation started; label changes do not alter the list.",
            map_keys=("machineRef",),
            max_items=MAX_TARGETS,
        ),
    ] = ()
    evidence: Annotated[
        tuple[Evidence, ...], Field("What was seen that proves the result, oldest first.", max_items=MAX_EVIDENCE)
    ] = ()
    losses: Annotated[
        tuple[ReplacementLoss, ...],
        Field(
            "What a replaced host will not have any more, beside what is on its boot disk; found before anything is "
            "touched.",
            map_keys=("field",),
            max_items=64,
        ),
    ] = ()
    waiting: Annotated[Waiting | None, Field("What the operation waits for; absent when it does not wait.")] = None
    execution: Annotated[Execution | None, Field("The claim and the last intent of the executor.")] = None
    conditions: Annotated[
        tuple[Condition, ...], Field("Conditions of the operation.", map_keys=("type",), max_items=32)
    ] = ()


class MachineOperation(Object, frozen=True, kw_only=True):
    """A discrete, job-like action on the host, the node or the agent of one or more Machines."""

    spec: Annotated[MachineOperationSpec, Field("What to do, and to which Machines.")]
    status: Annotated[MachineOperationStatus, Field("How far the operation is.")] = MachineOperationStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def terminal(self) -> bool:
        return self.status.phase in TERMINAL_PHASES

    @property
    def claimed(self) -> bool:
        """Return whether an executor has claimed it (or, for a parent, the supervisor has started it)."""
        return self.status.execution is not None or bool(self.status.targets)


MACHINE_OPERATIONS: Final = Kind(GROUP, VERSION, "MachineOperation", "machineoperations", MachineOperation)
