"""Observation of a host during a HostReplace, reduced to one fact: pure, from its Machine, its Node and a BMC reading.

The servers of network boot report the boot itself in the Machine's status; reports of another boot than the operation's
are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.core import Node
from unbounded.api.machine import Machine, NetbootMilestone, NetbootStatus
from unbounded.api.machine_status import DiskErasure, DiskErasureRecord, rescue_text
from unbounded.api.meta import Condition
from unbounded.metalman import replace_table
from unbounded.metalman.boot_override import Targets, boots_from_disk, media_boot, sends_to_network
from unbounded.metalman.disks_to_erase import erasures_text, is_begun
from unbounded.metalman.redfish.bmc_interface import BmcPowerState, BootOverride

NO_NODE: Final = "none"
_LOADED: Final = frozenset({NetbootMilestone.LOADER_FETCHED, NetbootMilestone.KERNEL_FETCHED})
_INSTALLING: Final = frozenset({NetbootMilestone.INSTALLER_STARTED, NetbootMilestone.IMAGE_WRITING})


@dataclass(frozen=True)
class ReplaceState:
    """State of a HostReplace in the API, apart from the operation.

    Attributes:
        boot: the requested boot: the UID of the operation.
        node_before: `node_identity` before the boot; None if it was not recorded.
    """

    stage: str
    boot: str
    machine: Machine
    node: Node | None
    node_before: str | None

    @property
    def netboot(self) -> NetbootStatus | None:
        """Servers' record of this boot."""
        seen = self.machine.status.netboot
        return seen if seen is not None and seen.boot == self.boot else None

    @property
    def milestone(self) -> str | None:
        return self.netboot.milestone if self.netboot is not None else None

    def condition(self, kind: ConditionType) -> Condition | None:
        return next((one for one in self.machine.status.conditions if one.type == kind), None)


_OBSERVED_CONDITIONS: Final = frozenset(
    {ConditionType.NETBOOT_IMAGE_READY, ConditionType.CLOUD_INIT_DONE, ConditionType.ATTESTED}
)
_NOT_ATTESTED: Final = frozenset({ConditionReason.PCR_MISMATCH, ConditionReason.QUOTE_MISSING})


def observed_parts(machine: Machine) -> object:
    """Return the parts of a Machine's status that an observation depends on; equal as long as they are unchanged."""
    return machine.status.netboot, tuple(one for one in machine.status.conditions if one.type in _OBSERVED_CONDITIONS)


def is_image_ready(machine: Machine) -> bool:
    """Return whether the Machine's present images are on metalman's disk."""
    state = machine.current_condition(ConditionType.NETBOOT_IMAGE_READY)
    return state is not None and state.status == ConditionStatus.TRUE


def boot_fact(snapshot: ReplaceState) -> replace_table.ReplaceFact | None:
    """Return the fact that needs no reading of the BMC; None if the power decides."""
    match replace_table.fact_source(snapshot.stage):
        case replace_table.FactSource.IMAGE:
            return None if is_image_ready(snapshot.machine) else replace_table.ReplaceFact.NO_IMAGE
        case replace_table.FactSource.POWER:
            return None
        case replace_table.FactSource.BOOT | replace_table.FactSource.UNDOING:
            return _boot(snapshot)


def _boot(snapshot: ReplaceState) -> replace_table.ReplaceFact | None:
    milestone = snapshot.milestone
    if milestone == NetbootMilestone.CONTESTED:
        return replace_table.ReplaceFact.CONTESTED
    if milestone == NetbootMilestone.FAILED:
        return replace_table.ReplaceFact.INSTALL_FAILED
    if milestone == NetbootMilestone.IMAGE_WRITTEN:
        return _after_image(snapshot)
    if milestone == NetbootMilestone.HARDWARE_REPORTED:
        return replace_table.ReplaceFact.REPORTED
    if milestone == NetbootMilestone.DISKS_ERASED:
        return replace_table.ReplaceFact.ERASED
    if milestone == NetbootMilestone.RESCUE_STARTED:
        return replace_table.ReplaceFact.RESCUED
    if milestone == NetbootMilestone.RESCUE_ENDED:
        return replace_table.ReplaceFact.LEFT
    if milestone not in _LOADED | _INSTALLING:
        return None
    if snapshot.netboot is not None and (snapshot.netboot.loads or 0) > replace_table.LOADS_MAX:
        return replace_table.ReplaceFact.LOOPING
    return replace_table.ReplaceFact.LOADED if milestone in _LOADED else replace_table.ReplaceFact.INSTALLING


def _refusal(snapshot: ReplaceState) -> str:
    """Return why the host received no token in this boot, by the PCR policy; empty if it did, or has not attested."""
    tpm, attested = snapshot.machine.status.tpm, snapshot.condition(ConditionType.ATTESTED)
    if tpm is None or tpm.quote is None or tpm.quote.boot != snapshot.boot or attested is None:
        return ""
    return (attested.message or "") if attested.status == "False" and attested.reason in _NOT_ATTESTED else ""


def _after_image(snapshot: ReplaceState) -> replace_table.ReplaceFact:
    if _refusal(snapshot):
        return replace_table.ReplaceFact.NOT_ATTESTED
    done = snapshot.condition(ConditionType.CLOUD_INIT_DONE)
    if done is None:
        return replace_table.ReplaceFact.WRITTEN
    if done.status != "True":
        return (
            replace_table.ReplaceFact.CLOUD_INIT_FAILED
            if done.reason == ConditionReason.FAILED
            else replace_table.ReplaceFact.BOOTED
        )
    if snapshot.machine.spec.kubernetes is None:
        return replace_table.ReplaceFact.FINISHED
    return replace_table.ReplaceFact.JOINED if node_problem(snapshot) is None else replace_table.ReplaceFact.CONFIGURED


def power_fact(stage: str, power: BmcPowerState, *, armed: bool) -> replace_table.ReplaceFact:
    """Combine the power and the boot override into one fact.

    A stage that only writes the override does not wait for a host between On and Off: the host may be about to select
    its boot device.
    """
    match power:
        case BmcPowerState.ON:
            return replace_table.ReplaceFact.ON_ARMED if armed else replace_table.ReplaceFact.ON
        case BmcPowerState.OFF:
            return replace_table.ReplaceFact.OFF_ARMED if armed else replace_table.ReplaceFact.OFF
        case BmcPowerState.UNSETTLED if replace_table.is_about_boot_order(stage):
            return replace_table.ReplaceFact.BETWEEN_ARMED if armed else replace_table.ReplaceFact.BETWEEN
        case BmcPowerState.UNSETTLED:
            return replace_table.ReplaceFact.UNSETTLED


def restored(fact: replace_table.ReplaceFact, *, was_on: bool) -> replace_table.ReplaceFact:
    """Return the fact of a stage that restores the power state from before.

    The state is reached where the boot override is removed, too. A host that was On is started whatever its override
    is: the start removes it if the BMC can.
    """
    match fact, was_on:
        case replace_table.ReplaceFact.ON, True:
            return replace_table.ReplaceFact.ON_AS_BEFORE
        case replace_table.ReplaceFact.OFF, False:
            return replace_table.ReplaceFact.OFF_AS_BEFORE
        case replace_table.ReplaceFact.OFF_ARMED, True:
            return replace_table.ReplaceFact.OFF
        case replace_table.ReplaceFact.ON_ARMED, False:
            return replace_table.ReplaceFact.ON
    return fact


# Boot override


def is_armed(
    snapshot: ReplaceState, boot: BootOverride | None, targets: Targets = None, *, has_media: bool = True
) -> bool:
    """Return whether the boot override is set as the stage requires, or still present in a stage that clears it.

    Args:
        has_media: the image that the host is to boot from is in the drive, or it boots from the network.
    """
    if replace_table.is_clearing(snapshot.stage):
        return not boots_from_disk(boot) or media_boot(snapshot.machine) == snapshot.boot
    return has_media and sends_to_network(snapshot.machine, boot, targets)


# Node


def node_name(machine: Machine) -> str:
    """Return the name of a Machine's Node: spec.kubernetes.nodeRef, else the Machine's name."""
    kubernetes = machine.spec.kubernetes
    return kubernetes.node_ref.name if kubernetes is not None and kubernetes.node_ref is not None else machine.name


def node_identity(node: Node | None) -> str:
    """Return an identity that another boot changes once the Node reports: its UID, its boot id, its last heartbeat."""
    if node is None:
        return NO_NODE
    ready, info = node.ready_condition, node.status.node_info
    boot_id, heartbeat = info.boot_id if info else "", ready.last_heartbeat_time if ready else ""
    return f"{node.metadata.uid}/{boot_id or ''}/{heartbeat or ''}"[:128]


def node_problem(snapshot: ReplaceState) -> str | None:
    """Return a text why the Node does not prove the new boot yet; None if it does."""
    name, node = node_name(snapshot.machine), snapshot.node
    if node is None:
        return f"Node {name} does not exist"
    if node_identity(node) == snapshot.node_before:
        return f"Node {name} has not reported since the boot"
    if not node.ready:
        ready = node.ready_condition
        message = f": {ready.message or ready.reason}" if ready is not None and (ready.message or ready.reason) else ""
        return f"Node {name} is not Ready{message}"
    return None


# Words


def progress_of(snapshot: ReplaceState) -> str:
    """Return the progress for the operation's message; empty if nothing is known beyond the stage."""
    if snapshot.stage == replace_table.WAITING_IMAGE:
        return _condition_text(snapshot, ConditionType.NETBOOT_IMAGE_READY)
    if snapshot.stage == replace_table.WAITING_NODE:
        return node_problem(snapshot) or ""
    if replace_table.fact_source(snapshot.stage) is not replace_table.FactSource.BOOT:
        return ""
    if snapshot.milestone == NetbootMilestone.IMAGE_WRITTEN:
        return _condition_text(snapshot, ConditionType.CLOUD_INIT_DONE)
    return _installing(snapshot)


def _installing(snapshot: ReplaceState) -> str:
    seen = snapshot.netboot
    if seen is None:
        return ""
    percent = f"{seen.percent} % written" if seen.percent is not None else ""
    disks = erasures_text(seen.erasures)
    return ", ".join(part for part in (percent, seen.message or "", disks) if part)


def _condition_text(snapshot: ReplaceState, kind: ConditionType) -> str:
    condition = snapshot.condition(kind)
    return "" if condition is None else condition.message or condition.reason or ""


def boot_text(snapshot: ReplaceState) -> str:
    """Return the known state of the boot, for the message at an end."""
    if snapshot.stage == replace_table.WAITING_IMAGE:
        return _condition_text(snapshot, ConditionType.NETBOOT_IMAGE_READY) or "no image has been reported yet"
    if refusal := _refusal(snapshot):
        return f"{refusal}; {_boot_text(snapshot)}"
    if snapshot.stage == replace_table.WAITING_NODE:
        return f"{node_problem(snapshot) or f'Node {node_name(snapshot.machine)} is Ready'}; {_boot_text(snapshot)}"
    return _boot_text(snapshot)


def _boot_text(snapshot: ReplaceState) -> str:
    seen = snapshot.netboot
    if seen is None or seen.milestone is None:
        message = seen.message if seen is not None else ""
        words = ("no boot of the installer was observed", message or "", _boot_order_text(snapshot))
        return "; ".join(filter(None, words))
    loads = f"the host fetched the loader {seen.loads} times" if (seen.loads or 0) > 1 else ""
    percent = f"{seen.percent} % written" if seen.percent is not None else ""
    image = f"image {seen.image_digest}" if seen.image_digest else ""
    reported = _condition_text(snapshot, ConditionType.CLOUD_INIT_DONE)
    cloud_init = f"cloud-init: {reported}" if reported and seen.milestone == NetbootMilestone.IMAGE_WRITTEN else ""
    disks = erasures_text(seen.erasures)
    return "; ".join(
        filter(None, (f"boot {seen.milestone}", loads, percent, seen.message or "", disks, image, cloud_init))
    )


def _boot_order_text(snapshot: ReplaceState) -> str:
    condition = snapshot.condition(ConditionType.BOOT_ORDER_CONFIG_SUPPORTED)
    return "" if condition is None or condition.status == "True" else f"its boot order: {condition.message}"


def erasure_evidence(machine: Machine, boot: str, requested_by: str) -> tuple[str, ...]:
    """Return the erasures of disks with data of others, and who requested them, as evidence."""
    seen, layout = machine.status.netboot, machine.status.layout
    if seen is None or seen.boot != boot:
        return ()
    erased = seen.milestone == NetbootMilestone.IMAGE_WRITTEN
    erasures = () if seen.erasure is None else (seen.erasure,)
    texts = [_erasure_text(each, f"requested by {requested_by}", erased=erased) for each in erasures]
    if layout is not None and layout.boot == boot:
        by = f"requested by {requested_by} or MachineProfile {layout.profile}"
        texts += [_erasure_text(each, by, erased=erased) for each in layout.erasures]
    return tuple(texts)


def acceptance_evidence(machine: Machine, boot: str) -> tuple[str, ...]:
    """Return who accepted this boot as the reference, as evidence."""
    reference = machine.status.tpm.reference if machine.status.tpm else None
    if reference is None or reference.boot != boot or reference.accepted_by is None:
        return ()
    return (f"{reference.accepted_by} accepted the PCRs of this boot",)


def _erasure_text(erasure: DiskErasure, by: str, *, erased: bool) -> str:
    disk = erasure.serial_number
    words = f"disk {disk} was erased" if erased else f"the erasure of disk {disk} was permitted"
    return f"{words}: it held {erasure.contents or 'data of an unknown kind'}; {by}"


def erasures_of(machine: Machine, boot: str) -> tuple[DiskErasureRecord, ...]:
    """Return the disks of a HostErase, as the Machine has them for this boot."""
    seen = machine.status.netboot
    return seen.erasures if seen is not None and seen.boot == boot else ()


def erase_evidence(records: tuple[DiskErasureRecord, ...], requested_by: str) -> tuple[str, ...]:
    """Return who requested a HostErase that metalman has let begin, as evidence."""
    return (f"the erasure of the disks was requested by {requested_by}",) if is_begun(records) else ()


def rescue_evidence(machine: Machine, boot: str) -> tuple[str, ...]:
    """Return address and host key of the rescue system of a boot, as evidence."""
    seen = machine.status.netboot
    return () if seen is None or seen.boot != boot or seen.rescue is None else (rescue_text(seen.rescue),)


def boot_evidence(snapshot: ReplaceState) -> str:
    """Return the place of the boot's record, for evidence."""
    if snapshot.stage == replace_table.WAITING_NODE:
        return f"Node {node_name(snapshot.machine)}"
    digest = snapshot.netboot.image_digest if snapshot.netboot is not None else None
    return f"status.netboot of Machine {snapshot.machine.name}" + (f", image {digest}" if digest else "")
