"""The next status of a BareMetalHost, and what follows from it: a pure function of the host and its Machine.

A host in stock keeps its Machine, whose UID is the mark on the disks. A claim fills the Machine's image, network and
cluster settings, which others write; a host that returns loses them here, and is available once it was seen Off. A
host that others have installed gets its Machine's own fields back, and runs on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from unbounded.api.container_cloud.host import (
    BareMetalHost,
    BareMetalHostStatus,
    HostCredentialVersion,
    HostErrorType,
    HostGoodCredentials,
    HostPowerRequest,
    HostProvisioning,
    HostProvisioningImage,
    OperationalStatus,
    ProvisioningState,
)
from unbounded.api.container_cloud.names import (
    ANNOTATION_ADOPT,
    ANNOTATION_HOST_DETACHED,
    ANNOTATION_HOST_PAUSED,
    ANNOTATION_HOST_UNHEALTHY,
    FINALIZER_HOST,
)
from unbounded.api.core import Secret
from unbounded.api.hardware import HardwareSource
from unbounded.api.machine import Machine, MachinePhase, MachinePower
from unbounded.api.operation import OperationKind, OperationPhase
from unbounded.containercloud.hosts.hardware import host_hardware
from unbounded.containercloud.hosts.machine_fields import change, claim_fields, link, manifest, owned, released
from unbounded.containercloud.hosts.model import (
    IN_USE,
    KEY_PASSWORD,
    KEY_SOURCE,
    KEY_SOURCE_USER,
    BmcAddress,
    BmcLogin,
    CancelLeftOperation,
    CreateMachine,
    DeleteHostMachine,
    DeleteHostNode,
    DeleteLogin,
    HostAction,
    HostFault,
    HostPlan,
    HostReason,
    HostView,
    NameCredentials,
    SetHostFinalizer,
    StartOperation,
    StoreLogin,
    bmc_key,
    consumer_of,
    consumer_uid,
    host_key,
    host_of_machine,
    is_adopted,
    machine_of_host,
    not_released,
    parse_bmc_address,
    release_text,
)
from unbounded.containercloud.network.model import CONFIG_PREFIX
from unbounded.kube.api import key_of
from unbounded.kube.clock import rfc3339, seconds_since
from unbounded.operations.observed_power import read_power

RETRY_S: Final = (60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0)  # after so many attempts to change the power
SECRET_S: Final = 30.0  # until a Secret that does not exist is read again: one without its label has no event
MAX_OFF_ATTEMPTS: Final = 3  # after which a deletion does not wait for the power any more
_S = ProvisioningState
_R = HostReason
_UNTAKEN: Final = (_S.UNMANAGED, _S.REGISTERING, _S.EXTERNALLY_PROVISIONED)  # as it was before, without an install
_UNBLOCKED: Final = (_R.CREDENTIALS_REFUSED, _R.BMC_SILENT)  # faults that a change of the Machine may cure
_SWITCHED: Final = (_S.INSPECTING, _S.AVAILABLE, _S.PROVISIONED, _S.EXTERNALLY_PROVISIONED)


def plan_host(view: HostView) -> HostPlan:
    """Return the next status of a host, and the actions to take once it is written."""
    host = view.host
    if ANNOTATION_HOST_PAUSED in host.metadata.annotations:
        return _held(view, _R.PAUSED, f"annotation {ANNOTATION_HOST_PAUSED}: nothing is done with the host")
    if not _is_leaving(view) and FINALIZER_HOST not in host.metadata.finalizers:
        reason, text = _R.REGISTERING, "the host is being registered"
        if view.refused is not None:
            reason, text = _R.WRITE_REFUSED, view.refused.with_holder
        return _held(view, reason, text, SetHostFinalizer(present=True))
    fault, address = _fault(view)
    blocked, state = fault is not None and fault.reason not in _UNBLOCKED, _state(view, fault)
    power, switch, due_s = _power(view, state)
    fault = fault or _power_fault(view, power) or _install_fault(view, state)
    fault = _with_refusal(view, state, fault)
    reason, message = _reason(view, state, fault)
    actions = [*_machine_actions(view, state, address, blocked), *([switch] if switch is not None else [])]
    actions += map(CancelLeftOperation, view.left if state is _S.DEPROVISIONING else ())
    return HostPlan(
        status=_status(view, state, fault, power),
        actions=tuple(_leave(view) if state is _S.DELETING else actions),
        requeue_s=due_s if fault is None or fault.reason is not _R.CREDENTIALS_MISSING else SECRET_S,
        reason=reason,
        message=message,
        dirty=_dirty(view, state),
    )


def _held(view: HostView, reason: HostReason, message: str, *actions: HostAction) -> HostPlan:
    dirty = _dirty(view, _present(view.host))
    return HostPlan(status=view.host.status, actions=actions, reason=reason, message=message, dirty=dirty)


# ---- faults


def _fault(view: HostView) -> tuple[HostFault | None, BmcAddress | None]:
    """Return the fault of the registration, and the address of the BMC if it is valid.

    Its message has all that a user has to correct, and its reason is that of the first.
    """
    bmc, address, found = view.host.spec.bmc, None, list[HostFault]()
    try:
        address = None if bmc is None else parse_bmc_address(bmc.address)
    except ValueError as error:
        found.append(_registration(_R.ADDRESS_INVALID, str(error)))
    found += [one for one in _configured(view, address) if one is not None]
    if found:
        return _registration(found[0].reason, "; ".join(one.message for one in found)), address
    return next(_observed(view), None), address


def _configured(view: HostView, address: BmcAddress | None) -> Iterator[HostFault | None]:
    """Yield the faults of the host's fields, and of the objects that it names."""
    host = view.host
    if host.spec.boot_mode == "legacy":
        yield _registration(_R.BOOT_MODE_NOT_SERVED, "bootMode: legacy is not served; UEFI and UEFISecureBoot are")
    if view.rivals:
        yield _registration(_R.DUPLICATE_HOST, "; ".join(view.rivals))
    yield _adoption_fault(view, address) if is_adopted(host) else _name_fault(view)
    if host.spec.bmc is not None and not is_adopted(host) and isinstance(view.login, str):
        yield _registration(_R.CREDENTIALS_MISSING, view.login)


def _observed(view: HostView) -> Iterator[HostFault]:
    """Yield the faults that metalman has observed."""
    machine = view.machine
    if machine is None or machine.spec.pxe is None or machine.spec.pxe.redfish is None:
        return
    refused = machine.status.redfish.refused_secret_version if machine.status.redfish else None
    if view.copy is not None and refused is not None and refused == view.copy.metadata.resource_version:
        name = machine.spec.pxe.redfish.username
        yield _registration(_R.CREDENTIALS_REFUSED, f"the BMC rejected user {name} and the password of its Secret")
    if machine.status.power is not None and machine.status.power.state == MachinePower.UNKNOWN:
        text = f"the BMC at {machine.spec.pxe.redfish.url} has reported no power since {machine.status.power.at}"
        yield _registration(_R.BMC_SILENT, text)


def _registration(reason: HostReason, message: str) -> HostFault:
    return HostFault(HostErrorType.REGISTRATION, reason, message)


def _name_fault(view: HostView) -> HostFault | None:
    machine = view.machine
    if machine is None or host_of_machine(machine) == host_key(view.host):
        return None
    text = f"Machine {machine.name} exists, and is not that of this host; annotation {ANNOTATION_ADOPT} adopts it"
    return _registration(_R.NAME_TAKEN, text)


def _adoption_fault(view: HostView, address: BmcAddress | None) -> HostFault | None:
    host, machine, name = view.host, view.machine, machine_of_host(view.host)
    if machine is None:
        return _registration(_R.MACHINE_MISSING, f"annotation {ANNOTATION_ADOPT}: no Machine {name}")
    if host_of_machine(machine) not in (None, host_key(host)):
        text = f"Machine {name} is that of BareMetalHost {host_of_machine(machine)}"
        return _registration(_R.MACHINE_UNSUITABLE, text)
    redfish = machine.spec.pxe.redfish if machine.spec.pxe is not None else None
    if address is not None and (redfish is None or str(address) != _bmc_text(machine)):
        text = f"bmc.address is {address}, and Machine {name} has {_bmc_text(machine)}: leave bmc.address out"
        return _registration(_R.MACHINE_UNSUITABLE, text)
    if host.spec.externally_provisioned:
        return None
    if machine.spec.ssh is not None or machine.provider is not None or redfish is None:
        text = f"Machine {name} is not installed through a BMC; set externallyProvisioned to adopt it as it is"
        return _registration(_R.MACHINE_UNSUITABLE, text)
    is_untaken = host.spec.consumer_ref is None and host.state in _UNTAKEN
    if (
        (host_of_machine(machine) is None or is_untaken)
        and machine.spec.kubernetes is not None
        and machine.status.phase == MachinePhase.READY
    ):
        text = f"Machine {name} is a Node; set externallyProvisioned to adopt it as it is, or reset it first"
        return _registration(_R.MACHINE_UNSUITABLE, text)
    return None


def _bmc_text(machine: Machine) -> str:
    redfish = machine.spec.pxe.redfish if machine.spec.pxe is not None else None
    return "no BMC" if redfish is None else bmc_key(redfish.url, redfish.device_id)


def _power_fault(view: HostView, power: HostPowerRequest) -> HostFault | None:
    operation = view.operation
    if operation is None or operation.status.phase != OperationPhase.FAILED or power.operation != operation.name:
        return None
    why = f"{operation.status.reason}: {operation.status.message}"
    text = f"{operation.spec.operation_kind} {operation.name} failed: {why}"
    return HostFault(HostErrorType.POWER_MANAGEMENT, _R.POWER_FAILED, text)


def _install_fault(view: HostView, state: ProvisioningState) -> HostFault | None:
    """Return the fault of the last installation that failed; none while another one runs."""
    machine = view.machine
    if machine is None or state is not _S.PROVISIONING or machine.status.active_operation is not None:
        return None
    execution = view.consumer.status.execution if view.consumer is not None else None
    name = execution.operation if execution is not None else None
    last = next((one for one in machine.status.recent_operations if one.name == name), None)
    if last is None or last.phase != OperationPhase.FAILED or last.kind != OperationKind.HOST_REPLACE:
        return None
    text = f"{last.kind} {last.name} failed: {last.reason}: {last.message}"
    return HostFault(HostErrorType.PROVISIONING, _R.INSTALL_FAILED, text)


def _with_refusal(view: HostView, state: ProvisioningState, fault: HostFault | None) -> HostFault | None:
    """Return a fault with the write that the server refuses; a host that returns to stock has that in its wait."""
    if view.refused is None or state is _S.DEPROVISIONING:
        return fault
    text = view.refused.with_holder
    if fault is not None:
        return HostFault(fault.type, fault.reason, f"{fault.message}; {text}")
    kind = HostErrorType.PROVISIONING if state in IN_USE else HostErrorType.REGISTRATION
    return HostFault(kind, _R.WRITE_REFUSED, text)


# ---- states


def _is_leaving(view: HostView) -> bool:
    return view.host.metadata.deletion_timestamp is not None


def _is_registered(view: HostView) -> bool:
    """Return whether metalman has read the BMC: its power, or its hardware."""
    machine = view.machine
    if machine is None or host_of_machine(machine) != host_key(view.host):
        return False
    if machine.spec.pxe is None or machine.spec.pxe.redfish is None:
        return view.host.spec.externally_provisioned
    hardware = machine.status.hardware
    is_read = machine.status.power is not None and machine.status.power.state != MachinePower.UNKNOWN
    return is_read or (hardware is not None and hardware.source == HardwareSource.REDFISH)


def _is_off(view: HostView) -> bool:
    """Return whether the host was seen Off after all that may have switched it on.

    The Machine of a host has the reading: one that is gone is made again, and read.
    """
    machine = view.machine
    if machine is None or machine.status.active_operation is not None:
        return False
    return read_power(machine) is MachinePower.OFF


def _is_returned(view: HostView) -> bool:
    """Return whether no field of a claim is left, no Node, no operation that may start, and no drain, which would wait
    for the next Node.

    The Node of a host that others have installed was there before the claim, and stays.
    """
    machine = view.machine
    is_left = bool(view.left) or (_has_node(view) and not _is_kept(view))
    is_left = is_left or (machine is not None and machine.status.disruption is not None)
    return machine is None or not (claim_fields(machine, view.host) or is_left)


def _has_node(view: HostView) -> bool:
    """Return whether the host has a Node that is not deleted yet."""
    return view.node is not None and view.node.metadata.deletion_timestamp is None


def _is_written(view: HostView) -> bool:
    """Return whether an image was written since the host was in stock."""
    image = view.machine.status.image if view.machine is not None else None
    return image is not None and image.boot != view.host.status.provisioning.boot


def _present(host: BareMetalHost) -> ProvisioningState:
    return ProvisioningState(host.state) if host.state in set(ProvisioningState) else _S.REGISTERING


def _state(view: HostView, fault: HostFault | None) -> ProvisioningState:
    host = view.host
    present = _present(host)
    is_used = consumer_of(host) is not None
    has_late = _has_marks(view) or (present is _S.AVAILABLE and _has_late_network(view))
    if not is_used and (present in IN_USE or has_late):
        return _S.DEPROVISIONING
    if _is_leaving(view):
        waits = host.spec.consumer_ref is not None or (present is _S.DEPROVISIONING and not _may_leave(view))
        return present if waits else _S.DELETING
    if present is _S.DEPROVISIONING:
        stock, is_calm = (_S.EXTERNALLY_PROVISIONED, True) if _is_kept(view) else (_S.AVAILABLE, _is_off(view))
        return stock if is_calm and _is_returned(view) else present
    if host.spec.bmc is None and not is_adopted(host):
        return _S.UNMANAGED
    if not _is_registered(view):
        return present if present in IN_USE else _S.REGISTERING
    if host.spec.externally_provisioned:
        return _S.EXTERNALLY_PROVISIONED
    return _registered(view, present, fault, is_used=is_used)


def _registered(
    view: HostView, present: ProvisioningState, fault: HostFault | None, *, is_used: bool
) -> ProvisioningState:
    machine = view.machine
    match present:
        case _S.INSPECTING | _S.AVAILABLE if is_used:
            return _S.PROVISIONING
        case _S.INSPECTING if machine is not None and machine.status.hardware is not None and fault is None:
            return _S.AVAILABLE
        case _S.PROVISIONING if _is_written(view):
            return _S.PROVISIONED
        case _S.PROVISIONED if machine is None or machine.status.image is None:
            return _S.PROVISIONING
        case _S.INSPECTING | _S.AVAILABLE | _S.PROVISIONING | _S.PROVISIONED:
            return present
        case _:
            return _S.REGISTERING if fault is not None else _S.INSPECTING


def _has_late_network(view: HostView) -> bool:
    """Return whether a process that was frozen has given the host the network of a claim that was released."""
    pxe = view.machine.spec.pxe if view.machine is not None else None
    init = pxe.cloud_init if pxe is not None else None
    reference = init.network_config_config_map_ref if init is not None else None
    return reference is not None and reference.name.startswith(CONFIG_PREFIX)


def _is_kept(view: HostView) -> bool:
    """Return whether others have installed the host, which is never written and runs on."""
    return view.host.spec.externally_provisioned


def _has_marks(view: HostView) -> bool:
    """Return whether a claim of a host that others have installed was released, and has left marks."""
    machine = view.machine
    is_its = machine is not None and host_of_machine(machine) == host_key(view.host)
    return is_its and _is_kept(view) and bool(claim_fields(machine, view.host))


def _may_leave(view: HostView) -> bool:
    """Return whether a host that returned to stock may be deleted: it is off, or was asked to be often enough."""
    if _is_kept(view):
        return True
    attempts = view.host.status.power.attempt if view.host.status.power is not None else 0
    is_open = view.operation is not None and not view.operation.terminal
    return view.machine is None or _is_off(view) or (attempts >= MAX_OFF_ATTEMPTS and not is_open)


def _dirty(view: HostView, state: ProvisioningState) -> tuple[HostReason, str] | None:
    if (why := _left_claim(view)) is not None:
        return _R.NOT_RELEASED, why
    if state is not _S.DEPROVISIONING or _is_off(view) or _is_kept(view):
        return None
    return _R.NOT_SEEN_OFF, "the host was released and has not been seen Off since: its addresses stay taken"


def _left_claim(view: HostView) -> str | None:
    """Return the message on a claim that a forced deletion could not remove; None for another one."""
    host, consumer = view.host, view.consumer
    if consumer is None or consumer_uid(host) not in ("", consumer.metadata.uid):
        return not_released(host)
    steps = consumer.status.execution.unproven if consumer.status.execution is not None else ()
    begin = f"cannot {release_text(host_key(host))}: "
    answer = next((one.removeprefix(begin) for one in steps if one.startswith(begin)), None)
    if answer is None:
        return None
    text = f"Machine {key_of(consumer)} was deleted by force, and its claim could not be removed"
    return f"{text}, which is tried again: {answer}"


def _reason(view: HostView, state: ProvisioningState, fault: HostFault | None) -> tuple[HostReason, str]:
    host, annotations = view.host, view.host.metadata.annotations
    reference = host.spec.consumer_ref
    if _is_leaving(view):
        waits = f"; waits for {reference.kind} {reference.namespace}/{reference.name}" if reference else ""
        return _R.DELETING, f"the host is being deleted{waits}"
    if reference is not None and consumer_of(host) is not None and view.consumer is None:
        text = f"{reference.kind} {reference.namespace}/{reference.name} does not exist; remove spec.consumerRef"
        return _R.CONSUMER_MISSING, f"{text} to return the host to stock"
    if reference is not None:
        return _R.IN_USE, f"used by {reference.kind} {reference.namespace}/{reference.name}"
    if fault is not None:
        return fault.reason, fault.message
    if ANNOTATION_HOST_DETACHED in annotations:
        return _R.DETACHED, f"annotation {ANNOTATION_HOST_DETACHED}"
    if ANNOTATION_HOST_UNHEALTHY in annotations:
        return _R.UNHEALTHY, f"annotation {ANNOTATION_HOST_UNHEALTHY}"
    if state is _S.DEPROVISIONING and _is_kept(view):
        text = f"Machine {machine_of_host(host)} gets its own fields back, and its Node returns to service"
        return _R.RESTORING, text
    text = _WAITS[state][1].format(site=view.site or "no site", machine=machine_of_host(host))
    return _WAITS[state][0], text if view.refused is None else f"{text}; {view.refused.with_holder}"


_WAITS: Final[Mapping[ProvisioningState, tuple[HostReason, str]]] = {
    _S.UNMANAGED: (_R.NO_BMC, f"spec.bmc is absent: set it, or annotation {ANNOTATION_ADOPT}"),
    _S.REGISTERING: (_R.REGISTERING, "Machine {machine} waits until metalman of {site} has read the BMC"),
    _S.INSPECTING: (_R.INSPECTING, "Machine {machine} waits for the inventory of its hardware"),
    _S.AVAILABLE: (_R.AVAILABLE, "a Machine may claim the host"),
    _S.PROVISIONING: (_R.IN_USE, "the image is being written"),
    _S.PROVISIONED: (_R.IN_USE, "the host is in use"),
    _S.DEPROVISIONING: (
        _R.RETURNING,
        "the host returns to stock once it is switched off, and neither a Node nor a drain is left",
    ),
    _S.EXTERNALLY_PROVISIONED: (
        _R.EXTERNALLY_PROVISIONED,
        "installed by others: a Machine that pins the host may adopt it",
    ),
    _S.DELETING: (_R.DELETING, "the host is being deleted"),
}


# ---- power


def _power(view: HostView, state: ProvisioningState) -> tuple[HostPowerRequest, StartOperation | None, float | None]:
    """Return the record of the power, the operation to start, and the seconds until another attempt is due.

    A change of spec.online is carried out once. Power that others switch later is not switched back: their operation
    was asked for, too.
    """
    host, machine = view.host, view.machine
    record = host.status.power or HostPowerRequest()
    desired = _desired_power(view, state, record)
    if desired is None or machine is None or ANNOTATION_HOST_DETACHED in host.metadata.annotations:
        return record, None, None
    if view.operation is not None and not view.operation.terminal:
        return record, None, None
    observed = read_power(machine)
    if observed == desired and machine.status.active_operation is None:
        online = record.online if state is _S.DEPROVISIONING else host.spec.online
        return replace(record, online=online, attempt=0), None, None
    if machine.status.active_operation is not None or observed == MachinePower.UNKNOWN:
        return record, None, None
    since = view.operation.status.completed_at if view.operation is not None else record.at
    left_s = RETRY_S[min(record.attempt, len(RETRY_S)) - 1] - seconds_since(since, view.now) if record.attempt else 0.0
    if left_s > 0:
        return record, None, left_s
    kind = OperationKind.HOST_POWER_ON if desired is MachinePower.ON else OperationKind.HOST_POWER_OFF
    number, suffix = record.requests + 1, "on" if desired is MachinePower.ON else "off"
    name = f"cc-{host.metadata.uid[:8]}-{suffix}-{number}"
    at = rfc3339(view.now)
    asked = replace(record, operation=name, requests=number, attempt=record.attempt + 1, at=at)
    return asked, StartOperation(name, kind), None


def _desired_power(view: HostView, state: ProvisioningState, record: HostPowerRequest) -> MachinePower | None:
    """Return the power to switch to; None for a host that is left as it is."""
    if state is _S.DEPROVISIONING:
        return None if _is_kept(view) else MachinePower.OFF
    online = view.host.spec.online
    if _is_leaving(view) or state not in _SWITCHED or online == record.online:
        return None
    return MachinePower.ON if online else MachinePower.OFF


# ---- the Machine


def _machine_actions(
    view: HostView, state: ProvisioningState, address: BmcAddress | None, blocked: bool
) -> Iterator[HostAction]:
    """Yield the changes to the host's Machine, and to metalman's copy of the password."""
    host, machine, fields, stores = view.host, view.machine, link(view), tuple[StoreLogin, ...]()
    if state is _S.UNMANAGED or (blocked and state is not _S.DEPROVISIONING):
        return
    bmc = host.spec.bmc
    if bmc is not None and view.secret_name and bmc.credentials_name != view.secret_name:
        yield NameCredentials(view.secret_name)
    if not is_adopted(host) and isinstance(view.login, BmcLogin) and not blocked:
        stores = () if _is_copied(view.copy, view.login) else (StoreLogin(view.login),)
        if address is not None:
            fields |= owned(view, address, view.login)
            if machine is None:
                yield from (*stores, CreateMachine(manifest(view, fields)))
                return
    if machine is not None and (patch := change(machine, fields | released(view, state))) is not None:
        yield patch
    yield from stores  # after the name of the user: metalman offers a login once, until its Secret changes
    is_returning = state is _S.DEPROVISIONING and _is_off(view) and not _is_kept(view)
    if view.node is not None and is_returning and _has_node(view):
        yield DeleteHostNode(view.node)


def _is_copied(copy: Secret | None, login: BmcLogin) -> bool:
    """Return whether the copy was made from this login; a rotation may have given it another password since."""
    if copy is None or copy.value(KEY_PASSWORD) is None:
        return False
    return copy.value(KEY_SOURCE) == login.password and copy.value(KEY_SOURCE_USER) == login.username.encode()


def _leave(view: HostView) -> Iterator[HostAction]:
    """Yield the actions that end a host: its Machine first, whose operations need the password."""
    machine = view.machine
    if machine is not None and host_of_machine(machine) == host_key(view.host):
        if not is_adopted(view.host):
            yield DeleteHostMachine()
            return  # its end is an event
        if (patch := change(machine, dict.fromkeys(link(view)))) is not None:
            yield patch
    if view.copy is not None:
        yield DeleteLogin()
    yield SetHostFinalizer(present=False)


# ---- status


def _is_on(machine: Machine) -> bool | None:
    """Return the power that the BMC reported; on where an operation may have switched the host on since."""
    power = machine.status.power
    if power is None or power.state == MachinePower.UNKNOWN:
        return None
    return read_power(machine) is not MachinePower.OFF


def _status(
    view: HostView, state: ProvisioningState, fault: HostFault | None, power: HostPowerRequest
) -> BareMetalHostStatus:
    host, machine = view.host, view.machine
    image = machine.status.image if machine is not None else None
    hardware = machine.status.hardware if machine is not None else None
    is_detached = ANNOTATION_HOST_DETACHED in host.metadata.annotations
    calm = OperationalStatus.DETACHED if is_detached else OperationalStatus.OK
    boot = host.status.provisioning.boot
    return replace(
        host.status,
        provisioning=HostProvisioning(
            state=state.value,
            id=None if machine is None and not host.status.provisioning.id else machine_of_host(host),
            image=None if image is None else HostProvisioningImage(url=image.image, checksum=image.digest),
            boot=image.boot if image is not None and state is not _S.PROVISIONING else boot,
        ),
        powered_on=None if machine is None else _is_on(machine),
        power=power if host.status.power is not None or power != HostPowerRequest() else None,
        operational_status=(OperationalStatus.ERROR if fault is not None else calm).value,
        error_type=fault.type.value if fault is not None else None,
        error_message=fault.message if fault is not None else None,
        error_count=power.attempt if fault is not None and fault.reason is _R.POWER_FAILED else int(fault is not None),
        hardware=host_hardware(hardware) if hardware is not None else host.status.hardware,
        good_credentials=_good_credentials(view, fault),
    )


def _good_credentials(view: HostView, fault: HostFault | None) -> HostGoodCredentials | None:
    """Return the Secret with which the BMC was read; the former one where nothing was read with another."""
    host = view.host
    if fault is not None or not isinstance(view.login, BmcLogin) or not _is_registered(view):
        return host.status.good_credentials
    secret = HostCredentialVersion(name=view.login.secret, namespace=host_key(host).namespace)
    return HostGoodCredentials(credentials=secret, credentials_version=view.login.version)
