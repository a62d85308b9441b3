"""Reasons of operations on bare metal that have ended or wait, in addition to `unbounded.operations.reasons`.

`grant_commands` are the commands with which an administrator ends a wait for CredentialsReadOnly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unbounded.api import names
from unbounded.api.machine_spec import SecretKeySelector
from unbounded.api.operation import BOOT_CONTESTED

ADDRESS_INVALID: Final = "AddressInvalid"
BMC_NOT_RESTARTED: Final = "BMCNotRestarted"
BMC_REFUSED: Final = "BMCRefused"
BOOT_LOOP: Final = "BootLoop"
CERTIFICATE_CHANGED: Final = "CertificateChanged"
CERTIFICATE_UNTRUSTED: Final = "CertificateUntrusted"
CLOUD_INIT_FAILED: Final = "CloudInitFailed"
CLOUD_INIT_TIMED_OUT: Final = "CloudInitTimedOut"
CREDENTIALS_MISSING: Final = "CredentialsMissing"
CREDENTIALS_READ_ONLY: Final = "CredentialsReadOnly"
CREDENTIALS_REFUSED: Final = "CredentialsRefused"
CREDENTIALS_SHARED: Final = "CredentialsShared"
DID_NOT_COME_BACK: Final = "DidNotComeBack"
DID_NOT_NETBOOT: Final = "DidNotNetboot"
DID_NOT_BOOT_MEDIA: Final = "DidNotBootMedia"
DOES_NOT_STAY_OFF: Final = "DoesNotStayOff"
DOES_NOT_STAY_ON: Final = "DoesNotStayOn"
ERASE_FAILED: Final = "EraseFailed"
ERASE_TIMED_OUT: Final = "EraseTimedOut"
IMAGE_NOT_READY: Final = "ImageNotReady"
INSPECTION_TIMED_OUT: Final = "InspectionTimedOut"
INSTALL_FAILED: Final = "InstallFailed"
INSTALL_TIMED_OUT: Final = "InstallTimedOut"
NEW_PASSWORD_REFUSED: Final = "NewPasswordRefused"  # noqa: S105 - a reason
NO_IMAGE: Final = "NoImage"
NODE_NOT_DRAINED: Final = "NodeNotDrained"
NETWORK_INVALID: Final = "NetworkInvalid"
NODE_NOT_READY: Final = "NodeNotReady"
NOT_ATTESTED: Final = "NotAttested"
POWER_CHANGED: Final = "PowerChanged"
PROFILE_INVALID: Final = "ProfileInvalid"
RESCUE_NOT_STARTED: Final = "RescueNotStarted"
TASK_FAILED: Final = "TaskFailed"

MEANING: Final[Mapping[str, str]] = {
    ADDRESS_INVALID: "spec.pxe.redfish.url of the Machine is invalid.",
    BMC_NOT_RESTARTED: "The BMC stopped answering after its reset was requested, and did not answer again in time.",
    BMC_REFUSED: "The BMC rejected the request.",
    BOOT_CONTESTED: "A second client took part in the same network boot, which ended the boot.",
    BOOT_LOOP: "The host fetched its boot loader repeatedly, and its image was never written.",
    CERTIFICATE_CHANGED: "The BMC presents a certificate other than the pinned one; metalman sent nothing to it.",
    CERTIFICATE_UNTRUSTED: "The BMC's certificate does not chain to caBundle; metalman sent nothing to it.",
    CLOUD_INIT_FAILED: "The image was written; cloud-init then reported a failure.",
    CLOUD_INIT_TIMED_OUT: "The image was written; cloud-init started, and never reported its end.",
    CREDENTIALS_MISSING: (
        "The Secret with the password, or its key, does not exist or metalman has no permission to read it."
    ),
    CREDENTIALS_READ_ONLY: "metalman has no permission to change the Secret with the password; the message has it.",
    CREDENTIALS_SHARED: "Another Machine would be left with a wrong password; the message names it and its Secret.",
    CREDENTIALS_REFUSED: (
        "The BMC rejected user name and password; metalman does not offer them again until the Secret changes."
    ),
    DID_NOT_COME_BACK: "The image was written; the host sent no report afterwards.",
    DID_NOT_BOOT_MEDIA: "The host was started twice from its virtual CD drive, and never started the installer.",
    DID_NOT_NETBOOT: "The host was started twice for a network boot, and never fetched its loader.",
    DOES_NOT_STAY_OFF: "The host was switched off twice, and came back on without a request.",
    DOES_NOT_STAY_ON: "The host was switched on twice, and went off without a request.",
    ERASE_FAILED: "The installer could not erase every disk; the message says which are erased, begun and untouched.",
    ERASE_TIMED_OUT: "The disks were not erased in time, or without progress; the message lists the remaining ones.",
    IMAGE_NOT_READY: "The image was not on metalman's disk in time; the host was not changed.",
    INSPECTION_TIMED_OUT: "The host fetched the loader, and the installer did not report the hardware in time.",
    INSTALL_FAILED: "The installer stopped, for the reason in the message.",
    INSTALL_TIMED_OUT: "The host fetched the loader, and the image was not written in time.",
    NEW_PASSWORD_REFUSED: "The BMC refused the new password, with the words in the message; the former one stays.",
    NO_IMAGE: "The Machine has no spec.pxe.image to install, or no image to boot at all; the host was not changed.",
    NODE_NOT_DRAINED: "The Node of the Machine exists, and is not cordoned or has Pods; the host was not changed.",
    NETWORK_INVALID: "spec.network of the Machine has faults; the host was not changed.",
    NODE_NOT_READY: "The host was installed; its Node did not become Ready in time.",
    NOT_ATTESTED: (
        "The host was installed; its TPM quoted PCRs that deviate from the reference, or none, and the PCR policy is "
        "Required. The message names each PCR. The host received no token."
    ),
    POWER_CHANGED: "The BMC was reset, and then did not report the power state that the host had before.",
    PROFILE_INVALID: "The Machine's image cannot be installed by its MachineProfile; the host was not changed.",
    RESCUE_NOT_STARTED: "The host fetched the loader, and the SSH server of the rescue system did not start in time.",
    TASK_FAILED: "The BMC accepted the action as a task, which failed.",
}


def grant_commands(reference: SecretKeySelector) -> tuple[str, str]:
    """Return the commands that create the role and its binding."""
    namespace, secret, role = reference.namespace, reference.name, f"metalman-{reference.name}"
    return (
        f"kubectl -n {namespace} create role {role} --verb=get,patch --resource=secrets --resource-name={secret}",
        f"kubectl -n {namespace} create rolebinding {role} --role={role} --serviceaccount={names.NAMESPACE}:metalman",
    )
