"""Reasons why an operation on a cloud VM ended or waits, beyond `unbounded.operations.reasons`, and their causes.

A cause is a code within a reason, for `why` and other programs. Where a cloud refused a request (`PROVIDER_REFUSED`),
the code is the cloud's own. A missing prerequisite of a new host (`BOOTSTRAP_DATA_FAILED`) has the reasons of the
condition Provisioning.
"""

import re
from collections.abc import Mapping
from typing import Final

from unbounded.api.conditions import ConditionReason
from unbounded.api.fields import CONDITION_REASON, Cause

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
_CODE: Final = re.compile(CONDITION_REASON)

# Kinds of objects that a cause is about
CREDENTIAL: Final = "credential"
INSTANCE: Final = "instance"
KEYS: Final = "keys"  # separated by ", "
POLICY: Final = "policy"
POLICY_ID: Final = "policyID"
PROVIDER_ID: Final = "providerID"
SECRET: Final = "secret"  # noqa: S105  # NAMESPACE/NAME

CONFIGURATION_MISSING: Final = str(ConditionReason.CONFIGURATION_MISSING)
CREDENTIAL_INVALID: Final = "CredentialInvalid"
CREDENTIAL_REFUSED: Final = "CredentialRefused"
DIGEST_MISSING: Final = str(ConditionReason.DIGEST_MISSING)
EARLIER_INSTANCE: Final = "EarlierInstance"
FACTS_MISSING: Final = str(ConditionReason.FACTS_MISSING)
INSTANCE_REPLACED: Final = "InstanceReplaced"
KUBERNETES_MISSING: Final = "KubernetesMissing"
MODEL_MISSING: Final = "ModelMissing"
SECRET_INCOMPLETE: Final = "SecretIncomplete"  # noqa: S105
SECRET_INVALID: Final = "SecretInvalid"  # noqa: S105
SECRET_MISSING: Final = str(ConditionReason.SECRET_MISSING)
SITE_MISSING: Final = "SiteMissing"
USER_DATA_TOO_LONG: Final = "UserDataTooLong"
SOURCE_MISSING: Final = str(ConditionReason.SOURCE_MISSING)

CAUSE_MEANING: Final[Mapping[str, str]] = {
    CONFIGURATION_MISSING: "No version of the Machine's MachineConfiguration can be read.",
    CREDENTIAL_INVALID: "A field of the MachineOperationCredential is invalid.",
    CREDENTIAL_REFUSED: "The cloud rejected the login, or a permission is missing.",
    DIGEST_MISSING: "The URL of the agent's release uses plain http, and no digest is configured.",
    EARLIER_INSTANCE: "An earlier replacement has left an instance.",
    FACTS_MISSING: "Facts about the cluster are missing: its CA, its API server or its DNS.",
    INSTANCE_REPLACED: "Another instance was launched in place of the one that the Machine names.",
    KUBERNETES_MISSING: "The Machine has no spec.kubernetes.",
    MODEL_MISSING: "The instance does not exist any more, and no record tells how to create it.",
    SECRET_INCOMPLETE: "The Secret lacks keys.",
    SECRET_INVALID: "The content of the Secret is invalid.",
    SECRET_MISSING: "The Secret does not exist.",
    SITE_MISSING: "The Machine has no site, which selects its credential.",
    SOURCE_MISSING: "No release of the agent is configured.",
    USER_DATA_TOO_LONG: "The user data of a new host exceeds the provider's limit.",
}


def cloud_cause(code: str, about: Mapping[str, str] | None = None) -> Cause | None:
    """Return a cause with the code of a cloud's error; None for an invalid code."""
    return Cause(code=code, about=dict(about or {})) if _CODE.match(code) else None


def credential_cause(code: str, name: str) -> Cause:
    """Return a cause that is about a MachineOperationCredential."""
    return Cause(code=code, about={CREDENTIAL: name})


def secret_cause(code: str, secret: str, keys: str = "", credential: str = "") -> Cause:
    """Return a cause that is about a Secret.

    Args:
        secret: NAMESPACE/NAME.
        keys: of the Secret, separated by ", "; empty if the cause is about none.
        credential: the MachineOperationCredential that names the Secret; empty if none does.
    """
    about = {SECRET: secret, KEYS: keys, CREDENTIAL: credential}
    return Cause(code=code, about={kind: value for kind, value in about.items() if value})
