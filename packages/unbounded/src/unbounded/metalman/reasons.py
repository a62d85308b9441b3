"""Reasons of operations on bare metal that have ended or wait, in addition to `unbounded.operations.reasons`."""

from collections.abc import Mapping
from typing import Final

from unbounded.api.operation import BOOT_CONTESTED

ADDRESS_INVALID: Final = "AddressInvalid"
BMC_REFUSED: Final = "BMCRefused"
BOOT_LOOP: Final = "BootLoop"
CERTIFICATE_CHANGED: Final = "CertificateChanged"
CERTIFICATE_UNTRUSTED: Final = "CertificateUntrusted"
CLOUD_INIT_FAILED: Final = "CloudInitFailed"
CLOUD_INIT_TIMED_OUT: Final = "CloudInitTimedOut"
CREDENTIALS_MISSING: Final = "CredentialsMissing"
CREDENTIALS_REFUSED: Final = "CredentialsRefused"
DID_NOT_COME_BACK: Final = "DidNotComeBack"
DID_NOT_NETBOOT: Final = "DidNotNetboot"
DOES_NOT_STAY_OFF: Final = "DoesNotStayOff"
DOES_NOT_STAY_ON: Final = "DoesNotStayOn"
IMAGE_NOT_READY: Final = "ImageNotReady"
INSTALL_FAILED: Final = "InstallFailed"
INSTALL_TIMED_OUT: Final = "InstallTimedOut"
NODE_NOT_READY: Final = "NodeNotReady"
TASK_FAILED: Final = "TaskFailed"

MEANING: Final[Mapping[str, str]] = {
    ADDRESS_INVALID: "spec.pxe.redfish.url of the Machine cannot be used.",
    BMC_REFUSED: "The BMC refused what it was asked for.",
    BOOT_CONTESTED: "Another client was seen on the same boot from the network, which ended it.",
    BOOT_LOOP: "The host fetched its boot loader again and again, and its image was never written.",
    CERTIFICATE_CHANGED: "The BMC shows another certificate than the pinned one; nothing was sent to it.",
    CERTIFICATE_UNTRUSTED: "The BMC's certificate does not chain to caBundle; nothing was sent to it.",
    CLOUD_INIT_FAILED: "The image was written; cloud-init then reported a failure.",
    CLOUD_INIT_TIMED_OUT: "The image was written; cloud-init began, and never reported its end.",
    CREDENTIALS_MISSING: "The Secret with the password, or its key, is not there or out of reach.",
    CREDENTIALS_REFUSED: "The BMC refused user name and password; they are not offered again until the Secret changes.",
    DID_NOT_COME_BACK: "The image was written; nothing was heard of the host after that.",
    DID_NOT_NETBOOT: "The host was started twice to boot from the network, and never fetched its loader.",
    DOES_NOT_STAY_OFF: "The host was switched off twice, and came back by itself.",
    DOES_NOT_STAY_ON: "The host was switched on twice, and went off by itself.",
    IMAGE_NOT_READY: "The image was not on metalman's disk in time; the host was not touched.",
    INSTALL_FAILED: "The installer gave up, for the reason in the message.",
    INSTALL_TIMED_OUT: "The loader was fetched, and the image was not written in time.",
    NODE_NOT_READY: "The host was installed; its Node did not become Ready in time.",
    TASK_FAILED: "The BMC took the action as a task, which failed.",
}
