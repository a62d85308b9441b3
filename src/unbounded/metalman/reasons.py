"""Why an operation on bare metal ended or waits, beyond `unbounded.operations.reasons`."""

from collections.abc import Mapping
from typing import Final

ADDRESS_INVALID: Final = "AddressInvalid"
BMC_REFUSED: Final = "BMCRefused"
CERTIFICATE_CHANGED: Final = "CertificateChanged"
CERTIFICATE_UNTRUSTED: Final = "CertificateUntrusted"
CREDENTIALS_MISSING: Final = "CredentialsMissing"
CREDENTIALS_REFUSED: Final = "CredentialsRefused"
DOES_NOT_STAY_OFF: Final = "DoesNotStayOff"
DOES_NOT_STAY_ON: Final = "DoesNotStayOn"
TASK_FAILED: Final = "TaskFailed"

MEANING: Final[Mapping[str, str]] = {
    ADDRESS_INVALID: "spec.pxe.redfish.url of the Machine cannot be used.",
    BMC_REFUSED: "The BMC refused what it was asked for.",
    CERTIFICATE_CHANGED: "The BMC shows another certificate than the pinned one; nothing was sent to it.",
    CERTIFICATE_UNTRUSTED: "The BMC's certificate does not chain to caBundle; nothing was sent to it.",
    CREDENTIALS_MISSING: "The Secret with the password, or its key, is not there or out of reach.",
    CREDENTIALS_REFUSED: "The BMC refused user name and password; they are not offered again until the Secret changes.",
    DOES_NOT_STAY_OFF: "The host was switched off twice, and came back by itself.",
    DOES_NOT_STAY_ON: "The host was switched on twice, and went off by itself.",
    TASK_FAILED: "The BMC took the action as a task, which failed.",
}
