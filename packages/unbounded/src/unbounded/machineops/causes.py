"""Causes within the reasons of `reasons`, for `why` and other programs.

Where a cloud refused a request (`reasons.PROVIDER_REFUSED`), the code is the cloud's own. A missing prerequisite of a
new host (`reasons.BOOTSTRAP_DATA_FAILED`) has the reasons of the condition Provisioning.
"""

import re
from collections.abc import Mapping
from typing import Final

from unbounded.api.conditions import ConditionReason
from unbounded.api.fields import CONDITION_REASON, Cause

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

MEANING: Final[Mapping[str, str]] = {
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
