"""Machine: a host that is, or is to become, a Kubernetes node. Its desired state is in `machine_spec`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from unbounded.api.disruption import MAX_BUDGETS, DisruptionStatus
from unbounded.api.fields import (
    MAX_EVIDENCE,
    SHA256,
    ApiStruct,
    Count,
    Evidence,
    Field,
    ImageReference,
    Int32,
    Message,
    ObjectName,
    Time,
)
from unbounded.api.hardware import HardwareStatus
from unbounded.api.machine_spec import MachineSpec
from unbounded.api.machine_status import (
    MAX_ERASURES,
    AgentStage,
    DiskErasure,
    DiskErasureRecord,
    HostSystem,
    RescueSystem,
    TPMStatus,
)
from unbounded.api.meta import Condition, Kind, Object
from unbounded.api.names import ANNOTATION_PROVIDER, GROUP, LABEL_SITE, VERSION
from unbounded.api.operation import OperationsStatus
from unbounded.api.profile import MAX_DEVICES

MAX_RECENT_OPERATIONS: Final = 10
# holds the lock like an operation, without an object: the agent releases the lock
NODE_RECREATION: Final = "NodeRecreation"
PROVISIONING: Final = "Provisioning"  # likewise: machina sets a host up over SSH, and releases the lock
MAX_MACHINE_NAME: Final = 63  # it becomes the host name of the kubelet and a label value


class NetbootMilestone(StrEnum):
    """The progress of a boot from the network; a later milestone implies the earlier ones."""

    OFFERED = "Offered"
    LOADER_FETCHED = "LoaderFetched"
    KERNEL_FETCHED = "KernelFetched"
    INSTALLER_STARTED = "InstallerStarted"
    HARDWARE_REPORTED = "HardwareReported"  # the end of the boot of a HostInspect
    DISKS_ERASED = "DisksErased"  # the end of the boot of a HostErase
    RESCUE_STARTED = "RescueStarted"  # the SSH server of a HostRescue runs
    RESCUE_ENDED = "RescueEnded"  # the user switched the rescue system off from inside
    IMAGE_WRITING = "ImageWriting"
    IMAGE_WRITTEN = "ImageWritten"
    FAILED = "Failed"  # the installer gave up
    CONTESTED = "Contested"  # a second client was seen on the same boot, which ended it


class JoinPurpose(StrEnum):
    """The holder of the certificate that a join requests."""

    AGENT = "agent"
    KUBELET = "kubelet"


class MachinePhase(StrEnum):
    PENDING = "Pending"
    PROVISIONING = "Provisioning"
    JOINING = "Joining"
    READY = "Ready"
    FAILED = "Failed"
    REBOOTING = "Rebooting"


class SSHHop(StrEnum):
    """A server on the way to a host."""

    HOST = "host"
    BASTION = "bastion"


class RejectedKey(ApiStruct, frozen=True, kw_only=True):
    """A key that a server refused: not offered again while both the Secret and the Machine are as they were."""

    hop: Annotated[str, Field("Server that rejected the key: host or bastion.", enum=tuple(SSHHop))]
    secret_version: Annotated[
        str, Field("namespace/name@resourceVersion of the Secret that holds the key.", max_length=512)
    ]
    generation: Annotated[int, Field("metadata.generation of the Machine at that time.")]
    fingerprint: Annotated[
        str | None, Field("Fingerprint of the public key, as ssh-keygen -l prints it.", max_length=128)
    ] = None


class UntrustedKey(ApiStruct, frozen=True, kw_only=True):
    """A host key that a server showed in place of a trusted one."""

    hop: Annotated[str, Field("Server that presented the key: host or bastion.", enum=tuple(SSHHop))]
    fingerprint: Annotated[str, Field("Fingerprint of the key, as SHA256:….", max_length=128)]


class SSHStatus(ApiStruct, frozen=True, kw_only=True):
    """SSH host keys that were trusted on first use, and keys of ours that were refused."""

    fingerprint: Annotated[str | None, Field("Fingerprint of the host's key, as SHA256:….")] = None
    bastion_fingerprint: Annotated[str | None, Field("Fingerprint of the bastion's key, as SHA256:….")] = None
    refused: Annotated[
        tuple[RejectedKey, ...], Field("Keys that a server rejected. machina does not offer them again.", max_items=2)
    ] = ()
    untrusted: Annotated[
        tuple[UntrustedKey, ...],
        Field("Host keys that servers present at present in place of the trusted ones.", max_items=2),
    ] = ()
    failed_hop: Annotated[
        str | None,
        Field("Server that the reason of condition SSHReachable refers to, while that is False.", enum=tuple(SSHHop)),
    ] = None
    reset_failed_hop: Annotated[
        str | None, Field("Server that the reason of condition HostReset refers to.", enum=tuple(SSHHop))
    ] = None


class PreviousNode(StrEnum):
    """The state of a Machine's Node at an earlier time."""

    READY = "Ready"
    NOT_READY = "NotReady"


class ProvisioningStatus(ApiStruct, frozen=True, kw_only=True):
    """The last attempt to set the host up over SSH. It is written before anything is sent to the host."""

    attempt: Annotated[
        str,
        Field(
            "Name of the run on the host. A repetition of a failed run has the name of the first and a number.",
            max_length=64,
        ),
    ]
    host: Annotated[
        str | None, Field("host:port of the run. The run ends when spec.ssh.host changes.", max_length=300)
    ] = None
    node: Annotated[
        str | None,
        Field(
            "State of the Node at the start of the run; absent if there was no Node. A Node that becomes "
            "Ready afterwards proves the result.",
            enum=tuple(PreviousNode),
        ),
    ] = None
    generation: Annotated[int, Field("metadata.generation of the Machine at the start of the run.")]
    join_counter: Annotated[Count, Field("spec.joinCounter at the start of the run.")] = 0
    token_id: Annotated[
        str | None, Field("ID (not the secret) of the bootstrap token that the host received.", max_length=6)
    ] = None
    started_at: Annotated[Time, Field("Time at which the run started.")]
    ended_at: Annotated[Time | None, Field("Time at which the run ended; absent while it runs.")] = None
    failures: Annotated[Count, Field("Number of consecutive failed attempts, including this one.")] = 0
    failure: Annotated[str | None, Field("Cause of the failure, in CamelCase.", max_length=128)] = None
    failing_since: Annotated[
        Time | None, Field("Start of the first of the consecutive attempts that failed for this reason.")
    ] = None
    earlier_failure: Annotated[str | None, Field("Cause of the failure of the previous attempt.", max_length=128)] = (
        None
    )
    failed_hop: Annotated[
        str | None, Field("Server at which the attempt failed; absent for the host itself.", enum=tuple(SSHHop))
    ] = None
    retry_at: Annotated[
        Time | None,
        Field("Time of the next automatic attempt, unless something else blocks it by then. For display only."),
    ] = None
    reset: Annotated[
        str | None,
        Field("UID of the last AgentReset before the attempt. A later AgentReset undoes the attempt.", max_length=128),
    ] = None
    untouched: Annotated[
        bool,
        Field("No attempt has started anything on the host: neither earlier ones nor, if it has ended, this one."),
    ] = False


class MachinePower(StrEnum):
    ON = "On"
    OFF = "Off"
    UNKNOWN = "Unknown"


class PowerStatus(ApiStruct, frozen=True, kw_only=True):
    """The power of the host."""

    state: Annotated[
        str,
        Field(
            "Power that the BMC reported last while no operation had the Machine. Unknown: the last three readings "
            "gave no power.",
            enum=tuple(MachinePower),
        ),
    ]
    at: Annotated[Time, Field("Time of the first reading with this state.")]


class RedfishStatus(ApiStruct, frozen=True, kw_only=True):
    """The observed state of the BMC."""

    cert_fingerprint: Annotated[
        str | None,
        Field("SHA-256 of the BMC's TLS certificate, trusted on first use. Remove it to trust another certificate."),
    ] = None
    refused_secret_version: Annotated[
        str | None,
        Field(
            "resourceVersion of the Secret whose password the BMC rejected. metalman does not offer that "
            "password again.",
            max_length=128,
        ),
    ] = None
    media_boot: Annotated[
        str | None,
        Field(
            "UID of the operation whose boot image may be in the BMC's virtual CD drive. metalman ejects the image of "
            "an operation that has ended, and then removes the UID.",
            max_length=128,
        ),
    ] = None
    ssh_host_key: Annotated[
        str | None,
        Field(
            "Fingerprint of the host key of the BMC's SSH server, as ssh-keygen -lf prints it, trusted at the first "
            "serial console over SSH. Remove it to trust another key.",
            max_length=128,
        ),
    ] = None


class LayoutRecord(ApiStruct, frozen=True, kw_only=True):
    """The layout of the disks, as metalman compiled it last for an install."""

    boot: Annotated[str, Field("Boot that it was compiled for, as in status.netboot.boot.", max_length=128)]
    profile: Annotated[ObjectName, Field("Name of the MachineProfile.")]
    digest: Annotated[str, Field("SHA-256 digest of the layout's text.", pattern=SHA256, max_length=64)]
    disks: Annotated[
        tuple[Annotated[str, Field(max_length=253)], ...],
        Field(
            "Disks of the profile's devices, in their order, by persistent names; empty for a disk that has none. The "
            "next installation by a profile waits for these disks.",
            max_items=MAX_DEVICES,
        ),
    ] = ()
    erasures: Annotated[
        tuple[DiskErasure, ...], Field("Disks with data of others that this boot may erase.", max_items=MAX_DEVICES)
    ] = ()


class NetbootStatus(ApiStruct, frozen=True, kw_only=True):
    """Observations of metalman's servers of the last requested boot from the network."""

    boot: Annotated[
        str,
        Field(
            "Identity of the boot: the UID of the operation that requests it, or repave-N of the counter.",
            max_length=128,
        ),
    ]
    milestone: Annotated[
        str | None,
        Field("Last milestone of the boot; absent before the first observation.", enum=tuple(NetbootMilestone)),
    ] = None
    percent: Annotated[
        Int32 | None, Field("Part of the image that is written, in percent.", minimum=0, maximum=100)
    ] = None
    loads: Annotated[Int32 | None, Field("Number of times that the host fetched the loader.", minimum=0)] = None
    message: Annotated[Message | None, Field("Observation or report of the boot, for users.")] = None
    image: Annotated[
        ImageReference | None, Field("Reference of the OCI image whose disk image metalman serves, as the boot began.")
    ] = None
    image_digest: Annotated[str | None, Field("Digest of the OCI image that metalman serves.", max_length=256)] = None
    at: Annotated[Time | None, Field("Time at which the boot reached the milestone.")] = None
    erasure: Annotated[
        DiskErasure | None, Field("Disk that this boot may erase, as parameters.eraseDisks of its operation permits.")
    ] = None
    erasures: Annotated[
        tuple[DiskErasureRecord, ...],
        Field("Disks that this boot of a HostErase erases, and their progress.", max_items=MAX_ERASURES),
    ] = ()
    rescue: Annotated[
        RescueSystem | None, Field("SSH server of this boot, from the time at which the rescue system runs.")
    ] = None


class HostImage(ApiStruct, frozen=True, kw_only=True):
    """The image that was written to the host's disk last, completely."""

    image: Annotated[ImageReference, Field("Reference of the OCI image, from spec.pxe.image.")]
    digest: Annotated[str, Field("Digest that the reference resolved to.", max_length=256)]
    boot: Annotated[str, Field("Boot that wrote it, as in status.netboot.boot.", max_length=128)]
    at: Annotated[Time, Field("Time of the report that it is written.")]

    def is_of(self, reference: str) -> bool:
        """Return whether a reference names this image: by the same text, or by its digest."""
        return self.image == reference or reference.endswith(f"@{self.digest}")


class ConsoleOutput(ApiStruct, frozen=True, kw_only=True):
    """Output of the serial console that metalman has kept, without the secrets that it recognizes."""

    secret: Annotated[ObjectName, Field("Name of the Secret with the output, in namespace unbounded-kube.")]
    operation: Annotated[str, Field("Name of the operation that has failed.", max_length=253)]
    at: Annotated[Time, Field("Time at which the output was stored.")]


class PreparedVersion(ApiStruct, frozen=True, kw_only=True):
    """The download of what a Node of another version needs, before the present Node is drained."""

    version: Annotated[ObjectName, Field("Name of the MachineConfigurationVersion.")]
    generation: Annotated[int, Field("metadata.generation of the version.")]
    complete: Annotated[bool, Field("True once everything is on the host.")] = False
    message: Annotated[str | None, Field("Cause of the last failed attempt.", max_length=512)] = None


class AgentStatus(ApiStruct, frozen=True, kw_only=True):
    """The versions and the state of the host, as its agent reports them."""

    image: Annotated[ImageReference | None, Field("OCI image of the node's root file system.")] = None
    version: Annotated[str | None, Field("Version of the agent, as it reports it.", max_length=128)] = None
    host_boot_id: Annotated[str | None, Field("Boot ID of the host, as the agent reports it.", max_length=128)] = None
    waits_for_grants: Annotated[
        bool,
        Field(
            "True for an agent that waits for the grants of disruption budgets and for drains, which earlier versions "
            "do not."
        ),
    ] = False
    api_server: Annotated[str | None, Field("Address of the API server that the agent uses.", max_length=512)] = None
    cluster_ca: Annotated[
        str | None,
        Field("Digest of the CA certificates that the agent trusts, in any order.", max_length=128),
    ] = None
    prepared: Annotated[
        PreparedVersion | None,
        Field("Version that the agent has downloaded, as status.nodeUpdate requests it."),
    ] = None
    stage: Annotated[
        str | None,
        Field(
            "Work of the agent on the node. Preparing: it downloads, and builds the root file system. Starting: the "
            "node's machine starts, and kubelet registers the Node. Running: the Node is registered. Absent where the "
            "agent was reset, the host is installed anew, or an earlier version of the agent runs.",
            enum=tuple(AgentStage),
        ),
    ] = None
    host: Annotated[HostSystem | None, Field("Names, addresses, operating system and hardware of the host.")] = None


class NodeUpdatePhase(StrEnum):
    """The phases of the update of one Node."""

    PENDING = "Pending"
    PREPARING = "Preparing"
    DRAINING = "Draining"
    RECREATING = "Recreating"
    REPLACING = "Replacing"
    COMPLETE = "Complete"
    FAILED = "Failed"


class NodeUpdate(ApiStruct, frozen=True, kw_only=True):
    """The last update of the Node by a rolling update of its MachineConfiguration."""

    version: Annotated[ObjectName, Field("Name of the MachineConfigurationVersion.")]
    uid: Annotated[str, Field("UID of the version.", max_length=128)]
    generation: Annotated[int, Field("metadata.generation of the version.")]
    phase: Annotated[
        str,
        Field(
            "Pending: it failed, and is to be tried again. Preparing: the agent downloads, or metalman for an image, "
            "before or in its turn. Draining: the Node waits for the budgets and is drained. Recreating: the Node is "
            "deleted, and the agent creates it again. Replacing: a HostReplace waits for the budgets, drains the Node "
            "and writes the image of the host. Then Complete or Failed.",
            enum=tuple(NodeUpdatePhase),
        ),
    ]
    since: Annotated[Time, Field("Begin of the phase.")]
    node_uid: Annotated[str | None, Field("UID of the Node that is deleted.", max_length=128)] = None
    recreation: Annotated[
        str | None,
        Field("UID of the last NodeRecreation before the deletion; a later one has the result.", max_length=128),
    ] = None
    image: Annotated[
        ImageReference | None,
        Field("Image that the host is replaced with, from spec.pxe.image; absent for an update of the Node alone."),
    ] = None
    operation: Annotated[
        ObjectName | None, Field("Name of the HostReplace, which is created once this is written.")
    ] = None
    operation_uid: Annotated[str | None, Field("UID of the HostReplace; absent until it exists.", max_length=128)] = (
        None
    )
    message: Annotated[Message | None, Field("Cause of a failure, for a person.")] = None


class ConfigurationStatus(ApiStruct, frozen=True, kw_only=True):
    """The configuration that the Node was made from."""

    name: Annotated[ObjectName | None, Field("Name of the MachineConfiguration.")] = None
    version: Annotated[Int32 | None, Field("Version of it.", minimum=1)] = None
    version_name: Annotated[ObjectName | None, Field("Name of the MachineConfigurationVersion.")] = None


class JoinUse(ApiStruct, frozen=True, kw_only=True):
    """A certificate that was let be issued, and what allowed it."""

    purpose: Annotated[str, Field("Client of the certificate: agent or kubelet.", enum=tuple(JoinPurpose))]
    cause: Annotated[
        str,
        Field("Permission for the join: Registration, Allowed/N, HostReplace/UID or AgentReset/UID.", max_length=253),
    ]
    request: Annotated[str, Field("UID of the CertificateSigningRequest.", max_length=128)]
    at: Annotated[Time, Field("When.")]


class JoinStatus(ApiStruct, frozen=True, kw_only=True):
    """The joins that were used."""

    used: Annotated[tuple[JoinUse, ...], Field("Certificates that machina approved.", max_items=64)] = ()


class ActiveOperation(ApiStruct, frozen=True, kw_only=True):
    """The lock: the one operation, or NodeRecreation or Provisioning, that may act on this Machine now."""

    uid: Annotated[str, Field("UID of the operation.", max_length=128)]
    name: Annotated[str, Field("Name of the operation.", max_length=253)]
    kind: Annotated[str, Field("Kind of the operation, such as HostReboot.", max_length=63)]
    executor: Annotated[str, Field("Executor of the operation.", max_length=253)]
    since: Annotated[Time, Field("Time at which the executor acquired the lock.")]
    # Its executor is silent: the next one observes the machine before it takes the lock.
    lost: Annotated[
        bool,
        Field("The executor is silent, or a call of it may still arrive. The state of the machine is unknown."),
    ] = False
    # Never more than have passed: a process that waits for a late call reads it after each restart.
    lost_seconds: Annotated[
        Count,
        Field("Seconds since the executor was lost, as the waiting processes counted them up to the last write."),
    ] = 0
    # Set before the node is created, so that the version stays fixed; status.configuration has it at the end.
    configuration: Annotated[
        ConfigurationStatus | None, Field("Configuration that a NodeRecreation applies to the node.")
    ] = None


class RecentOperation(ApiStruct, frozen=True, kw_only=True):
    """The result of an operation, which outlasts its object."""

    name: Annotated[str, Field("Name of the operation.", max_length=253)]
    uid: Annotated[str, Field("UID of the operation.", max_length=128)]
    kind: Annotated[str, Field("Kind of the operation, such as HostReboot.", max_length=63)]
    phase: Annotated[str, Field("Result: Complete or Failed.", max_length=63)]
    reason: Annotated[str | None, Field("Cause of the result, in CamelCase.")] = None
    message: Annotated[Message | None, Field("Details of the result, for users.")] = None
    started_at: Annotated[Time | None, Field("Time at which an executor claimed the operation.")] = None
    completed_at: Annotated[Time | None, Field("Time at which the operation ended.")] = None
    evidence: Annotated[tuple[Evidence, ...], Field("Observations that prove the result.", max_items=MAX_EVIDENCE)] = ()


class MachineStatus(ApiStruct, frozen=True, kw_only=True):
    """The observed state of the machine."""

    phase: Annotated[str | None, Field("Phase of the machine's life.", enum=tuple(MachinePhase))] = None
    message: Annotated[Message | None, Field("Cause of the phase, for users.")] = None
    reason: Annotated[
        str | None,
        Field(
            "Cause of the phase, in CamelCase: the reason of the condition that decides, or of the operation "
            "at work. Absent where nothing blocks the Machine.",
            max_length=128,
        ),
    ] = None
    original_uid: Annotated[
        str | None,
        Field(
            "UID of the Machine on the server where it was created, before `unbounded migrate`. The host and "
            "the marks on its disks carry it.",
            max_length=128,
        ),
    ] = None
    ssh: Annotated[SSHStatus | None, Field("Facts about the SSH servers.")] = None
    provisioning: Annotated[ProvisioningStatus | None, Field("The last attempt to set the host up over SSH.")] = None
    redfish: Annotated[RedfishStatus | None, Field("Facts about the BMC.")] = None
    power: Annotated[
        PowerStatus | None, Field("Power of the host, from its BMC; absent where metalman has no BMC to read.")
    ] = None
    tpm: Annotated[TPMStatus | None, Field("Facts about the TPM.")] = None
    netboot: Annotated[
        NetbootStatus | None, Field("Last requested network boot, as metalman's servers observed it.")
    ] = None
    console_output: Annotated[
        ConsoleOutput | None, Field("Last console output of the last boot that failed, where the BMC offers a console.")
    ] = None
    target_disk: Annotated[
        str | None,
        Field(
            "Disk that was written last, by a persistent name. The next installation waits for this disk and "
            "writes no other, unless spec.pxe.targetDisk or spec.pxe.rootDeviceHints names one.",
            max_length=253,
        ),
    ] = None
    image: Annotated[
        HostImage | None,
        Field(
            "Image on the disk of the host. Absent where metalman has written none, and during another installation."
        ),
    ] = None
    layout: Annotated[LayoutRecord | None, Field("Layout of the disks, of a Machine with spec.pxe.profileRef.")] = None
    hardware: Annotated[HardwareStatus | None, Field("Parts of the machine, as the last inspection found them.")] = None
    agent: Annotated[AgentStatus | None, Field("Software on the host, as the agent reports it.")] = None
    bootstrap_token_id: Annotated[
        str | None,
        Field("ID (not the secret) of the bootstrap token that was created last for this Machine.", max_length=6),
    ] = None
    join: Annotated[
        JoinStatus | None, Field("Joins that machines used, as the approver of certificates records them.")
    ] = None
    operations: Annotated[OperationsStatus | None, Field("Counts of the reboots and repaves that were executed.")] = (
        None
    )
    configuration: Annotated[ConfigurationStatus | None, Field("Configuration that the Node was created from.")] = None
    active_operation: Annotated[
        ActiveOperation | None, Field("Lock of the Machine: the one operation that may act on it.")
    ] = None
    disruption_budgets: Annotated[
        tuple[ObjectName, ...],
        Field(
            "MachineDisruptionBudgets that select the Machine. An operation of a disruptive kind needs their grant.",
            max_items=MAX_BUDGETS,
        ),
    ] = ()
    disruption: Annotated[
        DisruptionStatus | None,
        Field("Disruption of the Node: its drain, and its return. Absent where none is requested or in progress."),
    ] = None
    node_update: Annotated[
        NodeUpdate | None, Field("Last update of the Node, where its configuration has the strategy RollingUpdate.")
    ] = None
    recent_operations: Annotated[
        tuple[RecentOperation, ...],
        Field("Last operations of the Machine, including deleted ones.", max_items=MAX_RECENT_OPERATIONS),
    ] = ()
    conditions: Annotated[
        tuple[Condition, ...],
        Field("Conditions of the Machine. One component writes each of them.", map_keys=("type",), max_items=64),
    ] = ()


class Machine(Object, frozen=True, kw_only=True):
    """A host that is, or is to become, a Kubernetes node."""

    # The server sets an empty spec, so that its rules also apply when the spec is removed.
    spec: Annotated[MachineSpec, Field("Desired state of the machine, and access to it.", defaulted=True)] = (
        MachineSpec()
    )
    status: Annotated[MachineStatus, Field("Observed state of the machine.")] = MachineStatus()

    @property
    def lasting_uid(self) -> str:
        """The UID in the marks on its disks and its host, which stays when the Machine moves to another API server."""
        return self.status.original_uid or self.metadata.uid

    @property
    def has_agent(self) -> bool:
        """True once the daemon of an agent, which executes operations, has reported. `start` reports before it."""
        agent = self.status.agent
        return agent is not None and bool(agent.version)

    def current_condition(self, kind: str) -> Condition | None:
        """Return the condition of this type; None where there is none, or it is about an earlier spec."""
        found = next((one for one in self.status.conditions if one.type == kind), None)
        seen, generation = None if found is None else found.observed_generation, self.metadata.generation
        return None if seen is not None and generation is not None and seen < generation else found

    @property
    def site(self) -> str:
        """The site label, or the empty string for a Machine of no site."""
        return self.metadata.labels.get(LABEL_SITE, "")

    @property
    def provider(self) -> str | None:
        """`spec.provider`, else the annotation; None for a Machine that no cloud provider controls."""
        return self.spec.provider or self.metadata.annotations.get(ANNOTATION_PROVIDER) or None


MACHINES: Final = Kind(GROUP, VERSION, "Machine", "machines", Machine)
