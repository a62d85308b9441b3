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
    AUTH_AMBIGUOUS: "More than one MachineOperationCredential exists for the Machine's site and provider.",
    AUTH_INVALID: "The credential is invalid: its mode, its secretRef, or the content of the Secret.",
    AUTH_NOT_FOUND: "No MachineOperationCredential exists for the Machine's site and provider.",
    AUTH_REFUSED: "The cloud rejected the login, or a permission is missing.",
    AUTH_SECRET_FORBIDDEN: "The controller reads no Secrets of the namespace that the credential names.",
    AUTH_SECRET_NOT_FOUND: "The credential's Secret does not exist.",
    BOOTSTRAP_DATA_FAILED: "A new host lacks what it needs to join: a token, the agent, or a fact about the cluster.",
    DOES_NOT_STAY_OFF: "The instance was stopped, and started again without a request.",
    DOES_NOT_STAY_ON: "The instance was started, and went off without a request.",
    INSTANCE_NOT_FOUND: "The cloud has no instance with that ID.",
    INSTANCE_NOT_RUNNING: "The operation requests a reboot of an instance that is off: use HostPowerOn.",
    INVALID_PROVIDER_ID: "spec.providerID of the Machine does not name an instance of its provider.",
    STATE_NOT_STORED: "The controller cannot write, read or delete the Secret with the state of a replacement.",
    STATE_IS_GONE: "The Secret with the state of a replacement was deleted, and the replacement cannot continue.",
    NO_CAPACITY: "The cloud has no capacity for an instance of this size at present.",
    PROVIDER_ID_SHARED: "Another Machine names the same instance; no request was sent.",
    PROVIDER_OPERATION_FAILED: "The cloud accepted the request, and reported its failure later.",
    PROVIDER_REFUSED: "The cloud rejected the request.",
    QUOTA_EXCEEDED: "A quota of the account is exhausted: raise it, or delete other resources.",
    WOULD_BE_LOST: (
        "The replacement would lose what the operation protects. The message names it; the instance is unchanged."
    ),
}
