"""Reasons why an operation on a cloud VM ended or waits, beyond `unbounded.operations.reasons`."""

from collections.abc import Mapping
from typing import Final

AUTH_AMBIGUOUS: Final = "AuthAmbiguous"
AUTH_INVALID: Final = "AuthInvalid"
AUTH_NOT_FOUND: Final = "AuthNotFound"
AUTH_REFUSED: Final = "AuthRefused"
AUTH_SECRET_FORBIDDEN: Final = "AuthSecretForbidden"  # noqa: S105
AUTH_SECRET_NOT_FOUND: Final = "AuthSecretNotFound"  # noqa: S105
BOOTSTRAP_DATA_FAILED: Final = "BootstrapDataFailed"
DOES_NOT_STAY_OFF: Final = "InstanceDoesNotStayOff"
DOES_NOT_STAY_ON: Final = "InstanceDoesNotStayOn"
INSTANCE_NOT_FOUND: Final = "InstanceNotFound"
INSTANCE_NOT_RUNNING: Final = "InstanceNotRunning"
INVALID_PROVIDER_ID: Final = "InvalidProviderID"
STATE_NOT_STORED: Final = "KeepingFailed"
STATE_IS_GONE: Final = "KeptIsGone"
NO_CAPACITY: Final = "NoCapacity"
PROVIDER_ID_SHARED: Final = "ProviderIDShared"
PROVIDER_OPERATION_FAILED: Final = "ProviderOperationFailed"
PROVIDER_REFUSED: Final = "ProviderRefused"
QUOTA_EXCEEDED: Final = "QuotaExceeded"
WOULD_BE_LOST: Final = "WouldBeLost"

MEANING: Final[Mapping[str, str]] = {
    AUTH_AMBIGUOUS: "More than one MachineOperationCredential is for the Machine's site and provider.",
    AUTH_INVALID: "The credential cannot be used: its mode, its secretRef, or what the Secret holds.",
    AUTH_NOT_FOUND: "No MachineOperationCredential is for the Machine's site and provider.",
    AUTH_REFUSED: "The cloud refused the login, or what it may do is not enough.",
    AUTH_SECRET_FORBIDDEN: "The credential's Secret is in a namespace from which the controller takes none.",
    AUTH_SECRET_NOT_FOUND: "The credential's Secret does not exist.",
    BOOTSTRAP_DATA_FAILED: "A new host lacks what it needs to join: a token, the agent, or a fact of the cluster.",
    DOES_NOT_STAY_OFF: "The instance was stopped, and came back by itself.",
    DOES_NOT_STAY_ON: "The instance was started, and went off by itself.",
    INSTANCE_NOT_FOUND: "The cloud knows no instance of that id.",
    INSTANCE_NOT_RUNNING: "A reboot was asked for of an instance that is off: HostPowerOn starts it.",
    INVALID_PROVIDER_ID: "spec.providerID of the Machine names no instance of its provider.",
    STATE_NOT_STORED: "What a replacement keeps in a Secret cannot be written, read or removed.",
    STATE_IS_GONE: "Somebody has removed the Secret that a replacement cannot go on without.",
    NO_CAPACITY: "The cloud has no room for an instance of this size there, now.",
    PROVIDER_ID_SHARED: "Another Machine is bound to the same instance; nothing was asked for.",
    PROVIDER_OPERATION_FAILED: "The cloud took the request on, and reported its failure later.",
    PROVIDER_REFUSED: "The cloud refused what it was asked for.",
    QUOTA_EXCEEDED: "The account may not have so much more: its quota has to be raised, or something else to go.",
    WOULD_BE_LOST: "Something would be lost that is to be kept, or left behind: the message names it; it is untouched.",
}
