"""Conditions: the types and reasons that users script against, and pure changes to the list of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from unbounded.api.fields import CONDITION_REASON, MAX_MESSAGE, MAX_REASON

Raw = dict[str, Any]

COMMAND_LINE: Final = re.compile(r"\n(kubectl [^\n]*)(?:\n(?!kubectl )|(?=\n)|$)")


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ConditionType(StrEnum):
    SSH_REACHABLE = "SSHReachable"
    PROVISIONING = "Provisioning"
    PROVISIONED = "Provisioned"
    HOST_RESET = "HostReset"
    POWERED_OFF = "PoweredOff"
    BMC_EXCLUSIVE = "BMCExclusive"
    HOST_EXCLUSIVE = "HostExclusive"
    BOOT_ORDER_CONFIG_SUPPORTED = "BootOrderConfigSupported"
    REPAVED = "Repaved"
    CLOUD_INIT_DONE = "CloudInitDone"
    NETBOOT_IMAGE_READY = "NetbootImageReady"
    NETBOOT_SERVED = "NetbootServed"
    ATTESTED = "Attested"
    NODE_UPDATED = "NodeUpdated"
    CONFIGURATION_PENDING = "ConfigurationPending"
    REPAVE_PENDING = "RepavePending"
    AGENT_BOOTSTRAPPED = "AgentBootstrapped"
    GPUS_DESCRIBED = "GPUsDescribed"
    CLUSTER_ACCESS_CURRENT = "ClusterAccessCurrent"
    NODE_MODIFIED = "NodeModified"
    RELEASE_KEY_CURRENT = "ReleaseKeyCurrent"
    HARDWARE_CHANGED = "HardwareChanged"
    BOOT_CHANGED = "BootChanged"


class ConditionReason(StrEnum):
    REACHABLE = "Reachable"
    UNREACHABLE = "Unreachable"
    NO_ROUTE = "NoRoute"
    NAME_NOT_RESOLVED = "NameNotResolved"
    CONNECTION_REFUSED = "ConnectionRefused"
    CONNECTION_LOST = "ConnectionLost"
    NOT_SSH = "NotSSH"
    FORWARDING_PROHIBITED = "ForwardingProhibited"
    TOO_MANY_SESSIONS = "TooManySessions"
    IN_PROGRESS = "InProgress"
    COMPLETED = "Completed"
    FAILED = "Failed"
    PROVISIONED = "Provisioned"
    POWERING_OFF = "PoweringOff"
    POWERED_OFF = "PoweredOff"
    POWERING_ON = "PoweringOn"
    SUPPORTED = "Supported"
    NOT_SUPPORTED = "NotSupported"
    PENDING = "Pending"
    SUCCEEDED = "Succeeded"
    RUNNING = "Running"
    TIMED_OUT = "TimedOut"
    RESOLVED = "Resolved"
    APPLIED = "Applied"
    PULLING = "Pulling"
    PULLED = "Pulled"
    PULLED_SIGNED = "PulledSigned"
    PULL_FAILED = "PullFailed"
    UNUSABLE_IMAGE = "UnusableImage"
    NO_IMAGE = "NoImage"
    SERVED = "Served"
    NO_BOOT_FILE = "NoBootFile"
    ADDRESS_IN_USE = "AddressInUse"
    DUPLICATE_LEASE = "DuplicateLease"
    DUPLICATE_BMC = "DuplicateBMC"
    DUPLICATE_HOST = "DuplicateHost"
    INVALID_LEASE = "InvalidLease"
    FOREIGN_EK = "ForeignEK"
    EK_NOT_TRUSTED = "EKNotTrusted"
    PCR_MISMATCH = "PCRMismatch"
    QUOTE_MISSING = "QuoteMissing"
    RECORDED = "Recorded"
    ACCEPTED = "Accepted"
    WAITING = "Waiting"
    ROLLED_BACK = "RolledBack"
    NO_WORKING_NODE = "NoWorkingNode"
    CONFIGURATION_MISSING = "ConfigurationMissing"
    HOST_KEY_CHANGED = "HostKeyChanged"
    CREDENTIALS_REFUSED = "CredentialsRefused"
    SECRET_UNUSABLE = "SecretUnusable"  # noqa: S105  # a word, as those below
    SECRET_MISSING = "SecretMissing"  # noqa: S105
    SECRET_FORBIDDEN = "SecretForbidden"  # noqa: S105
    PASSPHRASE_WRONG = "PassphraseWrong"  # noqa: S105
    TOKEN_UNUSABLE = "TokenUnusable"  # noqa: S105
    TOKEN_FORBIDDEN = "TokenForbidden"  # noqa: S105
    TOKEN_NOT_RENEWABLE = "TokenNotRenewable"  # noqa: S105
    FACTS_MISSING = "FactsMissing"
    SOURCE_MISSING = "SourceMissing"
    DIGEST_MISSING = "DigestMissing"
    SUDO_REFUSED = "SudoRefused"
    COMMAND_MISSING = "CommandMissing"
    DISK_FULL = "DiskFull"
    RELEASE_NOT_FOUND = "ReleaseNotFound"
    ARTIFACT_NOT_FOUND = "ArtifactNotFound"
    IMAGE_MISSING = "ImageMissing"
    PREFLIGHT_FAILED = "PreflightFailed"
    NOT_RUN = "NotRun"
    RESET = "Reset"
    NO_DRIVER = "NoDriver"
    NOT_FOUND = "NotFound"
    MODIFIED = "Modified"
    UNCHANGED = "Unchanged"
    PARTS_MISSING = "PartsMissing"
    PARTS_ADDED = "PartsAdded"
    HEALTH_CHANGED = "HealthChanged"


@dataclass(frozen=True)
class ConditionMeaning:
    """A condition type: its writer, the meaning of True, and its reasons."""

    writer: str
    meaning: str
    reasons: tuple[ConditionReason, ...]


_R = ConditionReason
MAX_NAMES: Final = 10  # of Machines in a message
_OVER_SSH: Final = (  # failures before a command is sent to the host
    _R.UNREACHABLE,
    _R.NO_ROUTE,
    _R.NAME_NOT_RESOLVED,
    _R.CONNECTION_REFUSED,
    _R.TIMED_OUT,
    _R.CONNECTION_LOST,
    _R.NOT_SSH,
    _R.TOO_MANY_SESSIONS,
    _R.FORWARDING_PROHIBITED,
    _R.HOST_KEY_CHANGED,
    _R.CREDENTIALS_REFUSED,
    _R.SECRET_UNUSABLE,
    _R.SECRET_MISSING,
    _R.SECRET_FORBIDDEN,
    _R.PASSPHRASE_WRONG,
)
ON_HOST: Final = (  # failures of an install on a host
    _R.SUDO_REFUSED,
    _R.COMMAND_MISSING,
    _R.DISK_FULL,
    _R.RELEASE_NOT_FOUND,
    _R.ARTIFACT_NOT_FOUND,
    _R.IMAGE_MISSING,
    _R.PREFLIGHT_FAILED,
)

CONDITIONS: Final[Mapping[ConditionType, ConditionMeaning]] = {
    ConditionType.SSH_REACHABLE: ConditionMeaning(
        "machina",
        "The SSH port answers, through the bastion where there is one.",
        (_R.PENDING, _R.REACHABLE, *_OVER_SSH),
    ),
    ConditionType.PROVISIONING: ConditionMeaning(
        "machina",
        "The install script runs over SSH.",
        (
            _R.NOT_RUN,
            _R.WAITING,
            _R.IN_PROGRESS,
            _R.COMPLETED,
            _R.FAILED,
            *_OVER_SSH,
            _R.TOKEN_UNUSABLE,
            _R.TOKEN_FORBIDDEN,
            _R.TOKEN_NOT_RENEWABLE,
            _R.FACTS_MISSING,
            _R.SOURCE_MISSING,
            _R.DIGEST_MISSING,
            _R.DUPLICATE_HOST,
            *ON_HOST,
        ),
    ),
    ConditionType.PROVISIONED: ConditionMeaning(
        "machina",
        "The host was provisioned, at observedGeneration of the spec.",
        (_R.NOT_RUN, _R.PROVISIONED, _R.RESET),
    ),
    ConditionType.HOST_RESET: ConditionMeaning(
        "machina",
        "The host was reset because the Machine is being deleted. Missing before that.",
        (_R.IN_PROGRESS, _R.FAILED, *_OVER_SSH),
    ),
    ConditionType.POWERED_OFF: ConditionMeaning(
        "metalman", "The BMC reported the host as off.", (_R.POWERING_OFF, _R.POWERED_OFF, _R.POWERING_ON)
    ),
    ConditionType.BMC_EXCLUSIVE: ConditionMeaning(
        "metalman",
        "No other Machine names the same BMC and device. While another one does, their host operations "
        "exclude each other. Missing where there never was another.",
        (_R.RESOLVED, _R.DUPLICATE_BMC),
    ),
    ConditionType.HOST_EXCLUSIVE: ConditionMeaning(
        "machina",
        "No other Machine names the same SSH host. While another one does, machina sets up at most one "
        "of them. Missing where there never was another.",
        (_R.RESOLVED, _R.DUPLICATE_HOST),
    ),
    ConditionType.BOOT_ORDER_CONFIG_SUPPORTED: ConditionMeaning(
        "metalman", "False when the BMC cannot set the boot order.", (_R.SUPPORTED, _R.NOT_SUPPORTED)
    ),
    ConditionType.REPAVED: ConditionMeaning(
        "metalman",
        "The last repave has written its image. Without a BMC, machina removes False after 30 minutes "
        "without an observation.",
        (_R.PENDING, _R.SUCCEEDED),
    ),
    ConditionType.CLOUD_INIT_DONE: ConditionMeaning(
        "metalman", "cloud-init has finished.", (_R.RUNNING, _R.FAILED, _R.SUCCEEDED, _R.TIMED_OUT)
    ),
    ConditionType.NETBOOT_IMAGE_READY: ConditionMeaning(
        "metalman",
        "metalman's disk holds the images that the Machine boots from. PulledSigned: their programs are signed with "
        "the keys of a site. NoImage: neither spec.pxe.image nor a netboot image is there, so that it boots from none.",
        (_R.PULLING, _R.PULLED, _R.PULLED_SIGNED, _R.PULL_FAILED, _R.UNUSABLE_IMAGE, _R.NO_IMAGE),
    ),
    ConditionType.NETBOOT_SERVED: ConditionMeaning(
        "metalman",
        "metalman can serve the leases and boot files of the Machine.",
        (_R.SERVED, _R.NO_BOOT_FILE, _R.ADDRESS_IN_USE, _R.DUPLICATE_LEASE, _R.INVALID_LEASE),
    ),
    ConditionType.ATTESTED: ConditionMeaning(
        "metalman",
        "The Machine has proved the identity of its TPM and, under the PCR policy Required, a boot like the reference.",
        (_R.SUCCEEDED, _R.FOREIGN_EK, _R.EK_NOT_TRUSTED, _R.PCR_MISMATCH, _R.QUOTE_MISSING),
    ),
    ConditionType.BOOT_CHANGED: ConditionMeaning(
        "metalman",
        "The PCRs of the last boot, as the TPM quoted them, deviate from status.tpm.reference. The message names each "
        "PCR with its meaning. Missing before the first boot that attests.",
        (_R.RECORDED, _R.UNCHANGED, _R.ACCEPTED, _R.PCR_MISMATCH, _R.QUOTE_MISSING),
    ),
    ConditionType.HARDWARE_CHANGED: ConditionMeaning(
        "metalman",
        "An inspection, or a reading of the BMC, found other hardware or another health than the one before. The "
        "message lists missing parts, new parts and changes of health. Missing before the second inspection.",
        (_R.PARTS_MISSING, _R.PARTS_ADDED, _R.HEALTH_CHANGED, _R.UNCHANGED),
    ),
    ConditionType.NODE_UPDATED: ConditionMeaning(
        "unbounded-agent",
        "The last recreation of the node succeeded.",
        (_R.WAITING, _R.IN_PROGRESS, _R.SUCCEEDED, _R.ROLLED_BACK, _R.NO_WORKING_NODE, _R.FAILED),
    ),
    ConditionType.CONFIGURATION_PENDING: ConditionMeaning(
        "machina", "No MachineConfiguration is bound yet.", (_R.PENDING, _R.RESOLVED)
    ),
    ConditionType.REPAVE_PENDING: ConditionMeaning(
        "unbounded-agent",
        "The node differs from its configuration.",
        (_R.PENDING, _R.APPLIED, _R.ROLLED_BACK, _R.CONFIGURATION_MISSING),
    ),
    ConditionType.AGENT_BOOTSTRAPPED: ConditionMeaning(
        "unbounded-agent", "The agent has set up the node.", (_R.RUNNING, _R.SUCCEEDED, _R.RESET)
    ),
    ConditionType.GPUS_DESCRIBED: ConditionMeaning(
        "unbounded-agent",
        "CDI describes the host's NVIDIA GPUs to the container runtime. Missing where the host never had a GPU.",
        (_R.SUCCEEDED, _R.NO_DRIVER, _R.NOT_FOUND, _R.FAILED),
    ),
    ConditionType.CLUSTER_ACCESS_CURRENT: ConditionMeaning(
        "unbounded-agent",
        "Agent and kubelet use the API server's address and CA, and the DNS server, that the cluster publishes.",
        (_R.APPLIED, _R.PENDING),
    ),
    ConditionType.NODE_MODIFIED: ConditionMeaning(
        "unbounded-agent",
        "Files of the node were changed by hand. A recreation discards these changes.",
        (_R.MODIFIED, _R.UNCHANGED),
    ),
    ConditionType.RELEASE_KEY_CURRENT: ConditionMeaning(
        "unbounded-agent",
        "The host verifies releases of its agent with the public key that the cluster publishes. The "
        "message names the key. Missing where there never was a key.",
        (_R.APPLIED, _R.PENDING),
    ),
}


def set_condition(
    conditions: Sequence[Mapping[str, Any]],
    kind: str,
    status: str,
    reason: str,
    message: str,
    now: str,
    *,
    observed_generation: int | None = None,
) -> list[Raw] | None:
    """Return the list with one condition set, to be written back whole; None when it is set already.

    All other conditions stay, and so do unknown fields of this one. `lastTransitionTime` moves to `now` (RFC 3339) only
    when the status changes, `reasonTransitionTime` when status or reason change. `observedGeneration` stays where none
    is given.
    """
    said: Raw = {"type": kind, "status": status, "reason": camel_reason(reason), "message": fit_message(message)}
    if observed_generation is not None:
        said["observedGeneration"] = observed_generation
    old = find_condition(conditions, kind)
    if old is None:
        return [*map(dict, conditions), said | {"lastTransitionTime": now}]
    same = old.get("status") == status
    since = old.get("lastTransitionTime", now) if same else now
    new = {"message": "", **old, **said, "lastTransitionTime": since}
    if not same:  # lastTransitionTime implies it
        new.pop("reasonTransitionTime", None)
    elif old.get("reason") != said["reason"]:
        new["reasonTransitionTime"] = now
    if new == {"message": "", **old}:
        return None
    return [new if condition is old else dict(condition) for condition in conditions]


def remove_condition(conditions: Sequence[Mapping[str, Any]], kind: str) -> list[Raw] | None:
    """Return the list without one condition, to be written back whole; None when it is not there."""
    if find_condition(conditions, kind) is None:
        return None
    return [dict(condition) for condition in conditions if condition.get("type") != kind]


def find_condition(conditions: Sequence[Mapping[str, Any]], kind: str) -> Mapping[str, Any] | None:
    """Return the condition of this type, or None."""
    return next((condition for condition in conditions if condition.get("type") == kind), None)


def camel_reason(text: str) -> str:
    """Return the text as a reason that the API accepts: unchanged, or in CamelCase; Unknown where nothing remains."""
    if len(text) <= MAX_REASON and re.fullmatch(CONDITION_REASON, text):
        return text
    words = re.findall(r"[A-Za-z0-9]+", text)
    joined = "".join(word[0].upper() + word[1:] for word in words).lstrip("0123456789")
    return joined[:MAX_REASON] or "Unknown"


def named_alike(machines: Iterable[str]) -> str:
    """Return the beginning of a message on other Machines that name the same thing: "Machines a, b name"."""
    names = sorted(machines)
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    plural = len(names) > 1
    return f"Machine{'s' if plural else ''} {', '.join(names[:MAX_NAMES])}{more} {'name' if plural else 'names'}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 Machine` and `2 Machines`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def split_commands(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the words of a message, and the kubectl commands that stand in it on lines of their own."""
    return COMMAND_LINE.sub("", text), tuple(dict.fromkeys(COMMAND_LINE.findall(text)))


def commands_last(text: str) -> str:
    """Return a message with its commands at its end: the writer of each part may append words to another's."""
    words, commands = split_commands(text)
    return "\n".join((words, *commands))


def fit_message(text: str, limit: int = MAX_MESSAGE) -> str:
    """Return the text, cut at the API's limit; a cut text ends with an ellipsis.

    Lone surrogates, which undecodable bytes leave behind and JSON cannot carry, become question marks.
    """
    clean = text.encode(errors="replace").decode()
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
