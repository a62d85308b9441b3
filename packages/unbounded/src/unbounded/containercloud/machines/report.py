"""The status of a Machine of cluster.k8s.io, from its stage and from what is observed of its host and Node. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from unbounded.api.container_cloud.host import ProvisioningState
from unbounded.api.container_cloud.machine import (
    BareMetalMachineProviderStatus,
    ContainerCloudMachineStatus,
    DeletionPhase,
    LCMPhase,
    MachineExecution,
    MachineHardware,
    MachineStage,
    MachineWaiting,
    NodeReference,
    ProviderCondition,
    ProviderConditionType,
    ProviderInstanceState,
    RebootStatus,
    StorageDevice,
)
from unbounded.api.container_cloud.machine import MachineAddress as Address
from unbounded.api.container_cloud.names import LABEL_LCM_SUBNET, PROVIDER_API_VERSION
from unbounded.api.hardware import DiskFacts, HardwareSource
from unbounded.api.machine import Machine
from unbounded.api.machine_status import MAX_ADDRESSES
from unbounded.containercloud.claims import claim_wait
from unbounded.containercloud.machines.model import DELETION_STAGES, MachineReason, MachineStep, MachineView, Raw
from unbounded.containercloud.network.waits import rendering_wait
from unbounded.containercloud.waits import MachineWait, wait_text, waiting_of
from unbounded.kube.clock import rfc3339

NEWS_S: Final = 5.0  # what only informs can wait for so long
OWN_WORK_S: Final = 30.0  # and a wait for a next step of container-cloud itself, of which few last as long
FACTS_S: Final = 120.0  # and facts of the host, which nothing waits for: until its Node has joined, as a rule
GB: Final = 1_000_000_000
GIB: Final = 1 << 30
_S = MachineStage
_C = ProviderConditionType
STATES: Final[Mapping[str, LCMPhase]] = {
    _S.CLAIMING: LCMPhase.PROVISION,
    _S.PLANNING: LCMPhase.PROVISION,
    _S.PROVISIONING: LCMPhase.PROVISION,
    _S.BACKOFF: LCMPhase.PROVISION,
    _S.STUCK: LCMPhase.PROVISION,
    _S.BOOTING: LCMPhase.UNINITIALIZED,
    _S.ASSIGNING: LCMPhase.PENDING,
    _S.PREPARING: LCMPhase.PREPARE,
    _S.DEPLOYING: LCMPhase.DEPLOY,
    _S.UPDATING: LCMPhase.DEPLOY,
    _S.CONFIGURING: LCMPhase.RECONFIGURE,
    _S.READY: LCMPhase.READY,
    _S.MAINTAINED: LCMPhase.MAINTENANCE,
}
"""The words of the API, by stage; a deletion leaves the word as it was."""
_PROVIDER_FIELDS: Final = (
    "status",
    "ready",
    "hardware",
    "currentDistribution",
    "maintenance",
    "reboot",
    "delete",
    "prepareDeletionPhase",
    "providerInstanceState",
    "upgradeIndex",
    "privateIp",
    "conditions",
)
_FACTS: Final = frozenset(
    {
        "apiVersion",
        "kind",
        "hardware",
        "currentDistribution",
        "reboot",
        "providerInstanceState",
        "privateIp",
        "conditions",
    }
)
_FIELDS: Final = ("nodeRef", "addresses", "errorReason", "errorMessage", "execution")


def status_change(view: MachineView, plan: MachineStep) -> Raw:
    """Return the patch of the status; empty if it is as the plan has it."""
    before = _raw(view.machine.status)
    desired = _raw(desired_status(view, plan))
    patch: Raw = {key: desired.get(key) for key in _FIELDS if before.get(key) != desired.get(key)}
    old, new = before.get("providerStatus") or {}, desired["providerStatus"]
    provider = {key: new.get(key) for key in _PROVIDER_FIELDS if old.get(key) != new.get(key)}
    if provider:
        head = {"apiVersion": PROVIDER_API_VERSION, "kind": "BareMetalMachineProviderStatus"}
        patch["providerStatus"] = head | provider
    if "execution" in patch:
        patch["execution"] = _whole(before.get("execution"), patch["execution"])
    for key in ("hardware", "reboot", "providerInstanceState"):
        if isinstance(provider.get(key), dict):
            patch["providerStatus"][key] = _whole(old.get(key), provider[key])
    return patch | {"lastUpdated": rfc3339(view.now)} if patch else {}


def can_wait_s(view: MachineView, plan: MachineStep, change: Raw) -> float:
    """Return for how long a change of the status can wait for further ones and the next stage; 0 for not at all."""
    before, after = (replace(one, waiting=None, message=None) for one in (view.execution, plan.execution))
    provider = change.get("providerStatus", {})
    decisive = provider.keys() & {"status", "delete", "prepareDeletionPhase", "upgradeIndex"}
    is_first = view.machine.status.execution is None
    is_joining = plan.execution.stage == _S.DEPLOYING  # the Node is Ready within seconds, which is another stage
    is_urgent = "errorReason" in change or ("nodeRef" in change and not is_joining)
    if before != after or (decisive and not is_first) or is_urgent:
        return 0.0
    is_fact = change.keys() <= {"addresses", "lastUpdated", "providerStatus"} and provider.keys() <= _FACTS
    known = {one.type: one.ready for one in view.machine.provider_status.conditions}
    turned = [one for one in provider.get("conditions", ()) if known.get(one["type"]) != one["ready"]]
    if is_fact and all(one["type"] == _C.REBOOT for one in turned):
        return FACTS_S
    is_own = plan.obstacle is not None and plan.obstacle.reason == MachineReason.HOST_NOT_PREPARED
    return OWN_WORK_S if is_own and not is_first else NEWS_S


def _raw(status: ContainerCloudMachineStatus) -> Raw:
    """Return a status as JSON, with the false values that a user reads."""
    raw: Raw = msgspec.to_builtins(status)
    if status.provider_status is not None:
        false = {"ready": False, "maintenance": False, "delete": False}
        raw["providerStatus"] = false | raw.get("providerStatus", {})
        conditions = raw["providerStatus"].get("conditions", [])
        raw["providerStatus"]["conditions"] = [{"ready": False} | one for one in conditions]
        if "reboot" in raw["providerStatus"]:
            raw["providerStatus"]["reboot"] = {"required": False} | raw["providerStatus"]["reboot"]
    return raw


def _whole(before: Any, after: Any) -> Any:
    """Return an object for a merge patch, which removes the fields that are absent now, also of objects in it."""
    if not isinstance(after, dict):
        return after
    known = before if isinstance(before, dict) else {}
    return dict.fromkeys(known) | {key: _whole(known.get(key), value) for key, value in after.items()}


def desired_status(view: MachineView, plan: MachineStep) -> ContainerCloudMachineStatus:
    """Return the status that a Machine is to have."""
    plan = _with_first_limit(view, plan)
    before, obstacle, node = view.machine.provider_status, plan.obstacle, view.node
    conditions = tuple(_conditions(view, plan))
    state = STATES.get(plan.execution.stage)
    provider = BareMetalMachineProviderStatus(
        status=before.status if state is None else state.value,
        ready=all(one.ready for one in conditions if one.type != _C.REBOOT),
        hardware=_hardware(view.target) or before.hardware,
        current_distribution=_distribution(view.target),
        maintenance=plan.execution.stage == _S.MAINTAINED,
        reboot=_reboot(view.target),
        delete=plan.deleting,
        prepare_deletion_phase=_phase(before, plan.phase),
        provider_instance_state=_instance(view, plan.execution),
        upgrade_index=view.upgrade_index,
        private_ip=_private_ip(view),
        conditions=conditions,
    )
    return ContainerCloudMachineStatus(
        node_ref=None if node is None else NodeReference(name=node.name, uid=node.metadata.uid),
        addresses=tuple(itertools.islice(_addresses(view), MAX_ADDRESSES)),
        error_reason=None if obstacle is None or obstacle.error is None else obstacle.error.value,
        error_message=None if obstacle is None or obstacle.error is None else obstacle.message,
        provider_status=provider,
        execution=_execution(view, plan),
    )


def _phase(before: BareMetalMachineProviderStatus, phase: DeletionPhase | None) -> str | None:
    """Return the phase of the preparation; empty after an abort, absent where there was none."""
    if phase is not None:
        return phase.value
    return None if before.prepare_deletion_phase is None else ""


def _stored_wait(view: MachineView, plan: MachineStep) -> MachineWaiting | None:
    """Return the stored wait of the step; None for a new one, which has another reason or another stage."""
    before, obstacle = view.execution.waiting, plan.obstacle
    is_stored = before is not None and obstacle is not None and before.reason == obstacle.reason
    return before if is_stored and view.execution.stage == plan.execution.stage else None


def _with_first_limit(view: MachineView, plan: MachineStep) -> MachineStep:
    """Return the step whose wait has the limit with which it began, so that no pass writes another one."""
    before, obstacle = _stored_wait(view, plan), plan.obstacle
    if before is None or obstacle is None:
        return plan
    return dataclasses.replace(plan, obstacle=obstacle.since_before(before))


def _execution(view: MachineView, plan: MachineStep) -> MachineExecution:
    obstacle, execution = plan.obstacle, plan.execution
    if obstacle is None:
        return replace(execution, waiting=None)
    before = _stored_wait(view, plan)
    waiting = waiting_of(obstacle, rfc3339(view.now) if before is None else before.since)
    message = execution.message if execution.stage in (_S.BACKOFF, _S.STUCK) else obstacle.message
    return replace(execution, waiting=waiting, message=message)


# Facts of the host


def _hardware(target: Machine | None) -> MachineHardware | None:
    """Return the hardware as the agent of the installed system reports it, and the rest as the inspection did."""
    agent = target.status.agent if target is not None else None
    reported = agent.host.hardware if agent is not None and agent.host is not None and agent.stage is not None else None
    inspected = target.status.hardware if target is not None else None
    found = [one for one in (reported, inspected) if one is not None]
    if not found:
        return None
    memory = next((one.memory_bytes for one in found if one.memory_bytes is not None), None)
    of_disks = next((one for one in found if one.disks), found[0])
    is_of_bmc = of_disks is inspected and inspected.source == HardwareSource.REDFISH
    disks = {one.name: _disk(one, is_of_bmc) for one in of_disks.disks}  # a report may have one twice
    return MachineHardware(
        cpu=next((one.cpus for one in found if one.cpus is not None), None),
        ram=None if memory is None else -(-memory // GIB),  # firmware keeps a part
        storage=tuple(disks.values()),
    )


def _disk(disk: DiskFacts, is_of_bmc: bool) -> StorageDevice:
    """Return a disk. A BMC has a name of its own for it, the kernel one of its folder /dev."""
    kind = {True: "hdd", False: "ssd"}.get(disk.rotational) if disk.rotational is not None else None
    return StorageDevice(
        name=disk.name if is_of_bmc else f"/dev/{disk.name.replace('!', '/')}",
        size=None if disk.size_bytes is None else round(disk.size_bytes / GB),
        type="nvme" if disk.bus == "nvme" else kind,
        by_id=disk.by_id[0] if disk.by_id else None,
        by_path=disk.by_path[0] if disk.by_path else None,
    )


def _distribution(target: Machine | None) -> str | None:
    host = target.status.agent.host if target is not None and target.status.agent is not None else None
    if host is None or not host.os_id:
        return None
    return f"{host.os_id}/{host.os_codename or host.os_version}" if host.os_codename or host.os_version else host.os_id


def _reboot(target: Machine | None) -> RebootStatus | None:
    host = target.status.agent.host if target is not None and target.status.agent is not None else None
    if host is None:
        return None
    reason = "\n".join(host.reboot_packages) if host.reboot_required else ""
    return RebootStatus(required=host.reboot_required, reason=reason or None)


def _instance(view: MachineView, execution: MachineExecution) -> ProviderInstanceState | None:
    if execution.host is None:
        return None
    state = view.host.state if view.host is not None else None
    if state == ProvisioningState.PROVISIONING and STATES.get(execution.stage) not in (LCMPhase.PROVISION, None):
        state = ProvisioningState.PROVISIONED  # the image is written, which the status of the host says a moment later
    ready = state in (ProvisioningState.PROVISIONED, ProvisioningState.EXTERNALLY_PROVISIONED)
    return ProviderInstanceState(id=str(execution.host), state=state or None, ready=ready)


def _private_ip(view: MachineView) -> str | None:
    """Return the address in the management network; without one of Container Cloud, the Node's InternalIP."""
    found = view.ipam.status.service_map.get(LABEL_LCM_SUBNET, ()) if view.ipam is not None else ()
    for address in found:
        if address.ip_address:
            return address.ip_address.partition("/")[0]
    known = view.node.status.addresses if view.node is not None else ()
    return next((one.address for one in known if one.type == "InternalIP"), None)


def _addresses(view: MachineView) -> Iterator[Address]:
    """Yield the address in the management network, and those of the Node; before it has any, what the agent reports."""
    private_ip = _private_ip(view)
    if private_ip is not None:
        yield Address(type="InternalIP", address=private_ip)
    if view.node is not None and view.node.status.addresses:
        for one in view.node.status.addresses:
            if one.type in ("InternalIP", "ExternalIP", "Hostname") and one.address not in ("", private_ip):
                yield Address(type=one.type, address=one.address)
        return
    host = view.target.status.agent.host if view.target is not None and view.target.status.agent is not None else None
    if host is None:
        return
    first = host.address if private_ip is None else None
    if first:
        yield Address(type="InternalIP", address=first)
    if host.hostname:
        yield Address(type="Hostname", address=host.hostname)
    for address in dict.fromkeys(one.address for one in host.addresses):
        if address not in ("", private_ip, first):
            yield Address(type="InternalIP", address=address)


# Conditions


def _conditions(view: MachineView, plan: MachineStep) -> Iterator[ProviderCondition]:
    claim = claim_wait(view.machine, view.claim)
    words = (view.claim.reason, view.claim.message) if claim is None else _words(claim)
    yield _condition(_C.HOST_CLAIMED, claim is None, *words)
    yield _from_obstacle(_C.PROFILE, view.profile)
    yield _from_obstacle(_C.NETWORK, view.network or rendering_wait(view.ipam))
    state = plan.execution.stage
    installed = STATES.get(state) not in (LCMPhase.PROVISION, LCMPhase.UNINITIALIZED, None) or view.adopted
    is_life = state not in DELETION_STAGES
    waits = plan.obstacle
    yield _condition(_C.PROVIDER_INSTANCE, installed, *(_words(waits) if not installed else ("Provisioned", None)))
    is_done = state in (_S.READY, _S.MAINTAINED)
    yield _condition(_C.LCM, is_done, *(_words(waits) if not is_done else (state, None)))
    yield _kubelet(view)
    wanted = view.machine.value.maintenance
    matches = wanted == (state == _S.MAINTAINED)
    yield _condition(_C.MAINTENANCE, matches, *(("Maintenance", None) if matches else _words(waits)))
    deletes = plan.deleting or not is_life
    yield _condition(_C.PREPARE_DELETION, not deletes, *(_words(waits) if deletes else ("NotRequested", None)))
    reboot = _reboot(view.target)
    required = reboot is not None and reboot.required
    why = f"the host has to be rebooted for: {', '.join((reboot.reason or '').split())}" if reboot else None
    yield _condition(_C.REBOOT, not required, "Required" if required else "NotRequired", why if required else None)


def _words(obstacle: MachineWait | None) -> tuple[str, str | None]:
    return ("InProgress", None) if obstacle is None else (obstacle.reason, wait_text(obstacle))


def _condition(kind: ProviderConditionType, ready: bool, reason: str, message: str | None = None) -> ProviderCondition:
    return ProviderCondition(type=kind.value, ready=ready, reason=str(reason), message=message or None)


def _from_obstacle(kind: ProviderConditionType, obstacle: MachineWait | None) -> ProviderCondition:
    return _condition(kind, obstacle is None, *(("Planned", None) if obstacle is None else _words(obstacle)))


def _kubelet(view: MachineView) -> ProviderCondition:
    node, of = view.node, view.execution.machine
    name = f"Machine {view.full_name}" if of is None else f"Node {of}"
    if node is None:
        missing = MachineWait("NodeMissing", "the Node does not exist", name, "the Node is registered")
        return _from_obstacle(_C.KUBELET, missing)
    condition = node.ready_condition
    reason = (condition.reason if condition is not None else None) or "NotReported"
    message = (None if condition is None else condition.message) or ""
    if node.ready:
        return _condition(_C.KUBELET, True, reason, message)
    return _from_obstacle(_C.KUBELET, MachineWait(reason, message, name, "the Node is Ready"))
