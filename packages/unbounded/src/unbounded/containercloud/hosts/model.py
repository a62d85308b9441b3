"""Observations of one BareMetalHost, the address of its BMC, and the decisions on the host. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from unbounded.api.container_cloud.host import (
    BareMetalHost,
    BareMetalHostStatus,
    HostErrorType,
    OperationalStatus,
    ProvisioningState,
)
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.container_cloud.names import (
    ANNOTATION_CONSUMER_UID,
    ANNOTATION_HOST_DETACHED,
    ANNOTATION_HOST_PAUSED,
    ANNOTATION_HOST_UNHEALTHY,
    ANNOTATION_MACHINE_HOST,
    scoped_name,
)
from unbounded.api.core import Node, Secret
from unbounded.api.machine import Machine
from unbounded.api.machine_spec import BootMode
from unbounded.api.names import API_VERSION, NAMESPACE
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.containercloud.refused import RefusedWrite
from unbounded.kube.api import ObjectKey, key_of
from unbounded.operations.executor_selection import authority_of

_SYSTEMS: Final = "/redfish/v1/Systems/"
_EXAMPLE: Final = "redfish://192.0.2.1/redfish/v1/Systems/1"
_DRIVERS: Final[Mapping[str, BootMode]] = {
    "redfish": BootMode.NETWORK,
    "idrac-redfish": BootMode.NETWORK,
    "ilo5-redfish": BootMode.NETWORK,
    "redfish-virtualmedia": BootMode.VIRTUAL_MEDIA,
    "idrac-virtualmedia": BootMode.VIRTUAL_MEDIA,
    "ilo5-virtualmedia": BootMode.VIRTUAL_MEDIA,
    "redfish-uefihttp": BootMode.UEFI_HTTP,
}
"""Drivers of metal3 that speak Redfish, and how they boot a host."""
_TRANSPORTS: Final[Mapping[str, str]] = {"": "https", "https": "https", "http": "http"}
IN_USE: Final = (ProvisioningState.PROVISIONING, ProvisioningState.PROVISIONED)
"""States of a claimed host. One that is released in them is switched off before its addresses are free."""
SERVED: Final = f"{', '.join(_DRIVERS)}, each alone or with +http or +https"


@dataclass(frozen=True)
class BmcAddress:
    """The system behind a BMC, as `spec.pxe` of a Machine names it."""

    url: str
    device_id: str
    boot_mode: BootMode

    def __str__(self) -> str:
        return bmc_key(self.url, self.device_id)


def bmc_key(url: str, device_id: str) -> str:
    """Return the identity of a system, as `bmc_of` has it: the same in any spelling of its BMC's URL."""
    return f"{authority_of(url)} Systems/{device_id}"


def parse_bmc_address(text: str) -> BmcAddress:
    """Parse `spec.bmc.address`.

    Raises:
        ValueError: it is no address, or one of a driver that is not served; the message is for the user.
    """
    driver, found, _ = text.partition("://")
    driver = driver.lower() if found else "ipmi"  # as metal3 takes an address without a scheme
    name, _, transport = driver.partition("+")
    if name not in _DRIVERS or transport not in _TRANSPORTS:
        raise ValueError(f"bmc.address: {driver}:// is not served; served are {SERVED}")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"bmc.address: {text} is no URL: {error}") from None
    if not host or parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"bmc.address: {text} must have a host, a path and no more, such as {_EXAMPLE}")
    before, found, system = parts.path.rstrip("/").partition(_SYSTEMS)
    if not found or not system or "/" in system:
        raise ValueError(f"bmc.address: {text} names no system; end it with {_SYSTEMS}ID, such as {_EXAMPLE}")
    address = f"[{host}]" if ":" in host else host
    where = f"{address}:{port}" if port is not None else address
    return BmcAddress(f"{_TRANSPORTS[transport]}://{where}{before}", system, _DRIVERS[name])


Raw = dict[str, Any]

CONDITION_AVAILABLE: Final = "Available"
CONDITION_DIRTY: Final = "Dirty"
KEY_USER: Final = "username"
KEY_PASSWORD: Final = "password"  # noqa: S105 - the name of a key
KEY_SOURCE: Final = "source-password"  # the password that the copy was made from; a rotation leaves it
KEY_SOURCE_USER: Final = "source-username"  # another user is another login, also with the same password


class HostReason(StrEnum):
    """Reasons of condition Available: what keeps a host from a claim."""

    AVAILABLE = "Available"
    NO_BMC = "NoBMC"
    REGISTERING = "Registering"
    INSPECTING = "Inspecting"
    IN_USE = "InUse"
    CONSUMER_MISSING = "ConsumerMissing"
    RETURNING = "Returning"
    RESTORING = "Restoring"  # the fields of a Machine whose host others have installed
    EXTERNALLY_PROVISIONED = "ExternallyProvisioned"
    DELETING = "Deleting"
    PAUSED = "Paused"
    DETACHED = "Detached"
    UNHEALTHY = "Unhealthy"
    ADDRESS_INVALID = "AddressInvalid"
    BOOT_MODE_NOT_SERVED = "BootModeNotServed"
    CREDENTIALS_MISSING = "CredentialsMissing"
    CREDENTIALS_REFUSED = "CredentialsRefused"
    DUPLICATE_HOST = "DuplicateHost"
    MACHINE_MISSING = "MachineMissing"
    MACHINE_UNSUITABLE = "MachineUnsuitable"
    NAME_TAKEN = "NameTaken"
    BMC_SILENT = "BMCSilent"
    POWER_FAILED = "PowerFailed"
    INSTALL_FAILED = "InstallFailed"
    NOT_SEEN_OFF = "NotSeenOff"
    WRITE_REFUSED = "WriteRefused"  # by the server, or a webhook
    NOT_RELEASED = "NotReleased"  # by a forced deletion, as the server refused that


@dataclass(frozen=True)
class HostFault:
    """An error of a host, for users."""

    type: HostErrorType
    reason: HostReason
    message: str


@dataclass(frozen=True)
class BmcLogin:
    """User and password of a BMC, from the Secret of the host's namespace."""

    secret: str  # its name, and its resourceVersion
    version: str
    username: str
    password: bytes

    def __repr__(self) -> str:
        return f"BmcLogin({self.username!r})"


@dataclass(frozen=True, kw_only=True)
class HostView:
    """A BareMetalHost, and all that decides on it.

    Args:
        site: label of its Machine; empty for none.
        machine: Machine of unbounded-cloud.io that has the host's name, or that it adopts.
        secret_name: Secret of the host's BareMetalHostCredential; empty where the host names none.
        login: of the host's Secret; a text says why there is none.
        copy: Secret with the password for metalman.
        rivals: messages on other objects with the same BMC, MAC address or Machine.
        operation: operation that `status.power` names.
        consumer: Machine of cluster.k8s.io that `spec.consumerRef` names.
        node: Node of the host's Machine.
        left: operations of earlier claims that may still start on a host without a claim, and any install of it.
        refused: write for the host that the server refuses now.
    """

    host: BareMetalHost
    now: datetime
    site: str = ""
    machine: Machine | None = None
    secret_name: str = ""
    login: BmcLogin | str = ""
    copy: Secret | None = None
    rivals: tuple[str, ...] = ()
    operation: MachineOperation | None = None
    consumer: ContainerCloudMachine | None = None
    node: Node | None = None
    left: tuple[MachineOperation, ...] = ()
    refused: RefusedWrite | None = None


@dataclass(frozen=True)
class SetHostFinalizer:
    """Add or remove the host's finalizer."""

    present: bool


@dataclass(frozen=True)
class NameCredentials:
    """Write the name of the credential's Secret into bmc.credentialsName."""

    secret: str


@dataclass(frozen=True)
class StoreLogin:
    """Store the password for metalman."""

    login: BmcLogin


@dataclass(frozen=True)
class DeleteLogin:
    """Delete metalman's copy of the password."""


@dataclass(frozen=True)
class CreateMachine:
    """Create the host's Machine."""

    body: Mapping[str, Any]


@dataclass(frozen=True)
class ChangeMachine:
    """Merge a patch into the host's Machine.

    Args:
        fields: paths that differ.
    """

    patch: Mapping[str, Any]
    fields: tuple[str, ...]


@dataclass(frozen=True)
class DeleteHostMachine:
    """Delete the Machine that was made for the host."""


@dataclass(frozen=True)
class DeleteHostNode:
    """Delete the Node that the host registered again before it was switched off."""

    node: Node


@dataclass(frozen=True)
class CancelLeftOperation:
    """Cancel an operation that was requested for the last claim of the host."""

    operation: MachineOperation


@dataclass(frozen=True)
class StartOperation:
    """Create the operation that `status.power` names."""

    name: str
    kind: OperationKind


HostAction = (
    SetHostFinalizer
    | NameCredentials
    | StoreLogin
    | DeleteLogin
    | CreateMachine
    | ChangeMachine
    | DeleteHostMachine
    | DeleteHostNode
    | CancelLeftOperation
    | StartOperation
)


def write_text(view: HostView, action: HostAction) -> str:
    """Return an action in words, as a verb with its object."""
    machine = f"Machine {machine_of_host(view.host)}"
    match action:
        case SetHostFinalizer(present=present):
            return f"{'add' if present else 'remove'} the finalizer of this host"
        case NameCredentials():
            return "write bmc.credentialsName of this host"
        case StoreLogin():
            return f"write Secret {login_name(view.host)}"
        case DeleteLogin():
            return f"delete Secret {login_name(view.host)}"
        case CreateMachine():
            return f"create {machine}"
        case ChangeMachine(fields=fields):
            return f"change {', '.join(fields)} of {machine}"
        case DeleteHostMachine():
            return f"delete {machine}"
        case DeleteHostNode(node=node):
            return f"delete Node {node.name}"
        case CancelLeftOperation(operation=operation):
            return f"cancel {operation.spec.operation_kind} {operation.name}"
        case StartOperation(name=name, kind=kind):
            return f"create {kind} {name}"


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    """The next status of a host, and the actions to take once it is written.

    Args:
        status: without conditions and lastUpdated, which its writer adds.
        fault: error that the status shows.
        reason, message: of condition Available; it is True with reason Available.
        dirty: reason and message of condition Dirty; None where the host is not.
    """

    status: BareMetalHostStatus
    actions: tuple[HostAction, ...] = ()
    requeue_s: float | None = None
    reason: HostReason
    message: str
    dirty: tuple[HostReason, str] | None = None


def power_operation(machine: Machine, action: StartOperation) -> Raw:
    """Return the operation that switches the host of a Machine."""
    owner = {"apiVersion": API_VERSION, "kind": "Machine", "name": machine.name, "uid": machine.metadata.uid}
    return {
        "metadata": {"name": action.name, "ownerReferences": [owner]},
        "spec": {"machineRef": machine.name, "operationKind": action.kind.value},
    }


def host_key(host: BareMetalHost) -> ObjectKey:
    return key_of(host)


def host_of_machine(machine: Machine) -> ObjectKey | None:
    """Return the host that a Machine's annotation names; None for a Machine of no host."""
    namespace, found, name = machine.metadata.annotations.get(ANNOTATION_MACHINE_HOST, "").partition("/")
    return ObjectKey(namespace, name) if found else None


def machine_of_host(host: BareMetalHost) -> str:
    """Return the name of a host's Machine: the recorded one, the one that it adopts, or the one made for it."""
    key = host_key(host)
    return host.status.provisioning.id or host.adopts or scoped_name(*key)


def is_adopted(host: BareMetalHost) -> bool:
    """Return whether the host's Machine was there before: it has its own access to the BMC, and outlasts the host."""
    return bool(host.adopts) or machine_of_host(host) != scoped_name(*host_key(host))


def login_name(host: BareMetalHost) -> ObjectKey:
    """Return the Secret of unbounded-kube with the password for metalman."""
    return _login_of(machine_of_host(host))


def _login_of(machine: str) -> ObjectKey:
    return ObjectKey(NAMESPACE, f"bmc-{machine}")


def host_with_login(machine: Machine) -> ObjectKey | None:
    """Return the host of a Machine whose password is a copy of the host's; None for a Machine with its own."""
    redfish = machine.spec.pxe.redfish if machine.spec.pxe is not None else None
    reference = None if redfish is None else redfish.password_ref
    is_copy = reference is not None and ObjectKey(reference.namespace, reference.name) == _login_of(machine.name)
    return host_of_machine(machine) if is_copy else None


def consumer_of(host: BareMetalHost) -> ObjectKey | None:
    """Return the Machine of cluster.k8s.io that uses the host; None for no consumer, and for one of another kind."""
    reference = host.spec.consumer_ref
    if reference is None or reference.kind != CONTAINER_CLOUD_MACHINES.kind:
        return None
    if reference.api_version != CONTAINER_CLOUD_MACHINES.api_version:
        return None
    return ObjectKey(reference.namespace or "", reference.name or "")


def consumer_uid(host: BareMetalHost) -> str:
    """Return the UID of the Machine that claimed the host; empty where the claim has none."""
    return host.metadata.annotations.get(ANNOTATION_CONSUMER_UID, "")


def release_text(host: ObjectKey) -> str:
    """Return the words for the release of a host in the record of a forced deletion."""
    return f"release BareMetalHost {host}"


def not_released(host: BareMetalHost) -> str | None:
    """Return the message on a claim that a forced deletion has left, as its release was refused; None for none."""
    if consumer_of(host) is None:
        return None
    found = (one for one in host.status.conditions if one.type == CONDITION_DIRTY)
    is_left = (one.message for one in found if one.status == "True" and one.reason == HostReason.NOT_RELEASED)
    return next(is_left, None)


def is_left_behind(host: BareMetalHost, uid: str) -> bool:
    """Return whether a Machine that is gone has left its claim on the host.

    Args:
        uid: of the Machine that has its name now; empty for none.
    """
    return not_released(host) is not None and consumer_uid(host) not in ("", uid)


def is_free(host: BareMetalHost) -> bool:
    """Return whether any Machine may claim the host."""
    in_stock = host.state == ProvisioningState.AVAILABLE and host.spec.consumer_ref is None
    return in_stock and not host.spec.externally_provisioned and is_usable(host)


def is_usable(host: BareMetalHost) -> bool:
    """Return whether nothing but its state and its consumer keeps the host from a claim."""
    marks = host.metadata.annotations.keys() & {
        ANNOTATION_HOST_PAUSED,
        ANNOTATION_HOST_DETACHED,
        ANNOTATION_HOST_UNHEALTHY,
    }
    return (
        not marks
        and host.metadata.deletion_timestamp is None
        and host.status.operational_status == OperationalStatus.OK
    )
